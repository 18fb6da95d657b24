//! What cores report while they start, and what is said about all of them once.

use std::io;
use std::net::SocketAddr;

use ringfab_memory::Pool;
use ringfab_process::limits::Limit;
use ringfab_reactor::Monitor;

use super::message::CoreSender;

/// What a starting thread tells the one that starts it.
pub(super) enum Report {
    Ready(Ready),
    Listening(Listening),
}

/// A core that has its ring.
pub(super) struct Ready {
    pub(super) number: usize,
    pub(super) processor: usize,
    pub(super) sender: CoreSender,
    pub(super) monitor: Monitor,
    pub(super) unpinned: Option<io::Error>,
}

/// A core that serves.
pub(super) struct Listening {
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) buffers: Registration,
}

impl Report {
    pub(super) fn into_ready(self) -> Ready {
        match self {
            Self::Ready(ready) => ready,
            Self::Listening(_) => unreachable!("no core listens before all are ready"),
        }
    }

    pub(super) fn into_listening(self) -> Listening {
        match self {
            Self::Listening(listening) => listening,
            Self::Ready(_) => unreachable!("each core is ready once"),
        }
    }
}

/// What cannot be started, and why.
pub(super) fn at(what: String) -> impl FnOnce(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// Once for all cores.
pub(super) fn warn_unpinned(cores: &[Ready]) {
    let unpinned: Vec<usize> =
        cores.iter().filter(|core| core.unpinned.is_some()).map(|core| core.processor).collect();
    if let Some(error) = cores.iter().find_map(|core| core.unpinned.as_ref()) {
        tracing::warn!(processors = ?unpinned, %error, "cores run unpinned");
    }
}

/// How much memory of buffers of I/O there is, and whether the kernel has it registered.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Registration {
    bytes: usize,
    /// Of these, what the kernel has not registered.
    unregistered_bytes: usize,
}

impl Registration {
    pub(super) fn of(pool: &Pool, registered: bool) -> Self {
        let (_, bytes) = pool.extent();
        Self { bytes, unregistered_bytes: if registered { 0 } else { bytes } }
    }

    pub(super) fn add(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.unregistered_bytes += other.unregistered_bytes;
    }

    /// Once for all cores, with how much is needed and how much is allowed.
    pub(super) fn warn_unregistered(self) {
        if self.unregistered_bytes > 0 {
            let needed = format!("{} KiB", self.bytes.div_ceil(1024));
            let (limit, unregistered) = (Limit::locked_memory(), self.unregistered_bytes);
            tracing::warn!(
                needed,
                %limit,
                unregistered_bytes = unregistered,
                "buffers are not registered with the kernel, so file I/O is somewhat slower: \
                 let the process lock as much memory as is needed (ulimit -l, LimitMEMLOCK=)"
            );
        }
    }
}
