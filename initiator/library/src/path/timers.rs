//! What a controller does when time passes: timeouts, keep-alive, attempts to reconnect.

use std::time::Duration;

use ringfab_reactor::Time;
use ringfab_spec::Status;

use super::notice::SLOW_IO;
use super::{Path, Phase, Role};
use crate::command::{Command, Owner};
use crate::core::Core;
use crate::error::{Cause, Step};
use crate::messages::ToLeader;
use crate::queue::Queue;
use crate::wire;

/// When the controller acts next. All of a subsystem share one timer of the reactor.
#[derive(Debug)]
pub(super) struct Timers {
    /// End of the phase, or the next poll of a status.
    pub(super) phase: Time,
    /// When to look for overdue answers. Looking costs a pass over all slots, so it is done when the oldest could be
    /// overdue, not for each command.
    pub(super) scan: Time,
    /// End of an orderly shutdown.
    pub(super) shutdown: Time,
    /// End of an attempt to attach.
    pub(super) attach: Time,
    /// When to say what is waited for.
    pub(super) notice: Time,
}

impl Default for Timers {
    fn default() -> Self {
        Self { phase: Time::MAX, scan: Time::MAX, shutdown: Time::MAX, attach: Time::MAX, notice: Time::MAX }
    }
}

/// The keep-alive of an association (Base 2.0, section 3.9).
#[derive(Debug)]
pub(super) struct KeepAlive {
    /// Half of the timeout; `None` while off.
    pub(super) interval: Option<Duration>,
    pub(super) next: Time,
    /// Whether any command counts as a sign of life (TBKAS).
    pub(super) traffic_based: bool,
    outstanding: bool,
    answered: u64,
}

impl Default for KeepAlive {
    fn default() -> Self {
        Self { interval: None, next: Time::MAX, traffic_based: false, outstanding: false, answered: 0 }
    }
}

/// An overdue command for whose abort there was no room is looked at again after this time.
const ABORT_AGAIN: Duration = Duration::from_millis(100);

impl Path {
    /// When it acts next.
    pub(crate) fn next_deadline(&self) -> Time {
        let loss = self.liveness.loss.as_ref().filter(|_| self.is_lost()).map_or(Time::MAX, |loss| {
            if self.liveness.failing_fast {
                loss.give_up_at()
            } else {
                loss.give_up_at().min(loss.fail_io_at())
            }
        });
        let timers = &self.timers;
        let own = [
            timers.phase,
            timers.scan,
            timers.shutdown,
            self.admin.delayed.due(),
            timers.attach,
            timers.notice,
        ];
        own.into_iter().chain([self.keep_alive.next, loss]).min().unwrap_or(Time::MAX)
    }

    /// The timer has fired.
    pub(crate) fn on_timer(&mut self, core: &mut Core) {
        let now = core.now();
        self.check_loss(core, now);
        if now >= self.timers.shutdown {
            self.timers.shutdown = Time::MAX;
            self.shutdown_overdue(core);
        }
        if now >= self.timers.phase {
            self.timers.phase = Time::MAX;
            self.phase_overdue(core);
        }
        if now >= self.timers.scan {
            self.scan(core, now);
        }
        if now >= self.keep_alive.next {
            self.keep_alive(core, now);
        }
        if now >= self.admin.delayed.due() {
            self.admin_retry(core, now);
        }
        if now >= self.timers.attach {
            let limit = self.attempt_limit();
            self.timers.attach = Time::MAX;
            let step = self.step();
            self.lose(core, step, Cause::TimedOut { what: "all of attaching", limit });
        }
        if now >= self.timers.notice {
            self.notice(now);
        }
        self.check_closed(core);
    }

    fn phase_overdue(&mut self, core: &mut Core) {
        match self.phase {
            Phase::Resolving => {
                let cause = Cause::TimedOut { what: "the resolver", limit: self.options.timeouts.resolve };
                self.lose(core, Step::Resolve, cause);
            }
            Phase::Delay => self.resolve(core),
            Phase::Setup | Phase::Shutdown | Phase::Live | Phase::Draining => self.poll_again(core),
            _ => {}
        }
    }

    /// Looks for overdue answers. An I/O command is aborted first and costs the connection only when that does not help;
    /// an overdue admin command means that the controller does not answer. As many aborts are asked for at once as the
    /// controller takes (ACL).
    fn scan(&mut self, core: &mut Core, now: Time) {
        if let Some((_, command)) = self.admin.queue.as_mut().and_then(|queue| queue.overdue(now)) {
            let owner = command.owner;
            let what = if owner == Owner::KeepAlive { "Keep Alive" } else { "an admin command" };
            let (step, limit) = (self.step(), self.admin_limit(owner));
            return self.lose(core, step, Cause::TimedOut { what, limit });
        }
        let limit = self.options.timeouts.io;
        let mut aborts_left = match self.role {
            Role::Leader(_) => self.admin.aborts_left(self.sequence.facts.controller.aborts_max),
            // The leader asks for as many at once as the controller takes.
            Role::Follower(_) => usize::MAX,
        };
        let mut overdue = Vec::new();
        let looked = self.io.overdue(now, |qid, cid, command| {
            if command.aborted || command.owner == Owner::Sequence {
                return Err(Cause::TimedOut { what: "an I/O command and its abort", limit });
            }
            if aborts_left == 0 {
                command.deadline = now + ABORT_AGAIN;
                return Ok(());
            }
            aborts_left -= 1;
            command.aborted = true;
            command.deadline = now + limit;
            overdue.push((qid, cid));
            Ok(())
        });
        if let Err(cause) = looked {
            let step = self.step();
            return self.lose(core, step, cause);
        }
        for &(qid, cid) in &overdue {
            self.abort(core, qid, cid);
        }
        let overdue = overdue.len();
        if overdue > 0 {
            self.log_overdue(overdue);
        }
        let admin = self.admin.queue.as_mut().map_or(Time::MAX, Queue::deadline);
        self.timers.scan = admin.min(self.look_for_slow(now));
    }

    /// Asks the controller to abort a command.
    fn abort(&mut self, core: &mut Core, qid: u16, cid: u16) {
        match &self.role {
            Role::Leader(_) => self.send_admin(core, Command::new(wire::abort(qid, cid), Owner::Abort)),
            Role::Follower(leader) => leader.tell(ToLeader::Abort { qid, cid }),
        }
    }

    /// Speaks of I/O commands without an answer, and says when to look again.
    fn look_for_slow(&mut self, now: Time) -> Time {
        let limit = self.options.timeouts.io;
        let (mut slow, mut longest, mut next) = (0, Duration::ZERO, Time::MAX);
        for command in self.io.iter().flat_map(Queue::commands) {
            // A deadline is that long after the command was sent, or its abort. `Time` does not go below zero.
            let left = command.deadline.since(now);
            let is_slow = left + SLOW_IO <= limit;
            if is_slow || command.aborted {
                (slow, longest) = (slow + 1, longest.max(limit.saturating_sub(left)));
            }
            let later = if is_slow { left } else { (left + SLOW_IO).saturating_sub(limit).min(left) };
            next = next.min(now + later);
        }
        if slow > 0 && limit > SLOW_IO {
            self.log_slow(now, slow, longest);
        }
        next
    }

    /// How long an admin command may take. A Keep Alive that is not answered within its timeout has failed: by then the
    /// controller takes this host for dead.
    pub(super) fn admin_limit(&self, owner: Owner) -> Duration {
        let limit = self.options.timeouts.admin;
        match self.keep_alive.interval {
            Some(interval) if owner == Owner::KeepAlive => limit.min(interval * 2),
            _ => limit,
        }
    }

    /// Makes sure that overdue I/O is noticed; whether that is sooner than it would have been.
    #[inline]
    pub(crate) fn look_by(&mut self, at: Time) -> bool {
        let sooner = at < self.timers.scan;
        if sooner {
            self.timers.scan = at;
        }
        sooner
    }

    /// Makes sure that an overdue answer is noticed.
    pub(super) fn watch(&mut self, deadline: Time) {
        self.timers.scan = self.timers.scan.min(deadline);
    }

    /// Starts the keep-alive, as the controller can.
    pub(super) fn start_keep_alive(&mut self, core: &Core) {
        let timeout = self.options.keep_alive_wanted();
        self.keep_alive = KeepAlive::default();
        if !timeout.is_zero() {
            self.keep_alive.interval = Some(timeout / 2);
            self.keep_alive.next = core.now() + timeout / 2;
        }
    }

    fn keep_alive(&mut self, core: &mut Core, now: Time) {
        let Some(interval) = self.keep_alive.interval else { return };
        self.keep_alive.next = now + interval;
        let queues = self.admin.queue.iter().chain(self.io.iter());
        let answered = queues.map(|queue| queue.answered()).sum();
        let traffic = answered != std::mem::replace(&mut self.keep_alive.answered, answered);
        // One that is outstanding has its own deadline.
        if self.keep_alive.outstanding || traffic && self.keep_alive.traffic_based {
            return;
        }
        self.keep_alive.outstanding = true;
        self.send_admin(core, Command::new(wire::keep_alive(), Owner::KeepAlive));
    }

    /// The answer to a Keep Alive.
    pub(super) fn kept_alive(&mut self, core: &mut Core, status: Status) {
        self.keep_alive.outstanding = false;
        // It is no traffic of its own: an idle host sends the next one half a timeout later, not a whole one.
        self.keep_alive.answered += 1;
        self.liveness.admin_worked |= self.is_idle();
        if status.code() == Status::INVALID_OPCODE {
            self.keep_alive = KeepAlive::default();
        } else if !status.is_success() {
            let cause = Cause::Status { command: "Keep Alive", status };
            self.lose(core, Step::Live, cause);
        }
    }
}
