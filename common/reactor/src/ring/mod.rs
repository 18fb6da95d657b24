//! A reactor over the kernel's io_uring.

mod buffers;
mod clock;
mod datagrams;
mod descriptors;
mod direct;
mod drain;
mod files;
mod in_flight;
mod listeners;
mod open;
mod operations;
mod pace;
mod progress;
mod queues;
mod restrictions;
mod sockets;
mod sync;
mod timers;
mod wait;
mod wake;
mod wake_flags;

pub use self::clock::clock;
pub(crate) use self::clock::wall_clock;
pub use self::open::{check_kind, inspect_file};

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use ringfab_memory::Pool;

use self::buffers::Buffers;
use self::in_flight::{INTERNAL, InFlight};
use self::operations::{NO_DESCRIPTOR, OperationKind};
use self::pace::Pace;
use self::timers::Alarm;
use self::wake::WakeState;
use crate::monitor::Watch;
use crate::{Completion, Monitor, ReactorConfig, ReactorCounters, Time, TimerId, Token, Waker};

/// One core's ring with everything that is in flight on it.
pub(crate) struct Ring {
    pub(crate) in_flight: InFlight,
    pub(crate) pace: Pace,
    buffers: Buffers,
    wake: Arc<WakeState>,
    completed: u64,
}

impl Ring {
    pub(crate) fn new(config: &ReactorConfig) -> io::Result<Self> {
        let wake = WakeState::new()?;
        let mut in_flight = InFlight::new(config)?;
        allow_threads(in_flight.queues.submitter());
        let buffers = Buffers::new(in_flight.queues.submitter());
        in_flight.read_wakes(&wake);
        Ok(Self { in_flight, pace: Pace::new(config.spin), buffers, wake, completed: 0 })
    }

    /// The descriptor for a program that waits in a loop of its own. That of the ring would not do: a ring whose work
    /// is deferred wakes nobody who polls it. So the kernel signals an eventfd when there is work or a completion, once
    /// somebody has asked for it.
    pub(crate) fn descriptor(&self) -> io::Result<BorrowedFd<'_>> {
        self.wake.outside(|eventfd| self.in_flight.queues.submitter().register_eventfd(eventfd))
    }

    pub(crate) fn register_pool(&mut self, pool: &Pool) -> bool {
        self.buffers.register(self.in_flight.queues.submitter(), pool)
    }

    pub(crate) fn now(&self) -> Time {
        self.pace.now
    }

    pub(crate) fn next_completion(&mut self) -> Option<Completion> {
        let Some(completion) = self.in_flight.ready.pop_front() else {
            // The next ones go to the front again, which is in the cache; the whole of it would not fit there.
            self.in_flight.ready.clear();
            return None;
        };
        self.completed += 1;
        Some(completion)
    }

    pub(crate) fn waker(&self) -> Waker {
        Waker(self.wake.clone())
    }

    pub(crate) fn monitor(&self) -> Monitor {
        Monitor::new(self.wake.clone())
    }

    pub(crate) fn counters(&self) -> ReactorCounters {
        ReactorCounters {
            turns: self.pace.turns,
            enters: self.in_flight.queues.enters,
            sleeps: self.pace.sleeps,
            shared: self.pace.yields.times_shared(),
            submitted: self.in_flight.queues.submitted,
            completed: self.completed,
            spun: self.wake.spun(),
            slept: self.wake.slept(),
        }
    }

    pub(crate) fn set_timer(&mut self, at: Time, token: Token) -> TimerId {
        self.in_flight.timers.set(at, Alarm::User(token))
    }

    pub(crate) fn cancel_timer(&mut self, timer: TimerId) {
        self.in_flight.timers.cancel(timer);
    }

    pub(crate) fn poll_readable(&mut self, descriptor: std::os::fd::RawFd, token: Token) {
        self.in_flight.start(token, NO_DESCRIPTOR, OperationKind::Poll(descriptor));
    }

    pub(crate) fn stop_polling(&mut self, descriptor: std::os::fd::RawFd) {
        self.in_flight.start(INTERNAL, NO_DESCRIPTOR, OperationKind::StopPolling(descriptor));
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring")
            .field("in_flight", &self.in_flight.operations.len())
            .field("ready", &self.in_flight.ready.len())
            .finish_non_exhaustive()
    }
}

/// Threads of the kernel that may work for a ring on what would block, at the most. As many as a hung file system has
/// under way are missing for the others.
const THREADS_MAX: u32 = 256;

/// Lets the kernel use more threads than its own limit, four for each processor, where it agrees.
fn allow_threads(submitter: &io_uring::Submitter<'_>) {
    // The second number, of threads for what may wait without limit, stays as it is.
    if let Err(error) = submitter.register_iowq_max_workers(&mut [THREADS_MAX, 0]) {
        tracing::debug!(%error, "the kernel keeps its limit of threads for blocking file I/O");
    }
}
