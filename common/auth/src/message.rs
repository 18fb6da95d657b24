//! The messages of authentication as values. What is parsed has the lengths that it says.

use ringfab_spec::auth::{
    self as wire, AuthHeader, AuthId, AuthType, FailureExplanation, FailureReason, GroupId, HashId,
    ProtocolDescriptor, SecureChannel,
};
use ringfab_spec::{FromBytes, IntoBytes};
use thiserror::Error;

use crate::hash::Hash;

/// Bytes of the longest message that either end sends: a Reply with SHA-512, a point of secp384r1 and a ciphertext of
/// ML-KEM-1024.
pub const MESSAGE_BYTES_MAX: usize = 16 + 2 * 64 + (97 + 1568 + 3);

/// The length of DH values is a multiple of it.
const VALUE_LENGTH_UNIT: usize = 4;

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// AUTH_Negotiate, from the host.
    Negotiate(Negotiate),
    /// DH-HMAC-CHAP_Challenge, from the controller.
    Challenge(Challenge<'a>),
    /// DH-HMAC-CHAP_Reply, from the host.
    Reply(Reply<'a>),
    /// DH-HMAC-CHAP_Success1, from the controller.
    Success1(Success1<'a>),
    /// DH-HMAC-CHAP_Success2, from the host; its Transaction Identifier.
    Success2(u16),
    /// AUTH_Failure1, from the controller.
    Failure1(Failure),
    /// AUTH_Failure2, from the host.
    Failure2(Failure),
}

/// What a host offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiate {
    /// Transaction Identifier.
    pub t_id: u16,
    /// SC_C.
    pub secure_channel: SecureChannel,
    /// The first protocol descriptor of DH-HMAC-CHAP. None: the host offers only other protocols.
    pub offer: Option<Proposal>,
}

/// Hash functions and groups of a host. No more than [`ProtocolDescriptor::IDS_MAX`] of each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// Hash functions.
    pub hashes: Vec<HashId>,
    /// Groups.
    pub groups: Vec<GroupId>,
}

/// The controller's choice, and its challenge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Challenge<'a> {
    /// Transaction Identifier.
    pub t_id: u16,
    /// Hash function.
    pub hash: HashId,
    /// Group.
    pub group: GroupId,
    /// Sequence Number S1.
    pub seqnum: u32,
    /// C1.
    pub challenge: &'a [u8],
    /// The controller's DH value; empty with the null group.
    pub value: &'a [u8],
}

/// The host's response, and its own challenge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply<'a> {
    /// Transaction Identifier.
    pub t_id: u16,
    /// Sequence Number S2. Zero: the host does not authenticate the controller.
    pub seqnum: u32,
    /// CVALID: whether `challenge` is one.
    pub challenge_valid: bool,
    /// R1.
    pub response: &'a [u8],
    /// C2, as long as R1.
    pub challenge: &'a [u8],
    /// The host's DH value; empty with the null group.
    pub value: &'a [u8],
}

/// The host is authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Success1<'a> {
    /// Transaction Identifier.
    pub t_id: u16,
    /// HL, which is there even without a response.
    pub hash_length: u8,
    /// R2, if RVALID says that it is one.
    pub response: Option<&'a [u8]>,
}

/// Why the transaction has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Transaction Identifier.
    pub t_id: u16,
    /// Reason Code.
    pub reason: FailureReason,
    /// Reason Code Explanation.
    pub explanation: FailureExplanation,
}

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MessageError {
    /// It ends early.
    #[error("a message of {available} bytes should have {needed}")]
    Truncated {
        /// What it should have, as far as that is known.
        needed: usize,
        /// What it has.
        available: usize,
    },
    /// No message has this type and identifier.
    #[error("no message has type {0:?} and identifier {1:?}")]
    Unknown(AuthType, AuthId),
    /// A field has a value that it cannot have.
    #[error("{0} has a value that it cannot have")]
    Value(&'static str),
}

impl MessageError {
    /// What a peer is told about it.
    pub fn explanation(self) -> FailureExplanation {
        match self {
            Self::Unknown(..) => FailureExplanation::INCORRECT_MESSAGE,
            Self::Truncated { .. } | Self::Value(_) => FailureExplanation::INCORRECT_PAYLOAD,
        }
    }
}

/// The bytes of a message that are not yet parsed.
struct Reader<'a> {
    rest: &'a [u8],
    total: usize,
}

impl<'a> Reader<'a> {
    fn bytes(&mut self, count: usize) -> Result<&'a [u8], MessageError> {
        let (bytes, rest) = self.rest.split_at_checked(count).ok_or_else(|| self.truncated(count))?;
        self.rest = rest;
        Ok(bytes)
    }

    /// A fixed part, from its first byte on.
    fn fixed<T: FromBytes>(&mut self) -> Result<T, MessageError> {
        let bytes = self.bytes(size_of::<T>())?;
        Ok(T::read_from_bytes(bytes).expect("as many bytes as it has"))
    }

    fn truncated(&self, count: usize) -> MessageError {
        MessageError::Truncated { needed: self.total - self.rest.len() + count, available: self.total }
    }
}

impl<'a> Message<'a> {
    /// Parses a message. What follows it is returned as well: a controller may fill the host's buffer with zeroes.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), MessageError> {
        let mut reader = Reader { rest: bytes, total: bytes.len() };
        let AuthHeader { auth_type, auth_id, .. } =
            Reader { rest: bytes, total: bytes.len() }.fixed::<AuthHeader>()?;
        let message = match (auth_type, auth_id) {
            (AuthType::COMMON, AuthId::NEGOTIATE) => Self::Negotiate(Negotiate::read(&mut reader)?),
            (AuthType::DH_HMAC_CHAP, AuthId::CHALLENGE) => Self::Challenge(Challenge::read(&mut reader)?),
            (AuthType::DH_HMAC_CHAP, AuthId::REPLY) => Self::Reply(Reply::read(&mut reader)?),
            (AuthType::DH_HMAC_CHAP, AuthId::SUCCESS1) => Self::Success1(Success1::read(&mut reader)?),
            (AuthType::DH_HMAC_CHAP, AuthId::SUCCESS2) => {
                Self::Success2(reader.fixed::<wire::Success2>()?.header.t_id.get())
            }
            (AuthType::COMMON, AuthId::FAILURE1) => Self::Failure1(Failure::read(&mut reader)?),
            (AuthType::COMMON, AuthId::FAILURE2) => Self::Failure2(Failure::read(&mut reader)?),
            _ => return Err(MessageError::Unknown(auth_type, auth_id)),
        };
        Ok((message, reader.rest))
    }

    /// Parses a message that nothing may follow.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse_exact(bytes: &'a [u8]) -> Result<Self, MessageError> {
        match Self::parse(bytes)? {
            (message, []) => Ok(message),
            _ => Err(MessageError::Value("the length of the message")),
        }
    }

    /// Whether these bytes begin an authentication transaction.
    pub fn is_negotiate(bytes: &[u8]) -> bool {
        AuthHeader::read_from_prefix(bytes).is_ok_and(|(header, _)| {
            (header.auth_type, header.auth_id) == (AuthType::COMMON, AuthId::NEGOTIATE)
        })
    }

    /// Its bytes on the wire.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(MESSAGE_BYTES_MAX);
        match self {
            Self::Negotiate(negotiate) => negotiate.write(&mut bytes),
            Self::Challenge(challenge) => challenge.write(&mut bytes),
            Self::Reply(reply) => reply.write(&mut bytes),
            Self::Success1(success) => success.write(&mut bytes),
            Self::Success2(t_id) => {
                let mut fixed = wire::Success2::zeroed();
                fixed.header = chap_header(AuthId::SUCCESS2, *t_id);
                bytes.extend(fixed.as_bytes());
            }
            Self::Failure1(failure) => failure.write(AuthId::FAILURE1, &mut bytes),
            Self::Failure2(failure) => failure.write(AuthId::FAILURE2, &mut bytes),
        }
        bytes
    }

    /// Its Transaction Identifier.
    pub fn t_id(&self) -> u16 {
        match self {
            Self::Negotiate(message) => message.t_id,
            Self::Challenge(message) => message.t_id,
            Self::Reply(message) => message.t_id,
            Self::Success1(message) => message.t_id,
            Self::Success2(t_id) => *t_id,
            Self::Failure1(message) | Self::Failure2(message) => message.t_id,
        }
    }
}

fn chap_header(auth_id: AuthId, t_id: u16) -> AuthHeader {
    AuthHeader::new(AuthType::DH_HMAC_CHAP, auth_id, t_id)
}

/// Bytes of a DH value.
fn value_length(dhvlen: u16) -> Result<usize, MessageError> {
    let length = usize::from(dhvlen);
    if length.is_multiple_of(VALUE_LENGTH_UNIT) { Ok(length) } else { Err(MessageError::Value("DHVLEN")) }
}

/// A byte that is one or zero.
fn flag(byte: u8, name: &'static str) -> Result<bool, MessageError> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(MessageError::Value(name)),
    }
}

/// A length that our own end has.
fn length<T: TryFrom<usize>>(bytes: &[u8]) -> T {
    T::try_from(bytes.len()).unwrap_or_else(|_| panic!("{} bytes do not fit their length field", bytes.len()))
}

impl Negotiate {
    fn read(reader: &mut Reader<'_>) -> Result<Self, MessageError> {
        let fixed: wire::Negotiate = reader.fixed()?;
        let mut offer = None;
        for _ in 0..fixed.napd {
            let descriptor: ProtocolDescriptor = reader.fixed()?;
            if descriptor.authid == AuthType::DH_HMAC_CHAP && offer.is_none() {
                offer = Some(Proposal::read(&descriptor)?);
            }
        }
        Ok(Self { t_id: fixed.header.t_id.get(), secure_channel: fixed.sc_c, offer })
    }

    fn write(&self, bytes: &mut Vec<u8>) {
        let header = AuthHeader::new(AuthType::COMMON, AuthId::NEGOTIATE, self.t_id);
        let napd = u8::from(self.offer.is_some());
        bytes.extend(wire::Negotiate { header, sc_c: self.secure_channel, napd }.as_bytes());
        if let Some(offer) = &self.offer {
            bytes.extend(offer.descriptor().as_bytes());
        }
    }
}

impl Proposal {
    fn read(descriptor: &ProtocolDescriptor) -> Result<Self, MessageError> {
        let hashes = descriptor.hash_ids.get(..usize::from(descriptor.halen));
        let groups = descriptor.group_ids.get(..usize::from(descriptor.dhlen));
        Ok(Self {
            hashes: hashes.ok_or(MessageError::Value("HALEN"))?.to_vec(),
            groups: groups.ok_or(MessageError::Value("DHLEN"))?.to_vec(),
        })
    }

    fn descriptor(&self) -> ProtocolDescriptor {
        let (halen, dhlen) = (self.hashes.len(), self.groups.len());
        let mut descriptor = ProtocolDescriptor::zeroed();
        descriptor.authid = AuthType::DH_HMAC_CHAP;
        descriptor.halen = u8::try_from(halen).expect("at most 30 hashes");
        descriptor.dhlen = u8::try_from(dhlen).expect("at most 30 groups");
        descriptor.hash_ids[..halen].copy_from_slice(&self.hashes);
        descriptor.group_ids[..dhlen].copy_from_slice(&self.groups);
        descriptor
    }
}

impl<'a> Challenge<'a> {
    fn read(reader: &mut Reader<'a>) -> Result<Self, MessageError> {
        let fixed: wire::Challenge = reader.fixed()?;
        let value_length = value_length(fixed.dhvlen.get())?;
        // An unknown hash is for whoever chooses among them.
        if Hash::from_id(fixed.hash_id).is_some_and(|hash| hash.length() != usize::from(fixed.hl)) {
            return Err(MessageError::Value("HL"));
        }
        Ok(Self {
            t_id: fixed.header.t_id.get(),
            hash: fixed.hash_id,
            group: fixed.group_id,
            seqnum: fixed.seqnum.get(),
            challenge: reader.bytes(usize::from(fixed.hl))?,
            value: reader.bytes(value_length)?,
        })
    }

    fn write(&self, bytes: &mut Vec<u8>) {
        let mut fixed = wire::Challenge::zeroed();
        fixed.header = chap_header(AuthId::CHALLENGE, self.t_id);
        fixed.hl = length(self.challenge);
        (fixed.hash_id, fixed.group_id) = (self.hash, self.group);
        fixed.dhvlen = length::<u16>(self.value).into();
        fixed.seqnum = self.seqnum.into();
        bytes.extend(fixed.as_bytes());
        bytes.extend(self.challenge);
        bytes.extend(self.value);
    }
}

impl<'a> Reply<'a> {
    fn read(reader: &mut Reader<'a>) -> Result<Self, MessageError> {
        let fixed: wire::Reply = reader.fixed()?;
        let value_length = value_length(fixed.dhvlen.get())?;
        Ok(Self {
            t_id: fixed.header.t_id.get(),
            seqnum: fixed.seqnum.get(),
            challenge_valid: flag(fixed.cvalid, "CVALID")?,
            response: reader.bytes(usize::from(fixed.hl))?,
            challenge: reader.bytes(usize::from(fixed.hl))?,
            value: reader.bytes(value_length)?,
        })
    }

    fn write(&self, bytes: &mut Vec<u8>) {
        assert_eq!(self.response.len(), self.challenge.len(), "one length is said for both");
        let mut fixed = wire::Reply::zeroed();
        fixed.header = chap_header(AuthId::REPLY, self.t_id);
        fixed.hl = length(self.response);
        fixed.cvalid = u8::from(self.challenge_valid);
        fixed.dhvlen = length::<u16>(self.value).into();
        fixed.seqnum = self.seqnum.into();
        bytes.extend(fixed.as_bytes());
        bytes.extend(self.response);
        bytes.extend(self.challenge);
        bytes.extend(self.value);
    }
}

impl<'a> Success1<'a> {
    /// Without a response, nothing needs to follow: some controllers send no zeroes for it.
    fn read(reader: &mut Reader<'a>) -> Result<Self, MessageError> {
        let fixed: wire::Success1 = reader.fixed()?;
        let response = match flag(fixed.rvalid, "RVALID")? {
            true => Some(reader.bytes(usize::from(fixed.hl))?),
            false => None,
        };
        Ok(Self { t_id: fixed.header.t_id.get(), hash_length: fixed.hl, response })
    }

    fn write(&self, bytes: &mut Vec<u8>) {
        let mut fixed = wire::Success1::zeroed();
        fixed.header = chap_header(AuthId::SUCCESS1, self.t_id);
        fixed.hl = self.hash_length;
        fixed.rvalid = u8::from(self.response.is_some());
        bytes.extend(fixed.as_bytes());
        bytes.extend(self.response.unwrap_or_default());
    }
}

impl Failure {
    fn read(reader: &mut Reader<'_>) -> Result<Self, MessageError> {
        let wire::Failure { header, reason, explanation } = reader.fixed()?;
        Ok(Self { t_id: header.t_id.get(), reason, explanation })
    }

    fn write(&self, auth_id: AuthId, bytes: &mut Vec<u8>) {
        let header = AuthHeader::new(AuthType::COMMON, auth_id, self.t_id);
        let failure = wire::Failure { header, reason: self.reason, explanation: self.explanation };
        bytes.extend(failure.as_bytes());
    }
}

#[cfg(test)]
mod tests;
