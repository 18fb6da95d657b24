//! How keys are written for people: `PREFIX:HH:base64(key ‖ CRC-32):`.

use base64ct::{Base64, Encoding};
use crc_fast::CrcAlgorithm;
use thiserror::Error;
use zeroize::{Zeroize, Zeroizing};

use crate::secret::{Secret, SecretText, on_clean_stack};

/// Bytes of the CRC-32 behind a key, least significant first.
const CRC_BYTES: usize = 4;

/// Characters between the colons: what the longest key has, and more, so that a key that is too long is said to be.
const BASE64_CHARACTERS_MAX: usize = 1024;

/// Why a text is no key. No part of the key is in it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum KeyError {
    /// The text begins otherwise.
    #[error("the key must begin with \"{expected}\"")]
    Prefix {
        /// How it must begin.
        expected: &'static str,
    },
    /// It is a key for something else.
    #[error("this is {found}, and {expected} is needed")]
    OtherKind {
        /// What it is.
        found: &'static str,
        /// What was to be read.
        expected: &'static str,
    },
    /// It is a key of a connection, with its identity or of version 0, as nvme-cli exports those of a keyring.
    #[error(
        "this is a derived key for TLS, as `nvme tls-key --export` prints it: it is for one host and one subsystem, \
         and no other end can derive it again. The configured key is needed, \"NVMeTLSkey-1:\" and what follows: \
         `nvme gen-tls-key` printed it"
    )]
    Derived,
    /// The colon after the hash, or the last one, is missing.
    #[error("the key must have a hash of two digits, a colon, Base64, and a colon at its end")]
    Parts,
    /// The number of the hash function is none that such a key can have.
    #[error("\"{found}\" is not a hash of such a key: it is one of {allowed}")]
    Hash {
        /// What is there.
        found: String,
        /// What may be there.
        allowed: &'static str,
    },
    /// What is between the colons is not Base64.
    #[error("the key has characters that are not Base64, or lacks some at its end")]
    Base64,
    /// The key has a length that it cannot have.
    #[error("the key has {found} bytes, and must have {allowed}")]
    Length {
        /// How many it has.
        found: usize,
        /// How many it may have.
        allowed: &'static str,
    },
    /// The checksum is another one.
    #[error("the checksum of the key is wrong: a character was changed")]
    Checksum,
    /// A line of a file with the keys of a host is none.
    #[error("line {line}: it {why}")]
    Line {
        /// Which one.
        line: usize,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A key in a file with the keys of a host is none.
    #[error("line {line}: {error}")]
    InLine {
        /// In which line.
        line: usize,
        /// What is wrong with it.
        error: Box<KeyError>,
    },
    /// A file with the keys of a host lacks something.
    #[error("the file has no {name}")]
    Missing {
        /// What.
        name: &'static str,
    },
    /// A file with the keys of a host is another one's.
    #[error("the keys are those of host {found}, and not of {expected}")]
    OtherHost {
        /// Whose they are.
        found: String,
        /// Whose they should be.
        expected: String,
    },
}

/// A format of keys.
pub(crate) struct Interchange {
    /// What a key is, for messages.
    pub(crate) kind: &'static str,
    pub(crate) prefix: &'static str,
    pub(crate) hash_max: u8,
    pub(crate) hashes: &'static str,
    pub(crate) lengths: &'static [usize],
    pub(crate) lengths_text: &'static str,
}

/// `DHHC-1`: secrets of DH-HMAC-CHAP.
pub(crate) const DHCHAP: Interchange = Interchange {
    kind: "a key for authentication (DHHC-1)",
    prefix: "DHHC-1:",
    hash_max: 3,
    hashes: "00 (none), 01 (SHA-256), 02 (SHA-384) and 03 (SHA-512)",
    lengths: &[32, 48, 64],
    lengths_text: "32, 48 or 64",
};

/// `NVMeTLSkey-1`: pre-shared keys for TLS.
pub(crate) const TLS: Interchange = Interchange {
    kind: "a key for TLS (NVMeTLSkey-1)",
    prefix: "NVMeTLSkey-1:",
    hash_max: 2,
    hashes: "00 (none), 01 (SHA-256) and 02 (SHA-384)",
    lengths: &[32, 48],
    lengths_text: "32 or 48",
};

impl Interchange {
    /// The hash and the key of a text. White space around it is ignored, as files end with a newline, and so is a byte
    /// order mark, with which some editors begin a file.
    pub(crate) fn parse(&self, text: &str) -> Result<(u8, Secret), KeyError> {
        let text = text.trim_start_matches('\u{feff}').trim_ascii();
        if is_derived(text) {
            return Err(KeyError::Derived);
        }
        let body = text.strip_prefix(self.prefix).ok_or_else(|| self.other_kind(text))?;
        let (hash, body) = body.split_once(':').ok_or(KeyError::Parts)?;
        let base64 = body.strip_suffix(':').ok_or(KeyError::Parts)?;
        let hash = self.parse_hash(hash)?;
        Ok((hash, on_clean_stack(|| self.decode(base64))?))
    }

    fn other_kind(&self, text: &str) -> KeyError {
        match [&DHCHAP, &TLS].into_iter().find(|other| text.starts_with(other.prefix)) {
            Some(other) => KeyError::OtherKind { found: other.kind, expected: self.kind },
            None => KeyError::Prefix { expected: self.prefix },
        }
    }

    fn parse_hash(&self, text: &str) -> Result<u8, KeyError> {
        let number = match text.as_bytes() {
            [b'0', digit @ b'0'..=b'9'] => digit - b'0',
            _ => u8::MAX,
        };
        if number > self.hash_max {
            // A key may have been put here: no more of it is shown than such a number has.
            let found = text.chars().take(2).collect();
            return Err(KeyError::Hash { found, allowed: self.hashes });
        }
        Ok(number)
    }

    fn decode(&self, base64: &str) -> Result<Secret, KeyError> {
        if base64.len() > BASE64_CHARACTERS_MAX {
            return Err(self.wrong_length(base64.len() / 4 * 3 - CRC_BYTES));
        }
        let mut buffer = Zeroizing::new([0; BASE64_CHARACTERS_MAX]);
        let decoded = Base64::decode(base64, &mut buffer[..]).map_err(|_| KeyError::Base64)?;
        let length = decoded.len().saturating_sub(CRC_BYTES);
        if !self.lengths.contains(&length) {
            return Err(self.wrong_length(length));
        }
        let (key, crc) = decoded.split_at(length);
        if crc32(key) == crc { Ok(Secret::copy_of(key)) } else { Err(KeyError::Checksum) }
    }

    fn wrong_length(&self, found: usize) -> KeyError {
        KeyError::Length { found, allowed: self.lengths_text }
    }

    /// Whether such a key can have this many bytes.
    pub(crate) fn check_length(&self, length: usize) -> Result<(), KeyError> {
        if self.lengths.contains(&length) { Ok(()) } else { Err(self.wrong_length(length)) }
    }

    /// The text of a key.
    pub(crate) fn print(&self, hash: u8, key: &Secret) -> SecretText {
        let mut bytes = Zeroizing::new(Vec::with_capacity(key.expose().len() + CRC_BYTES));
        bytes.extend_from_slice(key.expose());
        bytes.extend_from_slice(&crc32(key.expose()));
        let mut base64 = Base64::encode_string(&bytes);
        let mut text = Zeroizing::new(String::with_capacity(self.prefix.len() + base64.len() + 4));
        text.push_str(self.prefix);
        text.push('0');
        text.push(char::from(b'0' + hash));
        text.push(':');
        text.push_str(&base64);
        text.push(':');
        base64.zeroize();
        SecretText::new(text)
    }
}

/// Whether a text is a PSK that was derived from a configured one (TCP Transport 1.1, section 3.6.1.4): behind its
/// identity, `NVMe1R01 HOSTNQN ...`, or in the interchange format with version 0. Version 0 is that of identities
/// without a digest; configured keys have version 1.
fn is_derived(text: &str) -> bool {
    let of_identity =
        |rest: &[u8]| matches!(rest, [b'0' | b'1', b'R' | b'G', b'0', b'0'..=b'9', b' ' | b'\t', ..]);
    text.starts_with("NVMeTLSkey-0:")
        || text.strip_prefix("NVMe").is_some_and(|rest| of_identity(rest.as_bytes()))
}

/// The CRC-32 of zlib and Ethernet.
fn crc32(bytes: &[u8]) -> [u8; CRC_BYTES] {
    let crc = crc_fast::checksum(CrcAlgorithm::Crc32IsoHdlc, bytes);
    u32::try_from(crc).expect("32 bits").to_le_bytes()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_text_is_a_key_or_an_error(
            text: String,
            start in prop::sample::select(vec!["", "DHHC-1:", "NVMeTLSkey-1:"]),
        ) {
            let text = format!("{start}{text}");
            for format in [&DHCHAP, &TLS] {
                if let Ok((hash, key)) = format.parse(&text) {
                    let printed = format.print(hash, &key);
                    prop_assert_eq!(printed.expose(), text.trim_ascii());
                }
            }
        }

        /// Also where the last bits of Base64 mean nothing: a key has one text.
        #[test]
        fn a_key_has_one_text(
            bytes: [[u8; 16]; 4],
            length in prop::sample::select(vec![32, 48, 64]),
            hash in 0..=3_u8,
            at: prop::sample::Index,
            other in "[A-Za-z0-9+/=]",
        ) {
            let key = Secret::copy_of(&bytes.as_flattened()[..length]);
            let text = DHCHAP.print(hash, &key).expose().to_owned();
            prop_assert_eq!(DHCHAP.parse(&text), Ok((hash, key.clone())));
            let at = at.index(text.len());
            let changed = format!("{}{other}{}", &text[..at], &text[at + 1..]);
            // Only the hash may be another one.
            if let Ok((_, read)) = DHCHAP.parse(&changed) {
                prop_assert!(read == key);
                prop_assert!(changed == text || at == 8);
            }
        }
    }

    #[test]
    fn the_checksum_is_that_of_zlib() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926_u32.to_le_bytes());
    }
}
