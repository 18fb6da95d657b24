//! What the keeper reports to whoever waits for it: lines of JSON on the standard output.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{dup2_stderr, dup2_stdin, dup2_stdout, setsid};
use ringfab_base::VisiblePath as _;
use ringfab_process::log;
use serde::{Deserialize, Serialize};

use crate::context::Usage;
use crate::interrupt::Cancelled;
use crate::registry::{self, Facts};

/// Where the journal takes what services say.
const JOURNAL: &str = "/run/systemd/journal/stdout";
/// How long the log is where there is no journal.
const LOG_BYTES_MAX: u64 = 16 << 20;

/// What is reported, a line each.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::volumes) enum News {
    /// It begins to do this.
    Doing(String),
    /// It is mounted.
    Mounted {
        /// In one sentence.
        text: String,
        facts: Box<Facts>,
    },
    /// It failed, and everything is undone.
    Failed {
        error: String,
        /// Whether the command line is the reason.
        usage: bool,
        cancelled: bool,
    },
}

/// Where to report to.
#[derive(Clone)]
pub(super) struct Report {
    /// Whether somebody waits. In the foreground nobody does.
    waits: Arc<AtomicBool>,
}

impl Report {
    pub(super) fn new(in_background: bool) -> Self {
        Self { waits: Arc::new(AtomicBool::new(in_background)) }
    }

    /// Leaves the terminal, and calls this when whoever waits has gone.
    pub(super) fn on_caller_gone(&self, call: impl FnOnce() + Send + 'static) -> Result<()> {
        if !self.waits.load(Ordering::Acquire) {
            return Ok(());
        }
        setsid().context("leave the terminal")?;
        let watch = move || {
            let mut byte = [0];
            // Nothing is ever said; the end is all there is.
            let _end = io::stdin().read(&mut byte);
            call();
        };
        std::thread::Builder::new().name("caller".to_owned()).spawn(watch).map(drop).context("start a thread")
    }

    /// Says what is done now.
    pub(super) fn doing(&self, what: &str) {
        tracing::info!("{what}");
        if self.waits.load(Ordering::Acquire) {
            let told = say(&News::Doing(what.to_owned()));
            tracing::trace!(told, "reported");
        }
    }

    /// Says that it is mounted, and lets go of the terminal. False if nobody waits any more.
    pub(super) fn mounted(&self, text: &str, facts: &Facts) -> bool {
        if !self.waits.swap(false, Ordering::AcqRel) {
            return true;
        }
        let name = facts.files.as_deref().and_then(|files| files.file_name()).unwrap_or_default();
        let own_log = open_log(&name.to_string_lossy());
        // What was logged so far is for whoever waits.
        log::flush();
        let heard = say(&News::Mounted { text: text.to_owned(), facts: Box::new(facts.clone()) });
        if let Err(error) = own_log.and_then(|log| let_go(&log)) {
            tracing::warn!("the terminal is not let go: {error:#}");
        }
        heard
    }

    /// Says that it failed. False if nobody waits for that.
    pub(super) fn failed(&self, error: &anyhow::Error) -> bool {
        if !self.waits.swap(false, Ordering::AcqRel) {
            return false;
        }
        let cancelled = error.is::<Cancelled>();
        let told = say(&News::Failed { error: format!("{error:#}"), usage: error.is::<Usage>(), cancelled });
        // Who has cancelled it says so, and may not listen any more.
        told || cancelled
    }
}

/// Writes a line. False if nobody takes it.
fn say(news: &News) -> bool {
    let Ok(mut line) = serde_json::to_vec(news) else { return false };
    line.push(b'\n');
    let mut output = io::stdout().lock();
    output.write_all(&line).and_then(|()| output.flush()).is_ok()
}

/// Where the log goes from now on.
enum OwnLog {
    Journal(UnixStream),
    File(File),
}

fn open_log(name: &str) -> Result<OwnLog> {
    if let Ok(mut journal) = UnixStream::connect(JOURNAL) {
        // Its name, no unit, the priority of lines that begin with none, whether lines begin with one, and where else
        // lines go: nowhere.
        if journal.write_all(b"ringfab-mount\n\n6\n1\n0\n0\n0\n").is_ok() {
            return Ok(OwnLog::Journal(journal));
        }
    }
    let path = log_file(name)?;
    let mut options = OpenOptions::new();
    // A new file: whoever reads the old one keeps it.
    let _old = std::fs::remove_file(&path);
    options.append(true).create(true).mode(0o600);
    let file = options.open(&path).with_context(|| format!("write {}", path.visible()))?;
    Ok(OwnLog::File(file))
}

/// Where the log of a mount is, where there is no journal.
fn log_file(name: &str) -> Result<PathBuf> {
    Ok(registry::folder()?.join(format!("{name}.log")))
}

/// Removes the log of a mount that has ended in order.
pub(super) fn forget_log(name: &str) {
    let removed = log_file(name).map(std::fs::remove_file);
    tracing::debug!(?removed, "the log is not needed any more");
}

/// Nobody reads what the caller's terminal gets from a process in the background, and its end must not matter.
fn let_go(own_log: &OwnLog) -> Result<()> {
    let null = OpenOptions::new().read(true).write(true).open("/dev/null").context("open /dev/null")?;
    dup2_stdin(&null)?;
    dup2_stdout(&null)?;
    let descriptor = match own_log {
        OwnLog::Journal(journal) => journal.as_fd(),
        OwnLog::File(file) => {
            let (_, hard) = getrlimit(Resource::RLIMIT_FSIZE)?;
            // The log counts what it cannot write.
            setrlimit(Resource::RLIMIT_FSIZE, LOG_BYTES_MAX.min(hard), hard)?;
            file.as_fd()
        }
    };
    dup2_stderr(descriptor)?;
    if matches!(own_log, OwnLog::Journal(_)) {
        log::goes_to_journal();
    }
    Ok(())
}
