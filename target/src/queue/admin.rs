//! Fabrics and admin commands: what the controller answers.

use std::sync::Arc;

use ringfab_spec::{FabricsType, Status, SubmissionEntry};

use super::attachment::Attachment;
use super::authentication::Proof;
use super::connection::{Connection, Phase};
use super::request::Request;
use super::{log, resets};
use crate::admin::{AdminContext, AdminOutcome, AdminWork, Transfer as AdminTransfer};
use crate::controller::{Controller, PropertyEffect};
use crate::failure::Failure;
use crate::model::Authentication;
use crate::nvm::{Action, DataBytes, Transfer};
use crate::resources::Resources;
use crate::resources::hosts::PoolKind;
use crate::resources::messages::QueueMessage;
use crate::resources::states::State;
use crate::target::{ConnectRequest, Refusal};
use crate::worker::WorkError;

/// Bytes of the data of a Connect command.
const CONNECT_DATA_BYTES: u32 = 1024;

/// AUTHREQ.ATR in dword 0 of a Connect's completion: the host has to authenticate (Base 2.1, section 6.3).
const AUTHREQ_ATR: u64 = 1 << 17;

/// AUTHREQ.ASCR: that has to make a key for TLS, over which the host comes back.
const AUTHREQ_ASCR: u64 = 1 << 18;

/// What a queue that is not connected may do: connect.
pub(super) fn before_connect(command: &SubmissionEntry) -> Result<(Action, Transfer), Failure> {
    if command.is_fabrics() && command.fabrics_type() == FabricsType::CONNECT {
        return Ok((Action::Controller, Transfer::ToController(DataBytes(CONNECT_DATA_BYTES))));
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
        AdminTransfer::ToController(bytes) => Transfer::ToController(DataBytes(bytes)),
        AdminTransfer::ToHost(bytes) => Transfer::ToHost(DataBytes(bytes)),
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

/// What an admin or Fabrics command comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Executed {
    /// It is done; these are dwords 0 and 1 of its completion.
    Done(u64),
    /// The same of what lets the host in: the queue may have as many commands as it has entries. That is a Connect, or
    /// the proof who the host is.
    LetIn(u64),
    /// The same of a reset: Asynchronous Event Requests end without completions.
    Reset,
    /// It waits.
    Waits(State),
    /// The disks are to be flushed first.
    Flush,
    /// Other commands of the queue are to be ended.
    Cancel,
}

/// A Fabrics or admin command that is executed, or a Cancel.
pub(super) struct Execution<'a> {
    pub(super) connection: &'a mut Connection,
    pub(super) resources: &'a mut Resources,
    pub(super) request: &'a mut Request,
}

impl Execution<'_> {
    /// Executes it.
    pub(super) fn run(self) -> Result<Executed, Failure> {
        match self.request.command {
            command if command.is_fabrics() => self.fabrics(),
            // What an I/O queue does for the queue itself.
            _ if self.connection.id != 0 => Ok(Executed::Cancel),
            _ => self.admin(),
        }
    }

    fn fabrics(self) -> Result<Executed, Failure> {
        let Self { connection, resources, request } = self;
        match request.command.fabrics_type() {
            FabricsType::AUTHENTICATION_SEND => connection.authentication_send(resources, request),
            FabricsType::AUTHENTICATION_RECEIVE => connection.authentication_receive(resources, request),
            _ => Self { connection, resources, request }.other_fabrics(),
        }
    }

    fn other_fabrics(self) -> Result<Executed, Failure> {
        let command = &self.request.command;
        match command.fabrics_type() {
            FabricsType::CONNECT => self.connect(),
            FabricsType::PROPERTY_GET => {
                let controller = self.connection.own_controller()?;
                controller.refresh_ready(&self.resources.served, self.resources.reactor.now());
                let value = controller.property_get(command.property_offset(), command.property_size())?;
                Ok(Executed::Done(value))
            }
            FabricsType::PROPERTY_SET => self.property_set(),
            FabricsType::DISCONNECT => {
                // It ends once this command is answered, and those that are outstanding.
                self.connection.phase = Phase::Ending;
                Ok(Executed::Done(0))
            }
            _ => Ok(Executed::Done(0)),
        }
    }

    fn connect(self) -> Result<Executed, Failure> {
        let Self { connection, resources, request } = self;
        // Two that came one behind the other were both taken before either was executed.
        if connection.attached.is_some() {
            return Err(Failure::new(Status::COMMAND_SEQUENCE_ERROR));
        }
        let data = request.pieces.first().expect("the data of a Connect is here when it is executed");
        let request = ConnectRequest {
            served: &resources.served,
            command: &request.command,
            data,
            queue_id: connection.id,
            queue_entries: u32::from(connection.entries),
            core: resources.core,
            way: &connection.way,
            peer: connection.peer,
            tls: connection.tls.as_ref(),
        };
        let attached =
            resources.target.connect(&request, resources.reactor.now()).inspect_err(|failure| {
                log::refused(&request, &Refusal::new(&resources.target, &request, *failure));
            })?;
        let asks = match attached.authentication {
            Authentication::Needed(terms) => {
                let asks = if terms.only_makes_key() { AUTHREQ_ATR | AUTHREQ_ASCR } else { AUTHREQ_ATR };
                connection.ask_to_authenticate(resources, terms, &attached.controller);
                asks
            }
            Authentication::Possible(terms) => {
                connection.authenticate(resources, terms, Proof::Given);
                0
            }
            Authentication::NotNeeded | Authentication::Impossible => 0,
        };
        if asks == 0 {
            connection.log_connected(&attached.controller, attached.queue.entries());
            connection.become_named(resources, &attached.controller.host().nqn);
        }
        if let Some(evicted) = &attached.evicted {
            resources
                .evict(evicted, "its address has most controllers, and there is no room for another one");
        }
        let id = attached.controller.id();
        if connection.id == 0 {
            let core = resources.cores[resources.core].clone();
            let wake = move || core.send(QueueMessage::CheckControllers);
            attached.controller.events().set_wake(Some(Box::new(wake)));
        }
        connection.attached = Some(Attachment::new(attached.controller, attached.queue, resources));
        let result = u64::from(id) | asks;
        Ok(if asks == 0 { Executed::LetIn(result) } else { Executed::Done(result) })
    }

    fn property_set(self) -> Result<Executed, Failure> {
        let Self { connection, resources, request } = self;
        let controller = connection.own_controller()?;
        let command = &request.command;
        let (offset, size) = (command.property_offset(), command.property_size());
        match controller.property_set(offset, size, command.property_value(), resources.reactor.now())? {
            PropertyEffect::None | PropertyEffect::Enabled => Ok(Executed::Done(0)),
            PropertyEffect::Disabled => {
                log::controller(controller, "reset: ending its I/O queues");
                resources.begin_reset(controller);
                Ok(Executed::Reset)
            }
            PropertyEffect::Shutdown => {
                log::controller(controller, "shutdown: flushing");
                Ok(Executed::Flush)
            }
        }
    }

    fn admin(self) -> Result<Executed, Failure> {
        let Self { connection, resources, request } = self;
        let controller = connection.own_controller()?;
        let context = AdminContext {
            served: &resources.served,
            target: &resources.target,
            now: resources.reactor.now(),
            wall: resources.reactor.wall_clock(),
        };
        let takes_data = request.takes_data();
        let data_in: &[u8] = request.pieces.first().filter(|_| takes_data).map_or(&[], |buffer| buffer);
        match controller.admin(&context, &request.command, data_in)? {
            AdminOutcome::Complete { dw0 } => {
                // Should a command that brings data to the host end without any, the host gets zeroes and not
                // what the buffers held before.
                if !takes_data {
                    request.pieces.fill(&[]);
                }
                Ok(Executed::Done(u64::from(dw0)))
            }
            AdminOutcome::Data { bytes, dw0 } => {
                request.pieces.fill(&bytes);
                Ok(Executed::Done(u64::from(dw0)))
            }
            AdminOutcome::Slow(work) => {
                ask_worker(resources, Arc::clone(controller), request, work)?;
                Ok(Executed::Waits(State::AtWorker))
            }
            AdminOutcome::Park => Ok(Executed::Waits(State::Parked)),
            AdminOutcome::Reset(impacted) => {
                resets::begin(resources, controller, impacted);
                Ok(Executed::Waits(State::Resetting))
            }
            AdminOutcome::Abort { queue_id, command_id } => {
                resources.abort(controller, queue_id, command_id, request.id());
                Ok(Executed::Waits(State::Aborting))
            }
        }
    }
}

impl Connection {
    /// It is a host's now, and no longer an address's.
    pub(super) fn become_named(&mut self, resources: &mut Resources, host_nqn: &str) {
        if self.is_opening() {
            resources.hosts.opened(self.address);
        }
        self.host = resources.hosts.named_host(host_nqn);
        resources.turns.set_shares(self.host, resources.served.shares(host_nqn));
        let kind = if self.id == 0 { PoolKind::Admin } else { PoolKind::Io };
        let pool = resources.hosts.pool(self.host, kind);
        resources.transports.set_receive_pool(self.link.endpoint(), pool);
    }
}

/// Has a worker do what takes too long for a core. The answer comes as [`QueueMessage::WorkerDone`].
fn ask_worker(
    resources: &Resources,
    controller: Arc<Controller>,
    request: &Request,
    work: AdminWork,
) -> Result<(), Failure> {
    let asker = Arc::clone(&controller);
    let failed = move |error: WorkError| {
        log::admin_failed(&asker, &error);
        Failure::transient(Status::INTERNAL_ERROR)
    };
    let (core, request, failed_later) =
        (resources.cores[resources.core].clone(), request.id(), failed.clone());
    let answer = move |done: Result<Result<Vec<u8>, Failure>, WorkError>| {
        let outcome = done.map_err(failed_later).flatten();
        core.send(QueueMessage::WorkerDone { request, controller, outcome });
    };
    resources.workers.submit(work.task(), move || work.run(), answer).map_err(failed)
}
