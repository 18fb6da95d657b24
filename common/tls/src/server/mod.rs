//! The server's side of a handshake.

mod automaton;

use std::sync::Arc;

use ringfab_auth::{CipherSuite, Secret};

use crate::agreed::{Agreed, ApplicationKeys, Transcript};
use crate::channel::Channel;
use crate::error::{Identities, Reasons, TlsError};
use crate::event::Event;
use crate::group::{Group, Private, SEED_BYTES};
use crate::joiner::MESSAGE_HEADER_BYTES;
use crate::keys::Schedule;
use crate::message::{self, ClientHello, HelloRetryRequest, KeyShare, RANDOM_BYTES, ServerHello};
use crate::psk::PskStore;
use crate::wire::Role;

pub(crate) use automaton::State;
use automaton::{Step, next};

/// The longest identity that is kept for whoever tells why a handshake failed. Those of NVMe/TCP, with the longest
/// names, are shorter.
const OFFERED_BYTES_MAX: usize = 600;

/// A handshake of a server.
#[derive(Debug)]
pub(crate) struct Server {
    state: State,
    store: Arc<dyn PskStore>,
    /// Of the ServerHello.
    random: Secret,
    /// Of which the private value is made once the group is known.
    seed: Secret,
    /// What the client was asked for.
    retry: Option<Retry>,
    /// The identity that was chosen, or the first that was offered.
    offered: Option<Vec<u8>>,
    transcript: Transcript,
    agreed: Option<Agreed>,
    application: Option<ApplicationKeys>,
}

/// Which group the two ends agree in.
enum GroupChoice<'a> {
    /// One that the client has sent a share of.
    Shared(KeyShare<'a>),
    /// One that it is asked for a share of.
    Unshared(Group),
}

/// What a second ClientHello has to have.
#[derive(Clone, Copy, Debug)]
struct Retry {
    suite: CipherSuite,
    group: Group,
}

/// The key that is used.
struct Choice<'a> {
    index: u16,
    identity: &'a [u8],
    key: Secret,
    suite: CipherSuite,
}

impl Server {
    pub(crate) fn new(store: Arc<dyn PskStore>, random: &mut dyn rand_core::CryptoRng) -> Self {
        Self {
            state: State::AwaitClientHello,
            store,
            random: Secret::random(RANDOM_BYTES, random),
            seed: Secret::random(SEED_BYTES, random),
            retry: None,
            offered: None,
            transcript: Transcript::default(),
            agreed: None,
            application: None,
        }
    }

    pub(crate) fn state(&self) -> State {
        self.state
    }

    pub(crate) fn take(&mut self, event: Event, bytes: &[u8], channel: &mut Channel) -> Result<(), TlsError> {
        match next(self.state, event) {
            Step::Choose => self.choose(bytes, channel),
            Step::Finish => self.finish(&bytes[MESSAGE_HEADER_BYTES..], channel),
            Step::Ignore => Ok(()),
            Step::Refuse => Err(TlsError::Unexpected {
                peer: Role::Client,
                message: event.name(),
                awaited: self.state.awaited(),
            }),
        }
    }

    fn choose(&mut self, bytes: &[u8], channel: &mut Channel) -> Result<(), TlsError> {
        let hello = ClientHello::parse(bytes)?;
        channel.at_boundary()?;
        if hello.cookie {
            return Err(TlsError::Illegal("the host sends back a cookie that it did not get"));
        }
        self.keep_offered(hello.psks.identities.first().copied());
        let choices = self.choose_keys(&hello)?;
        self.keep_offered(choices.first().map(|choice| choice.identity));
        let choice = self.verified(choices, &hello, bytes)?;
        match self.choose_group(&hello, choice.suite)? {
            GroupChoice::Shared(share) => self.answer(&hello, &choice, share, bytes, channel),
            GroupChoice::Unshared(group) => {
                self.ask_for(group, &hello, choice.suite, bytes, channel);
                Ok(())
            }
        }
    }

    fn keep_offered(&mut self, identity: Option<&[u8]>) {
        self.offered = identity.filter(|identity| identity.len() <= OFFERED_BYTES_MAX).map(<[u8]>::to_vec);
    }

    /// The keys of the first identity in the client's order that is known here, if their suite is offered, too. There
    /// is at least one.
    fn choose_keys<'a>(&self, hello: &ClientHello<'a>) -> Result<Vec<Choice<'a>>, TlsError> {
        let (mut without_suite, mut reasons) = (None, Reasons::default());
        for (index, &identity) in (0..).zip(&hello.psks.identities) {
            let found = match self.store.find(identity) {
                Ok(found) => found,
                Err(reason) => {
                    reasons.add(reason);
                    continue;
                }
            };
            let (offered, others): (Vec<_>, Vec<_>) =
                found.into_iter().partition(|(_, suite)| hello.offers_suite(*suite));
            if !offered.is_empty() {
                let choice = |(key, suite)| Choice { index, identity, key, suite };
                return Ok(offered.into_iter().map(choice).collect());
            }
            if let Some((_, suite)) = others.first() {
                without_suite.get_or_insert((*suite, identity));
            }
        }
        Err(match without_suite {
            Some((suite, identity)) => {
                TlsError::SuiteNotOffered { suite, identity: Identities::one(identity) }
            }
            None => TlsError::UnknownKeys(Identities::of(hello.psks.identities.iter().copied()), reasons),
        })
    }

    /// The key that the client has, of those with one identity.
    fn verified<'a>(
        &self,
        choices: Vec<Choice<'a>>,
        hello: &ClientHello<'_>,
        bytes: &[u8],
    ) -> Result<Choice<'a>, TlsError> {
        let mut error = None;
        for choice in choices {
            match self.verify(&choice, hello, bytes) {
                Ok(()) => return Ok(choice),
                Err(why) => error = Some(why),
            }
        }
        Err(error.expect("there is a key"))
    }

    /// The client has the key: before anything is computed for it that takes long.
    fn verify(&self, choice: &Choice<'_>, hello: &ClientHello<'_>, bytes: &[u8]) -> Result<(), TlsError> {
        let (hash, identity) = (choice.suite.hash(), || Identities::one(choice.identity));
        let binder = hello.psks.binders[usize::from(choice.index)];
        if binder.len() != hash.length() {
            return Err(TlsError::BinderLength { suite: choice.suite, identity: identity() });
        }
        let hashed = self.transcript.with(&bytes[..hello.psks.hashed_bytes]);
        if Schedule::early(hash, &choice.key).binder(&hashed) != Secret::copy_of(binder) {
            return Err(TlsError::BinderDiffers(identity()));
        }
        Ok(())
    }

    fn choose_group<'a>(
        &self,
        hello: &ClientHello<'a>,
        suite: CipherSuite,
    ) -> Result<GroupChoice<'a>, TlsError> {
        let best = hello.best_share();
        let Some(retry) = self.retry else {
            if let Some(share) = best {
                return Ok(GroupChoice::Shared(share));
            }
            let group = Group::ALL.into_iter().find(|&group| hello.offers_group(group));
            return group.map(GroupChoice::Unshared).ok_or(TlsError::NoGroup);
        };
        match best {
            _ if suite != retry.suite => Err(TlsError::Illegal(
                "the host has changed its keys or cipher suites in its second ClientHello",
            )),
            Some(share) if share.group == retry.group && hello.share_count() == 1 => {
                Ok(GroupChoice::Shared(share))
            }
            _ => Err(TlsError::Illegal("the host does not send the key share that it was asked for")),
        }
    }

    /// Asks for another ClientHello, with a share of this group.
    fn ask_for(
        &mut self,
        group: Group,
        hello: &ClientHello<'_>,
        suite: CipherSuite,
        bytes: &[u8],
        channel: &mut Channel,
    ) {
        let request = HelloRetryRequest::write(suite, group, hello.session_id);
        self.transcript.push(bytes);
        self.transcript.retry(suite.hash(), &request);
        channel.send_messages(&request);
        if !hello.session_id.is_empty() {
            channel.send_change_cipher_spec();
        }
        self.retry = Some(Retry { suite, group });
        self.state = State::AwaitSecondClientHello;
    }

    /// Sends everything that a server sends.
    fn answer(
        &mut self,
        hello: &ClientHello<'_>,
        choice: &Choice<'_>,
        share: KeyShare<'_>,
        bytes: &[u8],
        channel: &mut Channel,
    ) -> Result<(), TlsError> {
        let KeyShare { group, key_exchange } = share;
        let private = Private::new(group, &self.seed)?;
        let shared = private.agree(key_exchange)?;
        let public = private.public();
        let answer =
            ServerHello { suite: choice.suite, group: Some(group), share: &public, psk: Some(choice.index) };
        let answer = answer.write(self.random.expose(), hello.session_id);
        self.transcript.push(bytes);
        self.transcript.push(&answer);
        channel.send_messages(&answer);
        // Once, and only where the client wants to look like version 1.2.
        if !hello.session_id.is_empty() && self.retry.is_none() {
            channel.send_change_cipher_spec();
        }

        let agreed =
            Agreed::new(choice.identity.to_vec(), &choice.key, choice.suite, &shared, &self.transcript);
        channel.receive_with(agreed.keys_of(Role::Client))?;
        channel.send_with(agreed.keys_of(Role::Server));
        let extensions = message::encrypted_extensions();
        self.transcript.push(&extensions);
        let finished = message::finished(agreed.finished_of(Role::Server, &self.transcript).expose());
        self.transcript.push(&finished);
        channel.send_messages(&[extensions, finished].concat());

        let application = agreed.application(&self.transcript);
        // For an alert: data is sent with the keys of the session.
        channel.send_with(application.server.clone());
        (self.agreed, self.application) = (Some(agreed), Some(application));
        self.state = State::AwaitFinished;
        Ok(())
    }

    fn finish(&mut self, value: &[u8], channel: &Channel) -> Result<(), TlsError> {
        let agreed = self.agreed.as_ref().expect("it is encrypted already");
        if agreed.finished_of(Role::Client, &self.transcript) != Secret::copy_of(value) {
            return Err(TlsError::FinishedDiffers);
        }
        channel.at_boundary()?;
        self.state = State::Complete;
        Ok(())
    }

    /// Whose handshake this is, as far as the client has said it: the identity that was chosen, or the first one.
    pub(crate) fn offered(&self) -> Option<&[u8]> {
        self.offered.as_deref()
    }

    /// The key that was chosen, for errors.
    pub(crate) fn identity(&self) -> Option<Identities> {
        self.agreed.as_ref().map(|agreed| Identities::one(&agreed.identity))
    }

    pub(crate) fn into_parts(self) -> Option<(Agreed, ApplicationKeys)> {
        self.agreed.zip(self.application)
    }
}
