//! Handshake messages (RFC 8446, section 4): what is parsed has only values that it may have.

mod client_hello;
mod server_hello;

use std::fmt;

use crate::codec::{Reader, Writer};
use crate::error::TlsError;

pub(crate) use client_hello::{ClientHello, ClientHelloOffer, KEYS_MAX, KeyShare};
pub(crate) use server_hello::{HelloRetryRequest, ServerHello, is_retry};

/// The version of which this is an implementation.
const TLS13: u16 = 0x0304;

/// Bytes of a hello's random numbers.
pub(crate) const RANDOM_BYTES: usize = 32;

/// Extensions (section 4.2).
pub(crate) mod extension {
    pub(crate) const SUPPORTED_GROUPS: u16 = 10;
    pub(crate) const SIGNATURE_ALGORITHMS: u16 = 13;
    pub(crate) const PRE_SHARED_KEY: u16 = 41;
    pub(crate) const EARLY_DATA: u16 = 42;
    pub(crate) const SUPPORTED_VERSIONS: u16 = 43;
    pub(crate) const COOKIE: u16 = 44;
    pub(crate) const PSK_KEY_EXCHANGE_MODES: u16 = 45;
    pub(crate) const KEY_SHARE: u16 = 51;
}

/// What kind of message it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kind(pub(crate) u8);

impl Kind {
    pub(crate) const CLIENT_HELLO: Self = Self(1);
    pub(crate) const SERVER_HELLO: Self = Self(2);
    pub(crate) const NEW_SESSION_TICKET: Self = Self(4);
    pub(crate) const END_OF_EARLY_DATA: Self = Self(5);
    pub(crate) const ENCRYPTED_EXTENSIONS: Self = Self(8);
    pub(crate) const CERTIFICATE: Self = Self(11);
    pub(crate) const CERTIFICATE_REQUEST: Self = Self(13);
    pub(crate) const CERTIFICATE_VERIFY: Self = Self(15);
    pub(crate) const FINISHED: Self = Self(20);
    pub(crate) const KEY_UPDATE: Self = Self(24);

    /// As RFC 8446 calls it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::CLIENT_HELLO => "ClientHello",
            Self::SERVER_HELLO => "ServerHello",
            Self::NEW_SESSION_TICKET => "NewSessionTicket",
            Self::END_OF_EARLY_DATA => "EndOfEarlyData",
            Self::ENCRYPTED_EXTENSIONS => "EncryptedExtensions",
            Self::CERTIFICATE => "Certificate",
            Self::CERTIFICATE_REQUEST => "CertificateRequest",
            Self::CERTIFICATE_VERIFY => "CertificateVerify",
            Self::FINISHED => "Finished",
            Self::KEY_UPDATE => "KeyUpdate",
            _ => "a message that is not known",
        }
    }
}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.0)
    }
}

/// Calls `take` with the number and the content of each extension. None may be there twice.
fn for_each_extension<'a>(
    mut extensions: Reader<'a>,
    mut take: impl FnMut(u16, Reader<'a>, bool) -> Result<(), TlsError>,
) -> Result<(), TlsError> {
    let mut seen = Vec::new();
    while !extensions.is_empty() {
        let (number, content) = (extensions.u16()?, extensions.vector16()?);
        seen.push(number);
        take(number, content, extensions.is_empty())?;
    }
    let count = seen.len();
    seen.sort_unstable();
    seen.dedup();
    if seen.len() == count { Ok(()) } else { Err(TlsError::Illegal("an extension is there twice")) }
}

/// Finished, with this value.
pub(crate) fn finished(value: &[u8]) -> Vec<u8> {
    Writer::message(Kind::FINISHED.0, |body| body.bytes(value))
}

/// EncryptedExtensions, without any.
pub(crate) fn encrypted_extensions() -> Vec<u8> {
    Writer::message(Kind::ENCRYPTED_EXTENSIONS.0, |body| body.vector16(|_| {}))
}

/// Checks EncryptedExtensions. A server may name the groups that it prefers, and nothing else that was asked for.
pub(crate) fn check_encrypted_extensions(body: &[u8]) -> Result<(), TlsError> {
    let mut body = Reader::new(body, Kind::ENCRYPTED_EXTENSIONS.name());
    let extensions = body.vector16()?;
    body.end()?;
    for_each_extension(extensions, |number, mut content, _| {
        if number != extension::SUPPORTED_GROUPS {
            return Err(TlsError::Extension(number));
        }
        content.vector16()?.list_has(0)?;
        content.end()
    })
}

#[cfg(test)]
mod tests;
