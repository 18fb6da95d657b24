//! When to try again after a loss, and what to do with commands that had no answer.
//!
//! # Replay
//! Commands without an answer are held. They are sent again, in the order of their submission, on the next connection
//! or by another path. Every command that a program can submit may be executed twice: a Read, Compare, Verify or Flush
//! changes nothing, and a Write, Write Zeroes or Discard of the same blocks ends in the same content. When:
//!
//! - What changes nothing goes on as soon as the connections have ended, and its buffer is used by nobody. A Flush
//!   promises nothing of commands that were not answered before it, so it need not wait for any.
//! - What changes blocks waits until the lost instance of the controller executes nothing any more. Otherwise what was
//!   sent first, and still lies in a socket, in a network or at a disk, could undo a later write. Cross-Controller
//!   Reset says when that is, or the clock: [`crate::fences`]. A controller that is connected again says nothing
//!   about it.
//! - A new command that changes the same blocks waits with it, and so does one that follows a command which has
//!   failed meanwhile. Other commands go on.
//!
//! What order promises, and what not:
//!
//! - A command that was answered is never sent again, so nothing that was submitted after an answer can be undone
//!   by replay. Two overlapping commands of which neither was answered when the other was submitted have no
//!   order in NVMe; replay may execute the first once more after the second was answered. A program that overlaps
//!   its own writes sees what it would see on a local disk that reorders, except that a Read in between may have
//!   shown the second content first. A Compare that overlaps with a Write in flight may see either content.
//! - The clock is right for controllers that keep what they say of themselves: keep-alive timeout and Command Quiesce
//!   Time. Many say that quiescing takes no time. A disk that hangs can make any such time wrong.
//! - What a controller is held for ends with the process. A program that has failed, or that attaches anew, does not
//!   know what the one before has sent.
//! - A Write that was answered but not flushed is in the target's volatile cache. When the target's machine loses
//!   power it is gone, and NVMe gives no sign of that after the reconnect. Programs that must not depend on it
//!   write with FUA, or the target serves without a volatile cache.

use std::time::Duration;

use ringfab_base::SplitMix64;
use ringfab_reactor::Time;

use crate::options::ReconnectPolicy;

/// The course of one loss.
#[derive(Clone, Debug)]
pub(crate) struct Loss {
    policy: ReconnectPolicy,
    since: Time,
    attempts: u32,
}

impl Loss {
    pub(crate) fn new(policy: ReconnectPolicy, since: Time) -> Self {
        Self { policy, since, attempts: 0 }
    }

    /// The next attempt: its number, counted from one, and how long to wait before it. Up to a quarter of the delay is
    /// taken off at random, so that hosts that lost the same target do not return at the same moment.
    pub(crate) fn next_attempt(&mut self, random: &mut SplitMix64) -> (u32, Duration) {
        let mut delay = self.policy.delay.min(self.policy.delay_max);
        for _ in 0..self.attempts.min(64) {
            delay = (delay.saturating_mul(self.policy.factor_percent) / 100).min(self.policy.delay_max);
        }
        self.attempts = self.attempts.saturating_add(1);
        let quarter = u64::try_from(delay.as_nanos() / 4).unwrap_or(u64::MAX);
        let less = if quarter == 0 { 0 } else { random.next() % (quarter + 1) };
        (self.attempts, delay - Duration::from_nanos(less))
    }

    /// When it began.
    pub(crate) fn since(&self) -> Time {
        self.since
    }

    /// When the controller is given up; [`Time::MAX`] when never.
    pub(crate) fn give_up_at(&self) -> Time {
        self.policy.controller_loss_timeout.map_or(Time::MAX, |timeout| self.since + timeout)
    }

    /// When I/O stops waiting; [`Time::MAX`] when never.
    pub(crate) fn fail_io_at(&self) -> Time {
        self.policy.fast_io_fail_timeout.map_or(Time::MAX, |timeout| self.since + timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> ReconnectPolicy {
        ReconnectPolicy {
            delay: Duration::from_millis(100),
            factor_percent: 200,
            delay_max: Duration::from_secs(1),
            controller_loss_timeout: Some(Duration::from_secs(60)),
            fast_io_fail_timeout: None,
            retries: 5,
        }
    }

    #[test]
    fn delays_double_up_to_the_cap_and_lose_at_most_a_quarter() {
        let (mut loss, mut random) = (Loss::new(policy(), Time::ZERO), SplitMix64::new(1));
        for (index, expected) in [100, 200, 400, 800, 1000, 1000].into_iter().enumerate() {
            let (attempt, delay) = loss.next_attempt(&mut random);
            assert_eq!(attempt as usize, index + 1);
            let expected = Duration::from_millis(expected);
            assert!(delay <= expected && delay >= expected * 3 / 4, "{delay:?} for {expected:?}");
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_delays() {
        let delays = |seed| {
            let (mut loss, mut random) = (Loss::new(policy(), Time::ZERO), SplitMix64::new(seed));
            (0..8).map(|_| loss.next_attempt(&mut random).1).collect::<Vec<_>>()
        };
        assert_eq!(delays(7), delays(7));
        assert_ne!(delays(7), delays(8));
    }

    #[test]
    fn extreme_policies_neither_overflow_nor_wait_longer_than_their_cap() {
        let extreme = ReconnectPolicy { factor_percent: u32::MAX, delay: Duration::MAX, ..policy() };
        let (mut loss, mut random) = (Loss::new(extreme, Time::MAX), SplitMix64::new(0));
        for _ in 0..100 {
            assert!(loss.next_attempt(&mut random).1 <= extreme.delay_max);
        }
        assert_eq!(loss.give_up_at(), Time::MAX);
        let none = ReconnectPolicy { delay: Duration::ZERO, ..policy() };
        assert_eq!(Loss::new(none, Time::ZERO).next_attempt(&mut random), (1, Duration::ZERO));
    }
}
