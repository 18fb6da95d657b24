//! Receiving from a socket, into a staging area or straight into the final place.

use std::fmt;
use std::io;
use std::ops::Range;
use std::ptr;

use ringfab_memory::{PostedBuffer, SharedBuffer, Staging};

use crate::record::{APPLICATION_DATA, RecordControl};

/// How many strides one receive takes at most.
pub const STRIDES_MAX: usize = 3;

/// What one receive can be divided into: a direct range or a step, and what of the staging memory follows it.
const PARTS_MAX: usize = 1 + STRIDES_MAX;

/// How a stream is expected to go on behind a direct range: `gap` bytes of something else, `step` bytes that belong
/// right behind the direct range, a gap again and so on, until `total` bytes of steps are there. The last step may be
/// shorter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Strides {
    /// Bytes of a gap, which go to the staging memory.
    pub gap: usize,
    /// Bytes of a step, which go to the shared buffer.
    pub step: usize,
    /// Bytes of all steps.
    pub total: usize,
}

/// Calls of [`ReceiveOp::rest`] that a receive may be unused without losing its pages.
const IDLE_CHECKS: u8 = 3;

/// A part of what a receive takes: bytes for the shared buffer, then bytes for the staging memory, either of which may
/// be none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Where in the shared buffer.
    pub placed: Range<usize>,
    /// Where in the staging memory.
    pub staged: Range<usize>,
}

/// A reusable receive: first into an optional range of a shared buffer (the final place of a payload), then into a
/// window of its own staging memory. It is boxed and moves into the reactor while it is in flight.
pub struct ReceiveOp {
    direct: Option<Direct>,
    staging: Staging,
    window_start: usize,
    window_end: usize,
    received: usize,
    /// Looks that have found it unused since it was last aimed.
    idle_checks: u8,
    /// Room for the type of a record, on a socket whose records the kernel opens.
    pub(crate) control: Option<RecordControl>,
    pub(crate) vectors: [libc::iovec; 2 * PARTS_MAX],
    pub(crate) message: libc::msghdr,
}

struct Direct {
    shared_buffer: PostedBuffer,
    offset: usize,
    length: usize,
    strides: Strides,
}

impl ReceiveOp {
    /// A receive with `staging_bytes` of staging memory, which becomes resident only as far as it is used.
    ///
    /// # Panics
    /// When there is no memory. Where a peer can bring that about, use [`ReceiveOp::try_new`].
    pub fn new(staging_bytes: usize) -> Box<Self> {
        Self::try_new(staging_bytes).expect("staging memory")
    }

    /// The same, where it may fail.
    ///
    /// # Errors
    /// The kernel has no memory for it, or the process may have no more.
    pub fn try_new(staging_bytes: usize) -> io::Result<Box<Self>> {
        // SAFETY: the all-zero bit pattern is a valid, empty `iovec` and `msghdr`.
        let (vectors, message) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        let staging =
            Staging::new(staging_bytes).map_err(|error| io::Error::new(io::ErrorKind::OutOfMemory, error))?;
        Ok(Box::new(Self {
            direct: None,
            staging,
            window_start: 0,
            window_end: 0,
            received: 0,
            idle_checks: 0,
            control: None,
            vectors,
            message,
        }))
    }

    /// Sets where the next receive goes: into `length` bytes of `direct` at an offset first, then into
    /// `staging[window_start..window_end]`. Ranges beyond either end panic.
    pub fn set_target(
        &mut self,
        direct: Option<(SharedBuffer, usize, usize)>,
        window_start: usize,
        window_end: usize,
    ) {
        assert!(window_start <= window_end && window_end <= self.staging.len(), "window beyond the staging");
        self.direct = direct.map(|(shared_buffer, offset, length)| {
            shared_buffer.io_pointer(offset, length);
            Direct { shared_buffer: shared_buffer.post(), offset, length, strides: Strides::default() }
        });
        (self.window_start, self.window_end, self.received) = (window_start, window_end, 0);
        self.idle_checks = 0;
    }

    /// Once in a while: has the pages of its window given back when it was not aimed anew for some of these calls.
    /// Nobody may be filling the window. Returns whether any went.
    pub fn trim(&mut self) -> bool {
        if self.idle_checks > IDLE_CHECKS {
            return false;
        }
        self.idle_checks += 1;
        if self.idle_checks <= IDLE_CHECKS {
            return false;
        }
        self.staging.release(self.window_start..self.staging.len());
        true
    }

    /// It goes to whoever needs one next: nothing in its staging memory is of use any more.
    pub fn retire(&mut self) {
        self.direct = None;
        (self.window_start, self.window_end, self.received) = (0, 0, 0);
        self.idle_checks = 0;
        self.control = None;
    }

    /// Has a receive that is aimed at a direct range go on by strides behind it, as many as fit the window with their
    /// gaps, and no more than [`STRIDES_MAX`]. What comes behind them goes to the rest of the window. Steps beyond the
    /// shared buffer panic, and steps of no bytes.
    pub fn add_strides(&mut self, strides: Strides) {
        let direct = self.direct.as_mut().expect("strides go on behind a direct range");
        direct.shared_buffer.io_pointer(direct.offset + direct.length, strides.total);
        assert!(strides.step > 0, "a step of no bytes");
        direct.strides = strides;
    }

    /// The staging memory.
    pub fn staging(&self) -> &[u8] {
        &self.staging
    }

    /// The staging memory, to move a remainder to its front between receives.
    pub fn staging_mut(&mut self) -> &mut [u8] {
        &mut self.staging
    }

    /// Where the bytes of the last receive are, in the order of the stream: the direct range and what of the staging
    /// memory follows it, then each stride's step and what follows that. Parts that nothing came for are empty.
    pub fn parts(&self) -> [Part; PARTS_MAX] {
        self.divide(self.received)
    }

    /// Bytes that the last receive put into the shared buffer.
    pub fn direct_received(&self) -> usize {
        self.parts().iter().map(|part| part.placed.len()).sum()
    }

    /// Bytes that the last receive put into the staging window, from its start.
    pub fn staging_received(&self) -> usize {
        self.received - self.direct_received()
    }

    /// Whether it is aimed at a direct range first.
    pub fn is_direct(&self) -> bool {
        self.direct.is_some()
    }

    /// Copies what the last receive took to `target`, which has room for exactly that.
    pub fn copy_received(&self, mut target: &mut [u8]) {
        for Part { placed, staged } in self.parts() {
            let (direct, rest) = target.split_at_mut(placed.len());
            if let Some(place) = self.direct.as_ref().filter(|_| !direct.is_empty()) {
                place.shared_buffer.read_at(placed.start, direct);
            }
            let (behind, rest) = rest.split_at_mut(staged.len());
            behind.copy_from_slice(&self.staging[staged]);
            target = rest;
        }
    }

    /// Takes the shared buffer of the direct range back.
    pub fn take_direct(&mut self) -> Option<SharedBuffer> {
        self.direct.take().map(|direct| direct.shared_buffer.take_back())
    }

    pub(crate) fn set_received(&mut self, bytes: usize) {
        self.received = bytes;
    }

    /// What the records were that the last receive took, where the kernel opened them ([`crate::TlsKeys`]): always of
    /// one type. `None` is for ordinary data.
    pub fn control_record(&self) -> Option<u8> {
        let control = self.control.as_ref()?;
        control.received(&self.message).filter(|kind| *kind != APPLICATION_DATA)
    }

    /// Bytes that one receive can take at most.
    pub fn capacity(&self) -> usize {
        let placed: usize = self.divide(usize::MAX).iter().map(|part| part.placed.len()).sum();
        placed + self.window_end - self.window_start
    }

    /// Bytes that the last receive took.
    pub fn received(&self) -> usize {
        self.received
    }

    /// Receives `bytes` that its owner has, as far as there is room behind what it has received since it was aimed:
    /// copies them to where they belong. Returns how many it took.
    pub fn append(&mut self, bytes: &[u8]) -> usize {
        let before = self.received;
        let taken = bytes.len().min(self.capacity() - before);
        self.received += taken;
        let (mut skipped, mut bytes) = (before, &bytes[..taken]);
        for Part { mut placed, mut staged } in self.parts() {
            skip(&mut placed, &mut skipped);
            let (direct, rest) = bytes.split_at(placed.len());
            if let Some(place) = self.direct.as_ref().filter(|_| !direct.is_empty()) {
                place.shared_buffer.write_at(placed.start, direct);
            }
            skip(&mut staged, &mut skipped);
            let (behind, rest) = rest.split_at(staged.len());
            self.staging[staged].copy_from_slice(behind);
            bytes = rest;
        }
        taken
    }

    /// Points the message header at all parts and returns it. The caller keeps `self` in place, on the
    /// heap, until the kernel is done.
    pub(crate) fn prepare(&mut self) -> *mut libc::msghdr {
        let mut count = 0;
        for Part { placed, staged } in self.divide(usize::MAX) {
            if let Some(place) = self.direct.as_ref().filter(|_| !placed.is_empty()) {
                let base = place.shared_buffer.io_pointer(placed.start, placed.len()).cast();
                self.vectors[count] = libc::iovec { iov_base: base, iov_len: placed.len() };
                count += 1;
            }
            let window = &mut self.staging[staged];
            if !window.is_empty() {
                self.vectors[count] =
                    libc::iovec { iov_base: window.as_mut_ptr().cast(), iov_len: window.len() };
                count += 1;
            }
        }
        self.message.msg_iov = self.vectors.as_mut_ptr();
        self.message.msg_iovlen = count;
        (self.message.msg_control, self.message.msg_controllen) = match &mut self.control {
            Some(control) => control.room(),
            None => (ptr::null_mut(), 0),
        };
        &raw mut self.message
    }

    /// Whether its message is no more than one range, once it is [prepared](Self::prepare).
    pub(crate) fn is_plain(&self) -> bool {
        self.message.msg_iovlen == 1 && self.control.is_none()
    }

    /// Where so many bytes go.
    fn divide(&self, bytes: usize) -> [Part; PARTS_MAX] {
        let mut parts: [Part; PARTS_MAX] = Default::default();
        let (mut offset, mut length, strides) = match &self.direct {
            Some(direct) => (direct.offset, direct.length, direct.strides),
            None => (0, 0, Strides::default()),
        };
        let (mut staging, mut left, mut steps) = (self.window_start, bytes, strides.total);
        for (index, part) in parts.iter_mut().enumerate() {
            part.placed = offset..offset + length.min(left);
            left -= part.placed.len();
            offset += length;
            let window = self.window_end - staging;
            let goes_on = steps > 0 && index < STRIDES_MAX && strides.gap <= window;
            part.staged = staging..staging + if goes_on { strides.gap } else { window }.min(left);
            left -= part.staged.len();
            staging += part.staged.len();
            if !goes_on || left == 0 {
                break;
            }
            length = strides.step.min(steps);
            steps -= length;
        }
        parts
    }
}

/// Cuts off the front of a range what is to be skipped.
fn skip(range: &mut Range<usize>, bytes: &mut usize) {
    let skipped = range.len().min(*bytes);
    range.start += skipped;
    *bytes -= skipped;
}

impl fmt::Debug for ReceiveOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceiveOp")
            .field("direct", &self.direct.as_ref().map_or(0, |direct| direct.length))
            .field("window", &(self.window_start..self.window_end))
            .field("received", &self.received)
            .finish_non_exhaustive()
    }
}
