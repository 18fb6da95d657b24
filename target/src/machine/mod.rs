//! What this machine has of what a configuration asks for: addresses, ports, RDMA devices, folders, disks; and where
//! hosts with a key for TLS may do without, nobody has the keys that are asked for, or several have the same one.
//!
//! Nothing is changed and no disk is opened. A path that hangs is waited for within a limit. What cannot be found out
//! is not reported: these are warnings for people, and the start has the last word.

pub(crate) mod backings;
mod clear_text;
mod control;
mod disks;
mod folder;
mod keyless;
mod keys;
mod listeners;
mod metrics;
mod port;
mod process;
mod service_user;
mod shared_keys;
mod state;

use std::borrow::Cow;
use std::fmt;
use std::path::Path;

use ringfab_process::confine::{self, State};

use crate::config::{Config, Doubt, HostConfig, KeySource, doubts};

pub(crate) use service_user::ServiceUser;

/// Something that will not work, or not as meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// The part of the configuration.
    pub(crate) what: String,
    /// What is wrong.
    pub(crate) message: String,
    /// What to do.
    pub(crate) advice: Cow<'static, str>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.what, self.message, self.advice)
    }
}

impl From<Doubt> for Finding {
    fn from(Doubt { what, message, advice }: Doubt) -> Self {
        Self { what, message, advice }
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
    let overlaps = listeners::overlaps(&config.listeners);
    let control = config.control.iter().flat_map(control::findings);
    let metrics = config.metrics.iter().flat_map(|metrics| metrics::findings(metrics, serving));
    let keys = clear_text::findings(config).into_iter().chain(keyless::findings(config));
    let keys = keys.chain(shared_keys::findings(config)).chain(exchangeable_keys(config));
    let doubts = doubts(config).into_iter().map(Finding::from);
    listeners.chain(overlaps).chain(control).chain(metrics).chain(keys).chain(disks).chain(doubts).collect()
}

/// What keeps the target from starting on this machine until somebody corrects it: trying again is of no use.
pub(crate) fn mistake(config: &Config) -> Option<Finding> {
    let group = || config.control.as_ref().and_then(control::unknown_group);
    no_state(config).or_else(group)
}

/// Keys that somebody else may exchange.
pub(crate) fn exchangeable_keys(config: &Config) -> Vec<Finding> {
    keys::findings(config)
}

/// What is in the place of the folder of the state.
pub(crate) fn no_state(config: &Config) -> Option<Finding> {
    state::finding(&config.target.state_dir)
}

/// The parts of the confinement that are off, or that this kernel does not have.
pub(crate) fn unconfined(config: &Config) -> Vec<Finding> {
    let found = |layer: &str, message: String, advice: &'static str| {
        let what = format!("confinement.{layer}");
        Finding { what, message, advice: advice.into() }
    };
    let off: Vec<&str> = config.confinement.off().collect();
    let told = off.iter().map(|layer| {
        let message = "is off: whoever takes the target over has as much more in reach".to_owned();
        found(layer, message, "leave it on")
    });
    let missing = confine::available().into_iter().filter(|one| one.state != State::Holds);
    let missing = missing.filter(|one| !off.contains(&one.layer)).map(|one| {
        let message = format!("is {}: {}", one.state, one.reason.unwrap_or_default());
        found(one.layer, message, "Linux 6.12 or later has all parts; the target runs without")
    });
    told.chain(missing).collect()
}

/// Keys that only the service sees.
pub(crate) fn unseen(config: &Config) -> Vec<Finding> {
    let found = |host: &HostConfig, source: &KeySource| Finding {
        what: format!("host {}", host.nqn),
        message: format!("{source} is a credential of the service, and was not looked at"),
        advice: "the start of the service has the last word".into(),
    };
    let hosts = config.hosts.iter();
    hosts.flat_map(|host| host.unseen_credentials().map(move |source| found(host, source))).collect()
}

/// The process that serves a configuration now, if this user may ask.
pub(crate) fn server_of(config: &Config) -> Option<u32> {
    let socket = config.control.clone().unwrap_or_default().socket;
    process::serving_process(Path::new(&socket))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// Writes a key to a file that few may read, and returns the value of a configuration that names it.
    pub(super) fn key_file(path: &Path, text: &str) -> String {
        std::fs::write(path, text).expect("a key");
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).expect("for few eyes");
        format!("\"file:{}\"", path.display())
    }
}
