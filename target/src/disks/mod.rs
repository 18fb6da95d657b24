//! The files and devices behind namespaces, on the control side: looked at, opened, kept and closed.
//!
//! | module | what it does |
//! | --- | --- |
//! | [`helpers`] | threads for what may hang, which are left alone when it does |
//! | [`identity`] | which disk a path leads to, whatever its name |
//! | [`in_use`] | which disks this process serves, so that none is served under two names |
//! | [`holder`] | who else holds a disk |
//! | [`open`] | looks before it opens, locks, and opens once for each core |
//! | [`keeper`] | the open descriptors of a namespace's disk |
//! | [`grow`] | making a file longer |
//! | [`keepers`] | all of them, and their opening at the start |
//!
//! No core opens, looks at or closes a path: each of these may take as long as a server far away likes.

pub(crate) mod grow;
pub mod helpers;
pub(crate) mod holder;
pub mod identity;
pub(crate) mod in_use;
pub(crate) mod keeper;
pub(crate) mod keepers;
pub(crate) mod open;

pub use helpers::Hanging;
pub use identity::DiskIdentity;
pub(crate) use keeper::Keeper;
pub(crate) use keepers::Keepers;
