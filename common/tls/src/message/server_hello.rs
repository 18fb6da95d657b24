//! ServerHello and HelloRetryRequest (RFC 8446, sections 4.1.3 and 4.1.4).

use ringfab_auth::CipherSuite;

use super::{Kind, RANDOM_BYTES, TLS13, extension, for_each_extension};
use crate::codec::{Reader, Writer};
use crate::error::TlsError;
use crate::group::Group;
use crate::joiner::MESSAGE_HEADER_BYTES;
use crate::suite;
use crate::wire::{LEGACY_VERSION, Role};

/// The random numbers of a ServerHello that is a HelloRetryRequest: the SHA-256 of its name.
const RETRY: [u8; RANDOM_BYTES] = [
    0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91, 0xc2,
    0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
];

/// Whether a message of the kind ServerHello is a HelloRetryRequest.
pub(crate) fn is_retry(message: &[u8]) -> bool {
    const AT: usize = MESSAGE_HEADER_BYTES + 2;
    message.get(AT..AT + RANDOM_BYTES) == Some(&RETRY)
}

/// What both have.
struct Common<'a> {
    suite: CipherSuite,
    extensions: Reader<'a>,
}

impl<'a> Common<'a> {
    fn parse(message: &'a [u8], name: &'static str) -> Result<Self, TlsError> {
        let mut body = Reader::new(&message[MESSAGE_HEADER_BYTES..], name);
        let version = body.u16()?;
        let _random = body.bytes(RANDOM_BYTES)?;
        let session_id = body.vector8()?;
        let suite = body.u16()?;
        let compression = body.u8()?;
        // Versions before 1.3 may end here.
        let extensions = if body.is_empty() { body } else { body.vector16()? };
        body.end()?;
        if version != LEGACY_VERSION || !has_version(extensions)? {
            return Err(TlsError::Version(Role::Server));
        }
        // None was sent.
        if !session_id.is_empty() {
            return Err(TlsError::Illegal("the controller answers with another session identifier"));
        }
        if compression != 0 {
            return Err(TlsError::Illegal("the controller chooses compression, which TLS 1.3 does not have"));
        }
        let suite = suite::from_number(suite)
            .ok_or(TlsError::Illegal("the controller chooses a cipher suite that was not offered"))?;
        Ok(Self { suite, extensions })
    }
}

/// Whether version 1.3 is chosen. It is looked for first: an older server sends other extensions.
fn has_version(extensions: Reader<'_>) -> Result<bool, TlsError> {
    let mut found = false;
    for_each_extension(extensions, |number, mut content, _| {
        if number == extension::SUPPORTED_VERSIONS {
            found = content.u16()? == TLS13;
            content.end()?;
        }
        Ok(())
    })?;
    Ok(found)
}

/// What the server has chosen.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ServerHello<'a> {
    pub(crate) suite: CipherSuite,
    /// Of which group its share is. None: one that is not known.
    pub(crate) group: Option<Group>,
    pub(crate) share: &'a [u8],
    /// Which of the offered keys. None: none of them.
    pub(crate) psk: Option<u16>,
}

impl<'a> ServerHello<'a> {
    /// Parses a whole message, with its header.
    pub(crate) fn parse(message: &'a [u8]) -> Result<Self, TlsError> {
        let Common { suite, extensions } = Common::parse(message, Kind::SERVER_HELLO.name())?;
        let (mut share, mut psk) = (None, None);
        for_each_extension(extensions, |number, mut content, _| {
            match number {
                extension::KEY_SHARE => share = Some((content.u16()?, content.vector16()?.filled()?)),
                extension::PRE_SHARED_KEY => psk = Some(content.u16()?),
                extension::SUPPORTED_VERSIONS => return Ok(()),
                _ => return Err(TlsError::Extension(number)),
            }
            content.end()
        })?;
        let (group, share) = share.ok_or(match psk {
            Some(_) => TlsError::Illegal("the controller wants to use a key without key agreement"),
            None => TlsError::Missing {
                peer: Role::Server,
                message: Kind::SERVER_HELLO.name(),
                extension: "key_share",
            },
        })?;
        Ok(Self { suite, group: Group::from_number(group), share, psk })
    }

    /// The message, with `session_id` from the ClientHello.
    pub(crate) fn write(&self, random: &[u8], session_id: &[u8]) -> Vec<u8> {
        write(random, session_id, self.suite, |extensions| {
            let group = self.group.expect("a group of our own");
            extensions.extension(extension::KEY_SHARE, |content| {
                content.u16(group.number());
                content.vector16(|share| share.bytes(self.share));
            });
            if let Some(psk) = self.psk {
                extensions.extension(extension::PRE_SHARED_KEY, |content| content.u16(psk));
            }
        })
    }
}

/// What the server asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct HelloRetryRequest<'a> {
    pub(crate) suite: CipherSuite,
    /// Of which group it wants a share.
    pub(crate) group: Option<u16>,
    /// What it wants back.
    pub(crate) cookie: Option<&'a [u8]>,
}

impl<'a> HelloRetryRequest<'a> {
    /// Parses a whole message, with its header.
    pub(crate) fn parse(message: &'a [u8]) -> Result<Self, TlsError> {
        let Common { suite, extensions } = Common::parse(message, "HelloRetryRequest")?;
        let (mut group, mut cookie) = (None, None);
        for_each_extension(extensions, |number, mut content, _| {
            match number {
                extension::KEY_SHARE => group = Some(content.u16()?),
                extension::COOKIE => cookie = Some(content.vector16()?.filled()?),
                extension::SUPPORTED_VERSIONS => return Ok(()),
                _ => return Err(TlsError::Extension(number)),
            }
            content.end()
        })?;
        Ok(Self { suite, group, cookie })
    }

    /// A message that asks for a share of a group.
    pub(crate) fn write(suite: CipherSuite, group: Group, session_id: &[u8]) -> Vec<u8> {
        write(&RETRY, session_id, suite, |extensions| {
            extensions.extension(extension::KEY_SHARE, |content| content.u16(group.number()));
        })
    }
}

fn write(random: &[u8], session_id: &[u8], suite: CipherSuite, more: impl FnOnce(&mut Writer)) -> Vec<u8> {
    Writer::message(Kind::SERVER_HELLO.0, |body| {
        body.u16(LEGACY_VERSION);
        body.bytes(random);
        body.vector8(|echo| echo.bytes(session_id));
        body.u16(suite::number(suite));
        body.u8(0);
        body.vector16(|extensions| {
            extensions.extension(extension::SUPPORTED_VERSIONS, |content| content.u16(TLS13));
            more(extensions);
        });
    })
}
