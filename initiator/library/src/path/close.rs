//! Losing a controller, coming back to it, and leaving it.

use ringfab_reactor::Time;

use super::timers::KeepAlive;
use super::{Ending, Path, PathEvent, Phase, Role};
use crate::core::Core;
use crate::error::{Cause, ConnectError, IoError, Step};
use crate::messages::{ToFollower, ToLeader};
use crate::reconnect::Loss;

impl Path {
    /// The connection is of no further use.
    pub(super) fn lose(&mut self, core: &mut Core, step: Step, cause: Cause) {
        let error = self.error(step, cause);
        self.lose_with(core, error);
    }

    /// The same, with an error of another engine perhaps.
    pub(super) fn lose_with(&mut self, core: &mut Core, error: ConnectError) {
        if matches!(self.phase, Phase::Closing | Phase::Delay | Phase::Gone) {
            return;
        }
        tracing::debug!(phase = ?self.phase, %error, "lost");
        if let Role::Follower(leader) = &self.role {
            leader.tell(ToLeader::Lost { attempt: leader.attempt(), error });
            return self.close(core, Ending::Follow);
        }
        let ending = match self.phase {
            Phase::Draining | Phase::Shutdown => Ending::Detach(Some(error)),
            Phase::Live => {
                self.begin_loss(core, &error);
                Ending::Reconnect(error)
            }
            _ if self.liveness.loss.is_some() && error.cause.is_transient() => Ending::Reconnect(error),
            _ => Ending::Fail(error),
        };
        self.close(core, ending);
    }

    /// It was in use.
    fn begin_loss(&mut self, core: &Core, error: &ConnectError) {
        let now = core.now();
        let again = self.liveness.loss.is_some() && !self.has_worked(now);
        self.ask_others(now);
        if !again {
            self.liveness.loss = Some(Loss::new(self.options.reconnect, now));
        }
        self.log_lost(core, error, again);
        self.events.push_back(PathEvent::Lost(error.clone()));
        self.tell_followers(&ToFollower::Lost(error.clone()));
    }

    /// Ends all connections. The controller reaches no memory any more from here on, and once the transport has reported the
    /// end of each, on every engine, nothing of ours is in flight either.
    pub(super) fn close(&mut self, core: &mut Core, ending: Ending) {
        let orderly = self.phase == Phase::Shutdown;
        self.close_followers(orderly);
        self.note_for_leader();
        self.phase = Phase::Closing;
        self.ending = Some(ending);
        self.sequence.step = None;
        self.refresh_again = false;
        self.keep_alive = KeepAlive::default();
        (self.timers.phase, self.timers.scan, self.timers.shutdown) = (Time::MAX, Time::MAX, Time::MAX);
        self.timers.attach = Time::MAX;
        for queue in self.admin.queue.iter_mut().chain(self.io.iter_mut()) {
            if orderly {
                queue.disconnect(&mut core.transports, &mut core.reactor);
            } else {
                queue.abort(&mut core.transports, &mut core.reactor);
            }
        }
        for number in 0..=self.io.len() as u16 {
            while let Some(command) = self.queue_mut(number).and_then(|queue| queue.pop(&mut core.transports))
            {
                self.keep(Some(command));
            }
        }
        self.admin.waiting.extend(self.admin.delayed.take_due(Time::MAX));
        self.admin.forget_aborts();
    }

    /// Goes on when the last connection of all engines has ended.
    pub(super) fn check_closed(&mut self, core: &mut Core) {
        if self.phase != Phase::Closing {
            return;
        }
        let alive = self.admin.queue.iter().chain(self.io.iter()).any(|queue| queue.is_alive());
        if alive || self.followers_close() {
            return;
        }
        for queue in self.admin.queue.take().into_iter().chain(self.io.drain()) {
            core.routes.remove(queue.endpoint());
        }
        while let Some(command) = self.admin.waiting.pop_front() {
            core.done(self.id, command, Err(IoError::NoPath));
        }
        match self.ending.take() {
            Some(Ending::Reconnect(error)) => self.try_again(core, error),
            Some(Ending::Follow) => self.closed(),
            Some(Ending::Fail(error)) => {
                self.log_given_up(&error);
                self.fail_followers(&error);
                self.gone(core, PathEvent::Failed(error));
            }
            Some(Ending::Detach(trouble)) => {
                self.tell_followers(&ToFollower::Detached(trouble.clone()));
                self.gone(core, PathEvent::Detached(trouble));
            }
            None => {}
        }
    }

    /// Schedules the next attempt.
    fn try_again(&mut self, core: &mut Core, last: ConnectError) {
        self.phase = Phase::Delay;
        let now = core.now();
        self.judge_others();
        let Some(loss) = self.liveness.loss.as_mut() else { return };
        let (attempt, delay) = loss.next_attempt(&mut core.random);
        self.liveness.last_error = Some(last);
        self.timers.phase = now + delay;
        self.events.push_back(PathEvent::Reconnecting { attempt, delay });
        self.tell_followers(&ToFollower::Reconnecting { attempt, delay });
    }

    /// Whether the limits of a loss run. They do not while it is in use, nor while queue pairs end: then there is nothing to
    /// give up yet.
    pub(super) fn is_lost(&self) -> bool {
        let attempts = [Phase::Resolving, Phase::Connecting, Phase::Setup, Phase::Delay];
        self.liveness.loss.is_some() && attempts.contains(&self.phase)
    }

    /// Applies the policy's limits while the controller is lost.
    pub(super) fn check_loss(&mut self, core: &mut Core, now: Time) {
        let Some(loss) = self.liveness.loss.as_ref().filter(|_| self.is_lost()) else { return };
        let (give_up, fail_io) = (now >= loss.give_up_at(), now >= loss.fail_io_at());
        if fail_io && !self.liveness.failing_fast {
            self.liveness.failing_fast = true;
            self.events.push_back(PathEvent::FailFast);
            self.tell_followers(&ToFollower::FailFast);
        }
        if give_up {
            let error = self.gave_up();
            self.close(core, Ending::Fail(error));
        }
    }

    fn gave_up(&mut self) -> ConnectError {
        let after = self.options.reconnect.controller_loss_timeout.unwrap_or_default();
        let (step, last) = match self.liveness.last_error.take() {
            Some(error) => (error.step, error.cause),
            None => (self.step(), Cause::TimedOut { what: "reconnecting", limit: after }),
        };
        self.error(Step::Live, Cause::GaveUp { after, step, last: Box::new(last) })
    }

    /// This was all.
    pub(super) fn gone(&mut self, core: &mut Core, event: PathEvent) {
        core.transports.rnic.deallocate_domain(self.domain);
        self.phase = Phase::Gone;
        self.liveness.loss = None;
        (self.timers.phase, self.timers.notice) = (Time::MAX, Time::MAX);
        self.events.push_back(event);
    }

    /// Starts an orderly detach.
    pub(crate) fn detach(&mut self, core: &mut Core) {
        if let Role::Follower(leader) = &self.role {
            return leader.tell(ToLeader::Detach { orderly: true });
        }
        match self.phase {
            Phase::Live => {
                self.drain(core);
                self.timers.shutdown = core.now() + self.options.timeouts.shutdown;
                self.begin_leaving(core.now());
                self.tell_followers(&ToFollower::Drain);
            }
            Phase::Draining | Phase::Shutdown => {}
            _ => self.cancel(core),
        }
    }

    /// No new commands; what waits for another try does not wait any longer.
    pub(super) fn drain(&mut self, core: &mut Core) {
        self.phase = Phase::Draining;
        self.events.push_back(PathEvent::Drain);
        self.admin_retry(core, Time::MAX);
    }

    /// Detaches at once.
    pub(crate) fn cancel(&mut self, core: &mut Core) {
        if let Role::Follower(leader) = &self.role {
            return leader.tell(ToLeader::Detach { orderly: false });
        }
        match self.phase {
            Phase::Gone => {}
            Phase::Closing => self.ending = Some(Ending::Detach(None)),
            _ => self.close(core, Ending::Detach(None)),
        }
        self.check_closed(core);
    }

    /// The volumes have no more commands: goes on with shutting down when the last one here has its answer, and those of the
    /// engines that follow have theirs. `written` are the namespaces to flush. Says whether it went on.
    pub(crate) fn check_drained(&mut self, core: &mut Core, written: impl FnOnce() -> Vec<u32>) -> bool {
        if self.phase != Phase::Draining || self.outstanding() > 0 || self.sequence.step.is_some() {
            return false;
        }
        match &mut self.role {
            Role::Follower(leader) => {
                leader.tell(ToLeader::Drained { written: written() });
                self.phase = Phase::Shutdown;
            }
            Role::Leader(followers) => {
                if !followers.are_drained() {
                    return false;
                }
                let mut flushes = written();
                flushes.extend(followers.take_written());
                flushes.sort_unstable();
                flushes.dedup();
                self.sequence.flushes = flushes;
                self.phase = Phase::Shutdown;
                let cached = self.info.as_ref().is_some_and(|info| info.volatile_write_cache);
                let first = if cached { self.after_flush(0) } else { self.after_queue(0) };
                self.run(core, first);
            }
        }
        true
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
