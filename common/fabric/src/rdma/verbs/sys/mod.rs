//! libibverbs and librdmacm as far as they are used here, behind types that own what they name.
//!
//! Everything that talks to the two libraries is in this module. What they hand out is freed by the `Drop` of its
//! type; the order in which things must be freed (queue pairs before queues before domains) is kept by their owner,
//! [`super::Device`]. The libraries are thread-safe; what is `Send` here says why.

mod cm;
mod context;
mod list;
mod memory;
mod queues;
mod work;

pub(crate) use cm::{CmEvent, CmEventKind, CmId, ConnectionParameters, EventChannel, QueuePairLimits};
pub(crate) use context::{AsyncEvent, AsyncEventKind, Context, DeviceLimits, close_removed_devices};
pub(crate) use list::{DeviceList, OpenDevice};
pub(crate) use memory::{Domain, Region, Rights, Window};
pub(crate) use queues::{
    Batch, CompletionChannel, CompletionQueue, Piece, ReceiveChain, STATUS_FLUSHED, STATUS_LENGTH,
    SharedReceiveQueue, WorkCompletion, status_text,
};
pub(crate) use work::{Chain, Operation, QueuePair, WorkRequest};

use std::io;
use std::os::fd::RawFd;
use std::ptr::NonNull;

/// What librdmacm returned, with the reason in `errno`.
fn check(result: i32) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// What libibverbs returned: the reason itself, or with some drivers only that it is in `errno`.
fn check_code(code: i32) -> io::Result<()> {
    match code {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        code => Err(io::Error::from_raw_os_error(code.abs())),
    }
}

/// A pointer that libibverbs made, or the reason in `errno`.
fn made<T>(pointer: *mut T) -> io::Result<NonNull<T>> {
    NonNull::new(pointer).ok_or_else(io::Error::last_os_error)
}

fn set_nonblocking(descriptor: RawFd) -> io::Result<()> {
    // SAFETY: plain calls on a descriptor that the caller owns.
    let flags = unsafe { libc::fcntl(descriptor, libc::F_GETFL) };
    if flags < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above.
    if unsafe { libc::fcntl(descriptor, libc::F_SETFL, flags | libc::O_NONBLOCK) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
