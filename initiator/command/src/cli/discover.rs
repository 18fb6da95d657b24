//! `ringfab discover`.

use std::collections::VecDeque;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::{ArgGroup, Args};
use ringfab_base::shell_quoted;
use ringfab_initiator::discovery::{self, DiscoveryEntry, DiscoveryLog, DiscoveryTrouble, DiscoveryWatch};
use ringfab_initiator::{ConnectOptions, Url};
use ringfab_process::table::Column;
use serde_json::{Value, json};

use ringfab_front_ends::advice::Advised;
use ringfab_front_ends::context::Context;
use ringfab_front_ends::mdns::{self, Browser, Heard};
use ringfab_front_ends::options::{ConnectArgs, Tuning};
use ringfab_front_ends::output;

/// Discovery controllers that are asked in all.
const CONTROLLERS_MAX: usize = DiscoveryWatch::CONTROLLERS_MAX;

#[derive(Args)]
#[command(group(ArgGroup::new("who").required(true).multiple(true).args(["url", "mdns"])))]
pub(crate) struct DiscoverArgs {
    /// The discovery controller: nvme+rdma://HOST[:PORT] or nvme+tcp://HOST[:PORT], with the options of other commands
    url: Option<Url>,
    /// Also ask the discovery controllers that say by mDNS where they are
    #[arg(long)]
    mdns: bool,
    /// Also ask the discovery controllers that are referred to, and those that these refer to: 16 in all
    #[arg(long)]
    referrals: bool,
    /// Stay connected, and print what comes (+) and goes (-) until a signal comes
    #[arg(long, visible_alias = "persistent")]
    follow: bool,
    #[command(flatten)]
    tuning: Tuning,
}

impl DiscoverArgs {
    /// How a discovery controller is connected to; a subsystem in its address is not looked at.
    fn connect(&self, url: &Url) -> ConnectArgs {
        let url = Url { subsystem: None, namespace: None, ..url.clone() };
        ConnectArgs::new(url, self.tuning.clone())
    }

    fn options(&self, url: &Url) -> Result<ConnectOptions> {
        self.connect(url).connect_options()
    }
}

/// Asks the discovery controller at the address, and those that are heard of or referred to.
pub(crate) fn run(args: &DiscoverArgs, context: &Context) -> Result<()> {
    if args.follow {
        return watch(args, context);
    }
    let mut first: Vec<Url> = args.url.iter().cloned().collect();
    if args.mdns {
        first.extend(listen(context)?);
    }
    if first.is_empty() {
        bail!("no discovery controller has said by mDNS where it is, within {} s", mdns::PATIENCE.as_secs());
    }
    match args.url.is_some() && !args.mdns && !args.referrals {
        true => {
            let log = ask(args, &first[0], context)?;
            output::either(context.json, || with_generation(&log), || lines(&log.entries))
        }
        false => {
            let entries = ask_all(args, first, context)?;
            output::either(context.json, || document(&entries), || lines(&entries))
        }
    }
}

/// The discovery controllers that say where they are, within a moment.
fn listen(context: &Context) -> Result<Vec<Url>> {
    let (sender, heard) = channel();
    let interrupted = sender.clone();
    let browser = Browser::start(move |heard| {
        let _over = sender.send(Some(heard));
    })?;
    context.interrupt.call(move || {
        let _over = interrupted.send(None);
    });
    let until = Instant::now() + mdns::PATIENCE;
    let mut found: Vec<Url> = Vec::new();
    while let Ok(Some(heard)) = heard.recv_timeout(until.saturating_duration_since(Instant::now())) {
        match heard {
            Heard::Came(url) => found.push(url),
            Heard::Went(url) => found.retain(|one| *one != url),
        }
    }
    drop(browser);
    context.interrupt.check()?;
    Ok(found)
}

fn ask(args: &DiscoverArgs, url: &Url, context: &Context) -> Result<DiscoveryLog> {
    let engine = args.connect(url).engine_options(context.interrupt.token());
    let log = discovery::discover(args.options(url)?, engine);
    context.interrupt.check()?;
    log.map_err(|error| Advised(error).into())
}

/// What several controllers know. Others than the one that was named need not answer: that is no reason to keep back
/// the rest.
fn ask_all(args: &DiscoverArgs, first: Vec<Url>, context: &Context) -> Result<Vec<DiscoveryEntry>> {
    let mut asked: Vec<String> = Vec::new();
    let mut entries: Vec<DiscoveryEntry> = Vec::new();
    let mut left = VecDeque::from(first);
    while let Some(url) = left.pop_front() {
        if asked.contains(&url.peer()) || asked.len() == CONTROLLERS_MAX {
            continue;
        }
        asked.push(url.peer());
        match ask(args, &url, context) {
            Ok(log) => {
                let referrals = log.entries.iter().filter(|entry| args.referrals && entry.is_referral());
                left.extend(referrals.filter_map(|entry| entry.url.clone()));
                let new =
                    log.entries.into_iter().filter(|entry| !entries.contains(entry)).collect::<Vec<_>>();
                entries.extend(new);
            }
            Err(error) if args.url.as_ref() == Some(&url) => return Err(error),
            Err(error) => {
                context.interrupt.check()?;
                tracing::warn!("a discovery controller could not be asked: {error:#}");
            }
        }
    }
    Ok(entries)
}

/// The log page of one controller has a generation.
fn with_generation(log: &DiscoveryLog) -> Value {
    let mut value = document(&log.entries);
    value["generation"] = log.generation.into();
    value
}

/// What the watching thread is told.
enum Event {
    /// Discovery controllers have reported, or a signal came.
    Woken,
    /// Discovery controllers come or go by themselves.
    Mdns(Box<Heard>),
}

/// Prints the entries, and then what is different whenever they have changed.
fn watch(args: &DiscoverArgs, context: &Context) -> Result<()> {
    let (sender, events) = channel();
    // The address that is named has the options that all have.
    let first = args.url.clone().map_or_else(|| "nvme+tcp://0.0.0.0".parse(), Ok)?;
    let (told, interrupted, hear) = (sender.clone(), sender.clone(), sender);
    let engine = args.connect(&first).engine_options(context.interrupt.token());
    let mut watch = DiscoveryWatch::new(args.options(&first)?, engine, move || {
        let _over = told.send(Event::Woken);
    });
    context.interrupt.call(move || {
        let _over = interrupted.send(Event::Woken);
    });
    let named = args.url.as_ref().map(|url| args.options(url)).transpose()?.map(|options| options.url);
    named.iter().try_for_each(|url| watch.add(url))?;
    let browser = args.mdns.then(|| {
        Browser::start(move |heard| {
            let _over = hear.send(Event::Mdns(Box::new(heard)));
        })
    });
    let _browser = browser.transpose()?;
    // Those that say where they are get a moment to do so before the first entries are printed.
    let heard_until = Instant::now() + if args.mdns { mdns::PATIENCE } else { Duration::ZERO };
    let mut known: Option<Vec<DiscoveryEntry>> = None;
    loop {
        let left = heard_until.saturating_duration_since(Instant::now());
        match events.recv_timeout(if left.is_zero() { Duration::MAX } else { left }) {
            Ok(Event::Mdns(heard)) => hear_of(args, &mut watch, *heard)?,
            Ok(Event::Woken) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => bail!("nobody is left to say what happens"),
        }
        context.interrupt.check()?;
        for DiscoveryTrouble { url, error } in watch.take(args.referrals) {
            let error = Advised(error);
            if known.is_none() && named.as_ref() == Some(&url) && !watch.has_log(&url) {
                return Err(error.into());
            }
            tracing::warn!("{error}");
        }
        if known.is_none() && (Instant::now() < heard_until || !watch.is_settled()) {
            continue;
        }
        let entries = watch.entries();
        match &known {
            None => output::either(context.json, || document(&entries), || lines(&entries))?,
            Some(known) => print_changes(&missing(&entries, known), &missing(known, &entries), context.json)?,
        }
        known = Some(entries);
    }
}

/// A discovery controller comes or goes by itself.
fn hear_of(args: &DiscoverArgs, watch: &mut DiscoveryWatch, heard: Heard) -> Result<()> {
    match heard {
        Heard::Came(url) => {
            if let Err(error) = watch.add(&args.options(&url)?.url) {
                tracing::warn!("{url} is not asked: {error}");
            }
        }
        Heard::Went(url) => watch.remove(&url),
    }
    Ok(())
}

/// Prints what has come and gone.
fn print_changes(added: &[DiscoveryEntry], removed: &[DiscoveryEntry], as_json: bool) -> Result<()> {
    if added.is_empty() && removed.is_empty() {
        return Ok(());
    }
    let signed = |sign: char, entries: &[DiscoveryEntry]| -> String {
        entries.iter().map(|entry| format!("{sign} {} {}\n", entry.subsystem_type, place(entry))).collect()
    };
    let values = |entries: &[DiscoveryEntry]| entries.iter().map(entry).collect::<Vec<_>>();
    output::either(
        as_json,
        || json!({ "added": values(added), "removed": values(removed) }),
        || signed('-', removed) + &signed('+', added),
    )
}

/// The entries of one log that the other does not have.
fn missing(one: &[DiscoveryEntry], other: &[DiscoveryEntry]) -> Vec<DiscoveryEntry> {
    one.iter().filter(|entry| !other.contains(entry)).cloned().collect()
}

fn document(entries: &[DiscoveryEntry]) -> Value {
    json!({ "entries": entries.iter().map(entry).collect::<Vec<_>>() })
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

fn lines(entries: &[DiscoveryEntry]) -> String {
    if entries.is_empty() {
        return "This host may not use any subsystem here.".to_owned();
    }
    let row = |entry: &DiscoveryEntry| vec![entry.subsystem_type.clone(), place(entry)];
    let rows: Vec<Vec<String>> = entries.iter().map(row).collect();
    // Addresses are for the next command.
    output::table(&["type", "address"].map(Column::text), &rows)
}

/// Where an entry is: a URL as it can be pasted after another command, unless its transport is none of ours.
fn place(entry: &DiscoveryEntry) -> String {
    entry.url.as_ref().map_or_else(
        || format!("{} {}:{} {}", entry.transport, entry.address, entry.service, entry.subsystem),
        |url| shell_quoted(&url.to_string()).into_owned(),
    )
}
