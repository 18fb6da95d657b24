//! Pre-shared keys for TLS (NVM Express TCP Transport 1.1, section 3.6.1).
//!
//! A configured PSK is what people exchange. It becomes the retained PSK of a host. Instead of it, secure channel
//! concatenation makes a generated PSK. From either one, and from an identity, comes the TLS PSK.

mod identity;

use std::fmt;

use base64ct::{Base64, Encoding};
use rand_core::CryptoRng;
use ringfab_spec::Nqn;
use thiserror::Error;

use crate::fingerprint::KeyFingerprint;
use crate::hash::{Hash, TLS13};
use crate::interchange::{KeyError, TLS};
use crate::secret::{Secret, SecretText, is_equal};

pub use identity::{ParsedIdentity, UnknownIdentity};

/// What is hashed last in the digest of an identity.
const DIGEST_SUFFIX: &[u8] = b" NVMe-over-Fabrics";

const LABEL_RETAINED: &str = "HostNQN";
const LABEL_TLS: &str = "nvme-tls-psk";

/// The longest context of HKDF-Expand-Label.
const CONTEXT_BYTES_MAX: usize = 255;

/// A cipher suite of TLS 1.3 that NVMe/TCP uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CipherSuite {
    /// TLS_AES_128_GCM_SHA256.
    Aes128GcmSha256,
    /// TLS_AES_256_GCM_SHA384.
    Aes256GcmSha384,
}

impl CipherSuite {
    /// The suite whose hash is this one.
    pub const fn of_hash(hash: Hash) -> Option<Self> {
        match hash {
            Hash::Sha256 => Some(Self::Aes128GcmSha256),
            Hash::Sha384 => Some(Self::Aes256GcmSha384),
            Hash::Sha512 => None,
        }
    }

    /// Its hash function.
    pub const fn hash(self) -> Hash {
        match self {
            Self::Aes128GcmSha256 => Hash::Sha256,
            Self::Aes256GcmSha384 => Hash::Sha384,
        }
    }
}

impl fmt::Display for CipherSuite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Aes128GcmSha256 => "TLS_AES_128_GCM_SHA256",
            Self::Aes256GcmSha384 => "TLS_AES_256_GCM_SHA384",
        })
    }
}

/// How labels of HKDF are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Derivation {
    /// As the specifications say.
    #[default]
    Specified,
    /// As libnvme did before July 2025: no length before label and context, and the length of the key least significant
    /// byte first. For peers whose keys were installed by such a version.
    LibnvmeBefore202507,
}

impl Derivation {
    fn derive(self, hash: Hash, key: &Secret, label: &str, context: &[u8], length: usize) -> Secret {
        match self {
            Self::Specified => hash.hkdf_label(key, label, context, length),
            Self::LibnvmeBefore202507 => {
                let length_bytes = u16::try_from(length).expect("a key's length").to_le_bytes();
                hash.hkdf(key, &[&length_bytes, TLS13, label.as_bytes(), context], length)
            }
        }
    }
}

/// A PSK as people configure it: `NVMeTLSkey-1:` as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfiguredPsk {
    transformation: Option<Hash>,
    secret: Secret,
}

impl ConfiguredPsk {
    /// Reads the text of a key.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let (hash, secret) = TLS.parse(text)?;
        Ok(Self { transformation: Hash::from_id(hash.into()), secret })
    }

    /// A new key for a suite, with the suite's hash as transformation.
    pub fn generate(suite: CipherSuite, random: &mut dyn CryptoRng) -> Self {
        let hash = suite.hash();
        Self { transformation: Some(hash), secret: Secret::random(hash.length(), random) }
    }

    /// A new key for a suite, which is used as it is.
    pub fn generate_plain(suite: CipherSuite, random: &mut dyn CryptoRng) -> Self {
        Self { transformation: None, secret: Secret::random(suite.hash().length(), random) }
    }

    /// A key of these bytes. The suite's hash makes a retained PSK of it; without one it is used as it is.
    ///
    /// # Errors
    /// A length other than 32 or 48.
    pub fn new(secret: Secret, transformation: Option<CipherSuite>) -> Result<Self, KeyError> {
        TLS.check_length(secret.expose().len())?;
        Ok(Self { transformation: transformation.map(CipherSuite::hash), secret })
    }

    /// Its text.
    pub fn to_text(&self) -> SecretText {
        TLS.print(self.transformation.map_or(0, |hash| hash.id().0), &self.secret)
    }

    /// The hash that makes a retained PSK of it.
    pub fn transformation(&self) -> Option<Hash> {
        self.transformation
    }

    /// Bytes of the key.
    pub fn length(&self) -> usize {
        self.secret.expose().len()
    }

    /// Which key it is.
    pub fn fingerprint(&self) -> KeyFingerprint {
        KeyFingerprint::of(&self.secret)
    }

    /// The suite for a key of this length.
    pub fn suite(&self) -> CipherSuite {
        match self.length() {
            32 => CipherSuite::Aes128GcmSha256,
            _ => CipherSuite::Aes256GcmSha384,
        }
    }

    /// The retained PSK of a host.
    pub fn retained(&self, host: Nqn<'_>, derivation: Derivation) -> InputPsk {
        let secret = match self.transformation {
            None => self.secret.clone(),
            Some(hash) => {
                derivation.derive(hash, &self.secret, LABEL_RETAINED, host.as_str().as_bytes(), self.length())
            }
        };
        InputPsk { origin: Origin::Retained, secret }
    }
}

/// Where a PSK comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// It was configured.
    Retained,
    /// Secure channel concatenation made it.
    Generated,
}

/// Which form an identity has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdentityVersion {
    /// The names alone.
    Zero,
    /// The names, and a digest of the PSK.
    One,
}

/// A retained or generated PSK.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputPsk {
    origin: Origin,
    secret: Secret,
}

/// The names are too long for an identity of version 0: HKDF's context has 255 bytes at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "an identity of version 0 has {0} bytes for these names, and a key can be made for at most 255: use version 1"
)]
pub struct IdentityTooLong(usize);

/// The two names of an association.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Names<'a> {
    /// The host's.
    pub host: Nqn<'a>,
    /// The subsystem's.
    pub subsystem: Nqn<'a>,
}

impl InputPsk {
    pub(crate) fn generated(secret: Secret) -> Self {
        Self { origin: Origin::Generated, secret }
    }

    /// Where it comes from.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Its bytes.
    pub fn secret(&self) -> &Secret {
        &self.secret
    }

    /// By what both ends of TLS name it.
    pub fn identity(&self, version: IdentityVersion, suite: CipherSuite, names: Names<'_>) -> String {
        let version_digit = match version {
            IdentityVersion::Zero => '0',
            IdentityVersion::One => '1',
        };
        let origin = match self.origin {
            Origin::Retained => 'R',
            Origin::Generated => 'G',
        };
        let Names { host, subsystem } = names;
        let identity = format!("NVMe{version_digit}{origin}{} {host} {subsystem}", specifier(suite));
        match version {
            IdentityVersion::Zero => identity,
            IdentityVersion::One => format!("{identity} {}", self.digest(suite, names)),
        }
    }

    /// The digest of an identity of version 1.
    fn digest(&self, suite: CipherSuite, names: Names<'_>) -> String {
        let (host, subsystem) = (names.host.as_str().as_bytes(), names.subsystem.as_str().as_bytes());
        let mac = suite.hash().hmac(&self.secret, &[host, b" ", subsystem, DIGEST_SUFFIX]);
        Base64::encode_string(mac.expose())
    }

    /// The key for TLS, with its identity.
    ///
    /// # Errors
    /// The names are too long for version 0.
    pub fn tls(
        &self,
        version: IdentityVersion,
        suite: CipherSuite,
        names: Names<'_>,
        derivation: Derivation,
    ) -> Result<TlsPsk, IdentityTooLong> {
        let identity = self.identity(version, suite, names);
        let context = match version {
            IdentityVersion::Zero => identity.clone(),
            IdentityVersion::One => format!("{} {}", specifier(suite), self.digest(suite, names)),
        };
        if context.len() > CONTEXT_BYTES_MAX {
            return Err(IdentityTooLong(context.len()));
        }
        let hash = suite.hash();
        let secret = derivation.derive(hash, &self.secret, LABEL_TLS, context.as_bytes(), hash.length());
        Ok(TlsPsk { identity, suite, secret })
    }
}

/// How an identity says its suite.
fn specifier(suite: CipherSuite) -> String {
    format!("{:02}", suite.hash().id().0)
}

/// An external PSK of TLS 1.3.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsPsk {
    identity: String,
    suite: CipherSuite,
    secret: Secret,
}

impl TlsPsk {
    /// What the client sends and the server looks up.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Whether it is known by this identity. The time depends on the lengths alone.
    pub fn is_known_by(&self, identity: &[u8]) -> bool {
        is_equal(self.identity.as_bytes(), identity)
    }

    /// The one suite that it is for.
    pub fn suite(&self) -> CipherSuite {
        self.suite
    }

    /// Its bytes.
    pub fn secret(&self) -> &Secret {
        &self.secret
    }
}

#[cfg(test)]
mod tests;
