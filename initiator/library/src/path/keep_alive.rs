//! The keep-alive of an association (Base 2.0, section 3.9).

use std::time::Duration;

use ringfab_reactor::Time;
use ringfab_spec::Status;

use crate::error::Cause;

/// When to send the next Keep Alive, and when a controller is silent. It is off until it is started.
///
/// It looks four times in each timeout. A controller that has answered nothing for a whole one is lost: that is noticed
/// one to one and a quarter timeouts after its last answer. A Keep Alive goes out half a timeout after the last one, or
/// after the last traffic where that counts, so a controller has at least a quarter of the timeout to answer one.
#[derive(Debug)]
pub(super) struct KeepAlive {
    /// `None` while off.
    timeout: Option<Duration>,
    /// The next look.
    due: Time,
    /// Whether any command counts as a sign of life (TBKAS).
    traffic_based: bool,
    outstanding: bool,
    /// Commands answered at the last look.
    answered: u64,
    /// When the last one was sent, or the timer started.
    sent: Time,
    /// The last look at which something had been answered.
    traffic: Time,
    /// The last sign of life, as far as looks can tell.
    alive: Time,
}

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeepAliveDue {
    Nothing,
    /// Send one.
    Send,
    /// The controller has answered nothing for as long as this.
    Silent(Duration),
}

impl Default for KeepAlive {
    fn default() -> Self {
        Self {
            timeout: None,
            due: Time::MAX,
            traffic_based: false,
            outstanding: false,
            answered: 0,
            sent: Time::ZERO,
            traffic: Time::ZERO,
            alive: Time::ZERO,
        }
    }
}

impl KeepAlive {
    /// With a timeout; zero leaves it off.
    pub(super) fn start(&mut self, timeout: Duration, now: Time) {
        *self = Self { sent: now, traffic: now, alive: now, ..Self::default() };
        if !timeout.is_zero() {
            (self.timeout, self.due) = (Some(timeout), now + timeout / 4);
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
        self.timeout
    }

    /// How long a Keep Alive may take: when its timeout is over, the controller takes this host for dead.
    pub(super) fn answer_limit(&self, admin_limit: Duration) -> Duration {
        self.timeout.map_or(admin_limit, |timeout| admin_limit.min(timeout))
    }

    /// When to look next.
    pub(super) fn due(&self) -> Time {
        self.due
    }

    /// What to do now, with so many commands answered on all queues.
    pub(super) fn take_due(&mut self, now: Time, answered: u64) -> KeepAliveDue {
        let Some(timeout) = self.timeout.filter(|_| now >= self.due) else { return KeepAliveDue::Nothing };
        if answered != self.answered {
            (self.answered, self.traffic, self.alive) = (answered, now, now);
        }
        if now >= self.due + timeout / 4 {
            // This host has slept, or was too busy to look: what has been answered may still lie in a socket.
            self.alive = now;
        }
        if now >= self.alive + timeout {
            self.due = now + timeout / 4;
            return KeepAliveDue::Silent(timeout);
        }
        let since = if self.traffic_based { self.sent.max(self.traffic) } else { self.sent };
        let at = since + timeout / 2;
        let sends = !self.outstanding && now >= at;
        if sends {
            (self.outstanding, self.sent) = (true, now);
        }
        let look = now + timeout / 4;
        self.due = if at > now { look.min(at) } else { look };
        if sends { KeepAliveDue::Send } else { KeepAliveDue::Nothing }
    }

    /// One was answered.
    ///
    /// # Errors
    /// The controller does not keep this association.
    pub(super) fn on_answer(&mut self, now: Time, status: Status) -> Result<(), Cause> {
        self.outstanding = false;
        // It is a sign of life, and no traffic of its own: an idle host sends the next one half a timeout later.
        self.answered += 1;
        self.alive = now;
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
    use super::KeepAliveDue::{Nothing, Send, Silent};
    use super::*;

    const TIMEOUT: Duration = Duration::from_millis(100);

    fn at(ms: u64) -> Time {
        Time::ZERO + Duration::from_millis(ms)
    }

    #[test]
    fn one_is_sent_each_half_of_the_timeout_and_only_one_is_outstanding() {
        let mut keep_alive = KeepAlive::default();
        assert_eq!((keep_alive.due(), keep_alive.take_due(Time::MAX, 0)), (Time::MAX, Nothing));
        keep_alive.start(TIMEOUT, at(0));
        assert_eq!([25, 49].map(|ms| keep_alive.take_due(at(ms), 0)), [Nothing; 2], "too early");
        assert_eq!((keep_alive.due(), keep_alive.take_due(at(50), 0)), (at(50), Send));
        assert_eq!(keep_alive.take_due(at(75), 0), Nothing, "it has no answer");
        assert!(keep_alive.on_answer(at(80), Status::SUCCESS).is_ok());
        assert_eq!(keep_alive.take_due(at(100), 1), Send);
        assert!(keep_alive.on_answer(at(101), Status::INVALID_OPCODE).is_ok());
        assert_eq!((keep_alive.due(), keep_alive.timeout()), (Time::MAX, None), "the controller has none");
    }

    #[test]
    fn traffic_takes_its_place_where_it_counts_and_its_own_answer_is_no_traffic() {
        let mut keep_alive = KeepAlive::default();
        keep_alive.start(TIMEOUT, at(0));
        keep_alive.set_supported(true, true);
        assert_eq!(
            [25, 50].map(|ms| keep_alive.take_due(at(ms), ms)),
            [Nothing; 2],
            "commands were answered"
        );
        assert_eq!([75, 100].map(|ms| keep_alive.take_due(at(ms), 50)), [Nothing, Send], "none was");
        assert!(keep_alive.on_answer(at(101), Status::SUCCESS).is_ok());
        assert_eq!(
            [125, 150].map(|ms| keep_alive.take_due(at(ms), 51)),
            [Nothing, Send],
            "its own is one more"
        );
        let refused = keep_alive.on_answer(at(151), Status::INTERNAL_ERROR);
        assert!(matches!(refused, Err(Cause::Status { command: "Keep Alive", .. })));
    }

    #[test]
    fn silence_is_noticed_after_one_to_one_and_a_quarter_timeouts() {
        for (traffic_based, last) in (0..50).flat_map(|last| [(false, last), (true, last)]) {
            let mut keep_alive = KeepAlive::default();
            keep_alive.start(TIMEOUT, at(0));
            keep_alive.set_supported(true, traffic_based);
            // The last answer comes then; after it, nothing does.
            let (mut sent, mut noticed) = (0, None);
            for ms in 1..=300 {
                match keep_alive.take_due(at(ms), u64::from(ms >= last)) {
                    Send => sent = ms,
                    Silent(_) => noticed = noticed.or(Some(ms)),
                    Nothing => {}
                }
            }
            let after = noticed.expect("it is noticed") - last;
            assert!((100..=125).contains(&after), "{after} ms after {last}, {traffic_based}");
            assert!(sent > last && sent + 25 <= last + after, "it was asked at {sent}, {last}");
        }
    }

    #[test]
    fn a_host_that_has_slept_blames_nobody() {
        let mut keep_alive = KeepAlive::default();
        keep_alive.start(TIMEOUT, at(0));
        assert_eq!([25, 50].map(|ms| keep_alive.take_due(at(ms), 0)), [Nothing, Send]);
        assert_eq!(keep_alive.take_due(at(900), 0), Nothing, "the answer may be there");
        assert_eq!([925, 950, 975].map(|ms| keep_alive.take_due(at(ms), 0)), [Nothing; 3]);
        assert_eq!(keep_alive.take_due(at(1000), 0), Silent(TIMEOUT));
    }
}
