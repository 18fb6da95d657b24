//! Whether a loop is wanted, and whether it sleeps.
//!
//! No wake-up is lost: a waker sets `pending` and then looks at `sleeping`, the loop sets `sleeping` and then looks at
//! `pending`. Each has a fence between the two, so at least one of them sees what the other has set.
//! `tests/tests/interleavings.rs` runs this file under every interleaving.

use super::sync::{AtomicBool, Ordering, fence};

/// Shared between a loop and those who wake it.
#[derive(Debug)]
pub(super) struct WakeFlags {
    /// Somebody wants the loop to return. The exchange that sets it also orders what was written before for the
    /// exchange that clears it.
    pending: AtomicBool,
    /// The loop is in the kernel, or about to enter it to sleep.
    sleeping: AtomicBool,
}

impl WakeFlags {
    pub(super) fn new() -> Self {
        Self { pending: AtomicBool::new(false), sleeping: AtomicBool::new(false) }
    }

    /// Wants the loop to return. Returns whether it has to be woken.
    pub(super) fn request(&self) -> bool {
        if self.pending.swap(true, Ordering::AcqRel) {
            return false;
        }
        fence(Ordering::SeqCst);
        self.sleeping.load(Ordering::Relaxed)
    }

    /// Whether somebody wants the loop to return; cheap enough to look at in a spin.
    #[inline]
    pub(super) fn is_pending(&self) -> bool {
        self.pending.load(Ordering::Relaxed)
    }

    /// Answers the wake-up, if there was one. What its sender wrote before is visible afterwards.
    #[inline]
    pub(super) fn take(&self) -> bool {
        self.is_pending() && self.pending.swap(false, Ordering::AcqRel)
    }

    /// Announces sleep; `false` when a wake-up came first and the loop must not sleep.
    pub(super) fn prepare_sleep(&self) -> bool {
        self.sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        !self.pending.load(Ordering::Relaxed)
    }

    /// The loop is awake again.
    pub(super) fn end_sleep(&self) {
        self.sleeping.store(false, Ordering::Release);
    }

    /// Whether the loop sleeps, for those who watch it.
    pub(super) fn is_sleeping(&self) -> bool {
        self.sleeping.load(Ordering::Relaxed)
    }
}
