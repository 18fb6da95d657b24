//! What there is to see of a target from outside: metrics for Prometheus and a page for people.
//!
//! | module | what it does |
//! | --- | --- |
//! | [`snapshot`] | what the target is doing, read once and shared by all who ask within a moment |
//! | [`families`] | a snapshot as metrics, in the formats of OpenMetrics and of Prometheus |
//! | [`page`] | a snapshot as a page for people |
//! | [`file`] | the metrics in a file for node_exporter |
//! | [`server`] | the address: HTTP, for reading only |
//!
//! All of it runs on threads of the control side. Cores are asked what they have in use; histograms and counters are
//! read where the cores count. docs/metrics.md lists the metrics.

pub mod families;
pub(crate) mod file;
mod page;
mod server;
pub mod snapshot;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;

use crate::config::MetricsConfig;
use crate::core::Cores;
use crate::target::Target;
use snapshot::Snapshots;

/// Why there are no metrics.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve metrics at {address}: {source}")]
pub struct MetricsError {
    /// Where they should be.
    address: SocketAddr,
    /// The system's answer.
    source: io::Error,
}

/// Starts the threads. They end with the process.
///
/// # Errors
/// When the address cannot be had.
pub fn start(config: &MetricsConfig, target: Arc<Target>, cores: Cores) -> Result<(), MetricsError> {
    let snapshots = Arc::new(Snapshots::new(target, cores));
    if let Some(address) = config.address {
        server::start(address, Arc::clone(&snapshots), config.queues)
            .map_err(|source| MetricsError { address, source })?;
    }
    if let Some(path) = config.file.clone() {
        let (interval, queues) = (config.file_interval, config.queues);
        let write = move || file::write_for_ever(&path, interval, &snapshots, queues);
        if let Err(error) = spawn("metrics-file", write) {
            tracing::error!(%error, "the metrics are not written to their file");
        }
    }
    Ok(())
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.to_owned()).spawn(run).map(drop)
}
