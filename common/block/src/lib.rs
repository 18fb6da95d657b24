//! Block devices: regular files and block devices through the core's io_uring, memory and null, and a wrapper
//! that injects faults.
//!
//! A [`Disk`] belongs to one core. It takes an [`Operation`] with the memory it needs and gives that back when it
//! is finished: at once for memory and null, else through the reactor's completion.

mod disk;
mod error;
mod faults;
mod file;
mod memory;
mod null;

pub use disk::{
    Backing, Disk, DiskProperties, Finished, Memory, OpenedFile, Operation, Shared, Started, Tag,
};
pub use error::{BlockError, OpenError};
pub use faults::Faults;
