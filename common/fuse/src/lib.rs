//! FUSE over io_uring: requests of the kernel come as completions of a ring, and the answer to one fetches the next.
//!
//! The older way to serve FUSE is to read a request from `/dev/fuse` and to write its answer there: two system calls
//! and two copies of the data for each request. Since Linux 6.14 a server may register entries instead. An entry is
//! memory for a request, its data and its answer. The kernel fills it, and completes a command of the ring
//! (Documentation/filesystems/fuse-io-uring). [`Channel`] implements this; [`abi`] has the protocol's structures.
//!
//! [`LoopDevice`] makes a disk of the kernel of a file of such a file system.
//!
//! Not implemented here: mounting and the handshake, which always use `/dev/fuse`, and the answers to requests.
#![allow(unsafe_code, reason = "this crate hands memory to the kernel; every block is argued")]

pub mod abi;
mod channel;
pub mod loop_device;

pub use channel::{Channel, EntryId, Event, Queues, Request};
pub use loop_device::{LoopDevice, LoopOptions};
