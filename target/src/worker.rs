//! Threads for what may hang: a mount whose server is gone, a device that does not answer. Whoever asks waits for a limited
//! time. A call that takes longer keeps its thread, is told of in `status`, and its result is thrown away when it comes.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::SigSet;
use serde::Serialize;

/// Calls at a time, those that hang among them.
const CALLS_MAX: usize = 32;

/// Threads that are kept without work.
const IDLE_MAX: usize = 4;

/// Calls that take longer than this are shown.
const SHOWN_AFTER: Duration = Duration::from_secs(1);

static HELPERS: Mutex<Helpers> = Mutex::new(Helpers { idle: Vec::new(), calls: BTreeMap::new(), next: 0 });

/// The helpers of this process. Those that hang belong to the process anyway.
struct Helpers {
    idle: Vec<Sender<Job>>,
    calls: BTreeMap<u64, Call>,
    next: u64,
}

struct Call {
    what: &'static str,
    path: PathBuf,
    since: Instant,
    /// Nobody waits for it any more.
    abandoned: bool,
}

type Job = Box<dyn FnOnce() + Send>;

/// A call that has not returned for a while.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Hanging {
    /// What is being done.
    pub what: &'static str,
    /// To which file.
    pub path: PathBuf,
    /// For how many seconds.
    pub seconds: u64,
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum HelperError {
    /// It has not come in time.
    #[error("{what} {} has not returned within {} s: what it is on does not answer", path.display(), limit.as_secs_f64())]
    Hangs {
        /// What was to be done.
        what: &'static str,
        /// To which file.
        path: PathBuf,
        /// Within what time.
        limit: Duration,
    },
    /// An earlier call for the same path still hangs.
    #[error("{what} {} still hangs, since {seconds} s", path.display())]
    StillHangs {
        /// What was to be done.
        what: &'static str,
        /// To which file.
        path: PathBuf,
        /// Since so many seconds.
        seconds: u64,
    },
    /// Too many others hang.
    #[error("{CALLS_MAX} calls to files hang already, the oldest for {}", path.display())]
    TooMany {
        /// The file of the oldest.
        path: PathBuf,
    },
    /// There is no thread for it.
    #[error("no thread to look at files: {0}")]
    NoThread(io::Error),
}

impl From<HelperError> for io::Error {
    fn from(error: HelperError) -> Self {
        let kind = match &error {
            HelperError::NoThread(source) => source.kind(),
            _ => io::ErrorKind::TimedOut,
        };
        io::Error::new(kind, error.to_string())
    }
}

/// Does `work`, which is `what` to `path`, on a thread of its own, and waits no longer than `limit`.
///
/// # Errors
/// When it takes longer, or so many others do that there is no thread for it. The work may happen all the same.
pub fn within<T: Send + 'static>(
    what: &'static str,
    path: &Path,
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, HelperError> {
    let (sender, result) = mpsc::sync_channel(1);
    let number = begin(what, path)?;
    let job = move || {
        let done = work();
        match end(number) {
            // Nobody takes it: what it holds is let go of before anybody tries again.
            true => {
                drop(done);
                helpers().calls.remove(&number);
            }
            false => drop(sender.send(done)),
        }
    };
    if let Err(error) = hand_over(Box::new(job)) {
        helpers().calls.remove(&number);
        return Err(HelperError::NoThread(error));
    }
    match result.recv_timeout(limit) {
        Ok(done) => return Ok(done),
        Err(RecvTimeoutError::Disconnected) => {
            helpers().calls.remove(&number);
            return Err(HelperError::NoThread(io::Error::other("it has ended by a panic")));
        }
        Err(RecvTimeoutError::Timeout) => {}
    }
    if let Some(call) = helpers().calls.get_mut(&number) {
        call.abandoned = true;
        tracing::warn!(what, path = %path.display(), ?limit, "a file does not answer; nobody waits for it");
        return Err(HelperError::Hangs { what, path: path.to_owned(), limit });
    }
    // It came just now.
    result.recv().map_err(|_| HelperError::Hangs { what, path: path.to_owned(), limit })
}

/// The calls that have not returned for a while, oldest first.
pub fn hanging() -> Vec<Hanging> {
    let helpers = helpers();
    let slow = helpers.calls.values().filter(|call| call.since.elapsed() >= SHOWN_AFTER);
    slow.map(|call| Hanging {
        what: call.what,
        path: call.path.clone(),
        seconds: call.since.elapsed().as_secs(),
    })
    .collect()
}

fn begin(what: &'static str, path: &Path) -> Result<u64, HelperError> {
    let mut helpers = helpers();
    if let Some(call) = helpers.calls.values().find(|call| call.abandoned && call.path == path) {
        let seconds = call.since.elapsed().as_secs();
        return Err(HelperError::StillHangs { what: call.what, path: path.to_owned(), seconds });
    }
    if helpers.calls.len() >= CALLS_MAX
        && let Some((_, oldest)) = helpers.calls.first_key_value()
    {
        return Err(HelperError::TooMany { path: oldest.path.clone() });
    }
    let number = helpers.next;
    helpers.next += 1;
    let call = Call { what, path: path.to_owned(), since: Instant::now(), abandoned: false };
    helpers.calls.insert(number, call);
    Ok(number)
}

/// Whether nobody waits for a call that has returned. One that is waited for is forgotten.
fn end(number: u64) -> bool {
    let mut helpers = helpers();
    let abandoned = helpers.calls.get(&number).is_some_and(|call| call.abandoned);
    if !abandoned {
        helpers.calls.remove(&number);
    }
    abandoned
}

fn hand_over(job: Job) -> io::Result<()> {
    let idle = helpers().idle.pop();
    let Some(idle) = idle else { return start(job) };
    idle.send(job).or_else(|refused| start(refused.0))
}

fn start(first: Job) -> io::Result<()> {
    let (sender, jobs) = mpsc::channel::<Job>();
    let run = move || {
        // Signals are for the thread that takes them.
        if let Err(error) = SigSet::all().thread_block() {
            tracing::debug!(%error, "a helper may be interrupted by signals");
        }
        first();
        loop {
            {
                let mut helpers = helpers();
                if helpers.idle.len() >= IDLE_MAX {
                    return;
                }
                helpers.idle.push(sender.clone());
            }
            let Ok(job) = jobs.recv() else { return };
            job();
        }
    };
    thread::Builder::new().name("files".to_owned()).spawn(run).map(drop)
}

fn helpers() -> MutexGuard<'static, Helpers> {
    HELPERS.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(50);
    const LONG: Duration = Duration::from_secs(30);

    #[test]
    fn what_returns_in_time_has_a_result() {
        let sum = within("adding to", Path::new("/in-time"), LONG, || 1 + 1).expect("in time");
        assert_eq!(sum, 2);
    }

    #[test]
    fn what_hangs_is_left_alone_and_named_and_its_path_is_not_tried_again_before_it_returns() {
        let path = Path::new("/that-hangs");
        let (go_on, waits) = mpsc::channel::<()>();
        let error = within("opening", path, SHORT, move || waits.recv().is_ok()).expect_err("hangs");
        assert!(error.to_string().starts_with("opening /that-hangs has not returned"), "{error}");
        let error = within("opening", path, LONG, || ()).expect_err("it still hangs");
        assert!(matches!(error, HelperError::StillHangs { .. }), "{error}");
        let begun = Instant::now();
        while !hanging().iter().any(|one| one.path == path && one.what == "opening") {
            assert!(begun.elapsed() < LONG, "it is never shown");
            thread::sleep(SHORT);
        }
        go_on.send(()).expect("it waits for that");
        while within("opening", path, LONG, || ()).is_err() {
            assert!(begun.elapsed() < LONG, "it is never tried again");
            thread::sleep(SHORT);
        }
        assert!(!hanging().iter().any(|one| one.path == path));
    }
}
