//! In-band authentication of a queue: DH-HMAC-CHAP (NVM Express Base 2.1, section 8.3.4).
//!
//! A host with a key proves on each of its queues that it has it. Until then a queue takes Authentication Send and
//! Receive, and no other command. The messages are those of `common/auth`. What takes long is computed by a worker,
//! and an Authentication Receive that comes before its end waits for it.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

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
use crate::controller::{Candidate, Controller, proved};
use crate::failure::Failure;
use crate::model::AuthenticationTerms;
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
    terms: AuthenticationTerms,
    transaction: ControllerTransaction,
    /// An Authentication Receive that waits for a computation.
    waiting: Option<RequestId>,
    /// What a worker computes for it.
    computing: Option<Interest>,
    /// What is computed once the host asks for the challenge: one that never does costs nothing.
    deferred: Option<Computation>,
    /// When the queue was connected.
    since: Time,
    /// Since when it is the host's turn.
    asked: Time,
    /// How much the host has proved. It may do so again.
    proof: Proof,
}

/// How much the host of a queue has proved.
#[derive(Debug)]
pub(super) enum Proof {
    /// Nothing.
    None,
    /// It is where the host of its controller is, which has proved who it is. The queue counts as one of that host's.
    KnowsController {
        /// Its place among them.
        _place: Candidate,
    },
    /// Who it is.
    Given,
}

impl Authentication {
    /// `proof`: what the host has proved before.
    pub(super) fn new(terms: AuthenticationTerms, since: Time, proof: Proof) -> Self {
        let transaction = transaction(&terms);
        Self {
            terms,
            transaction,
            waiting: None,
            computing: None,
            deferred: None,
            since,
            asked: since,
            proof,
        }
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
    pub(super) fn is_over(&self) -> bool {
        self.is_proved() && !self.terms.only_makes_key()
    }

    /// Whether the connection is only there to make a key for TLS.
    pub(super) fn only_makes_key(&self) -> bool {
        self.terms.only_makes_key()
    }

    /// Whether the host has proved who it is.
    pub(super) fn is_proved(&self) -> bool {
        matches!(self.proof, Proof::Given)
    }
}

/// Nothing has been said yet.
fn transaction(terms: &AuthenticationTerms) -> ControllerTransaction {
    let candidates = terms.candidates(SystemTime::now());
    ControllerTransaction::new(candidates, Arc::clone(&terms.policy), terms.concatenation)
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
    /// The host authenticates, or may do so again.
    pub(super) fn authenticate(&mut self, resources: &Resources, terms: AuthenticationTerms, proof: Proof) {
        let since = resources.reactor.now();
        self.authentication = Some(Box::new(Authentication::new(terms, since, proof)));
    }

    /// The host has to authenticate. An I/O queue of a controller whose host has done so may count as one of that host.
    pub(super) fn ask_to_authenticate(
        &mut self,
        resources: &mut Resources,
        terms: AuthenticationTerms,
        controller: &Arc<Controller>,
    ) {
        let is_io = self.id != 0 && !terms.only_makes_key();
        let candidate = is_io.then(|| Candidate::new(controller, self.id, self.peer.ip())).flatten();
        if candidate.is_some() {
            resources.hosts.opened(self.address);
        }
        let proof = candidate.map_or(Proof::None, |_place| Proof::KnowsController { _place });
        self.authenticate(resources, terms, proof);
    }

    /// Whether it counts among those without a Connect: it has none, or its host could be anybody, or is only here to
    /// make a key for TLS.
    pub(super) fn is_opening(&self) -> bool {
        let opening = |one: &Authentication| match &one.proof {
            Proof::None => true,
            Proof::KnowsController { .. } => false,
            Proof::Given => one.terms.only_makes_key(),
        };
        self.attached.is_none() || self.authentication.as_deref().is_some_and(opening)
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
        authentication.asked = resources.reactor.now();
        let negotiates = Message::is_negotiate(data);
        if negotiates && authentication.transaction.outcome().is_some() {
            // The keys of the time before may count no more.
            authentication.terms = authentication.terms.renewed(&resources.served).ok_or(NOT_ASKED)?;
            authentication.transaction = transaction(&authentication.terms);
        }
        let numbers = &resources.target.sequence_numbers;
        authentication.deferred = authentication.transaction.on_send(data, numbers, &mut system_random());
        if !negotiates {
            self.compute_deferred(resources, request.id().queue)?;
        }
        self.settle_authentication(resources)
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
                self.compute_deferred(resources, request.id().queue)
                    .inspect_err(|_| self.forget_waiting())?;
                request.pieces.truncate(0);
                Ok(Executed::Waits(State::Computing))
            }
            Received::BufferTooSmall => Err(Failure::at(Status::INVALID_FIELD, LENGTH)),
            Received::Message(message) => {
                request.pieces.fill(&message);
                authentication.asked = resources.reactor.now();
                self.settle_authentication(resources)
            }
        }
    }

    fn forget_waiting(&mut self) {
        if let Some(authentication) = &mut self.authentication {
            authentication.waiting = None;
        }
    }

    /// Has a worker compute what is to be computed, if anything is. The answer comes as [`QueueMessage::Computed`].
    fn compute_deferred(&mut self, resources: &Resources, queue: u16) -> Result<(), Failure> {
        let deferred = self.authentication.as_mut().and_then(|one| one.deferred.take());
        let Some(computation) = deferred else { return Ok(()) };
        let controller = Arc::clone(self.own_controller()?);
        let core = resources.cores[resources.core].clone();
        let answer = move |outcome: Result<Computed, WorkError>| {
            core.send(QueueMessage::Computed { queue, controller, outcome });
        };
        let interest = Interest::default();
        let (from, cost) = (self.peer.ip(), computation.cost());
        let computed = move || computation.clone().run();
        let asked = resources.workers.compute(from, cost, &interest, computed, answer);
        if let Some(authentication) = &mut self.authentication {
            authentication.computing = Some(interest);
        }
        asked.map_err(|error| {
            self.cannot_authenticate(&error);
            Failure::transient(Status::INTERNAL_ERROR)
        })
    }

    fn cannot_authenticate(&self, error: &WorkError) {
        if let Some(controller) = self.controller() {
            log::cannot_authenticate(controller, self.peer, self.id, error);
        }
    }

    /// Sees whether a transaction has come to its end. The first that succeeds lets the host in.
    fn settle_authentication(&mut self, resources: &mut Resources) -> Result<Executed, Failure> {
        join_once_proved(self)?;
        let (Some(authentication), Some(attached)) = (&mut self.authentication, &self.attached) else {
            return Ok(Executed::Done(0));
        };
        match authentication.transaction.outcome() {
            None => {}
            Some(Ok(authenticated)) => {
                let names = authentication.terms.parties.names();
                let now = resources.reactor.now();
                let channel = attached.controller.host().tls.as_deref();
                let psk = resources.target.keep_psk(names, authenticated, channel, now);
                let again = authentication.is_proved();
                let lets_in = !again && !authentication.terms.only_makes_key();
                if again {
                    log::authenticated_again(&attached.controller, self.id);
                } else {
                    log::authenticated(&attached.controller, self.peer, self.id, authenticated, psk.as_ref());
                }
                if let Some(until) = authentication.terms.is_old(authenticated.key)
                    && self.id == 0
                {
                    log::old_key(&attached.controller, authenticated.key, until);
                }
                if self.id == 0 {
                    let shown = Authenticated { generated_psk: None, ..authenticated.clone() };
                    proved(&attached.controller, shown);
                }
                let controller = Arc::clone(&attached.controller);
                if lets_in {
                    self.become_named(resources, &controller.host().nqn);
                    self.log_connected(&controller, u32::from(self.entries));
                }
                if let Some(authentication) = &mut self.authentication {
                    authentication.proof = Proof::Given;
                }
                return Ok(if lets_in { Executed::LetIn(0) } else { Executed::Done(0) });
            }
            Some(Err(refusal)) => {
                log::not_authenticated(&attached.controller, self.peer, self.id, &refusal);
                // It ends once the host has been told.
                self.phase = Phase::Ending;
            }
        }
        Ok(Executed::Done(0))
    }
}

/// An I/O queue has its identifier from when its host has proved who it is, unless another one has it by then.
fn join_once_proved(connection: &mut Connection) -> Result<(), Failure> {
    let (Some(authentication), Some(attached)) = (&connection.authentication, &connection.attached) else {
        return Ok(());
    };
    let proves = matches!(authentication.transaction.outcome(), Some(Ok(_)));
    if connection.id == 0 || authentication.is_proved() || !proves {
        return Ok(());
    }
    // One that is about to end takes no identifier: who comes next would find it in use.
    if !connection.is_open() {
        return Err(Failure::new(Status::COMMAND_SEQUENCE_ERROR));
    }
    attached.controller.attach(&attached.record).inspect_err(|_| {
        log::is_too_late(&attached.controller, connection.peer, connection.id);
        // It ends once the host has been told.
        connection.phase = Phase::Ending;
    })
}

/// A host that has no key says something about one.
const NOT_ASKED: Failure = Failure::at(Status::INVALID_FIELD, 4);

/// A worker has computed for the authentication of a queue. An Authentication Receive that has waited for that goes on,
/// if it is there still: it takes a buffer again, and gets its message, or the failure.
pub(super) fn computed(
    commands: &mut Commands,
    connection: &mut Connection,
    resources: &mut Resources,
    outcome: Result<Computed, WorkError>,
) {
    let Some(authentication) = &mut connection.authentication else { return };
    let waiting = authentication.waiting.take();
    (authentication.computing, authentication.asked) = (None, resources.reactor.now());
    let has_failed = outcome.is_err();
    match outcome {
        Ok(computed) => authentication.transaction.on_computed(computed),
        Err(error) => {
            connection.cannot_authenticate(&error);
            connection.phase = Phase::Ending;
        }
    }
    let slot = waiting.and_then(|id| commands.table.find(id.slot, id.generation));
    if let Some(slot) = slot {
        // Nothing comes of it any more: the host is told so, and does not wait until its time is over.
        if has_failed {
            commands.table[slot].fail(Failure::transient(Status::INTERNAL_ERROR));
        }
        commands.on_event(connection, resources, slot, Event::WorkerDone);
    }
}
