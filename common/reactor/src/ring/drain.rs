//! The end of a ring: nothing is freed that the kernel may still write.

use std::mem::ManuallyDrop;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::Ring;
use super::clock::clock;
use super::in_flight::{INTERNAL, InFlight};
use super::operations::{NO_DESCRIPTOR, OperationKind};
use crate::time::Time;

/// How long the end waits for operations in flight.
const DRAIN_TIME: Duration = Duration::from_secs(5);

/// Rings of one process end together, and the same file keeps all of them: one line for all that end within this time.
const LEAK_TOLD_EVERY: Duration = Duration::from_secs(10);

impl Drop for Ring {
    fn drop(&mut self) {
        for known in self.buffers.pools.iter() {
            known.pool.set_registration(None);
        }
        let in_flight = &mut self.in_flight;
        let drained = in_flight.drain();
        // Completions that nobody took give their buffers back here; the kernel is done with those.
        in_flight.ready.clear();
        if !drained {
            tell_leak(in_flight.operations.len());
            return;
        }
        // SAFETY: each of the three is dropped once, here, and nothing uses them afterwards. Nothing is in flight, so
        // the operations' memory is ours; the queues go before the pools that are registered with them.
        unsafe {
            ManuallyDrop::drop(&mut in_flight.operations);
            ManuallyDrop::drop(&mut in_flight.queues);
            ManuallyDrop::drop(&mut self.buffers.pools);
        }
    }
}

fn tell_leak(in_flight: usize) {
    static TOLD: Mutex<Option<Time>> = Mutex::new(None);
    let now = clock();
    let told = TOLD.lock().unwrap_or_else(PoisonError::into_inner).replace(now);
    if told.is_none_or(|told| now.since(told) >= LEAK_TOLD_EVERY) {
        tracing::error!(in_flight, "operations do not end; their memory and the ring are leaked");
    }
}

impl InFlight {
    /// Cancels everything and waits, for a bounded time, until nothing is in flight.
    pub(super) fn drain(&mut self) -> bool {
        self.draining = true;
        self.queue_sends();
        self.queue_receives();
        self.start(INTERNAL, NO_DESCRIPTOR, OperationKind::CancelAll);
        let deadline = clock() + DRAIN_TIME;
        while self.operations.len() > 0 && clock() < deadline {
            if let Err(error) = self.queues.enter(1, Some(Duration::from_millis(50))) {
                tracing::error!(%error, "the ring is broken");
                return false;
            }
            self.reap();
        }
        self.operations.len() == 0
    }
}
