//! The client's side of a handshake.

mod automaton;

use ringfab_auth::{CipherSuite, Secret};

use crate::agreed::{Agreed, ApplicationKeys, Transcript};
use crate::channel::Channel;
use crate::error::{Identities, TlsError};
use crate::event::Event;
use crate::group::{Group, Private, SEED_BYTES};
use crate::joiner::MESSAGE_HEADER_BYTES;
use crate::keys::Schedule;
use crate::message::{self, ClientHelloOffer, HelloRetryRequest, KEYS_MAX, RANDOM_BYTES, ServerHello};
use crate::psk::Psk;
use crate::wire::{PLAINTEXT_BYTES_MAX, Role};

pub(crate) use automaton::State;
use automaton::{Step, next};

/// The group of the first key share. All others that are known are named as well.
const FIRST_GROUP: Group = Group::X25519;

/// A handshake of a client.
#[derive(Debug)]
pub(crate) struct Client {
    state: State,
    psks: Vec<Psk>,
    /// Of the ClientHello.
    random: Secret,
    private: Private,
    /// Of which a private value of another group is made if the server asks for it.
    retry_seed: Secret,
    /// The suite that the server has chosen when it asked for another share.
    retried_suite: Option<CipherSuite>,
    transcript: Transcript,
    agreed: Option<Agreed>,
    application: Option<ApplicationKeys>,
}

impl Client {
    /// Offers keys, which are checked here, and sends the ClientHello.
    pub(crate) fn start(
        psks: Vec<Psk>,
        random: &mut dyn rand_core::CryptoRng,
        channel: &mut Channel,
    ) -> Result<Self, TlsError> {
        check(&psks)?;
        let mut client = Self {
            state: State::AwaitServerHello,
            psks,
            random: Secret::random(RANDOM_BYTES, random),
            private: Private::new(FIRST_GROUP, &Secret::random(SEED_BYTES, random))?,
            retry_seed: Secret::random(SEED_BYTES, random),
            retried_suite: None,
            transcript: Transcript::default(),
            agreed: None,
            application: None,
        };
        client.offer(None, channel);
        Ok(client)
    }

    fn offer(&mut self, cookie: Option<&[u8]>, channel: &mut Channel) {
        let share = self.private.public();
        let offer = ClientHelloOffer {
            random: self.random.expose(),
            group: self.private.group(),
            share: &share,
            cookie,
            psks: &self.psks,
        };
        let hello = offer.write(|psk, before_binders| {
            Schedule::early(psk.suite.hash(), &psk.secret).binder(&self.transcript.with(before_binders))
        });
        self.transcript.push(&hello);
        channel.send_messages(&hello);
    }

    pub(crate) fn state(&self) -> State {
        self.state
    }

    pub(crate) fn take(&mut self, event: Event, bytes: &[u8], channel: &mut Channel) -> Result<(), TlsError> {
        match next(self.state, event) {
            Step::Retry => self.retry(bytes, channel),
            Step::Agree => self.agree(bytes, channel),
            Step::Extensions => {
                message::check_encrypted_extensions(&bytes[MESSAGE_HEADER_BYTES..])?;
                self.transcript.push(bytes);
                self.state = State::AwaitFinished;
                Ok(())
            }
            Step::Finish => self.finish(&bytes[MESSAGE_HEADER_BYTES..], bytes, channel),
            Step::Ignore => Ok(()),
            Step::Refuse => Err(TlsError::Unexpected {
                peer: Role::Server,
                message: event.name(),
                awaited: self.state.awaited(),
            }),
        }
    }

    /// The server wants a share of another group.
    fn retry(&mut self, bytes: &[u8], channel: &mut Channel) -> Result<(), TlsError> {
        let request = HelloRetryRequest::parse(bytes)?;
        channel.at_boundary()?;
        self.psks.retain(|psk| psk.suite == request.suite);
        if self.psks.is_empty() {
            return Err(OTHER_SUITE);
        }
        if let Some(number) = request.group {
            let group = Group::from_number(number).filter(|&group| group != self.private.group());
            let group = group
                .ok_or(TlsError::Illegal("the controller asks for a key share that it has, or cannot get"))?;
            self.private = Private::new(group, &self.retry_seed)?;
        } else if request.cookie.is_none() {
            return Err(TlsError::Illegal(
                "the controller asks for another ClientHello without a difference",
            ));
        }
        if request.cookie.is_some_and(|cookie| cookie.len() > COOKIE_BYTES_MAX) {
            return Err(TlsError::Illegal("the cookie of the controller is too long to be sent back"));
        }
        self.retried_suite = Some(request.suite);
        self.transcript.retry(request.suite.hash(), bytes);
        self.offer(request.cookie, channel);
        self.state = State::AwaitSecondServerHello;
        Ok(())
    }

    /// The server has chosen.
    fn agree(&mut self, bytes: &[u8], channel: &mut Channel) -> Result<(), TlsError> {
        let hello = ServerHello::parse(bytes)?;
        if self.retried_suite.is_some_and(|suite| suite != hello.suite) {
            return Err(TlsError::Illegal("the controller has changed its mind about the cipher suite"));
        }
        let index = hello.psk.ok_or_else(|| TlsError::NoKeyAccepted(self.identities()))?;
        let psk = self.psks.get(usize::from(index));
        let psk = psk.ok_or(TlsError::Illegal("the controller chooses a key that was not offered"))?;
        if psk.suite != hello.suite {
            return Err(OTHER_SUITE);
        }
        if hello.group != Some(self.private.group()) {
            return Err(TlsError::Illegal("the controller chooses a group for which it got no key share"));
        }
        let shared = self.private.agree(hello.share)?;
        self.transcript.push(bytes);
        let agreed = Agreed::new(psk.identity.clone(), &psk.secret, psk.suite, &shared, &self.transcript);
        channel.receive_with(agreed.keys_of(Role::Server))?;
        channel.send_with(agreed.keys_of(Role::Client));
        self.agreed = Some(agreed);
        self.state = State::AwaitEncryptedExtensions;
        Ok(())
    }

    fn finish(&mut self, value: &[u8], bytes: &[u8], channel: &mut Channel) -> Result<(), TlsError> {
        let agreed = self.agreed.as_ref().expect("it is encrypted already");
        if agreed.finished_of(Role::Server, &self.transcript) != Secret::copy_of(value) {
            return Err(TlsError::FinishedDiffers);
        }
        channel.at_boundary()?;
        self.transcript.push(bytes);
        let proof = agreed.finished_of(Role::Client, &self.transcript);
        channel.send_messages(&message::finished(proof.expose()));
        self.application = Some(agreed.application(&self.transcript));
        self.state = State::Complete;
        Ok(())
    }

    /// The keys that were offered, for errors.
    pub(crate) fn identities(&self) -> Identities {
        Identities::of(self.psks.iter().map(|psk| &psk.identity[..]))
    }

    pub(crate) fn into_parts(self) -> Option<(Agreed, ApplicationKeys)> {
        self.agreed.zip(self.application)
    }
}

const OTHER_SUITE: TlsError =
    TlsError::Illegal("the controller chooses another cipher suite than that of the key");

/// What a server may have sent back.
const COOKIE_BYTES_MAX: usize = 1024;

/// What of a ClientHello is not keys, with a cookie.
const HELLO_BYTES_MAX: usize = 512 + COOKIE_BYTES_MAX;

/// Whether these keys can be offered, in a message that every server takes.
fn check(psks: &[Psk]) -> Result<(), TlsError> {
    if psks.is_empty() {
        return Err(TlsError::Offer("there is no key to offer"));
    }
    if psks.len() > KEYS_MAX {
        return Err(TlsError::Offer("no more than 32 keys can be offered"));
    }
    if psks.iter().any(|psk| psk.identity.is_empty()) {
        return Err(TlsError::Offer("a key without an identity cannot be offered"));
    }
    let bytes: usize = psks.iter().map(|psk| psk.identity.len() + 7 + psk.suite.hash().length()).sum();
    if bytes > PLAINTEXT_BYTES_MAX - HELLO_BYTES_MAX {
        return Err(TlsError::Offer("the identities of the keys are too long to be offered"));
    }
    Ok(())
}
