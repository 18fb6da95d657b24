//! `ringfab discover`.

use anyhow::Result;
use clap::Args;
use ringfab_initiator::discovery::{self, DiscoveryEntry, DiscoveryLog};
use serde_json::{Value, json};

use ringfab_front_ends::context::Context;
use ringfab_front_ends::options::ConnectArgs;
use ringfab_front_ends::output;

#[derive(Args)]
pub(crate) struct DiscoverArgs {
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Asks the discovery controller at the address; a subsystem in it is not looked at.
pub(crate) fn run(args: &DiscoverArgs, context: &Context) -> Result<()> {
    let mut options = args.connect.connect_options()?;
    options.url.subsystem = None;
    options.url.namespace = None;
    let log = discovery::discover(options, args.connect.engine_options(context.interrupt.token()));
    context.interrupt.check()?;
    let log = log?;
    output::either(context.json, || document(&log), || lines(&log))
}

fn document(log: &DiscoveryLog) -> Value {
    let entries: Vec<Value> = log.entries.iter().map(entry).collect();
    json!({ "generation": log.generation, "entries": entries })
}

fn entry(entry: &DiscoveryEntry) -> Value {
    json!({
        "transport": entry.transport,
        "address_family": entry.address_family,
        "subsystem_type": entry.subsystem_type,
        "address": entry.address,
        "service": entry.service,
        "subsystem": entry.subsystem,
        "port_id": entry.port_id,
        "cntlid": entry.cntlid,
        "admin_queue_size_max": entry.admin_queue_size_max,
        "secure_channel_required": entry.secure_channel_required,
        "url": entry.url.as_ref().map(ToString::to_string),
    })
}

fn lines(log: &DiscoveryLog) -> String {
    if log.entries.is_empty() {
        return "This host may not use any subsystem here.".to_owned();
    }
    let row = |entry: &DiscoveryEntry| {
        let place = format!("{}:{}", entry.address, entry.service);
        vec![entry.transport.clone(), place, entry.subsystem_type.clone(), entry.subsystem.clone()]
    };
    let rows: Vec<Vec<String>> = log.entries.iter().map(row).collect();
    output::table(&["transport", "address", "type", "subsystem"], &rows)
}
