//! The TLS of a connection, and whose it is.

use std::fmt;

use ringfab_auth::{CipherSuite, IdentityVersion, Origin, ParsedIdentity};

/// The TLS of a connection: by which key its ends know each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsChannel {
    identity: String,
    host: String,
    subsystem: String,
    version: IdentityVersion,
    origin: Origin,
    suite: CipherSuite,
}

impl TlsChannel {
    /// A channel whose key has this identity.
    pub fn new(identity: &[u8], suite: CipherSuite) -> Option<Self> {
        let parsed = ParsedIdentity::parse(identity).ok()?;
        Some(Self {
            identity: String::from_utf8_lossy(identity).into_owned(),
            host: parsed.names.host.as_str().to_owned(),
            subsystem: parsed.names.subsystem.as_str().to_owned(),
            version: parsed.version,
            origin: parsed.origin,
            suite,
        })
    }

    /// The identity of its key.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Whose key it is.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// For which subsystem the key is.
    pub fn subsystem(&self) -> &str {
        &self.subsystem
    }

    /// Whether it has a generated key of a host for a subsystem.
    pub(crate) fn is_generated_for(&self, host: &str, subsystem: &str) -> bool {
        self.is_generated() && (self.host(), self.subsystem()) == (host, subsystem)
    }

    /// The version of the identity.
    pub fn version(&self) -> u8 {
        match self.version {
            IdentityVersion::Zero => 0,
            IdentityVersion::One => 1,
        }
    }

    /// Whether secure channel concatenation has made the key. Another one was configured.
    pub fn is_generated(&self) -> bool {
        self.origin == Origin::Generated
    }

    /// The cipher suite.
    pub fn suite(&self) -> CipherSuite {
        self.suite
    }
}

impl fmt::Display for TlsChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = if self.is_generated() { "generated" } else { "configured" };
        write!(f, "{}, {key} key, identity of version {}", self.suite, self.version())
    }
}
