//! What a step sends: its command, and which way its data go.

use std::time::Duration;

use ringfab_memory::Pool;
use ringfab_spec::{IntoBytes, SubmissionEntry};

use super::authentication::Stage;
use super::{Action, SCRATCH_BYTES, Scratch, Sequence, SequenceStep, queues_wanted};
use crate::command::{Command, Direction, Owner};
use crate::error::Cause;
use crate::path::queues::ADMIN_QUEUE_SIZE;
use crate::url::Transport;
use crate::wire;

/// The command of a step.
#[derive(Debug)]
pub(super) struct Outgoing {
    /// Number of the queue that it goes by.
    number: u16,
    entry: SubmissionEntry,
    data: Data,
}

#[derive(Debug)]
enum Data {
    None,
    /// The controller writes as much as fits.
    ToHost,
    ToController(Vec<u8>),
}

impl Outgoing {
    /// Sends the command of a step, if it has one.
    ///
    /// # Errors
    /// There is no memory, or no such command.
    pub(super) fn send(step: SequenceStep, sequence: &mut Sequence, pool: &Pool) -> Result<Action, Cause> {
        let Some(outgoing) = Self::of(step, sequence)? else { return Ok(Action::Nothing) };
        let number = outgoing.number;
        Ok(Action::Send { number, command: outgoing.command(&mut sequence.scratch, pool)? })
    }

    /// Of a step. `None`: it is no command.
    ///
    /// # Errors
    /// Why there is none though there should be.
    fn of(step: SequenceStep, sequence: &mut Sequence) -> Result<Option<Self>, Cause> {
        let (facts, namespaces) = (&sequence.facts, &sequence.namespaces);
        let (number, entry) = match step {
            SequenceStep::EstablishQueue(_) | SequenceStep::Followers => return Ok(None),
            SequenceStep::Connect => return Self::connect(sequence, 0).map(Some),
            SequenceStep::ConnectQueue(number) => return Self::connect(sequence, number).map(Some),
            SequenceStep::Authenticate(number, Stage::Receive) => {
                (number, wire::authentication_receive(SCRATCH_BYTES as u32))
            }
            SequenceStep::Authenticate(number, Stage::Send) => {
                return Self::message(sequence, number).map(Some);
            }
            SequenceStep::Authenticate(..) => return Ok(None),
            SequenceStep::HostBehavior => {
                let (entry, data) = wire::set_host_behavior();
                let data = Data::ToController(data.as_bytes().to_vec());
                return Ok(Some(Self { number: 0, entry, data }));
            }
            SequenceStep::Capabilities => (0, wire::get_capabilities()),
            SequenceStep::Version => (0, wire::get_version()),
            SequenceStep::Enable => (0, wire::set_enabled(&facts.capabilities)),
            SequenceStep::ReadyStatus | SequenceStep::ShutdownStatus => (0, wire::get_status()),
            SequenceStep::ShutdownSet => (0, wire::set_shutdown(&facts.capabilities)),
            SequenceStep::AccessLog(from) => (0, wire::access_log(from, SCRATCH_BYTES as u32)),
            SequenceStep::QueueCount => {
                (0, wire::set_queue_count(queues_wanted(&sequence.options, sequence.share)))
            }
            SequenceStep::EventConfig => (0, wire::set_event_config(&facts.controller)),
            SequenceStep::Identify => (0, wire::identify_controller()),
            SequenceStep::Limits => (0, wire::identify_nvm_limits()),
            SequenceStep::List(after) => (0, wire::identify_active(after)),
            SequenceStep::Listed(nsid) => (0, wire::identify_active(nsid - 1)),
            SequenceStep::Namespace(index) => (0, wire::identify_namespace(namespaces.nsid(index))),
            SequenceStep::Descriptors(index) => (0, wire::identify_descriptors(namespaces.nsid(index))),
            SequenceStep::ChangedLog => (0, wire::changed_namespaces(SCRATCH_BYTES as u32)),
            SequenceStep::Flush(nsid) => (1, wire::flush(nsid)),
            SequenceStep::Disconnect(number) => (number, wire::disconnect()),
        };
        let data = if step.reads_data() { Data::ToHost } else { Data::None };
        Ok(Some(Self { number, entry, data }))
    }

    /// Authentication Send of a queue.
    fn message(sequence: &mut Sequence, number: u16) -> Result<Self, Cause> {
        let message = sequence.authentication.message(sequence.share.qid(number))?.to_vec();
        let entry = wire::authentication_send(message.len() as u32);
        Ok(Self { number, entry, data: Data::ToController(message) })
    }

    /// Fabrics Connect of a queue.
    fn connect(sequence: &Sequence, number: u16) -> Result<Self, Cause> {
        let (options, facts, qid) = (&sequence.options, &sequence.facts, sequence.share.qid(number));
        let (size, cntlid, keep_alive) = match qid {
            0 => (ADMIN_QUEUE_SIZE, wire::CNTLID_DYNAMIC, options.keep_alive_wanted()),
            _ => (facts.queue_size, facts.cntlid, Duration::ZERO),
        };
        // Over TCP that spares the responses of reads: without flow control they say nothing that the data cannot.
        let flow_control = options.url.transport != Transport::Tcp;
        let data = wire::connect_data(&options.host, cntlid, options.url.subsystem_nqn());
        let data = data.map_err(|error| Cause::Unsupported(error.to_string()))?;
        let entry = wire::connect(qid, size, keep_alive, flow_control);
        Ok(Self { number, entry, data: Data::ToController(data.as_bytes().to_vec()) })
    }

    /// The command, with memory for its data.
    ///
    /// # Errors
    /// There is no memory.
    fn command(self, scratch: &mut Scratch, pool: &Pool) -> Result<Box<Command>, Cause> {
        let command = Command::new(self.entry, Owner::Sequence);
        Ok(match self.data {
            Data::None => command,
            Data::ToHost => {
                let buffer = scratch.take(pool)?;
                command.with_data(Direction::AllocatedToHost, buffer, 0, SCRATCH_BYTES as u32)
            }
            Data::ToController(data) => {
                let buffer = scratch.take(pool)?;
                buffer.write_at(0, &data);
                command.with_data(Direction::ToController, buffer, 0, data.len() as u32)
            }
        })
    }
}
