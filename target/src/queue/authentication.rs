//! In-band authentication of a queue: DH-HMAC-CHAP (NVM Express Base 2.1, section 8.3.4).
//!
//! A host with a key proves on each of its queues that it has it. Until then a queue takes Authentication Send and
//! Receive, and no other command. The messages are those of `common/auth`. What takes long is computed by a worker,
//! and an Authentication Receive that comes before its end waits for it.

use std::sync::Arc;
use std::time::Duration;

use ringfab_auth::{
    Computation, Computed, Concatenation, ControllerTransaction, Message, Parties, Policy, Received,
    system_random,
};
use ringfab_reactor::Time;
use ringfab_spec::sqe::AuthenticationCommand;
use ringfab_spec::{FabricsType, Status, SubmissionEntry};

use super::admin::Executed;
use super::automaton::Event;
use super::commands::Commands;
use super::connection::{Connection, Phase};
use super::log;
use super::request::Request;
use crate::failure::Failure;
use crate::nvm::{Action, DataBytes, Transfer};
use crate::resources::messages::QueueMessage;
use crate::resources::states::State;
use crate::resources::{RequestId, Resources};
use crate::worker::{Interest, WorkError};

/// How long a host may take from its Connect until it is authenticated.
pub(super) const AUTHENTICATION_TIMEOUT: Duration = Duration::from_secs(30);

/// Bytes of a message that a host may announce: Linux always announces so many.
const MESSAGE_BYTES_MAX: u32 = 4096;

/// Offsets in the command, for failures.
const SECP: u16 = 43;
const LENGTH: u16 = 44;

/// The authentication of a queue.
#[derive(Debug)]
pub(super) struct Authentication {
    parties: Arc<Parties>,
    policy: Arc<Policy>,
    transaction: ControllerTransaction,
    /// An Authentication Receive that waits for a computation.
    waiting: Option<RequestId>,
    /// What a worker computes for it.
    computing: Option<Interest>,
    /// When the queue was connected.
    since: Time,
    /// Since when it is the host's turn.
    asked: Time,
    /// How much the host has proved. It may do so again.
    proof: Proof,
}

/// How much the host of a queue has proved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Proof {
    /// Nothing.
    None,
    /// It knows a controller whose host has proved who it is. The queue counts as one of that controller's.
    KnowsController,
    /// Who it is.
    Given,
}

impl Authentication {
    pub(super) fn new(parties: Arc<Parties>, policy: Arc<Policy>, since: Time) -> Self {
        let transaction = transaction(&parties, &policy);
        let (waiting, computing, proof) = (None, None, Proof::None);
        Self { parties, policy, transaction, waiting, computing, since, asked: since, proof }
    }

    /// Of an I/O queue: the controller's host has proved who it is, on the admin queue.
    pub(super) fn knows_controller(mut self) -> Self {
        self.proof = Proof::KnowsController;
        self
    }

    /// What a command asks for while the host has to authenticate, or if it is about that.
    pub(super) fn parse(&self, command: &SubmissionEntry) -> Option<Result<(Action, Transfer), Failure>> {
        if command.is_fabrics() {
            let transfer = match command.fabrics_type() {
                FabricsType::AUTHENTICATION_SEND => Transfer::ToController,
                FabricsType::AUTHENTICATION_RECEIVE => Transfer::ToHost,
                FabricsType::DISCONNECT => return None,
                _ => return self.other(),
            };
            let length = length_of(command);
            return Some(length.map(|length| (Action::Controller, transfer(DataBytes(length)))));
        }
        self.other()
    }

    fn other(&self) -> Option<Result<(Action, Transfer), Failure>> {
        (self.proof != Proof::Given).then(|| Err(Failure::new(Status::AUTHENTICATION_REQUIRED)))
    }
}

/// Nothing has been said yet. No queue makes a key for TLS.
fn transaction(parties: &Arc<Parties>, policy: &Arc<Policy>) -> ControllerTransaction {
    ControllerTransaction::new(Some(Arc::clone(parties)), Arc::clone(policy), Concatenation::Refused)
}

/// The length that a command announces.
fn length_of(command: &SubmissionEntry) -> Result<u32, Failure> {
    let command = AuthenticationCommand::of(command);
    if !command.is_nvme() {
        return Err(Failure::at(Status::INVALID_FIELD, SECP));
    }
    match command.length.get() {
        length @ 1..=MESSAGE_BYTES_MAX => Ok(length),
        _ => Err(Failure::at(Status::INVALID_FIELD, LENGTH)),
    }
}

impl Connection {
    /// Whether it counts among those without a Connect: it has none, or its host could be anybody.
    pub(super) fn is_opening(&self) -> bool {
        let anybody = |authentication: &Authentication| authentication.proof == Proof::None;
        self.attached.is_none() || self.authentication.as_deref().is_some_and(anybody)
    }

    /// Since when it is the host's turn, if that is later than its connection; none while we compute.
    pub(super) fn host_is_asked_since(&self, opened: Time) -> Option<Time> {
        match &self.authentication {
            Some(authentication) if authentication.computing.is_some() => None,
            Some(authentication) => Some(authentication.asked),
            None => Some(opened),
        }
    }

    /// Whether the host has taken too long.
    pub(super) fn authentication_is_overdue(&self, now: Time) -> bool {
        let late =
            |one: &Authentication| one.proof != Proof::Given && now >= one.since + AUTHENTICATION_TIMEOUT;
        self.authentication.as_deref().is_some_and(late)
    }

    /// A message of the host.
    pub(super) fn authentication_send(
        &mut self,
        resources: &mut Resources,
        request: &Request,
    ) -> Result<Executed, Failure> {
        let data = request.pieces.first().map_or(&[][..], |buffer| buffer);
        let authentication = self.authentication.as_mut().ok_or(NOT_ASKED)?;
        if authentication.waiting.is_some() {
            return Err(Failure::new(Status::COMMAND_SEQUENCE_ERROR));
        }
        authentication.asked = resources.reactor.now();
        if Message::is_negotiate(data) && authentication.transaction.outcome().is_some() {
            authentication.transaction = transaction(&authentication.parties, &authentication.policy);
        }
        let numbers = &resources.target.sequence_numbers;
        let computation = authentication.transaction.on_send(data, numbers, &mut system_random());
        if let Some(computation) = computation {
            self.compute(resources, request.id().queue, computation)?;
        }
        Ok(self.settle_authentication(resources))
    }

    /// The host asks for a message.
    pub(super) fn authentication_receive(
        &mut self,
        resources: &mut Resources,
        request: &mut Request,
    ) -> Result<Executed, Failure> {
        let length = request.length.0 as usize;
        let authentication = self.authentication.as_mut().ok_or(NOT_ASKED)?;
        if authentication.waiting.is_some() {
            return Err(Failure::new(Status::COMMAND_SEQUENCE_ERROR));
        }
        match authentication.transaction.on_receive(length) {
            Received::Pending => {
                authentication.waiting = Some(request.id());
                Ok(Executed::Waits(State::AtWorker))
            }
            Received::BufferTooSmall => Err(Failure::at(Status::INVALID_FIELD, LENGTH)),
            Received::Message(message) => {
                request.pieces.fill(&message);
                authentication.asked = resources.reactor.now();
                Ok(self.settle_authentication(resources))
            }
        }
    }

    /// Has a worker compute. The answer comes as [`QueueMessage::Computed`].
    fn compute(
        &mut self,
        resources: &Resources,
        queue: u16,
        computation: Computation,
    ) -> Result<(), Failure> {
        let controller = Arc::clone(self.own_controller()?);
        let core = resources.cores[resources.core].clone();
        let answer = move |outcome: Result<Computed, WorkError>| {
            core.send(QueueMessage::Computed { queue, controller, outcome });
        };
        let interest = Interest::default();
        let asker = (self.peer.ip(), computation.cost());
        let computed = move || computation.run();
        let asked = resources.workers.compute(asker, &interest, computed, answer);
        if let Some(authentication) = &mut self.authentication {
            authentication.computing = Some(interest);
        }
        asked.map_err(|error| {
            self.cannot_authenticate(&error);
            Failure::transient(Status::INTERNAL_ERROR)
        })
    }

    fn cannot_authenticate(&self, error: &WorkError) {
        tracing::warn!(%error, peer = %self.peer, queue = self.id, "a host cannot be authenticated");
    }

    /// Sees whether a transaction has come to its end. The first that succeeds lets the host in.
    fn settle_authentication(&mut self, resources: &mut Resources) -> Executed {
        let (Some(authentication), Some(attached)) = (&mut self.authentication, &self.attached) else {
            return Executed::Done(0);
        };
        match authentication.transaction.outcome() {
            None => {}
            Some(Ok(_)) if authentication.proof == Proof::Given => {
                log::authenticated_again(&attached.controller, self.id);
            }
            Some(Ok(authenticated)) => {
                log::authenticated(&attached.controller, (self.peer, self.id), authenticated);
                if self.id == 0 {
                    attached.controller.state().authenticated = Some(authenticated.clone());
                }
                let controller = Arc::clone(&attached.controller);
                self.become_named(resources, &controller.host().nqn);
                self.log_connected(&controller, u32::from(self.entries));
                if let Some(authentication) = &mut self.authentication {
                    authentication.proof = Proof::Given;
                }
                return Executed::LetIn(0);
            }
            Some(Err(refusal)) => {
                log::not_authenticated(&attached.controller, (self.peer, self.id), &refusal);
                // It ends once the host has been told.
                self.phase = Phase::Ending;
            }
        }
        Executed::Done(0)
    }
}

/// A host that has no key says something about one.
const NOT_ASKED: Failure = Failure::at(Status::INVALID_FIELD, 4);

/// A worker has computed for the authentication of a queue. An Authentication Receive that has waited for that gets its
/// message, if it is there still.
pub(super) fn computed(
    commands: &mut Commands,
    connection: &mut Connection,
    resources: &mut Resources,
    outcome: Result<Computed, WorkError>,
) {
    let Some(authentication) = &mut connection.authentication else { return };
    let waiting = authentication.waiting.take();
    (authentication.computing, authentication.asked) = (None, resources.reactor.now());
    match outcome {
        Ok(computed) => authentication.transaction.on_computed(computed),
        Err(error) => {
            connection.cannot_authenticate(&error);
            connection.phase = Phase::Ending;
        }
    }
    let slot = waiting.and_then(|id| commands.table.find(id.slot, id.generation));
    let Some(slot) = slot.filter(|slot| commands.table[*slot].state() == State::AtWorker) else { return };
    match connection.authentication_receive(resources, &mut commands.table[slot]) {
        Ok(Executed::Waits(_)) => return,
        Ok(Executed::LetIn(_)) => commands.grow(connection, resources),
        Ok(_) => {}
        Err(failure) => commands.table[slot].fail(failure),
    }
    commands.on_event(connection, resources, slot, Event::WorkerDone);
}
