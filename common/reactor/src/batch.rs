//! Many small and large pieces for one send.

use std::fmt;
use std::ptr::{self, NonNull};
use std::slice;

use ringfab_memory::SharedBuffer;

use crate::record::RecordControl;

/// Pieces to send on a socket in one call: headers copied into the batch, payloads referenced where they lie.
/// It is boxed, moves into the reactor while it is in flight and comes back when every byte was taken by the
/// kernel or the socket failed. Nothing is allocated after construction.
pub struct SendBatch {
    /// What is copied. A raw pointer, since `vectors` points there, too, while more is copied behind it.
    head: NonNull<[u8]>,
    head_used: usize,
    /// Where the piece of the head begins that is not among `vectors` yet, because more may be copied behind it.
    head_open: usize,
    /// Where the pieces are; those from `unsent_first` on are not sent.
    vectors: Vec<libc::iovec>,
    unsent_first: usize,
    /// What keeps payloads in place, and their bytes.
    shared_buffers: Vec<SharedBuffer>,
    /// Those of them whose bytes were lent when they came.
    borrowed: Vec<Borrowed>,
    payload_bytes: usize,
    sent: usize,
    /// What its bytes are, if they are no ordinary data, on a socket whose records the kernel seals.
    record: Option<u8>,
    control: RecordControl,
    message: libc::msghdr,
}

/// A piece whose bytes may move before it is sent: their borrow ends.
struct Borrowed {
    vector: usize,
    shared_buffer: usize,
    /// Where it begins in the shared buffer, and where that was when it was last looked at.
    offset: usize,
    start: *mut u8,
}

impl SendBatch {
    /// The kernel takes no more vectors than this in one call.
    pub const PIECES_MAX: usize = 1024;

    /// A batch with room for `head_bytes` of copied bytes and `pieces_max` pieces.
    pub fn new(head_bytes: usize, pieces_max: usize) -> Box<Self> {
        assert!(pieces_max <= Self::PIECES_MAX, "the kernel takes no more pieces");
        // SAFETY: the all-zero bit pattern is a valid, empty `msghdr`.
        let message = unsafe { std::mem::zeroed() };
        Box::new(Self {
            head: NonNull::from(Box::leak(vec![0; head_bytes].into_boxed_slice())),
            head_used: 0,
            head_open: 0,
            vectors: Vec::with_capacity(pieces_max),
            unsent_first: 0,
            shared_buffers: Vec::with_capacity(pieces_max),
            borrowed: Vec::with_capacity(pieces_max),
            payload_bytes: 0,
            sent: 0,
            record: None,
            control: RecordControl::default(),
            message,
        })
    }

    /// Whether `head_bytes` more copied bytes and `pieces` more pieces fit. Adjacent copied bytes are one piece.
    #[inline]
    pub fn has_room(&self, head_bytes: usize, pieces: usize) -> bool {
        let pieces = pieces + usize::from(self.head_open < self.head_used);
        self.head.len() - self.head_used >= head_bytes
            && self.vectors.capacity() - self.vectors.len() >= pieces
    }

    /// Copies `bytes` to the end. Without room (see [`SendBatch::has_room`]) it panics.
    #[inline(always)]
    pub fn push_bytes(&mut self, bytes: &[u8]) {
        self.push_room(bytes.len()).copy_from_slice(bytes);
    }

    /// Appends `length` bytes, to be filled in at once: they are what was there before. Without room it panics.
    #[inline(always)]
    pub fn push_room(&mut self, length: usize) -> &mut [u8] {
        assert!(length <= self.head.len() - self.head_used, "no room for what is copied");
        // SAFETY: the range lies within the head, as was just seen.
        let start = unsafe { self.head.cast::<u8>().add(self.head_used) };
        self.head_used += length;
        // SAFETY: the head is ours and initialized, and nobody else reads or writes what is not sealed, which it is not
        // while this is borrowed.
        unsafe { slice::from_raw_parts_mut(start.as_ptr(), length) }
    }

    /// The last `length` bytes that were copied. It panics when there are less that could still become one piece.
    pub fn copied_last(&self, length: usize) -> &[u8] {
        assert!(length <= self.head_used - self.head_open, "no more than is not sealed");
        // SAFETY: the range lies within the part of the head that is in use.
        let start = unsafe { self.head.cast::<u8>().add(self.head_used - length) };
        // SAFETY: it is initialized, and not written while this is borrowed.
        unsafe { slice::from_raw_parts(start.as_ptr(), length) }
    }

    /// Appends a range of `shared_buffer` by reference. Without room, or for a range beyond its end, it panics.
    #[inline]
    pub fn push_shared(&mut self, shared_buffer: SharedBuffer, offset: usize, length: usize) {
        let start = shared_buffer.io_pointer(offset, length);
        if length > 0 {
            self.seal();
            if shared_buffer.is_borrowed() {
                self.borrowed.push(Borrowed {
                    vector: self.vectors.len(),
                    shared_buffer: self.shared_buffers.len(),
                    offset,
                    start,
                });
            }
            self.push_vector(start, length);
            self.payload_bytes += length;
            self.shared_buffers.push(shared_buffer);
        }
    }

    /// Makes a piece of what was copied last; what is copied next is another one. Called before it is sent.
    #[inline]
    pub(crate) fn seal(&mut self) {
        let length = self.head_used - self.head_open;
        if length > 0 {
            // SAFETY: it begins within the head.
            let start = unsafe { self.head.cast::<u8>().add(self.head_open) };
            self.push_vector(start.as_ptr(), length);
            self.head_open = self.head_used;
        }
    }

    #[inline]
    fn push_vector(&mut self, start: *mut u8, length: usize) {
        assert!(self.vectors.len() < self.vectors.capacity(), "no room for another piece");
        self.vectors.push(libc::iovec { iov_base: start.cast(), iov_len: length });
    }

    /// Bytes in the batch.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.head_used + self.payload_bytes
    }

    /// Those of them that were copied into it.
    pub fn copied_bytes(&self) -> usize {
        self.head_used
    }

    /// Whether nothing was pushed since the last [`SendBatch::clear`].
    pub fn is_empty(&self) -> bool {
        self.bytes() == 0
    }

    /// Empties the batch and lets go of its shared buffers.
    pub fn clear(&mut self) {
        self.vectors.clear();
        self.let_go();
        (self.head_used, self.head_open, self.payload_bytes) = (0, 0, 0);
        (self.unsent_first, self.sent, self.record) = (0, 0, None);
    }

    /// Whether its bytes are a record that is no data.
    pub(crate) fn is_record(&self) -> bool {
        self.record.is_some()
    }

    /// Has the kernel, which seals the records of the socket ([`crate::TlsKeys`]), send the bytes as a record of this
    /// type.
    pub fn set_record(&mut self, content_type: u8) {
        self.record = Some(content_type);
    }

    /// Takes the next bytes that were not sent, to be sent in another way: copies so many of them to `target`. With the
    /// last of them it lets go of its shared buffers.
    pub fn take(&mut self, target: &mut [u8]) {
        self.seal();
        self.follow();
        let mut filled = 0;
        for vector in self.unsent() {
            let wanted = vector.iov_len.min(target.len() - filled);
            let place = &mut target[filled..filled + wanted];
            // SAFETY: the vector is a piece of the head, or of memory that its shared buffer keeps and that is not
            // `target`, which is borrowed here alone.
            unsafe { ptr::copy_nonoverlapping(vector.iov_base.cast(), place.as_mut_ptr(), wanted) };
            filled += wanted;
            if filled == target.len() {
                break;
            }
        }
        self.advance(filled);
    }

    /// Whether it holds bytes that were lent.
    pub(crate) fn holds_borrowed(&self) -> bool {
        !self.borrowed.is_empty()
    }

    /// Nobody looks at what its shared buffers stand for any more.
    fn let_go(&mut self) {
        self.shared_buffers.clear();
        self.borrowed.clear();
    }

    /// Has vectors follow bytes that have come home since.
    fn follow(&mut self) {
        for borrowed in &mut self.borrowed {
            let start = self.shared_buffers[borrowed.shared_buffer].io_pointer(borrowed.offset, 0);
            let vector = &mut self.vectors[borrowed.vector];
            // What was sent of a piece is off its front.
            let sent = vector.iov_base.addr() - borrowed.start.addr();
            vector.iov_base = start.wrapping_byte_add(sent).cast();
            borrowed.start = start;
        }
    }

    /// Bytes that were not sent.
    pub fn unsent_bytes(&self) -> usize {
        self.bytes() - self.sent
    }

    /// Where they are, once it is [prepared](Self::prepare).
    pub(crate) fn unsent(&self) -> &[libc::iovec] {
        &self.vectors[self.unsent_first..]
    }

    /// Counts the next `count` bytes as sent. With the last of them it lets go of its shared buffers.
    pub(crate) fn advance(&mut self, count: usize) {
        assert!(count <= self.unsent_bytes(), "no more is sent than there is");
        self.sent += count;
        if self.unsent_bytes() == 0 {
            self.unsent_first = self.vectors.len();
            return self.let_go();
        }
        let mut count = count;
        for vector in &mut self.vectors[self.unsent_first..] {
            if count < vector.iov_len {
                // SAFETY: `count` is less than the length of the piece that the vector points at.
                vector.iov_base = unsafe { vector.iov_base.byte_add(count) };
                vector.iov_len -= count;
                return;
            }
            count -= vector.iov_len;
            self.unsent_first += 1;
        }
    }

    /// Appends the next `length` bytes that were not sent to `target`, for the simulated backend.
    pub(crate) fn copy_unsent(&mut self, length: usize, target: &mut Vec<u8>) {
        self.follow();
        let end = target.len() + length;
        for vector in self.unsent() {
            let wanted = vector.iov_len.min(end - target.len());
            // SAFETY: the vector is a piece of the head, or of memory that its shared buffer keeps; nothing writes
            // there meanwhile.
            target.extend_from_slice(unsafe { slice::from_raw_parts(vector.iov_base.cast(), wanted) });
        }
    }

    /// Points the message header at everything not yet sent and returns it. The caller keeps `self` in place,
    /// on the heap, until the kernel is done, and ends no borrows before that.
    pub(crate) fn prepare(&mut self) -> *mut libc::msghdr {
        self.follow();
        let unsent = &mut self.vectors[self.unsent_first..];
        self.message.msg_iov = unsent.as_mut_ptr();
        self.message.msg_iovlen = unsent.len();
        (self.message.msg_control, self.message.msg_controllen) = match self.record {
            Some(content_type) => self.control.sent(content_type),
            None => (ptr::null_mut(), 0),
        };
        &raw mut self.message
    }

    /// The range that is all there is to send, once it is [prepared](Self::prepare).
    pub(crate) fn only_piece(&self) -> Option<libc::iovec> {
        match self.unsent() {
            [piece] if self.record.is_none() => Some(*piece),
            _ => None,
        }
    }
}

impl Drop for SendBatch {
    fn drop(&mut self) {
        // SAFETY: it came from a box, and nothing points there any more.
        drop(unsafe { Box::from_raw(self.head.as_ptr()) });
    }
}

impl fmt::Debug for SendBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendBatch")
            .field("bytes", &self.bytes())
            .field("pieces", &self.vectors.len())
            .field("sent", &self.sent)
            .finish_non_exhaustive()
    }
}
