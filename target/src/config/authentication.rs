//! How a host proves who it is, what a subsystem demands of it, and where the keys for that are.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use ringfab_auth::{
    CipherSuite, ConfiguredPsk, Derivation, DhchapKey, Group, Hash, HostKeys, KeyError, KeyFingerprint,
    KeyRole, KeySource,
};
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
    /// The keys before, for a host that does not have the new ones yet.
    pub old: Option<OldKeys>,
    /// Hash functions, the preferred one first; at least one.
    pub hashes: Vec<Hash>,
    /// Groups, the preferred one first; at least one.
    pub groups: Vec<Group>,
}

/// Keys that a host had before. Whoever shows the old one is shown the controller's old one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OldKeys {
    /// The key of the host.
    pub key: ConfiguredKey<DhchapKey>,
    /// The key of the controller: its old one, or the one that it still has.
    pub controller_key: Option<ConfiguredKey<DhchapKey>>,
}

/// The key by which a host and the target know each other in TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostTls {
    /// The key.
    pub key: ConfiguredKey<ConfiguredPsk>,
    /// The key before, for a host that does not have the new one yet.
    pub old: Option<ConfiguredKey<ConfiguredPsk>>,
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
    /// All keys, the newest first.
    pub fn keys(&self) -> impl Iterator<Item = &ConfiguredKey<ConfiguredPsk>> {
        std::iter::once(&self.key).chain(&self.old)
    }

    /// The keys of these that count no more with `next`: that brings no newer one, and lacks them.
    pub fn revoked_by<'a>(&'a self, next: Option<&HostTls>) -> Vec<&'a ConfiguredPsk> {
        let of = |keys: &HostTls| keys.keys().map(|one| one.key.fingerprint()).collect();
        let revoked = revoked(&of(self), &next.map(of).unwrap_or_default());
        self.keys().map(|one| &one.key).filter(|key| revoked.contains(&key.fingerprint())).collect()
    }
}

/// The age of a key at this place in the list of a host's keys.
pub(crate) fn age(place: Option<usize>) -> &'static str {
    match place {
        Some(0) => "new",
        Some(_) => "old",
        None => "replaced",
    }
}

/// What becomes of the keys of a host in a change. One that brings a key replaces those that go: they count until hosts
/// authenticate again. One that brings none revokes them.
fn revoked(before: &BTreeSet<KeyFingerprint>, after: &BTreeSet<KeyFingerprint>) -> BTreeSet<KeyFingerprint> {
    if after.is_subset(before) { before - after } else { BTreeSet::new() }
}

impl HostAuthentication {
    /// Whether it can make keys for TLS: not every hash has a suite, and the null group makes none.
    pub fn can_make_keys(&self) -> bool {
        let hash = self.hashes.iter().any(|hash| CipherSuite::of_hash(*hash).is_some());
        hash && self.groups.iter().any(|group| *group != Group::Null)
    }

    /// All keys of the host, the newest first.
    pub fn keys(&self) -> impl Iterator<Item = &ConfiguredKey<DhchapKey>> {
        std::iter::once(&self.key).chain(self.old.iter().map(|old| &old.key))
    }

    /// All keys of the host and of the controller, with the keys of the configuration that they belong to.
    pub(crate) fn all_keys(&self) -> impl Iterator<Item = (&'static str, &ConfiguredKey<DhchapKey>)> {
        let of_host = self.keys().map(|key| ("dhchap_key", key));
        let old = self.old.iter().filter_map(|old| old.controller_key.as_ref());
        let of_controller = self.controller_key.iter().chain(old).map(|key| ("dhchap_controller_key", key));
        of_host.chain(of_controller)
    }

    /// How old a key is that the host has shown: `new`, `old`, or `replaced`, which counts no more.
    pub(crate) fn age_of(&self, key: KeyFingerprint) -> &'static str {
        age(self.keys().position(|one| one.key.fingerprint() == key))
    }

    /// The keys of the host that count no more with `next`: that brings no newer one, and lacks them.
    pub fn revoked_by(&self, next: Option<&HostAuthentication>) -> BTreeSet<KeyFingerprint> {
        let of = |keys: &HostAuthentication| keys.keys().map(|one| one.key.fingerprint()).collect();
        revoked(&of(self), &next.map(of).unwrap_or_default())
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

/// Reads a key of a host. A file with all keys of a host must be that of this one.
///
/// # Errors
/// Why it cannot be read, or what is wrong with it. The message has nothing of its text.
pub(super) fn read_key<K>(
    source: &KeySource,
    role: KeyRole,
    host: &str,
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
    let wrong = |error: KeyError| format!("{}: {error}", path.visible());
    match HostKeys::find(text.expose(), role).map_err(wrong)? {
        None => parse(text.expose()).map_err(wrong),
        Some((keys, key)) if keys.host() == host => parse(key.expose()).map_err(wrong),
        Some((keys, _)) => {
            let (found, expected) = (keys.host().to_owned(), host.to_owned());
            Err(wrong(KeyError::OtherHost { found, expected }))
        }
    }
}
