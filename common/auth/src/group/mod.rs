//! Groups, and the exchange of keys in them.
//!
//! An exchange has three steps. Each takes long, so a worker computes them:
//!
//! 1. the controller makes a private part and its value: `Private::offer`;
//! 2. the host answers with its own value, and has the shared secret: `Private::answer`;
//! 3. the controller has it, too, once it knows the host's value: `Offer::conclude`.
//!
//! A key encapsulation has the same three steps: the controller makes a key, the host a ciphertext for it.
//!
//! # Layout of values
//!
//! The values of ffdhe groups are numbers, most significant byte first, as long as the prime. NVM Express 2.4 (TP4201)
//! adds groups, and refers for their values to other documents. No other implementation of these exists yet to compare
//! the layout with. This module decides it, and nothing else depends on it:
//!
//! - a point of a curve is uncompressed: 04h and both coordinates (RFC 8422, section 5.4.1). The secret is its first
//!   coordinate (section 5.10);
//! - of ML-KEM, the controller's value is the encapsulation key, because it speaks first, and the host's value is the
//!   ciphertext (FIPS 203). So lengths differ by end;
//! - of a group of both, values and secrets are concatenated, that of the curve first
//!   (draft-ietf-tls-ecdhe-mlkem, sections 4.1 to 4.3, for SecP256r1MLKEM768 and SecP384r1MLKEM1024);
//! - DHVLEN is a multiple of four. A point has an odd length, so zeroes follow the whole value up to a multiple of
//!   four. Other bytes than zeroes there are refused.

mod curve;
mod ffdhe;
mod mlkem;
mod primes;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use rand_core::CryptoRng;
use ringfab_spec::auth::GroupId;
use thiserror::Error;

use crate::secret::Secret;
use curve::Curve;
use ffdhe::Ffdhe;
use mlkem::MlKem;

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
    /// The curve secp256r1.
    Secp256r1,
    /// The curve secp384r1.
    Secp384r1,
    /// ML-KEM-768.
    MlKem768,
    /// ML-KEM-1024.
    MlKem1024,
    /// The curve secp256r1 and ML-KEM-768. Its secret is one as long as either is.
    Secp256r1MlKem768,
    /// The curve secp384r1 and ML-KEM-1024, likewise.
    Secp384r1MlKem1024,
}

/// One of the exchanges that a group consists of.
#[derive(Clone, Copy)]
enum Primitive {
    Field(&'static Ffdhe),
    Curve(Curve),
    Kem(MlKem),
}

/// The private part of a controller's exchange, and its value.
#[derive(Clone)]
pub(crate) struct Offer {
    private: Private,
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

/// The length of values is a multiple of it.
const UNIT: usize = 4;

impl Group {
    /// All of them, by identifier.
    pub const ALL: [Self; 12] = [
        Self::Null,
        Self::Ffdhe2048,
        Self::Ffdhe3072,
        Self::Ffdhe4096,
        Self::Ffdhe6144,
        Self::Ffdhe8192,
        Self::Secp256r1,
        Self::Secp384r1,
        Self::MlKem768,
        Self::MlKem1024,
        Self::Secp256r1MlKem768,
        Self::Secp384r1MlKem1024,
    ];

    /// Its identifier on the wire.
    pub const fn id(self) -> GroupId {
        match self {
            Self::Null => GroupId::NULL,
            Self::Ffdhe2048 => GroupId::FFDHE2048,
            Self::Ffdhe3072 => GroupId::FFDHE3072,
            Self::Ffdhe4096 => GroupId::FFDHE4096,
            Self::Ffdhe6144 => GroupId::FFDHE6144,
            Self::Ffdhe8192 => GroupId::FFDHE8192,
            Self::Secp256r1 => GroupId::SECP256R1,
            Self::Secp384r1 => GroupId::SECP384R1,
            Self::MlKem768 => GroupId::MLKEM768,
            Self::MlKem1024 => GroupId::MLKEM1024,
            Self::Secp256r1MlKem768 => GroupId::SECP256R1_MLKEM768,
            Self::Secp384r1MlKem1024 => GroupId::SECP384R1_MLKEM1024,
        }
    }

    /// Its name in configurations. Those up to ffdhe8192 are what Linux and SPDK use, too.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Ffdhe2048 => "ffdhe2048",
            Self::Ffdhe3072 => "ffdhe3072",
            Self::Ffdhe4096 => "ffdhe4096",
            Self::Ffdhe6144 => "ffdhe6144",
            Self::Ffdhe8192 => "ffdhe8192",
            Self::Secp256r1 => "secp256r1",
            Self::Secp384r1 => "secp384r1",
            Self::MlKem768 => "mlkem768",
            Self::MlKem1024 => "mlkem1024",
            Self::Secp256r1MlKem768 => "secp256r1mlkem768",
            Self::Secp384r1MlKem1024 => "secp384r1mlkem1024",
        }
    }

    /// The group with an identifier, unless it is an unknown one.
    pub fn from_id(id: GroupId) -> Option<Self> {
        Self::ALL.into_iter().find(|group| group.id() == id)
    }

    /// Bytes of a controller's value.
    pub fn offer_length(self) -> usize {
        padded(self.primitives().into_iter().map(Primitive::offer_length).sum())
    }

    /// Bytes of a host's value.
    pub fn answer_length(self) -> usize {
        padded(self.primitives().into_iter().map(Primitive::answer_length).sum())
    }

    /// What it consists of, in the order of values and secrets.
    fn primitives(self) -> Vec<Primitive> {
        use Primitive::{Curve as C, Field, Kem};
        match self {
            Self::Null => vec![],
            Self::Ffdhe2048 => vec![Field(&ffdhe::FFDHE2048)],
            Self::Ffdhe3072 => vec![Field(&ffdhe::FFDHE3072)],
            Self::Ffdhe4096 => vec![Field(&ffdhe::FFDHE4096)],
            Self::Ffdhe6144 => vec![Field(&ffdhe::FFDHE6144)],
            Self::Ffdhe8192 => vec![Field(&ffdhe::FFDHE8192)],
            Self::Secp256r1 => vec![C(Curve::Secp256r1)],
            Self::Secp384r1 => vec![C(Curve::Secp384r1)],
            Self::MlKem768 => vec![Kem(MlKem::MlKem768)],
            Self::MlKem1024 => vec![Kem(MlKem::MlKem1024)],
            Self::Secp256r1MlKem768 => vec![C(Curve::Secp256r1), Kem(MlKem::MlKem768)],
            Self::Secp384r1MlKem1024 => vec![C(Curve::Secp384r1), Kem(MlKem::MlKem1024)],
        }
    }

    /// What a computation in this group needs of chance. None for the null group, in which nothing is computed.
    pub(crate) fn private(self, random: &mut dyn CryptoRng) -> Option<Private> {
        let draw = |primitive: Primitive| (primitive, primitive.draw(random));
        let parts: Vec<(Primitive, Secret)> = self.primitives().into_iter().map(draw).collect();
        (!parts.is_empty()).then_some(Private(parts))
    }
}

/// No group has this name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("\"{0}\" is none of the groups {names}", names = Group::ALL.map(Group::name).join(", "))]
pub struct UnknownGroup(String);

/// Its [name](Group::name).
impl FromStr for Group {
    type Err = UnknownGroup;

    fn from_str(name: &str) -> Result<Self, UnknownGroup> {
        let found = Self::ALL.into_iter().find(|group| group.name() == name);
        found.ok_or_else(|| UnknownGroup(name.to_owned()))
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.id().fmt(f)
    }
}

impl Primitive {
    /// Bytes of a controller's value.
    fn offer_length(self) -> usize {
        match self {
            Self::Field(field) => field.value_length(),
            Self::Curve(curve) => curve.value_length(),
            Self::Kem(kem) => kem.key_length(),
        }
    }

    /// Bytes of a host's value.
    fn answer_length(self) -> usize {
        match self {
            Self::Field(_) | Self::Curve(_) => self.offer_length(),
            Self::Kem(kem) => kem.ciphertext_length(),
        }
    }

    /// About how long a step takes.
    fn cost(self) -> Duration {
        match self {
            Self::Field(field) => field.cost(),
            Self::Curve(Curve::Secp256r1) => Duration::from_micros(210),
            Self::Curve(Curve::Secp384r1) => Duration::from_micros(700),
            Self::Kem(MlKem::MlKem768) => Duration::from_micros(170),
            Self::Kem(MlKem::MlKem1024) => Duration::from_micros(240),
        }
    }

    fn draw(self, random: &mut dyn CryptoRng) -> Secret {
        match self {
            Self::Field(field) => field.exponent(random),
            Self::Curve(curve) => curve.scalar(random),
            Self::Kem(_) => MlKem::seed(random),
        }
    }

    fn offer(self, secret: &Secret) -> Vec<u8> {
        match self {
            Self::Field(field) => field.value_of(secret),
            Self::Curve(curve) => curve.value_of(secret),
            Self::Kem(kem) => kem.key_of(secret),
        }
    }

    fn answer(self, secret: &Secret, peer: &[u8]) -> Result<(Vec<u8>, Secret), InvalidValue> {
        match self {
            Self::Field(field) => field.shared(secret, peer).map(|shared| (field.value_of(secret), shared)),
            Self::Curve(curve) => curve.shared(secret, peer).map(|shared| (curve.value_of(secret), shared)),
            Self::Kem(kem) => kem.encapsulate(secret, peer),
        }
    }

    fn conclude(self, secret: &Secret, peer: &[u8]) -> Result<Secret, InvalidValue> {
        match self {
            Self::Field(field) => field.shared(secret, peer),
            Self::Curve(curve) => curve.shared(secret, peer),
            Self::Kem(kem) => kem.decapsulate(secret, peer),
        }
    }
}

/// A private part that was drawn, and of which nothing is computed yet: a secret for each primitive.
#[derive(Clone)]
pub(crate) struct Private(Vec<(Primitive, Secret)>);

impl Private {
    /// About how long a step takes.
    pub(crate) fn cost(&self) -> Duration {
        self.0.iter().map(|(primitive, _)| primitive.cost()).sum()
    }

    /// The controller's step, the first.
    pub(crate) fn offer(self) -> Offer {
        let values: Vec<Vec<u8>> = self.0.iter().map(|(primitive, secret)| primitive.offer(secret)).collect();
        Offer { value: pad(values.concat()), private: self }
    }

    /// The host's step, the second.
    pub(crate) fn answer(self, peer: &[u8]) -> Result<Answer, InvalidValue> {
        let (mut values, mut secrets) = (Vec::new(), Vec::new());
        for ((primitive, secret), peer) in self.0.iter().zip(self.split(peer, Primitive::offer_length)?) {
            let (value, shared) = primitive.answer(secret, peer)?;
            values.push(value);
            secrets.push(shared);
        }
        Ok(Answer { value: pad(values.concat()), shared: Secret::concat(&secrets) })
    }

    /// Cuts a value into those of the primitives.
    fn split<'a>(
        &self,
        value: &'a [u8],
        length: impl Fn(Primitive) -> usize,
    ) -> Result<Vec<&'a [u8]>, InvalidValue> {
        let mut rest = value;
        let mut parts = Vec::new();
        for (primitive, _) in &self.0 {
            let (part, behind) = rest.split_at_checked(length(*primitive)).ok_or(InvalidValue)?;
            parts.push(part);
            rest = behind;
        }
        let is_padded = value.len() == padded(value.len() - rest.len()) && rest.iter().all(|byte| *byte == 0);
        if is_padded { Ok(parts) } else { Err(InvalidValue) }
    }
}

impl Offer {
    /// About how long its conclusion takes.
    pub(crate) fn cost(&self) -> Duration {
        self.private.cost()
    }

    /// The controller's second step, the last. A value that is the controller's own was sent back, and is refused.
    pub(crate) fn conclude(self, peer: &[u8]) -> Result<Secret, InvalidValue> {
        let Self { private, value } = self;
        let peers = private.split(peer, Primitive::answer_length)?;
        let own = private.split(&value, Primitive::offer_length)?;
        let mut secrets = Vec::new();
        for (((primitive, secret), peer), own) in private.0.iter().zip(peers).zip(own) {
            if peer == own {
                return Err(InvalidValue);
            }
            secrets.push(primitive.conclude(secret, peer)?);
        }
        Ok(Secret::concat(&secrets))
    }
}

fn padded(length: usize) -> usize {
    length.next_multiple_of(UNIT)
}

/// Appends zeroes up to a multiple of four.
fn pad(mut value: Vec<u8>) -> Vec<u8> {
    value.resize(padded(value.len()), 0);
    value
}

#[cfg(test)]
mod tests;
