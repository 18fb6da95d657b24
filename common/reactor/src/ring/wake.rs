//! Waking a sleeping loop from another thread, and letting others see whether it sleeps.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::mailbox::Wake;
use crate::monitor::Watch;

/// Shared between the loop and those who wake or watch it.
///
/// No wake-up is lost: a waker sets `pending` and then looks at `sleeping`, the loop sets `sleeping` and then
/// looks at `pending`, and in the single order of these four accesses at least one of them sees the other.
#[derive(Debug)]
pub(super) struct WakeState {
    /// Somebody wants the loop to return. The exchange that sets it also orders what was written before for the exchange
    /// that clears it.
    pending: AtomicBool,
    /// The loop is in the kernel, or about to enter it to sleep.
    sleeping: AtomicBool,
    eventfd: EventFd,
    turns: AtomicU64,
    spun_nanos: AtomicU64,
    slept_nanos: AtomicU64,
}

impl WakeState {
    pub(super) fn new() -> io::Result<Arc<Self>> {
        let flags = EfdFlags::EFD_CLOEXEC;
        Ok(Arc::new(Self {
            pending: AtomicBool::new(false),
            sleeping: AtomicBool::new(false),
            eventfd: EventFd::from_value_and_flags(0, flags)?,
            turns: AtomicU64::new(0),
            spun_nanos: AtomicU64::new(0),
            slept_nanos: AtomicU64::new(0),
        }))
    }

    /// The descriptor that becomes readable when the sleeping loop is woken.
    pub(super) fn eventfd(&self) -> RawFd {
        self.eventfd.as_raw_fd()
    }

    /// Whether somebody wants the loop to return; cheap enough to look at in a spin.
    #[inline]
    pub(super) fn is_pending(&self) -> bool {
        self.pending.load(Ordering::Relaxed)
    }

    /// Answers the wake-up, if there was one. What its sender wrote before is visible afterwards.
    #[inline]
    pub(super) fn take(&self) -> bool {
        self.is_pending() && self.pending.swap(false, Ordering::SeqCst)
    }

    /// Announces sleep; `false` when a wake-up came first and the loop must not sleep.
    pub(super) fn prepare_sleep(&self) -> bool {
        self.sleeping.store(true, Ordering::SeqCst);
        !self.pending.load(Ordering::SeqCst)
    }

    /// The loop is awake again.
    pub(super) fn end_sleep(&self) {
        self.sleeping.store(false, Ordering::Release);
    }

    /// Shows how many turns have begun.
    pub(super) fn set_turns(&self, turns: u64) {
        self.turns.store(turns, Ordering::Relaxed);
    }

    pub(super) fn add_spun(&self, time: Duration) {
        add(&self.spun_nanos, time);
    }

    pub(super) fn add_slept(&self, time: Duration) {
        add(&self.slept_nanos, time);
    }
}

impl Watch for WakeState {
    fn turns(&self) -> u64 {
        self.turns.load(Ordering::Relaxed)
    }

    fn is_sleeping(&self) -> bool {
        self.sleeping.load(Ordering::Relaxed)
    }

    fn spun(&self) -> Duration {
        Duration::from_nanos(self.spun_nanos.load(Ordering::Relaxed))
    }

    fn slept(&self) -> Duration {
        Duration::from_nanos(self.slept_nanos.load(Ordering::Relaxed))
    }
}

/// Only the loop's own thread adds, so a load and a store are enough.
fn add(counter: &AtomicU64, time: Duration) {
    let sum = counter.load(Ordering::Relaxed) + time.as_nanos() as u64;
    counter.store(sum, Ordering::Relaxed);
}

impl Wake for WakeState {
    fn wake(&self) {
        let first = !self.pending.swap(true, Ordering::SeqCst);
        if first && self.sleeping.load(Ordering::SeqCst) {
            // It fails only when the counter would overflow, and then the descriptor is readable anyway.
            if let Err(error) = self.eventfd.write(1) {
                tracing::error!(%error, "cannot wake the reactor");
            }
        }
    }
}
