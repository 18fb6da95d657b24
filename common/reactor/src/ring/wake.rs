//! Waking a sleeping loop from another thread, and letting others see whether it sleeps.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::sys::eventfd::{EfdFlags, EventFd};

use super::wake_flags::WakeFlags;
use crate::mailbox::Wake;
use crate::monitor::Watch;

/// Shared between the loop and those who wake or watch it.
#[derive(Debug)]
pub(super) struct WakeState {
    flags: WakeFlags,
    eventfd: EventFd,
    turns: AtomicU64,
    spun_nanos: AtomicU64,
    slept_nanos: AtomicU64,
}

impl WakeState {
    pub(super) fn new() -> io::Result<Arc<Self>> {
        let flags = EfdFlags::EFD_CLOEXEC;
        Ok(Arc::new(Self {
            flags: WakeFlags::new(),
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

    /// Whether the loop is wanted, and whether it sleeps.
    #[inline]
    pub(super) fn flags(&self) -> &WakeFlags {
        &self.flags
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
        self.flags.is_sleeping()
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
        if self.flags.request() {
            // It fails only when the counter would overflow, and then the descriptor is readable anyway.
            if let Err(error) = self.eventfd.write(1) {
                tracing::error!(%error, "cannot wake the reactor");
            }
        }
    }
}
