//! Where the log goes and how it looks.

use std::env;
use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;

/// Starts the log on standard error. `RUST_LOG` goes before the configured filter. Under a service manager that keeps
/// the log there are neither times nor colours, because it adds its own. A second call changes nothing.
pub fn start_logging(configured: &str) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(configured));
    let journal = env::var_os("JOURNAL_STREAM").is_some();
    let colour = !journal && io::stderr().is_terminal() && env::var_os("NO_COLOR").is_none();
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(colour);
    let started = if journal { log.without_time().try_init() } else { log.try_init() };
    if let Err(error) = started {
        tracing::debug!(%error, "the log was started before");
    }
}
