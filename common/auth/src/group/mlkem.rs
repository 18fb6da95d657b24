//! Key encapsulation (FIPS 203). The controller's value is an encapsulation key, the host's a ciphertext.

use ml_kem::{B32, Decapsulate, KeyExport, Seed};
use rand_core::CryptoRng;
use zeroize::Zeroizing;

use super::InvalidValue;
use crate::secret::Secret;

/// Bytes of the randomness of a key: d and z.
const SEED_BYTES: usize = 64;

/// Bytes of the randomness of a ciphertext, m.
const MESSAGE_BYTES: usize = 32;

/// Evaluates an expression with the module of a set of parameters.
macro_rules! with_parameters {
    ($parameters:expr, $module:ident => $expression:expr) => {
        match $parameters {
            MlKem::MlKem768 => {
                use ml_kem::ml_kem_768 as $module;
                $expression
            }
            MlKem::MlKem1024 => {
                use ml_kem::ml_kem_1024 as $module;
                $expression
            }
        }
    };
}

/// A set of parameters.
#[derive(Clone, Copy, Debug)]
pub(super) enum MlKem {
    MlKem768,
    MlKem1024,
}

impl MlKem {
    /// Bytes of an encapsulation key.
    pub(super) const fn key_length(self) -> usize {
        match self {
            Self::MlKem768 => 1184,
            Self::MlKem1024 => 1568,
        }
    }

    /// Bytes of a ciphertext.
    pub(super) const fn ciphertext_length(self) -> usize {
        match self {
            Self::MlKem768 => 1088,
            Self::MlKem1024 => 1568,
        }
    }

    /// What a key is made of, or a ciphertext, which needs only half of it.
    pub(super) fn seed(random: &mut dyn CryptoRng) -> Secret {
        Secret::random(SEED_BYTES, random)
    }

    /// The encapsulation key.
    pub(super) fn key_of(self, seed: &Secret) -> Vec<u8> {
        let seed = whole(seed);
        with_parameters!(self, set => {
            set::DecapsulationKey::from_seed(*seed).encapsulation_key().to_bytes().to_vec()
        })
    }

    /// A ciphertext for this key, and the secret in it.
    pub(super) fn encapsulate(self, seed: &Secret, key: &[u8]) -> Result<(Vec<u8>, Secret), InvalidValue> {
        let message = &seed.expose()[..MESSAGE_BYTES];
        let message = Zeroizing::new(B32::try_from(message).expect("so many bytes"));
        with_parameters!(self, set => {
            let key = key.try_into().map_err(|_| InvalidValue)?;
            // It is none if a coefficient is not less than the modulus.
            let key = set::EncapsulationKey::new(key).map_err(|_| InvalidValue)?;
            let (ciphertext, shared) = key.encapsulate_deterministic(&message);
            Ok((ciphertext.to_vec(), Secret::copy_of(&Zeroizing::new(shared)[..])))
        })
    }

    /// The secret in a ciphertext. One that was not made for this key has a secret that nobody knows (implicit
    /// rejection), so that the responses do not agree.
    pub(super) fn decapsulate(self, seed: &Secret, ciphertext: &[u8]) -> Result<Secret, InvalidValue> {
        let seed = whole(seed);
        with_parameters!(self, set => {
            let key = set::DecapsulationKey::from_seed(*seed);
            let shared = key.decapsulate(ciphertext.try_into().map_err(|_| InvalidValue)?);
            Ok(Secret::copy_of(&Zeroizing::new(shared)[..]))
        })
    }
}

fn whole(seed: &Secret) -> Zeroizing<Seed> {
    Zeroizing::new(Seed::try_from(seed.expose()).expect("as long as it was drawn"))
}
