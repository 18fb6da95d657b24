//! What may come in a handshake, for the automata of both ends.

use crate::message::{Kind, is_retry};

/// What comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    ClientHello,
    ServerHello,
    HelloRetryRequest,
    EncryptedExtensions,
    /// A message of those that are about certificates.
    Certificates,
    Finished,
    /// A message that belongs behind a handshake.
    Later,
    /// A message of an unknown kind, or one that no end sends that has no early data.
    Foreign,
    ChangeCipherSpec,
    Data,
}

impl Event {
    /// All of them, in the order of the tests' tables.
    #[cfg(test)]
    pub(crate) const ALL: [Self; 10] = [
        Self::ClientHello,
        Self::ServerHello,
        Self::HelloRetryRequest,
        Self::EncryptedExtensions,
        Self::Certificates,
        Self::Finished,
        Self::Later,
        Self::Foreign,
        Self::ChangeCipherSpec,
        Self::Data,
    ];

    /// The event of a whole message, with its header.
    pub(crate) fn of(message: &[u8]) -> Self {
        match Kind(message[0]) {
            Kind::CLIENT_HELLO => Self::ClientHello,
            Kind::SERVER_HELLO if is_retry(message) => Self::HelloRetryRequest,
            Kind::SERVER_HELLO => Self::ServerHello,
            Kind::ENCRYPTED_EXTENSIONS => Self::EncryptedExtensions,
            Kind::CERTIFICATE | Kind::CERTIFICATE_REQUEST | Kind::CERTIFICATE_VERIFY => Self::Certificates,
            Kind::FINISHED => Self::Finished,
            Kind::NEW_SESSION_TICKET | Kind::KEY_UPDATE => Self::Later,
            _ => Self::Foreign,
        }
    }

    /// As errors call it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::ClientHello => "ClientHello",
            Self::ServerHello => "ServerHello",
            Self::HelloRetryRequest => "HelloRetryRequest",
            Self::EncryptedExtensions => "EncryptedExtensions",
            Self::Certificates => "a message about certificates",
            Self::Finished => "Finished",
            Self::Later => "a message that belongs behind the handshake",
            Self::Foreign => "a message that is not known",
            Self::ChangeCipherSpec => "ChangeCipherSpec",
            Self::Data => "data",
        }
    }
}
