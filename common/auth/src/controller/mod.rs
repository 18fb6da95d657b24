//! The controller's side of an authentication transaction.

mod automaton;

use std::sync::Arc;

use rand_core::CryptoRng;
use ringfab_spec::auth::{FailureExplanation as Explanation, SecureChannel};

use crate::computation::{Computation, Computed, Outcome, Task, Ticket};
use crate::group::{Group, Offer};
use crate::hash::Hash;
use crate::message::{Challenge, Message, MessageError, Negotiate, Proposal, Reply, Success1};
use crate::outcome::{Authenticated, Refusal, SequenceNumbers};
use crate::policy::{Concatenation, Policy};
use crate::psk::InputPsk;
use crate::response::{Parties, Terms};
use crate::secret::{Secret, is_equal};

pub use automaton::ControllerState;
use automaton::{Event, Step, next};

/// One transaction of one queue, on the controller.
///
/// Its owner gives it the data of Authentication Send and Receive commands, and has a worker do its computations. When
/// it is over and the host begins again ([`Message::is_negotiate`]), that is another transaction, with another value of
/// this type. The owner limits the time of a transaction.
#[derive(Debug)]
pub struct ControllerTransaction {
    /// Those of each key that the host may have, the newest first. None: this host has no key.
    parties: Vec<Arc<Parties>>,
    policy: Arc<Policy>,
    concatenation: Concatenation,
    state: ControllerState,
    t_id: u16,
    secure_channel: SecureChannel,
    /// What a worker computes now.
    ticket: Option<Ticket>,
    challenge: Option<OwnChallenge>,
    reply: Option<HostReply>,
    /// R2, if the host has asked for it.
    response: Option<Secret>,
    authenticated: Option<Authenticated>,
    refusal: Option<Refusal>,
}

/// What the controller has chosen, and its challenge.
struct OwnChallenge {
    hash: Hash,
    group: Group,
    seqnum: u32,
    /// C1.
    challenge: Secret,
    offer: Option<Offer>,
}

/// What a reply says, kept while the shared secret is computed.
#[derive(Debug)]
struct HostReply {
    seqnum: u32,
    response: Vec<u8>,
    /// C2, if it is one.
    challenge: Option<Vec<u8>>,
}

/// What an Authentication Receive command gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// Nothing yet: it is answered after the computation.
    Pending,
    /// This message.
    Message(Vec<u8>),
    /// Nothing: its buffer is too small for any message.
    BufferTooSmall,
}

impl std::fmt::Debug for OwnChallenge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "OwnChallenge({}, {})", self.hash, self.group)
    }
}

/// Whoever finds something wrong says what the peer is told, and what the log says.
type Checked<T> = Result<T, Refusal>;

impl ControllerTransaction {
    /// `parties`: one for each key that the host may have, the newest first. A host without any is refused at once.
    pub fn new(
        parties: impl IntoIterator<Item = Arc<Parties>>,
        policy: Arc<Policy>,
        concatenation: Concatenation,
    ) -> Self {
        Self {
            parties: parties.into_iter().collect(),
            policy,
            concatenation,
            state: ControllerState::AwaitNegotiate,
            t_id: 0,
            secure_channel: SecureChannel::NONE,
            ticket: None,
            challenge: None,
            reply: None,
            response: None,
            authenticated: None,
            refusal: None,
        }
    }

    /// Where it is.
    pub fn state(&self) -> ControllerState {
        self.state
    }

    /// How it has ended, if it is over.
    pub fn outcome(&self) -> Option<Result<&Authenticated, Refusal>> {
        match self.state {
            ControllerState::Authenticated => self.authenticated.as_ref().map(Ok),
            ControllerState::Refused => self.refusal.map(Err),
            _ => None,
        }
    }

    /// The message of an Authentication Send command. The command itself always succeeds.
    pub fn on_send(
        &mut self,
        bytes: &[u8],
        sequence: &SequenceNumbers,
        random: &mut dyn CryptoRng,
    ) -> Option<Computation> {
        let parsed = Message::parse_exact(bytes);
        let next = match (next(self.state, event(&parsed)), parsed) {
            (Step::Choose, Ok(Message::Negotiate(negotiate))) => self.choose(&negotiate, sequence, random),
            (Step::Conclude, Ok(Message::Reply(reply))) => self.conclude(&reply, random),
            (Step::Finish, Ok(Message::Success2(t_id))) => self.finish(t_id),
            (Step::EndByHost, Ok(Message::Failure2(failure))) => {
                self.refuse(Refusal::of_peer(&failure));
                // The host knows.
                self.state = ControllerState::Refused;
                Ok(None)
            }
            (Step::RefusePayload, _) => {
                Err(Refusal::ours(Explanation::INCORRECT_PAYLOAD, "the bytes are no message"))
            }
            (Step::RefuseMessage, parsed) => {
                // So that the host finds the failure to belong to its transaction.
                if let (ControllerState::AwaitNegotiate, Ok(message)) = (self.state, parsed) {
                    self.t_id = message.t_id();
                }
                Err(out_of_order())
            }
            _ => Ok(None),
        };
        next.unwrap_or_else(|refusal| {
            self.refuse(refusal);
            None
        })
    }

    /// What a worker has computed for this transaction.
    pub fn on_computed(&mut self, computed: Computed) {
        // Otherwise it is of a transaction before this one, on the same queue.
        let Some(outcome) = computed.of(self.ticket) else { return };
        let result = match (next(self.state, Event::Computed), outcome) {
            (Step::Challenge, Outcome::Offered(offer)) => {
                if let Some(challenge) = &mut self.challenge {
                    challenge.offer = Some(offer);
                }
                self.state = ControllerState::ChallengeReady;
                Ok(())
            }
            (Step::Verify, Outcome::Concluded { session_key }) => self.verify(Some(session_key)),
            (Step::Verify, Outcome::InvalidValue) => {
                Err(Refusal::ours(Explanation::INCORRECT_PAYLOAD, "the host's DH value is none of the group"))
            }
            // The transaction has failed in the meantime.
            _ => Ok(()),
        };
        if let Err(refusal) = result {
            self.refuse(refusal);
        }
    }

    /// The message for an Authentication Receive command with a buffer of `length` bytes.
    pub fn on_receive(&mut self, length: usize) -> Received {
        let (message, state) = match next(self.state, Event::Receive) {
            Step::Wait => return Received::Pending,
            Step::SendChallenge => (self.challenge_message(), ControllerState::AwaitReply),
            Step::SendSuccess1 => (self.success1_message(), self.after_success1()),
            Step::SendFailure1 => return self.send_failure(length),
            _ => {
                self.refuse(out_of_order());
                return self.send_failure(length);
            }
        };
        if message.len() > length {
            let detail = "the host's buffer is too small for the message";
            self.refuse(Refusal::ours(Explanation::INCORRECT_PAYLOAD, detail));
            return self.send_failure(length);
        }
        self.state = state;
        Received::Message(message)
    }

    fn refuse(&mut self, refusal: Refusal) {
        self.refusal = Some(refusal);
        self.state = ControllerState::Failure1Ready;
        (self.challenge, self.reply, self.response, self.authenticated) = (None, None, None, None);
    }

    fn send_failure(&mut self, length: usize) -> Received {
        let refusal = self.refusal.unwrap_or_else(out_of_order);
        let message = Message::Failure1(refusal.to_message(self.t_id)).to_bytes();
        if message.len() > length {
            return Received::BufferTooSmall;
        }
        self.state = ControllerState::Refused;
        Received::Message(message)
    }

    fn choose(
        &mut self,
        negotiate: &Negotiate,
        sequence: &SequenceNumbers,
        random: &mut dyn CryptoRng,
    ) -> Checked<Option<Computation>> {
        (self.t_id, self.secure_channel) = (negotiate.t_id, negotiate.secure_channel);
        if self.parties.is_empty() {
            let detail = "there is no key for this host";
            return Err(Refusal::ours(Explanation::AUTHENTICATION_FAILED, detail));
        }
        if !self.concatenation.accepts(self.secure_channel) {
            let detail = "this queue does not accept the host's SC_C";
            return Err(Refusal::ours(Explanation::SECURE_CHANNEL_MISMATCH, detail));
        }
        let Some(offer) = &negotiate.offer else {
            let detail = "the host does not offer DH-HMAC-CHAP";
            return Err(Refusal::ours(Explanation::PROTOCOL_NOT_USABLE, detail));
        };
        let (hash, group) = self.choose_from(offer)?;
        let private = group.private(random);
        self.challenge = Some(OwnChallenge {
            hash,
            group,
            seqnum: sequence.next().get(),
            challenge: Secret::random(hash.length(), random),
            offer: None,
        });
        self.state = match private {
            Some(_) => ControllerState::MakingOffer,
            None => ControllerState::ChallengeReady,
        };
        Ok(private.map(|private| {
            let ticket = *self.ticket.insert(Ticket::new(random));
            Computation::new(ticket, Task::Offer(private))
        }))
    }

    /// The first of our hash functions and groups that the host offers, too.
    fn choose_from(&self, offer: &Proposal) -> Checked<(Hash, Group)> {
        let mut hashes = self.policy.hashes(self.secure_channel);
        let hash = hashes.find(|hash| offer.hashes.contains(&hash.id())).ok_or_else(|| {
            Refusal::ours(Explanation::HASH_NOT_USABLE, "the policy has none of the host's hash functions")
        })?;
        let mut groups = self.policy.groups(self.secure_channel);
        let group = groups.find(|group| offer.groups.contains(&group.id())).ok_or_else(|| {
            Refusal::ours(Explanation::GROUP_NOT_USABLE, "the policy has none of the host's groups")
        })?;
        Ok((hash, group))
    }

    fn challenge_message(&self) -> Vec<u8> {
        let own = self.challenge.as_ref().expect("the state says that it is there");
        Message::Challenge(Challenge {
            t_id: self.t_id,
            hash: own.hash.id(),
            group: own.group.id(),
            seqnum: own.seqnum,
            challenge: own.challenge.expose(),
            value: own.offer.as_ref().map_or(&[], |offer| &offer.value),
        })
        .to_bytes()
    }

    fn conclude(&mut self, reply: &Reply<'_>, random: &mut dyn CryptoRng) -> Checked<Option<Computation>> {
        self.check(reply)?;
        let own = self.challenge.as_mut().expect("the state says that it is there");
        let (hash, offer) = (own.hash, own.offer.take());
        self.reply = Some(HostReply {
            seqnum: reply.seqnum,
            response: reply.response.to_vec(),
            challenge: reply.challenge_valid.then(|| reply.challenge.to_vec()),
        });
        self.state = ControllerState::Concluding;
        match offer {
            Some(offer) => {
                let peer = reply.value.to_vec();
                let ticket = *self.ticket.insert(Ticket::new(random));
                Ok(Some(Computation::new(ticket, Task::Conclude { offer, peer, hash })))
            }
            None => self.verify(None).map(|()| None),
        }
    }

    /// Everything about a reply that needs no key.
    fn check(&self, reply: &Reply<'_>) -> Checked<()> {
        let own = self.challenge.as_ref().expect("the state says that it is there");
        let concatenates = self.secure_channel != SecureChannel::NONE;
        let payload = |detail| Err(Refusal::ours(Explanation::INCORRECT_PAYLOAD, detail));
        if reply.t_id != self.t_id {
            return payload("the reply belongs to another transaction");
        }
        if reply.response.len() != own.hash.length() {
            return payload("the response is not as long as the hash");
        }
        if reply.value.len() != own.group.answer_length() {
            return payload("the host's DH value is not as long as the group's");
        }
        if concatenates && !reply.challenge_valid {
            return payload("the reply lacks the challenge that the PSK is made of");
        }
        if reply.challenge_valid && reply.seqnum == 0 && !concatenates {
            return payload("the sequence number of the host's challenge is zero");
        }
        if reply.challenge_valid && is_equal(reply.challenge, own.challenge.expose()) {
            let detail = "the host has sent our own challenge back";
            return Err(Refusal::ours(Explanation::AUTHENTICATION_FAILED, detail));
        }
        Ok(())
    }

    fn verify(&mut self, session_key: Option<Secret>) -> Checked<()> {
        let (Some(own), Some(reply)) = (&self.challenge, self.reply.take()) else {
            return Err(out_of_order());
        };
        let terms = Terms {
            t_id: self.t_id,
            secure_channel: self.secure_channel,
            hash: own.hash,
            session_key,
            controller_response_without_sc_c: self.policy.controller_response_without_sc_c,
        };
        let gives = |parties: &&Arc<Parties>| {
            let expected = parties.host_response(&terms, own.challenge.expose(), own.seqnum);
            is_equal(expected.expose(), &reply.response)
        };
        let parties = self.parties.iter().find(gives).ok_or_else(|| {
            let detail = match self.parties.len() {
                1 => "the response is not the one that this host's key gives",
                _ => "the response is one that none of this host's keys gives",
            };
            Refusal::ours(Explanation::AUTHENTICATION_FAILED, detail)
        })?;
        let key = parties.key();
        let mut generated_psk = None;
        if let Some(challenge) = &reply.challenge {
            if reply.seqnum != 0 {
                let response =
                    parties.controller_response(&terms, challenge, reply.seqnum).ok_or_else(|| {
                        let detail = "the host authenticates the controller, which has no key";
                        Refusal::ours(Explanation::AUTHENTICATION_FAILED, detail)
                    })?;
                self.response = Some(response);
            }
            if self.secure_channel != SecureChannel::NONE {
                generated_psk =
                    terms.generated_psk(own.challenge.expose(), challenge).map(InputPsk::generated);
            }
        }
        let (hash, group, controller_too) = (own.hash, own.group, self.response.is_some());
        self.authenticated = Some(Authenticated { hash, group, controller_too, key, generated_psk });
        self.state = ControllerState::Success1Ready;
        Ok(())
    }

    fn success1_message(&self) -> Vec<u8> {
        let own = self.challenge.as_ref().expect("the state says that it is there");
        Message::Success1(Success1 {
            t_id: self.t_id,
            hash_length: own.hash.length() as u8,
            response: self.response.as_ref().map(Secret::expose),
        })
        .to_bytes()
    }

    fn after_success1(&self) -> ControllerState {
        match self.response {
            Some(_) => ControllerState::AwaitSuccess2,
            None => ControllerState::Authenticated,
        }
    }

    fn finish(&mut self, t_id: u16) -> Checked<Option<Computation>> {
        if t_id != self.t_id {
            let detail = "the success belongs to another transaction";
            return Err(Refusal::ours(Explanation::INCORRECT_PAYLOAD, detail));
        }
        self.state = ControllerState::Authenticated;
        Ok(None)
    }
}

fn out_of_order() -> Refusal {
    Refusal::ours(Explanation::INCORRECT_MESSAGE, "it is not the turn of this message")
}

/// What the bytes of a Send are to the automaton.
fn event(parsed: &Result<Message<'_>, MessageError>) -> Event {
    match parsed {
        Ok(Message::Negotiate(_)) => Event::Negotiate,
        Ok(Message::Reply(_)) => Event::Reply,
        Ok(Message::Success2(_)) => Event::Success2,
        Ok(Message::Failure2(_)) => Event::Failure2,
        Ok(Message::Challenge(_) | Message::Success1(_) | Message::Failure1(_))
        | Err(MessageError::Unknown(..)) => Event::Foreign,
        Err(MessageError::Truncated { .. } | MessageError::Value(_)) => Event::Malformed,
    }
}
