//! Registered regions, per-core pools and move-only buffers.
//!
//! This crate owns all memory that a device, the kernel or a remote peer may touch while our code runs. Submission
//! takes the buffer, completion gives it back. A [`Buffer`] is the only handle of its bytes and may hand out slices; a
//! [`SharedBuffer`] is one of several handles of the same bytes and only copies in and out. Neither can outlive the
//! mapping it points into, and dropping the last one returns the memory to its [`Pool`]. Memory of a caller that waits
//! is not registered: [`CallerMemory`] lends it to a thread that copies. Memory that another program may write at any
//! time is a [`ForeignMemory`], which only copies, too.
//!
//! Not implemented here: pools that several threads share, buffers that grow, and device memory. Nothing in this crate
//! depends on rings, sockets or NVMe.
#![allow(unsafe_code, reason = "this crate owns the raw memory; every block is argued")]

mod borrow;
mod budget;
mod caller;
mod collapse;
mod dense;
mod foreign;
mod handle;
mod heap;
mod mapping;
mod page_word;
mod pages;
mod pool;
mod shared;
mod slab;
mod staging;
mod sync;

pub use borrow::BorrowedPages;
pub use budget::{Budget, Reservation};
pub use caller::{CallerMemory, CallerSource, CallerTarget};
pub use foreign::{ForeignMemory, OutOfBounds};
pub use handle::{Buffer, PostedBuffer, SharedBuffer};
pub use heap::{address_limit, has_headroom, share_heap_where_addresses_are_limited, trim_heap};
pub use mapping::{Mapping, PAGE_BYTES};
pub use pool::{ClassLayout, Pool, PoolUsage};
pub use shared::{CoreMemory, SharedMemory};
pub use staging::Staging;

/// Errors of reserving memory.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The kernel refused the mapping.
    #[error("cannot map {bytes} bytes of memory: {source}")]
    Map {
        /// Size of the mapping that was asked for.
        bytes: usize,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// The layout of a pool cannot be built.
    #[error("a pool cannot have this layout: {0}")]
    Layout(&'static str),
}
