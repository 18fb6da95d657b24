//! Disks that an NBD server exports (doc/proto.md of the NetworkBlockDevice project), as a
//! [`Driver`](ringfab_block::Driver) of block devices.
//!
//! Each core has a connection of its own, made and used on the core's reactor. What has been read is received where it
//! is to be. When the server goes, operations wait while their core connects again, up to a limit, and what was not
//! answered is asked for again.
//!
//! What was written and not flushed when a connection ended may be gone. All cores share one account of that
//! ([`Durability`](durability::Durability)): no flush succeeds then before the device was reopened.
//!
//! The modules, each using only those before it: `address`, `durability`, `session`, `request`, `inbound`, `link`,
//! `device`, `driver`.
//!
//! Not implemented here: TLS, metadata contexts (what is allocated), extended headers, and one connection for several
//! cores: an export that allows only one connection is for a target with one core.

#![forbid(unsafe_code)]

mod address;
mod device;
mod driver;
mod durability;
mod inbound;
mod link;
mod request;
mod session;

pub use address::{AddressError, NbdAddress};
pub use driver::{NbdDriver, NbdOptions};
