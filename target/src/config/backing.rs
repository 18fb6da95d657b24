//! What stands behind a namespace on another machine, or in another program.

use std::fmt;
use std::time::Duration;

use ringfab_nbd::{NbdAddress, NbdOptions};
use ringfab_rbd::{ClusterConfig, ImageSpec};

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

/// An image of a Ceph cluster, or a snapshot of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RbdBacking {
    /// Which one.
    pub image: ImageSpec,
    /// The name of its cluster.
    pub cluster: String,
}

impl RbdBacking {
    /// The cluster of an image that names none.
    pub const CLUSTER: &str = "ceph";
}

/// An image with its cluster, if that is not the usual one.
impl fmt::Display for RbdBacking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rbd:{}", self.image)?;
        if self.cluster == Self::CLUSTER { Ok(()) } else { write!(f, " of {}", self.cluster) }
    }
}

impl Config {
    /// The cluster with a name. That of images which name none need not be configured.
    pub(crate) fn cluster(&self, name: &str) -> Option<ClusterConfig> {
        let configured = self.ceph.iter().find(|cluster| cluster.name == name).cloned();
        configured.or_else(|| (name == RbdBacking::CLUSTER).then(ClusterConfig::default))
    }
}

impl Source {
    /// What names a disk on another machine: two namespaces with the same have one disk.
    pub(crate) fn remote(&self) -> Option<String> {
        match self {
            Self::Nbd(nbd) => Some(nbd.address.to_string()),
            Self::Rbd(rbd) => Some(rbd.to_string()),
            Self::File { .. } | Self::Memory(_) | Self::Null(_) | Self::Device(_) => None,
        }
    }
}

/// What is wrong with images whose clusters are not configured, for each.
pub(crate) fn without_cluster(config: &Config) -> impl Iterator<Item = String> {
    let namespaces = config.subsystems.iter().flat_map(|subsystem| &subsystem.namespaces);
    namespaces.filter_map(|namespace| match &namespace.source {
        Source::Rbd(rbd) if config.cluster(&rbd.cluster).is_none() => {
            let RbdBacking { image, cluster } = &**rbd;
            Some(format!("no cluster is named {cluster}, of which {image} is; add [[ceph]] with that name"))
        }
        _ => None,
    })
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
