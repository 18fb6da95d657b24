//! The subsystem: the namespaces behind the paths, and what all paths together mean for I/O.
//!
//! A path tells what happens to it alone: whether it is there, and which access states its controller tells. From that
//! follows which paths are the best for a group of namespaces. I/O fails when none is left to wait for, it waits while
//! any looks at the namespaces, and it is refused when all are being left.

use std::time::Duration;

use ringfab_reactor::Time;
use ringfab_spec::Status;
use ringfab_spec::log::AnaState;

use crate::access::AccessStates;
use crate::command::Command;
use crate::namespace::{self, Namespace};
use crate::request::PathId;

/// The namespaces, and how each path to them is.
#[derive(Debug)]
pub(super) struct Subsystem {
    namespaces: Vec<Namespace>,
    /// The NQN that the first controller has told of its subsystem.
    name: Option<String>,
    /// Whether a path has said which namespaces there are.
    known: bool,
    paths: Vec<PathState>,
    state: State,
    /// Whether I/O fails instead of waiting for a path.
    failing: bool,
    /// Whether a path is being left, so that each answer may be its last.
    leaving_path: bool,
    /// Whether a namespace may be another one than it was: see [`super::replaced`].
    rescanning: bool,
    /// Whether a lost instance of a controller may still change blocks: see [`super::held`].
    blocks_may_change: bool,
    /// Whether any of both is so, and no command may be sent without a look.
    watchful: bool,
}

/// What is done with new I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// There was no path yet.
    New,
    /// It is sent, or waits.
    Usable,
    /// It is refused: the subsystem is being left.
    Leaving,
}

/// A path, as far as it matters to I/O.
#[derive(Clone, Debug)]
struct PathState {
    standing: Standing,
    /// What its controller says of the groups.
    access: AccessStates,
    /// Whether it was ready once.
    was_ready: bool,
    /// From when on it is well again: see [`PathPolicy::well_for`](crate::PathPolicy::well_for).
    well_at: Time,
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
    /// One without paths.
    pub(super) fn new() -> Self {
        Self {
            namespaces: Vec::new(),
            name: None,
            known: false,
            paths: Vec::new(),
            state: State::New,
            failing: false,
            leaving_path: false,
            rescanning: false,
            blocks_may_change: false,
            watchful: false,
        }
    }

    /// A path is to come, in a slot without one.
    pub(super) fn expect_path(&mut self, path: PathId) {
        let awaited = PathState::new(Standing::Awaited);
        if self.paths.len() <= path.index() {
            self.paths.resize(path.index() + 1, PathState::new(Standing::Ended));
        }
        self.change(path, |path| *path = awaited);
    }

    /// Whether it is for others to say which namespaces there are: one is ready, or was while this one never was.
    pub(super) fn is_known_by_others(&self, path: PathId) -> bool {
        let is_new = self.known && !self.paths[path.index()].was_ready;
        let others = self.paths.iter().enumerate().filter(|(index, _)| *index != path.index());
        others.into_iter().any(|(_, other)| other.standing == Standing::Ready || is_new && other.was_ready)
    }

    /// The NQN that the first controller has told; this one, if it is the first.
    pub(super) fn name(&mut self, told: &str) -> &str {
        self.name.get_or_insert_with(|| told.to_owned())
    }

    /// The best paths for a group, ascending.
    pub(super) fn best_paths(&self, group: u32, now: Time) -> Vec<usize> {
        let ranks: Vec<_> = self.paths.iter().map(|path| path.rank(group, now)).collect();
        let best = ranks.iter().flatten().min().copied();
        let is_best = |index: &usize| best.is_some() && ranks[*index] == best;
        (0..ranks.len()).filter(is_best).collect()
    }

    /// If access states close each path that is there for a group, and one is there: the longest transition that is
    /// waited for, when that is what all of them are in.
    pub(super) fn closed_by(&self, group: u32) -> Option<Option<Duration>> {
        let there = || self.paths.iter().filter(|path| path.standing == Standing::Ready);
        there().next()?;
        let in_transition = there().all(|path| path.access.of_group(group) == AnaState::CHANGE);
        let longest = || there().filter_map(|path| path.access.transition).max();
        Some(if in_transition { Some(longest().unwrap_or(TRANSITION)) } else { None })
    }

    /// When the next path is well again; [`Time::MAX`] for never.
    pub(super) fn well_at(&self, now: Time) -> Time {
        let later = self.paths.iter().map(|path| path.well_at).filter(|at| *at > now);
        later.min().unwrap_or(Time::MAX)
    }

    /// Whether a path is back, but not used before it has been well for a while, if that can be helped.
    pub(super) fn is_recovering(&self, path: PathId, now: Time) -> bool {
        let path = &self.paths[path.index()];
        path.standing == Standing::Ready && now < path.well_at
    }

    /// What the controller of a path says of the groups.
    pub(super) fn access(&self, path: PathId) -> &AccessStates {
        &self.paths[path.index()].access
    }

    /// The controller of a path tells these states. Says whether they are others than before, while it is in use.
    pub(super) fn set_access(&mut self, path: PathId, access: AccessStates) -> bool {
        let path = &mut self.paths[path.index()];
        let changed = path.standing == Standing::Ready && path.access != access;
        path.access = access;
        changed
    }

    /// A path has answered a command for a group with a status that is about the path. Says whether that is news about
    /// an access state: the controller is to be asked for all of them then.
    pub(super) fn is_refused(&mut self, path: PathId, group: u32, status: Status, until: Time) -> bool {
        let path = &mut self.paths[path.index()];
        let state = match status.code() {
            Status::ANA_INACCESSIBLE => AnaState::INACCESSIBLE,
            Status::ANA_PERSISTENT_LOSS => AnaState::PERSISTENT_LOSS,
            Status::ANA_TRANSITION => AnaState::CHANGE,
            _ => {
                path.well_at = path.well_at.max(until);
                return false;
            }
        };
        let tells_states = !path.access.groups().is_empty();
        if !tells_states {
            path.well_at = path.well_at.max(until);
        }
        path.access.set(group, state)
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

    /// Whether a path is being left.
    pub(super) fn is_leaving_path(&self) -> bool {
        self.leaving_path
    }

    /// Whether no path is left.
    pub(super) fn has_ended(&self) -> bool {
        self.paths.iter().all(|path| path.standing == Standing::Ended)
    }

    /// A path takes I/O. It is well from then on.
    pub(super) fn path_is_ready(&mut self, path: PathId, well_at: Time) {
        if self.state == State::New {
            self.state = State::Usable;
        }
        self.change(path, |path| {
            (path.standing, path.was_ready, path.well_at) = (Standing::Ready, true, well_at);
        });
    }

    /// A path is lost, and what it was about to look at with it.
    pub(super) fn path_is_lost(&mut self, path: PathId) {
        self.change(path, |path| {
            if path.standing == Standing::Ready {
                path.standing = Standing::Awaited;
            }
            // The next connection tells its own.
            path.access = AccessStates::default();
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
        self.change(path, |path| *path = PathState::new(Standing::Ended));
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
        self.leaving_path = self.paths.iter().any(|path| path.standing == Standing::Leaving);
        if self.state == State::Usable && all(&[Standing::Leaving, Standing::Ended]) {
            self.state = State::Leaving;
        }
    }
}

/// How long a transition may take where the controller does not say it.
const TRANSITION: Duration = Duration::from_secs(30);

impl PathState {
    fn new(standing: Standing) -> Self {
        let access = AccessStates::default();
        Self { standing, access, was_ready: false, well_at: Time::ZERO, rescanning: false }
    }

    /// How good it is for a group, with the smallest number for the best: optimized before others, and well ones before
    /// those that come and go. `None`: it cannot be used.
    fn rank(&self, group: u32, now: Time) -> Option<u8> {
        let standing = match self.standing {
            Standing::Ready => 0,
            Standing::Leaving => 4,
            Standing::Awaited | Standing::Overdue | Standing::Ended => return None,
        };
        let access = match self.access.of_group(group) {
            AnaState::OPTIMIZED => 0,
            AnaState::NON_OPTIMIZED => 1,
            _ => return None,
        };
        Some(standing + access + if now < self.well_at { 2 } else { 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: PathId = PathId::first(0);
    const OTHER: PathId = PathId::first(1);

    fn two_paths() -> Subsystem {
        let mut subsystem = Subsystem::new();
        [ONE, OTHER].into_iter().for_each(|path| subsystem.expect_path(path));
        subsystem
    }

    fn seen(subsystem: &Subsystem) -> (State, bool, bool) {
        (subsystem.state(), subsystem.is_failing(), subsystem.is_rescanning())
    }

    #[test]
    fn io_fails_when_there_is_no_path_left_to_wait_for() {
        let mut subsystem = two_paths();
        subsystem.path_is_ready(ONE, Time::ZERO);
        subsystem.path_is_lost(ONE);
        subsystem.path_is_overdue(ONE);
        assert_eq!(seen(&subsystem), (State::Usable, false, false), "the other one is still to come");
        subsystem.path_has_ended(OTHER);
        assert_eq!((seen(&subsystem), subsystem.has_ended()), ((State::Usable, true, false), false));
        subsystem.path_is_lost(ONE);
        assert!(subsystem.is_failing(), "a loss is no reason to wait again");
        subsystem.path_is_ready(ONE, Time::ZERO);
        assert!(!subsystem.is_failing());
    }

    #[test]
    fn io_waits_as_long_as_a_path_that_is_there_looks_at_the_namespaces() {
        let mut subsystem = two_paths();
        for path in [ONE, OTHER] {
            subsystem.path_is_ready(path, Time::ZERO);
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
        let mut subsystem = two_paths();
        assert_eq!(subsystem.state(), State::New);
        subsystem.path_is_ready(ONE, Time::ZERO);
        subsystem.leave_path(ONE);
        assert_eq!(subsystem.state(), State::Usable, "the other one is still to come");
        subsystem.path_has_ended(OTHER);
        assert_eq!(seen(&subsystem), (State::Leaving, false, false), "what waits still goes by the first");
    }
}
