//! The files and devices behind namespaces, on the control side: looked at, opened, kept and closed.
//!
//! | module | what it does |
//! | --- | --- |
//! | [`device`] | devices of drivers that a program brings |
//! | [`holder`] | who else holds a disk |
//! | [`denied`] | why the system denies a disk, and what to do |
//! | [`open`] | looks before it opens, locks, and opens once for each core |
//! | [`disk_handle`] | the open descriptors of a namespace's disk |
//! | [`grow`] | making a file longer |
//! | [`disk_handles`] | all of them, and their opening at the start |
//!
//! No core opens, looks at or closes a path: each of these may take as long as a server far away likes.

pub(crate) mod denied;
pub(crate) mod device;
pub(crate) mod disk_handle;
pub(crate) mod disk_handles;
pub(crate) mod grow;
pub(crate) mod holder;
pub(crate) mod open;

pub(crate) use disk_handle::DiskHandle;
pub(crate) use disk_handles::DiskHandles;
