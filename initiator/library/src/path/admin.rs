//! The admin queue: commands of the caller, and the path's own.

use std::collections::VecDeque;

use ringfab_spec::CompletionEntry;

use super::steps::SequenceStep;
use super::{Path, PathEvent, Phase, Role};
use crate::command::{Command, Owner};
use crate::core::Core;
use crate::delayed::Delayed;
use crate::error::{IoError, SubmitError};
use crate::messages::ToFollower;
use crate::queue::Queue;
use crate::request::{AdminRequest, Refused};
use crate::retry::judge;
use crate::wire::{self, answers};

/// Admin commands that may wait for room.
pub(crate) const ADMIN_WAITING_MAX: usize = 256;

/// The admin queue of a path, and what waits for it. An engine that follows has none.
#[derive(Debug, Default)]
pub(super) struct AdminQueue {
    pub(super) queue: Option<Queue>,
    /// Commands that wait for room.
    pub(super) waiting: VecDeque<Box<Command>>,
    /// Commands of the caller that wait for another try.
    pub(super) delayed: Delayed,
    /// Overdue commands of engines that follow, to be aborted when the controller takes another Abort: queue and command
    /// identifier.
    aborts: VecDeque<(u16, u16)>,
}

impl AdminQueue {
    /// Commands of the caller without an answer.
    pub(super) fn outstanding(&self) -> usize {
        let sent = self.queue.as_ref().map_or(0, |queue| queue.count(is_callers));
        self.waiting.len() + self.delayed.len() + sent
    }

    /// Aborts that a controller takes beside those that it has not answered, if it takes so many at once.
    pub(super) fn aborts_left(&self, most: u16) -> usize {
        let is_abort = |command: &Command| command.owner == Owner::Abort;
        let sent = self.queue.as_ref().map_or(0, |queue| queue.count(is_abort));
        let waiting = self.waiting.iter().filter(|command| is_abort(command)).count();
        usize::from(most).saturating_sub(sent + waiting)
    }

    /// Forgets what belongs to a connection that has ended.
    pub(super) fn forget_aborts(&mut self) {
        self.aborts.clear();
    }
}

/// Whether a command is one of the caller's.
fn is_callers(command: &Command) -> bool {
    matches!(command.owner, Owner::Admin(_))
}

impl Path {
    /// Starts an admin command, or lets it wait for room.
    pub(crate) fn submit_admin(
        &mut self,
        core: &mut Core,
        request: AdminRequest,
    ) -> Result<(), Refused<AdminRequest>> {
        let reason = match self.phase {
            _ if matches!(self.role, Role::Follower(_)) => {
                Some(SubmitError::NoCommand("an admin queue on this engine"))
            }
            Phase::Live if self.admin.waiting.len() < ADMIN_WAITING_MAX => None,
            Phase::Live => Some(SubmitError::Full),
            Phase::Draining | Phase::Shutdown | Phase::Gone => Some(SubmitError::Gone),
            _ => Some(SubmitError::NotReady),
        };
        if let Some(reason) = reason {
            return Err(Refused { reason, request });
        }
        self.send_admin(core, Command::from_admin(request));
        Ok(())
    }

    /// Sends an admin command, or lets it wait for room.
    pub(super) fn send_admin(&mut self, core: &mut Core, mut command: Box<Command>) {
        if command.owner != Owner::AsyncEvent {
            command.deadline = core.now() + self.admin_limit(command.owner);
            self.watch(command.deadline);
        }
        let Some(queue) = self.admin.queue.as_mut() else { return self.admin.waiting.push_back(command) };
        if let Err((command, _)) = queue.send(&mut core.transports, command) {
            self.admin.waiting.push_back(command);
        }
    }

    /// Sends the admin commands that wait, as far as there is room.
    pub(super) fn admin_room(&mut self, core: &mut Core) {
        let deadline = core.now() + self.options.timeouts.admin;
        let Some(queue) = self.admin.queue.as_mut() else { return };
        while queue.has_room() {
            let Some(mut command) = self.admin.waiting.pop_front() else { break };
            command.deadline = deadline;
            self.timers.scan = self.timers.scan.min(deadline);
            if let Err((command, _)) = queue.send(&mut core.transports, command) {
                return self.admin.waiting.push_front(command);
            }
        }
        self.abort_for_followers(core);
    }

    /// Takes the answer to an admin command, or to one of the sequence.
    pub(super) fn own_answered(&mut self, core: &mut Core, command: Box<Command>, entry: &CompletionEntry) {
        match command.owner {
            Owner::Io(_) => {}
            Owner::Admin(_) => {
                self.liveness.admin_worked = true;
                if let Some(command) = self.whole(core, command) {
                    self.caller_answered(core, command, entry);
                }
                self.admin_room(core);
            }
            Owner::Sequence => {
                self.sequence_answered(core, *command, entry);
                self.admin_room(core);
            }
            Owner::KeepAlive => self.kept_alive(core, entry.status()),
            Owner::AsyncEvent => self.on_async_event(core, entry),
            Owner::Abort => self.admin_room(core),
        }
    }

    /// An admin command of the caller has an answer: that is its end, or it gets another try.
    fn caller_answered(&mut self, core: &mut Core, mut command: Box<Command>, entry: &CompletionEntry) {
        let status = entry.status();
        if status.is_success() {
            return core.done(self.id, command, Ok(entry));
        }
        let verdict = judge(status);
        if let Some(delay) = command.tries.next(verdict, status, &self.pace, &self.options.reconnect) {
            tracing::debug!(peer = self.peer, %status, ?delay, sent = command.tries.sent(), "tried again");
            return self.admin.delayed.push(command, core.now() + delay);
        }
        let error = IoError::final_status(verdict, status, command.tries);
        core.done(self.id, command, Err(error));
    }

    /// Admin commands whose delay is over get another try.
    pub(super) fn admin_retry(&mut self, core: &mut Core, now: ringfab_reactor::Time) {
        self.admin.waiting.extend(self.admin.delayed.take_due(now));
        self.admin_room(core);
    }

    /// Keeps one Asynchronous Event Request outstanding.
    pub(super) fn watch_events(&mut self, core: &mut Core) {
        self.send_admin(core, Command::new(wire::async_event_request(), Owner::AsyncEvent));
    }

    /// Something has happened at the controller (Base 2.0, section 5.2).
    fn on_async_event(&mut self, core: &mut Core, entry: &CompletionEntry) {
        if !entry.status().is_success() {
            // Without events nothing is lost but their speed: sizes are looked at again after each reconnect.
            tracing::debug!(peer = self.peer, status = %entry.status(), "no asynchronous events");
            return;
        }
        let changed = answers::is_namespace_change(entry);
        tracing::info!(peer = self.peer, dw0 = entry.dw0.get(), changed, "asynchronous event");
        if changed && self.phase == Phase::Live {
            self.events.push_back(PathEvent::NamespacesChanged);
            self.tell_followers(&ToFollower::Changed);
            match self.sequence.step {
                None => self.run(core, SequenceStep::ChangedLog),
                Some(_) => self.refresh_again = true,
            }
        }
        self.watch_events(core);
    }

    /// An engine that follows has an overdue command.
    pub(super) fn on_abort_wanted(&mut self, core: &mut Core, qid: u16, cid: u16) {
        self.admin.aborts.push_back((qid, cid));
        self.abort_for_followers(core);
    }

    fn abort_for_followers(&mut self, core: &mut Core) {
        if self.admin.aborts.is_empty() {
            return;
        }
        let mut left = self.admin.aborts_left(self.sequence.facts.controller.aborts_max);
        while left > 0
            && let Some((qid, cid)) = self.admin.aborts.pop_front()
        {
            left -= 1;
            self.send_admin(core, Command::new(wire::abort(qid, cid), Owner::Abort));
        }
    }
}
