//! The log: one line an event, on the standard error.
//!
//! The thread that logs formats a line and puts it into a queue. One thread takes lines from the queue and writes them.
//! When the queue is full, because the reader of the standard error stalls, lines are dropped. When a write fails,
//! because a disk is full or the reader has gone, its line is lost. Both are counted, and the next line that can be
//! written has the count.
//!
//! What is logged, somebody who asked for it while the program runs has said, or else the environment (`RUST_LOG`), or
//! else the configuration.
//!
//! Events that repeat are folded (see [`fold`]), so that a peer cannot fill a disk or hide what others do. What only an
//! administrator can cause bears the name [`NEVER_FOLDED`], and each is a line.
//!
//! If the standard error is the journal of systemd, events go to the journal's socket as records with their priority
//! and their fields: `journalctl RINGFAB_SUBSYSTEM=...`. Without that socket, a line begins with its priority. Neither
//! has a time, because the journal keeps it. On request, each event is a line of JSON.

mod filter;
mod fold;
mod format;
mod journal;
mod layer;
mod line;
mod output;
mod record;
mod sink;
mod style;

use std::env;
use std::io;
use std::panic::{self, PanicHookInfo};
use std::sync::{Mutex, OnceLock, PoisonError};

use tracing::Level;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::{EnvFilter, Registry, reload};

pub use filter::{FilterError, check_filter};
pub use fold::NEVER_FOLDED;
pub use format::{Format, Parts};
use layer::LogLayer;
use sink::{Sink, write_now};
use style::Style;

/// The environment variable that says what is logged.
pub const FILTER_VARIABLE: &str = "RUST_LOG";

/// The queue and the thread of this process, and how it writes. None when the system has no thread for it.
static SINK: OnceLock<Option<(Sink, Style)>> = OnceLock::new();

/// What exchanges the filter of this process's log, and which one it has.
static FILTER: OnceLock<(reload::Handle<EnvFilter, Registry>, Mutex<InForce>)> = OnceLock::new();

/// The filter that a log has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InForce {
    /// Its text.
    pub filter: String,
    /// Who has said so.
    pub from: FilterFrom,
}

/// Where a filter comes from. Each goes before those above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterFrom {
    /// The configuration.
    Configuration,
    /// The environment.
    Environment,
    /// Somebody who asked for it while the program runs.
    Request,
}

impl FilterFrom {
    /// Its name, for people and programs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Configuration => "configuration",
            Self::Environment => FILTER_VARIABLE,
            Self::Request => "request",
        }
    }
}

/// The log while the program runs. Dropping it writes what is queued, within a bound.
#[derive(Debug)]
#[must_use = "the log's last lines are written when it is dropped"]
pub struct Log(());

impl Drop for Log {
    fn drop(&mut self) {
        flush();
    }
}

/// Starts the log. `RUST_LOG` goes before the filter `configured`; one that cannot be used is told and left out. In a
/// process that has a log already, that one stays.
///
/// # Errors
/// When the system has no thread left to write it.
pub fn start(configured: &str, format: Format, parts: Parts) -> io::Result<Log> {
    let style = Style::chosen(format, parts);
    let (sink, style) = match SINK.get_or_init(|| started(style)) {
        Some(started) => started.clone(),
        None => return Err(io::Error::other("the system has no thread for it (ulimit -u, TasksMax=)")),
    };
    let (filter, in_force, refused) = chosen(configured).map_err(io::Error::other)?;
    let layer = LogLayer::new(style, sink);
    let (filter, handle) = reload::Layer::new(filter);
    let subscriber = tracing_subscriber::registry().with(filter).with(layer);
    if tracing::subscriber::set_global_default(subscriber).is_ok() {
        // Nobody else has set it: there is one log.
        let _first = FILTER.set((handle, Mutex::new(in_force)));
        panic::set_hook(Box::new(tell_panic));
    }
    if let Some(error) = refused {
        tracing::warn!(instead = configured, "{FILTER_VARIABLE} {error}");
    }
    Ok(Log(()))
}

/// What the environment asks for, if that can be used, or else what is configured. An error of the first is told.
fn chosen(configured: &str) -> Result<(EnvFilter, InForce, Option<FilterError>), FilterError> {
    let asked = env::var(FILTER_VARIABLE).ok().filter(|text| !text.trim().is_empty());
    let refused = match asked.map(|text| (check_filter(&text), text)) {
        Some((Ok(filter), text)) => {
            return Ok((filter, InForce { filter: text, from: FilterFrom::Environment }, None));
        }
        Some((Err(error), _)) => Some(error),
        None => None,
    };
    let in_force = InForce { filter: configured.to_owned(), from: FilterFrom::Configuration };
    Ok((check_filter(configured)?, in_force, refused))
}

/// Logs other events from now on, whatever is configured and whatever `RUST_LOG` says, until [`configure`]. Without a
/// log this does nothing.
///
/// # Errors
/// When that is no filter.
pub fn set_filter(text: &str) -> Result<(), FilterError> {
    let filter = check_filter(text)?;
    exchange(filter, InForce { filter: text.to_owned(), from: FilterFrom::Request });
    Ok(())
}

/// Logs what a start would log that has this configuration: `RUST_LOG` goes before it.
///
/// # Errors
/// When that is no filter.
pub fn configure(configured: &str) -> Result<(), FilterError> {
    let (filter, in_force, _) = chosen(configured)?;
    exchange(filter, in_force);
    Ok(())
}

fn exchange(filter: EnvFilter, next: InForce) {
    if let Some((handle, in_force)) = FILTER.get() {
        let mut in_force = in_force.lock().unwrap_or_else(PoisonError::into_inner);
        // The log lasts as long as the process.
        let _lives = handle.reload(filter);
        *in_force = next;
    }
}

/// What is logged now, and who has said so. None without a log.
pub fn in_force() -> Option<InForce> {
    let (_, in_force) = FILTER.get()?;
    Some(in_force.lock().unwrap_or_else(PoisonError::into_inner).clone())
}

/// Says something to whoever started the program: text without time and level, on the standard error. It comes after
/// all that was logged before, and blocks nobody. [`flush`] waits for it.
pub fn say(text: &str) {
    let chosen = Style::chosen(Format::Auto, Parts::Unnamed);
    match SINK.get_or_init(|| started(chosen)) {
        Some((sink, style)) => style.plain(Level::ERROR, text).into_iter().for_each(|text| sink.push(text)),
        None => write_now(&format!("{}\n", text.trim_end())),
    }
}

/// The standard error has become a stream of the journal, which takes a priority at the beginning of each line. What
/// was logged before is to be written first: [`flush`].
pub fn goes_to_journal() {
    style::has_stream();
}

fn started(style: Style) -> Option<(Sink, Style)> {
    Some((Sink::start(style).ok()?, style))
}

/// Waits until everything that was logged so far is written, within a bound: a reader that stalls is not waited for.
pub fn flush() {
    if let Some(Some((sink, _))) = SINK.get() {
        sink.flush();
    }
}

/// A panic is an event like any other, so its message blocks nobody. `RUST_BACKTRACE` adds where it came from.
fn tell_panic(info: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let payload = info.payload();
    let text = payload.downcast_ref::<&str>().copied().or_else(|| payload.downcast_ref().map(String::as_str));
    let place = info.location().map(ToString::to_string).unwrap_or_default();
    tracing::error!(thread = thread.name(), place, "panicked: {}", text.unwrap_or("without a message"));
    let trace = std::backtrace::Backtrace::capture();
    if trace.status() == std::backtrace::BacktraceStatus::Captured {
        say(&trace.to_string());
    }
}
