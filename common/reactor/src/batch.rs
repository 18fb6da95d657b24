//! Many small and large pieces for one send.

use std::fmt;

use ringfab_memory::Lease;

/// Pieces to send on a socket in one call: headers copied into the batch, payloads referenced where they lie.
/// It is boxed, moves into the reactor while it is in flight and comes back when every byte was taken by the
/// kernel or the socket failed. Nothing is allocated after construction.
pub struct SendBatch {
    head: Box<[u8]>,
    head_used: usize,
    pieces: Vec<Piece>,
    bytes: usize,
    pub(crate) sent: usize,
    pub(crate) vectors: Vec<libc::iovec>,
    pub(crate) message: libc::msghdr,
}

enum Piece {
    /// A range of the head.
    Head { start: u32, length: u32 },
    /// A range of a lease.
    Payload { lease: Lease, offset: u32, length: u32 },
}

impl Piece {
    /// Its first byte in the head or the lease, and how many there are.
    fn range(&self) -> (usize, usize) {
        let (Self::Head { start, length } | Self::Payload { offset: start, length, .. }) = self;
        (*start as usize, *length as usize)
    }
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
            head: vec![0; head_bytes].into_boxed_slice(),
            head_used: 0,
            pieces: Vec::with_capacity(pieces_max),
            bytes: 0,
            sent: 0,
            vectors: Vec::with_capacity(pieces_max),
            message,
        })
    }

    /// Whether `head_bytes` more copied bytes and `pieces` more pieces fit. Adjacent copied bytes are one piece.
    #[inline]
    pub fn has_room(&self, head_bytes: usize, pieces: usize) -> bool {
        self.head.len() - self.head_used >= head_bytes && self.pieces.capacity() - self.pieces.len() >= pieces
    }

    /// Copies `bytes` to the end. Without room (see [`SendBatch::has_room`]) it panics.
    #[inline]
    pub fn push_bytes(&mut self, bytes: &[u8]) {
        self.push_with(bytes.len(), |room| room.copy_from_slice(bytes));
    }

    /// Appends `length` bytes that `write` fills in. Without room it panics.
    #[inline]
    pub fn push_with(&mut self, length: usize, write: impl FnOnce(&mut [u8])) {
        let start = self.head_used;
        write(&mut self.head[start..start + length]);
        self.head_used += length;
        self.bytes += length;
        if let Some(Piece::Head { start: first, length: so_far }) = self.pieces.last_mut()
            && *first as usize + *so_far as usize == start
        {
            *so_far += length as u32;
            return;
        }
        assert!(self.pieces.len() < self.pieces.capacity(), "no room for another piece");
        self.pieces.push(Piece::Head { start: start as u32, length: length as u32 });
    }

    /// Appends a range of `lease` by reference. Without room, or for a range beyond its end, it panics.
    #[inline]
    pub fn push_lease(&mut self, lease: &Lease, offset: usize, length: usize) {
        lease.io_pointer(offset, length);
        assert!(self.pieces.len() < self.pieces.capacity(), "no room for another piece");
        self.bytes += length;
        let (offset, length) = (offset as u32, length as u32);
        self.pieces.push(Piece::Payload { lease: lease.clone(), offset, length });
    }

    /// Bytes in the batch.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Those of them that were copied into it.
    pub fn copied_bytes(&self) -> usize {
        self.head_used
    }

    /// Whether nothing was pushed since the last [`SendBatch::clear`].
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Empties the batch and lets go of its leases.
    pub fn clear(&mut self) {
        self.pieces.clear();
        self.vectors.clear();
        (self.head_used, self.bytes, self.sent) = (0, 0, 0);
    }

    /// Appends the next `length` bytes that were not sent to `target`, for the simulated backend.
    pub(crate) fn copy_unsent(&self, length: usize, target: &mut Vec<u8>) {
        let (mut skip, end) = (self.sent, target.len() + length);
        for piece in &self.pieces {
            let (start, bytes) = piece.range();
            let wanted = bytes.saturating_sub(skip).min(end - target.len());
            let range = start + skip..start + skip + wanted;
            match piece {
                _ if wanted == 0 => {}
                Piece::Head { .. } => target.extend_from_slice(&self.head[range]),
                Piece::Payload { lease, .. } => {
                    lease.with_bytes(range, |bytes| target.extend_from_slice(bytes));
                }
            }
            skip = skip.saturating_sub(bytes);
        }
    }

    /// Points the message header at everything not yet sent and returns it. The caller keeps `self` in place,
    /// on the heap, until the kernel is done.
    pub(crate) fn prepare(&mut self) -> *mut libc::msghdr {
        self.vectors.clear();
        let mut skip = self.sent;
        for piece in &self.pieces {
            let (base, length) = match piece {
                Piece::Head { start, length } => {
                    let (start, length) = (*start as usize, *length as usize);
                    (self.head[start..start + length].as_mut_ptr(), length)
                }
                Piece::Payload { lease, offset, length } => {
                    (lease.io_pointer(*offset as usize, *length as usize), *length as usize)
                }
            };
            let skipped = skip.min(length);
            skip -= skipped;
            if skipped < length {
                // SAFETY: `skipped` is less than the length of the piece that `base` points at.
                let rest = unsafe { base.add(skipped) };
                self.vectors.push(libc::iovec { iov_base: rest.cast(), iov_len: length - skipped });
            }
        }
        self.message.msg_iov = self.vectors.as_mut_ptr();
        self.message.msg_iovlen = self.vectors.len();
        &raw mut self.message
    }
}

impl fmt::Debug for SendBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendBatch")
            .field("bytes", &self.bytes)
            .field("pieces", &self.pieces.len())
            .field("sent", &self.sent)
            .finish_non_exhaustive()
    }
}
