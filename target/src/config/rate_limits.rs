//! Hosts: how much they may do in a second, what shares they have of what is there, and which keys.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use super::KeySource;
use super::authentication::{HostAuthentication, HostTls, is_unseen_credential};
use super::until::Until;

/// The share of a host of which nothing is said.
pub const DEFAULT_SHARES: u32 = 100;

/// How much of a limit that was not used may be used later at once, when nothing is said of it.
pub(super) const DEFAULT_BURST: Duration = Duration::from_millis(50);

/// What may be done in a second; what is none is not limited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateLimits {
    /// Commands that read.
    pub read_iops: Option<u64>,
    /// Commands that change blocks.
    pub write_iops: Option<u64>,
    /// Bytes of the commands that read.
    pub read_bytes_per_s: Option<u64>,
    /// Bytes of the commands that write.
    pub write_bytes_per_s: Option<u64>,
    /// For how long what is not used is kept: so much of each limit may be done at once after a pause.
    pub burst: Duration,
}

impl Default for RateLimits {
    fn default() -> Self {
        Self {
            read_iops: None,
            write_iops: None,
            read_bytes_per_s: None,
            write_bytes_per_s: None,
            burst: DEFAULT_BURST,
        }
    }
}

impl RateLimits {
    /// The key of each limit in a file, and its value.
    pub fn keys(&self) -> [(&'static str, Option<u64>); 4] {
        [
            ("read_iops", self.read_iops),
            ("write_iops", self.write_iops),
            ("read_bytes_per_s", self.read_bytes_per_s),
            ("write_bytes_per_s", self.write_bytes_per_s),
        ]
    }

    /// Whether nothing is limited.
    pub fn is_unlimited(&self) -> bool {
        self.keys().iter().all(|(_, limit)| limit.is_none())
    }
}

/// The limits of a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespaceLimits {
    /// What all hosts together may do.
    pub all: RateLimits,
    /// What single hosts may do, by host NQN.
    pub hosts: BTreeMap<String, RateLimits>,
}

impl NamespaceLimits {
    /// Whether nothing is limited.
    pub fn is_unlimited(&self) -> bool {
        self.all.is_unlimited() && self.hosts.is_empty()
    }
}

/// A host, as far as something is said of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostConfig {
    /// Its NQN.
    pub nqn: String,
    /// How much it gets in relation to the other hosts where several wait for the same.
    pub shares: u32,
    /// What it may do on all namespaces together.
    pub limits: RateLimits,
    /// How it proves who it is; with a key it has to.
    pub authentication: Option<HostAuthentication>,
    /// Its key for TLS.
    pub tls: Option<HostTls>,
    /// How long its old keys count; until they are taken away if this is not said.
    pub old_keys_until: Option<Until>,
}

impl HostConfig {
    /// Where its keys are.
    pub(crate) fn key_sources(&self) -> impl Iterator<Item = &KeySource> {
        let dhchap = self.authentication.iter().flat_map(|one| one.all_keys().map(|(_, key)| &key.source));
        dhchap.chain(self.tls.iter().flat_map(|tls| tls.keys().map(|key| &key.source)))
    }

    /// Whether it has keys before those that it has now.
    pub fn has_old_keys(&self) -> bool {
        let tls = self.tls.as_ref().is_some_and(|tls| tls.old.is_some());
        tls || self.authentication.as_ref().is_some_and(|one| one.old.is_some())
    }

    /// Whether its old keys count.
    pub fn old_keys_count(&self, now: SystemTime) -> bool {
        !self.old_keys_until.is_some_and(|until| until.is_over(now))
    }

    /// Its keys that are credentials of a service, which this process does not see.
    pub(crate) fn unseen_credentials(&self) -> impl Iterator<Item = &KeySource> {
        self.key_sources().filter(|source| is_unseen_credential(source))
    }

    /// A host of which nothing is said.
    pub fn new(nqn: String) -> Self {
        let limits = RateLimits::default();
        Self { nqn, shares: DEFAULT_SHARES, limits, authentication: None, tls: None, old_keys_until: None }
    }

    /// Whether nothing is said of it.
    pub fn is_default(&self) -> bool {
        let has_key = self.authentication.is_some() || self.tls.is_some();
        self.shares == DEFAULT_SHARES && self.limits.is_unlimited() && !has_key
    }
}
