//! A core's own disk of each namespace, what the disk has to do, and the core's table of namespaces.

use std::sync::Arc;
use std::time::Duration;

use ringfab_block::Disk;
use ringfab_reactor::Time;

use crate::model::disk_failures::{self, DiskFailure};
use crate::model::{IoRecord, Namespace, Subsystem};
use crate::nvm::NamespaceView;

/// A core's own disk of a namespace.
#[derive(Debug)]
pub(crate) struct OpenDisk {
    pub(crate) disk: Disk,
    pub(crate) subsystem: Arc<Subsystem>,
    /// What it has to do, and whether it does it.
    pub(crate) progress: DiskProgress,
    /// Its position stays taken as long as the disk is open.
    pub(crate) namespace: Arc<Namespace>,
    /// What this core has done with it.
    pub(crate) io: Arc<IoRecord>,
    /// It serves what has begun, and is closed then.
    pub(crate) closing: bool,
}

impl OpenDisk {
    /// Its namespace, as it is now.
    pub(crate) fn view(&self) -> NamespaceView {
        NamespaceView::of(&self.namespace)
    }

    /// Identifier of its namespace.
    pub(crate) fn nsid(&self) -> u32 {
        self.namespace.nsid()
    }

    /// What stands behind it, for people.
    pub(crate) fn source(&self) -> String {
        self.namespace.source()
    }

    /// Whether it can be read and written.
    pub(crate) fn is_ready(&self) -> bool {
        self.namespace.is_ready()
    }

    /// Whether what was written may be lost, so that nothing may be said to be safe.
    pub(crate) fn is_lost(&self) -> bool {
        self.namespace.is_lost()
    }

    /// It has failed.
    pub(crate) fn note_failure(&self, now: Time, failure: DiskFailure) {
        disk_failures::note(&self.namespace, self.subsystem.nqn(), now, failure);
    }
}

/// The active namespaces of a core that all hosts of their subsystem see: by subsystem, and then by identifier minus
/// one. A queue has those of its own that only some hosts see, so the others cost nothing.
#[derive(Debug, Default)]
pub(crate) struct Namespaces {
    active: Vec<Vec<Option<Arc<Namespace>>>>,
    /// Disks of removed namespaces that are still to be closed.
    pub(crate) closing: Vec<usize>,
}

impl Namespaces {
    /// The namespace with an identifier, if it is active.
    #[inline]
    pub(crate) fn find(&self, subsystem: &Subsystem, nsid: u32) -> Option<&Arc<Namespace>> {
        let index = usize::try_from(nsid.checked_sub(1)?).ok()?;
        self.active.get(subsystem.index())?.get(index)?.as_ref()
    }

    pub(crate) fn insert(&mut self, subsystem: &Subsystem, namespace: &Arc<Namespace>) {
        let subsystem = subsystem.index();
        let index = namespace.nsid() as usize - 1;
        if self.active.len() <= subsystem {
            self.active.resize(subsystem + 1, Vec::new());
        }
        let table = &mut self.active[subsystem];
        if table.len() <= index {
            table.resize(index + 1, None);
        }
        table[index] = Some(Arc::clone(namespace));
    }

    /// Takes out a namespace, unless another one has its identifier by now.
    pub(crate) fn remove(&mut self, subsystem: &Subsystem, namespace: &Arc<Namespace>) {
        let table = self.active.get_mut(subsystem.index());
        let entry = table.and_then(|table| table.get_mut(namespace.nsid() as usize - 1));
        if let Some(entry) = entry
            && entry.as_ref().is_some_and(|own| Arc::ptr_eq(own, namespace))
        {
            *entry = None;
        }
    }
}

/// The disks of a core, by position.
pub(crate) type Disks = Vec<Option<OpenDisk>>;

/// Enters an open disk in its place.
pub(crate) fn put(disks: &mut Disks, subsystem: &Arc<Subsystem>, namespace: &Arc<Namespace>, disk: Disk) {
    let index = namespace.index();
    if disks.len() <= index {
        disks.resize_with(index + 1, || None);
    }
    let progress = DiskProgress::default();
    let (subsystem, namespace) = (Arc::clone(subsystem), Arc::clone(namespace));
    let io = namespace.new_record();
    disks[index] = Some(OpenDisk { disk, subsystem, progress, namespace, io, closing: false });
}

/// What a disk has to do, and whether it does it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DiskProgress {
    /// Operations that have begun and that have ended; both wrap around.
    begun: u32,
    ended: u32,
    /// How many had ended at the last check.
    ended_then: u32,
    /// Since when it has ended nothing; unknown while it is idle or works.
    pub(crate) silent_since: Option<Time>,
    /// Whether it was reported to be silent.
    pub(crate) reported: bool,
    /// One of the commands that it works on, and how many there are, when it was last found silent.
    pub(crate) works_on: (&'static str, usize),
    pub(crate) hung: bool,
}

impl DiskProgress {
    /// An operation has begun.
    #[inline]
    pub(crate) fn begin(&mut self) {
        self.begun = self.begun.wrapping_add(1);
    }

    /// One has ended. Returns whether the disk was silent for so long that it was reported.
    #[inline]
    pub(crate) fn end(&mut self) -> bool {
        self.ended = self.ended.wrapping_add(1);
        self.reported
    }

    /// Whether commands for it have to wait.
    pub(crate) fn is_hung(&self) -> bool {
        self.hung
    }

    /// Checks whether something has ended since the last check. Returns for how long nothing has.
    pub(crate) fn check(&mut self, now: Time) -> Duration {
        if self.begun == self.ended || self.ended != self.ended_then {
            self.ended_then = self.ended;
            self.silent_since = None;
            return Duration::ZERO;
        }
        now.since(*self.silent_since.get_or_insert(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::default() + Duration::from_secs(seconds)
    }

    #[test]
    fn a_disk_is_silent_from_the_first_check_that_finds_it_at_work_without_an_end() {
        let mut progress = DiskProgress::default();
        assert_eq!(progress.check(at(1)), Duration::ZERO, "idle");
        progress.begin();
        progress.begin();
        assert_eq!(progress.check(at(2)), Duration::ZERO, "it has just begun");
        assert_eq!(progress.check(at(8)), Duration::from_secs(6));
        progress.end();
        assert_eq!(progress.check(at(9)), Duration::ZERO, "one has ended");
        assert_eq!(progress.check(at(10)), Duration::ZERO);
        assert_eq!(progress.check(at(12)), Duration::from_secs(2));
        progress.end();
        assert_eq!(progress.check(at(20)), Duration::ZERO, "idle again");
    }
}
