//! The keys of what is served, as the listeners of a core ask for them.

use std::sync::Arc;

use ringfab_auth::{CipherSuite, Secret};
use ringfab_fabric::tcp::{ListenerTls, PskStore};

use crate::config;
use crate::target::Target;

/// Finds the keys of hosts. They are made when they are asked for, of what is served at that time.
#[derive(Debug)]
struct ServedPsks(Arc<Target>);

impl PskStore for ServedPsks {
    fn find(&self, identity: &[u8]) -> Result<Vec<(Secret, CipherSuite)>, String> {
        let psks = self.0.psks(&self.0.served(), identity).map_err(|error| error.to_string())?;
        Ok(psks.iter().map(|psk| (psk.secret().clone(), psk.suite())).collect())
    }
}

/// Whether the connections of a listener are over TLS, and where their keys are.
pub(super) fn listener_tls(config: config::ListenerTls, target: &Arc<Target>) -> ListenerTls {
    let store = || Arc::new(ServedPsks(Arc::clone(target)));
    match config {
        config::ListenerTls::Off => ListenerTls::Off,
        config::ListenerTls::Allowed => ListenerTls::Allowed(store()),
        config::ListenerTls::Required => ListenerTls::Required(store()),
    }
}
