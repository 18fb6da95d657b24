//! Images of Ceph's block device (RBD) as disks, through librbd.
//!
//! [`RbdDriver`] serves an [image](ImageSpec) of a [`Cluster`]. The libraries are loaded when they are first needed,
//! so a program starts without them. An operation reads into and writes from the buffers of the data path; librbd's
//! threads bring the answers to the core that has asked, which polls an eventfd. What may wait (connecting, opening,
//! closing) is done by a thread of the driver's own.
//!
//! The modules, each using only those before it: `sync`, `error`, `spec`, `native` (the libraries, and all that is
//! unsafe about them), `steps`, `cluster`, `shared`, `look`, `keeper`, `device`, `driver`.
//!
//! Not implemented here: making, resizing and removing images and snapshots; librbd's encryption; images of the old
//! format 1, which have no identifier.

mod cluster;
mod device;
mod driver;
mod error;
mod keeper;
mod look;
mod native;
mod shared;
mod spec;
mod steps;
mod sync;

pub use cluster::{Cluster, ClusterConfig};
pub use driver::{RbdDriver, check};
pub use error::RbdError;
pub use spec::{ImageSpec, SpecError};
