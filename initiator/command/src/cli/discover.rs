//! `ringfab discover`.

use std::collections::VecDeque;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use ringfab_initiator::ConnectOptions;
use ringfab_initiator::discovery::{self, DiscoveryController, DiscoveryEntry, DiscoveryLog};
use serde_json::{Value, json};

use ringfab_front_ends::context::Context;
use ringfab_front_ends::options::ConnectArgs;
use ringfab_front_ends::output;

/// Discovery controllers that are asked in all, with `--follow`.
const CONTROLLERS_MAX: usize = 16;

/// How often `--persistent` asks for the generation counter.
const PERIOD: Duration = Duration::from_secs(1);

#[derive(Args)]
pub(crate) struct DiscoverArgs {
    #[command(flatten)]
    connect: ConnectArgs,
    /// Also ask the discovery controllers that it refers to, and those that these refer to: 16 in all
    #[arg(long)]
    follow: bool,
    /// Stay connected, and print what comes (+) and goes (-) until a signal comes
    #[arg(long, conflicts_with = "follow")]
    persistent: bool,
}

/// Asks the discovery controller at the address; a subsystem in it is not looked at.
pub(crate) fn run(args: &DiscoverArgs, context: &Context) -> Result<()> {
    let mut options = args.connect.connect_options()?;
    options.url.subsystem = None;
    options.url.namespace = None;
    if args.persistent {
        return watch(args, options, context);
    }
    let mut log = ask(args, options.clone(), context)?;
    if args.follow {
        follow(args, &options, context, &mut log)?;
    }
    output::either(context.json, || document(&log), || lines(&log))
}

fn ask(args: &DiscoverArgs, options: ConnectOptions, context: &Context) -> Result<DiscoveryLog> {
    let log = discovery::discover(options, args.connect.engine_options(context.interrupt.token()));
    context.interrupt.check()?;
    Ok(log?)
}

/// Adds what the controllers know to which the log refers. One that cannot be asked is no reason to keep back the rest.
fn follow(
    args: &DiscoverArgs,
    options: &ConnectOptions,
    context: &Context,
    log: &mut DiscoveryLog,
) -> Result<()> {
    let referrals = |log: &DiscoveryLog| -> VecDeque<_> {
        log.entries.iter().filter(|entry| entry.is_referral()).filter_map(|entry| entry.url.clone()).collect()
    };
    let mut asked = vec![options.url.peer()];
    let mut left = referrals(log);
    while let Some(url) = left.pop_front() {
        if asked.contains(&url.peer()) || asked.len() == CONTROLLERS_MAX {
            continue;
        }
        asked.push(url.peer());
        match ask(args, ConnectOptions { url: url.clone(), ..options.clone() }, context) {
            Ok(found) => {
                left.extend(referrals(&found));
                let new = found.entries.into_iter().filter(|entry| !log.entries.contains(entry));
                let new: Vec<_> = new.collect();
                log.entries.extend(new);
            }
            Err(error) => {
                context.interrupt.check()?;
                tracing::warn!("a referral could not be asked: {error:#}");
            }
        }
    }
    Ok(())
}

/// Prints the log, and then what is different whenever it has changed.
fn watch(args: &DiscoverArgs, options: ConnectOptions, context: &Context) -> Result<()> {
    let engine = args.connect.engine_options(context.interrupt.token());
    let controller = DiscoveryController::connect(options, engine);
    context.interrupt.check()?;
    let controller = controller?;
    let waiter = thread::current();
    context.interrupt.call(move || waiter.unpark());
    let mut known = controller.log()?;
    output::either(context.json, || document(&known), || lines(&known))?;
    while !context.interrupt.is_interrupted() {
        thread::park_timeout(PERIOD);
        context.interrupt.check()?;
        if controller.generation()? == known.generation {
            continue;
        }
        let log = controller.log()?;
        let (added, removed) = (missing(&log, &known), missing(&known, &log));
        known = log;
        if added.is_empty() && removed.is_empty() {
            continue;
        }
        let signed = |sign: char, entries: &[DiscoveryEntry]| -> String {
            entries
                .iter()
                .map(|entry| format!("{sign} {} {}\n", entry.subsystem_type, place(entry)))
                .collect()
        };
        let values = |entries: &[DiscoveryEntry]| entries.iter().map(entry).collect::<Vec<_>>();
        let generation = known.generation;
        output::either(
            context.json,
            || json!({ "generation": generation, "added": values(&added), "removed": values(&removed) }),
            || signed('-', &removed) + &signed('+', &added),
        )?;
    }
    context.interrupt.check()
}

/// The entries of one log that the other does not have.
fn missing(one: &DiscoveryLog, other: &DiscoveryLog) -> Vec<DiscoveryEntry> {
    one.entries.iter().filter(|entry| !other.entries.contains(entry)).cloned().collect()
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
    let row = |entry: &DiscoveryEntry| vec![entry.subsystem_type.clone(), place(entry)];
    let rows: Vec<Vec<String>> = log.entries.iter().map(row).collect();
    output::table(&["type", "address"], &rows)
}

/// Where an entry is: a URL that other commands take, unless its transport is none of ours.
fn place(entry: &DiscoveryEntry) -> String {
    entry.url.as_ref().map_or_else(
        || format!("{} {}:{} {}", entry.transport, entry.address, entry.service, entry.subsystem),
        ToString::to_string,
    )
}
