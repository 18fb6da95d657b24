//! What stands behind a namespace on another machine, or in another program.

use std::time::Duration;

use ringfab_nbd::{NbdAddress, NbdOptions};

use super::{Config, NamespaceConfig, Source};
use crate::disk_identity::Sharing;

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

impl Source {
    /// What names a disk on another machine: two namespaces with the same have one disk.
    pub(crate) fn remote(&self) -> Option<String> {
        match self {
            Self::Nbd(nbd) => Some(nbd.address.to_string()),
            Self::File { .. } | Self::Memory(_) | Self::Null(_) | Self::Device(_) => None,
        }
    }
}

/// Two namespaces of a configuration that have one disk on another machine, without both saying so. A file is checked
/// when it is read, line by line.
pub(crate) fn used_twice(config: &Config) -> Option<String> {
    let subsystems = config.subsystems.iter();
    let all = subsystems.flat_map(|one| one.namespaces.iter().map(move |namespace| (&one.nqn, namespace)));
    let remote: Vec<_> = all.filter_map(|(nqn, one)| Some((nqn, one, one.source.remote()?))).collect();
    let pairs =
        remote.iter().enumerate().flat_map(|(index, one)| remote[..index].iter().map(move |two| (two, one)));
    let mut twice = pairs.filter(|(first, second)| first.2 == second.2 && !may_share(first.1, second.1));
    let ((nqn, first, name), _) = twice.next()?;
    let nsid = first.nsid;
    Some(format!(
        "{name} is namespace {nsid} of {nqn} already; write shared = true for both if that is meant"
    ))
}

/// Whether two namespaces may have one disk: both say so, or neither writes.
fn may_share(one: &NamespaceConfig, other: &NamespaceConfig) -> bool {
    let [one, other] = [one, other].map(|namespace| Sharing::new(namespace.read_only, namespace.shared));
    one.allows(other)
}
