//! Disks that do not answer. They are detected and named, and delay only the commands for them.
//!
//! A disk that has operations in flight and has completed none for a while is *silent*. If some of these are reads or
//! writes, it is *hung*: new commands for it wait, without a buffer, until it answers or their time is over. Its
//! buffers no longer count against the shares of its hosts, so the hosts' other disks continue.

use std::time::Duration;

use ringfab_reactor::Time;
use serde::Serialize;

use super::Core;
use crate::model::Namespace;
use crate::queue::AtDisk;
use crate::resources::HostId;
use crate::resources::disks::DiskProgress;
use crate::resources::held_back::HeldBack;

/// How often disks are looked at.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// How long a disk may end nothing before somebody is told.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// How long a command waits for a hung or fenced disk before its host is told to try again. Hosts give up a command
/// after 30 s and their connections with it.
const HELD_BACK_MAX: Duration = Duration::from_secs(15);

/// A disk that has not answered for a while.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SilentDisk {
    /// NQN of the subsystem.
    pub subsystem: String,
    /// The namespace.
    pub nsid: u32,
    /// The file or device.
    pub source: String,
    /// One of the commands that it works on, when it was last checked.
    pub command: &'static str,
    /// How many it works on, at that time.
    pub commands: usize,
    /// For how many seconds it has ended nothing.
    pub seconds: u64,
    /// Whether commands for it wait.
    pub hung: bool,
}

impl Core {
    /// Looks at the disks from time to time, and at who waits for them.
    pub(super) fn watch_disks(&mut self) {
        let now = self.resources.reactor.now();
        if now >= self.resources.held_back.checked + WATCH_INTERVAL {
            self.resources.held_back.checked = now;
            for disk in 0..self.resources.disks.len() {
                self.watch_disk(disk, now);
            }
        }
        self.resume_held_back(now);
    }

    fn watch_disk(&mut self, disk: usize, now: Time) {
        let Some(open) = self.resources.disks[disk].as_mut() else { return };
        let silence = open.progress.check(now);
        if silence < SILENCE_MAX {
            return;
        }
        let at_disk: Vec<(HostId, AtDisk)> = self.at_disk(disk).collect();
        let transfer = at_disk.iter().find(|(_, one)| one.is_transfer);
        let shown = transfer.or(at_disk.first()).map_or("Flush", |(_, one)| one.name);
        let Some(open) = self.resources.disks[disk].as_mut() else { return };
        open.progress.works_on = (shown, at_disk.len());
        let hung = transfer.is_some() && !open.progress.hung;
        // All cores may find it at once, which is one event.
        let mut is_news =
            !std::mem::replace(&mut open.progress.reported, true) && open.namespace.note_silent(false);
        if hung {
            open.progress.hung = true;
            is_news |= open.namespace.note_silent(true);
            self.resources.held_back.hung_disks += 1;
            at_disk.iter().for_each(|(host, _)| self.resources.hosts.exempt_held(*host));
        }
        if is_news && let Some(silent) = self.silent_disk(disk, now) {
            tracing::error!(
                subsystem = silent.subsystem,
                nsid = silent.nsid,
                source = silent.source,
                command = silent.command,
                commands = silent.commands,
                seconds = silent.seconds,
                "a disk does not answer"
            );
        }
    }

    /// A disk that was reported to be silent has ended something.
    #[cold]
    pub(super) fn disk_answers(&mut self, disk: usize) {
        let now = self.resources.reactor.now();
        let Some(open) = self.resources.disks[disk].as_mut() else { return };
        let seconds = open.progress.silent_since.take().map_or(0, |since| now.since(since).as_secs());
        let silent = std::mem::replace(&mut open.progress.reported, false);
        let hung = std::mem::replace(&mut open.progress.hung, false);
        self.resources.held_back.hung_disks -= usize::from(hung);
        if open.namespace.note_answers(silent, hung) {
            let (subsystem, nsid) = (open.subsystem.nqn(), open.nsid());
            tracing::warn!(subsystem, nsid, seconds, "the disk answers again");
        }
        self.resume_held_back(now);
    }

    /// A disk is closed: nobody waits for it any more.
    pub(super) fn forget_disk(&mut self, namespace: &Namespace, progress: DiskProgress) {
        self.resources.held_back.hung_disks -= usize::from(progress.hung);
        namespace.note_answers(progress.reported, progress.hung);
    }

    /// Commands whose disk answers go on; those that have waited too long end.
    fn resume_held_back(&mut self, now: Time) {
        for _ in 0..self.resources.held_back.waiting.len() {
            let Some(held) = self.resources.held_back.waiting.pop_front() else { return };
            let HeldBack { request, since } = held;
            let Some(queue) = self.queues.get_mut(usize::from(request.queue)).and_then(Option::as_mut) else {
                continue;
            };
            let late = now >= since + HELD_BACK_MAX;
            if queue.retry_held_back(&mut self.resources, request, late) {
                self.resources.held_back.waiting.push_back(held);
            }
        }
    }

    /// Disks that have been silent for so long that it was reported.
    pub(super) fn silent_disks(&self) -> Vec<SilentDisk> {
        let now = self.resources.reactor.now();
        let reported =
            |disk: &usize| self.resources.disks[*disk].as_ref().is_some_and(|open| open.progress.reported);
        (0..self.resources.disks.len())
            .filter(reported)
            .filter_map(|disk| self.silent_disk(disk, now))
            .collect()
    }

    fn silent_disk(&self, disk: usize, now: Time) -> Option<SilentDisk> {
        let open = self.resources.disks[disk].as_ref()?;
        let subsystem = open.subsystem.nqn().to_owned();
        let (command, commands) = open.progress.works_on;
        Some(SilentDisk {
            subsystem,
            nsid: open.nsid(),
            source: open.source(),
            command,
            commands,
            seconds: open.progress.silent_since.map_or(0, |since| now.since(since).as_secs()),
            hung: open.progress.hung,
        })
    }

    /// What a disk works on, and for whom.
    fn at_disk(&self, disk: usize) -> impl Iterator<Item = (HostId, AtDisk)> {
        let queues = self.queues.iter().flatten();
        queues.flat_map(move |queue| queue.at_disk(disk).map(|one| (queue.owner().host, one)))
    }
}
