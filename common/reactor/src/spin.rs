//! How long a loop looks for its next event before it sleeps.

use std::time::Duration;

use crate::{Time, Wait};

/// The most that a loop spins unless somebody knows better: more than it takes to wake the peer's core. With less than
/// that, one sleep of either end makes a wait in which the other falls asleep, too, and so on for as long as the load
/// lasts.
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
/// through them: if it sleeps, its peers will find nothing to do, either, and sleep. But who has something to do now
/// and then only had better sleep. So each piece of work saves a part of the usual spin, and a longer spin is paid for
/// from that.
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

    /// Whether the wait at hand is for an answer.
    pub(crate) const fn is_for_answer(&self) -> bool {
        self.for_answer
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

/// When a loop that spins offers its processor to others: it may share it with the very ones that it waits for. An
/// offer is a system call of no use where there are none, so that it is made seldom once many were not taken.
///
/// Where others take one after the other, an offer is not enough. The scheduler sees a thread that runs all the time
/// and gives it its equal part, which those whose work it waits for do not get. So the processor counts as shared for a
/// while then, and a loop had better sleep than spin on it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Yields {
    /// How many were not taken since the last that was.
    refused: u32,
    /// [`Self::TAKEN_WEIGHT`] for each that was taken, less one for each that was not.
    score: u32,
    /// The processor counts as shared until then.
    shared_until: Time,
    /// How many times it was found to be.
    times_shared: u64,
}

impl Yields {
    /// Time between two while others were about lately, and while not.
    const OFTEN: Duration = Duration::from_micros(2);
    const SELDOM: Duration = Duration::from_micros(40);

    /// So many that are not taken say that nobody is about.
    const REFUSED_MOST: u32 = 64;

    /// An offer that takes longer was taken.
    const TAKEN: Duration = Duration::from_micros(3);

    /// One offer that is taken counts as much as so many that are not: interrupts and the threads of the kernel take
    /// one now and then.
    const TAKEN_WEIGHT: u32 = 8;

    /// The score from which on the processor counts as shared. Two offers make it, taken shortly after one another, and
    /// a single one afterwards.
    const SHARED_SCORE: u32 = 2 * Self::TAKEN_WEIGHT;

    /// How long the processor counts as shared: a thousand turns of a busy loop. A new try costs what a spin may cost.
    const SHARED_TIME: Duration = Duration::from_millis(50);

    /// How long to spin before the next.
    pub(crate) const fn pause(self) -> Duration {
        if self.refused < Self::REFUSED_MOST { Self::OFTEN } else { Self::SELDOM }
    }

    /// One has been made, and this thread runs again at `now` after so long.
    pub(crate) fn made(&mut self, now: Time, took: Duration) {
        if took <= Self::TAKEN {
            self.refused = self.refused.saturating_add(1);
            self.score = self.score.saturating_sub(1);
            return;
        }
        self.refused = 0;
        self.score += Self::TAKEN_WEIGHT;
        if self.score >= Self::SHARED_SCORE {
            self.score = Self::SHARED_SCORE - Self::TAKEN_WEIGHT;
            self.shared_until = now + Self::SHARED_TIME;
            self.times_shared += 1;
        }
    }

    /// Whether others want this processor so often that a spin takes it from them.
    pub(crate) fn is_shared(&self, now: Time) -> bool {
        now < self.shared_until
    }

    /// How many times that was found.
    pub(crate) const fn times_shared(&self) -> u64 {
        self.times_shared
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::from_nanos(1_000_000_000);
    const TAKEN: Duration = Yields::TAKEN.saturating_add(Duration::from_nanos(1));

    #[test]
    fn offers_become_rare_when_nobody_takes_them_and_frequent_when_somebody_does() {
        let mut yields = Yields::default();
        for _ in 0..Yields::REFUSED_MOST {
            assert_eq!(yields.pause(), Yields::OFTEN);
            yields.made(NOW, Yields::TAKEN);
        }
        assert_eq!(yields.pause(), Yields::SELDOM);
        yields.made(NOW, TAKEN);
        assert_eq!(yields.pause(), Yields::OFTEN);
    }

    #[test]
    fn a_processor_is_shared_for_a_while_when_offers_are_taken_shortly_after_one_another() {
        let mut yields = Yields::default();
        for _ in 0..100 {
            yields.made(NOW, TAKEN);
            (0..Yields::TAKEN_WEIGHT).for_each(|_| yields.made(NOW, Yields::TAKEN));
            assert!(!yields.is_shared(NOW), "one is taken now and then");
        }
        yields.made(NOW, TAKEN);
        assert!(!yields.is_shared(NOW));
        yields.made(NOW, TAKEN);
        let end = NOW + Yields::SHARED_TIME;
        assert!(yields.is_shared(Time::from_nanos(end.as_nanos() - 1)) && !yields.is_shared(end));
        yields.made(end, TAKEN);
        assert!(yields.is_shared(end), "one is enough while nothing says otherwise");
        let later = end + Yields::SHARED_TIME;
        (0..Yields::TAKEN_WEIGHT).for_each(|_| yields.made(later, Yields::TAKEN));
        yields.made(later, TAKEN);
        assert!(!yields.is_shared(later));
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
