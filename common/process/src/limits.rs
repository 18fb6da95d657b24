//! What the system lets a process use.

use std::fmt;

use nix::sys::prctl;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};

/// Raises the number of files and sockets that this process may open to the hard limit. The soft one is low for the
/// sake of programs that use `select`, which ours do not. Without the permission it stays as it is.
pub fn raise_descriptors() {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return };
    if soft < hard
        && let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
    {
        tracing::debug!(%error, soft, hard, "the limit on open files stays");
    }
}

/// This process has keys: if it dies, no file with its memory is written, whatever limits allow. Who is not privileged
/// cannot look into it with a debugger, either.
pub fn forbid_core_files() {
    if let Err(error) = prctl::set_dumpable(false) {
        tracing::warn!(%error, "a core file of this process would have keys in it");
    }
}

/// A limit as people read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// So many bytes.
    Bytes(u64),
    /// There is none.
    Unlimited,
    /// The system does not tell.
    Unknown,
}

impl Limit {
    /// How much memory this process may lock (`ulimit -l`, `LimitMEMLOCK=`), in bytes.
    pub fn locked_memory() -> Self {
        match getrlimit(Resource::RLIMIT_MEMLOCK) {
            Ok((RLIM_INFINITY, _)) => Self::Unlimited,
            Ok((soft, _)) => Self::Bytes(soft),
            Err(_) => Self::Unknown,
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "{} KiB", bytes >> 10),
            Self::Unlimited => f.write_str("unlimited"),
            Self::Unknown => f.write_str("unknown"),
        }
    }
}

/// How many files and sockets the process has open, if the system tells.
pub fn open_descriptors() -> Option<usize> {
    // Whoever looks has the list itself open.
    std::fs::read_dir("/proc/self/fd").ok().map(|files| files.count() - 1)
}
