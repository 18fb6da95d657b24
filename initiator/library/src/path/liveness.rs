//! Whether a path works, and how long it has not.

use std::time::Duration;

use ringfab_base::SplitMix64;
use ringfab_reactor::Time;

use super::notices::seconds;
use crate::error::{Cause, ConnectError, Step};
use crate::options::ReconnectPolicy;
use crate::reconnect::Loss;

/// An idle connection that stays for this long has come back.
const STEADY: Duration = Duration::from_secs(10);

/// After a loss, while keys are being changed on both ends, one that does not fit is no reason to give up at once.
const KEY_CHANGE: Duration = Duration::from_secs(60);

/// What the queues of a path have done since they were connected.
#[derive(Clone, Copy, Debug)]
pub(super) struct Activity {
    /// I/O commands that were answered.
    pub(super) io_answered: u64,
    /// Commands of the caller without an answer.
    pub(super) outstanding: usize,
}

/// What is known of a path's last loss, and of its work since it was ready last.
#[derive(Debug, Default)]
pub(crate) struct Liveness {
    /// The course of the last loss. It is over when the path has worked since: see [`Liveness::has_worked`].
    loss: Option<Loss>,
    /// Why the last attempt to reconnect failed.
    last_error: Option<ConnectError>,
    /// Since when the controller and this host do not know each other by their keys.
    unknown_since: Option<Time>,
    /// Whether I/O was told not to wait for it.
    failing_fast: bool,
    /// When it was ready last.
    live_since: Time,
    /// I/O commands since then that were answered with "try again".
    put_off: u64,
    /// Those that wait for their next try, or are held since the last loss.
    undone: usize,
    /// Whether an admin command was answered since then, or a Keep Alive while nothing else waited.
    admin_worked: bool,
}

impl Liveness {
    /// It is ready.
    pub(super) fn begin(&mut self, now: Time) {
        (self.live_since, self.put_off, self.undone, self.admin_worked) = (now, 0, 0, false);
        (self.failing_fast, self.unknown_since) = (false, None);
    }

    /// It was never ready, and is tried again as after a loss.
    pub(super) fn persist(&mut self, now: Time, policy: ReconnectPolicy) {
        self.loss = Some(Loss::new(policy, now));
    }

    /// Whether an attempt has failed since the loss.
    pub(crate) fn has_failed(&self) -> bool {
        self.loss.is_some() && self.last_error.is_some()
    }

    /// Whether an attempt that has failed with this is followed by another one: after a loss, if that may end
    /// otherwise. Keys that do not fit may be about to, and are tried for a while.
    pub(super) fn tries_again(&mut self, now: Time, cause: &Cause) -> bool {
        let unknown_since = cause.is_about_keys().then(|| *self.unknown_since.get_or_insert(now));
        let changes = unknown_since.is_some_and(|since| now < since + KEY_CHANGE);
        self.loss.is_some() && (cause.is_transient() || changes)
    }

    /// An I/O command was answered with "try again".
    pub(crate) fn put_off(&mut self) {
        self.put_off += 1;
    }

    /// So many I/O commands wait for another try, or are held since the last loss.
    pub(crate) fn set_undone(&mut self, undone: usize) {
        self.undone = undone;
    }

    /// The admin queue works.
    pub(super) fn admin_has_worked(&mut self) {
        self.admin_worked = true;
    }

    /// Whether nothing of the caller's is outstanding.
    pub(super) fn is_idle(&self, activity: Activity) -> bool {
        activity.outstanding == 0 && self.undone == 0
    }

    /// Whether I/O was answered since it was ready, with more than "try again".
    pub(super) fn has_answered(&self, activity: Activity) -> bool {
        activity.io_answered > self.put_off
    }

    /// Whether the controller has done any work since it was ready: an attachment alone ends no loss, or one that
    /// answers nothing else would be tried for ever. An idle one need only have stayed for a while.
    fn has_worked(&self, now: Time, activity: Activity) -> bool {
        let has_stayed = now.since(self.live_since) >= STEADY;
        self.has_answered(activity) || self.admin_worked || has_stayed && self.is_idle(activity)
    }

    /// It was in use and is lost. Says whether the loss before goes on, since nothing was done in between.
    pub(super) fn lose(&mut self, now: Time, activity: Activity, policy: ReconnectPolicy) -> bool {
        let again = self.loss.is_some() && !self.has_worked(now, activity);
        if !again {
            self.loss = Some(Loss::new(policy, now));
        }
        again
    }

    /// The loss, if there was one and it is not known to be over.
    pub(super) fn loss(&self) -> Option<&Loss> {
        self.loss.as_ref()
    }

    /// This is the loss, after all.
    pub(super) fn set_loss(&mut self, loss: Loss) {
        self.loss = Some(loss);
    }

    /// An attempt has failed, or the connection was lost. Number and delay of the next attempt.
    pub(super) fn next_attempt(
        &mut self,
        last: Option<ConnectError>,
        random: &mut SplitMix64,
    ) -> Option<(u32, Duration)> {
        let loss = self.loss.as_mut()?;
        self.last_error = last;
        Some(loss.next_attempt(random))
    }

    /// When the next limit of a loss is reached.
    pub(super) fn due(&self) -> Time {
        match &self.loss {
            Some(loss) if self.failing_fast => loss.give_up_at(),
            Some(loss) => loss.give_up_at().min(loss.fail_io_at()),
            None => Time::MAX,
        }
    }

    /// Whether I/O stops waiting now.
    pub(super) fn starts_failing_fast(&mut self, now: Time) -> bool {
        let starts = !self.failing_fast && self.loss.as_ref().is_some_and(|loss| now >= loss.fail_io_at());
        self.failing_fast |= starts;
        starts
    }

    /// Whether it has been lost for too long.
    pub(super) fn is_over(&self, now: Time) -> bool {
        self.loss.as_ref().is_some_and(|loss| now >= loss.give_up_at())
    }

    /// Why it is given up after so long; `step` is the one that runs.
    pub(super) fn why_given_up(&mut self, after: Duration, step: Step) -> Cause {
        let (step, last) = match self.last_error.take() {
            Some(error) => (error.step, error.cause),
            None => (step, Cause::TimedOut { what: "reconnecting", limit: after }),
        };
        Cause::GaveUp { after, step, last: Box::new(last) }
    }

    /// There is nothing to come back to.
    pub(super) fn end(&mut self) {
        self.loss = None;
    }

    /// Why the last attempt failed.
    pub(super) fn last_error(&self) -> Option<&ConnectError> {
        self.last_error.as_ref()
    }

    /// What happens during a loss, and when it ends, for people.
    pub(super) fn outlook(&self, now: Time) -> String {
        let Some(loss) = &self.loss else { return String::new() };
        let left = |at: Time| seconds(at.since(now));
        let io = match (self.failing_fast, loss.fail_io_at()) {
            (true, _) => "I/O fails unless another path takes it".to_owned(),
            (false, Time::MAX) => "I/O waits unless another path takes it".to_owned(),
            (false, at) => format!("I/O waits unless another path takes it, and fails in {}", left(at)),
        };
        match loss.give_up_at() {
            Time::MAX => format!("{io}; reconnecting is tried without an end"),
            at => format!("{io}; reconnecting is given up in {}", left(at)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Activity = Activity { io_answered: 0, outstanding: 0 };

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    fn policy() -> ReconnectPolicy {
        ReconnectPolicy {
            controller_loss_timeout: Some(Duration::from_secs(60)),
            fast_io_fail_timeout: Some(Duration::from_secs(5)),
            ..ReconnectPolicy::default()
        }
    }

    #[test]
    fn a_loss_goes_on_when_nothing_was_done_in_between() {
        let mut liveness = Liveness::default();
        assert!(!liveness.lose(at(0), NOTHING, policy()), "the first one");
        liveness.begin(at(1));
        assert!(liveness.lose(at(2), NOTHING, policy()), "nothing was answered");
        liveness.begin(at(3));
        liveness.put_off();
        let put_off = Activity { io_answered: 1, outstanding: 0 };
        assert!(liveness.lose(at(4), put_off, policy()), "only put off");
        liveness.begin(at(5));
        liveness.set_undone(1);
        assert!(
            liveness.lose(at(30), NOTHING, policy()),
            "what it has not done is held, and it was asked for nothing"
        );
        for worked in [Activity { io_answered: 2, outstanding: 1 }, NOTHING] {
            liveness.begin(at(5));
            // It answers, or it stays and is idle.
            assert!(!liveness.lose(at(15), worked, policy()));
        }
        liveness.begin(at(15));
        liveness.admin_has_worked();
        assert!(!liveness.lose(at(15), NOTHING, policy()));
    }

    #[test]
    fn keys_that_do_not_fit_are_tried_for_a_while_after_a_loss_and_not_before() {
        let keys = Cause::Authentication(crate::AuthenticationFailure::NoKey);
        let required = |status: ringfab_spec::Status| Cause::Status { command: "Connect", status };
        let required = required(ringfab_spec::Status::AUTHENTICATION_REQUIRED.with_dnr());
        let refused = Cause::Status {
            command: "Connect",
            status: ringfab_spec::Status::CONNECT_INVALID_HOST.with_dnr(),
        };
        let away = Cause::Fabric("refused".to_owned());
        let mut liveness = Liveness::default();
        assert!(![&keys, &required, &away].into_iter().any(|cause| liveness.tries_again(at(0), cause)));
        liveness.begin(at(0));
        liveness.lose(at(1), NOTHING, policy());
        assert!(!liveness.tries_again(at(1), &refused) && liveness.tries_again(at(1), &away));
        assert!(liveness.tries_again(at(2), &keys) && liveness.tries_again(at(61), &required));
        assert!(!liveness.tries_again(at(62), &keys), "60 seconds after the first");
        liveness.begin(at(63));
        assert!(liveness.tries_again(at(64), &keys), "it was there in between");
    }

    #[test]
    fn io_stops_waiting_once_and_then_the_path_is_given_up() {
        let mut liveness = Liveness::default();
        assert_eq!((liveness.due(), liveness.is_over(Time::MAX)), (Time::MAX, false));
        liveness.lose(at(0), NOTHING, policy());
        assert_eq!((liveness.due(), liveness.starts_failing_fast(at(4))), (at(5), false));
        assert_eq!((liveness.starts_failing_fast(at(5)), liveness.starts_failing_fast(at(5))), (true, false));
        assert_eq!(
            (liveness.due(), liveness.is_over(at(59)), liveness.is_over(at(60))),
            (at(60), false, true)
        );
        liveness.end();
        assert_eq!(liveness.due(), Time::MAX);
    }
}
