//! Payloads on their way from staging memory to their places.

use std::ops::Range;

use ringfab_memory::Lease;

/// Copies are made when so many wait.
const WAITING_MAX: usize = 64;

/// Copies that wait until what was received has been parsed, and are made one after the other then.
///
/// Made at once, each would hold up the parser: the stores of a page fill the processor's store buffer, and whatever
/// the parser writes and reads back in another width, as small structures are when they move, waits until they have all
/// reached the cache.
#[derive(Debug)]
pub(crate) struct Copies(Vec<Waiting>);

#[derive(Debug)]
struct Waiting {
    lease: Lease,
    /// First byte in the lease.
    at: usize,
    /// In the staging memory.
    payload: Range<usize>,
}

impl Copies {
    pub(super) fn new() -> Self {
        Self(Vec::with_capacity(WAITING_MAX))
    }

    /// Has `payload` of `staging` copied to `at` of a lease before [`Copies::make`] returns. Until then the copy has a
    /// lease of its own.
    #[inline]
    pub(crate) fn add(&mut self, staging: &[u8], lease: &Lease, at: usize, payload: Range<usize>) {
        if self.0.len() == WAITING_MAX {
            self.make(staging);
        }
        self.0.push(Waiting { lease: lease.clone(), at, payload });
    }

    /// Makes all copies.
    #[inline]
    pub(crate) fn make(&mut self, staging: &[u8]) {
        for Waiting { lease, at, payload } in self.0.drain(..) {
            lease.write_at(at, &staging[payload]);
        }
    }
}
