//! Deadlines of a path.

use std::time::Duration;

use ringfab_reactor::Time;

use crate::options::ConnectOptions;

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timer {
    /// An orderly shutdown takes too long.
    Shutdown,
    /// The phase has lasted long enough, or it is time to repeat a step.
    Phase,
    /// Attaching takes too long.
    Attach,
    /// It is time to authenticate again.
    Reauthenticate,
}

/// The deadlines; [`Time::MAX`] for none.
#[derive(Debug)]
pub(super) struct Timers {
    /// End of the phase, or when a step is repeated.
    pub(super) phase: Time,
    /// End of an orderly shutdown.
    pub(super) shutdown: Time,
    /// End of the attempt to attach.
    attach: Time,
    /// When to authenticate again.
    reauthenticate: Time,
    /// When the attempt began.
    attempt_since: Time,
}

impl Default for Timers {
    fn default() -> Self {
        Self {
            phase: Time::MAX,
            shutdown: Time::MAX,
            attach: Time::MAX,
            reauthenticate: Time::MAX,
            attempt_since: Time::ZERO,
        }
    }
}

impl Timers {
    /// An attempt to attach begins.
    pub(super) fn begin_attempt(&mut self, now: Time, limit: Duration) {
        (self.attempt_since, self.attach) = (now, now + limit);
    }

    /// The attempt may take so long in all, if there is one.
    pub(super) fn extend_attempt(&mut self, limit: Duration) {
        if self.attach != Time::MAX {
            self.attach = self.attempt_since + limit;
        }
    }

    /// The attempt goes on after connections have ended.
    pub(super) fn resume_attempt(&mut self, limit: Duration) {
        self.attach = self.attempt_since + limit;
    }

    /// The attempt has succeeded.
    pub(super) fn end_attempt(&mut self) {
        self.attach = Time::MAX;
    }

    /// When the attempt began.
    pub(super) fn attempt_since(&self) -> Time {
        self.attempt_since
    }

    /// When to authenticate again, if that is wanted.
    pub(super) fn repeat_authentication(&mut self, now: Time, options: &ConnectOptions) {
        let interval = options.authentication.as_ref().and_then(|ours| ours.repeat);
        self.reauthenticate = interval.map_or(Time::MAX, |interval| now + interval);
    }

    /// None is left.
    pub(super) fn stop(&mut self) {
        (self.phase, self.shutdown, self.attach) = (Time::MAX, Time::MAX, Time::MAX);
        self.reauthenticate = Time::MAX;
    }

    /// When the first one is due.
    pub(super) fn due(&self) -> Time {
        self.phase.min(self.shutdown).min(self.attach).min(self.reauthenticate)
    }

    /// The next one that is due. It is taken.
    pub(super) fn take_due(&mut self, now: Time) -> Option<Timer> {
        let timers = [
            (Timer::Shutdown, &mut self.shutdown),
            (Timer::Phase, &mut self.phase),
            (Timer::Attach, &mut self.attach),
            (Timer::Reauthenticate, &mut self.reauthenticate),
        ];
        let (timer, at) = timers.into_iter().find(|(_, at)| now >= **at)?;
        *at = Time::MAX;
        Some(timer)
    }
}
