//! Payloads on their way from staging memory to their places.

use std::ops::Range;

use ringfab_memory::SharedBuffer;

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
    shared_buffer: SharedBuffer,
    /// First byte in the shared buffer.
    at: usize,
    /// In the staging memory.
    payload: Range<usize>,
}

impl Copies {
    pub(super) fn new() -> Self {
        Self(Vec::with_capacity(WAITING_MAX))
    }

    /// Has `payload` of `staging` copied to `at` of a shared buffer before [`Copies::make`] returns. Until then the
    /// copy has a shared buffer of its own.
    #[inline]
    pub(crate) fn add(
        &mut self,
        staging: &[u8],
        shared_buffer: &SharedBuffer,
        at: usize,
        payload: Range<usize>,
    ) {
        if self.0.len() == WAITING_MAX {
            self.make(staging);
        }
        self.0.push(Waiting { shared_buffer: shared_buffer.clone(), at, payload });
    }

    /// Makes all copies.
    #[inline]
    pub(crate) fn make(&mut self, staging: &[u8]) {
        for Waiting { shared_buffer, at, payload } in self.0.drain(..) {
            shared_buffer.write_at(at, &staging[payload]);
        }
    }
}
