//! What the system lets a process use.

use std::fmt;

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};

/// Raises the number of files and sockets that this process may open to the hard limit. The soft one is low for the sake of
/// programs that use `select`, which ours do not. Without the permission it stays as it is.
pub fn raise_descriptors() {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return };
    if soft < hard
        && let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
    {
        tracing::debug!(%error, soft, hard, "the limit on open files stays");
    }
}

/// A limit as people read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit(Option<u64>);

impl Limit {
    /// How much memory this process may lock (`ulimit -l`, `LimitMEMLOCK=`), in bytes.
    pub fn locked_memory() -> Self {
        let limit = getrlimit(Resource::RLIMIT_MEMLOCK).ok();
        Self(limit.map(|(soft, _)| soft).filter(|soft| *soft != RLIM_INFINITY))
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(bytes) => write!(f, "{} KiB", bytes >> 10),
            None => f.write_str("unlimited"),
        }
    }
}
