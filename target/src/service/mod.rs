//! The service: from a configuration file to a process that serves until it is told to stop.

mod addresses;
mod check;
pub mod cli;
mod confine;
mod doctor;
mod heartbeat;
mod mdns;
mod notify;
mod ready;
mod signals;
#[cfg(test)]
mod tests;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringfab_base::{VisiblePath as _, counted, without_folder};
use ringfab_fabric::tcp::prepare_kernel_tls;
use ringfab_process::limits;
use ringfab_process::log::{self, NEVER_FOLDED};
use ringfab_process::signals::SignalEvent;
use ringfab_reactor::Monitor;

use crate::config::{Config, ConfigErrors, ListenerTls, doubts};
use crate::confinement;
use crate::control::client::AskError;
use crate::control::{self, ControlError, Manager};
use crate::core::{self, Cores};
use crate::identity::{Identity, IdentityError};
use crate::machine;
use crate::metrics::{self, MetricsError};
use crate::target::{Target, TargetError};
use crate::worker::{self, Hanging};
use heartbeat::Heartbeats;
use mdns::Advertiser;
use notify::Notifier;
use ready::ReadyFile;
use signals::Signals;

/// How often the service looks after its cores.
const TICK: Duration = Duration::from_millis(100);

/// How long clusters may take to let this process go.
const BACKINGS_LIMIT: Duration = Duration::from_secs(3);

/// What the cores get beyond the limit of a drain before the process ends without them.
const DRAIN_GRACE: Duration = Duration::from_secs(2);

/// How long the end of the process waits for files that are being written.
const FILES_LIMIT: Duration = Duration::from_secs(5);

/// What `serve` is told on the command line.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// The configuration file.
    pub config: PathBuf,
    /// Written once all listeners are bound: one line `address:port` per listener.
    pub ready_file: Option<PathBuf>,
    /// How the log is written, whatever the configuration says.
    pub log_format: Option<log::Format>,
}

/// The cores while they run.
pub trait Running {
    /// The addresses that are bound, in the order of the configuration's listeners.
    fn addresses(&self) -> &[SocketAddr];

    /// What each core's loop is doing, by number.
    fn monitors(&self) -> &[Monitor];

    /// The way to them.
    fn cores(&self) -> Cores;

    /// Stops accepting, and ends within `limit`. Returns at once.
    fn drain(&self, limit: Duration);

    /// Whether every core has ended.
    fn is_finished(&self) -> bool;

    /// Whether some core has ended, which none should before a drain.
    fn is_any_finished(&self) -> bool;

    /// Waits for the cores.
    ///
    /// # Errors
    /// When one ended by an error.
    fn join(self) -> io::Result<()>;
}

impl Running for core::Running {
    fn addresses(&self) -> &[SocketAddr] {
        self.addresses()
    }

    fn monitors(&self) -> &[Monitor] {
        self.monitors()
    }

    fn cores(&self) -> Cores {
        self.cores().clone()
    }

    fn drain(&self, limit: Duration) {
        self.drain(limit);
    }

    fn is_finished(&self) -> bool {
        self.is_finished()
    }

    fn is_any_finished(&self) -> bool {
        self.is_any_finished()
    }

    fn join(self) -> io::Result<()> {
        self.join()
    }
}

/// Why the service ended, or never began.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// The identity of the installation cannot be had.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The target cannot be made.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The cores cannot start.
    #[error("cannot start: {0}")]
    Start(io::Error),
    /// The ready file cannot be written.
    #[error("cannot write the ready file {}: {source}{}", path.visible(), without_folder(path, source))]
    ReadyFile {
        /// Which file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// What is asked for can never be: somebody has to correct it first.
    #[error("{0}")]
    Mistake(String),
    /// The control socket cannot be had.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The address of the metrics cannot be had.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// A target that runs does not do what it was asked.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// The log cannot be written.
    #[error("cannot start the log: {0}")]
    Log(io::Error),
    /// Signals cannot be caught.
    #[error("cannot catch signals: {0}")]
    Signals(io::Error),
    /// Nobody takes what was asked for.
    #[error("cannot write: {0}")]
    Output(io::Error),
    /// The doctor has found something.
    #[error("something is wrong")]
    Unwell,
    /// A core ended by itself.
    #[error("a core has failed: {0}")]
    Core(io::Error),
    /// The drain took longer than its limit.
    #[error("the cores did not end within the drain timeout")]
    DrainTimeout,
    /// A second signal came during the drain.
    #[error("a second signal: ending without a drain")]
    Interrupted,
}

impl ServeError {
    /// The process's exit code: 2 for what the caller has to correct first, 1 for all else.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) | Self::Mistake(_) => 2,
            _ => 1,
        }
    }
}

/// Serves until SIGTERM or SIGINT, and then drains; a second signal ends at once. `start` starts the cores.
///
/// # Errors
/// When it cannot begin, or does not end in order.
pub fn serve<R: Running>(
    options: &ServeOptions,
    start: impl FnOnce(&Arc<Target>, &Config) -> io::Result<R>,
) -> Result<(), ServeError> {
    let config = Config::load(&options.config)?;
    addresses::require(&config)?;
    ready::require(options, &config)?;
    if let Some(mistake) = machine::mistake(&config) {
        return Err(ServeError::Mistake(mistake.to_string()));
    }
    // Confined, it connects to nobody, not even to itself.
    if config.listeners.iter().any(|listener| listener.tls != ListenerTls::Off) {
        prepare_kernel_tls();
    }
    confine::confine(options, &config);
    let log_format = options.log_format.unwrap_or(config.target.log_format);
    let _log = log::start(&config.target.log, log_format, log::Parts::Named).map_err(ServeError::Log)?;
    let _files = FinishedFiles;
    // First of all that no host may use a subsystem yet, and the command that changes it.
    for doubt in doubts(&config) {
        tracing::warn!("{doubt}");
    }
    confine::announce(&confinement::layers());
    for finding in machine::exchangeable_keys(&config) {
        tracing::warn!("{finding}");
    }
    limits::raise_descriptors();
    let signals = Signals::catch().map_err(ServeError::Signals)?;
    let identity = Identity::load_or_create(&config.target.state_dir)?;
    let target = Target::new(&config, &identity)?;
    let running = start(&target, &config).map_err(ServeError::Start)?;
    confine::seal(&config);
    announce(&target, running.addresses());
    if let Some(metrics) = &config.metrics {
        metrics::start(metrics, Arc::clone(&target), running.cores())?;
    }
    // Somebody may ask for a reload when the working directory is another one.
    let file = std::path::absolute(&options.config).ok();
    let manager = Manager::new(Arc::clone(&target), running.cores(), identity, &config, file);
    let view = manager.view();
    let control = control::start(config.control.as_ref(), manager)?;
    // A key that is taken away later must not stay in it.
    drop(config);
    // Whoever waits for the file may then ask over the socket, too.
    let ready = options.ready_file.as_ref().map(|path| ReadyFile::write(path, running.addresses()));
    let _ready = ready.transpose()?;
    let drain_timeout = || view.configured().running.target.drain_timeout;
    let mut advertiser = Advertiser::default();
    let advertise = |serving: bool| {
        let discovery = &view.configured().running.discovery;
        advertiser.update(serving && discovery.mdns, &target.served(), discovery.nqn.as_deref());
    };
    let reload = || control.reload("SIGHUP");
    let outcome = watch(running, &target, &drain_timeout, &signals, reload, advertise);
    target.backings.close(BACKINGS_LIMIT);
    outcome
}

/// What is being written is whole before the process ends, within a limit. What merely hangs is left behind.
struct FinishedFiles;

impl Drop for FinishedFiles {
    fn drop(&mut self) {
        for Hanging { what, path, seconds } in worker::finish(FILES_LIMIT) {
            let path = path.visible();
            tracing::error!(name: NEVER_FOLDED, what, %path, seconds, "the process ends before a file is written");
        }
    }
}

/// Says in the log where hosts can connect, and to what.
fn announce(target: &Target, addresses: &[SocketAddr]) {
    for address in addresses {
        tracing::info!(name: NEVER_FOLDED, %address, "listening");
    }
    for subsystem in target.served().subsystems() {
        let namespaces = subsystem.namespaces().len();
        tracing::info!(name: NEVER_FOLDED, subsystem = subsystem.nqn(), namespaces, "serving");
    }
}

/// Looks after the cores until they are told to stop. The network may be told where they are meanwhile.
fn watch<R: Running>(
    running: R,
    target: &Target,
    drain_timeout: &dyn Fn() -> Duration,
    signals: &Signals,
    reload: impl Fn(),
    mut advertise: impl FnMut(bool),
) -> Result<(), ServeError> {
    let mut notifier = Notifier::ready(&status(target));
    let mut heartbeats = Heartbeats::new(running.monitors(), Instant::now());
    loop {
        advertise(true);
        match signals.wait(notifier.interval(TICK)) {
            Some(SignalEvent::HangUp) => reload(),
            Some(SignalEvent::End(signal)) => {
                let limit = drain_timeout();
                tracing::info!(name: NEVER_FOLDED, signal, ?limit, "stopping: no new connections, draining");
                notifier.stopping();
                advertise(false);
                leave_all(target, &running.cores(), limit, signals)?;
                return drain(running, limit, signals);
            }
            None => {}
        }
        if running.is_any_finished() {
            return Err(ServeError::Core(why_ended(running)));
        }
        let now = Instant::now();
        notifier.tick(now, &status(target), heartbeats.all_alive(now));
    }
}

/// Asks hosts to go elsewhere that other processes serve, too.
fn leave_all(target: &Target, cores: &Cores, limit: Duration, signals: &Signals) -> Result<(), ServeError> {
    let ports = target.served().listeners().iter().map(|one| one.port_id()).collect();
    let mut interrupted = false;
    control::leave(target, cores, &ports, limit.min(control::LEAVE_LIMIT), || {
        interrupted = matches!(signals.wait(Duration::from_millis(1)), Some(SignalEvent::End(_)));
        interrupted
    });
    if interrupted { Err(ServeError::Interrupted) } else { Ok(()) }
}

/// The error of a core, if it can be had without waiting for the others.
fn why_ended<R: Running>(running: R) -> io::Error {
    let error = if running.is_finished() { running.join().err() } else { None };
    error.unwrap_or_else(|| io::Error::other("it ended without being asked"))
}

fn drain<R: Running>(running: R, limit: Duration, signals: &Signals) -> Result<(), ServeError> {
    let deadline = Instant::now() + limit + DRAIN_GRACE;
    running.drain(limit);
    while !running.is_finished() {
        if let Some(SignalEvent::End(_)) = signals.wait(TICK) {
            return Err(ServeError::Interrupted);
        }
        if Instant::now() >= deadline {
            return Err(ServeError::DrainTimeout);
        }
    }
    running.join().map_err(ServeError::Core)?;
    tracing::info!(name: NEVER_FOLDED, "stopped");
    Ok(())
}

/// One line for people who ask the service manager.
fn status(target: &Target) -> String {
    let namespaces = target.namespaces();
    let ready = namespaces.iter().filter(|namespace| namespace.is_ready()).count();
    let controllers = target.controllers().iter().filter(|one| !one.state().awaits_proof).count();
    let namespaces = counted(namespaces.len(), "namespace");
    format!("{ready} of {namespaces} ready, {}", counted(controllers, "controller"))
}
