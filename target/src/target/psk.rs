//! The keys of TLS. A host has one; that of a connection follows from it and from the names of host and subsystem.

use std::time::SystemTime;

use ringfab_auth::{
    Authenticated, ConfiguredPsk, Derivation, IdentityTooLong, Names, Origin, ParsedIdentity, TlsPsk,
    UnknownIdentity,
};
use ringfab_reactor::Time;
use ringfab_spec::nqn::DISCOVERY_NQN;

use super::Target;
use crate::config::{HostTls, age};
use crate::controller::Controller;
use crate::model::{Served, TlsChannel};

/// Why there is no key with an identity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoPsk {
    /// It is no identity.
    #[error(transparent)]
    Unknown(#[from] UnknownIdentity),
    /// The host has none.
    #[error("the host {0} has no tls_key")]
    Host(String),
    /// No host has one for this subsystem.
    #[error("there is no subsystem {0}")]
    Subsystem(String),
    /// The host may not use the subsystem.
    #[error("the host {host} is not among the allowed_hosts of {subsystem}")]
    NotAllowed {
        /// The host.
        host: String,
        /// The subsystem.
        subsystem: String,
    },
    /// The host has another one.
    #[error(
        "the tls_key of the host {0} has another identity: the host has another key, or derives it otherwise"
    )]
    Other(String),
    /// Secure channel concatenation has made none, or a newer one.
    #[error("no key was made for the host {0} with this identity, or it is not kept any more")]
    NotGenerated(String),
    /// No key can have it.
    #[error(transparent)]
    TooLong(#[from] IdentityTooLong),
}

impl Target {
    /// The keys that have an identity now, the newest first. An identity of version 0 is that of a host's new key and
    /// of its old one.
    ///
    /// # Errors
    /// Why there is none.
    pub fn psks(&self, served: &Served, identity: &[u8]) -> Result<Vec<TlsPsk>, NoPsk> {
        let parsed = ParsedIdentity::parse(identity)?;
        let (host, subsystem) = (parsed.names.host.as_str(), parsed.names.subsystem.as_str());
        if !self.is_discovery(subsystem) {
            let found = served.find(subsystem).ok_or_else(|| NoPsk::Subsystem(subsystem.to_owned()))?;
            if parsed.origin == Origin::Generated && !found.demands().concatenation {
                return Err(NoPsk::NotGenerated(host.to_owned()));
            }
            if !found.allows(host) {
                let (host, subsystem) = (host.to_owned(), subsystem.to_owned());
                return Err(NoPsk::NotAllowed { host, subsystem });
            }
        }
        if parsed.origin == Origin::Generated {
            let found = self.generated.find(parsed.names, identity).map(|(psk, _)| vec![psk]);
            return found.ok_or_else(|| NoPsk::NotGenerated(host.to_owned()));
        }
        let config = served.config_of(host).filter(|config| config.tls.is_some());
        let config = config.ok_or_else(|| NoPsk::Host(host.to_owned()))?;
        let old_counts = config.old_keys_count(SystemTime::now());
        let keys = config.tls.iter().flat_map(|tls| tls.keys().map(|key| (&key.key, tls.derivation)));
        let counting = keys.take(if old_counts { 2 } else { 1 });
        let psks = counting.map(|(key, derivation)| derived(key, derivation, &parsed));
        let known = |psk: &TlsPsk| psk.is_known_by(identity);
        let psks: Vec<TlsPsk> =
            psks.filter(|psk| psk.as_ref().map_or(true, known)).collect::<Result<_, _>>()?;
        if psks.is_empty() { Err(NoPsk::Other(host.to_owned())) } else { Ok(psks) }
    }

    /// Keeps the key for TLS that an authentication has made, if it has made one: over TLS, instead of the channel's.
    pub(crate) fn keep_psk(
        &self,
        names: Names<'_>,
        authenticated: &Authenticated,
        channel: Option<&TlsChannel>,
        now: Time,
    ) -> Option<TlsPsk> {
        self.generated.keep(names, authenticated, channel.map(TlsChannel::identity), now)
    }

    /// Whether keys are kept that were made.
    pub(crate) fn keeps_psks(&self) -> bool {
        self.generated.is_any()
    }

    /// Forgets the keys that were made and have not been used for some time.
    pub(crate) fn expire_psks(&self, now: Time) {
        self.generated.expire(now, |identity| {
            let uses =
                |one: &Controller| one.host().tls.as_ref().is_some_and(|tls| tls.identity() == identity);
            self.table().all().any(|one| uses(one))
        });
    }

    /// How the host of a channel has authenticated, if that has made its key.
    pub(super) fn authenticated_before(&self, tls: &TlsChannel) -> Option<Authenticated> {
        let identity = tls.identity().as_bytes();
        let parsed = ParsedIdentity::parse(identity).ok()?;
        self.generated.find(parsed.names, identity).map(|(_, authenticated)| authenticated)
    }

    /// Whether this is a name of the discovery subsystem.
    pub(super) fn is_discovery(&self, nqn: &str) -> bool {
        nqn == DISCOVERY_NQN || nqn == self.discovery.nqn()
    }
}

/// The key of a connection, of a host's key.
fn derived(
    key: &ConfiguredPsk,
    derivation: Derivation,
    parsed: &ParsedIdentity<'_>,
) -> Result<TlsPsk, IdentityTooLong> {
    key.retained(parsed.names.host, derivation).tls(parsed.version, key.suite(), parsed.names, derivation)
}

/// How old the configured key of a connection is: `new`, `old`, or `replaced`.
pub(crate) fn tls_key_age(tls: &TlsChannel, served: &Served) -> &'static str {
    let keys = served.tls_of(tls.host());
    let is_this = |tls_keys: &HostTls| {
        let mut keys = tls_keys.keys().map(|key| (key.key.clone(), tls_keys.derivation));
        keys.position(|key| is_of_any(tls, &[key]))
    };
    age(keys.and_then(is_this))
}

/// Whether a connection's key is one of these keys of its host.
pub(super) fn is_of_any(tls: &TlsChannel, keys: &[(ConfiguredPsk, Derivation)]) -> bool {
    let Ok(parsed) = ParsedIdentity::parse(tls.identity().as_bytes()) else { return false };
    let is_this = |(key, derivation): &(ConfiguredPsk, Derivation)| {
        derived(key, *derivation, &parsed).is_ok_and(|psk| tls.has_key(&psk))
    };
    keys.iter().any(is_this)
}
