//! The drivers of disks that are on other machines, or in other programs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ringfab_block::DriverHandle;
use ringfab_nbd::NbdDriver;
use ringfab_rbd::{Cluster, RbdDriver};

use crate::config::{Config, NamespaceConfig, Source};

/// What drivers have in common.
#[derive(Debug)]
pub(crate) struct Backings {
    /// How many cores open each disk.
    cores: usize,
    /// The clusters of which images are served, or were; all images of one share its connection.
    clusters: Mutex<BTreeMap<String, Arc<Cluster>>>,
    config: Vec<ringfab_rbd::ClusterConfig>,
}

impl Backings {
    /// For what a configuration names, and for what comes later.
    pub(crate) fn new(config: &Config) -> Self {
        let names = config.ceph.iter().map(|cluster| cluster.name.as_str());
        let names = names.chain([crate::config::RbdBacking::CLUSTER]);
        let clusters = names.filter_map(|name| config.cluster(name)).collect();
        Self { cores: config.target.cores.len(), clusters: Mutex::default(), config: clusters }
    }

    /// The driver of what stands behind a namespace; none for what needs none.
    pub(crate) fn driver_of(&self, namespace: &NamespaceConfig) -> Option<DriverHandle> {
        match &namespace.source {
            Source::Nbd(nbd) => {
                let options = nbd.options(namespace, self.cores);
                Some(DriverHandle::new(NbdDriver::new(nbd.address.clone(), options)))
            }
            Source::Rbd(rbd) => {
                let cluster = self.cluster(&rbd.cluster);
                Some(DriverHandle::new(RbdDriver::new(cluster, rbd.image.clone(), namespace.read_only)))
            }
            Source::Device(driver) => Some(driver.clone()),
            Source::File { .. } | Source::Memory(_) | Source::Null(_) => None,
        }
    }

    /// Gives up all clusters, so that locks of images are released. Waits so long at most.
    pub(crate) fn close(&self, limit: Duration) {
        let clusters = std::mem::take(&mut *self.clusters.lock().unwrap_or_else(PoisonError::into_inner));
        for (name, cluster) in clusters {
            if !cluster.close(limit) {
                tracing::warn!(cluster = name, ?limit, "images of a cluster were not closed in time");
            }
        }
    }

    /// A cluster by its name. A configuration that is valid has one; another one is found out at the first look.
    fn cluster(&self, name: &str) -> Arc<Cluster> {
        let mut clusters = self.clusters.lock().unwrap_or_else(PoisonError::into_inner);
        let made = clusters.entry(name.to_owned()).or_insert_with(|| {
            let config = self.config.iter().find(|cluster| cluster.name == name).cloned();
            let named = || ringfab_rbd::ClusterConfig { name: name.to_owned(), ..Default::default() };
            Arc::new(Cluster::new(config.unwrap_or_else(named)))
        });
        Arc::clone(made)
    }
}
