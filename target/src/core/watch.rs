//! Disks that do not answer. They are detected and named, and delay only the commands for them.
//!
//! A disk that has operations in flight and has completed none for a while is *silent*. If some of these are reads or
//! writes, it is *hung*: new commands for it wait, without a buffer, until it answers or their time is over. Its
//! buffers no longer count against the shares of its hosts, so the hosts' other disks continue.

use std::mem;
use std::time::Duration;

use ringfab_reactor::Time;
use serde::Serialize;

use super::queues::Queues;
use super::timer::HOUSEKEEPING;
use crate::controller::COMMAND_QUIESCE_TIME;
use crate::nvm::Kind;
use crate::resources::disks::Disks;
use crate::resources::{HostId, OpenDisk, Resources};

/// How often disks are looked at.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// How long a disk may end nothing before somebody is told.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// A disk that works has ended what it had of a lost controller before one that does not is found to hang.
const _: () = {
    let found = SILENCE_MAX.as_millis() + WATCH_INTERVAL.as_millis() + 2 * HOUSEKEEPING.as_millis();
    assert!(found <= COMMAND_QUIESCE_TIME.as_millis());
};

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

impl SilentDisk {
    /// Of these disks, those that have been silent for so long that it was reported.
    pub(super) fn all(disks: &Disks, now: Time) -> Vec<Self> {
        disks.iter().filter(|open| open.progress.reported).map(|open| Self::of(open, now)).collect()
    }

    fn of(open: &OpenDisk, now: Time) -> Self {
        let (command, commands) = open.progress.works_on;
        Self {
            subsystem: open.subsystem.nqn().to_owned(),
            nsid: open.nsid(),
            source: open.source(),
            command,
            commands,
            seconds: open.progress.silent_since.map_or(0, |since| now.since(since).as_secs()),
            hung: open.progress.is_hung(),
        }
    }

    fn log(&self) {
        tracing::error!(
            subsystem = self.subsystem,
            nsid = self.nsid,
            source = self.source,
            command = self.command,
            commands = self.commands,
            seconds = self.seconds,
            "a disk does not answer"
        );
    }
}

/// Watches the disks of a core.
#[derive(Debug, Default)]
pub(super) struct DiskWatch {
    /// When they were last looked at.
    checked: Time,
}

impl DiskWatch {
    /// Looks at the disks from time to time, and at who waits for them.
    pub(super) fn look(&mut self, queues: &mut Queues, resources: &mut Resources) {
        let now = resources.reactor.now();
        if now >= self.checked + WATCH_INTERVAL {
            self.checked = now;
            for disk in 0..resources.disks.end() {
                check(disk, queues, resources, now);
            }
        }
        queues.serve_held_back(resources, now);
    }
}

fn check(disk: usize, queues: &Queues, resources: &mut Resources, now: Time) {
    let Resources { disks, hosts, .. } = resources;
    let Some(open) = disks.get_mut(disk) else { return };
    if open.progress.check(now) < SILENCE_MAX {
        return;
    }
    let at_disk: Vec<(HostId, &Kind)> = queues.at_disk(disk).collect();
    let transfer = at_disk.iter().find(|(_, one)| one.is_bounded);
    let shown = transfer.or(at_disk.first()).map_or("Flush", |(_, one)| one.name);
    open.progress.works_on = (shown, at_disk.len());
    // All cores may find it at once, which is one event.
    let mut is_news = !mem::replace(&mut open.progress.reported, true) && open.namespace.note_silent(false);
    if transfer.is_some() && disks.set_hung(disk) {
        is_news |= disks.get(disk).is_some_and(|open| open.namespace.note_silent(true));
        at_disk.iter().for_each(|(host, _)| hosts.exempt_held(*host));
    }
    if is_news && let Some(open) = disks.get(disk) {
        SilentDisk::of(open, now).log();
    }
}
