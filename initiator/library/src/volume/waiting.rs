//! The I/O commands of a subsystem that are on no path, by what they wait for.

use ringfab_reactor::Time;

use super::held::Held;
use super::lines::Lines;
use super::subsystem::Subsystem;
use crate::command::{BoxedCommand, Command};
use crate::delayed::Delayed;
use crate::request::PathId;

/// All of them.
#[derive(Debug)]
pub(crate) struct Waiting {
    /// For room, or for a path.
    pub(super) lines: Lines,
    /// For another try, by the slots of the paths that have answered them.
    delayed: Vec<Delayed>,
    /// A path was lost with them before it has answered them.
    pub(super) held: Held,
    /// They change blocks which something that is held may still change.
    pub(super) behind: Vec<BoxedCommand>,
}

impl Waiting {
    /// Room for so many in the lines, and more if need be.
    pub(super) fn new(capacity: usize) -> Self {
        Self { lines: Lines::new(capacity), delayed: Vec::new(), held: Held::default(), behind: Vec::new() }
    }

    /// A path is to come, in a slot without one.
    pub(super) fn expect_path(&mut self, path: PathId) {
        if self.delayed.len() <= path.index() {
            self.delayed.resize_with(path.index() + 1, Delayed::default);
        }
        debug_assert_eq!(self.delayed(path), 0, "the path before has ended, and its commands with it");
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        let delayed: usize = self.delayed.iter().map(Delayed::len).sum();
        self.lines.len() + self.behind.len() + self.held.len() + delayed
    }

    /// Those that wait for another try, of those that a path has answered.
    fn delayed(&self, path: PathId) -> usize {
        self.delayed[path.index()].len()
    }

    /// Those that a path has not done: they wait for another try, or are held since it was lost.
    pub(crate) fn undone_by(&self, path: PathId) -> usize {
        self.delayed(path) + self.held.of_path(path)
    }

    /// When the first of those that wait for another try gets it.
    pub(super) fn due(&self) -> Time {
        self.delayed.iter().map(Delayed::due).min().unwrap_or(Time::MAX)
    }

    /// The namespaces that they are for, ascending.
    pub(crate) fn namespaces(&self) -> Vec<u32> {
        let delayed = self.delayed.iter().flat_map(Delayed::iter);
        let behind = self.behind.iter().map(|command| &**command);
        let all = self.lines.iter().chain(delayed).chain(self.held.iter()).chain(behind);
        let mut namespaces: Vec<u32> = all.map(|one| one.entry.nsid.get()).collect();
        namespaces.sort_unstable();
        namespaces.dedup();
        namespaces
    }

    /// A path has answered a command, which gets another try then.
    pub(super) fn delay(&mut self, path: PathId, command: BoxedCommand, until: Time) {
        self.delayed[path.index()].push(command, until);
    }

    /// These wait for a path, among the others by the order of their submission; or behind what is held, if they change
    /// the same blocks.
    pub(super) fn put_back(&mut self, subsystem: &Subsystem, mut commands: Vec<BoxedCommand>) {
        if subsystem.is_watchful() {
            self.behind.extend(commands.extract_if(.., |command| self.held.overlap(command)));
        }
        self.lines.put_back(commands, |command| subsystem.group_of(command));
    }

    /// Those whose delay is over get another try; with [`Time::MAX`] all.
    pub(super) fn release_due(&mut self, subsystem: &Subsystem, now: Time) {
        let due = self.delayed.iter_mut().flat_map(|delayed| delayed.take_due(now)).collect();
        self.put_back(subsystem, due);
    }

    /// Those that a path has answered get another try, without waiting any longer.
    pub(super) fn release_of(&mut self, subsystem: &Subsystem, path: PathId) {
        let released = self.delayed[path.index()].take_due(Time::MAX);
        self.put_back(subsystem, released);
    }

    /// Takes those out that `which` names.
    pub(super) fn take_if(
        &mut self,
        subsystem: &Subsystem,
        which: impl Fn(&Command) -> bool,
    ) -> Vec<BoxedCommand> {
        let mut taken = Vec::new();
        for delayed in &mut self.delayed {
            taken.extend(delayed.take_if(&which));
        }
        taken.extend(self.held.take_if(&which));
        taken.extend(self.behind.extract_if(.., |command| which(command)));
        let (named, others) = self.lines.take_all().into_iter().partition(|command| which(command));
        taken.extend::<Vec<_>>(named);
        self.put_back(subsystem, others);
        taken
    }

    /// Takes all of them, which fail. What may still change blocks is remembered.
    pub(super) fn take_all(&mut self, subsystem: &Subsystem) -> Vec<BoxedCommand> {
        self.release_due(subsystem, Time::MAX);
        let mut all = self.held.release(None);
        all.append(&mut self.behind);
        all.extend(self.lines.take_all());
        all.sort_unstable_by_key(|command| command.order);
        all
    }
}
