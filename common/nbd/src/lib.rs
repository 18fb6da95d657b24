//! Disks that an NBD server exports (doc/proto.md of the NetworkBlockDevice project), as a
//! [`Driver`](ringfab_block::Driver) of block devices.
//!
//! Each core has a connection of its own, made and used on the core's reactor. What has been read is received where it
//! is to be. Where an export allows only one connection, a thread has it, and cores speak with that thread.
//!
//! When the server goes, operations wait while their core connects again, up to a limit, and what was not answered is
//! asked for again.
//!
//! What was written and not flushed when a connection ended may be gone. All cores share one account of that
//! ([`Durability`](durability::Durability)): no flush succeeds then before the device was reopened.
//!
//! Not implemented here: TLS, metadata contexts (what is allocated), and extended headers.

#![forbid(unsafe_code)]

mod address;
mod device;
mod driver;
mod durability;
mod inbound;
mod link;
mod options;
mod relay;
mod request;
mod session;
mod stream;

pub use address::{AddressError, NbdAddress};
pub use driver::NbdDriver;
pub use options::NbdOptions;
