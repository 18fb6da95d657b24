//! The subsystem: the namespaces behind the paths, and what all paths together mean for I/O.
//!
//! A path tells what happens to it alone. I/O fails when none is left to wait for, it waits while any looks at the
//! namespaces, and it is refused when all are being left.

use crate::command::Command;
use crate::namespace::{self, Namespace};
use crate::request::PathId;

/// The namespaces, and how each path to them is.
#[derive(Debug)]
pub(super) struct Subsystem {
    namespaces: Vec<Namespace>,
    /// Whether a path has said which namespaces there are.
    known: bool,
    paths: Vec<PathState>,
    state: State,
    /// Whether I/O fails instead of waiting for a path.
    failing: bool,
    /// Whether a namespace may be another one than it was: see [`super::replaced`].
    rescanning: bool,
    /// Whether a lost instance of a controller may still change blocks: see [`super::held`].
    blocks_may_change: bool,
    /// Whether any of both is so, and no command may be sent without a look.
    watchful: bool,
}

/// What is done with new I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// There was no path yet.
    New,
    /// It is sent, or waits.
    Usable,
    /// It is refused: the subsystem is being left.
    Leaving,
}

/// A path, as far as it matters to I/O.
#[derive(Clone, Copy, Debug)]
struct PathState {
    standing: Standing,
    /// Whether its controller has told that namespaces have changed, and it has not looked at them yet.
    rescanning: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// It is still to come, or to come back.
    Awaited,
    /// It takes I/O.
    Ready,
    /// It is lost for so long that I/O does not wait for it.
    Overdue,
    /// It is being left, and takes the rest of the I/O.
    Leaving,
    /// It will not come back.
    Ended,
}

impl Subsystem {
    /// One with so many paths, all of which are still to come.
    pub(super) fn new(paths: usize) -> Self {
        let path = PathState { standing: Standing::Awaited, rescanning: false };
        Self {
            namespaces: Vec::new(),
            known: false,
            paths: vec![path; paths],
            state: State::New,
            failing: false,
            rescanning: false,
            blocks_may_change: false,
            watchful: false,
        }
    }

    /// The namespaces in use.
    pub(super) fn namespaces(&self) -> &[Namespace] {
        &self.namespaces
    }

    /// Whether a path has said which namespaces there are.
    pub(super) fn is_known(&self) -> bool {
        self.known
    }

    /// The access group of a command's namespace.
    pub(super) fn group_of(&self, command: &Command) -> u32 {
        namespace::find(&self.namespaces, command.entry.nsid.get()).map_or(0, |found| found.ana_group)
    }

    /// The namespaces are these from here on. Returns those before.
    pub(super) fn set_namespaces(&mut self, namespaces: Vec<Namespace>) -> Vec<Namespace> {
        self.known = true;
        std::mem::replace(&mut self.namespaces, namespaces)
    }

    /// What is done with new I/O.
    #[inline]
    pub(super) fn state(&self) -> State {
        self.state
    }

    /// Whether I/O fails instead of waiting: there is no path to wait for.
    #[inline]
    pub(super) fn is_failing(&self) -> bool {
        self.failing
    }

    /// Whether I/O waits until the namespaces were looked at.
    #[inline]
    pub(super) fn is_rescanning(&self) -> bool {
        self.rescanning
    }

    /// Whether a new command may have to wait though there is a path: I/O waits, or some of it.
    #[inline]
    pub(super) fn is_watchful(&self) -> bool {
        self.watchful
    }

    /// Whether a lost instance of a controller may still change blocks.
    pub(super) fn set_blocks_may_change(&mut self, may_change: bool) {
        self.blocks_may_change = may_change;
        self.watchful = self.rescanning || may_change;
    }

    /// Whether no path is left.
    pub(super) fn has_ended(&self) -> bool {
        self.paths.iter().all(|path| path.standing == Standing::Ended)
    }

    /// A path takes I/O.
    pub(super) fn path_is_ready(&mut self, path: PathId) {
        if self.state == State::New {
            self.state = State::Usable;
        }
        self.change(path, |path| path.standing = Standing::Ready);
    }

    /// A path is lost, and what it was about to look at with it.
    pub(super) fn path_is_lost(&mut self, path: PathId) {
        self.change(path, |path| {
            if path.standing == Standing::Ready {
                path.standing = Standing::Awaited;
            }
            path.rescanning = false;
        });
    }

    /// A path is lost for so long that I/O does not wait for it.
    pub(super) fn path_is_overdue(&mut self, path: PathId) {
        self.change(path, |path| path.standing = Standing::Overdue);
    }

    /// A path is being left.
    pub(super) fn leave_path(&mut self, path: PathId) {
        self.change(path, |path| path.standing = Standing::Leaving);
    }

    /// A path will not come back.
    pub(super) fn path_has_ended(&mut self, path: PathId) {
        self.change(path, |path| *path = PathState { standing: Standing::Ended, rescanning: false });
    }

    /// The controller of a path has told that namespaces have changed, or they were looked at by this path.
    pub(super) fn set_rescanning(&mut self, path: PathId, rescanning: bool) {
        self.change(path, |path| path.rescanning = rescanning);
    }

    /// Changes what is known of one path, and draws the conclusions for all I/O.
    fn change(&mut self, path: PathId, change: impl FnOnce(&mut PathState)) {
        change(&mut self.paths[path.index()]);
        let all = |which: &[Standing]| self.paths.iter().all(|path| which.contains(&path.standing));
        self.failing = all(&[Standing::Overdue, Standing::Ended]);
        self.rescanning = self.paths.iter().any(|path| path.rescanning);
        self.watchful = self.rescanning || self.blocks_may_change;
        if self.state == State::Usable && all(&[Standing::Leaving, Standing::Ended]) {
            self.state = State::Leaving;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: PathId = PathId(0);
    const OTHER: PathId = PathId(1);

    fn seen(subsystem: &Subsystem) -> (State, bool, bool) {
        (subsystem.state(), subsystem.is_failing(), subsystem.is_rescanning())
    }

    #[test]
    fn io_fails_when_there_is_no_path_left_to_wait_for() {
        let mut subsystem = Subsystem::new(2);
        subsystem.path_is_ready(ONE);
        subsystem.path_is_lost(ONE);
        subsystem.path_is_overdue(ONE);
        assert_eq!(seen(&subsystem), (State::Usable, false, false), "the other one is still to come");
        subsystem.path_has_ended(OTHER);
        assert_eq!((seen(&subsystem), subsystem.has_ended()), ((State::Usable, true, false), false));
        subsystem.path_is_lost(ONE);
        assert!(subsystem.is_failing(), "a loss is no reason to wait again");
        subsystem.path_is_ready(ONE);
        assert!(!subsystem.is_failing());
    }

    #[test]
    fn io_waits_as_long_as_a_path_that_is_there_looks_at_the_namespaces() {
        let mut subsystem = Subsystem::new(2);
        for path in [ONE, OTHER] {
            subsystem.path_is_ready(path);
            subsystem.set_rescanning(path, true);
        }
        subsystem.set_rescanning(ONE, false);
        assert!(subsystem.is_rescanning());
        subsystem.path_is_lost(ONE);
        assert!(subsystem.is_rescanning(), "the loss of one ends no look of another");
        subsystem.path_is_lost(OTHER);
        assert!(!subsystem.is_rescanning());
    }

    #[test]
    fn new_io_is_refused_when_every_path_is_being_left_or_has_ended() {
        let mut subsystem = Subsystem::new(2);
        assert_eq!(subsystem.state(), State::New);
        subsystem.path_is_ready(ONE);
        subsystem.leave_path(ONE);
        assert_eq!(subsystem.state(), State::Usable, "the other one is still to come");
        subsystem.path_has_ended(OTHER);
        assert_eq!(seen(&subsystem), (State::Leaving, false, false), "what waits still goes by the first");
    }
}
