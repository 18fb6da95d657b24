//! A core's own disk of each namespace, what the disk has to do, and the core's table of namespaces. A command finds
//! its namespace there when it arrives, and its disk by a position that does not change while the command runs.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use ringfab_block::{BlockError, Disk, DiskTokens, OpenedFile, Shared};
use ringfab_reactor::{Reactor, Time};
use ringfab_spec::Status;

use super::owner;
use crate::config::OnLostDisk;
use crate::disks::disk_handles::Opened;
use crate::model::disk_failure::DiskFailure;
use crate::model::disk_failures;
use crate::model::{Difference, IoRecord, Namespace, Served, ShownNamespace, Subsystem, ana_status};
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
    closing: bool,
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

    /// The status of a command that failed because the disk is gone, where the access group of its namespace follows
    /// the disk: its host may try another path. What a removed device had in its cache may be lost, so it does not come
    /// back by itself. A driver knows what its disk has lost, and when it is back.
    pub(crate) fn status_when_gone(&self, served: &Served, error: BlockError) -> Option<Status> {
        let served = served.of(&self.subsystem)?;
        let group = served.groups().of(self.nsid());
        if served.groups().on_lost_disk(group) == OnLostDisk::Error {
            return None;
        }
        match error {
            BlockError::Removed if self.namespace.backing().driver().is_some() => {
                self.namespace.set_not_ready("its driver cannot reach it");
            }
            BlockError::Removed => {
                let why = "its device has been removed";
                disk_failures::fail_closed(&self.namespace, self.subsystem.nqn(), why);
            }
            BlockError::Shrunk => {}
            _ => return None,
        }
        served.lost_state(group).and_then(ana_status)
    }
}

/// The active namespaces of a core that all hosts of their subsystem see: by subsystem, and then by identifier minus
/// one. A queue has those of its own that only some hosts see, so the others cost nothing.
#[derive(Debug, Default)]
pub(crate) struct Namespaces {
    active: Vec<Vec<Option<Arc<Namespace>>>>,
}

impl Namespaces {
    /// Those of what is served.
    pub(crate) fn of(served: &Served) -> Self {
        let mut namespaces = Self::default();
        for (subsystem, namespace) in served.namespaces() {
            if subsystem.shows_to_all(namespace.nsid()) {
                namespaces.insert(subsystem.subsystem(), namespace);
            }
        }
        namespaces
    }

    /// Something else is served.
    pub(crate) fn change(&mut self, served: &Served, difference: &Difference) {
        for (subsystem, namespace) in &difference.closed {
            self.remove(subsystem, namespace);
        }
        for (subsystem, namespace) in &difference.opened {
            if served.of(subsystem).is_some_and(|one| one.shows_to_all(namespace.nsid())) {
                self.insert(subsystem, namespace);
            }
        }
        for ShownNamespace { after, nsid, .. } in &difference.shown {
            match after.namespace(*nsid) {
                Some(namespace) if after.shows_to_all(*nsid) => self.insert(after.subsystem(), namespace),
                Some(namespace) => self.remove(after.subsystem(), namespace),
                None => {}
            }
        }
    }

    /// The namespace with an identifier, if it is active.
    #[inline]
    pub(crate) fn find(&self, subsystem: &Subsystem, nsid: u32) -> Option<&Arc<Namespace>> {
        let index = usize::try_from(nsid.checked_sub(1)?).ok()?;
        self.active.get(subsystem.index())?.get(index)?.as_ref()
    }

    fn insert(&mut self, subsystem: &Subsystem, namespace: &Arc<Namespace>) {
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
    fn remove(&mut self, subsystem: &Subsystem, namespace: &Arc<Namespace>) {
        let table = self.active.get_mut(subsystem.index());
        let entry = table.and_then(|table| table.get_mut(namespace.nsid() as usize - 1));
        if let Some(entry) = entry
            && entry.as_ref().is_some_and(|own| Arc::ptr_eq(own, namespace))
        {
            *entry = None;
        }
    }
}

/// The disks of a core, by position: the index of the namespace. None where the backing could not be opened.
#[derive(Debug, Default)]
pub(crate) struct Disks {
    by_index: Vec<Option<OpenDisk>>,
    /// Those of removed namespaces that are still to be closed.
    closing: Vec<usize>,
    /// How many are hung. While there is none, no command looks further.
    hung: usize,
}

impl Disks {
    /// Opens the disks of all namespaces; files were opened before, unless the core is alone and does it itself. One
    /// that is missing is reported as not ready; the rest is served.
    pub(crate) fn open_all(
        served: &Served,
        opened: Option<&Opened>,
        reactor: &mut Reactor,
        shared: &Shared,
    ) -> Self {
        let mut disks = Self::default();
        for (subsystem, namespace) in served.namespaces() {
            if opened.is_some_and(|opened| opened.is_missing(namespace)) {
                continue;
            }
            let file = opened.and_then(|opened| opened.file(namespace));
            if let Err(error) = disks.open(subsystem.subsystem(), namespace, file, reactor, shared) {
                let (subsystem, nsid) = (subsystem.nqn(), namespace.nsid());
                if namespace.set_not_ready(error.as_str()) {
                    tracing::error!(subsystem, nsid, error, "namespace not ready");
                }
            }
        }
        disks
    }

    /// The disk at a position.
    #[inline(always)]
    pub(crate) fn get(&self, index: usize) -> Option<&OpenDisk> {
        self.by_index.get(index)?.as_ref()
    }

    /// The disk at a position.
    #[inline(always)]
    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut OpenDisk> {
        self.by_index.get_mut(index)?.as_mut()
    }

    /// The disk of a namespace. Another one may have its position.
    pub(crate) fn of(&mut self, namespace: &Arc<Namespace>) -> Option<&mut OpenDisk> {
        self.get_mut(namespace.index()).filter(|open| Arc::ptr_eq(&open.namespace, namespace))
    }

    /// All that are open.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &OpenDisk> {
        self.by_index.iter().flatten()
    }

    /// All that are open, with their positions.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut OpenDisk)> {
        self.by_index.iter_mut().enumerate().filter_map(|(index, open)| Some((index, open.as_mut()?)))
    }

    /// Positions below this one have disks, or had some.
    pub(crate) fn end(&self) -> usize {
        self.by_index.len()
    }

    /// Opens the disk of a namespace, or takes the file that was opened for it, and reports its size. One that is open
    /// stays: when it was missing at the start, it may have been missing for other cores only.
    pub(crate) fn open(
        &mut self,
        subsystem: &Arc<Subsystem>,
        namespace: &Arc<Namespace>,
        file: Option<&OpenedFile>,
        reactor: &mut Reactor,
        shared: &Shared,
    ) -> Result<(), String> {
        let index = namespace.index();
        if let Some(open) = self.get(index) {
            // A driver that could not reach it for a while can again.
            let properties = open.disk.properties();
            namespace.set_ready(properties.bytes, properties.volatile_cache);
            return Ok(());
        }
        let disk = open(namespace, file, reactor, shared)?;
        if self.by_index.len() <= index {
            self.by_index.resize_with(index + 1, || None);
        }
        self.by_index[index] = Some(OpenDisk {
            disk,
            subsystem: Arc::clone(subsystem),
            progress: DiskProgress::default(),
            namespace: Arc::clone(namespace),
            io: namespace.new_record(),
            closing: false,
        });
        Ok(())
    }

    /// Goes on with the same disk opened anew. What has begun ends on the old one.
    pub(crate) fn reopen(
        &mut self,
        subsystem: &Arc<Subsystem>,
        namespace: &Arc<Namespace>,
        file: Option<&OpenedFile>,
        reactor: &mut Reactor,
        shared: &Shared,
    ) -> Result<(), String> {
        let Some(open) = self.get_mut(namespace.index()) else {
            return self.open(subsystem, namespace, file, reactor, shared);
        };
        match file {
            Some(file) => open.disk.replace(file, reactor).map_err(|error| error.to_string())?,
            None => open.disk.reopen(reactor).map_err(|error| error.to_string())?,
        }
        namespace.opened_disk().set_properties(open.disk.properties());
        Ok(())
    }

    /// The disk of a namespace is to be closed when no command needs it any more.
    pub(crate) fn begin_to_close(&mut self, namespace: &Arc<Namespace>) {
        if let Some(open) = self.of(namespace) {
            open.closing = true;
            self.closing.push(namespace.index());
        }
    }

    /// Whether some are to be closed.
    #[inline]
    pub(crate) fn any_closing(&self) -> bool {
        !self.closing.is_empty()
    }

    /// Takes out the disks that are to be closed and that no command needs any more. Nobody waits for them.
    pub(crate) fn take_unused(&mut self, is_used: impl Fn(usize) -> bool) -> Vec<OpenDisk> {
        let Self { by_index, closing, hung } = self;
        let mut unused = Vec::new();
        closing.retain(|index| {
            let entry = &mut by_index[*index];
            let Some(open) = entry.take_if(|open| open.closing && !is_used(*index)) else {
                return entry.as_ref().is_some_and(|open| open.closing);
            };
            *hung -= usize::from(open.progress.hung);
            open.namespace.note_answers(open.progress.reported, open.progress.hung);
            unused.push(open);
            false
        });
        unused
    }

    /// Takes out all, at the end.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = OpenDisk> + use<> {
        mem::take(&mut self.by_index).into_iter().flatten()
    }

    /// Whether one of them is hung.
    #[inline]
    pub(crate) fn any_hung(&self) -> bool {
        self.hung != 0
    }

    /// Commands for a disk wait from now on. False if they did before.
    pub(crate) fn set_hung(&mut self, index: usize) -> bool {
        let news = self.get_mut(index).is_some_and(|open| !mem::replace(&mut open.progress.hung, true));
        self.hung += usize::from(news);
        news
    }

    /// A disk that was reported to be silent has ended something: commands for it need not wait.
    pub(crate) fn answers(&mut self, index: usize, now: Time) {
        let Some(open) = self.by_index[index].as_mut() else { return };
        let seconds = open.progress.silent_since.take().map_or(0, |since| now.since(since).as_secs());
        let silent = mem::replace(&mut open.progress.reported, false);
        let hung = mem::replace(&mut open.progress.hung, false);
        self.hung -= usize::from(hung);
        if open.namespace.note_answers(silent, hung) {
            let (subsystem, nsid) = (open.subsystem.nqn(), open.nsid());
            tracing::warn!(subsystem, nsid, seconds, "the disk answers again");
        }
    }
}

/// Opens a namespace's backing, or takes the file that was opened for it, and reports its size.
fn open(
    namespace: &Namespace,
    file: Option<&OpenedFile>,
    reactor: &mut Reactor,
    shared: &Shared,
) -> Result<Disk, String> {
    let number = u16::try_from(namespace.index()).map_err(|_| "this target has too many disks".to_owned())?;
    let tokens = DiskTokens::new(owner::DISK, number);
    let disk = match file {
        Some(file) => Disk::adopt(file, reactor, shared, tokens).map_err(|error| error.to_string()),
        None => Disk::open(namespace.backing(), reactor, shared, tokens).map_err(|error| error.to_string()),
    }?;
    let properties = disk.properties();
    if properties.offset_align > namespace.block_bytes() {
        disk.close(reactor);
        let needs = properties.offset_align;
        return Err(format!("the disk cannot do blocks as small as configured: it needs {needs} bytes"));
    }
    namespace.opened_disk().set_properties(properties);
    namespace.set_ready(properties.bytes, properties.volatile_cache);
    Ok(disk)
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
    hung: bool,
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
    use ringfab_memory::{ClassLayout, Pool};
    use ringfab_reactor::sim::World;

    use super::*;
    use crate::target::Target;
    use crate::target::tests::target;

    /// A core's disks: one that is null, and one in memory.
    fn opened() -> (Disks, [Arc<Namespace>; 2], Arc<Target>) {
        let world = World::new(1);
        let mut reactor = Reactor::simulated(&world, world.add_host("core"));
        let pool = Pool::new(&[ClassLayout { buffer_bytes: 8192, count: 2 }]).expect("a small pool");
        let shared = Shared::new(&pool).expect("a buffer");
        let (target, mut disks) = (target(), Disks::default());
        let subsystem = Arc::clone(target.served().subsystems()[0].subsystem());
        let namespaces = [0, 1].map(|index| Arc::clone(&target.namespaces()[index]));
        for namespace in &namespaces {
            disks.open(&subsystem, namespace, None, &mut reactor, &shared).expect("a disk");
            disks.open(&subsystem, namespace, None, &mut reactor, &shared).expect("it is open");
        }
        (disks, namespaces, target)
    }

    #[test]
    fn a_disk_is_closed_when_no_command_needs_it_and_no_other_one_with_it() {
        let (mut disks, [one, other], _target) = opened();
        assert!(disks.of(&one).is_some() && disks.of(&other).is_some());
        disks.begin_to_close(&one);
        disks.begin_to_close(&one);
        assert!(disks.take_unused(|_| true).is_empty());
        assert!(disks.get(one.index()).is_some(), "a command needs it still");
        let closed = disks.take_unused(|_| false);
        assert!(closed.len() == 1 && Arc::ptr_eq(&closed[0].namespace, &one));
        assert!(disks.get(one.index()).is_none() && disks.get_mut(other.index()).is_some());
        assert!(!disks.any_closing(), "what is closed is not looked for again");
        assert_eq!((disks.iter().count(), disks.end()), (1, 2));
        assert_eq!(disks.take_all().count(), 1);
    }

    #[test]
    fn a_disk_is_hung_until_it_answers_or_is_closed() {
        let (mut disks, [one, other], _target) = opened();
        for namespace in [&one, &other] {
            assert!(disks.set_hung(namespace.index()));
            assert!(!disks.set_hung(namespace.index()), "once");
            let _news = [false, true].map(|hung| namespace.note_silent(hung));
            disks.of(namespace).expect("a disk").progress.reported = true;
        }
        disks.answers(one.index(), at(1));
        assert!(disks.any_hung() && !disks.of(&one).expect("a disk").progress.is_hung());
        disks.begin_to_close(&other);
        assert_eq!(disks.take_unused(|_| false).len(), 1);
        assert!(!disks.any_hung());
    }

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
