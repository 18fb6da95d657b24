//! What a host has to do before it may use a subsystem.

use std::sync::Arc;

use ringfab_auth::{Channel, Concatenation, Names, Parties, Policy};

use super::served::Served;
use crate::config::{HostAuthentication, HostTls};

/// What a host has to do before it may use a subsystem.
#[derive(Clone, Debug)]
pub enum Authentication {
    /// Nothing.
    NotNeeded,
    /// It cannot: it has no key, and the subsystem requires one.
    Impossible,
    /// Nothing, but it may prove again who it is.
    Possible(AuthenticationTerms),
    /// It has to prove that it has its key.
    Needed(AuthenticationTerms),
}

/// How a host and the target authenticate each other.
#[derive(Clone, Debug)]
pub struct AuthenticationTerms {
    /// Both ends, and their keys.
    pub parties: Arc<Parties>,
    /// Which hash functions and groups are accepted.
    pub policy: Arc<Policy>,
    /// Whether it makes a key for TLS.
    pub concatenation: Concatenation,
}

impl AuthenticationTerms {
    /// Of a host with what is configured for it; none if that accepts nothing.
    pub(crate) fn new(
        configured: &HostAuthentication,
        names: Names<'_>,
        concatenation: Concatenation,
    ) -> Option<Self> {
        let controller_key = configured.controller_key.as_ref().map(|key| &key.key);
        let policy = Arc::new(Policy::new(&configured.hashes, &configured.groups).ok()?);
        let parties = Parties::new(names.host, names.subsystem, &configured.key.key, controller_key);
        Some(Self { parties, policy, concatenation })
    }

    /// Whether a queue in clear text is only there to make a key for TLS.
    pub(crate) fn only_makes_key(&self) -> bool {
        self.concatenation == Concatenation::Required(Channel::Clear)
    }
}

impl Served {
    /// How a host proves who it is, if it has a key for that.
    pub(crate) fn authentication_of(&self, host_nqn: &str) -> Option<&HostAuthentication> {
        self.limited_host(host_nqn)?.config().authentication.as_ref()
    }

    /// The key of a host for TLS, if it has one.
    pub fn tls_of(&self, host_nqn: &str) -> Option<&HostTls> {
        self.limited_host(host_nqn)?.config().tls.as_ref()
    }
}
