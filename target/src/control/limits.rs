//! Limits and shares as `status` shows them.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::config::{NamespaceLimits, RateLimits};
use crate::model::{LimitedHost, ServedSubsystem};

/// What may be done in a second; what is none is not limited.
#[derive(Clone, Debug, Serialize)]
pub struct LimitsState {
    /// Commands that read.
    pub read_iops: Option<u64>,
    /// Commands that change blocks.
    pub write_iops: Option<u64>,
    /// Bytes of the commands that read.
    pub read_bytes_per_s: Option<u64>,
    /// Bytes of the commands that write.
    pub write_bytes_per_s: Option<u64>,
    /// For how many milliseconds what is not used is kept.
    pub burst_ms: u64,
}

/// The limits of a namespace.
#[derive(Clone, Debug, Default, Serialize)]
pub struct NamespaceLimitsState {
    /// What all hosts together may do, if that is limited.
    pub limits: Option<LimitsState>,
    /// What single hosts may do, by host NQN.
    pub host_limits: BTreeMap<String, LimitsState>,
}

/// A host of which something is said.
#[derive(Clone, Debug, Serialize)]
pub struct HostState {
    /// Its NQN.
    pub nqn: String,
    /// How much it gets in relation to others.
    pub shares: u32,
    /// What it may do on all namespaces together, if that is limited.
    pub limits: Option<LimitsState>,
}

impl LimitsState {
    fn of(limits: &RateLimits) -> Self {
        Self {
            read_iops: limits.read_iops,
            write_iops: limits.write_iops,
            read_bytes_per_s: limits.read_bytes_per_s,
            write_bytes_per_s: limits.write_bytes_per_s,
            burst_ms: limits.burst.as_millis() as u64,
        }
    }

    fn any_of(limits: &RateLimits) -> Option<Self> {
        (!limits.is_unlimited()).then(|| Self::of(limits))
    }
}

impl NamespaceLimitsState {
    /// The limits of a namespace, if its subsystem is served.
    pub(super) fn of(served: Option<&ServedSubsystem>, nsid: u32) -> Self {
        let found = served.and_then(|one| one.limits_of(nsid));
        found.map_or_else(Self::default, |NamespaceLimits { all, hosts }| {
            let one = |(host, limits): (&String, &RateLimits)| (host.clone(), LimitsState::of(limits));
            Self { limits: LimitsState::any_of(all), host_limits: hosts.iter().map(one).collect() }
        })
    }
}

impl From<&LimitedHost> for HostState {
    fn from(host: &LimitedHost) -> Self {
        let config = host.config();
        Self { nqn: config.nqn.clone(), shares: config.shares, limits: LimitsState::any_of(&config.limits) }
    }
}
