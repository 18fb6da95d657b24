//! What a connection over TLS is made with, and what it has then.

use std::fmt;
use std::sync::Arc;

use ringfab_auth::{CipherSuite, Secret};
use ringfab_tls::PskStore;

/// Whether a listener's connections are protected by TLS 1.3.
#[derive(Clone, Debug, Default)]
pub enum ListenerTls {
    /// None is. A host that begins with TLS is refused.
    #[default]
    Off,
    /// A host may begin with TLS, or speak in clear text. Its first byte says which.
    Allowed(Arc<dyn PskStore>),
    /// A host that does not begin with TLS is refused.
    Required(Arc<dyn PskStore>),
}

/// Who seals and opens the records of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtectedBy {
    /// The kernel (kTLS).
    Kernel,
    /// This process.
    Process,
}

impl fmt::Display for ProtectedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kernel => "kernel",
            Self::Process => "process",
        })
    }
}

/// How a connection over TLS is protected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Security {
    /// The cipher suite.
    pub suite: CipherSuite,
    /// The identity of the key that both ends have shown to have.
    pub identity: String,
    /// The key itself, to see later whether it is still the one with this identity.
    pub psk: Secret,
    /// By whom.
    pub by: ProtectedBy,
}
