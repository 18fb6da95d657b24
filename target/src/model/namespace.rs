//! A namespace: what the data path and the admin commands both need of it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringfab_block::Backing;
use ringfab_reactor::clock;
use uuid::Uuid;

use super::readiness::Readiness;
use crate::model::Epoch;
use crate::model::disk_failure::FailureLog;
use crate::model::io_record::{IoRecord, IoSum};
use crate::model::opened_disk::OpenedDisk;

/// Positions in tables of the cores: of namespaces, or of subsystems. One is used again once nobody has its namespace
/// or subsystem any more: no core's disk, no table.
#[derive(Clone, Debug, Default)]
pub struct Indexes(Arc<Mutex<FreeIndexes>>);

#[derive(Debug, Default)]
struct FreeIndexes {
    free: Vec<usize>,
    next: usize,
}

/// One position, until it is dropped.
#[derive(Debug)]
pub struct Index {
    value: usize,
    from: Indexes,
}

impl Indexes {
    /// A position that nobody has.
    pub fn take(&self) -> Index {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let value = all.free.pop().unwrap_or_else(|| {
            all.next += 1;
            all.next - 1
        });
        Index { value, from: self.clone() }
    }
}

impl Index {
    /// The position.
    pub fn value(&self) -> usize {
        self.value
    }
}

impl Drop for Index {
    fn drop(&mut self) {
        self.from.0.lock().unwrap_or_else(PoisonError::into_inner).free.push(self.value);
    }
}

/// A namespace of a subsystem. Its size and readiness are atomics, because disks are opened by the cores.
#[derive(Debug)]
pub struct Namespace {
    nsid: u32,
    index: Index,
    block_bytes: u32,
    backing: Backing,
    read_only: bool,
    nguid: [u8; 16],
    uuid: Uuid,
    readiness: Readiness,
    volatile_cache: AtomicBool,
    /// What was written may be lost, and the system says so once only: from then on no Flush may succeed.
    lost: AtomicBool,
    shared: bool,
    media_errors: AtomicU64,
    condition: Mutex<Condition>,
    opened_disk: OpenedDisk,
    /// What each core does with it.
    records: Mutex<Vec<Arc<IoRecord>>>,
    /// I/O commands for it that were refused before anything of them was done, on any core.
    refused: AtomicU64,
}

/// What is to be told of a namespace's disk beside its size. The data path does not read it.
#[derive(Debug, Default)]
struct Condition {
    /// Why it is not ready.
    not_ready: Option<String>,
    /// Why an administrator has to have it opened anew.
    needs_reopen: Option<String>,
    /// What has become of its name while it is served.
    detached: Option<String>,
    /// Size in bytes of the file or device.
    bytes: u64,
    /// Bytes that its file takes on its file system, if it is one.
    used_bytes: Option<u64>,
    failures: FailureLog,
    /// Cores for which it does not answer, and those among them whose commands wait.
    silent_cores: usize,
    hung_cores: usize,
}

/// How a namespace is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// `ready`, `not ready`, `needs reopen`, `detached` (served, but its name is gone or leads elsewhere),
    /// `unreachable` or `full`.
    pub state: &'static str,
    /// Why, when it is not simply ready.
    pub reason: Option<String>,
    /// Bytes behind its last whole block, which are not used.
    pub unused_bytes: u64,
}

/// Why a namespace is full.
const NO_SPACE: &str = "a write has found no space beneath it in the last 5 minutes: give the pool or file system of \
                        its disk more";

/// What a namespace is made from.
#[derive(Debug)]
pub struct NamespaceParameters {
    /// Namespace identifier, neither zero nor the broadcast value.
    pub nsid: u32,
    /// Position in the cores' tables of disks.
    pub index: Index,
    /// Which epoch it is for commands: a new one begins when it is ready or not.
    pub epoch: Arc<Epoch>,
    /// Bytes of a logical block, a power of two.
    pub block_bytes: u32,
    /// What stands behind it.
    pub backing: Backing,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether others may serve the same disk.
    pub shared: bool,
    /// Namespace Globally Unique Identifier, not zero.
    pub nguid: [u8; 16],
    /// Universally unique identifier, not zero.
    pub uuid: Uuid,
}

impl Namespace {
    /// A namespace that is not ready: a core reports its size with [`Namespace::set_ready`].
    pub fn new(parameters: NamespaceParameters) -> Self {
        let NamespaceParameters { nsid, index, epoch, block_bytes, backing, read_only, shared, nguid, uuid } =
            parameters;
        assert!(nsid != 0 && nsid != u32::MAX, "not a namespace identifier");
        assert!(block_bytes.is_power_of_two(), "a block is a power of two of bytes");
        Self {
            nsid,
            index,
            block_bytes,
            backing,
            read_only,
            nguid,
            uuid,
            readiness: Readiness::new(epoch),
            volatile_cache: AtomicBool::new(false),
            lost: AtomicBool::new(false),
            shared,
            media_errors: AtomicU64::new(0),
            condition: Mutex::default(),
            opened_disk: OpenedDisk::default(),
            records: Mutex::default(),
            refused: AtomicU64::new(0),
        }
    }

    /// Namespace identifier.
    pub fn nsid(&self) -> u32 {
        self.nsid
    }

    /// Position in the cores' tables of disks.
    pub fn index(&self) -> usize {
        self.index.value
    }

    /// Bytes of a logical block.
    pub fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    /// Base two logarithm of the bytes of a logical block.
    pub fn block_shift(&self) -> u32 {
        self.block_bytes.trailing_zeros()
    }

    /// Size in logical blocks; zero until the namespace was ready for the first time.
    pub fn blocks(&self) -> u64 {
        self.readiness.blocks()
    }

    /// What stands behind it.
    pub fn backing(&self) -> &Backing {
        &self.backing
    }

    /// What the cores have of it.
    pub(crate) fn opened_disk(&self) -> &OpenedDisk {
        &self.opened_disk
    }

    /// What stands behind it, for people: a file or device, `memory` or `null`.
    pub fn source(&self) -> String {
        fn of(backing: &Backing) -> String {
            match backing {
                Backing::File { path, .. } => path.to_string_lossy().into_owned(),
                Backing::Memory(_) => "memory".to_owned(),
                Backing::Null { .. } => "null".to_owned(),
                Backing::Device(driver) => driver.name(),
                Backing::Faulty { inner, .. } | Backing::Paced { inner, .. } => of(inner),
            }
        }
        of(&self.backing)
    }

    /// Whether writes are refused.
    pub fn read_only(&self) -> bool {
        self.read_only
    }

    /// Whether others may serve the same disk.
    pub fn shared(&self) -> bool {
        self.shared
    }

    /// Namespace Globally Unique Identifier.
    pub fn nguid(&self) -> &[u8; 16] {
        &self.nguid
    }

    /// Universally unique identifier.
    pub fn uuid(&self) -> Uuid {
        self.uuid
    }

    /// Whether it can be read and written. While it cannot, its commands end with Namespace Not Ready.
    pub fn is_ready(&self) -> bool {
        self.readiness.is_ready()
    }

    /// Whether it is ready, and its size in logical blocks. For every command: no lock.
    #[inline]
    pub(crate) fn readiness(&self) -> (bool, u64) {
        self.readiness.get()
    }

    /// Whether completed writes may be lost in a crash until a Flush.
    pub fn volatile_cache(&self) -> bool {
        self.volatile_cache.load(Ordering::Relaxed)
    }

    /// Its backing was opened, or has another size now; `bytes` beyond the last whole block are not used.
    /// Returns whether hosts see a difference; if so, tell them with [`crate::Target::namespace_changed`].
    pub fn set_ready(&self, bytes: u64, volatile_cache: bool) -> bool {
        let blocks = bytes >> self.block_shift();
        let old_cache = self.volatile_cache.swap(volatile_cache, Ordering::Relaxed);
        let mut condition = self.condition();
        (condition.bytes, condition.not_ready) = (bytes, None);
        drop(condition);
        self.readiness.set_ready(blocks) || old_cache != volatile_cache
    }

    /// Its backing is missing or has gone. Returns whether that is new: several cores may find it.
    pub fn set_not_ready(&self, why: impl Into<String>) -> bool {
        let known = self.condition().not_ready.replace(why.into()).is_some();
        self.readiness.set_not_ready() || !known
    }

    /// What was written to it may be lost. No Flush, and no write that is to be durable, succeeds until
    /// [`Namespace::reopened`]. Returns whether this is new.
    pub(crate) fn mark_lost(&self, why: impl FnOnce() -> String) -> bool {
        let mut condition = self.condition();
        let new = !self.lost.swap(true, Ordering::AcqRel);
        if new {
            condition.needs_reopen.get_or_insert_with(why);
        }
        new
    }

    /// Whether what was written may be lost.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// It is not what it was: nothing of it is read or written until [`Namespace::reopened`]. Returns whether this is
    /// new.
    pub(crate) fn fail_closed(&self, why: impl FnOnce() -> String) -> bool {
        let mut condition = self.condition();
        let new = self.readiness.set_not_ready();
        self.lost.store(true, Ordering::Release);
        if new {
            condition.needs_reopen = Some(why());
        }
        new
    }

    /// Hosts would take what it has for something else. It is not ready until [`Namespace::reopened`].
    pub(crate) fn hold_back(&self, why: String) {
        let mut condition = self.condition();
        self.readiness.set_not_ready();
        condition.needs_reopen = Some(why);
    }

    /// Why an administrator has to have it opened anew.
    pub fn needs_reopen(&self) -> Option<String> {
        self.condition().needs_reopen.clone()
    }

    /// It was opened anew on all cores.
    pub(crate) fn reopened(&self) {
        let mut condition = self.condition();
        (condition.needs_reopen, condition.detached) = (None, None);
        self.lost.store(false, Ordering::Release);
    }

    /// What has become of its name. Returns whether that is new.
    pub(crate) fn set_detached(&self, what: Option<String>) -> bool {
        let mut condition = self.condition();
        let new = condition.detached != what;
        condition.detached = what;
        new
    }

    /// Size in bytes of its file or device when it was last looked at, with what is behind the last whole block.
    pub(crate) fn disk_bytes(&self) -> u64 {
        self.condition().bytes
    }

    /// What its file takes on its file system, as it was last seen. What is no file takes all that it can hold.
    pub(crate) fn set_used_bytes(&self, bytes: Option<u64>) {
        self.condition().used_bytes = bytes;
    }

    /// Logical blocks in use, as far as is known.
    pub fn used_blocks(&self) -> u64 {
        let (blocks, used) = (self.blocks(), self.condition().used_bytes);
        used.map_or(blocks, |bytes| blocks.min(bytes.div_ceil(u64::from(self.block_bytes))))
    }

    /// How it is doing.
    pub fn health(&self) -> Health {
        let condition = self.condition();
        let reason = [&condition.needs_reopen, &condition.not_ready, &condition.detached];
        let (state, reason) = match reason {
            [Some(why), ..] => ("needs reopen", Some(why.clone())),
            [_, why, _] if !self.is_ready() => ("not ready", why.clone()),
            [.., Some(what)] => ("detached", Some(what.clone())),
            _ => match self.backing.driver().and_then(|driver| driver.fault()) {
                Some(fault) => ("unreachable", Some(fault)),
                None if condition.failures.found_no_space(clock()) => ("full", Some(NO_SPACE.to_owned())),
                None => ("ready", None),
            },
        };
        let unused_bytes = condition.bytes & u64::from(self.block_bytes - 1);
        Health { state, reason, unused_bytes }
    }

    /// Errors of its disk since it is served, as Media and Data Integrity Errors of a health log counts them.
    pub fn media_errors(&self) -> u64 {
        self.media_errors.load(Ordering::Relaxed)
    }

    pub(crate) fn count_media_error(&self) {
        self.media_errors.fetch_add(1, Ordering::Relaxed);
    }

    /// A record of its own for a core that has opened its disk.
    pub(crate) fn new_record(&self) -> Arc<IoRecord> {
        let record = Arc::new(IoRecord::default());
        self.records().push(Arc::clone(&record));
        record
    }

    /// An I/O command for it is refused, which its disk never sees.
    pub(crate) fn note_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// What all cores have done with it.
    pub fn io(&self) -> IoSum {
        let mut sum = IoSum::default();
        let refused = self.refused.load(Ordering::Relaxed);
        sum.counters.commands_other = refused;
        sum.counters.commands_failed = refused;
        self.records().iter().for_each(|record| sum.add(record));
        sum
    }

    fn records(&self) -> MutexGuard<'_, Vec<Arc<IoRecord>>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A core finds that its disk does not answer, or that commands for it have to wait (`hung`). Returns whether it is
    /// the first core.
    pub(crate) fn note_silent(&self, hung: bool) -> bool {
        let mut condition = self.condition();
        let cores = if hung { &mut condition.hung_cores } else { &mut condition.silent_cores };
        *cores += 1;
        *cores == 1
    }

    /// Takes back what a core has noted with [`Namespace::note_silent`]. Returns whether it is the last core.
    pub(crate) fn note_answers(&self, silent: bool, hung: bool) -> bool {
        let mut condition = self.condition();
        condition.silent_cores -= usize::from(silent);
        condition.hung_cores -= usize::from(hung);
        condition.silent_cores == 0
    }

    /// The failures that were told of lately, to tell of the next.
    pub(crate) fn with_failures<R>(&self, act: impl FnOnce(&mut FailureLog) -> R) -> R {
        act(&mut self.condition().failures)
    }

    fn condition(&self) -> MutexGuard<'_, Condition> {
        self.condition.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn namespace() -> Namespace {
        Namespace::new(NamespaceParameters {
            nsid: 1,
            index: Indexes::default().take(),
            epoch: Arc::default(),
            block_bytes: 4096,
            backing: Backing::Null { bytes: 1 << 20 },
            read_only: false,
            shared: false,
            nguid: [1; 16],
            uuid: Uuid::from_bytes([2; 16]),
        })
    }

    #[test]
    fn a_namespace_is_not_ready_until_its_backing_was_opened() {
        let namespace = namespace();
        assert!(!namespace.is_ready());
        assert!(namespace.set_ready((1 << 20) + 4095, false));
        assert!(namespace.is_ready());
        assert_eq!(namespace.blocks(), 256);
    }

    #[test]
    fn a_position_is_used_again_when_it_is_free() {
        let indexes = Indexes::default();
        let (first, second) = (indexes.take(), indexes.take());
        assert_eq!((first.value, second.value), (0, 1));
        drop(first);
        let (again, third) = (indexes.take(), indexes.take());
        assert_eq!((again.value, third.value), (0, 2));
        drop(second);
    }

    #[test]
    fn a_second_core_that_reports_the_same_changes_nothing() {
        let namespace = namespace();
        assert!(namespace.set_ready(8192, true));
        assert!(!namespace.set_ready(8192, true));
        assert!(namespace.set_ready(4096, true));
        assert!(namespace.set_not_ready("gone"));
        assert!(!namespace.set_not_ready("gone"));
    }

    #[test]
    fn what_was_lost_stays_lost_until_it_is_opened_anew() {
        let namespace = namespace();
        namespace.set_ready(8192 + 511, true);
        assert_eq!(namespace.health(), Health { state: "ready", reason: None, unused_bytes: 511 });
        assert!(namespace.mark_lost(|| "first".to_owned()));
        assert!(!namespace.mark_lost(|| "second".to_owned()));
        namespace.set_ready(8192, true);
        assert!(namespace.is_lost() && namespace.is_ready());
        let health = namespace.health();
        assert_eq!((health.state, health.reason.as_deref()), ("needs reopen", Some("first")));
        namespace.reopened();
        assert!(!namespace.is_lost());
        assert_eq!(namespace.health().state, "ready");
        assert!(namespace.fail_closed(|| "shorter".to_owned()) && !namespace.is_ready());
        assert_eq!(namespace.needs_reopen().as_deref(), Some("shorter"));
    }

    #[test]
    fn a_name_that_leads_elsewhere_is_told_of_once() {
        let namespace = namespace();
        namespace.set_ready(8192, true);
        assert!(namespace.set_detached(Some("gone".to_owned())));
        assert!(!namespace.set_detached(Some("gone".to_owned())));
        assert_eq!(namespace.health().state, "detached");
        assert!(namespace.set_detached(None));
    }
}
