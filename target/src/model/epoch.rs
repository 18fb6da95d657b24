//! When a command that was let through has to be judged again. `tests/tests/interleavings.rs` runs this file under
//! every interleaving.

use crate::sync::{AtomicU32, Ordering};

/// Counts the changes of what may stop a command that was let through: whether its namespace is ready, whether its host
/// sees it, and whatever else a [judgement](crate::queue) looks at. Who was judged in another epoch is judged again.
///
/// Whoever changes something of that kind begins a new epoch after it. Whoever judges asks for the epoch before.
#[derive(Debug, Default)]
pub struct Epoch(AtomicU32);

impl Epoch {
    /// The present one.
    #[inline]
    pub fn now(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// Something has changed.
    pub fn begin(&self) {
        self.0.fetch_add(1, Ordering::Release);
    }
}
