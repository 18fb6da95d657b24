//! `ringfab connect-all`: attaches the subsystems that discovery shows, each with a front end of its own.
//!
//! One thread decides: it is told what discovery controllers know, how front ends fare, and which signals come. A
//! subsystem has one front end, with a path by each of its addresses. With `--follow`, a subsystem that comes gets
//! one, and that of a subsystem that goes ends. One that fails is tried again.
//!
//! | module | what it does |
//! | --- | --- |
//! | [`place`] | where the front end of a subsystem is |
//! | [`service`] | the front end of a subsystem, on a thread of its own |
//! | [`subsystems`] | which there should be, and which there are |

mod place;
mod service;
mod subsystems;

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::{ArgGroup, Args};
use nix::sys::signal::Signal;
use ringfab_base::shell_word;
use ringfab_initiator::discovery::{DiscoveryTrouble, DiscoveryWatch, ShownPaths};
use ringfab_initiator::{ConnectOptions, Url};
use serde_json::{Value, json};

use crate::advice::Advised;
use crate::context::{Context, Usage};
use crate::interrupt::Cancelled;
use crate::made_directories::{MadeDirectories, OpenTo};
use crate::mdns::{self, Browser, Heard};
use crate::options::{ConnectArgs, Tuning};
use crate::output;
use crate::ready::{self, Ready};
use place::Place;
use service::{Service, Settings};
use subsystems::{Change, Offer, Subsystems, Told};

/// The options of `ringfab connect-all`.
#[derive(Args)]
#[command(group(ArgGroup::new("who").required(true).multiple(true).args(["urls", "mdns"])))]
pub struct ConnectAllArgs {
    /// Discovery controllers: nvme+rdma://HOST[:PORT] or nvme+tcp://HOST[:PORT], with the options of other commands.
    /// Those that they refer to are asked, too: 16 in all
    urls: Vec<Url>,
    /// Also ask the discovery controllers that say by mDNS where they are
    #[arg(long)]
    mdns: bool,
    #[command(flatten)]
    place: PlaceArgs,
    /// Stay connected: attach what comes, and end what goes
    #[arg(long)]
    follow: bool,
    /// Refuse writes
    #[arg(long, short)]
    read_only: bool,
    /// Create this file, with the directory in it, once everything was tried, and remove it at the end
    #[arg(long, value_name = "FILE")]
    ready_file: Option<PathBuf>,
    #[command(flatten)]
    tuning: Tuning,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
struct PlaceArgs {
    /// Serve each subsystem as a network block device, at a Unix socket in this directory: NQN.sock
    #[arg(long, value_name = "DIRECTORY")]
    nbd: Option<PathBuf>,
    /// Present the namespaces of each subsystem as files, in a directory in this one: NQN
    #[arg(long, value_name = "DIRECTORY")]
    fuse: Option<PathBuf>,
}

/// What the deciding thread is told.
enum Event {
    /// Discovery controllers have reported.
    Discovery,
    /// A front end, by the number of its subsystem.
    Service(u64, Told),
    /// Discovery controllers come or go by themselves.
    Mdns(Box<Heard>),
    /// A signal came.
    Signal(Signal),
}

/// Attaches what there is, and serves it until a signal comes, or nothing is left to serve.
pub fn run(args: &ConnectAllArgs, context: &Context) -> Result<()> {
    let place = match (&args.place.nbd, &args.place.fuse) {
        (Some(directory), _) => Place::Nbd(directory.clone()),
        (None, Some(directory)) => Place::Fuse(directory.clone()),
        (None, None) => unreachable!("clap asks for one of them"),
    };
    let (sender, events) = channel();
    let watch = watch(args, context, &sender)?;
    let browser = args.mdns.then(|| browse(&sender)).transpose()?;
    let signals = sender.clone();
    context.interrupt.handle_signals(move |signal| {
        // Nobody decides any more when all is over.
        let _over = signals.send(Event::Signal(signal));
    });
    let directory = MadeDirectories::new(place.directory(), OpenTo::Umask)?;
    let settings = Settings { tuning: args.tuning.clone(), place, read_only: args.read_only };
    let mut all = All {
        args,
        json: context.json,
        watch: Some(watch),
        browser,
        heard_until: Instant::now() + if args.mdns { mdns::PATIENCE } else { Duration::ZERO },
        subsystems: Subsystems::default(),
        settings,
        sender,
        ready: None,
        trouble: None,
    };
    let result = all.serve(&events);
    let was_ready = all.ready.is_some();
    all.end(&events, result.as_ref().ok().copied().flatten());
    drop(directory);
    match result {
        Ok(Some(_)) if !was_ready => Err(Cancelled.into()),
        result => result.map(drop),
    }
}

/// Starts to ask the discovery controllers.
fn watch(args: &ConnectAllArgs, context: &Context, sender: &Sender<Event>) -> Result<DiscoveryWatch> {
    // The first address, or one that nobody asks, has the options that all have.
    let first = args.urls.first().cloned().map_or_else(|| "nvme+tcp://0.0.0.0".parse(), Ok)?;
    let connect = ConnectArgs::new(first.clone(), args.tuning.clone());
    if connect.capture().is_some() {
        return Err(Usage("--capture is for one connection; connect-all makes several".to_owned()).into());
    }
    let (tell, engine) = (sender.clone(), connect.engine_options(context.interrupt.token()));
    let mut watch = DiscoveryWatch::new(prepared(args, first)?, engine, move || {
        let _over = tell.send(Event::Discovery);
    });
    for url in &args.urls {
        if url.subsystem.is_some() && !url.is_discovery() || url.namespace.is_some() {
            let text = format!(
                "{} is the address of a subsystem; connect-all takes discovery controllers",
                shell_word(url)
            );
            return Err(Usage(text).into());
        }
        watch.add(&prepared(args, Url { subsystem: None, ..url.clone() })?.url)?;
    }
    Ok(watch)
}

/// How to connect to a discovery controller.
fn prepared(args: &ConnectAllArgs, url: Url) -> Result<ConnectOptions> {
    ConnectArgs::new(url, args.tuning.clone()).connect_options()
}

/// Listens to what discovery controllers say of themselves.
fn browse(sender: &Sender<Event>) -> Result<Browser> {
    let sender = sender.clone();
    Browser::start(move |heard| {
        let _over = sender.send(Event::Mdns(Box::new(heard)));
    })
}

/// Everything that is attached.
struct All<'a> {
    args: &'a ConnectAllArgs,
    json: bool,
    /// The discovery controllers; none when they need not be asked again.
    watch: Option<DiscoveryWatch>,
    /// What is heard of discovery controllers, and until when none of them is waited for.
    browser: Option<Browser>,
    heard_until: Instant,
    subsystems: Subsystems<Service>,
    settings: Settings,
    sender: Sender<Event>,
    /// Once everything was tried.
    ready: Option<Ready>,
    /// What went wrong first.
    trouble: Option<anyhow::Error>,
}

impl All<'_> {
    /// Serves until a signal comes, which it returns, or nothing is left.
    fn serve(&mut self, events: &Receiver<Event>) -> Result<Option<Signal>> {
        loop {
            match events.recv_timeout(self.wait()) {
                Ok(Event::Signal(signal)) => return Ok(Some(signal)),
                Ok(Event::Discovery) => self.discovered(),
                Ok(Event::Mdns(heard)) => self.heard(*heard)?,
                Ok(Event::Service(number, told)) => self.told(number, told),
                Err(RecvTimeoutError::Timeout) => self.discovered(),
                Err(RecvTimeoutError::Disconnected) => bail!("nobody is left to say what happens"),
            }
            self.start_due();
            if self.discovery_is_settled() && self.subsystems.are_tried() {
                self.settled()?;
                if !self.args.follow && self.subsystems.is_empty() {
                    return match self.trouble.take() {
                        Some(error) => Err(error),
                        None => bail!("discovery shows no subsystem that this host may use"),
                    };
                }
            }
        }
    }

    /// Discovery controllers have reported.
    fn discovered(&mut self) {
        let Some(watch) = &mut self.watch else { return };
        for DiscoveryTrouble { url, error } in watch.take(true) {
            let error = Advised(error);
            tracing::warn!("discovery at {url}: {error}");
            self.trouble.get_or_insert_with(|| error.into());
        }
        self.subsystems.want(&watch.entries(), Instant::now());
        if self.discovery_is_settled() && !self.args.follow {
            (self.watch, self.browser) = (None, None);
        }
    }

    /// A discovery controller comes or goes by itself. One that goes is left only if it never said what it knows: what
    /// is attached depends on what discovery shows, not on mDNS.
    fn heard(&mut self, heard: Heard) -> Result<()> {
        let Some(watch) = &mut self.watch else { return Ok(()) };
        match heard {
            Heard::Came(url) => {
                let url = prepared(self.args, url)?.url;
                tracing::info!("mDNS: {url}");
                if let Err(error) = watch.add(&url) {
                    tracing::warn!("{url} is not asked: {error}");
                }
            }
            Heard::Went(url) if watch.has_log(&url) => {}
            Heard::Went(url) => watch.remove(&url),
        }
        Ok(())
    }

    /// Whether all discovery controllers have been asked that are known, or heard of in time.
    fn discovery_is_settled(&self) -> bool {
        Instant::now() >= self.heard_until && self.watch.as_ref().is_none_or(DiscoveryWatch::is_settled)
    }

    /// How long to wait for an event at most.
    fn wait(&self) -> Duration {
        let now = Instant::now();
        let heard_until = Some(self.heard_until).filter(|until| *until > now);
        let paths = self.watch.is_some().then(|| now + ShownPaths::AGAIN);
        let next = [self.subsystems.next_retry(), heard_until, paths].into_iter().flatten().min();
        next.map_or(Duration::MAX, |next| next.saturating_duration_since(now))
    }

    /// A front end has told something.
    fn told(&mut self, number: u64, told: Told) {
        match self.subsystems.told(number, told, self.args.follow, Instant::now()) {
            Some(Change::Serving(nqn, offer)) => output::announce(
                self.json,
                || json!({ "added": describe(&nqn, &offer) }),
                || {
                    let disks: Vec<String> = offer.disks.iter().map(shell_word).collect();
                    format!("+ {nqn} at {}: {}", shell_word(&offer.at), disks.join(", "))
                },
            ),
            Some(Change::Ended { nqn, served, error }) => {
                if served {
                    output::announce(
                        self.json,
                        || json!({ "removed": { "subsystem": nqn } }),
                        || format!("- {nqn}"),
                    );
                }
                if let Some(error) = error {
                    tracing::warn!("{nqn}: {error:#}");
                    self.trouble.get_or_insert(error.context(nqn));
                }
            }
            None => {}
        }
    }

    /// Starts what is to be attached now.
    fn start_due(&mut self) {
        let (settings, sender) = (&self.settings, &self.sender);
        let failed = self.subsystems.start_due(Instant::now(), |number, nqn, urls| {
            let sender = sender.clone();
            Service::start(settings.clone(), nqn, urls, move |told| {
                let _over = sender.send(Event::Service(number, told));
            })
        });
        for (nqn, error) in failed {
            tracing::warn!("{nqn}: {error:#}");
            self.trouble.get_or_insert(error.context(nqn));
        }
    }

    /// Everything was tried.
    fn settled(&mut self) -> Result<()> {
        if self.ready.is_none() && (self.args.follow || !self.subsystems.is_empty()) {
            let directory = ready::directory(self.settings.place.directory());
            self.ready = Some(Ready::announce(self.args.ready_file.as_deref(), &directory)?);
        }
        Ok(())
    }

    /// Ends all front ends, and leaves the discovery controllers. They are told at once, the last one
    /// first.
    fn end(&mut self, events: &Receiver<Event>, signal: Option<Signal>) {
        self.ready = None;
        (self.watch, self.browser) = (None, None);
        self.subsystems.end_all(signal.unwrap_or(Signal::SIGTERM));
        while !self.subsystems.is_empty() {
            match events.recv() {
                Ok(Event::Signal(signal)) => self.subsystems.end_all(signal),
                Ok(Event::Service(number, told)) => self.told(number, told),
                Ok(Event::Discovery | Event::Mdns(_)) => {}
                Err(_) => return,
            }
        }
    }
}

fn describe(nqn: &str, offer: &Offer) -> Value {
    json!({ "subsystem": nqn, "url": offer.url, "at": offer.at, "disks": offer.disks })
}
