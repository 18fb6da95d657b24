//! What the kernel has mounted, on which disk, and who uses it. Nothing here asks a file system, which may wait for its
//! server.

pub(crate) mod device;
pub(crate) mod holders;
