//! What a host has to do before it may use a subsystem.

use std::sync::Arc;
use std::time::SystemTime;

use ringfab_auth::{Channel, Concatenation, DhchapKey, KeyFingerprint, Names, Parties, Policy};

use super::served::Served;
use crate::config::{ConfiguredKey, HostAuthentication, HostConfig, HostTls, Until};

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
    /// The same with the keys before, and how long they count.
    old: Option<(Arc<Parties>, Option<Until>)>,
    /// Which hash functions and groups are accepted.
    pub policy: Arc<Policy>,
    /// Whether it makes a key for TLS.
    pub concatenation: Concatenation,
}

impl AuthenticationTerms {
    /// Of a host with what is configured for it; none if that is nothing, or accepts nothing.
    pub(crate) fn new(host: &HostConfig, names: Names<'_>, concatenation: Concatenation) -> Option<Self> {
        let configured = host.authentication.as_ref()?;
        let policy = Arc::new(Policy::new(&configured.hashes, &configured.groups).ok()?);
        let parties = |key: &DhchapKey, controller_key: &Option<ConfiguredKey<DhchapKey>>| {
            Parties::new(names.host, names.subsystem, key, controller_key.as_ref().map(|key| &key.key))
        };
        let old = configured.old.as_ref();
        let old = old.map(|old| (parties(&old.key.key, &old.controller_key), host.old_keys_until));
        let parties = parties(&configured.key.key, &configured.controller_key);
        Some(Self { parties, old, policy, concatenation })
    }

    /// The same by what is configured now; none if the host has no key any more.
    pub(crate) fn renewed(&self, served: &Served) -> Option<Self> {
        let names = self.parties.names();
        Self::new(served.config_of(names.host.as_str())?, names, self.concatenation)
    }

    /// Those of each key that counts now, the newest first.
    pub(crate) fn candidates(&self, now: SystemTime) -> impl Iterator<Item = Arc<Parties>> {
        let counts = |(_, until): &&(_, Option<Until>)| !until.is_some_and(|until| until.is_over(now));
        let old = self.old.as_ref().filter(counts).map(|(parties, _)| parties);
        [Some(&self.parties), old].into_iter().flatten().cloned()
    }

    /// Whether this is the key before the one that the host should have, and how long it counts.
    pub(crate) fn is_old(&self, key: KeyFingerprint) -> Option<Option<Until>> {
        self.old.as_ref().filter(|(old, _)| old.key() == key).map(|(_, until)| *until)
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

    /// What is said of a host, if anything is.
    pub(crate) fn config_of(&self, host_nqn: &str) -> Option<&HostConfig> {
        Some(self.limited_host(host_nqn)?.config())
    }

    /// The key of a host for TLS, if it has one.
    pub fn tls_of(&self, host_nqn: &str) -> Option<&HostTls> {
        self.limited_host(host_nqn)?.config().tls.as_ref()
    }
}
