//! I/O and admin commands of the caller, and the answers to everything.

use ringfab_spec::{CompletionEntry, Status};

use super::notice::SLOW_IO;
use super::task::Task;
use super::{ADMIN_WAITING_MAX, Controller, Phase};
use crate::allowed;
use crate::command::{Command, Direction, Owner};
use crate::core::Core;
use crate::error::{Cause, IoError, Step, SubmitError};
use crate::namespace::{self, NamespaceIdentity};
use crate::queue::Queue;
use crate::request::{AdminRequest, IoOperation, IoRequest, Refused};
use crate::transport::NotSent;
use crate::wire::{self, answers};

impl Controller {
    /// Starts an I/O command, or lets it wait. Where a disk is named, its namespace has to be that one.
    pub(crate) fn submit(
        &mut self,
        core: &mut Core,
        disk: Option<&NamespaceIdentity>,
        mut request: IoRequest,
    ) -> Result<(), Refused<IoRequest>> {
        let block_bytes = match self.check(disk, &mut request) {
            Ok(block_bytes) => block_bytes,
            Err(reason) => return Err(Refused { reason, request }),
        };
        if let IoOperation::Write { .. } | IoOperation::WriteZeroes { .. } | IoOperation::Discard { .. } =
            request.operation
        {
            self.written.note(request.nsid);
        }
        let mut command = Command::from_io(request, block_bytes, &mut core.spare);
        command.order = self.order;
        self.order += 1;
        core.io_outstanding += 1;
        if self.failing {
            core.done(self.id, command, Err(IoError::NoPath));
            return Ok(());
        }
        self.waiting.push_back(command);
        self.dispatch(core);
        Ok(())
    }

    /// Starts an admin command, or lets it wait for room.
    pub(crate) fn submit_admin(
        &mut self,
        core: &mut Core,
        request: AdminRequest,
    ) -> Result<(), Refused<AdminRequest>> {
        let reason = match self.phase {
            Phase::Live if self.admin_waiting.len() < ADMIN_WAITING_MAX => None,
            Phase::Live => Some(SubmitError::Full),
            Phase::Draining | Phase::Shutdown | Phase::Gone => Some(SubmitError::Gone),
            _ => Some(SubmitError::NotReady),
        };
        if let Some(reason) = reason {
            return Err(Refused { reason, request });
        }
        self.send_admin(core, Command::from_admin(request));
        self.arm(core);
        Ok(())
    }

    /// Commands without an answer, waiting ones included.
    pub(crate) fn outstanding(&self) -> usize {
        let queues: usize = self.queues.iter().map(|queue| queue.outstanding()).sum();
        let admin = self.admin.as_ref().map_or(0, |queue| queue.count(is_admin));
        queues + self.waiting.len() + self.held.len() + self.admin_waiting.len() + admin
    }

    /// Whether a request can be a command, which it is made to fit; returns the bytes of a block.
    fn check(&self, disk: Option<&NamespaceIdentity>, request: &mut IoRequest) -> Result<u32, SubmitError> {
        if matches!(self.phase, Phase::Draining | Phase::Shutdown | Phase::Gone) {
            return Err(SubmitError::Gone);
        }
        if self.info.is_none() {
            return Err(SubmitError::NotReady);
        }
        if self.waiting.len() + self.held.len() >= self.options.waiting_max && !self.has_room() {
            return Err(SubmitError::Full);
        }
        let nsid = request.nsid;
        let namespace = namespace::find(&self.namespaces, nsid);
        let meant = namespace.filter(|found| disk.is_none_or(|disk| disk.agrees_with(&found.identity)));
        let namespace = meant.ok_or(SubmitError::NoNamespace(nsid))?;
        allowed::fit(namespace, &mut request.operation).map(|()| namespace.block_bytes)
    }

    /// Whether a command could be sent at once.
    fn has_room(&self) -> bool {
        self.may_send() && self.waiting.is_empty() && self.queues.iter().any(|queue| queue.has_room())
    }

    fn may_send(&self) -> bool {
        matches!(self.phase, Phase::Live | Phase::Draining) && !self.unsettled
    }

    /// Sends what waits, in order, as far as there is room.
    pub(super) fn dispatch(&mut self, core: &mut Core) {
        if !self.may_send() || self.waiting.is_empty() {
            return;
        }
        let deadline = core.now() + self.options.timeouts.io;
        while !self.waiting.is_empty()
            && let Some(index) = self.queue_with_room()
        {
            let Some(mut command) = self.waiting.pop_front() else { break };
            (command.deadline, command.aborted) = (deadline, false);
            match self.queues[index].send(&mut core.transports, command) {
                Ok(_) => self.queue_next = if index + 1 < self.queues.len() { index + 1 } else { 0 },
                Err((command, NotSent::Busy)) if self.queues.iter().all(|queue| queue.outstanding() == 0) => {
                    // Nothing will come free: the RNIC cannot do it at all.
                    core.done(self.id, command, Err(IoError::Status(Status::DATA_TRANSFER_ERROR)));
                }
                Err((command, _)) => {
                    self.waiting.push_front(command);
                    break;
                }
            }
        }
        // The first look is early, to speak of what is slow.
        let look = deadline.min(core.now() + SLOW_IO);
        if look < self.timers.scan {
            self.watch(look);
            self.arm(core);
        }
    }

    /// The next queue in turn that can take a command: most often the one whose turn it is.
    fn queue_with_room(&self) -> Option<usize> {
        if self.queues.get(self.queue_next).is_some_and(Queue::has_room) {
            return Some(self.queue_next);
        }
        let next = self.queue_next.min(self.queues.len());
        let mut indices = (next..self.queues.len()).chain(0..next);
        indices.find(|index| self.queues[*index].has_room())
    }

    /// Sends an admin command, or lets it wait for room.
    pub(super) fn send_admin(&mut self, core: &mut Core, mut command: Box<Command>) {
        if command.owner != Owner::AsyncEvent {
            command.deadline = core.now() + self.admin_limit(command.owner);
            self.watch(command.deadline);
        }
        let Some(queue) = self.admin.as_mut() else { return self.admin_waiting.push_back(command) };
        if let Err((command, _)) = queue.send(&mut core.transports, command) {
            self.admin_waiting.push_back(command);
        }
    }

    /// Keeps one Asynchronous Event Request outstanding.
    pub(super) fn watch_events(&mut self, core: &mut Core) {
        self.send_admin(core, Command::new(wire::async_event_request(), Owner::AsyncEvent));
    }

    /// Takes a response capsule, or something in its place.
    pub(super) fn take_response(
        &mut self,
        core: &mut Core,
        qid: u16,
        entry: Option<&CompletionEntry>,
        invalidated: Option<u32>,
    ) {
        if matches!(self.phase, Phase::Closing | Phase::Delay | Phase::Gone) {
            return;
        }
        let (step, id) = (self.step(), self.id);
        let Some(entry) = entry else {
            return self.lose(core, step, Cause::Protocol("a response that is not 16 bytes long"));
        };
        let Some(queue) = self.queue_mut(qid) else { return };
        match queue.answer(&mut core.transports, entry, invalidated) {
            Ok(command) => {
                if !entry.status().is_success() {
                    self.tell_failed(qid, &command, entry);
                }
                self.answered(core, command, entry);
            }
            Err((command, violation)) => {
                tracing::warn!(peer = self.peer, %id.index, qid, cid = entry.cid.get(), violation, "protocol violation");
                self.keep(command);
                self.lose(core, step, Cause::Protocol(violation));
            }
        }
        if self.phase == Phase::Draining {
            self.check_drained(core);
        }
    }

    fn answered(&mut self, core: &mut Core, command: Box<Command>, entry: &CompletionEntry) {
        let status = entry.status();
        match command.owner {
            Owner::Io(_) => {
                self.io_answered(core, command, entry);
                self.dispatch(core);
            }
            Owner::Admin(_) => {
                self.admin_worked = true;
                match self.whole(core, command) {
                    Some(command) if status.is_success() => core.done(self.id, command, Ok(entry)),
                    Some(command) => self.failed(core, command, status),
                    None => {}
                }
                self.admin_room(core);
            }
            Owner::Sequence => {
                self.sequence_answered(core, *command, entry);
                self.admin_room(core);
            }
            Owner::KeepAlive => self.kept_alive(core, status),
            Owner::AsyncEvent => self.on_async_event(core, entry),
            Owner::Abort => self.admin_room(core),
        }
    }

    fn io_answered(&mut self, core: &mut Core, command: Box<Command>, entry: &CompletionEntry) {
        let Some(command) = self.whole(core, command) else { return };
        let status = entry.status();
        if status.is_success() {
            return core.done(self.id, command, Ok(entry));
        }
        if command.aborted && status.code() == Status::ABORT_REQUESTED {
            return core.done(self.id, command, Err(IoError::TimedOut));
        }
        self.failed(core, command, status);
    }

    /// The command, if its memory is whole again. A response that overtook its data would let the controller write into
    /// memory that is the caller's already.
    fn whole(&mut self, core: &mut Core, command: Box<Command>) -> Option<Box<Command>> {
        let arriving = command.direction == Direction::ToHost
            && command.memory.as_ref().is_some_and(|lease| !lease.is_unique());
        if !arriving {
            return Some(command);
        }
        self.keep(Some(command));
        self.lose(core, Step::Live, Cause::Protocol("a response before its data had arrived"));
        None
    }

    /// Keeps a command whose answer does not count: I/O for a replay, an admin command to be told of its end.
    pub(super) fn keep(&mut self, command: Option<Box<Command>>) {
        let Some(command) = command else { return };
        match command.owner {
            Owner::Io(_) => self.waiting.push_back(command),
            Owner::Admin(_) => self.admin_waiting.push_back(command),
            Owner::Sequence => self.scratch = command.memory,
            Owner::KeepAlive | Owner::AsyncEvent | Owner::Abort => {}
        }
    }

    /// Sends the admin commands that wait, as far as there is room.
    pub(super) fn admin_room(&mut self, core: &mut Core) {
        let deadline = core.now() + self.options.timeouts.admin;
        let Some(queue) = self.admin.as_mut() else { return };
        while queue.has_room() {
            let Some(mut command) = self.admin_waiting.pop_front() else { return };
            command.deadline = deadline;
            self.timers.scan = self.timers.scan.min(deadline);
            if let Err((command, _)) = queue.send(&mut core.transports, command) {
                return self.admin_waiting.push_front(command);
            }
        }
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
            self.unsettled = true;
            match self.task {
                None => self.run(core, Task::ChangedLog),
                Some(_) => self.refresh_again = true,
            }
        }
        self.watch_events(core);
    }
}

/// Whether a command is one of the caller's.
fn is_admin(command: &Command) -> bool {
    matches!(command.owner, Owner::Admin(_))
}
