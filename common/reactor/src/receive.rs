//! Receiving from a socket, into a staging area or straight into the final place.

use std::fmt;

use ringfab_memory::Lease;

/// A reusable receive: first into an optional range of a lease (the final place of a payload), then into a
/// window of its own staging memory. It is boxed and moves into the reactor while it is in flight.
pub struct ReceiveOp {
    direct: Option<Direct>,
    staging: Box<[u8]>,
    window_start: usize,
    window_end: usize,
    received: usize,
    pub(crate) vectors: [libc::iovec; 2],
    pub(crate) message: libc::msghdr,
}

struct Direct {
    lease: Lease,
    offset: usize,
    length: usize,
}

impl ReceiveOp {
    /// A receive with `staging_bytes` of staging memory, which becomes resident only as far as it is used.
    pub fn new(staging_bytes: usize) -> Box<Self> {
        // SAFETY: the all-zero bit pattern is a valid, empty `iovec` and `msghdr`.
        let (vectors, message) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        let staging = vec![0; staging_bytes].into_boxed_slice();
        Box::new(Self {
            direct: None,
            staging,
            window_start: 0,
            window_end: 0,
            received: 0,
            vectors,
            message,
        })
    }

    /// Sets where the next receive goes: into `length` bytes of `direct` at an offset first, then into
    /// `staging[window_start..window_end]`. Ranges beyond either end panic.
    pub fn aim(&mut self, direct: Option<(Lease, usize, usize)>, window_start: usize, window_end: usize) {
        assert!(window_start <= window_end && window_end <= self.staging.len(), "window beyond the staging");
        self.direct = direct.map(|(lease, offset, length)| {
            lease.io_pointer(offset, length);
            Direct { lease, offset, length }
        });
        (self.window_start, self.window_end, self.received) = (window_start, window_end, 0);
    }

    /// The staging memory.
    pub fn staging(&self) -> &[u8] {
        &self.staging
    }

    /// The staging memory, to move a remainder to its front between receives.
    pub fn staging_mut(&mut self) -> &mut [u8] {
        &mut self.staging
    }

    /// Bytes that the last receive put into the direct range.
    pub fn direct_received(&self) -> usize {
        self.received.min(self.direct_length())
    }

    /// Bytes that the last receive put into the staging window, from its start.
    pub fn staging_received(&self) -> usize {
        self.received - self.direct_received()
    }

    /// Takes the lease of the direct range back.
    pub fn take_direct(&mut self) -> Option<Lease> {
        self.direct.take().map(|direct| direct.lease)
    }

    pub(crate) fn set_received(&mut self, bytes: usize) {
        self.received = bytes;
    }

    /// Bytes that one receive can take at most.
    pub(crate) fn capacity(&self) -> usize {
        self.direct_length() + self.window_end - self.window_start
    }

    /// Copies `bytes` to where they belong, for the simulated backend.
    pub(crate) fn fill(&mut self, bytes: &[u8]) {
        let (direct, rest) = bytes.split_at(bytes.len().min(self.direct_length()));
        if let Some(place) = &self.direct {
            place.lease.write_at(place.offset, direct);
        }
        self.staging[self.window_start..self.window_start + rest.len()].copy_from_slice(rest);
        self.received = bytes.len();
    }

    /// Points the message header at the two ranges and returns it. The caller keeps `self` in place, on the
    /// heap, until the kernel is done.
    pub(crate) fn prepare(&mut self) -> *mut libc::msghdr {
        let mut count = 0;
        if let Some(place) = &self.direct {
            let base = place.lease.io_pointer(place.offset, place.length).cast();
            self.vectors[count] = libc::iovec { iov_base: base, iov_len: place.length };
            count += 1;
        }
        let window = &mut self.staging[self.window_start..self.window_end];
        if !window.is_empty() {
            self.vectors[count] = libc::iovec { iov_base: window.as_mut_ptr().cast(), iov_len: window.len() };
            count += 1;
        }
        self.message.msg_iov = self.vectors.as_mut_ptr();
        self.message.msg_iovlen = count;
        &raw mut self.message
    }

    fn direct_length(&self) -> usize {
        self.direct.as_ref().map_or(0, |direct| direct.length)
    }
}

impl fmt::Debug for ReceiveOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceiveOp")
            .field("direct", &self.direct_length())
            .field("window", &(self.window_start..self.window_end))
            .field("received", &self.received)
            .finish_non_exhaustive()
    }
}
