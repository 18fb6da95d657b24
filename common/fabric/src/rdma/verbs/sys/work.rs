//! Work requests, and the queue pairs that they are posted to.

use std::io;
use std::ptr::{self, NonNull};

use rdma_sys as ffi;

use super::{Piece, Region, Window, check_code};

/// What a request does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    Send,
    /// SEND that invalidates this key of the peer's.
    SendInvalidate(u32),
    Write {
        address: u64,
        key: u32,
    },
    Read {
        address: u64,
        key: u32,
    },
    /// Opens a window on a part of a region.
    Bind {
        window: NonNull<ffi::ibv_mw>,
        region: NonNull<ffi::ibv_mr>,
        key: u32,
        address: u64,
        length: u32,
        write: bool,
    },
}

impl Operation {
    /// Opens `window` under its present key on `length` bytes at `address` of `region`, for reading or for writing.
    pub(crate) fn bind(window: &Window, region: &Region, address: u64, length: u32, write: bool) -> Self {
        Self::Bind { window: window.raw, region: region.raw, key: window.key, address, length, write }
    }
}

/// A request of a send queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkRequest {
    pub(crate) id: u64,
    pub(crate) operation: Operation,
    pub(crate) pieces: [Piece; 2],
    pub(crate) piece_count: u8,
    pub(crate) signaled: bool,
    /// The bytes are copied into the request.
    pub(crate) inline: bool,
    pub(crate) solicited: bool,
}

/// Room for a chain of requests in the library's form, reused from doorbell to doorbell.
#[derive(Default)]
pub(crate) struct Chain {
    requests: Vec<ffi::ibv_send_wr>,
    pieces: Vec<[Piece; 2]>,
}

impl std::fmt::Debug for Chain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chain").field("capacity", &self.requests.capacity()).finish()
    }
}

/// The queue pair of a [`CmId`], which destroys it.
#[derive(Debug)]
pub(crate) struct QueuePair {
    pub(super) raw: NonNull<ffi::ibv_qp>,
    pub(crate) number: u32,
    /// Bytes that fit into a request.
    pub(crate) inline_bytes: u32,
}

impl QueuePair {
    /// Posts requests with one doorbell. On an error none after the failing one was taken.
    ///
    /// # Safety
    /// The memory of the pieces, but of those that are inline, is left alone until the completion of its request or of
    /// a later one of this queue pair, or until the queue pair is gone; windows and regions that are named live.
    pub(crate) unsafe fn post(
        &self,
        chain: &mut Chain,
        requests: impl Iterator<Item = WorkRequest>,
    ) -> io::Result<()> {
        chain.requests.clear();
        chain.pieces.clear();
        for request in requests {
            chain.requests.push(raw_request(&request));
            chain.pieces.push(request.pieces);
        }
        let mut next = ptr::null_mut();
        for (raw, pieces) in chain.requests.iter_mut().zip(&mut chain.pieces).rev() {
            raw.sg_list = pieces.as_mut_ptr().cast();
            raw.next = std::mem::replace(&mut next, raw);
        }
        if next.is_null() {
            return Ok(());
        }
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair lives as long as its identifier, which owns `self`'s owner; the chain is linked within
        // vectors that are not touched during the call; the rest is the caller's promise.
        check_code(unsafe { ffi::ibv_post_send(self.raw.as_ptr(), next, &raw mut bad) })
    }
}

/// The request in the library's form, but for what points to others.
fn raw_request(request: &WorkRequest) -> ffi::ibv_send_wr {
    use ffi::{ibv_send_flags as flag, ibv_wr_opcode as opcode};
    // SAFETY: all zeroes is a valid value of this structure of integers and pointers.
    let mut raw: ffi::ibv_send_wr = unsafe { std::mem::zeroed() };
    raw.wr_id = request.id;
    raw.num_sge = i32::from(request.piece_count);
    for (wanted, bit) in [
        (request.signaled, flag::IBV_SEND_SIGNALED.0),
        (request.inline, flag::IBV_SEND_INLINE.0),
        (request.solicited, flag::IBV_SEND_SOLICITED.0),
    ] {
        raw.send_flags |= if wanted { bit } else { 0 };
    }
    match request.operation {
        Operation::Send => raw.opcode = opcode::IBV_WR_SEND,
        Operation::SendInvalidate(key) => {
            raw.opcode = opcode::IBV_WR_SEND_WITH_INV;
            raw.imm_data_invalidated_rkey_union.invalidated_rkey = key;
        }
        Operation::Write { address, key } => {
            raw.opcode = opcode::IBV_WR_RDMA_WRITE;
            raw.wr.rdma = ffi::rdma_t { remote_addr: address, rkey: key };
        }
        Operation::Read { address, key } => {
            raw.opcode = opcode::IBV_WR_RDMA_READ;
            raw.wr.rdma = ffi::rdma_t { remote_addr: address, rkey: key };
        }
        Operation::Bind { window, region, key, address, length, write } => {
            let rights = if write {
                ffi::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0
            } else {
                ffi::ibv_access_flags::IBV_ACCESS_REMOTE_READ.0
            };
            raw.opcode = opcode::IBV_WR_BIND_MW;
            raw.bind_mw_tso_union.bind_mw = ffi::bind_mw_t {
                mw: window.as_ptr(),
                rkey: key,
                bind_info: ffi::ibv_mw_bind_info {
                    mr: region.as_ptr(),
                    addr: address,
                    length: u64::from(length),
                    mw_access_flags: rights,
                },
            };
        }
    }
    raw
}
