//! Fabrics and admin commands: what the controller answers.

use ringfab_spec::{AdminOpcode, FabricsType, Status, SubmissionEntry};

use super::request::Held;
use super::{Attachment, Phase, Queue, Slot, State, told};
use crate::admin::{AdminContext, AdminOutcome, Transfer as AdminTransfer};
use crate::controller::{Controller, ErrorRecord, PropertyEffect};
use crate::failure::{ErrorLocation, Failure};
use crate::limits::TRANSFER_BYTES_MAX;
use crate::nvm::{Action, Transfer};
use crate::resources::Resources;
use crate::resources::messages::QueueMessage;
use crate::target::{ConnectRequest, Refusal};

/// Bytes of the data of a Connect command.
const CONNECT_DATA_BYTES: u32 = 1024;

/// What a queue that is not connected may do: connect.
pub(super) fn before_connect(command: &SubmissionEntry) -> Result<(Action, Transfer), Failure> {
    if command.is_fabrics() && command.fabrics_type() == FabricsType::CONNECT {
        return Ok((Action::Controller, Transfer::ToController(CONNECT_DATA_BYTES)));
    }
    Err(Failure::new(Status::COMMAND_SEQUENCE_ERROR))
}

/// Direction and size of the data of a command for the controller.
pub(super) fn transfer_of(
    controller: &Controller,
    command: &SubmissionEntry,
    queue_id: u16,
) -> Result<(Action, Transfer), Failure> {
    if command.is_fabrics() {
        return fabrics_transfer(command, queue_id);
    }
    let transfer = match controller.admin_transfer(command)? {
        AdminTransfer::None => Transfer::None,
        AdminTransfer::ToController(bytes) => Transfer::ToController(bytes),
        AdminTransfer::ToHost(bytes) => Transfer::ToHost(bytes),
    };
    Ok((Action::Controller, transfer))
}

fn fabrics_transfer(command: &SubmissionEntry, queue_id: u16) -> Result<(Action, Transfer), Failure> {
    match command.fabrics_type() {
        // A second Connect on a queue.
        FabricsType::CONNECT => Err(Failure::new(Status::COMMAND_SEQUENCE_ERROR)),
        FabricsType::PROPERTY_GET | FabricsType::PROPERTY_SET if queue_id == 0 => {
            Ok((Action::Controller, Transfer::None))
        }
        FabricsType::DISCONNECT => {
            check_disconnect(command, queue_id).map(|()| (Action::Controller, Transfer::None))
        }
        _ => Err(Failure::at(Status::INVALID_FIELD, 4)),
    }
}

/// Disconnect (Base 2.0, section 6.4) is for I/O queues, and of record format 0.
fn check_disconnect(command: &SubmissionEntry, queue_id: u16) -> Result<(), Failure> {
    const RECFMT: u16 = 40;
    if queue_id == 0 {
        return Err(Failure::new(Status::INVALID_QUEUE_TYPE));
    }
    if command.cdw10.get() & 0xffff != 0 {
        return Err(Failure::at(Status::CONNECT_INCOMPATIBLE_FORMAT, RECFMT));
    }
    Ok(())
}

impl Queue {
    /// `Execute` of an admin or Fabrics command.
    pub(super) fn run_controller(&mut self, resources: &mut Resources, slot: Slot) {
        let command = self.requests[slot].command;
        let outcome = if command.is_fabrics() {
            self.run_fabrics(resources, slot, &command)
        } else {
            self.run_admin(resources, slot, &command)
        };
        match outcome {
            Ok(Some(result)) => self.requests[slot].result = result,
            Ok(None) => return,
            Err(failure) => self.requests[slot].fail(failure),
        }
        self.reply(resources, slot);
        if command.is_fabrics() && command.fabrics_type() == FabricsType::DISCONNECT {
            self.end(resources);
        }
    }

    fn run_fabrics(
        &mut self,
        resources: &mut Resources,
        slot: Slot,
        command: &SubmissionEntry,
    ) -> Result<Option<u64>, Failure> {
        match command.fabrics_type() {
            FabricsType::CONNECT => self.connect(resources, slot, command).map(Some),
            FabricsType::PROPERTY_GET => {
                let controller = self.own_controller()?;
                controller.refresh_ready(resources.reactor.now());
                controller.property_get(command.property_offset(), command.property_size()).map(Some)
            }
            FabricsType::PROPERTY_SET => self.property_set(resources, slot, command),
            _ => Ok(Some(0)),
        }
    }

    fn connect(
        &mut self,
        resources: &mut Resources,
        slot: Slot,
        command: &SubmissionEntry,
    ) -> Result<u64, Failure> {
        // Two that came one behind the other were both taken before either was executed.
        if self.attached.is_some() {
            return Err(Failure::new(Status::COMMAND_SEQUENCE_ERROR));
        }
        let Some(Held::Buffer(data)) = self.requests[slot].held.first() else {
            unreachable!("the data of a Connect is here when it is executed")
        };
        let request = ConnectRequest {
            command,
            data,
            queue_id: self.id,
            queue_entries: u32::from(self.entries),
            core: resources.core,
            listener: self.listener,
            peer: self.peer,
        };
        let attached = resources
            .target
            .connect(&request, resources.reactor.now())
            .inspect_err(|failure| self.tell_refused(&request, &Refusal::new(&request, *failure)))?;
        self.tell_connected(&attached.controller, attached.queue.entries());
        resources.hosts.connected(self.host);
        if let Some(evicted) = &attached.evicted {
            resources
                .evict(evicted, "its address has most controllers, and there is no room for another one");
        }
        let id = attached.controller.id();
        if self.id == 0 {
            let core = resources.cores[resources.core].clone();
            attached.controller.set_wake(Some(Box::new(move || core.send(QueueMessage::CheckControllers))));
        }
        self.requests.grow(self.entries);
        self.blocked.reserve(usize::from(self.entries));
        if self.id != 0 {
            self.requests.reserve_pieces(TRANSFER_BYTES_MAX.div_ceil(resources.chunk_bytes) as usize);
        }
        self.attached = Some(Attachment { controller: attached.controller, record: attached.queue });
        Ok(u64::from(id))
    }

    fn property_set(
        &mut self,
        resources: &mut Resources,
        slot: Slot,
        command: &SubmissionEntry,
    ) -> Result<Option<u64>, Failure> {
        let controller = self.own_controller()?.clone();
        let (offset, size) = (command.property_offset(), command.property_size());
        match controller.property_set(offset, size, command.property_value(), resources.reactor.now())? {
            PropertyEffect::None | PropertyEffect::Enabled => Ok(Some(0)),
            PropertyEffect::Disabled => {
                told::tell_controller(&controller, "reset: ending its I/O queues");
                self.drop_parked(resources);
                resources.end_queues(&controller, false);
                resources.resetting.push(controller);
                Ok(Some(0))
            }
            PropertyEffect::Shutdown => {
                told::tell_controller(&controller, "shutdown: flushing");
                self.requests[slot].action = Action::FlushAll { rounds: 0 };
                self.run_disk(resources, slot);
                Ok(None)
            }
        }
    }

    /// The flush that a shutdown asked for has ended. The host learns that from CSTS.SHST, and from CSTS.CFS if a disk failed.
    pub(super) fn shutdown_flushed(&mut self, slot: Slot) {
        let request = &mut self.requests[slot];
        if self.id != 0 || !request.command.is_fabrics() {
            return;
        }
        let flushed = request.status.is_success();
        (request.status, request.location) = (Status::SUCCESS, None);
        // A reset may have come between this shutdown and another one.
        let flushes = |other: Slot| matches!(self.requests[other].action, Action::FlushAll { .. });
        let last = !self.requests.outstanding().any(|other| other != slot && flushes(other));
        match self.controller().filter(|_| last) {
            Some(controller) if flushed => controller.shutdown_done(),
            Some(controller) => {
                tracing::error!(controller = controller.id(), "shutdown: a disk could not be flushed");
                controller.shutdown_failed();
            }
            None => {}
        }
    }

    fn run_admin(
        &mut self,
        resources: &mut Resources,
        slot: Slot,
        command: &SubmissionEntry,
    ) -> Result<Option<u64>, Failure> {
        let controller = self.own_controller()?.clone();
        let context = {
            let (now, wall) = (resources.reactor.now(), resources.reactor.wall_clock());
            AdminContext { target: &resources.target, now, wall }
        };
        let takes_data = self.takes_data(slot);
        let request = &mut self.requests[slot];
        let data_in: &[u8] = match request.held.first() {
            Some(Held::Buffer(buffer)) if takes_data => buffer,
            _ => &[],
        };
        match controller.admin(&context, command, data_in)? {
            AdminOutcome::Complete { dw0 } => {
                // Should a command that brings data to the host end without any, the host gets zeroes and not
                // what the buffers held before.
                if !takes_data {
                    self.fill(slot, &[]);
                }
                Ok(Some(u64::from(dw0)))
            }
            AdminOutcome::Data { bytes, dw0 } => {
                self.fill(slot, &bytes);
                Ok(Some(u64::from(dw0)))
            }
            AdminOutcome::Park => Ok(None),
            AdminOutcome::Abort { queue_id, command_id } => {
                resources.abort(&controller, (queue_id, command_id), self.request_id(slot));
                Ok(None)
            }
        }
    }

    /// Puts the controller's answer into the buffers that were taken for it; what it does not fill is zero.
    fn fill(&mut self, slot: Slot, bytes: &[u8]) {
        let mut rest = bytes;
        for held in &mut self.requests[slot].held {
            let Held::Buffer(buffer) = held else { continue };
            let (now, later) = rest.split_at(rest.len().min(buffer.len()));
            buffer[..now.len()].copy_from_slice(now);
            buffer[now.len()..].fill(0);
            rest = later;
        }
    }

    /// An Abort that ran elsewhere (or here) has an answer: whether the command was aborted.
    pub(crate) fn abort_answered(
        &mut self,
        resources: &mut Resources,
        number: u16,
        generation: u16,
        aborted: bool,
    ) {
        let Some(slot) = self.requests.find(number, generation) else { return };
        // The answer may come to another queue than asked: one that has the place of a queue that has ended.
        let asked = self.id == 0 && self.requests[slot].command.opcode == AdminOpcode::ABORT.0;
        if asked && self.requests[slot].state() == State::Execute {
            // Bit 0 of dword 0 is set when the command was not aborted (Base 2.0, section 5.1).
            self.requests[slot].result = u64::from(!aborted);
            self.reply(resources, slot);
        }
    }

    /// Aborts a command that still waits. One that a disk or the network works on is left to complete.
    pub(crate) fn abort(&mut self, resources: &mut Resources, command_id: u16) -> bool {
        let Some(slot) = self.requests.find_cid(command_id) else { return false };
        let waits = self.requests[slot].state() == State::NeedBuffer || self.is_parked(slot);
        if waits && self.phase != Phase::Gone {
            if self.is_parked(slot)
                && let Some(controller) = self.controller()
            {
                controller.forget_event_request(command_id);
            }
            self.requests[slot].fail(Failure::transient(Status::ABORT_REQUESTED));
            self.reply(resources, slot);
        }
        waits
    }

    /// A reset ends the Asynchronous Event Requests without completions. Their entries of the queue are free again, as
    /// a later SQHD says.
    fn drop_parked(&mut self, resources: &mut Resources) {
        let parked: Vec<Slot> = self.requests.outstanding().filter(|slot| self.is_parked(*slot)).collect();
        for slot in parked {
            self.release_parked(resources, slot);
        }
    }

    fn release_parked(&mut self, resources: &mut Resources, slot: Slot) {
        self.requests.release(slot);
        self.next_submission_head();
        self.link.replenish(&mut resources.transports);
    }

    /// A command has the identifier of an Asynchronous Event Request that waits: its host has forgotten the request, as some
    /// do before they shut down. The command takes its place. Returns whether there was such a request.
    #[cold]
    pub(super) fn drop_parked_request(&mut self, resources: &mut Resources, command_id: u16) -> bool {
        let parked = self.requests.find_cid(command_id).filter(|slot| self.is_parked(*slot));
        let (Some(slot), Some(controller)) = (parked, self.controller()) else { return false };
        controller.forget_event_request(command_id);
        self.release_parked(resources, slot);
        true
    }

    /// Completes parked event requests for which something has happened.
    pub(super) fn report_events(&mut self, resources: &mut Resources) {
        if self.id != 0 || self.phase != Phase::Open {
            return;
        }
        let Some(controller) = self.controller().cloned() else { return };
        while let Some((command_id, dw0)) = controller.next_event() {
            let Some(slot) = self.requests.find_cid(command_id) else { continue };
            self.requests[slot].result = u64::from(dw0);
            self.reply(resources, slot);
        }
    }

    /// Whether a request is an Asynchronous Event Request that waits for an event.
    pub(super) fn is_parked(&self, slot: Slot) -> bool {
        let request = &self.requests[slot];
        request.state() == State::Execute
            && request.action == Action::Controller
            && request.command.is_async_event_request()
    }

    /// Counts a command that is about to be answered, and logs its failure in the controller.
    pub(super) fn note_outcome(&self, slot: Slot) {
        let request = &self.requests[slot];
        if !request.status.is_success() {
            self.tell_failed(&request.command, request.status);
        }
        let Some(Attachment { controller, record }) = &self.attached else { return };
        match request.action {
            _ if self.id == 0 => {}
            Action::Read(extent) | Action::Compare(extent) | Action::Verify { extent, .. } => {
                record.note_read(extent.length);
            }
            Action::Write { extent, .. } => record.note_write(extent.length),
            _ => record.note_other(),
        }
        if !request.status.is_success() {
            self.record_error(controller, &request.command, (request.status, request.location));
        }
    }

    /// Puts a failed command into the controller's Error Information log.
    fn record_error(
        &self,
        controller: &Controller,
        command: &SubmissionEntry,
        (status, location): (Status, Option<ErrorLocation>),
    ) {
        controller.record_error(ErrorRecord {
            queue_id: self.id,
            command_id: command.cid.get(),
            status,
            location,
            lba: if self.id == 0 { 0 } else { command.slba() },
            nsid: command.nsid.get(),
        });
    }

    /// Logs a command that never had a slot.
    pub(super) fn note_refused(&self, command: &SubmissionEntry, status: Status) {
        self.tell_failed(command, status);
        if let Some(controller) = self.controller() {
            self.record_error(controller, command, (status, None));
        }
    }

    fn own_controller(&self) -> Result<&std::sync::Arc<Controller>, Failure> {
        self.controller().ok_or(Failure::new(Status::COMMAND_SEQUENCE_ERROR))
    }
}
