//! Waking a sleeping loop from another thread, and letting others see whether it sleeps.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::wake_flags::WakeFlags;
use crate::mailbox::Wake;
use crate::monitor::Watch;

/// Shared between the loop and those who wake or watch it.
#[derive(Debug)]
pub(super) struct WakeState {
    flags: WakeFlags,
    eventfd: EventFd,
    /// For a program that waits in a loop of its own, once there is one.
    outside: OnceLock<EventFd>,
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
            outside: OnceLock::new(),
            turns: AtomicU64::new(0),
            spun_nanos: AtomicU64::new(0),
            slept_nanos: AtomicU64::new(0),
        }))
    }

    /// The descriptor that becomes readable when the sleeping loop is woken.
    pub(super) fn eventfd(&self) -> RawFd {
        self.eventfd.as_raw_fd()
    }

    /// The descriptor for a program that waits in a loop of its own. `prepare` is given it when it is new.
    pub(super) fn outside(
        &self,
        prepare: impl FnOnce(RawFd) -> io::Result<()>,
    ) -> io::Result<BorrowedFd<'_>> {
        if self.outside.get().is_none() {
            let eventfd = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
            prepare(eventfd.as_raw_fd())?;
            let first = self.outside.set(eventfd).is_ok();
            debug_assert!(first, "one thread has the ring");
        }
        self.outside.get().map(EventFd::as_fd).ok_or_else(|| io::ErrorKind::Unsupported.into())
    }

    /// Takes what was signaled there.
    pub(super) fn clear_outside(&self) -> io::Result<()> {
        match self.outside.get().map(EventFd::read) {
            None | Some(Ok(_) | Err(Errno::EAGAIN)) => Ok(()),
            Some(Err(error)) => Err(error.into()),
        }
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
            // The kernel, which reads the other one, would signal it late.
            if let Some(outside) = self.outside.get()
                && let Err(error) = outside.write(1)
            {
                tracing::debug!(%error, "the program's loop is awake already");
            }
        }
    }
}
