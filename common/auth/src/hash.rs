//! The three hash functions, and what is computed with them.

use std::fmt;
use std::str::FromStr;

use hkdf::{Hkdf, InvalidLength};
use hmac::{Hmac, KeyInit, Mac};
use ringfab_spec::auth::HashId;
use sha2::{Digest, Sha256, Sha384, Sha512};
use thiserror::Error;

use crate::secret::{Secret, on_clean_stack};

/// A hash function that DH-HMAC-CHAP knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hash {
    /// SHA-256.
    Sha256,
    /// SHA-384.
    Sha384,
    /// SHA-512.
    Sha512,
}

/// Calls `$function` with the type of the hash function.
macro_rules! with_type {
    ($hash:expr, $function:ident($($argument:expr),*)) => {
        match $hash {
            Hash::Sha256 => $function::<Sha256>($($argument),*),
            Hash::Sha384 => $function::<Sha384>($($argument),*),
            Hash::Sha512 => $function::<Sha512>($($argument),*),
        }
    };
}

impl Hash {
    /// All of them, weakest first.
    pub const ALL: [Self; 3] = [Self::Sha256, Self::Sha384, Self::Sha512];

    /// Its identifier on the wire and in the text of keys.
    pub const fn id(self) -> HashId {
        match self {
            Self::Sha256 => HashId::SHA256,
            Self::Sha384 => HashId::SHA384,
            Self::Sha512 => HashId::SHA512,
        }
    }

    /// The function with an identifier, unless it is an unknown one.
    pub fn from_id(id: HashId) -> Option<Self> {
        Self::ALL.into_iter().find(|hash| hash.id() == id)
    }

    /// Bytes of its output.
    pub const fn length(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }

    /// The hash of these bytes.
    pub fn of(self, bytes: &[u8]) -> Secret {
        on_clean_stack(|| with_type!(self, digest(bytes)))
    }

    /// HMAC of these parts, one after the other.
    pub fn hmac(self, key: &Secret, parts: &[&[u8]]) -> Secret {
        let mut output = Secret::zeroed(self.length());
        on_clean_stack(|| match self {
            Self::Sha256 => mac::<Hmac<Sha256>>(key, parts, &mut output),
            Self::Sha384 => mac::<Hmac<Sha384>>(key, parts, &mut output),
            Self::Sha512 => mac::<Hmac<Sha512>>(key, parts, &mut output),
        });
        output
    }

    /// HKDF (RFC 5869) without salt, with these parts as info.
    pub(crate) fn hkdf(self, key: &Secret, info: &[&[u8]], length: usize) -> Secret {
        let mut output = Secret::zeroed(length);
        let bytes = output.bytes_mut();
        let expanded: Result<(), InvalidLength> = on_clean_stack(|| match self {
            Self::Sha256 => Hkdf::<Sha256>::new(None, key.expose()).expand_multi_info(info, bytes),
            Self::Sha384 => Hkdf::<Sha384>::new(None, key.expose()).expand_multi_info(info, bytes),
            Self::Sha512 => Hkdf::<Sha512>::new(None, key.expose()).expand_multi_info(info, bytes),
        });
        expanded.expect("a key is shorter than 255 hashes");
        output
    }

    /// HKDF-Extract without salt, then HKDF-Expand-Label (RFC 8446, section 7.1).
    pub(crate) fn hkdf_label(self, key: &Secret, label: &str, context: &[u8], length: usize) -> Secret {
        let label_length = u8::try_from(TLS13.len() + label.len()).expect("our own labels are short");
        let context_length = u8::try_from(context.len()).expect("the caller limits the context");
        let length_bytes = u16::try_from(length).expect("a key's length").to_be_bytes();
        let info: [&[u8]; 6] =
            [&length_bytes, &[label_length], TLS13, label.as_bytes(), &[context_length], context];
        self.hkdf(key, &info, length)
    }
}

/// How every label of TLS 1.3 begins.
pub(crate) const TLS13: &[u8] = b"tls13 ";

/// No hash function has this name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("\"{0}\" is none of the hash functions sha256, sha384 and sha512")]
pub struct UnknownHash(String);

/// The names that Linux and SPDK use.
impl FromStr for Hash {
    type Err = UnknownHash;

    fn from_str(name: &str) -> Result<Self, UnknownHash> {
        match name {
            "sha256" => Ok(Self::Sha256),
            "sha384" => Ok(Self::Sha384),
            "sha512" => Ok(Self::Sha512),
            _ => Err(UnknownHash(name.to_owned())),
        }
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.id().fmt(f)
    }
}

fn digest<H: Digest>(bytes: &[u8]) -> Secret {
    Secret::copy_of(&H::digest(bytes))
}

fn mac<M: Mac + KeyInit>(key: &Secret, parts: &[&[u8]], output: &mut Secret) {
    let mut mac = <M as KeyInit>::new_from_slice(key.expose()).expect("HMAC takes a key of any length");
    for part in parts {
        mac.update(part);
    }
    output.bytes_mut().copy_from_slice(&mac.finalize().into_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::hex;

    #[test]
    fn hmac_has_the_values_of_rfc_4231() {
        let key = Secret::copy_of(&[0x0b; 20]);
        let expected = [
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7",
            "afd03944d84895626b0825f4ab46907f15f9dadbe4101ec682aa034c7cebc59cfaea9ea9076ede7f4af152e8b2fa9cb6",
            "87aa7cdea5ef619d4ff0b4241a1d6cb02379f4e2ce4ec2787ad0b30545e17cdedaa833b7d6b8a702038b274eaea3f4e4\
             be9d914eeb61f1702e696c203a126854",
        ];
        for (hash, expected) in Hash::ALL.into_iter().zip(expected) {
            assert_eq!(hash.hmac(&key, &[b"Hi ", b"There"]).expose(), hex(expected), "{hash}");
        }
    }

    #[test]
    fn hkdf_has_the_value_of_rfc_5869() {
        // Test case 3: no salt and no info.
        let okm = Hash::Sha256.hkdf(&Secret::copy_of(&[0x0b; 22]), &[], 42);
        let expected = "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8";
        assert_eq!(okm.expose(), hex(expected));
    }

    #[test]
    fn every_hash_is_found_by_its_identifier_and_others_are_not() {
        for hash in Hash::ALL {
            assert_eq!(Hash::from_id(hash.id()), Some(hash));
            assert_eq!(hash.of(b"").expose().len(), hash.length());
        }
        assert_eq!([HashId(0), HashId(4)].map(Hash::from_id), [None, None]);
        assert_eq!(["sha256", "sha384", "sha512"].map(str::parse), Hash::ALL.map(Ok));
        let unknown = "SHA-256".parse::<Hash>().unwrap_err().to_string();
        assert_eq!(unknown, "\"SHA-256\" is none of the hash functions sha256, sha384 and sha512");
    }
}
