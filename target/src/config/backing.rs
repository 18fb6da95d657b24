//! What stands behind a namespace on another machine, or in another program.

use std::time::Duration;

use ringfab_nbd::{NbdAddress, NbdOptions};

use super::NamespaceConfig;

/// An export of an NBD server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdBacking {
    /// Where it is.
    pub address: NbdAddress,
    /// Each write reaches the server's stable storage before it is acknowledged.
    pub write_through: bool,
    /// How long operations wait for a server that is gone, before they end with Namespace Not Ready.
    pub reconnect_delay: Duration,
    /// How long changes that were not answered are held back when a connection has ended without the server's knowing.
    pub replay_delay: Duration,
}

impl NbdBacking {
    /// What `reconnect_delay_s` and `replay_delay_s` are when a configuration does not say.
    pub const DELAY: Duration = Duration::from_secs(30);

    /// How the export is used for a namespace of a target with so many cores.
    pub(crate) const fn options(&self, namespace: &NamespaceConfig, cores: usize) -> NbdOptions {
        NbdOptions {
            read_only: namespace.read_only,
            write_through: self.write_through,
            cores,
            patience: self.reconnect_delay,
            replay_delay: self.replay_delay,
        }
    }
}
