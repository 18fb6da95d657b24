//! A task for a worker, and the reasons why it may have no result.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use ringfab_base::VisiblePath as _;
use serde::Serialize;

/// What is to be done, to what, and within which time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// For people, as the begin of a sentence: `opening`.
    pub(super) what: &'static str,
    /// The file, or another word for what it is about.
    pub(super) on: PathBuf,
    /// How long the asker waits.
    pub(super) limit: Duration,
    /// Whether the end of the process waits for it.
    pub(super) must_finish: bool,
}

impl Task {
    /// A task that the end of the process does not wait for. `limit` counts from the moment of asking.
    pub fn new(what: &'static str, on: impl Into<PathBuf>, limit: Duration) -> Self {
        Self { what, on: on.into(), limit, must_finish: false }
    }

    /// The end of the process waits for it: something is being written, or an error may be told that is told once only.
    #[must_use]
    pub fn must_finish(self) -> Self {
        Self { must_finish: true, ..self }
    }
}

/// A task that has not ended for a while.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Hanging {
    /// What is being done.
    pub what: &'static str,
    /// To which file.
    pub path: PathBuf,
    /// For how many seconds, from the moment of asking.
    pub seconds: u64,
}

/// Why there is no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkError {
    /// It has not come in time.
    #[error(
        "{what} {} has not returned within {} s: what it is on does not answer",
        path.visible(),
        limit.as_secs_f64()
    )]
    Hangs {
        /// What was to be done.
        what: &'static str,
        /// To which file.
        path: PathBuf,
        /// Within what time.
        limit: Duration,
    },
    /// An earlier task for the same file still hangs.
    #[error("{what} {} still hangs after {seconds} s", path.visible())]
    StillHangs {
        /// What was to be done.
        what: &'static str,
        /// To which file.
        path: PathBuf,
        /// Since so many seconds.
        seconds: u64,
    },
    /// So many others wait already.
    #[error("{waiting} other tasks wait for a thread already, the oldest for {}", path.visible())]
    Full {
        /// How many.
        waiting: usize,
        /// The file of the oldest.
        path: PathBuf,
    },
    /// So many computations wait already, and its address has most of them.
    #[error("{waiting} computations wait already, and its address has most of them")]
    GaveWay {
        /// How many.
        waiting: usize,
    },
    /// A computation ended by a panic.
    #[error("the computation has panicked")]
    ComputationPanicked,
    /// There is no thread for it.
    #[error("no thread for work on files: {reason}")]
    NoThread {
        /// The system's answer.
        kind: io::ErrorKind,
        /// The same in words.
        reason: String,
    },
    /// It ended by a panic.
    #[error("{what} {} has panicked", path.visible())]
    Panicked {
        /// What was to be done.
        what: &'static str,
        /// To which file.
        path: PathBuf,
    },
}

impl From<WorkError> for io::Error {
    fn from(error: WorkError) -> Self {
        let kind = match &error {
            WorkError::NoThread { kind, .. } => *kind,
            WorkError::Panicked { .. } | WorkError::ComputationPanicked => io::ErrorKind::Other,
            _ => io::ErrorKind::TimedOut,
        };
        io::Error::new(kind, error.to_string())
    }
}
