//! Key agreement (RFC 8446, section 7.4).

use std::fmt;

use p256::elliptic_curve::sec1::ToSec1Point;
use ringfab_auth::Secret;

use crate::error::TlsError;

/// A group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    X25519,
    Secp256r1,
    Secp384r1,
}

/// As many random bytes as any private value takes, twice for the shorter ones.
pub(crate) const SEED_BYTES: usize = 64;

/// How an uncompressed point begins.
const UNCOMPRESSED: u8 = 4;

impl Group {
    /// All of them, the best first.
    pub(crate) const ALL: [Self; 3] = [Self::X25519, Self::Secp256r1, Self::Secp384r1];

    /// Its number on the wire.
    pub(crate) const fn number(self) -> u16 {
        match self {
            Self::X25519 => 0x001d,
            Self::Secp256r1 => 0x0017,
            Self::Secp384r1 => 0x0018,
        }
    }

    pub(crate) fn from_number(number: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|group| group.number() == number)
    }
}

/// A private value, for one handshake.
pub(crate) enum Private {
    X25519(Box<x25519_dalek::StaticSecret>),
    Secp256r1(Box<p256::SecretKey>),
    Secp384r1(Box<p384::SecretKey>),
}

impl Private {
    /// Makes a private value of [`SEED_BYTES`] random bytes.
    ///
    /// Not every number is one of an elliptic curve: for secp256r1, 2^-32 of all are too large, and then the second
    /// half of the bytes is tried.
    pub(crate) fn new(group: Group, seed: &Secret) -> Result<Self, TlsError> {
        const UNLUCKY: TlsError = TlsError::Offer("the random numbers are no private value of the group");
        let bytes = seed.expose();
        let half: &[u8; 32] = bytes.first_chunk().expect("a seed");
        Ok(match group {
            Group::X25519 => Self::X25519(Box::new((*half).into())),
            Group::Secp256r1 => {
                let key = p256::SecretKey::from_slice(half)
                    .or_else(|_| p256::SecretKey::from_slice(&bytes[32..64]));
                Self::Secp256r1(Box::new(key.map_err(|_| UNLUCKY)?))
            }
            Group::Secp384r1 => {
                Self::Secp384r1(Box::new(p384::SecretKey::from_slice(&bytes[..48]).map_err(|_| UNLUCKY)?))
            }
        })
    }

    pub(crate) const fn group(&self) -> Group {
        match self {
            Self::X25519(_) => Group::X25519,
            Self::Secp256r1(_) => Group::Secp256r1,
            Self::Secp384r1(_) => Group::Secp384r1,
        }
    }

    /// What the peer gets.
    pub(crate) fn public(&self) -> Vec<u8> {
        match self {
            Self::X25519(key) => x25519_dalek::PublicKey::from(&**key).as_bytes().to_vec(),
            Self::Secp256r1(key) => key.public_key().to_sec1_point(false).as_bytes().to_vec(),
            Self::Secp384r1(key) => key.public_key().to_sec1_point(false).as_bytes().to_vec(),
        }
    }

    /// The secret that both ends share, from the peer's public value.
    pub(crate) fn agree(&self, peer: &[u8]) -> Result<Secret, TlsError> {
        const INVALID: TlsError = TlsError::Illegal("the key share is not a value of its group");
        match self {
            Self::X25519(key) => {
                let peer: [u8; 32] = peer.try_into().map_err(|_| INVALID)?;
                let shared = key.diffie_hellman(&peer.into());
                // A value of small order makes the secret zero, whatever ours is (RFC 7748, section 6.1).
                if shared.was_contributory() { Ok(Secret::copy_of(shared.as_bytes())) } else { Err(INVALID) }
            }
            Self::Secp256r1(key) => {
                let peer = p256::PublicKey::from_sec1_bytes(uncompressed(peer).ok_or(INVALID)?);
                Ok(Secret::copy_of(key.diffie_hellman(&peer.map_err(|_| INVALID)?).raw_secret_bytes()))
            }
            Self::Secp384r1(key) => {
                let peer = p384::PublicKey::from_sec1_bytes(uncompressed(peer).ok_or(INVALID)?);
                Ok(Secret::copy_of(key.diffie_hellman(&peer.map_err(|_| INVALID)?).raw_secret_bytes()))
            }
        }
    }
}

/// The only form of a point that version 1.3 knows.
fn uncompressed(point: &[u8]) -> Option<&[u8]> {
    point.starts_with(&[UNCOMPRESSED]).then_some(point)
}

impl fmt::Debug for Private {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Private({:?})", self.group())
    }
}

#[cfg(test)]
mod tests {
    use ringfab_auth::system_random;

    use super::*;

    fn new(group: Group) -> Private {
        Private::new(group, &Secret::random(SEED_BYTES, &mut system_random())).unwrap()
    }

    #[test]
    fn both_ends_agree_in_every_group() {
        for (group, length) in Group::ALL.into_iter().zip([32, 65, 97]) {
            let (one, other) = (new(group), new(group));
            assert_eq!(one.public().len(), length);
            let shared = one.agree(&other.public()).unwrap();
            assert_eq!(shared, other.agree(&one.public()).unwrap());
            assert_eq!(Group::from_number(group.number()), Some(group));
            assert_eq!(one.group(), group);
        }
        assert_eq!(Group::from_number(0x0019), None);
    }

    #[test]
    fn a_value_that_is_none_of_the_group_is_refused() {
        for group in Group::ALL {
            let (private, good) = (new(group), new(group).public());
            let mut flipped = good.clone();
            *flipped.last_mut().unwrap() ^= 1;
            let (zero, short) = (vec![0; good.len()], &good[1..]);
            let long = [&good[..], &[0]].concat();
            // Half of all numbers are x coordinates: x25519 takes every one.
            let bad = if group == Group::X25519 { zero.clone() } else { flipped };
            for value in [&zero[..], short, &long, &bad, &[]] {
                assert!(private.agree(value).is_err(), "{group:?} {value:?}");
            }
        }
        // Compressed points, which RFC 8446 does not know.
        let private = new(Group::Secp256r1);
        let point = private.public();
        let compressed = [&[2 + (point[64] & 1)], &point[1..33]].concat();
        assert!(p256::PublicKey::from_sec1_bytes(&compressed).is_ok());
        assert!(private.agree(&compressed).is_err());
    }

    #[test]
    fn numbers_that_are_too_large_are_not_used() {
        let mut seed = vec![0xff; 32];
        seed.extend([7; 32]);
        let private = Private::new(Group::Secp256r1, &Secret::copy_of(&seed)).unwrap();
        let expected = p256::SecretKey::from_slice(&[7; 32]).unwrap().public_key().to_sec1_point(false);
        assert_eq!(private.public(), expected.as_bytes());
        for group in [Group::Secp256r1, Group::Secp384r1] {
            assert!(Private::new(group, &Secret::copy_of(&[0xff; 64])).is_err());
        }
    }
}
