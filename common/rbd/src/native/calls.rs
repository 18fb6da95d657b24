//! The calls of one core: operations that librbd works at, with the memory that it reads from and writes to.
//!
//! A call owns its operation from its start to its answer. librbd answers on a thread of its own. The answer goes to a
//! list without a lock, from which the core takes all that there is; who puts the first one there signals an eventfd.

use std::ffi::{c_char, c_int, c_void};
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use nix::sys::eventfd::{EfdFlags, EventFd};
use ringfab_block::{DiskTokens, Operation, Tag};

use super::answers::{Answer, Answers};
use super::image::Image;
use super::library::{Errno, Library, RawCompletion, RawImage};

/// `LIBRADOS_OP_FLAG_FADVISE_FUA`: no cache of a client may hold back the write.
const FUA: c_int = 0x80;

/// `RBD_WRITE_ZEROES_FLAG_THICK_PROVISION`: zeroes are written, and no space is freed.
const THICK: c_int = 1;

/// What of an operation a call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// All of it.
    Whole,
    /// What it does to a part of its range, where it moves no data: writing zeroes, discarding.
    Range {
        /// Position on the disk in bytes.
        offset: u64,
        /// How many bytes.
        length: u64,
    },
    /// A flush after it.
    Flush,
}

/// What librbd is to do.
#[derive(Debug)]
pub(crate) struct Pending {
    /// What the core was asked for.
    pub(crate) operation: Operation,
    /// By whom.
    pub(crate) tag: Tag,
    /// Of which image.
    pub(crate) image: Arc<Image>,
    /// Which part of it.
    pub(crate) request: Request,
}

/// A call that librbd has answered.
#[derive(Debug)]
pub(crate) struct Answered {
    /// What it was.
    pub(crate) pending: Pending,
    /// What the answer is: a negative number of an error, or how many bytes were read.
    pub(crate) result: i64,
}

/// A core's calls.
pub(crate) struct Calls {
    library: &'static Library,
    inbox: Arc<Inbox>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Slots whose answers were taken; the oldest is the last.
    answered: Vec<u32>,
}

/// A place for a call.
struct Slot {
    call: Arc<Call>,
    /// What librbd works at. Only the core looks at it; the memory that it names is librbd's meanwhile.
    pending: Option<Pending>,
}

/// What a core and librbd's thread share of a call. A clone of it is the argument of the completion.
struct Call {
    library: &'static Library,
    inbox: Arc<Inbox>,
    answer: Arc<Answer>,
    /// Where a compare-and-write has found something else. Nobody asks, but librbd writes it.
    mismatch: AtomicU64,
}

/// Where a core gets its answers.
struct Inbox {
    answers: Answers,
    eventfd: EventFd,
}

impl Calls {
    /// For a core, which polls [`descriptor`](Self::descriptor).
    ///
    /// # Errors
    /// When there is no descriptor left.
    pub(crate) fn new(library: &'static Library) -> io::Result<Self> {
        let eventfd = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let inbox = Arc::new(Inbox { answers: Answers::new(), eventfd });
        Ok(Self { library, inbox, slots: Vec::new(), free: Vec::new(), answered: Vec::new() })
    }

    /// Becomes readable when there are answers.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.inbox.eventfd.as_raw_fd()
    }

    /// Whether no more calls can be in flight.
    pub(crate) fn is_full(&self) -> bool {
        self.free.is_empty() && self.slots.len() >= DiskTokens::SLOTS as usize
    }

    /// Has librbd begin a call. There must be room for it.
    ///
    /// # Errors
    /// Gives it back with the error when librbd refuses it.
    pub(crate) fn start(&mut self, pending: Pending) -> Result<(), (Pending, Errno)> {
        let index = self.free.pop().unwrap_or_else(|| self.grow());
        let slot = &mut self.slots[index as usize];
        let argument = Arc::into_raw(Arc::clone(&slot.call)).cast_mut().cast::<c_void>();
        // It is in its place before librbd may answer.
        let pending = slot.pending.insert(pending);
        let Err(errno) = submit(&slot.call, pending, argument) else { return Ok(()) };
        // SAFETY: librbd has refused the call, so its completion is never called and nobody takes the argument.
        drop(unsafe { Arc::from_raw(argument.cast::<Call>()) });
        self.free.push(index);
        Err((slot.pending.take().expect("it was put there"), errno))
    }

    #[cold]
    fn grow(&mut self) -> u32 {
        let slot = u32::try_from(self.slots.len()).expect("fewer calls than numbers for them");
        let call = Call {
            library: self.library,
            inbox: Arc::clone(&self.inbox),
            answer: Arc::new(Answer::new(slot)),
            mismatch: AtomicU64::new(0),
        };
        self.slots.push(Slot { call: Arc::new(call), pending: None });
        slot
    }

    /// Takes what librbd has answered so far, after the descriptor has become readable.
    pub(crate) fn take_answers(&mut self) {
        // It is reset before the list is taken, so what comes meanwhile signals again. It fails when nobody has
        // signalled.
        let _ = self.inbox.eventfd.read();
        let answered = &mut self.answered;
        self.inbox.answers.take(|answer| answered.push(answer.slot()));
    }

    /// The oldest call whose answer was taken.
    pub(crate) fn next_answered(&mut self) -> Option<Answered> {
        let index = self.answered.pop()?;
        let slot = &mut self.slots[index as usize];
        let pending = slot.pending.take().expect("an answer is to a call, and there is one for each");
        let result = slot.call.answer.result();
        self.free.push(index);
        Some(Answered { pending, result })
    }
}

impl fmt::Debug for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let in_flight = self.slots.len() - self.free.len();
        f.debug_struct("Calls").field("in_flight", &in_flight).finish_non_exhaustive()
    }
}

/// What librbd has not answered yet keeps its memory for ever: nobody on this core hears of the answer. The image is
/// closed when librbd has done with it.
impl Drop for Calls {
    fn drop(&mut self) {
        let answered = &mut self.answered;
        self.inbox.answers.close(|answer| answered.push(answer.slot()));
        while self.next_answered().is_some() {}
        for pending in self.slots.iter_mut().filter_map(|slot| slot.pending.take()) {
            std::mem::forget(pending.operation);
        }
    }
}

/// librbd has answered a call, and says so on a thread of its own.
extern "C" fn answered(completion: RawCompletion, argument: *mut c_void) {
    // SAFETY: the argument is the clone that `Calls::start` has given away, and this is called once for it.
    let call = unsafe { Arc::from_raw(argument.cast::<Call>()) };
    let rbd = &call.library.rbd;
    // SAFETY: the completion has completed, and nobody else has it.
    let result = unsafe { (rbd.rbd_aio_get_return_value)(completion) };
    // SAFETY: as above; it is not used any more.
    unsafe { (rbd.rbd_aio_release)(completion) };
    if call.inbox.answers.put(Arc::clone(&call.answer), result as i64) {
        // It fails only when the counter is full, and then the descriptor is readable.
        let _ = call.inbox.eventfd.write(1);
    }
}

/// Gives a call to librbd. Its thread does the rest: on this one, the call is only put into a queue
/// (`rbd_non_blocking_aio`). If there is an error, `answered` is not called.
fn submit(call: &Call, pending: &Pending, argument: *mut c_void) -> Result<(), Errno> {
    let (rbd, mut completion) = (&call.library.rbd, ptr::null_mut());
    // SAFETY: the completion is written to `completion`, and calls `answered` once, if librbd takes the call.
    let made = unsafe { (rbd.rbd_aio_create_completion)(argument, answered, &raw mut completion) };
    if made < 0 {
        return Err(Errno(-made));
    }
    let image = pending.image.raw();
    let answer = match pending.request {
        Request::Whole => submit_whole(call, image, &pending.operation, completion),
        Request::Range { offset, length } => {
            submit_range(call, image, &pending.operation, offset, length, completion)
        }
        // SAFETY: the image is open, since the call holds it, and the completion is new.
        Request::Flush => unsafe { (rbd.rbd_aio_flush)(image, completion) },
    };
    if answer < 0 {
        // SAFETY: librbd has refused the call, and has forgotten the completion.
        unsafe { (rbd.rbd_aio_release)(completion) };
        return Err(Errno(-answer));
    }
    Ok(())
}

/// An operation as a whole.
fn submit_whole(call: &Call, image: RawImage, operation: &Operation, completion: RawCompletion) -> c_int {
    let rbd = &call.library.rbd;
    match *operation {
        Operation::Read { offset, ref buffer, .. } => {
            let to = buffer.io_pointer(0, buffer.len()).cast::<c_char>();
            // SAFETY: the image is open, since the call holds it. The memory is the buffer's, which the call owns
            // until librbd has answered, or for ever.
            unsafe { (rbd.rbd_aio_read)(image, offset, buffer.len(), to, completion) }
        }
        Operation::Write { offset, ref source, at, length, durable } => {
            // Bytes that are lent may go before librbd has answered.
            assert!(!source.is_borrowed(), "a disk was given what is lent");
            let from = source.io_pointer(at as usize, length as usize).cast::<c_char>();
            // SAFETY: as for a read; nobody writes to the source meanwhile, by the contract of a device.
            unsafe { (rbd.rbd_aio_write2)(image, offset, length as usize, from, completion, flags(durable)) }
        }
        Operation::Flush => {
            // SAFETY: the image is open, since the call holds it.
            unsafe { (rbd.rbd_aio_flush)(image, completion) }
        }
        Operation::CompareAndWrite { offset, ref expected, ref source, length, durable } => {
            assert!(!expected.is_borrowed() && !source.is_borrowed(), "a disk was given what is lent");
            let there = expected.io_pointer(0, length as usize).cast::<c_char>();
            let from = source.io_pointer(0, length as usize).cast::<c_char>();
            let mismatch = call.mismatch.as_ptr();
            // SAFETY: as for a write, for both memories. Where the mismatch is written belongs to the call, which the
            // completion's argument keeps until librbd has answered.
            let answer = unsafe {
                (rbd.rbd_aio_compare_and_write)(
                    image,
                    offset,
                    length as usize,
                    there,
                    from,
                    completion,
                    mismatch,
                    flags(durable),
                )
            };
            answer as c_int
        }
        _ => -libc::EOPNOTSUPP,
    }
}

/// A part of an operation that moves no data.
fn submit_range(
    call: &Call,
    image: RawImage,
    operation: &Operation,
    offset: u64,
    length: u64,
    completion: RawCompletion,
) -> c_int {
    let rbd = &call.library.rbd;
    match *operation {
        Operation::WriteZeroes { deallocate, durable, .. } => {
            let how = if deallocate { 0 } else { THICK };
            // SAFETY: the image is open, since the call holds it.
            unsafe {
                (rbd.rbd_aio_write_zeroes)(image, offset, length as usize, completion, how, flags(durable))
            }
        }
        Operation::Discard { .. } => {
            // SAFETY: as above.
            unsafe { (rbd.rbd_aio_discard)(image, offset, length, completion) }
        }
        _ => -libc::EOPNOTSUPP,
    }
}

fn flags(durable: bool) -> c_int {
    if durable { FUA } else { 0 }
}
