//! ClientHello (RFC 8446, section 4.1.2).

use ringfab_auth::CipherSuite;

use super::{Kind, RANDOM_BYTES, TLS13, extension, for_each_extension};
use crate::codec::{Reader, Writer};
use crate::error::TlsError;
use crate::group::Group;
use crate::joiner::MESSAGE_HEADER_BYTES;
use crate::psk::Psk;
use crate::suite;
use crate::wire::{LEGACY_VERSION, Role};

/// How many keys a client offers at most, here and where this end is the server.
pub(crate) const KEYS_MAX: usize = 32;

/// Of the legacy session identifier.
const SESSION_ID_BYTES_MAX: usize = 32;
/// psk_dhe_ke.
const PSK_DHE_KE: u8 = 1;
/// No compression, the only method.
const COMPRESSION: [u8; 1] = [0];
/// The lengths of a binder.
const BINDER_BYTES: std::ops::RangeInclusive<usize> = 32..=255;

/// What a client offers, as far as it is of use here.
#[derive(Debug)]
pub(crate) struct ClientHello<'a> {
    /// The server sends it back.
    pub(crate) session_id: &'a [u8],
    suites: Reader<'a>,
    groups: Reader<'a>,
    shares: Vec<KeyShare<'a>>,
    pub(crate) cookie: bool,
    pub(crate) psks: OfferedPsks<'a>,
}

/// A client's share of a key agreement (KeyShareEntry, RFC 8446, section 4.2.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyShare<'a> {
    pub(crate) group: Group,
    /// The client's public value in that group.
    pub(crate) key_exchange: &'a [u8],
}

/// The keys that a client offers, in its order.
#[derive(Debug, Default)]
pub(crate) struct OfferedPsks<'a> {
    pub(crate) identities: Vec<&'a [u8]>,
    /// As many as there are identities.
    pub(crate) binders: Vec<&'a [u8]>,
    /// Bytes of the message that are before the binders, and are hashed for them.
    pub(crate) hashed_bytes: usize,
}

/// Extensions while they are collected.
#[derive(Default)]
struct Found<'a> {
    version: bool,
    groups: Option<Reader<'a>>,
    shares: Option<Vec<KeyShare<'a>>>,
    modes: Option<&'a [u8]>,
    /// signature_algorithms, which only a host needs that takes certificates.
    signatures: bool,
    psks: Option<OfferedPsks<'a>>,
    cookie: bool,
}

impl<'a> ClientHello<'a> {
    /// Parses a whole message, with its header.
    pub(crate) fn parse(message: &'a [u8]) -> Result<Self, TlsError> {
        let mut body = Reader::new(&message[MESSAGE_HEADER_BYTES..], Kind::CLIENT_HELLO.name());
        let _legacy_version = body.u16()?;
        let _random = body.bytes(RANDOM_BYTES)?;
        let session_id = body.vector8()?.rest();
        let suites = body.vector16()?;
        let compressions = body.vector8()?.rest();
        // Versions before 1.2 may end here.
        let extensions = if body.is_empty() { body } else { body.vector16()? };
        body.end()?;
        if session_id.len() > SESSION_ID_BYTES_MAX {
            return Err(body.malformed());
        }
        suites.list_has(0)?;
        if compressions.is_empty() {
            return Err(body.malformed());
        }

        let mut found = Found::default();
        for_each_extension(extensions, |number, content, last| found.take(number, content, last, message))?;
        if !found.version {
            return Err(TlsError::Version(Role::Client));
        }
        if compressions != COMPRESSION {
            return Err(TlsError::Illegal("ClientHello offers compression, which TLS 1.3 does not have"));
        }
        found.into_hello(session_id, suites)
    }

    pub(crate) fn offers_suite(&self, suite: CipherSuite) -> bool {
        self.suites.list_has(suite::number(suite)) == Ok(true)
    }

    pub(crate) fn offers_group(&self, group: Group) -> bool {
        self.groups.list_has(group.number()) == Ok(true)
    }

    /// The share of the best group that has one.
    pub(crate) fn best_share(&self) -> Option<KeyShare<'a>> {
        let share_of = |group| self.shares.iter().find(|share| share.group == group).copied();
        Group::ALL.into_iter().find_map(share_of)
    }

    /// How many shares of groups that are known there are.
    pub(crate) fn share_count(&self) -> usize {
        self.shares.len()
    }
}

impl<'a> Found<'a> {
    /// A hello has the extensions that it must have (RFC 8446, sections 4.2.9 and 9.2).
    fn into_hello(self, session_id: &'a [u8], suites: Reader<'a>) -> Result<ClientHello<'a>, TlsError> {
        let Some(psks) = self.psks else {
            return Err(match (self.signatures, &self.groups) {
                (true, Some(_)) => TlsError::NoKeyOffered,
                (false, _) => missing("signature_algorithms or pre_shared_key"),
                (_, None) => missing("supported_groups"),
            });
        };
        if !self.modes.ok_or(missing("psk_key_exchange_modes"))?.contains(&PSK_DHE_KE) {
            return Err(TlsError::NoKeyAgreement);
        }
        let groups = self.groups.ok_or(missing("supported_groups"))?;
        let shares = self.shares.ok_or(missing("key_share"))?;
        Ok(ClientHello { session_id, suites, groups, shares, cookie: self.cookie, psks })
    }

    fn take(
        &mut self,
        number: u16,
        mut content: Reader<'a>,
        last: bool,
        message: &[u8],
    ) -> Result<(), TlsError> {
        match number {
            extension::SUPPORTED_VERSIONS => self.version = content.vector8()?.list_has(TLS13)?,
            extension::SUPPORTED_GROUPS => {
                let groups = content.vector16()?;
                groups.list_has(0)?;
                self.groups = Some(groups);
            }
            extension::KEY_SHARE => self.shares = Some(key_shares(content.vector16()?)?),
            extension::PSK_KEY_EXCHANGE_MODES => self.modes = Some(content.vector8()?.filled()?),
            extension::SIGNATURE_ALGORITHMS => {
                content.vector16()?.list_has(0)?;
                self.signatures = true;
            }
            extension::COOKIE => {
                content.vector16()?.filled()?;
                self.cookie = true;
            }
            extension::EARLY_DATA => {
                return Err(TlsError::Illegal(
                    "the host announces early data (0-RTT), which NVMe/TCP does not allow",
                ));
            }
            extension::PRE_SHARED_KEY if !last => {
                return Err(TlsError::Illegal("pre_shared_key is not the last extension of ClientHello"));
            }
            extension::PRE_SHARED_KEY => {
                self.psks = Some(OfferedPsks::read(&mut content, message)?);
            }
            // Others say nothing that would matter here.
            _ => return Ok(()),
        }
        content.end()
    }
}

/// A ClientHello has not this extension.
const fn missing(extension: &'static str) -> TlsError {
    TlsError::Missing { peer: Role::Client, message: Kind::CLIENT_HELLO.name(), extension }
}

/// The shares of groups that are known.
fn key_shares(mut list: Reader<'_>) -> Result<Vec<KeyShare<'_>>, TlsError> {
    let mut shares: Vec<KeyShare<'_>> = Vec::new();
    while !list.is_empty() {
        let (number, key_exchange) = (list.u16()?, list.vector16()?.filled()?);
        let Some(group) = Group::from_number(number) else { continue };
        if shares.iter().any(|share| share.group == group) {
            return Err(TlsError::Illegal("the host sends two key shares of one group"));
        }
        shares.push(KeyShare { group, key_exchange });
    }
    Ok(shares)
}

impl<'a> OfferedPsks<'a> {
    fn read(content: &mut Reader<'a>, message: &[u8]) -> Result<Self, TlsError> {
        let mut psks = Self::default();
        let mut list = content.vector16()?;
        while !list.is_empty() {
            let identity = list.vector16()?.filled()?;
            let _ticket_age: &[u8; 4] = list.array()?;
            psks.identities.push(identity);
        }
        // The extension is the last one, so the binders end the message.
        psks.hashed_bytes = message.len() - content.rest().len();
        let mut list = content.vector16()?;
        while !list.is_empty() {
            let binder = list.vector8()?.rest();
            if !BINDER_BYTES.contains(&binder.len()) {
                return Err(list.malformed());
            }
            psks.binders.push(binder);
        }
        match (psks.identities.len(), psks.binders.len()) {
            (0, _) | (_, 0) => Err(content.malformed()),
            (identities, binders) if identities != binders => {
                Err(TlsError::Illegal("ClientHello has not as many binders as keys"))
            }
            (1..=KEYS_MAX, _) => Ok(psks),
            _ => Err(TlsError::Illegal("the host offers more than 32 keys")),
        }
    }
}

/// A ClientHello of our own.
pub(crate) struct ClientHelloOffer<'a> {
    pub(crate) random: &'a [u8],
    pub(crate) group: Group,
    pub(crate) share: &'a [u8],
    /// From a HelloRetryRequest.
    pub(crate) cookie: Option<&'a [u8]>,
    /// Not empty, and no more than [`KEYS_MAX`].
    pub(crate) psks: &'a [Psk],
}

impl ClientHelloOffer<'_> {
    /// The message. `binder` makes that of a key, from the bytes of the message before the binders.
    ///
    /// There is no session identifier: what is between hosts and controllers of NVMe/TCP does not need to take it for
    /// an older version's.
    pub(crate) fn write(&self, binder: impl Fn(&Psk, &[u8]) -> ringfab_auth::Secret) -> Vec<u8> {
        let binders_bytes: usize = self.psks.iter().map(|psk| 1 + psk.suite.hash().length()).sum();
        let mut message = Writer::message(Kind::CLIENT_HELLO.0, |body| {
            body.u16(LEGACY_VERSION);
            body.bytes(self.random);
            body.vector8(|_| {});
            body.vector16(|suites| {
                for suite in suite::BEST_FIRST.into_iter().filter(|&suite| self.offers(suite)) {
                    suites.u16(suite::number(suite));
                }
            });
            body.vector8(|methods| methods.bytes(&COMPRESSION));
            body.vector16(|extensions| {
                self.write_extensions(extensions);
                extensions.extension(extension::PRE_SHARED_KEY, |content| {
                    self.write_identities(content);
                    content.vector16(|binders| binders.bytes(&vec![0; binders_bytes]));
                });
            });
        });
        let hashed_bytes = message.len() - binders_bytes - 2;
        let mut binders = Writer::default();
        for psk in self.psks {
            binders.vector8(|content| content.bytes(binder(psk, &message[..hashed_bytes]).expose()));
        }
        let binders = binders.into_bytes();
        message[hashed_bytes + 2..].copy_from_slice(&binders);
        message
    }

    fn offers(&self, suite: CipherSuite) -> bool {
        self.psks.iter().any(|psk| psk.suite == suite)
    }

    fn write_extensions(&self, extensions: &mut Writer) {
        extensions.extension(extension::SUPPORTED_VERSIONS, |content| {
            content.vector8(|versions| versions.u16(TLS13));
        });
        extensions.extension(extension::SUPPORTED_GROUPS, |content| {
            content.vector16(|groups| Group::ALL.into_iter().for_each(|group| groups.u16(group.number())));
        });
        extensions.extension(extension::KEY_SHARE, |content| {
            content.vector16(|shares| {
                shares.u16(self.group.number());
                shares.vector16(|share| share.bytes(self.share));
            });
        });
        if let Some(cookie) = self.cookie {
            extensions.extension(extension::COOKIE, |content| content.vector16(|value| value.bytes(cookie)));
        }
        extensions.extension(extension::PSK_KEY_EXCHANGE_MODES, |content| {
            content.vector8(|modes| modes.u8(PSK_DHE_KE));
        });
    }

    fn write_identities(&self, content: &mut Writer) {
        content.vector16(|identities| {
            for psk in self.psks {
                identities.vector16(|identity| identity.bytes(&psk.identity));
                // The age of a ticket, which an external key does not have.
                identities.bytes(&[0; 4]);
            }
        });
    }
}
