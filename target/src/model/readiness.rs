//! Whether a namespace can be read and written, and how large it is.
//!
//! Any core sets both when it has opened the disk, and every core reads both for each command, without a lock. Who
//! finds a namespace ready finds the size that was set before. `tests/tests/interleavings.rs` runs this file under
//! every interleaving.

use std::sync::Arc;

use super::epoch::Epoch;
use crate::sync::{AtomicBool, AtomicU64, Ordering};

/// Readiness and size of a namespace.
#[derive(Debug)]
pub(crate) struct Readiness {
    /// Size in logical blocks. It is stored before `ready`, and loaded after it.
    blocks: AtomicU64,
    ready: AtomicBool,
    /// A new one begins with each change: commands were let through because of what was before.
    epoch: Arc<Epoch>,
}

impl Readiness {
    /// Not ready, and of no size.
    pub(crate) fn new(epoch: Arc<Epoch>) -> Self {
        Self { blocks: AtomicU64::new(0), ready: AtomicBool::new(false), epoch }
    }

    /// Whether it can be read and written.
    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// Size in logical blocks; zero until it was ready for the first time.
    #[inline]
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Relaxed)
    }

    /// Whether it is ready, and its size then.
    #[inline]
    pub(crate) fn get(&self) -> (bool, u64) {
        let ready = self.is_ready();
        (ready, self.blocks())
    }

    /// The disk is open and has this size. Returns whether anything is different now: of several cores that report the
    /// same, at least one finds a difference.
    pub(crate) fn set_ready(&self, blocks: u64) -> bool {
        let old_blocks = self.blocks.swap(blocks, Ordering::Relaxed);
        let was_ready = self.ready.swap(true, Ordering::AcqRel);
        self.epoch.begin();
        old_blocks != blocks || !was_ready
    }

    /// The disk is missing or has gone. Returns whether it was ready: of several cores, one finds that it was.
    pub(crate) fn set_not_ready(&self) -> bool {
        let was_ready = self.ready.swap(false, Ordering::AcqRel);
        self.epoch.begin();
        was_ready
    }
}
