//! The host's side of an authentication transaction.

mod automaton;

use std::sync::Arc;

use rand_core::CryptoRng;
use ringfab_spec::auth::{FailureExplanation as Explanation, SecureChannel};

use crate::computation::{Computation, Computed, Outcome, Task, Ticket};
use crate::group::Group;
use crate::hash::Hash;
use crate::message::{Challenge, Message, MessageError, Negotiate, Proposal, Reply, Success1};
use crate::outcome::{Authenticated, Refusal, SequenceNumbers};
use crate::policy::{Policy, PolicyError};
use crate::psk::InputPsk;
use crate::response::{Parties, Terms};
use crate::secret::{Secret, is_equal};

pub use automaton::HostState;
use automaton::{Event, Step, next};

/// One transaction of one queue, on the host.
///
/// Its owner sends and receives its messages, has a worker do its computations, and limits its time. It authenticates
/// the controller, too, if its [`Parties`] have a key for it.
#[derive(Debug)]
pub struct HostTransaction {
    parties: Arc<Parties>,
    policy: Arc<Policy>,
    secure_channel: SecureChannel,
    t_id: u16,
    state: HostState,
    /// What a worker computes now.
    ticket: Option<Ticket>,
    challenge: Option<ControllerChallenge>,
    /// R2 as it must be, if the controller is authenticated.
    expected: Option<Secret>,
    authenticated: Option<Authenticated>,
    refusal: Option<Refusal>,
}

/// What a challenge says, and what is drawn for its answer, kept while the answer is computed.
#[derive(Debug)]
struct ControllerChallenge {
    hash: Hash,
    group: Group,
    seqnum: u32,
    /// C1.
    challenge: Vec<u8>,
    own: Option<OwnChallenge>,
}

/// The host's own challenge.
#[derive(Debug)]
struct OwnChallenge {
    /// S2; zero if it is there to make a PSK alone.
    seqnum: u32,
    /// C2.
    challenge: Secret,
}

/// What the owner of a transaction does next.
#[derive(Debug)]
pub enum HostStep {
    /// Have this computed, and give the result to [`HostTransaction::on_computed`].
    Compute(Computation),
    /// Send this message, receive the next one, and give it to [`HostTransaction::on_message`].
    Exchange(Vec<u8>),
    /// Send this message. The transaction is over.
    SendLast(Vec<u8>),
    /// Nothing: it is over, or still computes.
    Nothing,
}

/// Whoever finds something wrong says what the peer is told, and what the log says.
type Checked<T> = Result<T, Refusal>;

impl HostTransaction {
    /// A transaction, and its first message, which is to be exchanged ([`HostStep::Exchange`]). Transactions of one
    /// association have different identifiers.
    ///
    /// # Errors
    /// The policy has no hash function, or no group, that can make the key for this secure channel.
    pub fn start(
        parties: Arc<Parties>,
        policy: Arc<Policy>,
        secure_channel: SecureChannel,
        t_id: u16,
    ) -> Result<(Self, Vec<u8>), PolicyError> {
        let hashes: Vec<_> = policy.hashes(secure_channel).map(Hash::id).collect();
        let groups: Vec<_> = policy.groups(secure_channel).map(Group::id).collect();
        if hashes.is_empty() {
            return Err(PolicyError::NoHash);
        }
        if groups.is_empty() {
            return Err(PolicyError::NoGroup);
        }
        let offer = Some(Proposal { hashes, groups });
        let negotiate = Message::Negotiate(Negotiate { t_id, secure_channel, offer }).to_bytes();
        let transaction = Self {
            parties,
            policy,
            secure_channel,
            t_id,
            state: HostState::AwaitChallenge,
            ticket: None,
            challenge: None,
            expected: None,
            authenticated: None,
            refusal: None,
        };
        Ok((transaction, negotiate))
    }

    /// Where it is.
    pub fn state(&self) -> HostState {
        self.state
    }

    /// How it has ended, if it is over.
    pub fn outcome(&self) -> Option<Result<&Authenticated, Refusal>> {
        match self.state {
            HostState::Authenticated => self.authenticated.as_ref().map(Ok),
            HostState::Refused => self.refusal.map(Err),
            _ => None,
        }
    }

    /// The buffer that an Authentication Receive command was answered with. Behind the message may be anything.
    pub fn on_message(
        &mut self,
        bytes: &[u8],
        sequence: &SequenceNumbers,
        random: &mut dyn CryptoRng,
    ) -> HostStep {
        let parsed = Message::parse(bytes).map(|(message, _)| message);
        let step = match (next(self.state, event(&parsed)), parsed) {
            (Step::Answer, Ok(Message::Challenge(challenge))) => self.answer(&challenge, sequence, random),
            (Step::Verify, Ok(Message::Success1(success))) => self.verify(&success),
            (Step::EndByController, Ok(Message::Failure1(failure))) => {
                self.refusal = Some(Refusal::of_peer(&failure));
                self.state = HostState::Refused;
                Ok(HostStep::Nothing)
            }
            (Step::RefusePayload, _) => {
                Err(Refusal::ours(Explanation::INCORRECT_PAYLOAD, "the bytes are no message"))
            }
            (Step::RefuseMessage, _) => {
                Err(Refusal::ours(Explanation::INCORRECT_MESSAGE, "it is not the turn of this message"))
            }
            _ => Ok(HostStep::Nothing),
        };
        step.unwrap_or_else(|refusal| self.refuse(refusal))
    }

    /// What a worker has computed for this transaction.
    pub fn on_computed(&mut self, computed: Computed) -> HostStep {
        // Otherwise it is of a transaction before this one, on the same queue.
        let Some(outcome) = computed.of(self.ticket) else { return HostStep::Nothing };
        match (next(self.state, Event::Computed), outcome) {
            (Step::Reply, Outcome::Answered { value, session_key }) => self.reply(&value, Some(session_key)),
            (Step::Reply, Outcome::InvalidValue) => {
                let detail = "the controller's DH value is none of the group";
                self.refuse(Refusal::ours(Explanation::INCORRECT_PAYLOAD, detail))
            }
            // The transaction has failed in the meantime.
            _ => HostStep::Nothing,
        }
    }

    fn refuse(&mut self, refusal: Refusal) -> HostStep {
        self.refusal = Some(refusal);
        self.state = HostState::Refused;
        (self.challenge, self.expected, self.authenticated) = (None, None, None);
        HostStep::SendLast(Message::Failure2(refusal.to_message(self.t_id)).to_bytes())
    }

    fn answer(
        &mut self,
        challenge: &Challenge<'_>,
        sequence: &SequenceNumbers,
        random: &mut dyn CryptoRng,
    ) -> Checked<HostStep> {
        let (hash, group) = self.check(challenge)?;
        let private = group.private(random);
        let authenticates = self.parties.has_controller_key();
        let sends_challenge = authenticates || self.secure_channel != SecureChannel::NONE;
        let own = sends_challenge.then(|| OwnChallenge {
            seqnum: if authenticates { sequence.next().get() } else { 0 },
            challenge: Secret::random(hash.length(), random),
        });
        self.challenge = Some(ControllerChallenge {
            hash,
            group,
            seqnum: challenge.seqnum,
            challenge: challenge.challenge.to_vec(),
            own,
        });
        self.state = HostState::Answering;
        Ok(match private {
            Some(private) => {
                let peer = challenge.value.to_vec();
                let ticket = *self.ticket.insert(Ticket::new(random));
                HostStep::Compute(Computation::new(ticket, Task::Answer { private, peer, hash }))
            }
            None => self.reply(&[], None),
        })
    }

    /// What the controller has chosen, if this end offered it.
    fn check(&self, challenge: &Challenge<'_>) -> Checked<(Hash, Group)> {
        let payload = |detail| Err(Refusal::ours(Explanation::INCORRECT_PAYLOAD, detail));
        if challenge.t_id != self.t_id {
            return payload("the challenge belongs to another transaction");
        }
        if challenge.seqnum == 0 {
            return payload("the sequence number of the challenge is zero");
        }
        let mut hashes = self.policy.hashes(self.secure_channel);
        let hash = hashes.find(|hash| hash.id() == challenge.hash).ok_or_else(|| {
            let detail = "the controller has chosen a hash function that was not offered";
            Refusal::ours(Explanation::HASH_NOT_USABLE, detail)
        })?;
        let mut groups = self.policy.groups(self.secure_channel);
        let group = groups.find(|group| group.id() == challenge.group).ok_or_else(|| {
            let detail = "the controller has chosen a group that was not offered";
            Refusal::ours(Explanation::GROUP_NOT_USABLE, detail)
        })?;
        if challenge.value.len() != group.offer_length() {
            return payload("the controller's DH value is not as long as the group's");
        }
        Ok((hash, group))
    }

    fn reply(&mut self, value: &[u8], session_key: Option<Secret>) -> HostStep {
        let challenge = self.challenge.take().expect("the state says that it is there");
        let ControllerChallenge { hash, group, seqnum, challenge: c1, own } = challenge;
        let terms = Terms {
            t_id: self.t_id,
            secure_channel: self.secure_channel,
            hash,
            session_key,
            controller_response_without_sc_c: self.policy.controller_response_without_sc_c,
        };
        let response = self.parties.host_response(&terms, &c1, seqnum);
        let mut generated_psk = None;
        if let Some(own) = &own {
            let c2 = own.challenge.expose();
            self.expected = self.parties.controller_response(&terms, c2, own.seqnum);
            if self.secure_channel != SecureChannel::NONE {
                generated_psk = terms.generated_psk(&c1, c2).map(InputPsk::generated);
            }
        }
        let controller_too = self.expected.is_some();
        let key = self.parties.key();
        self.authenticated = Some(Authenticated { hash, group, controller_too, key, generated_psk });
        self.state = HostState::AwaitSuccess1;
        let no_challenge = vec![0; hash.length()];
        HostStep::Exchange(
            Message::Reply(Reply {
                t_id: self.t_id,
                seqnum: own.as_ref().map_or(0, |own| own.seqnum),
                challenge_valid: own.is_some(),
                response: response.expose(),
                challenge: own.as_ref().map_or(&no_challenge, |own| own.challenge.expose()),
                value,
            })
            .to_bytes(),
        )
    }

    fn verify(&mut self, success: &Success1<'_>) -> Checked<HostStep> {
        let payload = |detail| Err(Refusal::ours(Explanation::INCORRECT_PAYLOAD, detail));
        let hash = self.authenticated.as_ref().map(|authenticated| authenticated.hash);
        if success.t_id != self.t_id {
            return payload("the success belongs to another transaction");
        }
        if hash.is_none_or(|hash| hash.length() != usize::from(success.hash_length)) {
            return payload("the success has another hash length");
        }
        // A response that nobody has asked for is of no use.
        let Some(expected) = self.expected.take() else {
            self.state = HostState::Authenticated;
            return Ok(HostStep::Nothing);
        };
        let Some(response) = success.response else {
            return payload("the controller does not prove who it is");
        };
        if !is_equal(expected.expose(), response) {
            let detail = "the response is not the one that the controller's key gives";
            return Err(Refusal::ours(Explanation::AUTHENTICATION_FAILED, detail));
        }
        self.state = HostState::Authenticated;
        Ok(HostStep::SendLast(Message::Success2(self.t_id).to_bytes()))
    }
}

/// What the bytes of a Receive are to the automaton.
fn event(parsed: &Result<Message<'_>, MessageError>) -> Event {
    match parsed {
        Ok(Message::Challenge(_)) => Event::Challenge,
        Ok(Message::Success1(_)) => Event::Success1,
        Ok(Message::Failure1(_)) => Event::Failure1,
        Ok(Message::Negotiate(_) | Message::Reply(_) | Message::Success2(_) | Message::Failure2(_))
        | Err(MessageError::Unknown(..)) => Event::Foreign,
        Err(MessageError::Truncated { .. } | MessageError::Value(_)) => Event::Malformed,
    }
}
