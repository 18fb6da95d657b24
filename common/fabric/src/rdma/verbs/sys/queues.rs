//! Completion queues and shared receives.

use std::ffi::CStr;
use std::io;
use std::os::fd::RawFd;
use std::ptr::{self, NonNull};

use rdma_sys as ffi;

use super::{Context, Domain, check_code, made, set_nonblocking};

/// What wakes a core that waits for completions.
#[derive(Debug)]
pub(crate) struct CompletionChannel(NonNull<ffi::ibv_comp_channel>);

impl CompletionChannel {
    pub(crate) fn new(context: Context) -> io::Result<Self> {
        // SAFETY: the context is open.
        let channel = Self(made(unsafe { ffi::ibv_create_comp_channel(context.0.as_ptr()) })?);
        set_nonblocking(channel.descriptor())?;
        Ok(channel)
    }

    /// Readable when a queue that was armed has a completion.
    pub(crate) fn descriptor(&self) -> RawFd {
        // SAFETY: the channel lives.
        unsafe { self.0.as_ref().fd }
    }

    /// Takes a notification, if there is one, and tells of which queue. A queue gives one for each time that it is
    /// armed.
    pub(crate) fn take(&self) -> Option<Notified> {
        let (mut queue, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel lives; the results are written on success.
        if unsafe { ffi::ibv_get_cq_event(self.0.as_ptr(), &raw mut queue, &raw mut context) } != 0 {
            return None;
        }
        // SAFETY: the event is of a queue that lives, since destroying one waits for this acknowledgement.
        unsafe { ffi::ibv_ack_cq_events(queue, 1) };
        Some(Notified(queue))
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        // SAFETY: it is ours, and its queues are gone by the owner's order.
        unsafe { ffi::ibv_destroy_comp_channel(self.0.as_ptr()) };
    }
}

/// Names the queue of a notification.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Notified(*const ffi::ibv_cq);

/// A completion queue.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    pub(super) raw: NonNull<ffi::ibv_cq>,
}

/// Room for completions in the library's form. It is kept from look to look: most looks find nothing, and making so
/// much room costs more than they do.
pub(crate) struct Batch(Box<[ffi::ibv_wc; Batch::LENGTH]>);

impl Batch {
    /// Completions taken at once.
    pub(crate) const LENGTH: usize = 32;

    pub(crate) fn new() -> Self {
        // SAFETY: all zeroes is a valid value of this structure of integers.
        Self(Box::new(unsafe { std::mem::zeroed() }))
    }
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Batch")
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkCompletion {
    /// The request's number.
    pub(crate) id: u64,
    /// Zero is success; see [`status_text`].
    pub(crate) status: u32,
    /// Bytes of a received message.
    pub(crate) bytes: u32,
    pub(crate) queue_pair: u32,
    /// The key that a received message invalidated.
    pub(crate) invalidated: Option<u32>,
}

/// The status of requests that ended because their queue pair did.
pub(crate) const STATUS_FLUSHED: u32 = ffi::ibv_wc_status::IBV_WC_WR_FLUSH_ERR;
/// The status of a message that was longer than the receive for it.
pub(crate) const STATUS_LENGTH: u32 = ffi::ibv_wc_status::IBV_WC_LOC_LEN_ERR;

/// What a status means.
pub(crate) fn status_text(status: u32) -> String {
    // SAFETY: the function takes any number and returns a constant string.
    unsafe { CStr::from_ptr(ffi::ibv_wc_status_str(status)) }.to_string_lossy().into_owned()
}

impl CompletionQueue {
    pub(crate) fn new(context: Context, entries: u32, channel: &CompletionChannel) -> io::Result<Self> {
        let entries = i32::try_from(entries).unwrap_or(i32::MAX);
        // SAFETY: both live during the call; the channel outlives the queue by the owner's order.
        let raw = unsafe {
            ffi::ibv_create_cq(context.0.as_ptr(), entries, ptr::null_mut(), channel.0.as_ptr(), 0)
        };
        Ok(Self { raw: made(raw)? })
    }

    /// Whether a notification was of this queue.
    pub(crate) fn is(&self, notified: Notified) -> bool {
        std::ptr::eq(self.raw.as_ptr(), notified.0)
    }

    /// Takes completions, oldest first, with `batch` as room for them. Returns how many; when that is
    /// [`Batch::LENGTH`], there may be more.
    pub(crate) fn poll(&self, batch: &mut Batch, mut take: impl FnMut(&WorkCompletion)) -> io::Result<usize> {
        let room = batch.0.as_mut_ptr();
        // SAFETY: the queue lives and there is room for as many as are asked for.
        let count = unsafe { ffi::ibv_poll_cq(self.raw.as_ptr(), Batch::LENGTH as i32, room) };
        let count = usize::try_from(count).map_err(|_| io::Error::other("the completion queue is broken"))?;
        for raw in &batch.0[..count] {
            let invalidates = raw.wc_flags & ffi::ibv_wc_flags::IBV_WC_WITH_INV.0 != 0;
            // SAFETY: both members of the union are plain numbers of the same size.
            let key = unsafe { raw.imm_data_invalidated_rkey_union.invalidated_rkey };
            take(&WorkCompletion {
                id: raw.wr_id,
                status: raw.status,
                bytes: raw.byte_len,
                queue_pair: raw.qp_num,
                invalidated: Some(key).filter(|_| raw.status == 0 && invalidates),
            });
        }
        Ok(count)
    }

    /// Makes the next completion notify the channel.
    pub(crate) fn arm(&self) -> io::Result<()> {
        // SAFETY: the queue lives.
        check_code(unsafe { ffi::ibv_req_notify_cq(self.raw.as_ptr(), 0) })
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: it is ours, and what reports to it is gone by the owner's order.
        unsafe { ffi::ibv_destroy_cq(self.raw.as_ptr()) };
    }
}

/// A piece of registered memory.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Piece {
    pub(crate) address: u64,
    pub(crate) length: u32,
    pub(crate) key: u32,
}

const _: () = assert!(size_of::<Piece>() == size_of::<ffi::ibv_sge>());
const _: () = assert!(std::mem::offset_of!(ffi::ibv_sge, lkey) == 12);

/// Receives for one doorbell in the library's form, reused from doorbell to doorbell.
#[derive(Default)]
pub(crate) struct ReceiveChain {
    requests: Vec<ffi::ibv_recv_wr>,
    pieces: Vec<[Piece; 2]>,
}

impl ReceiveChain {
    /// Appends one; a second piece without bytes is none.
    pub(crate) fn push(&mut self, id: u64, pieces: [Piece; 2]) {
        let num_sge = if pieces[1].length == 0 { 1 } else { 2 };
        let (next, sg_list) = (ptr::null_mut(), ptr::null_mut());
        self.requests.push(ffi::ibv_recv_wr { wr_id: id, next, sg_list, num_sge });
        self.pieces.push(pieces);
    }

    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }

    /// The numbers of its receives, in their order.
    pub(crate) fn ids(&self) -> impl Iterator<Item = u64> {
        self.requests.iter().map(|request| request.wr_id)
    }

    pub(crate) fn clear(&mut self) {
        self.requests.clear();
        self.pieces.clear();
    }
}

impl std::fmt::Debug for ReceiveChain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReceiveChain").field("capacity", &self.requests.capacity()).finish()
    }
}

/// Receives that several queue pairs take from.
#[derive(Debug)]
pub(crate) struct SharedReceiveQueue(pub(super) NonNull<ffi::ibv_srq>);

impl SharedReceiveQueue {
    pub(crate) fn new(domain: &Domain, receives: u32) -> io::Result<Self> {
        let attr = ffi::ibv_srq_attr { max_wr: receives, max_sge: 2, srq_limit: 0 };
        let mut attributes = ffi::ibv_srq_init_attr { srq_context: ptr::null_mut(), attr };
        // SAFETY: the domain lives; the structure is read.
        let raw = unsafe { ffi::ibv_create_srq(domain.0.as_ptr(), &raw mut attributes) };
        Ok(Self(made(raw)?))
    }

    /// Posts receives with one doorbell. Returns how many of them were taken, the first ones, and why not all.
    ///
    /// # Safety
    /// The memory of each belongs to it until its completion, or until the queue is gone.
    pub(crate) unsafe fn post(&self, chain: &mut ReceiveChain) -> (usize, io::Result<()>) {
        let mut next = ptr::null_mut();
        for (request, pieces) in chain.requests.iter_mut().zip(&mut chain.pieces).rev() {
            request.sg_list = pieces.as_mut_ptr().cast();
            request.next = std::mem::replace(&mut next, request);
        }
        let mut bad = ptr::null_mut();
        // SAFETY: the queue lives; the requests and their lists are read during the call; the memory is the caller's
        // promise.
        let outcome = check_code(unsafe { ffi::ibv_post_srq_recv(self.0.as_ptr(), next, &raw mut bad) });
        let refused = chain.requests.iter().position(|request| outcome.is_err() && ptr::eq(request, bad));
        (refused.unwrap_or(chain.requests.len()), outcome)
    }
}

impl Drop for SharedReceiveQueue {
    fn drop(&mut self) {
        // SAFETY: it is ours, and its queue pairs are gone by the owner's order.
        unsafe { ffi::ibv_destroy_srq(self.0.as_ptr()) };
    }
}
