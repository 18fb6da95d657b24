//! Block devices: regular files and block devices through the core's io_uring, memory, null, and wrappers that inject
//! faults, delays and limits.
//!
//! A [`Disk`] belongs to one core. It takes an [`Operation`] with the memory it needs and gives that back when the
//! operation has finished: at once for memory and null, else after a completion of the reactor. Every other kind of
//! disk (a library, a network protocol, a passed-through device) implements [`BlockDevice`]. Its page is the contract
//! of all disks.
//!
//! The modules, each using only those before it: `error`, `operation`, `tokens`, `device`, `zeroes`, `null`,
//! `memory`, `file`, `faults`, `pace`, `disk`.
//!
//! Not implemented here: NVMe (blocks, namespaces; the status of a drive only passes through), caches, partitions,
//! RAID, and metadata or protection information beside the data.

mod device;
mod disk;
mod error;
mod faults;
mod file;
mod memory;
mod null;
mod operation;
mod pace;
mod tokens;
mod zeroes;

pub use device::{BlockDevice, Detail, DeviceIdentity, Driver, DriverHandle, OpenedFile, Seen};
pub use disk::{Backing, Disk, Shared};
pub use error::{BlockError, DriveStatus, OpenError};
pub use faults::Faults;
pub use memory::Memory;
pub use operation::{Discarded, DiskProperties, Finished, Operation, Started, Tag};
pub use pace::Pace;
pub use ringfab_reactor::PreferredSizes;
pub use tokens::DiskTokens;
