//! The files and devices behind namespaces, on the control side: looked at, opened, kept and closed.
//!
//! | module | what it does |
//! | --- | --- |
//! | [`device`] | devices of drivers that a program brings |
//! | [`holder`] | who else holds a disk |
//! | [`open`] | looks before it opens, locks, and opens once for each core |
//! | [`keeper`] | the open descriptors of a namespace's disk |
//! | [`grow`] | making a file longer |
//! | [`keepers`] | all of them, and their opening at the start |
//!
//! No core opens, looks at or closes a path: each of these may take as long as a server far away likes.

pub(crate) mod device;
pub(crate) mod grow;
pub(crate) mod holder;
pub(crate) mod keeper;
pub(crate) mod keepers;
pub(crate) mod open;

pub(crate) use keeper::Keeper;
pub(crate) use keepers::Keepers;
