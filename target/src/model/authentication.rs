//! What a host has to do before it may use a subsystem.

use std::sync::Arc;

use ringfab_auth::{Parties, Policy};
use ringfab_spec::Nqn;

use super::Subsystem;
use super::served::Served;

/// What a host has to do before it may use a subsystem.
#[derive(Clone, Debug)]
pub enum Authentication {
    /// Nothing.
    NotNeeded,
    /// It cannot: it has no key, and the subsystem requires one.
    Impossible,
    /// It has to prove that it has its key.
    Needed {
        /// Both ends, and their keys.
        parties: Arc<Parties>,
        /// Which hash functions and groups are accepted.
        policy: Arc<Policy>,
    },
}

impl Served {
    /// What a host has to do before it may use a subsystem. Nobody authenticates for discovery.
    pub fn authentication(&self, subsystem: &Arc<Subsystem>, host_nqn: &str) -> Authentication {
        let Some(served) = self.of(subsystem) else { return Authentication::NotNeeded };
        let names = (Nqn::new(host_nqn), Nqn::new(subsystem.nqn()));
        let configured = self.limited_host(host_nqn).and_then(|host| host.config().authentication.as_ref());
        let (Some(configured), (Ok(host), Ok(subsystem))) = (configured, names) else {
            let required = served.requires_authentication();
            return if required { Authentication::Impossible } else { Authentication::NotNeeded };
        };
        let controller_key = configured.controller_key.as_ref().map(|key| &key.key);
        match Policy::new(&configured.hashes, &configured.groups) {
            Ok(policy) => Authentication::Needed {
                parties: Parties::new(host, subsystem, &configured.key.key, controller_key),
                policy: Arc::new(policy),
            },
            // The configuration was checked.
            Err(_) => Authentication::Impossible,
        }
    }
}
