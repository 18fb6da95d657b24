//! The disks of all namespaces, and their opening at the start.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use ringfab_block::OpenedFile;

use super::open::{OpenRequest, Refusal};
use super::{DiskHandle, device, disk_handle};
use crate::known_disks::{KnownDisk, KnownDisks};
use crate::model::disk_failures;
use crate::model::{Namespace, Served, Subsystem};
use crate::target::Target;

/// How long the start waits for disks that hang, all together. What is not open then is opened later.
const START_LIMIT: Duration = Duration::from_secs(3);
const OPEN_LIMIT: Duration = Duration::from_secs(1);
const OPEN_LIMIT_LATE: Duration = Duration::from_millis(100);

/// How often disks that are in use are tried again at the start.
const RETRY: Duration = Duration::from_millis(50);

/// How often it is looked whether the cores have let go of a disk: they do when its last command has ended.
const CLOSE_RETRY: Duration = Duration::from_millis(10);
const CLOSE_RETRY_MAX: Duration = Duration::from_secs(1);

/// The disks that are open, and those that are to be closed.
#[derive(Debug, Default)]
pub(crate) struct DiskHandles {
    /// By the position of the namespace.
    serving: Mutex<BTreeMap<usize, DiskHandle>>,
    closing: Mutex<ToClose>,
    removed: Mutex<Vec<Removed>>,
}

/// What is to be closed, and whether a thread sees to it.
#[derive(Debug, Default)]
struct ToClose {
    waiting: Vec<Closing>,
    attended: bool,
}

/// A disk that is closed when no core has it any more.
#[derive(Debug)]
struct Closing {
    disk_handle: DiskHandle,
    subsystem: Arc<Subsystem>,
    namespace: Weak<Namespace>,
    nsid: u32,
}

/// A namespace that was removed while commands ran.
pub(crate) type Removed = (Arc<Subsystem>, Weak<Namespace>);

/// What a core begins with.
#[derive(Clone, Debug, Default)]
pub(crate) struct Opened {
    /// Its own descriptors, by the position of the namespace.
    files: BTreeMap<usize, OpenedFile>,
    /// The positions of namespaces that cannot be opened for now.
    missing: BTreeSet<usize>,
}

impl Opened {
    /// The core's descriptor of a namespace's file.
    pub(crate) fn file(&self, namespace: &Namespace) -> Option<&OpenedFile> {
        self.files.get(&namespace.index())
    }

    /// Whether a namespace is left out for now.
    pub(crate) fn is_missing(&self, namespace: &Namespace) -> bool {
        self.missing.contains(&namespace.index())
    }
}

impl DiskHandles {
    /// Opens the disks of what is about to be served, for so many cores. What hangs or is missing is served later.
    pub(crate) fn open_at_start(self: &Arc<Self>, target: &Target, cores: usize) -> Vec<Opened> {
        let served = target.served();
        let mut opened = vec![Opened::default(); cores];
        let (mut waiting, mut found) = (Vec::new(), Vec::new());
        for (subsystem, namespace) in served.namespaces() {
            waiting.push((OpenRequest::of(namespace, subsystem.nqn(), cores), subsystem, namespace));
        }
        let begun = Instant::now();
        while !waiting.is_empty() {
            waiting.retain(|(open_request, subsystem, namespace)| {
                let limit = if begun.elapsed() < START_LIMIT { OPEN_LIMIT } else { OPEN_LIMIT_LATE };
                let outcome = open_within(&served, open_request.as_ref(), namespace, limit);
                let outcome = outcome.and_then(|disk_handle| {
                    Ok((
                        known_as(target.known_disks(), subsystem.nqn(), namespace, disk_handle.as_ref())?,
                        disk_handle,
                    ))
                });
                match outcome {
                    Ok((known, disk_handle)) => {
                        found.push(known);
                        let files = disk_handle.as_ref().map_or_else(Vec::new, DiskHandle::files);
                        for (core, file) in files.into_iter().enumerate() {
                            opened[core].files.insert(namespace.index(), file);
                        }
                        if let Some(disk_handle) = disk_handle {
                            self.serve(subsystem.subsystem(), namespace, disk_handle);
                        }
                    }
                    Err(Refusal::Busy { holder, .. }) if holder.may_let_go(begun.elapsed()) => return true,
                    Err(refusal) => {
                        let (subsystem, nsid, error) =
                            (subsystem.nqn(), namespace.nsid(), refusal.to_string());
                        tracing::error!(subsystem, nsid, error, "namespace not ready");
                        match refusal {
                            Refusal::OtherDisk(_) => namespace.hold_back(error),
                            _ => drop(namespace.set_not_ready(error)),
                        }
                        for core in &mut opened {
                            core.missing.insert(namespace.index());
                        }
                    }
                }
                false
            });
            if !waiting.is_empty() {
                std::thread::sleep(RETRY);
            }
        }
        target.known_disks().note(found);
        opened
    }

    /// The cores serve this disk from now on. What they had before is closed when they have let go of it.
    pub(crate) fn serve(
        self: &Arc<Self>,
        subsystem: &Arc<Subsystem>,
        namespace: &Arc<Namespace>,
        disk_handle: DiskHandle,
    ) {
        let unused = disk_handle.bytes() & u64::from(namespace.block_bytes() - 1);
        if unused != 0 {
            let (subsystem, nsid) = (subsystem.nqn(), namespace.nsid());
            tracing::warn!(
                subsystem,
                nsid,
                unused_bytes = unused,
                "the end of a disk is not used: it is not a whole block"
            );
        }
        if let Some(opened) = disk_handle.first_file() {
            namespace.opened_disk().set_file(&opened.file);
        }
        let old = self.serving().insert(namespace.index(), disk_handle);
        if let Some(disk_handle) = old {
            self.close_later(subsystem, namespace, disk_handle);
        }
    }

    /// What is done with a disk that is served, if it is.
    pub(crate) fn with<R>(&self, namespace: &Namespace, act: impl FnOnce(&DiskHandle) -> R) -> Option<R> {
        self.serving().get(&namespace.index()).map(act)
    }

    /// The disk of a namespace is not served any more.
    pub(crate) fn stop(self: &Arc<Self>, subsystem: &Arc<Subsystem>, namespace: &Arc<Namespace>) {
        let disk_handle = self.serving().remove(&namespace.index());
        if let Some(disk_handle) = disk_handle {
            self.close_later(subsystem, namespace, disk_handle);
        }
    }

    /// Closes a disk when no core has it any more.
    pub(crate) fn close_later(
        self: &Arc<Self>,
        subsystem: &Arc<Subsystem>,
        namespace: &Arc<Namespace>,
        disk_handle: DiskHandle,
    ) {
        let disk_lock = disk_handle.disk_lock();
        let is_served = self.serving().values().any(|one| Arc::ptr_eq(&one.disk_lock(), &disk_lock));
        if !is_served {
            disk_lock.in_use.end();
        }
        let closing = Closing {
            disk_handle,
            subsystem: Arc::clone(subsystem),
            namespace: Arc::downgrade(namespace),
            nsid: namespace.nsid(),
        };
        let mut to_close = lock(&self.closing);
        to_close.waiting.push(closing);
        if !std::mem::replace(&mut to_close.attended, true) {
            let this = Arc::clone(self);
            let attend = std::thread::Builder::new().name("closing".to_owned()).spawn(move || this.attend());
            to_close.attended = attend.is_ok();
        }
    }

    /// Sees to it that what is to be closed is, until nothing is left.
    fn attend(&self) {
        let mut pause = CLOSE_RETRY;
        loop {
            self.close_idle();
            let mut to_close = lock(&self.closing);
            if to_close.waiting.is_empty() {
                to_close.attended = false;
                return;
            }
            drop(to_close);
            std::thread::sleep(pause);
            pause = (2 * pause).min(CLOSE_RETRY_MAX);
        }
    }

    /// Closes the disks that no core has any more. If the system says then that data was lost, the namespace knows.
    fn close_idle(&self) {
        let idle =
            lock(&self.closing).waiting.extract_if(.., |one| !one.disk_handle.in_use()).collect::<Vec<_>>();
        for Closing { disk_handle, subsystem, namespace, nsid } in idle {
            let Err(error) = disk_handle.close() else { continue };
            tracing::error!(subsystem = subsystem.nqn(), nsid, error, "a disk was not closed in order");
            if let Some(namespace) = namespace.upgrade() {
                disk_failures::mark_lost(&namespace, subsystem.nqn(), &error);
            }
        }
    }

    /// A namespace is on no list any more, but its commands may run.
    pub(crate) fn note_removed(&self, subsystem: &Arc<Subsystem>, namespace: &Arc<Namespace>) {
        lock(&self.removed).push((Arc::clone(subsystem), Arc::downgrade(namespace)));
    }

    /// Those whose commands still run.
    pub(crate) fn removed(&self) -> Vec<(Arc<Subsystem>, Arc<Namespace>)> {
        let mut removed = lock(&self.removed);
        removed.retain(|(_, namespace)| namespace.strong_count() != 0);
        let living = removed
            .iter()
            .filter_map(|(subsystem, namespace)| Some((Arc::clone(subsystem), namespace.upgrade()?)));
        living.collect()
    }

    fn serving(&self) -> MutexGuard<'_, BTreeMap<usize, DiskHandle>> {
        lock(&self.serving)
    }
}

/// Opens a namespace's disk, if it has one that is to be opened before the cores have it.
fn open_within(
    served: &Served,
    open_request: Option<&OpenRequest>,
    namespace: &Namespace,
    limit: Duration,
) -> Result<Option<DiskHandle>, Refusal> {
    match (open_request, namespace.backing().driver()) {
        (Some(open_request), _) => open_request.open_within(limit).map(Some),
        (None, Some(driver)) => {
            let seen = device::look(driver, limit).map_err(Refusal::Device)?;
            device::identify(namespace, seen.identity, device::all(served)).map_err(Refusal::Device)?;
            Ok(None)
        }
        (None, None) => Ok(None),
    }
}

/// What hosts find as a namespace. A host that was there before the start must not take it for another disk.
fn known_as(
    known_disks: &KnownDisks,
    nqn: &str,
    namespace: &Namespace,
    disk_handle: Option<&DiskHandle>,
) -> Result<KnownDisk, Refusal> {
    let now = disk_handle::as_known(nqn, namespace, disk_handle);
    known_disks.check(&now).map_err(|other| Refusal::OtherDisk(other.to_be_confirmed()))?;
    Ok(now)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
