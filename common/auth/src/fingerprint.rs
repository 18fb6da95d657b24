//! Which key it is, without its secret.

use std::fmt;

use crate::hash::Hash;
use crate::secret::Secret;

/// What is hashed with the secret. No protocol has such a message.
const LABEL: &[u8] = b"Ringfab fingerprint of a key";

/// Tells the keys of a host apart, in logs and for people. It says nothing of the secret, which has 256 bits or more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyFingerprint([u8; 4]);

impl KeyFingerprint {
    pub(crate) fn of(secret: &Secret) -> Self {
        let hashed = Hash::Sha256.hmac(secret, &[LABEL]);
        Self(hashed.expose()[..4].try_into().expect("a hash is longer"))
    }
}

impl fmt::Display for KeyFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", u32::from_be_bytes(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_stays_the_same_and_is_another_one_for_another_key() {
        let of = |byte| KeyFingerprint::of(&Secret::copy_of(&[byte; 32]));
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
        assert_eq!(of(1).to_string().len(), 8);
    }
}
