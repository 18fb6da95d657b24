//! Elliptic curves (RFC 8422, NIST SP 800-186): a value is an uncompressed point, a secret its first coordinate.

use p256::elliptic_curve::sec1::{Tag, ToSec1Point};
use p256::elliptic_curve::{PublicKey, SecretKey, ecdh};
use rand_core::CryptoRng;

use super::InvalidValue;
use crate::secret::Secret;

/// Evaluates an expression with the type of a curve.
macro_rules! with_curve {
    ($curve:expr, $name:ident => $expression:expr) => {
        match $curve {
            Curve::Secp256r1 => {
                type $name = p256::NistP256;
                $expression
            }
            Curve::Secp384r1 => {
                type $name = p384::NistP384;
                $expression
            }
        }
    };
}

/// A curve.
#[derive(Clone, Copy, Debug)]
pub(super) enum Curve {
    Secp256r1,
    Secp384r1,
}

impl Curve {
    /// Bytes of a coordinate, and of a scalar.
    const fn coordinate_length(self) -> usize {
        match self {
            Self::Secp256r1 => 32,
            Self::Secp384r1 => 48,
        }
    }

    /// Bytes of an uncompressed point: 04h and two coordinates.
    pub(super) const fn value_length(self) -> usize {
        1 + 2 * self.coordinate_length()
    }

    /// A scalar that is neither zero nor as large as the order.
    pub(super) fn scalar(self, random: &mut dyn CryptoRng) -> Secret {
        loop {
            let drawn = Secret::random(self.coordinate_length(), random);
            // All but one of four billion are, or more.
            if with_curve!(self, C => SecretKey::<C>::from_slice(drawn.expose()).is_ok()) {
                return drawn;
            }
        }
    }

    /// The base point times a scalar.
    pub(super) fn value_of(self, scalar: &Secret) -> Vec<u8> {
        with_curve!(self, C => {
            let key = SecretKey::<C>::from_slice(scalar.expose()).expect(DRAWN);
            key.public_key().to_sec1_point(false).as_bytes().to_vec()
        })
    }

    /// What both ends have after the exchange: the first coordinate of the peer's point times a scalar.
    ///
    /// A point beside the curve is refused: it could be of a small group. All others have the order of the curve, which
    /// is prime. So the product is never infinite.
    pub(super) fn shared(self, scalar: &Secret, peer: &[u8]) -> Result<Secret, InvalidValue> {
        // What is compressed or infinite begins otherwise.
        if peer.len() != self.value_length() || peer[0] != u8::from(Tag::Uncompressed) {
            return Err(InvalidValue);
        }
        with_curve!(self, C => {
            let peer = PublicKey::<C>::from_sec1_bytes(peer).map_err(|_| InvalidValue)?;
            let key = SecretKey::<C>::from_slice(scalar.expose()).expect(DRAWN);
            let shared = ecdh::diffie_hellman::<C>(key.to_nonzero_scalar(), peer.as_affine());
            Ok(Secret::copy_of(shared.raw_secret_bytes()))
        })
    }
}

const DRAWN: &str = "a scalar was drawn";
