//! Groups, and the exchange of keys in them.
//!
//! An exchange has three steps. Each takes long, so a worker computes them:
//!
//! 1. the controller makes a private part and its value: `Private::offer`;
//! 2. the host answers with its own value, and has the shared secret: `Private::answer`;
//! 3. the controller has it, too, once it knows the host's value: `Offer::conclude`.
//!
//! A key encapsulation has the same three steps. NVM Express 2.4 adds groups with elliptic curves and ML-KEM. They are
//! not here yet: no implementation exists to compare the layout of their values with.

mod ffdhe;
mod primes;

use std::fmt;
use std::str::FromStr;

use rand_core::CryptoRng;
use ringfab_spec::auth::GroupId;
use thiserror::Error;

use crate::secret::Secret;
use ffdhe::Ffdhe;

/// A group of DH-HMAC-CHAP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Group {
    /// No exchange: responses depend on the keys alone.
    Null,
    /// 2048 bits.
    Ffdhe2048,
    /// 3072 bits.
    Ffdhe3072,
    /// 4096 bits.
    Ffdhe4096,
    /// 6144 bits.
    Ffdhe6144,
    /// 8192 bits.
    Ffdhe8192,
}

/// The private part of a controller's exchange, and its value.
pub(crate) struct Offer {
    field: &'static Ffdhe,
    exponent: Secret,
    pub(crate) value: Vec<u8>,
}

/// A host's value, and the shared secret.
pub(crate) struct Answer {
    pub(crate) value: Vec<u8>,
    pub(crate) shared: Secret,
}

/// The peer's value is none of the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InvalidValue;

impl Group {
    /// All of them, weakest first.
    pub const ALL: [Self; 6] =
        [Self::Null, Self::Ffdhe2048, Self::Ffdhe3072, Self::Ffdhe4096, Self::Ffdhe6144, Self::Ffdhe8192];

    /// Its identifier on the wire.
    pub const fn id(self) -> GroupId {
        match self {
            Self::Null => GroupId::NULL,
            Self::Ffdhe2048 => GroupId::FFDHE2048,
            Self::Ffdhe3072 => GroupId::FFDHE3072,
            Self::Ffdhe4096 => GroupId::FFDHE4096,
            Self::Ffdhe6144 => GroupId::FFDHE6144,
            Self::Ffdhe8192 => GroupId::FFDHE8192,
        }
    }

    /// The group with an identifier, unless it is an unknown one.
    pub fn from_id(id: GroupId) -> Option<Self> {
        Self::ALL.into_iter().find(|group| group.id() == id)
    }

    /// Bytes of a value.
    pub fn value_length(self) -> usize {
        self.field().map_or(0, Ffdhe::value_length)
    }

    fn field(self) -> Option<&'static Ffdhe> {
        Some(match self {
            Self::Null => return None,
            Self::Ffdhe2048 => &ffdhe::FFDHE2048,
            Self::Ffdhe3072 => &ffdhe::FFDHE3072,
            Self::Ffdhe4096 => &ffdhe::FFDHE4096,
            Self::Ffdhe6144 => &ffdhe::FFDHE6144,
            Self::Ffdhe8192 => &ffdhe::FFDHE8192,
        })
    }

    /// What a computation in this group needs of chance. None for the null group, in which nothing is computed.
    pub(crate) fn private(self, random: &mut dyn CryptoRng) -> Option<Private> {
        self.field().map(|field| Private { field, exponent: field.exponent(random) })
    }
}

/// No group has this name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("\"{0}\" is none of the groups null, ffdhe2048, ffdhe3072, ffdhe4096, ffdhe6144 and ffdhe8192")]
pub struct UnknownGroup(String);

/// The names that Linux and SPDK use.
impl FromStr for Group {
    type Err = UnknownGroup;

    fn from_str(name: &str) -> Result<Self, UnknownGroup> {
        match name {
            "null" => Ok(Self::Null),
            "ffdhe2048" => Ok(Self::Ffdhe2048),
            "ffdhe3072" => Ok(Self::Ffdhe3072),
            "ffdhe4096" => Ok(Self::Ffdhe4096),
            "ffdhe6144" => Ok(Self::Ffdhe6144),
            "ffdhe8192" => Ok(Self::Ffdhe8192),
            _ => Err(UnknownGroup(name.to_owned())),
        }
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.id().fmt(f)
    }
}

/// A private part that was drawn, and of which nothing is computed yet.
pub(crate) struct Private {
    field: &'static Ffdhe,
    exponent: Secret,
}

impl Private {
    /// The controller's step, the first.
    pub(crate) fn offer(self) -> Offer {
        let value = self.field.value_of(&self.exponent);
        Offer { field: self.field, exponent: self.exponent, value }
    }

    /// The host's step, the second.
    pub(crate) fn answer(self, peer: &[u8]) -> Result<Answer, InvalidValue> {
        let shared = self.field.shared(&self.exponent, peer)?;
        Ok(Answer { value: self.field.value_of(&self.exponent), shared })
    }
}

impl Offer {
    /// The controller's second step, the last. A value that is the controller's own was sent back, and is refused.
    pub(crate) fn conclude(self, peer: &[u8]) -> Result<Secret, InvalidValue> {
        if self.value == peer {
            return Err(InvalidValue);
        }
        self.field.shared(&self.exponent, peer)
    }
}

#[cfg(test)]
mod tests;
