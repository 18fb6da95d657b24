//! How this host proves who it is, how the controller has to, and why that fails (DH-HMAC-CHAP).

use std::sync::Arc;
use std::time::Duration;

use ringfab_auth::{
    DhchapKey, KeyRole, KeySource, Parties, Policy, Refusal, RefusedBy, SequenceNumbers, system_random,
};
use ringfab_spec::Nqn;
use ringfab_spec::auth::FailureExplanation;

/// How this host proves who it is to controllers that ask for it, and how they have to.
///
/// ```
/// use std::time::Duration;
///
/// use ringfab_initiator::{Authentication, Group, Hash, Key, KeySource, Keys, Policy};
///
/// # fn main() -> Result<(), String> {
/// let host = Key::At(KeySource::parse("file:/etc/ringfab/keys/host")?);
/// let mut authentication = Authentication::new(Keys { host, controller: None });
/// authentication.policy = Policy::at_least(Hash::Sha384, Group::Ffdhe3072);
/// authentication.repeat = Some(Duration::from_secs(3600));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Authentication {
    /// The keys.
    pub keys: Keys,
    /// Hash functions and groups that are offered. The controller chooses.
    pub policy: Policy,
    /// How long after an authentication the host authenticates again, on each queue that the controller has asked it
    /// on. Never when none.
    pub repeat: Option<Duration>,
    /// All connections of the host share them.
    numbers: Arc<SequenceNumbers>,
}

/// The keys of both ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    /// With it this host proves who it is.
    pub host: Key,
    /// With it the controller proves who it is. When there is one, the controller has to: one that does not ask for
    /// authentication, or has another key, is not used.
    pub controller: Option<Key>,
}

/// A key, or where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Key {
    /// The key itself.
    Known(DhchapKey),
    /// It is read anew for each connection and each authentication, so that another one can be put there.
    At(KeySource),
}

impl Authentication {
    /// With these keys, each hash function, each group from ffdhe2048 on, and no repetition.
    pub fn new(keys: Keys) -> Self {
        let numbers = Arc::new(SequenceNumbers::new(&mut system_random()));
        let policy = Policy::at_least(ringfab_auth::Hash::Sha256, ringfab_auth::Group::Ffdhe2048);
        Self { keys, policy, repeat: None, numbers }
    }

    /// Sequence numbers of its challenges.
    pub(crate) fn numbers(&self) -> &SequenceNumbers {
        &self.numbers
    }
}

impl Key {
    /// The key. One that is somewhere is read, which waits for the file system; `role` says which one is meant where a
    /// file has several.
    ///
    /// # Errors
    /// Why it cannot be read, or what is wrong with it. The message has nothing of its text.
    pub fn get(&self, role: KeyRole) -> Result<DhchapKey, String> {
        match self {
            Self::Known(key) => Ok(key.clone()),
            Self::At(source) => source.read_dhchap(role),
        }
    }
}

impl Keys {
    /// Both ends with their keys. Waits where these are read.
    pub(crate) fn parties(&self, host: &str, subsystem: &str) -> Result<Arc<Parties>, AuthenticationFailure> {
        let name = |text| Nqn::new(text).map_err(|error| AuthenticationFailure::HostKey(error.to_string()));
        let key = self.host.get(KeyRole::Host).map_err(AuthenticationFailure::HostKey)?;
        let controller_key = self.controller.as_ref().map(|key| key.get(KeyRole::Controller)).transpose();
        let controller_key = controller_key.map_err(AuthenticationFailure::ControllerKey)?;
        Ok(Parties::new(name(host)?, name(subsystem)?, &key, controller_key.as_ref()))
    }
}

/// Why this host and a controller have not authenticated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AuthenticationFailure {
    /// The controller asks for it, and there is no key.
    #[error("the target asks this host to authenticate, and no key is given for it")]
    NoKey,
    /// The controller does not ask for it, and should prove who it is.
    #[error("the target does not ask for authentication, and so does not prove who it is")]
    NotAsked,
    /// The controller takes connections over TLS only, and there is neither a key for TLS nor one for authentication.
    #[error("the target takes this host over TLS only, and no key for TLS is given for it")]
    NoKeyForTls,
    /// The controller takes connections over TLS only, and there is no key for TLS. It would take one that
    /// authentication makes (secure channel concatenation).
    #[error(
        "the target takes this host over TLS only, and no key for TLS is given for it, only one for authentication"
    )]
    SecureChannel,
    /// Authentication shall make a key for TLS, and the host has no key to authenticate with.
    #[error(
        "authentication shall make the key for TLS (concatenation), and this host has no key for authentication"
    )]
    NothingToConcatenate,
    /// Authentication shall make a key for TLS, and the controller does not ask for it.
    #[error(
        "authentication shall make the key for TLS (concatenation), and the target does not ask this host for it"
    )]
    NoConcatenation,
    /// Of what is offered nothing can make a key for TLS.
    #[error("none of the {0} that this host offers can make a key for TLS (concatenation)")]
    MakesNoKey(&'static str),
    /// The key of the host cannot be read.
    #[error("the key of this host {0}")]
    HostKey(String),
    /// The key of the controller cannot be read.
    #[error("the key of the controller {0}")]
    ControllerKey(String),
    /// The controller does not take a second authentication on a connection.
    #[error("the target does not authenticate a connection again")]
    OnlyOnce,
    /// One end has refused the other.
    #[error("{}", refused(.0))]
    Refused(Refusal),
}

fn refused(refusal: &Refusal) -> String {
    match (refusal.by, refusal.explanation) {
        (RefusedBy::Peer, FailureExplanation::AUTHENTICATION_FAILED) => {
            "the target refuses the key of this host".to_owned()
        }
        (RefusedBy::Us, FailureExplanation::AUTHENTICATION_FAILED) => {
            "the target has another controller key than this host, so it may not be the one that is meant"
                .to_owned()
        }
        (RefusedBy::Peer, FailureExplanation::SECURE_CHANNEL_MISMATCH) => {
            "the target and this host do not agree on whether authentication makes a key for TLS (concatenation)"
                .to_owned()
        }
        (RefusedBy::Peer, FailureExplanation::HASH_NOT_USABLE) => {
            "the target accepts none of the hash functions that this host offers".to_owned()
        }
        (RefusedBy::Peer, FailureExplanation::GROUP_NOT_USABLE) => {
            "the target accepts none of the DH groups that this host offers".to_owned()
        }
        (RefusedBy::Peer, explanation) => format!("the target refuses to go on: {explanation}"),
        (RefusedBy::Us, explanation) => match refusal.detail {
            Some(detail) => detail.to_owned(),
            None => explanation.to_string(),
        },
    }
}

#[cfg(test)]
mod tests {
    use ringfab_auth::Hash;
    use ringfab_spec::auth::FailureReason;

    use super::*;

    fn refusal(by: RefusedBy, explanation: u8) -> AuthenticationFailure {
        AuthenticationFailure::Refused(Refusal {
            by,
            reason: FailureReason::AUTHENTICATION_FAILURE,
            explanation: FailureExplanation(explanation),
            detail: (by == RefusedBy::Us).then_some("what we know"),
        })
    }

    #[test]
    fn each_refusal_is_a_sentence_of_its_own() {
        let explanations = [1, 2, 3, 4, 5, 6, 7, 0x99];
        let said = |by| explanations.map(|explanation| refusal(by, explanation).to_string());
        let by_peer = said(RefusedBy::Peer);
        let mut different = by_peer.to_vec();
        different.sort_unstable();
        different.dedup();
        assert_eq!(different.len(), explanations.len(), "{by_peer:?}");
        assert!(by_peer.iter().all(|text| text.starts_with("the target ")), "{by_peer:?}");
        let by_us = said(RefusedBy::Us);
        assert!(by_us[0].starts_with("the target has another controller key"));
        assert!(by_us[1..].iter().all(|text| text == "what we know"), "{by_us:?}");
    }

    #[test]
    fn keys_are_never_printed_and_one_that_cannot_be_read_says_whose_it_is() {
        let key = DhchapKey::generate(Hash::Sha256, None, &mut system_random());
        let text = key.to_text();
        let base64 = &text.expose()[10..30];
        let keys =
            Keys { host: Key::Known(key), controller: Some(Key::At(KeySource::File("/nowhere".into()))) };
        let authentication = Authentication::new(keys.clone());
        assert!(!format!("{authentication:?}").contains(base64));
        let error =
            keys.parties("nqn.2026-01.org.example:a", "nqn.2026-01.org.example:b").expect_err("no file");
        assert!(error.to_string().starts_with("the key of the controller cannot read /nowhere"), "{error}");
        let keys = Keys { controller: None, ..keys };
        assert!(keys.parties("nqn.2026-01.org.example:a", "nqn.2026-01.org.example:b").is_ok());
    }
}
