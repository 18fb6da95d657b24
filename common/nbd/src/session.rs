//! What all cores share of an export: where its server is, what it has said, and how it is doing.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{fmt, io};

use ringfab_block::{Detail, Discarded, DiskProperties, PreferredSizes};
use ringfab_proto::nbd::{ExportInfo, export};
use ringfab_reactor::Bell;

use crate::address::{NbdAddress, Server};
use crate::durability::Durability;
use crate::options::NbdOptions;

/// An export as all cores know it.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) address: NbdAddress,
    pub(crate) options: NbdOptions,
    pub(crate) durability: Durability,
    /// Of the cores, each of which looks at the account then.
    bells: Mutex<Vec<Bell>>,
    /// Connections that are up.
    connected: AtomicUsize,
    /// Cores that have lost theirs, or never had one.
    waiting: AtomicUsize,
    /// Whether the last word of the log was that the server is gone.
    reported_gone: AtomicBool,
    /// Connections that were lost.
    lost_connections: AtomicU64,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    targets: Vec<Target>,
    info: Option<ExportInfo>,
    /// What it is now, if that is less.
    shrunk: Option<ExportInfo>,
    /// What went wrong last.
    fault: Option<String>,
}

/// Where a socket is connected to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Tcp(SocketAddr),
    Unix(PathBuf),
    /// A thread of this process, which has the connection.
    Relay,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
            Self::Relay => f.write_str("the connection that all cores share"),
        }
    }
}

/// Why an export is not used as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Writes cannot be made durable one by one, as they are to be.
    NoForceUnitAccess,
    /// Its size is 0.
    Nothing,
    /// It has become smaller than the disk that it is.
    Shrunk,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoForceUnitAccess => "the server has no Force Unit Access, which write_through needs",
            Self::Nothing => "the server exports nothing: its size is 0",
            Self::Shrunk => "the export has become smaller",
        })
    }
}

impl Session {
    pub(crate) fn new(address: NbdAddress, options: NbdOptions) -> Self {
        let durability = if options.read_only || options.write_through {
            Durability::default()
        } else {
            Durability::inheriting()
        };
        Self {
            address,
            options,
            durability,
            bells: Mutex::default(),
            connected: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            reported_gone: AtomicBool::new(false),
            lost_connections: AtomicU64::new(0),
            known: Mutex::default(),
        }
    }

    /// A core wants to know when there is news in the account.
    pub(crate) fn add_bell(&self, bell: Bell) {
        self.bells().push(bell);
    }

    /// A core wants to know nothing any more. It is the one of this thread.
    pub(crate) fn remove_bell(&self, bell: &Bell) {
        bell.silence();
        self.bells().retain(|one| !one.is(bell));
    }

    /// There is news in the account.
    pub(crate) fn ring_bells(&self) {
        self.bells().iter().for_each(Bell::ring);
    }

    fn bells(&self) -> MutexGuard<'_, Vec<Bell>> {
        self.bells.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks up the addresses of the server, which may take long.
    pub(crate) fn resolve(&self) -> io::Result<Vec<Target>> {
        let targets: Vec<Target> = match &self.address.server {
            Server::Unix(path) => vec![Target::Unix(path.clone())],
            Server::Tcp { host, port } => {
                (host.as_str(), *port).to_socket_addrs()?.map(Target::Tcp).collect()
            }
        };
        if targets.is_empty() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
        }
        self.known().targets.clone_from(&targets);
        Ok(targets)
    }

    /// The address for a try to connect; tries go through all of them.
    pub(crate) fn target(&self, attempt: u32) -> Option<Target> {
        let known = self.known();
        let index = attempt as usize % known.targets.len().max(1);
        known.targets.get(index).cloned()
    }

    /// What the server has said of the export last.
    pub(crate) fn info(&self) -> Option<ExportInfo> {
        self.known().info
    }

    /// Takes what a server says of its export, if it can be this disk.
    ///
    /// # Errors
    /// Why it cannot.
    pub(crate) fn admit(&self, info: ExportInfo) -> Result<(), Refusal> {
        if self.options.write_through && !info.has(export::SEND_FUA) {
            return Err(Refusal::NoForceUnitAccess);
        }
        if info.bytes == 0 {
            return Err(Refusal::Nothing);
        }
        let mut known = self.known();
        if known.info.is_some_and(|before| info.bytes < before.bytes) {
            known.shrunk = Some(info);
            return Err(Refusal::Shrunk);
        }
        known.info = Some(info);
        Ok(())
    }

    /// Takes the export as it is, though it has become smaller.
    pub(crate) fn accept(&self) {
        let mut known = self.known();
        if let Some(info) = known.shrunk.take() {
            known.info = Some(info);
        }
    }

    /// Whether all cores use one connection: several see the same only if the server says so.
    pub(crate) fn shares_connection(&self, info: &ExportInfo) -> bool {
        self.options.cores > 1 && !info.has(export::CAN_MULTI_CONN)
    }

    /// What a disk of this export can do.
    pub(crate) fn properties(&self, info: &ExportInfo) -> DiskProperties {
        let sizes = info.block_sizes;
        let cached = info.has(export::SEND_FLUSH) && !self.options.write_through;
        let preferred = PreferredSizes { write: sizes.preferred, discard: sizes.preferred, optimal_write: 0 };
        DiskProperties::new(info.bytes / u64::from(sizes.minimum) * u64::from(sizes.minimum))
            .with_offset_align(sizes.minimum)
            .with_volatile_cache(cached)
            .with_read_only(self.options.read_only || info.has(export::READ_ONLY))
            .with_discarded(Discarded::Anything)
            .with_write_zeroes_deallocates(info.has(export::SEND_WRITE_ZEROES))
            .with_preferred(preferred)
    }

    /// A core begins to wait for a connection.
    pub(crate) fn begin_to_wait(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
    }

    /// A core waits no longer, because it has a connection or is closed.
    pub(crate) fn end_to_wait(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether a core has no connection.
    pub(crate) fn is_away(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) != 0
    }

    /// A core has a connection. `gone_for` says how long it had none, unless this is the first.
    pub(crate) fn note_connected(&self, target: &Target, gone_for: Option<Duration>) {
        self.connected.fetch_add(1, Ordering::Relaxed);
        self.known().fault = None;
        if self.reported_gone.swap(false, Ordering::Relaxed) {
            let seconds = gone_for.unwrap_or_default().as_secs_f32();
            tracing::warn!(server = %self.address, address = %target, seconds, "an NBD server is back");
        }
    }

    /// A core has lost its connection.
    pub(crate) fn note_lost(&self, reason: &str) {
        self.connected.fetch_sub(1, Ordering::Relaxed);
        self.lost_connections.fetch_add(1, Ordering::Relaxed);
        self.note_fault(reason);
        if !self.reported_gone.swap(true, Ordering::Relaxed) {
            tracing::warn!(server = %self.address, reason, "an NBD server is gone: connecting again");
        }
    }

    /// A core has closed a connection that was good.
    pub(crate) fn note_closed(&self) {
        self.connected.fetch_sub(1, Ordering::Relaxed);
    }

    /// What was written may be lost.
    pub(crate) fn note_data_lost(&self) {
        let server = &self.address;
        tracing::error!(%server, "an NBD server has gone with writes that it had acknowledged and not flushed");
    }

    /// A try has failed.
    pub(crate) fn note_fault(&self, fault: &str) {
        self.known().fault = Some(fault.to_owned());
    }

    /// Why there is no connection, if a core waits for one.
    pub(crate) fn fault(&self) -> Option<String> {
        if !self.is_away() {
            return None;
        }
        let fault = self.known().fault.clone();
        Some(fault.unwrap_or_else(|| "it is being connected".to_owned()))
    }

    pub(crate) fn details(&self) -> Vec<Detail> {
        let known = self.known();
        let mut details = Vec::new();
        if let Some(info) = &known.info {
            details.push(Detail::new("export", describe(info)));
        }
        let (connected, waiting) =
            (self.connected.load(Ordering::Relaxed), self.waiting.load(Ordering::Relaxed));
        let lost = self.lost_connections.load(Ordering::Relaxed);
        let wait = if waiting == 0 { String::new() } else { format!(", {waiting} waited for") };
        details.push(Detail::new("connections", format!("{connected} up{wait}, {lost} lost so far")));
        if self.durability.is_lost() {
            details.push(Detail::new("durability", "writes that were not flushed may be lost"));
        }
        details
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What an export can do, for people.
fn describe(info: &ExportInfo) -> String {
    let names = [
        (export::READ_ONLY, "read-only"),
        (export::SEND_FLUSH, "flush"),
        (export::SEND_FUA, "fua"),
        (export::SEND_TRIM, "trim"),
        (export::SEND_WRITE_ZEROES, "write-zeroes"),
        (export::CAN_MULTI_CONN, "multi-conn"),
    ];
    let mut words: Vec<&str> =
        names.iter().filter(|(flag, _)| info.has(*flag)).map(|(_, name)| *name).collect();
    if info.structured {
        words.push("structured replies");
    }
    let sizes = info.block_sizes;
    let maximum = sizes.maximum;
    format!(
        "{}; blocks of {} to {maximum} bytes, {} preferred",
        words.join(", "),
        sizes.minimum,
        sizes.preferred
    )
}
