//! How a host proves who it is, what a subsystem demands of it, and where the keys for that are.

use std::io;
use std::time::Duration;

use ringfab_auth::{CipherSuite, ConfiguredPsk, Derivation, DhchapKey, Group, Hash, KeyError, KeySource};
use ringfab_base::VisiblePath as _;

use crate::confinement;
use crate::worker;

/// How long reading a key may take.
const READ_LIMIT: Duration = Duration::from_secs(5);

/// A key, and where it was read. Its text is never printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfiguredKey<K> {
    /// Where it is.
    pub source: KeySource,
    /// The key, as it was when the configuration was read.
    pub key: K,
}

/// How a host proves who it is (DH-HMAC-CHAP).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostAuthentication {
    /// The key of the host.
    pub key: ConfiguredKey<DhchapKey>,
    /// The key with which the controller proves who it is, if the host asks for that.
    pub controller_key: Option<ConfiguredKey<DhchapKey>>,
    /// Hash functions, the preferred one first; at least one.
    pub hashes: Vec<Hash>,
    /// Groups, the preferred one first; at least one.
    pub groups: Vec<Group>,
}

/// The key by which a host and the target know each other in TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostTls {
    /// The key.
    pub key: ConfiguredKey<ConfiguredPsk>,
    /// How the keys of its connections are derived.
    pub derivation: Derivation,
}

/// What a subsystem demands of its hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demands {
    /// They prove who they are (DH-HMAC-CHAP): those without a key for that are refused.
    pub authentication: bool,
    /// They come over TLS.
    pub tls: bool,
    /// Whether authentication in clear text may make the key for TLS (secure channel concatenation).
    pub concatenation: bool,
}

impl Default for Demands {
    /// Nothing, and concatenation for those that ask for it.
    fn default() -> Self {
        Self { authentication: false, tls: false, concatenation: true }
    }
}

impl HostTls {
    /// Whether the key and its derivation are the same, wherever the key is.
    pub fn has_same_key(&self, other: &Self) -> bool {
        self.key.key == other.key.key && self.derivation == other.derivation
    }
}

impl HostAuthentication {
    /// Whether it can make keys for TLS: not every hash has a suite, and the null group makes none.
    pub fn can_make_keys(&self) -> bool {
        let hash = self.hashes.iter().any(|hash| CipherSuite::of_hash(*hash).is_some());
        hash && self.groups.iter().any(|group| *group != Group::Null)
    }

    /// Whether the keys are the same, wherever they are.
    pub fn has_same_keys(&self, other: &Self) -> bool {
        let controller_key = |one: &Self| one.controller_key.as_ref().map(|key| key.key.clone());
        self.key.key == other.key.key && controller_key(self) == controller_key(other)
    }

    /// Whether every hash function and group of the other one may be used here, in whatever order.
    pub fn allows_all_of(&self, other: &Self) -> bool {
        other.hashes.iter().all(|hash| self.hashes.contains(hash))
            && other.groups.iter().all(|group| self.groups.contains(group))
    }
}

/// Whether a key is a credential of a service, and this process, which may be a person's, has none.
pub(super) fn is_unseen_credential(source: &KeySource) -> bool {
    matches!(source, KeySource::Credential(_)) && source.place().is_err()
}

/// Reads a key.
///
/// # Errors
/// Why it cannot be read, or what is wrong with it. The message has nothing of its text.
pub(super) fn read_key<K>(
    source: &KeySource,
    parse: impl FnOnce(&str) -> Result<K, KeyError>,
) -> Result<K, String> {
    let (path, at) = (source.place()?, source.clone());
    let text = worker::within("reading", &path, READ_LIMIT, move || at.read_text());
    let text = text.map_err(io::Error::from).flatten();
    let text = text.map_err(|error| {
        let denied = error.kind() == io::ErrorKind::PermissionDenied;
        let confined = if denied { confinement::refused_file(&path) } else { None };
        let why = confined.map(|why| format!(": {why}")).unwrap_or_default();
        format!("cannot read {}: {error}{why}", path.visible())
    })?;
    parse(text.expose()).map_err(|error| format!("{}: {error}", path.visible()))
}
