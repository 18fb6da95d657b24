//! The authentication of queues, one after the other (DH-HMAC-CHAP, Base 2.1, section 8.3.4).
//!
//! A queue authenticates if the controller has asked for that when the queue connected (AUTHREQ), before any other
//! command goes out on it. The messages are those of `common/auth`. Here are the stages in which they are exchanged,
//! and what a host insists on: with a key for the controller, the controller proves who it is, or is not used. With
//! secure channel concatenation, the authentication of the admin queue in clear text makes the key for TLS, and each
//! further one over TLS replaces it.

use std::mem;
use std::sync::Arc;

use ringfab_auth::{
    Authenticated, Computation, HostState, HostStep, HostTransaction, Names, Parties, PolicyError,
    system_random,
};
use ringfab_fabric::tcp::Psk;
use ringfab_spec::Nqn;
use ringfab_spec::auth::{FailureExplanation, SecureChannel};

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
    /// Whether the queue's transaction makes the key for TLS, and for what (SC_C).
    channel: SecureChannel,
    /// The controller has refused to replace a key.
    keeps_key: bool,
    /// That key.
    psk: Option<Psk>,
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
            channel: SecureChannel::NONE,
            keeps_key: false,
            psk: None,
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
        (self.channel, self.psk) = (SecureChannel::NONE, None);
        self.task = self.task.wrapping_add(1);
    }

    /// Queues authenticate again, the first of them with this number. On an admin queue over TLS whose key an
    /// authentication has made, another key replaces that one.
    pub(super) fn begin_again(&mut self, number: u16, secured: bool) {
        self.begin();
        if number == 0 && secured && self.options.concatenates() && !self.keeps_key {
            self.channel = SecureChannel::REPLACE_TLS_PSK;
        }
    }

    fn makes_key(&self) -> bool {
        self.channel != SecureChannel::NONE
    }

    /// A queue has connected, over TLS or not, and the controller asks for this (AUTHREQ). Returns whether the queue
    /// has to authenticate.
    ///
    /// # Errors
    /// This host cannot, or the controller asks for less than it has to.
    pub(super) fn on_connect(&mut self, number: u16, requires: u16, secured: bool) -> Result<bool, Cause> {
        let ours = self.options.authentication.as_ref();
        // What a discovery controller says is checked where it leads to.
        let insists = number == 0 && !self.options.url.is_discovery();
        let demands = insists && ours.is_some_and(|ours| ours.keys.controller.is_some());
        let (concatenates, asks) = (self.options.concatenates(), |bit| requires & bit != 0);
        let makes_key = concatenates && !secured && (insists || number == 0 && asks(ASCR));
        let failure = match ours {
            // The key of this connection has proved all that authentication could.
            _ if !asks(ATR | ASCR) && concatenates && secured => {
                // So the admin queue is among those that do so again.
                self.queues.extend((number == 0).then_some(0));
                return Ok(false);
            }
            _ if !asks(ATR | ASCR) && makes_key => AuthenticationFailure::NoConcatenation,
            _ if !asks(ATR | ASCR) && demands => AuthenticationFailure::NotAsked,
            _ if !asks(ATR | ASCR) => return Ok(false),
            None if asks(ASCR) && !secured => AuthenticationFailure::NoKeyForTls,
            None => AuthenticationFailure::NoKey,
            Some(_) if asks(ASCR) && !makes_key => AuthenticationFailure::SecureChannel,
            Some(_) => {
                self.channel = if makes_key { SecureChannel::NEW_TLS_PSK } else { SecureChannel::NONE };
                return Ok(true);
            }
        };
        Err(Cause::Authentication(failure))
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
                HostTransaction::start(Arc::clone(parties), policy, self.channel, t_id)
                    .map_err(|error| cannot_start(error, self.makes_key()))?;
            (self.transaction, self.message, self.want) = (Some(transaction), message, Want::Exchange);
        }
        Ok(&self.message)
    }

    /// Whether the controller has said nothing yet.
    pub(super) fn is_first_message(&self) -> bool {
        let state = self.transaction.as_ref().map(HostTransaction::state);
        state == Some(HostState::AwaitChallenge)
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
            Some(Ok(authenticated)) => {
                if self.makes_key() {
                    self.psk = self.psk(authenticated);
                }
                self.log(number, authenticated);
            }
            _ => return Err(Cause::Protocol("an authentication that ended without an outcome")),
        }
        if !self.queues.contains(&number) {
            self.queues.push(number);
        }
        Ok(None)
    }

    /// The key that a transaction has made, for connections between the two names.
    fn psk(&self, authenticated: &Authenticated) -> Option<Psk> {
        let host = Nqn::new(&self.options.host.nqn).ok()?;
        let subsystem = Nqn::new(self.options.url.subsystem_nqn()).ok()?;
        authenticated.tls_psk(Names { host, subsystem }).as_ref().map(Psk::from)
    }

    /// The key for TLS, if the transaction that has succeeded was to make one.
    ///
    /// # Errors
    /// It has made none.
    pub(super) fn take_psk(&mut self) -> Result<Option<Psk>, Cause> {
        let makes_key = self.makes_key();
        self.channel = SecureChannel::NONE;
        match (makes_key, self.psk.take()) {
            (false, _) => Ok(None),
            (true, Some(psk)) => Ok(Some(psk)),
            (true, None) => Err(Cause::Protocol("an authentication that has made no key for TLS")),
        }
    }

    /// A transaction has succeeded, and made this key.
    #[cfg(test)]
    pub(super) fn set_psk(&mut self, psk: Psk) {
        (self.channel, self.psk) = (SecureChannel::NEW_TLS_PSK, Some(psk));
    }

    /// Why the transaction has failed, if it has: the connection ends then, and keys that were tried are of no use.
    pub(super) fn take_refusal(&mut self) -> Option<Cause> {
        let refusal = self.transaction.as_ref()?.outcome()?.err()?;
        self.refuse_keys();
        let replaces = self.channel == SecureChannel::REPLACE_TLS_PSK;
        if replaces && refusal.explanation == FailureExplanation::SECURE_CHANNEL_MISMATCH {
            let peer = self.options.url.peer();
            tracing::warn!(
                peer,
                "the target replaces no key for TLS: from now on each connection keeps its key"
            );
            self.keeps_key = true;
        }
        Some(Cause::Authentication(AuthenticationFailure::Refused(refusal)))
    }

    fn log(&self, number: u16, authenticated: &Authenticated) {
        let Authenticated { hash, group, controller_too, .. } = authenticated;
        let (peer, again) = (self.options.url.peer(), self.queues.contains(&number));
        if number == 0 && !again {
            let makes_key = self.makes_key();
            tracing::info!(peer, %hash, %group, controller_too, makes_key, "authenticated");
        } else {
            tracing::debug!(peer, number, %hash, %group, controller_too, again, "queue authenticated");
        }
    }
}

/// Why there is nothing to offer.
fn cannot_start(error: PolicyError, makes_key: bool) -> Cause {
    match error {
        PolicyError::NoHash if makes_key => {
            Cause::Authentication(AuthenticationFailure::MakesNoKey("hash functions"))
        }
        PolicyError::NoGroup if makes_key => {
            Cause::Authentication(AuthenticationFailure::MakesNoKey("DH groups"))
        }
        error => Cause::Local(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use ringfab_auth::{
        Channel, Concatenation, ControllerTransaction, DhchapKey, Group, Hash, Policy, Received,
    };

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
        let said = |keys: Option<Keys>, number, requires| match with(keys).on_connect(number, requires, false)
        {
            Ok(false) => "goes on",
            Ok(true) => "authenticates",
            Err(Cause::Authentication(AuthenticationFailure::NoKey)) => "no key",
            Err(Cause::Authentication(AuthenticationFailure::NoKeyForTls)) => "no TLS key",
            Err(Cause::Authentication(AuthenticationFailure::NotAsked)) => "not asked",
            Err(Cause::Authentication(AuthenticationFailure::SecureChannel)) => "a channel",
            Err(other) => panic!("{other}"),
        };
        let all = "authenticates";
        #[rustfmt::skip]
        let table = [
            // the admin queue: nothing, ATR, ATR and ASCR; an I/O queue: the same
            (None,            ["goes on",   "no key", "no TLS key", "goes on", "no key", "no TLS key"]),
            (Some(one_way),   ["goes on",   all,      "a channel", "goes on", all,      "a channel"]),
            (Some(both_ways), ["not asked", all,      "a channel", "goes on", all,      "a channel"]),
        ];
        for (keys, expected) in table {
            let columns = [(0, 0), (0, ATR), (0, ATR | ASCR), (1, 0), (1, ATR), (1, ATR | ASCR)];
            let found = columns.map(|(number, requires)| said(keys.clone(), number, requires));
            assert_eq!(found, expected, "{keys:?}");
        }
    }

    /// With a policy, and secure channel concatenation.
    fn concatenating(keys: Keys, policy: Policy, url: &str) -> Authentication {
        let mut this = with(Some(keys));
        let options = Arc::make_mut(&mut this.options);
        options.concatenation = true;
        options.url = url.parse().expect("an address");
        options.authentication.as_mut().expect("keys").policy = policy;
        this
    }

    const DISK: &str = "nqn.2026-01.org.example:disk";

    #[test]
    fn with_concatenation_the_first_authentication_in_clear_text_makes_a_key_and_no_other() {
        let key = || Key::Known(DhchapKey::generate(Hash::Sha256, None, &mut system_random()));
        let keys = Keys { host: key(), controller: Some(key()) };
        let said = |url: &str, (number, secured), requires| {
            let mut this = concatenating(keys.clone(), Policy::default(), url);
            match this.on_connect(number, requires, secured) {
                Ok(false) => "goes on",
                Ok(true) if this.makes_key() => "a key",
                Ok(true) => "authenticates",
                Err(Cause::Authentication(AuthenticationFailure::NoKeyForTls)) => "no TLS key",
                Err(Cause::Authentication(AuthenticationFailure::NotAsked)) => "not asked",
                Err(Cause::Authentication(AuthenticationFailure::NoConcatenation)) => "no key",
                Err(Cause::Authentication(AuthenticationFailure::SecureChannel)) => "a channel",
                Err(other) => panic!("{other}"),
            }
        };
        let disk = format!("nvme+tcp://192.0.2.1/{DISK}");
        let discovery = "nvme+tcp://192.0.2.1";
        let (all, clear) = ("authenticates", format!("{disk}?tls=off"));
        #[rustfmt::skip]
        let table = [
            // an address, a queue, whether it is over TLS; nothing, ATR, ATR and ASCR
            (disk.as_str(),  (0, false), ["no key",    "a key", "a key"]),
            (disk.as_str(),  (0, true),  ["goes on",   all,     "a channel"]),
            (disk.as_str(),  (1, true),  ["goes on",   all,     "a channel"]),
            (discovery,      (0, false), ["goes on",   all,     "a key"]),
            (discovery,      (0, true),  ["goes on",   all,     "a channel"]),
            (clear.as_str(), (0, false), ["not asked", all,     "a channel"]),
        ];
        for (url, queue, expected) in table {
            assert_eq!(
                [0, ATR, ATR | ASCR].map(|requires| said(url, queue, requires)),
                expected,
                "{url} {queue:?}"
            );
        }
    }

    /// Both ends, up to the end of a transaction. The key of ours, and that of the controller.
    fn make_keys(this: &mut Authentication, both_ways: bool) -> (Option<Psk>, Option<Psk>) {
        let mut random = system_random();
        let ours = this.options.authentication.clone().expect("keys");
        let parties = ours.keys.parties(&this.options.host.nqn, DISK).expect("both ends");
        let allowed = Concatenation::Allowed(Channel::Clear);
        let mut controller =
            ControllerTransaction::new(Some(parties), Arc::new(ours.policy.clone()), allowed);
        assert!(this.on_connect(0, ATR, false).expect("it is asked"));
        let (number, task) = this.take_task().expect("keys to read");
        let mut stage = Some(Stage::Keys);
        let mut work = Some((number, task));
        while let Some(ended) = stage {
            match ended {
                Stage::Keys | Stage::Compute => {
                    let (number, task) = work.take().or_else(|| this.take_task()).expect("a task");
                    let done = match task {
                        Task::ReadKeys { keys, host, subsystem } => {
                            Done::Keys(keys.parties(&host, &subsystem))
                        }
                        Task::Compute(computation) => Done::Computed(computation.run()),
                    };
                    assert!(this.on_work(number, done).expect("done"));
                }
                Stage::Send => {
                    let message = this.message(0).expect("a message").to_vec();
                    if let Some(computation) = controller.on_send(&message, ours.numbers(), &mut random) {
                        controller.on_computed(computation.run());
                    }
                }
                Stage::Receive => {
                    let Received::Message(message) = controller.on_receive(4096) else {
                        panic!("no message")
                    };
                    this.on_message(&message);
                }
            }
            stage = this.after(0, ended).expect("it goes on");
        }
        let authenticated = controller.outcome().expect("over").expect("in order");
        assert_eq!(authenticated.controller_too, both_ways);
        let theirs = this.psk(authenticated);
        (this.take_psk().expect("in order"), theirs)
    }

    #[test]
    fn both_ends_make_the_same_key_one_way_and_both_ways_and_another_one_each_time() {
        let key = || Key::Known(DhchapKey::generate(Hash::Sha256, None, &mut system_random()));
        let url = format!("nvme+tcp://192.0.2.1/{DISK}");
        for (hash, both_ways) in [(Hash::Sha256, false), (Hash::Sha384, true)] {
            let keys = Keys { host: key(), controller: both_ways.then(key) };
            let policy = Policy::new(&[Hash::Sha512, hash], &[Group::Null, Group::Ffdhe2048]);
            let mut this = concatenating(keys, policy.expect("a policy"), &url);
            let (ours, theirs) = make_keys(&mut this, both_ways);
            let ours = ours.expect("a key");
            assert_eq!(Some(&ours), theirs.as_ref());
            let identity = String::from_utf8(ours.identity.clone()).expect("text");
            let start = if hash == Hash::Sha256 { "NVMe1G01 " } else { "NVMe1G02 " };
            assert!(identity.starts_with(&format!("{start}{} {DISK} ", this.options.host.nqn)), "{identity}");
            this.reset();
            assert!(this.psk.is_none() && !this.makes_key());
            let (again, _) = make_keys(&mut this, both_ways);
            assert_ne!(Some(ours), again);
            assert_eq!(this.take_psk().expect("none"), None, "it is taken once");
        }
    }

    /// What the next transaction of the admin queue says (SC_C), and how the controller takes it.
    fn sc_c(this: &mut Authentication, concatenation: Concatenation) -> (SecureChannel, Received) {
        let (number, task) = this.take_task().expect("keys to read");
        let Task::ReadKeys { keys, host, subsystem } = task else { panic!("nothing to compute") };
        let parties = keys.parties(&host, &subsystem);
        this.on_work(number, Done::Keys(parties.clone())).expect("read");
        let policy = Arc::new(Policy::default());
        let mut controller = ControllerTransaction::new(parties.ok(), policy, concatenation);
        let message = this.message(0).expect("a message").to_vec();
        let numbers = this.options.authentication.as_ref().expect("keys").numbers();
        let computation = controller.on_send(&message, numbers, &mut system_random());
        computation.into_iter().for_each(|one| controller.on_computed(one.run()));
        (this.channel, controller.on_receive(4096))
    }

    #[test]
    fn an_authentication_over_tls_replaces_the_key_until_the_controller_refuses_that() {
        let key = Key::Known(DhchapKey::generate(Hash::Sha256, None, &mut system_random()));
        let url = format!("nvme+tcp://192.0.2.1/{DISK}");
        let keys = Keys { host: key, controller: None };
        let mut this = concatenating(keys, Policy::default(), &url);
        assert!(!this.on_connect(0, 0, true).expect("it is not asked"));
        assert!(!this.on_connect(1, 0, true).expect("it is not asked"));
        assert_eq!(this.queue_after(None), Some(0), "the admin queue authenticates again");
        assert_eq!(this.queue_after(Some(0)), None, "I/O queues do not");
        this.begin_again(0, true);
        let (channel, received) = sc_c(&mut this, Concatenation::Allowed(Channel::Tls));
        assert_eq!(channel, SecureChannel::REPLACE_TLS_PSK);
        assert!(matches!(received, Received::Message(_)));
        for (number, secured) in [(0, false), (1, true)] {
            this.begin_again(number, secured);
            assert_eq!(this.channel, SecureChannel::NONE, "queue {number}");
        }
        this.begin_again(0, true);
        let (_, received) = sc_c(&mut this, Concatenation::Refused);
        let Received::Message(refusal) = received else { panic!("no message") };
        this.on_message(&refusal);
        assert!(this.take_refusal().is_some());
        // The connection is made again, and from then on keeps its key.
        this.reset();
        this.begin_again(0, true);
        let (channel, received) = sc_c(&mut this, Concatenation::Refused);
        assert_eq!(channel, SecureChannel::NONE);
        assert!(matches!(received, Received::Message(_)));
    }

    #[test]
    fn what_makes_no_key_is_not_offered_and_nothing_else_is_a_sentence() {
        let key = Key::Known(DhchapKey::generate(Hash::Sha256, None, &mut system_random()));
        let url = format!("nvme+tcp://192.0.2.1/{DISK}");
        let rows = [
            (
                Hash::Sha512,
                Group::Ffdhe2048,
                "none of the hash functions that this host offers can make a key",
            ),
            (Hash::Sha256, Group::Null, "none of the DH groups that this host offers can make a key"),
        ];
        for (hash, group, said) in rows {
            let keys = Keys { host: key.clone(), controller: None };
            let policy = Policy::new(&[hash], &[group]).expect("a policy");
            let mut this = concatenating(keys, policy, &url);
            assert!(this.on_connect(0, ATR, false).expect("it is asked"));
            let (number, task) = this.take_task().expect("keys to read");
            let Task::ReadKeys { keys, host, subsystem } = task else { panic!("nothing to compute") };
            this.on_work(number, Done::Keys(keys.parties(&host, &subsystem))).expect("read");
            let cause = this.message(0).expect_err("nothing to offer");
            assert!(cause.to_string().starts_with(said) && !cause.is_transient(), "{cause}");
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
