//! How long a loop looks for its next event before it sleeps.

use std::time::Duration;

use crate::Wait;

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

/// How much longer than usual is spun for an answer.
const ANSWER_TIMES: u32 = 20;

/// The same for an event by who has saved for it.
const SAVED_TIMES: u32 = 5;

/// But for no longer than this, unless that is usual: who watches the loop expects it to turn.
const LONGER_MOST: Duration = Duration::from_secs(1);

/// Savings end at so many times what is usually spun.
const SAVINGS_TIMES: u32 = 50;

/// One piece of work saves this part of what is usually spun.
const SAVED_PARTS: u32 = 4;

/// What was learnt of the waits of each kind.
///
/// Peers that share few processors take turns, so that one that has much to do has long pauses, too. It had better spin
/// through them: if it sleeps, its peers will find nothing to do, either, and sleep. But who has something to do now and then
/// only had better sleep. So each piece of work saves a part of the usual spin, and a longer spin is paid for from that.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spins {
    event: Spin,
    answer: Spin,
    /// What work has paid for.
    savings: Duration,
    /// Whether the wait at hand is for an answer. A turn that does not wait leaves it as it is.
    for_answer: bool,
}

impl Spins {
    pub(crate) fn new(most: Duration) -> Self {
        let answer = Spin::new(longer(most, ANSWER_TIMES));
        Self { event: Spin::new(most), answer, savings: Duration::ZERO, for_answer: false }
    }

    /// The most that is spun for an event.
    pub(crate) const fn most(&self) -> Duration {
        self.event.most
    }

    /// A turn begins.
    pub(crate) fn begin(&mut self, wait: Wait) {
        match wait {
            Wait::No => {}
            Wait::Event => self.for_answer = false,
            Wait::Answer => self.for_answer = true,
        }
    }

    /// So many pieces of work were done.
    pub(crate) fn worked(&mut self, pieces: u32) {
        let most = self.event.most;
        let saved = (most / SAVED_PARTS).saturating_mul(pieces);
        self.savings = self.savings.saturating_add(saved).min(most.saturating_mul(SAVINGS_TIMES));
    }

    /// See [`Spin::time`].
    pub(crate) fn time(&self) -> Duration {
        if self.for_answer {
            return self.answer.time();
        }
        self.event.time().max(self.savings.min(longer(self.event.most, SAVED_TIMES)))
    }

    /// See [`Spin::waited`].
    pub(crate) fn waited(&mut self, waited: Duration) {
        if self.for_answer {
            return self.answer.waited(waited);
        }
        if waited > self.event.most {
            self.savings = self.savings.saturating_sub(waited.min(self.time()));
        }
        self.event.waited(waited);
    }
}

/// So many times the usual spin, within its bound.
fn longer(most: Duration, times: u32) -> Duration {
    most.saturating_mul(times).min(LONGER_MOST).max(most)
}

/// When a loop that spins offers its processor to others: it may share it with the very ones that it waits for. An offer is a
/// system call of no use where there are none, so that it is made seldom once many were not taken.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Offers {
    /// How many were not taken since the last that was.
    refused: u32,
}

impl Offers {
    /// Time between two while others were about lately, and while not.
    const OFTEN: Duration = Duration::from_micros(2);
    const SELDOM: Duration = Duration::from_micros(40);

    /// So many that are not taken say that nobody is about.
    const REFUSED_MOST: u32 = 64;

    /// An offer that takes longer was taken.
    const TAKEN: Duration = Duration::from_micros(3);

    /// How long to spin before the next.
    pub(crate) const fn pause(self) -> Duration {
        if self.refused < Self::REFUSED_MOST { Self::OFTEN } else { Self::SELDOM }
    }

    /// One has been made, and this thread runs again after so long.
    pub(crate) fn made(&mut self, took: Duration) {
        self.refused = if took > Self::TAKEN { 0 } else { self.refused.saturating_add(1) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_become_rare_when_nobody_takes_them_and_frequent_when_somebody_does() {
        let mut offers = Offers::default();
        for _ in 0..Offers::REFUSED_MOST {
            assert_eq!(offers.pause(), Offers::OFTEN);
            offers.made(Offers::TAKEN);
        }
        assert_eq!(offers.pause(), Offers::SELDOM);
        offers.made(Offers::TAKEN + Duration::from_nanos(1));
        assert_eq!(offers.pause(), Offers::OFTEN);
    }

    #[test]
    fn an_answer_is_spun_for_twenty_times_as_long_and_what_is_learnt_of_it_is_its_own() {
        let most = Duration::from_micros(10);
        let mut spins = Spins::new(most);
        spins.begin(Wait::Answer);
        assert_eq!(spins.time(), 20 * most);
        (0..9).for_each(|_| spins.waited(21 * most));
        assert_eq!(spins.time(), Duration::ZERO);
        spins.begin(Wait::No);
        assert_eq!(spins.time(), Duration::ZERO, "a turn that does not wait changes nothing");
        spins.begin(Wait::Event);
        assert_eq!(spins.time(), most);
    }

    #[test]
    fn a_longer_spin_is_paid_for_with_work() {
        let most = Duration::from_micros(100);
        let mut spins = Spins::new(most);
        spins.worked(3);
        assert_eq!(spins.time(), most, "less than the usual spin is saved");
        spins.worked(9);
        assert_eq!(spins.time(), 3 * most);
        spins.waited(10 * most);
        assert_eq!(spins.time(), most / 2, "all was spent, and a long wait halves the usual spin");
        spins.worked(u32::MAX);
        spins.waited(most);
        let mut spun = Duration::ZERO;
        while spins.time() > most {
            spun += spins.time();
            spins.waited(10 * most);
        }
        assert_eq!(spun, 50 * most, "of any amount of work, no more is saved");
        spins.worked(20);
        spins.begin(Wait::Answer);
        spins.waited(20 * most);
        spins.begin(Wait::Event);
        assert_eq!(spins.time(), 5 * most, "waits for an answer are not paid for");
        let mut none = Spins::new(Duration::ZERO);
        none.worked(u32::MAX);
        assert_eq!(none.time(), Duration::ZERO, "who shall not spin does not");
    }

    #[test]
    fn no_longer_spin_is_longer_than_a_second_unless_the_usual_one_is() {
        const LONGEST: u64 = u64::MAX;
        for (most, answer, saved) in [
            (0, 0, 0),
            (40, 800, 200),
            (60, 1000, 300),
            (300, 1000, 1000),
            (1000, 1000, 1000),
            (5000, 5000, 5000),
            (LONGEST, LONGEST, LONGEST),
        ] {
            let mut spins = Spins::new(Duration::from_millis(most));
            spins.worked(u32::MAX);
            assert_eq!(spins.time(), Duration::from_millis(saved), "{most} ms usually, after much work");
            spins.begin(Wait::Answer);
            assert_eq!(spins.time(), Duration::from_millis(answer), "{most} ms usually, for an answer");
        }
    }
}
