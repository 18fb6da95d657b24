//! Why a connection cannot go on.

use std::fmt;

use thiserror::Error;

use crate::alert::Alert;
use crate::wire::{HEADER_BYTES, PLAINTEXT_BYTES_MAX, Role};

/// Characters of an identity that are shown. Those of NVMe/TCP, with the longest names, are shorter.
const IDENTITY_CHARACTERS_MAX: usize = 600;
/// Identities that are shown.
const IDENTITIES_MAX: usize = 3;

/// Why a connection cannot go on, as a sentence. It contains no secrets.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TlsError {
    /// The bytes are no record.
    #[error("{0}")]
    NotTls(Heard),
    /// A record is longer than any may be: bytes behind its header.
    #[error("a record of {0} bytes is too long")]
    RecordOverflow(usize),
    /// What was given is not exactly one record.
    #[error("the bytes are not exactly one record")]
    RecordCut,
    /// A record could not be decrypted.
    #[error("a record cannot be decrypted: the keys of both ends differ, or it was changed")]
    Undecryptable,
    /// A message cannot be parsed.
    #[error("{0} cannot be parsed")]
    Malformed(&'static str),
    /// A field has a value that it must not have.
    #[error("{0}")]
    Illegal(&'static str),
    /// It is not the turn of such a message.
    #[error("{peer} sends {message} where {awaited} is awaited")]
    Unexpected {
        /// Who sends it.
        peer: Role,
        /// What it sends.
        message: &'static str,
        /// What it should send.
        awaited: &'static str,
    },
    /// A message that must not be there after the handshake, or what is cut in a wrong place.
    #[error("{0}")]
    OutOfOrder(&'static str),
    /// A message is longer than any that is of use here.
    #[error("a message of {0} bytes is longer than the {max} that are allowed here", max = PLAINTEXT_BYTES_MAX)]
    MessageTooLong(usize),
    /// The peer does not speak version 1.3.
    #[error("{0} does not speak TLS 1.3")]
    Version(Role),
    /// An extension that was not asked for, or must not be in that message.
    #[error("the controller answers with extension {0}, which it must not")]
    Extension(u16),
    /// A message has not the extension that it must have.
    #[error("{peer} sends {message} without the extension {extension}")]
    Missing {
        /// Who.
        peer: Role,
        /// Which message.
        message: &'static str,
        /// What it must have.
        extension: &'static str,
    },
    /// Keys are offered for use without key agreement alone.
    #[error("the host offers no keys with key agreement (psk_dhe_ke)")]
    NoKeyAgreement,
    /// No pre-shared key is offered.
    #[error("the host offers no pre-shared key")]
    NoKeyOffered,
    /// None of the offered keys is known.
    #[error("the host offers no key that is known here{1}: {0}")]
    UnknownKeys(Identities, Reasons),
    /// The key is known, but its suite is not offered.
    #[error("the host does not offer {suite}, the cipher suite of its key: {identity}")]
    SuiteNotOffered {
        /// The suite.
        suite: ringfab_auth::CipherSuite,
        /// The key.
        identity: Identities,
    },
    /// The key is known, and is another one there.
    #[error("the key of the host and the key here differ (the binder does not verify): {0}")]
    BinderDiffers(Identities),
    /// The binder was made with another hash function.
    #[error(
        "the host uses a key for {suite} with another hash function (the binder has a wrong length): {identity}"
    )]
    BinderLength {
        /// The suite of the key.
        suite: ringfab_auth::CipherSuite,
        /// The key.
        identity: Identities,
    },
    /// There is no common group.
    #[error("the host offers no group that is implemented here (x25519, secp256r1 and secp384r1 are)")]
    NoGroup,
    /// The server has chosen none of the keys.
    #[error("the controller accepts none of the keys that were offered: {0}")]
    NoKeyAccepted(Identities),
    /// The Finished message is not that of a peer with the same key and messages.
    #[error(
        "the handshake does not verify (Finished): the keys of both ends differ, or a message was changed"
    )]
    FinishedDiffers,
    /// The peer has ended the handshake or the connection.
    #[error("{peer} has ended the connection with {alert}: {sentence}{tried}", sentence = alert.sentence())]
    PeerAlert {
        /// Who.
        peer: Role,
        /// Why.
        alert: Alert,
        /// The keys that it was offered, if that may be why.
        tried: Tried,
    },
    /// Both ends have to make new keys, which only a new connection does.
    #[error(
        "the keys of this connection have protected as many records as they may: a new connection makes new ones"
    )]
    KeysWorn,
    /// A record of more than 2^14 bytes, or a buffer of a wrong length, from the caller.
    #[error("a record of {0} bytes cannot be made")]
    Sealing(usize),
    /// The keys to offer cannot be offered.
    #[error("{0}")]
    Offer(&'static str),
    /// The handshake is not over.
    #[error("the handshake is not complete")]
    Incomplete,
}

impl TlsError {
    /// What the peer is told about it. None: it has ended the connection itself.
    pub const fn alert(&self) -> Option<Alert> {
        Some(match self {
            Self::PeerAlert { .. } => return None,
            Self::NotTls(_) | Self::Unexpected { .. } | Self::OutOfOrder(_) => Alert::UNEXPECTED_MESSAGE,
            Self::RecordOverflow(_) => Alert::RECORD_OVERFLOW,
            Self::Undecryptable => Alert::BAD_RECORD_MAC,
            Self::RecordCut | Self::Malformed(_) => Alert::DECODE_ERROR,
            Self::Illegal(_) | Self::MessageTooLong(_) | Self::BinderLength { .. } => {
                Alert::ILLEGAL_PARAMETER
            }
            Self::Version(_) => Alert::PROTOCOL_VERSION,
            Self::Extension(_) => Alert::UNSUPPORTED_EXTENSION,
            Self::Missing { .. } => Alert::MISSING_EXTENSION,
            Self::UnknownKeys(..) => Alert::UNKNOWN_PSK_IDENTITY,
            Self::BinderDiffers(_) | Self::FinishedDiffers => Alert::DECRYPT_ERROR,
            Self::NoKeyOffered
            | Self::NoKeyAgreement
            | Self::SuiteNotOffered { .. }
            | Self::NoGroup
            | Self::NoKeyAccepted(_) => Alert::HANDSHAKE_FAILURE,
            Self::KeysWorn => Alert::CLOSE_NOTIFY,
            Self::Sealing(_) | Self::Offer(_) | Self::Incomplete => Alert::INTERNAL_ERROR,
        })
    }
}

/// What was heard instead of TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard([u8; HEADER_BYTES]);

impl Heard {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        Self(*bytes.first_chunk().expect("the length of a header"))
    }
}

impl fmt::Display for Heard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The types of PDUs go up to 9, and headers of PDUs are at least 8 bytes.
        if let [0..=9, _, 8..=255, _, _] = self.0 {
            return f.write_str("the peer speaks NVMe/TCP in clear text, not TLS");
        }
        write!(f, "the peer does not speak TLS: its first bytes are \"{}\"", self.0.escape_ascii())
    }
}

/// Names of keys as they are shown: escaped, and no more than a few.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identities {
    shown: Vec<String>,
    others: usize,
}

impl Identities {
    pub(crate) fn of<'a>(identities: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut all = Self::default();
        for identity in identities {
            if all.shown.len() < IDENTITIES_MAX {
                all.shown.push(shown(identity));
            } else {
                all.others += 1;
            }
        }
        all
    }

    pub(crate) fn one(identity: &[u8]) -> Self {
        Self::of([identity])
    }
}

fn shown(identity: &[u8]) -> String {
    let mut text =
        identity.iter().take(IDENTITY_CHARACTERS_MAX).copied().collect::<Vec<_>>().escape_ascii().to_string();
    if text.len() > IDENTITY_CHARACTERS_MAX || identity.len() > IDENTITY_CHARACTERS_MAX {
        text.truncate(IDENTITY_CHARACTERS_MAX);
        text.push_str("...");
    }
    text
}

impl fmt::Display for Identities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, identity) in self.shown.iter().enumerate() {
            write!(f, "{}identity \"{identity}\"", if number == 0 { "" } else { ", " })?;
        }
        if self.others > 0 {
            write!(f, ", and {} more", self.others)?;
        }
        Ok(())
    }
}

/// Why keys are not known: each reason once, and no more than a few.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reasons(Vec<String>);

impl Reasons {
    pub(crate) fn add(&mut self, reason: String) {
        if self.0.len() < IDENTITIES_MAX && !self.0.contains(&reason) {
            self.0.push(reason);
        }
    }
}

impl fmt::Display for Reasons {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, " ({})", self.0.join("; ")) }
    }
}

/// The keys that a peer was offered before it ended the handshake.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tried(pub(crate) Option<Identities>);

impl fmt::Display for Tried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map_or(Ok(()), |identities| write!(f, " ({identities})"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_are_escaped_and_bounded() {
        let long = [b'x'; 700];
        let names: [&[u8]; 5] = [b"NVMe0R01 host sub", b"a\"\n\xff", &long, b"4", b"5"];
        let text = Identities::of(names).to_string();
        let expected = format!(
            "identity \"NVMe0R01 host sub\", identity \"a\\\"\\n\\xff\", identity \"{}...\", and 2 more",
            "x".repeat(IDENTITY_CHARACTERS_MAX)
        );
        assert_eq!(text, expected);
        assert!(shown(&[0; 700]).len() <= IDENTITY_CHARACTERS_MAX + 3);
        assert!(shown(&[0; 200]).ends_with("..."));
        assert!(!shown(&[b'x'; 600]).ends_with("..."));
    }

    #[test]
    fn an_alert_of_the_peer_is_a_sentence_and_gets_no_answer() {
        let tried = Tried(Some(Identities::one(b"NVMe0R01 host sub")));
        let error = TlsError::PeerAlert { peer: Role::Server, alert: Alert::UNKNOWN_PSK_IDENTITY, tried };
        assert_eq!(
            error.to_string(),
            "the controller has ended the connection with unknown_psk_identity: it has no key with an identity that \
             was offered (identity \"NVMe0R01 host sub\")"
        );
        assert_eq!(error.alert(), None);
        let error = TlsError::PeerAlert { peer: Role::Client, alert: Alert(200), tried: Tried::default() };
        assert_eq!(
            error.to_string(),
            "the host has ended the connection with alert 200: this alert is not known"
        );
    }
}
