//! What other threads can see of a loop.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A view of a reactor's loop for other threads. It costs the loop a store for each turn, and one when it goes to
/// sleep, wakes up or stops spinning.
#[derive(Clone)]
pub struct Monitor(Arc<dyn Watch>);

/// How a backend is watched.
pub(crate) trait Watch: Send + Sync {
    fn turns(&self) -> u64;
    fn is_sleeping(&self) -> bool;
    fn spun(&self) -> Duration;
    fn slept(&self) -> Duration;
}

impl Monitor {
    pub(crate) fn new(watch: Arc<dyn Watch>) -> Self {
        Self(watch)
    }

    /// Turns begun so far. One that does not end, because of what is done between two turns or within one, begins no
    /// other; neither does a loop that sleeps.
    pub fn turns(&self) -> u64 {
        self.0.turns()
    }

    /// Whether the loop sleeps in the kernel; otherwise it works or spins.
    pub fn is_sleeping(&self) -> bool {
        self.0.is_sleeping()
    }

    /// Time spent polling for an event that had not come yet.
    pub fn spun(&self) -> Duration {
        self.0.spun()
    }

    /// Time spent asleep in the kernel, up to the last time it woke.
    pub fn slept(&self) -> Duration {
        self.0.slept()
    }
}

impl fmt::Debug for Monitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Monitor")
            .field("turns", &self.turns())
            .field("sleeping", &self.is_sleeping())
            .field("spun", &self.spun())
            .field("slept", &self.slept())
            .finish()
    }
}
