//! Losing a controller, coming back to it, and leaving it.

use std::time::Duration;

use ringfab_reactor::Time;

use super::timers::KeepAlive;
use super::{Controller, Ending, Phase};
use crate::core::Core;
use crate::error::{Cause, ConnectError, IoError, Step};
use crate::reconnect::Loss;
use crate::request::HostEvent;

/// An idle connection that stays for this long has come back.
const STEADY: Duration = Duration::from_secs(10);

impl Controller {
    /// The connection is of no further use.
    pub(super) fn lose(&mut self, core: &mut Core, step: Step, cause: Cause) {
        if matches!(self.phase, Phase::Closing | Phase::Delay | Phase::Gone) {
            return;
        }
        let error = self.error(step, cause);
        tracing::debug!(phase = ?self.phase, %error, "lost");
        let ending = match self.phase {
            Phase::Draining | Phase::Shutdown => Ending::Detach(Some(error)),
            Phase::Live => {
                let again = self.loss.is_some() && !self.has_worked(core.now());
                if !again {
                    self.loss = Some(Loss::new(self.options.reconnect, core.now()));
                }
                self.say_lost(core, &error, again);
                core.events.push_with(|| HostEvent::Lost { controller: self.id, error: error.clone() });
                Ending::Reconnect(error)
            }
            _ if self.loss.is_some() && error.cause.is_transient() => Ending::Reconnect(error),
            _ => Ending::Fail(error),
        };
        self.close(core, ending);
    }

    /// Ends all connections. The controller reaches no memory any more from here on, and once the RNIC has reported the end of
    /// each queue pair, nothing of ours is in flight either.
    fn close(&mut self, core: &mut Core, ending: Ending) {
        let orderly = self.phase == Phase::Shutdown;
        self.phase = Phase::Closing;
        self.ending = Some(ending);
        self.task = None;
        (self.refresh_again, self.unsettled) = (false, false);
        self.keep_alive = KeepAlive::default();
        (self.timers.phase, self.timers.scan, self.timers.shutdown) = (Time::MAX, Time::MAX, Time::MAX);
        self.timers.attach = Time::MAX;
        let mut queues = std::mem::take(&mut self.queues);
        for queue in self.admin.iter_mut().chain(&mut queues) {
            if orderly {
                queue.disconnect(&mut core.transports, &mut core.reactor);
            } else {
                queue.abort(&mut core.transports, &mut core.reactor);
            }
        }
        for index in 0..=queues.len() {
            loop {
                let queue = index.checked_sub(1).map_or(self.admin.as_mut(), |index| queues.get_mut(index));
                let Some(command) = queue.and_then(|queue| queue.pop(&mut core.transports)) else { break };
                self.keep(Some(command));
            }
        }
        self.queues = queues;
        self.release_held();
        self.check_closed(core);
    }

    /// Goes on when the last queue pair has ended.
    pub(super) fn check_closed(&mut self, core: &mut Core) {
        let alive = self.admin.iter().chain(&self.queues).any(|queue| queue.is_alive());
        if self.phase != Phase::Closing || alive {
            return;
        }
        for queue in self.admin.take().into_iter().chain(self.queues.drain(..)) {
            core.routes.remove(queue.endpoint());
        }
        while let Some(command) = self.admin_waiting.pop_front() {
            core.done(self.id, command, Err(IoError::NoPath));
        }
        if self.failing {
            self.fail_waiting(core, IoError::NoPath);
        }
        match self.ending.take() {
            Some(Ending::Reconnect(error)) => self.try_again(core, error),
            Some(Ending::Fail(error)) => {
                self.say_given_up(&error);
                self.gone(core, IoError::NoPath, |controller| HostEvent::Failed { controller, error });
            }
            Some(Ending::Detach(trouble)) => {
                self.gone(core, IoError::Cancelled, |controller| HostEvent::Detached { controller, trouble });
            }
            None => {}
        }
    }

    /// Schedules the next attempt, or gives up.
    fn try_again(&mut self, core: &mut Core, last: ConnectError) {
        self.phase = Phase::Delay;
        let now = core.now();
        let Some(loss) = self.loss.as_mut() else { return };
        let (attempt, delay) = loss.next_attempt(&mut core.random);
        self.last_error = Some(last);
        self.timers.phase = now + delay;
        core.events.push_with(|| HostEvent::Reconnecting { controller: self.id, attempt, delay });
    }

    /// Whether the limits of a loss run. They do not while it is in use, nor while queue pairs end: then there is nothing to
    /// give up yet.
    pub(super) fn is_lost(&self) -> bool {
        let attempts = [Phase::Resolving, Phase::Connecting, Phase::Setup, Phase::Delay];
        self.loss.is_some() && attempts.contains(&self.phase)
    }

    /// Whether the controller has done any work since it was ready: an attachment alone ends no loss, or one that answers
    /// nothing else would be tried for ever. An idle one need only have stayed for a while.
    fn has_worked(&self, now: Time) -> bool {
        // The first answer of each queue is to its Connect.
        let answered: u64 = self.queues.iter().map(|queue| queue.answered().saturating_sub(1)).sum();
        let stayed = self.outstanding() == 0 && now.since(self.live_since) >= STEADY;
        answered > self.put_off || self.admin_worked || stayed
    }

    /// Applies the policy's limits while the controller is lost.
    pub(super) fn check_loss(&mut self, core: &mut Core, now: Time) {
        let Some(loss) = self.loss.as_ref().filter(|_| self.is_lost()) else { return };
        let (give_up, fail_io) = (now >= loss.give_up_at(), now >= loss.fail_io_at());
        if fail_io && !self.failing {
            self.failing = true;
            self.fail_waiting(core, IoError::NoPath);
        }
        if give_up {
            let error = self.gave_up();
            self.close(core, Ending::Fail(error));
        }
    }

    fn gave_up(&mut self) -> ConnectError {
        let after = self.options.reconnect.controller_loss_timeout.unwrap_or_default();
        let (step, last) = match self.last_error.take() {
            Some(error) => (error.step, error.cause),
            None => (self.step(), Cause::TimedOut { what: "reconnecting", limit: after }),
        };
        self.error(Step::Live, Cause::GaveUp { after, step, last: Box::new(last) })
    }

    /// Answers all I/O that waits.
    fn fail_waiting(&mut self, core: &mut Core, error: IoError) {
        self.release_held();
        while let Some(command) = self.waiting.pop_front() {
            core.done(self.id, command, Err(error));
        }
    }

    /// Answers everything and tells the caller that this was all.
    fn gone(
        &mut self,
        core: &mut Core,
        error: IoError,
        event: impl FnOnce(crate::request::ControllerId) -> HostEvent,
    ) {
        self.fail_waiting(core, error);
        core.transports.rnic.deallocate_domain(self.domain);
        self.phase = Phase::Gone;
        self.loss = None;
        (self.timers.phase, self.timers.notice) = (Time::MAX, Time::MAX);
        core.events.push_with(|| event(self.id));
    }

    /// Starts an orderly detach.
    pub(crate) fn detach(&mut self, core: &mut Core) {
        match self.phase {
            Phase::Live => {
                self.phase = Phase::Draining;
                self.timers.shutdown = core.now() + self.options.timeouts.shutdown;
                self.begin_leaving(core.now());
                self.release_held();
                self.dispatch(core);
                self.admin_room(core);
                self.check_drained(core);
            }
            Phase::Draining | Phase::Shutdown => {}
            _ => return self.cancel(core),
        }
        self.arm(core);
    }

    /// Detaches at once.
    pub(crate) fn cancel(&mut self, core: &mut Core) {
        match self.phase {
            Phase::Gone => {}
            Phase::Closing => self.ending = Some(Ending::Detach(None)),
            _ => self.close(core, Ending::Detach(None)),
        }
        self.arm(core);
    }

    /// Goes on with shutting down when the last of the caller's commands has its answer.
    pub(super) fn check_drained(&mut self, core: &mut Core) {
        if self.phase != Phase::Draining || self.outstanding() > 0 || self.task.is_some() {
            return;
        }
        self.phase = Phase::Shutdown;
        let cached = self.info.as_ref().is_some_and(|info| info.volatile_write_cache);
        let first = if cached { self.after_flush(0) } else { self.after_queue(0) };
        self.run(core, first);
    }

    /// CSTS says that the controller has shut down.
    pub(super) fn shutdown_complete(&mut self, core: &mut Core) {
        self.close(core, Ending::Detach(None));
    }

    /// An orderly detach took too long.
    pub(super) fn shutdown_overdue(&mut self, core: &mut Core) {
        if matches!(self.phase, Phase::Draining | Phase::Shutdown) {
            let limit = self.options.timeouts.shutdown;
            let error = self.error(Step::Shutdown, Cause::TimedOut { what: "orderly shutdown", limit });
            self.close(core, Ending::Detach(Some(error)));
        }
    }
}
