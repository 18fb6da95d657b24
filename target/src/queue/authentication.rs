//! In-band authentication of a queue: DH-HMAC-CHAP (NVM Express Base 2.1, section 8.3.4).
//!
//! A host with a key proves on each of its queues that it has it. Until then a queue takes Authentication Send and
//! Receive, and no other command. The messages are those of `common/auth`. What takes long is computed by a worker,
//! and an Authentication Receive that comes before its end waits for it.

use std::mem;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ringfab_auth::{
    Authenticated, Computation, Computed, ControllerTransaction, Message, Received, system_random,
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
use crate::model::AuthenticationTerms;
use crate::nvm::{Action, DataBytes, Transfer};
use crate::resources::messages::QueueMessage;
use crate::resources::states::State;
use crate::resources::{RequestId, Resources};
use crate::worker::{Task, WorkError};

/// How long a host may take from its Connect until it is authenticated.
pub(super) const AUTHENTICATION_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a worker may take for a computation of 25 milliseconds, with all others that wait.
const COMPUTATION_LIMIT: Duration = Duration::from_secs(30);

/// Bytes of a message that a host may announce: Linux always announces so many.
const MESSAGE_BYTES_MAX: u32 = 4096;

/// Offsets in the command, for failures.
const SECP: u16 = 43;
const LENGTH: u16 = 44;

/// The authentication of a queue.
#[derive(Debug)]
pub(super) struct Authentication {
    terms: AuthenticationTerms,
    transaction: ControllerTransaction,
    /// An Authentication Receive that waits for a computation.
    waiting: Option<RequestId>,
    /// When the queue was connected.
    since: Time,
    /// Whether the host has proved who it is. It may do so again.
    is_done: bool,
}

impl Authentication {
    /// `is_done`: the host has proved who it is before.
    pub(super) fn new(terms: AuthenticationTerms, since: Time, is_done: bool) -> Self {
        let transaction = transaction(&terms);
        Self { terms, transaction, waiting: None, since, is_done }
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
        (!self.is_over()).then(|| Err(Failure::new(Status::AUTHENTICATION_REQUIRED)))
    }

    /// Whether the host may use the queue. One that is only there to make a key for TLS, it leaves.
    fn is_over(&self) -> bool {
        self.is_done && !self.terms.only_makes_key()
    }
}

/// Nothing has been said yet.
fn transaction(terms: &AuthenticationTerms) -> ControllerTransaction {
    ControllerTransaction::new(
        Some(Arc::clone(&terms.parties)),
        Arc::clone(&terms.policy),
        terms.concatenation,
    )
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
    /// The host authenticates, or may do so again when it is done.
    pub(super) fn authenticate(&mut self, resources: &Resources, terms: AuthenticationTerms, is_done: bool) {
        let since = resources.reactor.now();
        self.authentication = Some(Box::new(Authentication::new(terms, since, is_done)));
    }

    /// Whether the host has nothing to prove any more.
    #[inline]
    pub(super) fn is_authenticated(&self) -> bool {
        self.authentication.as_ref().is_none_or(|authentication| authentication.is_over())
    }

    /// Whether the host has taken too long.
    pub(super) fn authentication_is_overdue(&self, now: Time) -> bool {
        let late = |one: &Authentication| !one.is_over() && now >= one.since + AUTHENTICATION_TIMEOUT;
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
        if Message::is_negotiate(data) && authentication.transaction.outcome().is_some() {
            authentication.transaction = transaction(&authentication.terms);
        }
        let numbers = &resources.target.sequence_numbers;
        let computation = authentication.transaction.on_send(data, numbers, &mut system_random());
        if let Some(computation) = computation {
            self.compute(resources, request.id().queue, computation)?;
        }
        self.settle_authentication(resources);
        Ok(Executed::Done(0))
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
                self.settle_authentication(resources);
                Ok(Executed::Done(0))
            }
        }
    }

    /// Has a worker compute. The answer comes as [`QueueMessage::Computed`].
    fn compute(&self, resources: &Resources, queue: u16, computation: Computation) -> Result<(), Failure> {
        let controller = Arc::clone(self.own_controller()?);
        let core = resources.cores[resources.core].clone();
        let answer = move |outcome: Result<Computed, WorkError>| {
            core.send(QueueMessage::Computed { queue, controller, outcome });
        };
        // One host's computations are no other's.
        let on = PathBuf::from(format!("{} queue {}", self.peer, self.id));
        let task = Task::new("authenticating", on, COMPUTATION_LIMIT);
        resources.workers.submit(task, move || computation.run(), answer).map_err(|error| {
            tracing::warn!(%error, peer = %self.peer, "a host cannot be authenticated");
            Failure::transient(Status::INTERNAL_ERROR)
        })
    }

    /// Sees whether a transaction has come to its end.
    fn settle_authentication(&mut self, resources: &mut Resources) {
        let Some(authentication) = &mut self.authentication else { return };
        let Some(attached) = &self.attached else { return };
        match authentication.transaction.outcome() {
            None => {}
            Some(Ok(authenticated)) => {
                let names = authentication.terms.parties.names();
                let now = resources.reactor.now();
                let psk = resources.target.keep_psk(names, authenticated, now);
                let again = mem::replace(&mut authentication.is_done, true);
                if again {
                    log::authenticated_again(&attached.controller, self.id);
                } else {
                    log::authenticated(
                        &attached.controller,
                        (self.peer, self.id),
                        authenticated,
                        psk.as_ref(),
                    );
                }
                if self.id == 0 {
                    let shown = Authenticated { generated_psk: None, ..authenticated.clone() };
                    attached.controller.state().authenticated = Some(shown);
                }
                if !again && authentication.is_over() {
                    let controller = Arc::clone(&attached.controller);
                    self.become_named(resources, &controller.host().nqn);
                    self.log_connected(&controller, u32::from(self.entries));
                }
            }
            Some(Err(refusal)) => {
                log::not_authenticated(&attached.controller, (self.peer, self.id), &refusal);
                // It ends once the host has been told.
                self.phase = Phase::Ending;
            }
        }
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
    match outcome {
        Ok(computed) => authentication.transaction.on_computed(computed),
        Err(error) => {
            tracing::warn!(%error, peer = %connection.peer, "a host cannot be authenticated");
            connection.phase = Phase::Ending;
        }
    }
    let slot = waiting.and_then(|id| commands.table.find(id.slot, id.generation));
    let Some(slot) = slot.filter(|slot| commands.table[*slot].state() == State::AtWorker) else { return };
    match connection.authentication_receive(resources, &mut commands.table[slot]) {
        Ok(Executed::Waits(_)) => return,
        Ok(_) => {}
        Err(failure) => commands.table[slot].fail(failure),
    }
    commands.on_event(connection, resources, slot, Event::WorkerDone);
}
