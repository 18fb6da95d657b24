//! What a controller says while it waits: for what, since when, and until when. One line for each wait, and a reminder where it
//! is long.

use std::time::Duration;

use ringfab_reactor::Time;

use super::steps::SequenceStep;
use super::{Path, Phase};
use crate::core::Core;
use crate::error::ConnectError;

/// Whoever waits is told after this time.
pub(crate) const FIRST: Duration = Duration::from_secs(2);
/// And again after each of these.
pub(crate) const AGAIN: Duration = Duration::from_secs(60);
/// An I/O command that has no answer for this long is spoken of.
pub(crate) const SLOW_IO: Duration = Duration::from_secs(5);

/// When a path logs what.
#[derive(Debug, Default)]
pub(super) struct Notices {
    /// When the attempt to attach began.
    attempt_since: Time,
    /// When commands without an answer may be logged again.
    slow_again: Time,
}

impl Path {
    /// An attempt to attach begins.
    pub(super) fn begin_attempt(&mut self, now: Time) {
        self.notices.attempt_since = now;
        self.timers.attach = now + self.options.timeouts.attach;
        if self.liveness.loss.is_none() {
            self.timers.notice = now + FIRST;
        }
    }

    /// How long the attempt may take, from its start.
    pub(super) fn attempt_limit(&self) -> Duration {
        self.timers.attach.since(self.notices.attempt_since)
    }

    /// How long the step that runs may take.
    fn step_limit(&self) -> Duration {
        let timeouts = &self.options.timeouts;
        let own = match (self.phase, self.sequence.step) {
            (Phase::Resolving, _) => timeouts.resolve,
            (Phase::Connecting, _) | (_, Some(SequenceStep::QueueEstablish(_))) => timeouts.connect,
            (_, Some(SequenceStep::ReadyStatus)) => self.sequence.facts.capabilities.timeout,
            _ => timeouts.admin,
        };
        own.min(self.attempt_limit())
    }

    /// It is left.
    pub(super) fn begin_leaving(&mut self, now: Time) {
        self.timers.notice = now + FIRST;
    }

    /// It is time to say what is waited for.
    pub(super) fn notice(&mut self, now: Time) {
        self.timers.notice = now + AGAIN;
        if self.is_lost() {
            self.log_still_lost(now);
        } else if matches!(self.phase, Phase::Resolving | Phase::Connecting | Phase::Setup) {
            let command = self.sequence.step.map_or("the connection", SequenceStep::command);
            tracing::warn!(
                "{}: {}: still waiting for {command}, {} after the start; its limit is {}",
                self.peer,
                self.step(),
                seconds(now.since(self.notices.attempt_since)),
                seconds(self.step_limit()),
            );
        } else if matches!(self.phase, Phase::Draining | Phase::Shutdown) {
            let waits = self.sequence.step.map_or("outstanding commands", SequenceStep::command);
            tracing::warn!(
                "{}: still leaving: waiting for {waits}; given up in {}",
                self.peer,
                seconds(self.timers.shutdown.since(now)),
            );
        } else {
            self.timers.notice = Time::MAX;
        }
    }

    /// A controller in use was lost.
    pub(super) fn log_lost(&mut self, core: &Core, error: &ConnectError, again: bool) {
        self.timers.notice = core.now() + AGAIN;
        let again = if again { " again, and nothing was answered in between" } else { "" };
        tracing::warn!("connection lost{again}: {error}; {}", self.lost_until(core.now()));
    }

    fn log_still_lost(&self, now: Time) {
        let Some(loss) = &self.liveness.loss else { return };
        let last = self.liveness.last_error.as_ref().map_or_else(String::new, |error| format!(" ({error})"));
        tracing::warn!(
            "{}: still no connection after {}{last}; {}",
            self.peer,
            seconds(now.since(loss.since())),
            self.lost_until(now)
        );
    }

    /// What happens meanwhile, and when it ends.
    fn lost_until(&self, now: Time) -> String {
        let Some(loss) = &self.liveness.loss else { return String::new() };
        let left = |at: Time| seconds(at.since(now));
        let io = match (self.liveness.failing_fast, loss.fail_io_at()) {
            (true, _) => "I/O fails".to_owned(),
            (false, Time::MAX) => "I/O waits".to_owned(),
            (false, at) => format!("I/O waits, and fails in {}", left(at)),
        };
        match loss.give_up_at() {
            Time::MAX => format!("{io}; reconnecting is tried without an end"),
            at => format!("{io}; reconnecting is given up in {}", left(at)),
        }
    }

    /// A controller that was in use is given up. Why it could not be attached at first is said by whoever wanted that.
    pub(super) fn log_given_up(&self, error: &ConnectError) {
        if self.info.is_some() {
            tracing::warn!("I/O fails from now on: {error}");
        }
    }

    /// A controller that was lost is there again.
    pub(super) fn log_back(&self, now: Time) {
        if let Some(loss) = &self.liveness.loss {
            tracing::warn!("{}: connected again after {}", self.peer, seconds(now.since(loss.since())));
        }
    }

    /// Some I/O commands had no answer in time.
    pub(super) fn log_overdue(&self, count: usize) {
        let limit = seconds(self.options.timeouts.io);
        tracing::warn!(
            "{}: no answer to {count} I/O commands for {limit}: aborting them; if that does not help within {limit}, the connection \
             is given up",
            self.peer
        );
    }

    /// Some I/O commands have no answer for longer than is usual.
    pub(super) fn log_slow(&mut self, now: Time, count: usize, longest: Duration) {
        if now < self.notices.slow_again {
            return;
        }
        self.notices.slow_again = now + AGAIN;
        tracing::warn!(
            "{}: no answer to {count} I/O commands, to the oldest for {}; aborted after {}",
            self.peer,
            seconds(longest),
            seconds(self.options.timeouts.io)
        );
    }
}

/// A time as people read it.
pub(crate) fn seconds(time: Duration) -> String {
    let ms = time.as_millis();
    if ms < 1000 {
        format!("{ms} ms")
    } else if ms < 10_000 && ms % 1000 >= 100 {
        format!("{}.{} s", ms / 1000, ms % 1000 / 100)
    } else {
        format!("{} s", time.as_secs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_as_exactly_as_matters() {
        for (ms, text) in [(42, "42 ms"), (2000, "2 s"), (2099, "2 s"), (2350, "2.3 s"), (60_499, "60 s")] {
            assert_eq!(seconds(Duration::from_millis(ms)), text);
        }
    }
}
