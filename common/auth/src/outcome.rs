//! How a transaction ends, and the numbers that it begins with.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};

use rand_core::CryptoRng;
use ringfab_spec::auth::{FailureExplanation, FailureReason};

use crate::fingerprint::KeyFingerprint;
use crate::group::Group;
use crate::hash::Hash;
use crate::message::Failure;
use crate::psk::{CipherSuite, Derivation, IdentityVersion, InputPsk, Names, TlsPsk};

/// A transaction that has succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authenticated {
    /// The hash function that was used.
    pub hash: Hash,
    /// The group that was used.
    pub group: Group,
    /// Whether the host has authenticated the controller as well.
    pub controller_too: bool,
    /// Which key of the host was used.
    pub key: KeyFingerprint,
    /// What secure channel concatenation has made.
    pub generated_psk: Option<InputPsk>,
}

impl Authenticated {
    /// The key for TLS that secure channel concatenation has made for these names.
    pub fn tls_psk(&self, names: Names<'_>) -> Option<TlsPsk> {
        let suite = CipherSuite::of_hash(self.hash)?;
        let psk = self.generated_psk.as_ref()?;
        let derived = psk.tls(IdentityVersion::One, suite, names, Derivation::Specified);
        Some(derived.expect("an identity of version 1 is never too long for a key"))
    }
}

/// Who has refused to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusedBy {
    /// This end.
    Us,
    /// The other end.
    Peer,
}

/// A transaction that has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Who has refused.
    pub by: RefusedBy,
    /// The reason on the wire.
    pub reason: FailureReason,
    /// Its explanation on the wire.
    pub explanation: FailureExplanation,
    /// What this end knows about it, for its log. A peer is told the explanation alone.
    pub detail: Option<&'static str>,
}

impl Refusal {
    pub(crate) fn ours(explanation: FailureExplanation, detail: &'static str) -> Self {
        let reason = FailureReason::AUTHENTICATION_FAILURE;
        Self { by: RefusedBy::Us, reason, explanation, detail: Some(detail) }
    }

    pub(crate) fn of_peer(failure: &Failure) -> Self {
        let Failure { reason, explanation, .. } = *failure;
        Self { by: RefusedBy::Peer, reason, explanation, detail: None }
    }

    /// What the peer is told.
    pub(crate) fn to_message(self, t_id: u16) -> Failure {
        Failure { t_id, reason: self.reason, explanation: self.explanation }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.by {
            RefusedBy::Us => write!(f, "refused: {}", self.explanation)?,
            RefusedBy::Peer => write!(f, "refused by the peer: {}", self.explanation)?,
        }
        if self.reason != FailureReason::AUTHENTICATION_FAILURE {
            write!(f, ", with the unknown reason {:#04x}", self.reason.0)?;
        }
        match (self.detail, self.explanation.sentence()) {
            (Some(detail), _) => write!(f, " ({detail})"),
            (None, Some(sentence)) => write!(f, " ({sentence})"),
            (None, None) => Ok(()),
        }
    }
}

impl std::error::Error for Refusal {}

/// Sequence numbers of an end: they begin at random, count, and are never zero. All connections of the end share them.
#[derive(Debug)]
pub struct SequenceNumbers(AtomicU32);

impl SequenceNumbers {
    /// Begins at random.
    pub fn new(random: &mut dyn CryptoRng) -> Self {
        Self(AtomicU32::new(random.next_u32()))
    }

    /// The next one.
    pub fn next(&self) -> NonZeroU32 {
        loop {
            if let Some(number) = NonZeroU32::new(self.0.fetch_add(1, Ordering::Relaxed)) {
                return number;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_numbers_are_never_zero() {
        let numbers = SequenceNumbers(AtomicU32::new(u32::MAX));
        assert_eq!([numbers.next().get(), numbers.next().get()], [u32::MAX, 1]);
    }

    #[test]
    fn a_refusal_says_who_what_and_why() {
        let ours = Refusal::ours(FailureExplanation::INCORRECT_PAYLOAD, "the sequence number is zero");
        assert_eq!(ours.to_string(), "refused: Incorrect payload (the sequence number is zero)");
        let mut failure = ours.to_message(7);
        failure.explanation = FailureExplanation::HASH_NOT_USABLE;
        assert_eq!(
            Refusal::of_peer(&failure).to_string(),
            "refused by the peer: Hash function not usable (the host offered no hash function that the controller \
             accepts)"
        );
        failure.reason = FailureReason(9);
        failure.explanation = FailureExplanation(0x80);
        assert_eq!(
            Refusal::of_peer(&failure).to_string(),
            "refused by the peer: FailureExplanation 0x80, with the unknown reason 0x09"
        );
    }
}
