//! How long a loop spins before it sleeps.

use std::time::Duration;

use super::clock::clock;
use crate::Time;
use crate::spin::{Spins, Yields};

/// When a loop waits, and how: what it has seen of its time.
pub(crate) struct Pace {
    pub(crate) spin: Spins,
    pub(super) yields: Yields,
    pub(super) now: Time,
    pub(super) last_event: Time,
    pub(super) turns: u64,
    pub(super) sleeps: u64,
}

impl Pace {
    /// With the longest time to spin after an event.
    pub(super) fn new(spin: Duration) -> Self {
        let now = clock();
        Self { spin: Spins::new(spin), yields: Yields::default(), now, last_event: now, turns: 0, sleeps: 0 }
    }

    /// Until when to spin for what comes next. Who waits for an answer spins on a shared processor, too, and offers
    /// it: if all sleep that share it, each answer takes a wake-up at either end.
    pub(super) fn spin_end(&self) -> Time {
        if self.yields.is_shared(self.now) && !self.spin.is_for_answer() {
            return self.last_event;
        }
        self.last_event + self.spin.time()
    }
}
