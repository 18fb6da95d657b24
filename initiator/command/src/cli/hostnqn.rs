//! `ringfab show-hostnqn`: the name of this host, which a target has to allow.

use std::path::Path;

use anyhow::{Context as _, Result};
use ringfab_front_ends::context::Context;
use ringfab_front_ends::output;
use ringfab_initiator::HostIdentity;
use serde_json::json;

/// Prints the name that commands use unless they are told another one.
pub(crate) fn run(context: &Context) -> Result<()> {
    let load = || HostIdentity::load(None, None, Path::new("/etc")).context("who this host is");
    let host = load()?;
    if load()? != host {
        tracing::warn!(
            "this machine has neither /etc/nvme/hostnqn nor /etc/machine-id, so it is another host each time; write a \
             name to /etc/nvme/hostnqn"
        );
    }
    output::either(
        context.json,
        || json!({ "hostnqn": host.nqn, "hostid": host.id.to_string() }),
        || host.nqn.clone(),
    )
}
