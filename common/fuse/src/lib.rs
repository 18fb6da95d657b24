//! FUSE over io_uring: requests of the kernel come as completions of a ring, and the answer to one fetches the next.
//!
//! The classic way to serve FUSE is to read a request from `/dev/fuse` and to write its answer there, two system calls
//! and two copies of the data for each. Since Linux 6.14 a server may register entries instead: memory for a request,
//! its data and its answer, which the kernel fills, and a command that ends when it has
//! (Documentation/filesystems/fuse-io-uring). [`Channel`] is that; [`abi`] has the protocol's structures.
//!
//! What is not here: mounting and the handshake, which go by `/dev/fuse` in any case, and what the answers are.
#![allow(unsafe_code, reason = "this crate hands memory to the kernel; every block is argued")]

pub mod abi;
mod channel;

pub use channel::{Channel, EntryId, Event, Queues, Request};
