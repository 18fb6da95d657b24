//! The keep-alive of an association (Base 2.0, section 3.9).

use std::mem;
use std::time::Duration;

use ringfab_reactor::Time;
use ringfab_spec::Status;

use crate::error::Cause;

/// When to send the next Keep Alive. It is off until it is started.
#[derive(Debug)]
pub(super) struct KeepAlive {
    /// Half of the timeout; `None` while off.
    interval: Option<Duration>,
    due: Time,
    /// Whether any command counts as a sign of life (TBKAS).
    traffic_based: bool,
    outstanding: bool,
    /// Commands answered when it was due last.
    answered: u64,
}

impl Default for KeepAlive {
    fn default() -> Self {
        Self { interval: None, due: Time::MAX, traffic_based: false, outstanding: false, answered: 0 }
    }
}

impl KeepAlive {
    /// With a timeout; zero leaves it off.
    pub(super) fn start(&mut self, timeout: Duration, now: Time) {
        *self = Self::default();
        if !timeout.is_zero() {
            self.interval = Some(timeout / 2);
            self.due = now + timeout / 2;
        }
    }

    /// As the controller can: whether it has Keep Alive, and whether any command counts as one (TBKAS).
    pub(super) fn set_supported(&mut self, supported: bool, traffic_based: bool) {
        if !supported {
            *self = Self::default();
        }
        self.traffic_based = traffic_based;
    }

    /// After how long without a sign of life the controller takes this host for dead; `None` while off.
    pub(super) fn timeout(&self) -> Option<Duration> {
        self.interval.map(|interval| interval * 2)
    }

    /// How long a Keep Alive may take: when its timeout is over, the controller takes this host for dead.
    pub(super) fn answer_limit(&self, admin_limit: Duration) -> Duration {
        self.timeout().map_or(admin_limit, |timeout| admin_limit.min(timeout))
    }

    /// When the next one is due.
    pub(super) fn due(&self) -> Time {
        self.due
    }

    /// Whether to send one now, with so many commands answered on all queues.
    pub(super) fn take_due(&mut self, now: Time, answered: u64) -> bool {
        let Some(interval) = self.interval.filter(|_| now >= self.due) else { return false };
        self.due = now + interval;
        let traffic = answered != mem::replace(&mut self.answered, answered);
        // One that is outstanding has its own deadline.
        let send = !(self.outstanding || traffic && self.traffic_based);
        self.outstanding |= send;
        send
    }

    /// One was answered.
    ///
    /// # Errors
    /// The controller does not keep this association.
    pub(super) fn on_answer(&mut self, status: Status) -> Result<(), Cause> {
        self.outstanding = false;
        // It is no traffic of its own: an idle host sends the next one half a timeout later, not a whole one.
        self.answered += 1;
        if status.code() == Status::INVALID_OPCODE {
            *self = Self::default();
        } else if !status.is_success() {
            return Err(Cause::Status { command: "Keep Alive", status });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::ZERO + Duration::from_millis(ms)
    }

    #[test]
    fn one_is_sent_each_half_of_the_timeout_and_only_one_is_outstanding() {
        let mut keep_alive = KeepAlive::default();
        assert_eq!((keep_alive.due(), keep_alive.take_due(Time::MAX, 0)), (Time::MAX, false));
        keep_alive.start(Duration::from_millis(100), at(0));
        assert!(!keep_alive.take_due(at(49), 0), "too early");
        assert!(keep_alive.take_due(at(50), 0));
        assert!(!keep_alive.take_due(at(100), 0), "it has no answer");
        assert!(keep_alive.on_answer(Status::SUCCESS).is_ok());
        assert!(keep_alive.take_due(at(150), 1));
        assert!(keep_alive.on_answer(Status::INVALID_OPCODE).is_ok());
        assert_eq!((keep_alive.due(), keep_alive.timeout()), (Time::MAX, None), "the controller has none");
    }

    #[test]
    fn traffic_takes_its_place_where_it_counts_and_its_own_answer_is_no_traffic() {
        let mut keep_alive = KeepAlive::default();
        keep_alive.start(Duration::from_millis(100), at(0));
        keep_alive.set_supported(true, true);
        assert!(!keep_alive.take_due(at(50), 7), "commands were answered");
        assert!(keep_alive.take_due(at(100), 7), "none was");
        assert!(keep_alive.on_answer(Status::SUCCESS).is_ok());
        assert!(keep_alive.take_due(at(150), 8), "its own answer is one more");
        let refused = keep_alive.on_answer(Status::INTERNAL_ERROR);
        assert!(matches!(refused, Err(Cause::Status { command: "Keep Alive", .. })));
    }
}
