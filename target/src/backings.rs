//! The drivers of disks that are on other machines, or in other programs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ringfab_block::DriverHandle;
use ringfab_nbd::NbdDriver;
use ringfab_rbd::{Cluster, RbdDriver};

use crate::config::{Config, NamespaceConfig, RbdBacking, Source};

/// What drivers have in common.
#[derive(Debug)]
pub(crate) struct Backings {
    /// How many cores open each disk.
    cores: usize,
    /// The clusters by their names; all images of one share its connection, which the first of them makes.
    clusters: BTreeMap<String, Arc<Cluster>>,
}

impl Backings {
    /// For what a configuration names, and for what comes later.
    pub(crate) fn new(config: &Config) -> Self {
        let names = config.ceph.iter().map(|cluster| cluster.name.as_str()).chain([RbdBacking::CLUSTER]);
        let clusters =
            names.filter_map(|name| Some((name.to_owned(), Arc::new(Cluster::new(config.cluster(name)?)))));
        Self { cores: config.target.cores.len(), clusters: clusters.collect() }
    }

    /// The driver of what stands behind a namespace; none for what needs none.
    pub(crate) fn driver_of(&self, namespace: &NamespaceConfig) -> Option<DriverHandle> {
        match &namespace.source {
            Source::Nbd(nbd) => {
                let options = nbd.options(namespace, self.cores);
                Some(DriverHandle::new(NbdDriver::new(nbd.address.clone(), options)))
            }
            Source::Rbd(rbd) => {
                let cluster = self.clusters.get(&rbd.cluster).expect("a valid configuration has it");
                Some(DriverHandle::new(RbdDriver::new(
                    Arc::clone(cluster),
                    rbd.image.clone(),
                    namespace.read_only,
                )))
            }
            Source::Device(driver) => Some(driver.clone()),
            Source::File { .. } | Source::Memory(_) | Source::Null(_) => None,
        }
    }

    /// Gives up all clusters, so that locks of images are released. Waits so long at most.
    pub(crate) fn close(&self, limit: Duration) {
        for (name, cluster) in &self.clusters {
            if !cluster.close(limit) {
                tracing::warn!(cluster = name, ?limit, "images of a cluster were not closed in time");
            }
        }
    }
}
