//! The authentication of queues, one after the other (DH-HMAC-CHAP, Base 2.1, section 8.3.4).
//!
//! A queue authenticates if the controller has asked for that when the queue connected (AUTHREQ), before any other
//! command goes out on it. The messages are those of `common/auth`. Here are the stages in which they are exchanged,
//! and what a host insists on: with a key for the controller, the controller proves who it is, or is not used.

use std::mem;
use std::sync::Arc;

use ringfab_auth::{Authenticated, Computation, HostStep, HostTransaction, Parties, system_random};
use ringfab_spec::auth::SecureChannel;

use super::{Action, SequenceStep, WORK_LIMIT};
use crate::authentication::{AuthenticationFailure, Keys};
use crate::error::{Cause, Step};
use crate::messages::Done;
use crate::options::ConnectOptions;
use crate::work::Task;

/// AUTHREQ of a Connect's answer: authentication is required (ATR).
const ATR: u16 = 1 << 1;
/// The same: and a secure channel that it makes the key for (ASCR).
const ASCR: u16 = 1 << 2;

/// Where the authentication of a queue is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::path) enum Stage {
    /// A worker reads the keys.
    Keys,
    /// Authentication Send.
    Send,
    /// Authentication Receive.
    Receive,
    /// A worker computes.
    Compute,
}

/// What the transaction wants next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Want {
    /// A computation.
    Computation,
    /// To send its message, and to receive the next one.
    Exchange,
    /// To send its last message.
    Last,
    /// Nothing: it is over.
    Nothing,
}

/// The stage after one that has ended; `None` at the end.
const fn next(ended: Stage, want: Want) -> Option<Stage> {
    match (ended, want) {
        (Stage::Send, Want::Exchange) => Some(Stage::Receive),
        (Stage::Send, Want::Last) | (_, Want::Nothing) => None,
        (_, Want::Computation) => Some(Stage::Compute),
        (_, Want::Exchange | Want::Last) => Some(Stage::Send),
    }
}

impl Stage {
    /// What runs, for an error.
    pub(in crate::path) fn name(self) -> &'static str {
        match self {
            Self::Keys => "the file of a key",
            Self::Send => "Authentication Send",
            Self::Receive => "Authentication Receive",
            Self::Compute => "the computation for an authentication",
        }
    }

    /// Whether a worker is waited for.
    pub(super) fn is_work(self) -> bool {
        matches!(self, Self::Keys | Self::Compute)
    }
}

/// The authentication of the queues of one engine.
#[derive(Debug)]
pub(super) struct Authentication {
    options: Arc<ConnectOptions>,
    /// Other keys than those of the options.
    newer: Option<Arc<Keys>>,
    /// Keys that are to be tried next.
    next: Option<Arc<Keys>>,
    /// Keys that are tried: they are those of reconnects once no end refuses the other with them.
    tried: Option<Arc<Keys>>,
    /// Both ends, with the keys as they were read last for this connection.
    parties: Option<Arc<Parties>>,
    /// Of the queue that authenticates.
    transaction: Option<HostTransaction>,
    want: Want,
    /// Message to be sent next.
    message: Vec<u8>,
    computation: Option<Computation>,
    /// Counts the tasks of workers, so that a late result is recognised.
    task: u32,
    /// Counts transactions.
    transactions: u8,
    /// Numbers of the queues that have authenticated, in order.
    queues: Vec<u16>,
}

impl Authentication {
    pub(super) fn new(options: Arc<ConnectOptions>) -> Self {
        Self {
            options,
            newer: None,
            next: None,
            tried: None,
            parties: None,
            transaction: None,
            want: Want::Nothing,
            message: Vec::new(),
            computation: None,
            task: 0,
            transactions: 0,
            queues: Vec::new(),
        }
    }

    /// Tries these keys next; or uses them from now on, where another engine has.
    pub(super) fn set_keys(&mut self, keys: Arc<Keys>, are_tried: bool) {
        if are_tried { self.newer = Some(keys) } else { self.next = Some(keys) }
    }

    /// The connections begin, or end. What workers still do is of no use, and neither are keys that were not accepted.
    pub(super) fn reset(&mut self) {
        (self.next, self.tried) = (None, None);
        self.queues.clear();
        self.begin();
    }

    /// The keys that were tried are those from now on. Returns them.
    pub(super) fn accept_keys(&mut self) -> Option<Arc<Keys>> {
        let accepted = self.tried.take()?;
        self.newer = Some(Arc::clone(&accepted));
        Some(accepted)
    }

    /// Whether there are keys that are still to be tried.
    pub(super) fn has_other_keys(&self) -> bool {
        self.next.is_some()
    }

    /// The keys that were tried are of no use.
    pub(super) fn refuse_keys(&mut self) {
        self.tried = None;
    }

    /// Queues authenticate, with the keys as they are now.
    pub(super) fn begin(&mut self) {
        self.tried = self.next.take();
        (self.parties, self.transaction, self.computation) = (None, None, None);
        self.task = self.task.wrapping_add(1);
    }

    /// A queue has connected, and the controller asks for this (AUTHREQ). Returns whether the queue has to
    /// authenticate.
    ///
    /// # Errors
    /// This host cannot, or the controller asks for less than it has to.
    pub(super) fn on_connect(&mut self, number: u16, requires: u16) -> Result<bool, Cause> {
        let ours = self.options.authentication.as_ref();
        // What a discovery controller says is checked where it leads to.
        let demands =
            ours.is_some_and(|ours| ours.keys.controller.is_some()) && !self.options.url.is_discovery();
        match (requires & (ATR | ASCR), ours) {
            (0, _) if number == 0 && demands => Err(Cause::Authentication(AuthenticationFailure::NotAsked)),
            (0, _) => Ok(false),
            (_, None) => Err(Cause::Authentication(AuthenticationFailure::NoKey)),
            (asked, _) if asked & ASCR != 0 => {
                Err(Cause::Authentication(AuthenticationFailure::SecureChannel))
            }
            _ => Ok(true),
        }
    }

    /// The first stage of a queue: the keys may have been read for the one before.
    pub(super) fn first(&self) -> Stage {
        if self.parties.is_some() { Stage::Send } else { Stage::Keys }
    }

    /// The same as a step.
    pub(super) fn first_step(&self, number: u16) -> SequenceStep {
        SequenceStep::Authenticate(number, self.first())
    }

    /// The first queue that has authenticated, or the one after `number`.
    pub(super) fn queue_after(&self, number: Option<u16>) -> Option<u16> {
        self.queues.iter().copied().find(|one| number.is_none_or(|number| *one > number))
    }

    /// Has a worker read keys, or compute.
    pub(super) fn work(&mut self) -> Action {
        match self.take_task() {
            Some((number, task)) => Action::Work { number, task, limit: WORK_LIMIT },
            None => Action::Fail(Step::Authenticate, Cause::Authentication(AuthenticationFailure::NoKey)),
        }
    }

    /// The task for a worker at a stage, and its number.
    fn take_task(&mut self) -> Option<(u32, Task)> {
        self.task = self.task.wrapping_add(1);
        let task = match self.computation.take() {
            Some(computation) => Task::Compute(computation),
            None => {
                let ours = self.options.authentication.as_ref()?;
                Task::ReadKeys {
                    keys: self
                        .tried
                        .clone()
                        .or(self.newer.clone())
                        .unwrap_or_else(|| Arc::new(ours.keys.clone())),
                    host: self.options.host.nqn.clone(),
                    subsystem: self.options.url.subsystem_nqn().to_owned(),
                }
            }
        };
        Some((self.task, task))
    }

    /// A worker has done its task. Whether it is the one that is waited for.
    ///
    /// # Errors
    /// The keys could not be read.
    pub(super) fn on_work(&mut self, task: u32, done: Done) -> Result<bool, Cause> {
        if task != self.task {
            return Ok(false);
        }
        match done {
            Done::Keys(parties) => self.parties = Some(parties.map_err(Cause::Authentication)?),
            Done::Computed(computed) => {
                let step = self.transaction.as_mut().map(|transaction| transaction.on_computed(computed));
                self.take(step);
            }
        }
        Ok(true)
    }

    /// The message to be sent on a queue. A transaction that is not there yet begins with it. `qid`: identifiers of
    /// transactions differ between the queues of an association.
    ///
    /// # Errors
    /// The policy allows nothing.
    pub(super) fn message(&mut self, qid: u16) -> Result<&[u8], Cause> {
        let ours = self.options.authentication.as_ref();
        if let (None, Some(parties), Some(ours)) = (&self.transaction, &self.parties, ours) {
            self.transactions = self.transactions.wrapping_add(1);
            let t_id = qid << 8 | u16::from(self.transactions);
            let policy = Arc::new(ours.policy.clone());
            let (transaction, message) =
                HostTransaction::start(Arc::clone(parties), policy, SecureChannel::NONE, t_id)
                    .map_err(|error| Cause::Local(error.to_string()))?;
            (self.transaction, self.message, self.want) = (Some(transaction), message, Want::Exchange);
        }
        Ok(&self.message)
    }

    /// A message of the controller.
    pub(super) fn on_message(&mut self, bytes: &[u8]) {
        let ours = self.options.authentication.as_ref();
        let (Some(transaction), Some(ours)) = (&mut self.transaction, ours) else { return };
        let step = transaction.on_message(bytes, ours.numbers(), &mut system_random());
        self.take(Some(step));
    }

    fn take(&mut self, step: Option<HostStep>) {
        self.want = match step {
            Some(HostStep::Compute(computation)) => {
                self.computation = Some(computation);
                Want::Computation
            }
            Some(HostStep::Exchange(message)) => {
                self.message = message;
                Want::Exchange
            }
            Some(HostStep::SendLast(message)) => {
                self.message = message;
                Want::Last
            }
            Some(HostStep::Nothing) | None => Want::Nothing,
        };
    }

    /// What follows when a stage of a queue has ended. `None`: it has authenticated.
    ///
    /// # Errors
    /// Why one end has refused the other.
    pub(super) fn after(&mut self, number: u16, ended: Stage) -> Result<Option<Stage>, Cause> {
        if ended == Stage::Keys {
            return Ok(Some(Stage::Send));
        }
        if let Some(stage) = next(ended, self.want) {
            return Ok(Some(stage));
        }
        if let Some(cause) = self.take_refusal() {
            return Err(cause);
        }
        let transaction = mem::take(&mut self.transaction);
        match transaction.as_ref().and_then(HostTransaction::outcome) {
            Some(Ok(authenticated)) => self.log(number, authenticated),
            _ => return Err(Cause::Protocol("an authentication that ended without an outcome")),
        }
        if !self.queues.contains(&number) {
            self.queues.push(number);
        }
        Ok(None)
    }

    /// Why the transaction has failed, if it has: the connection ends then, and keys that were tried are of no use.
    pub(super) fn take_refusal(&mut self) -> Option<Cause> {
        let refusal = self.transaction.as_ref()?.outcome()?.err()?;
        self.refuse_keys();
        Some(Cause::Authentication(AuthenticationFailure::Refused(refusal)))
    }

    fn log(&self, number: u16, authenticated: &Authenticated) {
        let Authenticated { hash, group, controller_too, .. } = authenticated;
        let (peer, again) = (self.options.url.peer(), self.queues.contains(&number));
        if number == 0 && !again {
            tracing::info!(peer, %hash, %group, controller_too, "authenticated");
        } else {
            tracing::debug!(peer, number, %hash, %group, controller_too, again, "queue authenticated");
        }
    }
}

#[cfg(test)]
mod tests {
    use ringfab_auth::{DhchapKey, Hash};

    use super::*;
    use crate::authentication::{self, Key};
    use crate::identity::HostIdentity;

    #[test]
    fn the_stages_follow_each_other_as_the_table_says() {
        use Stage::{Compute, Keys, Receive, Send};
        let wants = [Want::Computation, Want::Exchange, Want::Last, Want::Nothing];
        #[rustfmt::skip]
        let table = [
            // a computation, an exchange, the last message, nothing
            (Keys,    [Some(Compute), Some(Send),    Some(Send), None]),
            (Send,    [Some(Compute), Some(Receive), None,       None]),
            (Receive, [Some(Compute), Some(Send),    Some(Send), None]),
            (Compute, [Some(Compute), Some(Send),    Some(Send), None]),
        ];
        for (stage, expected) in table {
            assert_eq!(wants.map(|want| next(stage, want)), expected, "{stage:?}");
        }
    }

    fn with(keys: Option<Keys>) -> Authentication {
        let host =
            HostIdentity { nqn: "nqn.2026-01.org.example:me".to_owned(), id: uuid::Uuid::from_u128(1) };
        let url = "nvme+tcp://192.0.2.1/nqn.2026-01.org.example:disk".parse().expect("an address");
        let mut options = ConnectOptions::new(url, host);
        options.authentication = keys.map(authentication::Authentication::new);
        Authentication::new(Arc::new(options))
    }

    #[test]
    fn what_a_controller_asks_for_and_what_we_have_decide_as_the_table_says() {
        let key = || Key::Known(DhchapKey::generate(Hash::Sha256, None, &mut system_random()));
        let one_way = Keys { host: key(), controller: None };
        let both_ways = Keys { controller: Some(key()), ..one_way.clone() };
        let said = |keys: Option<Keys>, number, requires| match with(keys).on_connect(number, requires) {
            Ok(false) => "goes on",
            Ok(true) => "authenticates",
            Err(Cause::Authentication(AuthenticationFailure::NoKey)) => "no key",
            Err(Cause::Authentication(AuthenticationFailure::NotAsked)) => "not asked",
            Err(Cause::Authentication(AuthenticationFailure::SecureChannel)) => "a channel",
            Err(other) => panic!("{other}"),
        };
        let all = "authenticates";
        #[rustfmt::skip]
        let table = [
            // the admin queue: nothing, ATR, ATR and ASCR; an I/O queue: the same
            (None,            ["goes on",   "no key", "no key",    "goes on", "no key", "no key"]),
            (Some(one_way),   ["goes on",   all,      "a channel", "goes on", all,      "a channel"]),
            (Some(both_ways), ["not asked", all,      "a channel", "goes on", all,      "a channel"]),
        ];
        for (keys, expected) in table {
            let columns = [(0, 0), (0, ATR), (0, ATR | ASCR), (1, 0), (1, ATR), (1, ATR | ASCR)];
            let found = columns.map(|(number, requires)| said(keys.clone(), number, requires));
            assert_eq!(found, expected, "{keys:?}");
        }
    }

    #[test]
    fn what_a_worker_did_for_a_connection_that_has_ended_is_not_taken() {
        let key = Key::Known(DhchapKey::generate(Hash::Sha256, None, &mut system_random()));
        let mut authentication = with(Some(Keys { host: key, controller: None }));
        let done = |task: Task| match task {
            Task::ReadKeys { keys, host, subsystem } => Done::Keys(keys.parties(&host, &subsystem)),
            Task::Compute(_) => panic!("nothing to compute"),
        };
        let (number, task) = authentication.take_task().expect("keys to read");
        authentication.reset();
        assert!(!authentication.on_work(number, done(task)).expect("late"));
        assert_eq!(authentication.first(), Stage::Keys);
        let (number, task) = authentication.take_task().expect("keys to read");
        assert!(authentication.on_work(number, done(task)).expect("in time"));
        assert_eq!(authentication.first(), Stage::Send);
    }
}
