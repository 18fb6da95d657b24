//! The drivers of disks that are on other machines, or in other programs.

use ringfab_block::DriverHandle;
use ringfab_nbd::NbdDriver;

use crate::config::{NamespaceConfig, Source};

/// The driver of what stands behind a namespace of a target with so many cores; none for what needs none.
pub(crate) fn driver_of(config: &NamespaceConfig, cores: usize) -> Option<DriverHandle> {
    match &config.source {
        Source::Nbd(nbd) => {
            Some(DriverHandle::new(NbdDriver::new(nbd.address.clone(), nbd.options(config, cores))))
        }
        Source::Device(driver) => Some(driver.clone()),
        Source::File { .. } | Source::Memory(_) | Source::Null(_) => None,
    }
}
