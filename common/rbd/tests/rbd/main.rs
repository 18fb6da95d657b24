//! Images of a real cluster, over a reactor. The cluster is Ceph's own, in memory, on this machine.

mod cluster;
mod contract;
mod core;
mod errors;
mod hanging;
mod life;

use std::sync::Arc;

use ringfab_block::DriverHandle;
use ringfab_rbd::{Cluster, ImageSpec, RbdDriver};

/// A driver of an image of a cluster.
fn driver_of(cluster: &Arc<Cluster>, image: &str, read_only: bool) -> DriverHandle {
    let spec: ImageSpec = image.parse().expect("an image");
    DriverHandle::new(RbdDriver::new(Arc::clone(cluster), spec, read_only))
}

/// Gives everything up that a test has had of a cluster: afterwards no image is open.
fn end(cluster: &Cluster, driver: DriverHandle) {
    drop(driver);
    assert!(cluster.close(core::PATIENCE), "images are still open");
}
