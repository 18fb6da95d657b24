//! How long a loop looks for its next event before it sleeps.

use std::time::Duration;

/// The most that a loop spins unless somebody knows better: more than it takes to wake the peer's core. With less than that,
/// one sleep of either end makes a wait in which the other falls asleep, too, and so on for as long as the load lasts.
pub const SPIN_DEFAULT: Duration = Duration::from_micros(100);

/// The time that a loop spins, learnt from how long its waits have lately been.
///
/// A spin that ends in an event saves the sleep and the wake-up. One that ends in sleep all the same has only cost
/// processor time, and the next wait will mostly be as long. So a wait that was no longer than the most that is
/// allowed allows the most again, and each longer one halves it, down to nothing.
///
/// ```
/// # use {ringfab_reactor::Spin, std::time::Duration};
/// let (most, long) = (Duration::from_micros(50), Duration::from_millis(1));
/// let mut spin = Spin::new(most);
/// assert_eq!(spin.time(), most);
/// (0..10).for_each(|_| spin.waited(long));
/// assert_eq!(spin.time(), Duration::ZERO);
/// spin.waited(Duration::from_micros(20));
/// assert_eq!(spin.time(), most);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Spin {
    most: Duration,
    time: Duration,
}

impl Spin {
    /// A spin this small is not worth its reading of the clock.
    const LEAST: Duration = Duration::from_micros(2);

    /// Spins for `most` at first, and never for longer. Zero never spins.
    pub const fn new(most: Duration) -> Self {
        Self { most, time: most }
    }

    /// How long the next wait should spin.
    pub const fn time(&self) -> Duration {
        self.time
    }

    /// An event has come so long after the one before it.
    pub fn waited(&mut self, waited: Duration) {
        self.time = match self.time / 2 {
            _ if waited <= self.most => self.most,
            half if half < Self::LEAST => Duration::ZERO,
            half => half,
        };
    }
}
