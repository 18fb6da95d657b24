//! What an identity says, as a peer sends it.

use std::str;

use ringfab_spec::Nqn;
use thiserror::Error;

use super::{CipherSuite, IdentityVersion, Names, Origin};
use crate::hash::Hash;

/// Base64 of the longest digest that a suite has, SHA-384.
const DIGEST_CHARACTERS_MAX: usize = 64;

/// An identity in its parts. Whether there is such a key, it does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParsedIdentity<'a> {
    /// Its form.
    pub version: IdentityVersion,
    /// Where its key comes from.
    pub origin: Origin,
    /// The suite of its key.
    pub suite: CipherSuite,
    /// Whose it is.
    pub names: Names<'a>,
}

/// These bytes are no identity of NVMe/TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the identity is none of NVMe/TCP")]
pub struct UnknownIdentity;

impl<'a> ParsedIdentity<'a> {
    /// Takes an identity apart. The name of a subsystem has no spaces; that of a host may have some.
    ///
    /// # Errors
    /// When it is no identity of version 0 or 1.
    pub fn parse(identity: &'a [u8]) -> Result<Self, UnknownIdentity> {
        str::from_utf8(identity).ok().and_then(Self::of_text).ok_or(UnknownIdentity)
    }

    fn of_text(text: &'a str) -> Option<Self> {
        let (kind, rest) = text.strip_prefix("NVMe")?.split_once(' ')?;
        let &[version, origin, b'0', suite @ b'0'..=b'9'] = kind.as_bytes() else { return None };
        let version = match version {
            b'0' => IdentityVersion::Zero,
            b'1' => IdentityVersion::One,
            _ => return None,
        };
        let origin = match origin {
            b'R' => Origin::Retained,
            b'G' => Origin::Generated,
            _ => return None,
        };
        let suite = CipherSuite::of_hash(Hash::from_id((suite - b'0').into())?)?;
        let names = match version {
            IdentityVersion::Zero => rest,
            IdentityVersion::One => {
                let (names, digest) = rest.rsplit_once(' ')?;
                let is_digest = (1..=DIGEST_CHARACTERS_MAX).contains(&digest.len());
                is_digest.then_some(names)?
            }
        };
        let (host, subsystem) = names.rsplit_once(' ')?;
        let names = Names { host: Nqn::new(host).ok()?, subsystem: Nqn::new(subsystem).ok()? };
        Some(Self { version, origin, suite, names })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::psk::{ConfiguredPsk, Derivation};
    use crate::secret::system_random;

    #[test]
    fn an_identity_is_taken_apart_as_it_was_put_together() {
        for suite in [CipherSuite::Aes128GcmSha256, CipherSuite::Aes256GcmSha384] {
            for host in ["nqn.2024-01.org.example:host", "a host"] {
                let names = Names {
                    host: Nqn::new(host).unwrap(),
                    subsystem: Nqn::new("nqn.2024-01.org.example:s").unwrap(),
                };
                let psk = ConfiguredPsk::generate(suite, &mut system_random());
                let psk = psk.retained(names.host, Derivation::Specified);
                for version in [IdentityVersion::Zero, IdentityVersion::One] {
                    let identity = psk.identity(version, suite, names);
                    let origin = Origin::Retained;
                    let expected = ParsedIdentity { version, origin, suite, names };
                    assert_eq!(ParsedIdentity::parse(identity.as_bytes()), Ok(expected), "{identity}");
                }
            }
        }
        let generated = ParsedIdentity::parse(b"NVMe1G02 h s d").unwrap();
        assert_eq!((generated.origin, generated.suite), (Origin::Generated, CipherSuite::Aes256GcmSha384));
    }

    #[test]
    fn other_bytes_are_no_identity() {
        let long = "x".repeat(224);
        for text in [
            "",
            "NVMe",
            "NVMe0R01",
            "NVMe0R01 host",
            "NVMe0R01 host ",
            "NVMe0R01  sub",
            "NVMe2R01 host sub digest",
            "NVMe0X01 host sub",
            "NVMe0R00 host sub",
            "NVMe0R03 host sub",
            "NVMe0R1 host sub",
            "NVMe0R011 host sub",
            "NVMe1R01 host sub",
            "NVMe1R01 host sub ",
            "nvme0R01 host sub",
            "NVMe0R01 ho\nst sub",
            &format!("NVMe0R01 {long} sub"),
            &format!("NVMe1R01 host sub {}", &long[..65]),
        ] {
            assert_eq!(ParsedIdentity::parse(text.as_bytes()), Err(UnknownIdentity), "{text}");
        }
        assert_eq!(ParsedIdentity::parse(b"NVMe0R01 host s\xff"), Err(UnknownIdentity));
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_identity_or_none(
            start in prop::sample::select(vec!["", "NVMe", "NVMe0R01 ", "NVMe1G02 ", "NVMe1R01 host "]),
            rest: Vec<u8>,
        ) {
            let bytes = [start.as_bytes(), &rest].concat();
            if let Ok(parsed) = ParsedIdentity::parse(&bytes) {
                let Names { host, subsystem } = parsed.names;
                prop_assert!(bytes.len() >= 10 + host.as_str().len() + subsystem.as_str().len());
            }
        }
    }
}
