//! Whether the servers and clusters answer that have the disks of namespaces.

use std::time::Duration;

use super::Finding;
use crate::backings::Backings;
use crate::config::{Config, NamespaceConfig, Source};
use crate::disks::device;

/// How long a look may take: a server is asked in several steps.
const LOOK_LIMIT: Duration = Duration::from_secs(30);

/// What is wrong with the backings of all namespaces.
pub(crate) fn findings(config: &Config) -> Vec<Finding> {
    let backings = Backings::new(config);
    let namespaces =
        config.subsystems.iter().flat_map(|one| one.namespaces.iter().map(move |two| (one, two)));
    let found = namespaces.filter_map(|(subsystem, namespace)| {
        let message = mistake(namespace, &backings)?;
        let what = format!("namespace {} of {}", namespace.nsid, subsystem.nqn);
        Some(Finding { what, message, advice: advice(&namespace.source).into() })
    });
    found.collect()
}

/// Whether a configuration has any.
pub(crate) fn any(config: &Config) -> bool {
    let mut namespaces = config.subsystems.iter().flat_map(|one| &one.namespaces);
    namespaces.any(|namespace| is_remote(&namespace.source))
}

const fn is_remote(source: &Source) -> bool {
    matches!(source, Source::Nbd(_) | Source::Rbd(_))
}

fn mistake(namespace: &NamespaceConfig, backings: &Backings) -> Option<String> {
    let driver = backings.driver_of(namespace)?;
    match device::look(&driver, LOOK_LIMIT) {
        Err(error) => Some(error),
        Ok(seen) if seen.bytes.is_some_and(|bytes| bytes < u64::from(namespace.block_bytes)) => {
            Some(format!("{} is smaller than a block", driver.name()))
        }
        Ok(_) => None,
    }
}

const fn advice(source: &Source) -> &'static str {
    match source {
        Source::Nbd(_) => {
            "correct the address, start the server, or let it serve this machine; `nbdinfo ADDRESS` asks the same; the \
             namespace is not ready until then"
        }
        Source::Rbd(_) => {
            "correct the image or [ceph], or ask the cluster's administrator; `rbd info IMAGE` asks the same; the \
             namespace is not ready until then"
        }
        _ => "see its program",
    }
}
