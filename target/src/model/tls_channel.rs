//! The TLS of a connection, and whose it is.

use std::fmt;

use ringfab_auth::{CipherSuite, IdentityVersion, Origin, ParsedIdentity, Secret, TlsPsk, UnknownIdentity};
use ringfab_fabric::tcp::{ProtectedBy, Security};

/// The TLS of a connection: by which key its ends know each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsChannel {
    identity: String,
    psk: Secret,
    host: String,
    subsystem: String,
    version: IdentityVersion,
    origin: Origin,
    suite: CipherSuite,
    by: ProtectedBy,
}

impl TlsChannel {
    /// That of a connection.
    ///
    /// # Errors
    /// When it is no identity of NVMe/TCP.
    pub fn new(security: &Security) -> Result<Self, UnknownIdentity> {
        let parsed = ParsedIdentity::parse(security.identity.as_bytes())?;
        Ok(Self {
            identity: security.identity.clone(),
            psk: security.psk.clone(),
            host: parsed.names.host.as_str().to_owned(),
            subsystem: parsed.names.subsystem.as_str().to_owned(),
            version: parsed.version,
            origin: parsed.origin,
            suite: security.suite,
            by: security.by,
        })
    }

    /// The identity of its key.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Whether this is its key. An identity of version 0 stays the same when the key becomes another one.
    pub fn has_key(&self, psk: &TlsPsk) -> bool {
        self.psk == *psk.secret()
    }

    /// Whose key it is.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// For which subsystem the key is.
    pub fn subsystem(&self) -> &str {
        &self.subsystem
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

    /// Who protects the connection.
    pub fn protected_by(&self) -> ProtectedBy {
        self.by
    }

    /// The cipher suite.
    pub fn suite(&self) -> CipherSuite {
        self.suite
    }
}

impl fmt::Display for TlsChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = if self.is_generated() { "generated" } else { "configured" };
        let (suite, version, by) = (self.suite, self.version(), self.by);
        write!(f, "{suite}, {key} key, identity of version {version}, by the {by}")
    }
}
