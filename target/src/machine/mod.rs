//! What this machine has of what a configuration asks for: addresses, ports, RDMA devices, disks; and where hosts with
//! a key for TLS may do without.
//!
//! Nothing is changed and no disk is opened. A path that hangs is waited for within a limit. What cannot be found out
//! is not reported: these are warnings for people, and the start has the last word.

mod clear_text;
mod disks;
mod listeners;
mod port;
mod process;

use std::fmt;
use std::path::Path;

use crate::config::Config;

/// Something that will not work, or not as meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// The part of the configuration.
    pub(crate) what: String,
    /// What is wrong.
    pub(crate) message: String,
    /// What to do.
    pub(crate) advice: &'static str,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.what, self.message, self.advice)
    }
}

/// Looks for what would be missing. What the process `serving`, which serves this configuration already, has in use is
/// not in its own way.
pub(crate) fn findings(config: &Config, serving: Option<u32>) -> Vec<Finding> {
    let listeners = config.listeners.iter().filter_map(|listener| listeners::finding(listener, serving));
    let disks = config.subsystems.iter().flat_map(|subsystem| {
        let namespaces = subsystem.namespaces.iter();
        namespaces.flat_map(move |namespace| disks::findings(&subsystem.nqn, namespace, serving))
    });
    listeners.chain(clear_text::findings(config)).chain(disks).collect()
}

/// The process that serves a configuration now, if this user may ask.
pub(crate) fn server_of(config: &Config) -> Option<u32> {
    let socket = config.control.clone().unwrap_or_default().socket;
    process::serving_process(Path::new(&socket))
}
