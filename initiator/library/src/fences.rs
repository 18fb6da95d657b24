//! When a lost instance of a controller is over.
//!
//! A path is lost while its controller may have commands in hand, or while they still lie in a socket or in a
//! network. Whoever sends them again, or writes the same blocks anew, has to know first that the lost *instance*
//! executes nothing any more. Whatever says so first:
//!
//! 1. A **Cross-Controller Reset** (Base 2.3): another controller of the subsystem ends the instance and confirms it,
//!    at once or by its log page. Other paths are asked first; then the path itself, when it is connected again.
//!    Whoever refuses is not asked again on the same connection.
//! 2. The **clock**: the replay delay after the connections of all engines have ended.
//!
//! The engine that leads a path decides, and tells the others. Here are the decisions alone: [`Fences::next`] says what
//! to do, its caller does it, and tells what came of it.
//!
//! ```text
//! Idle     a path can reset: Asked. None can: the clock
//! Asked    over: done. begun: Begun. later, log full: Idle, after a while. refused: Idle, by another path
//! Begun    looks at the log page at the event and at intervals. success: done. failed: Idle, by another path
//! Asked, Begun   the path that was asked is lost: Idle
//! any      the clock says so: done
//! ```

use std::time::Duration;

use ringfab_reactor::Time;
use ringfab_spec::log::{ControllerInstance, CrossControllerResetStatus};

use crate::path::{Instance, ResetAnswer, ResetEntry};
use crate::request::PathId;

/// The first look at what was begun, and the first new try of what shall come later. The intervals double.
const AGAIN: Duration = Duration::from_millis(20);
/// No interval is longer.
const AGAIN_MAX: Duration = Duration::from_secs(1);
/// A reset that is not in the log page after so many looks is none.
const MISSING_MAX: u32 = 8;
/// Lost instances that are told apart. Beyond, the two oldest of them are over together, by the clock.
const FENCES_MAX: usize = 64;

/// The lost instances of all controllers of a subsystem.
#[derive(Debug, Default)]
pub(crate) struct Fences {
    list: Vec<Fence>,
    /// Counts the resets that were asked for.
    numbers: u64,
}

/// A path, as far as it matters here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Helper {
    pub(crate) path: PathId,
    /// Number of its connection.
    pub(crate) connection: u32,
    /// Resets that its controller does at once; zero if it does none, or is not ready.
    pub(crate) resets_max: u8,
}

/// A lost instance, or several of which each has to be over.
#[derive(Debug)]
struct Fence {
    path: PathId,
    /// Numbers of the connections to it.
    first: u32,
    last: u32,
    instance: Instance,
    /// When it was lost.
    since: Time,
    /// When the clock says that it is over, once the connections have ended.
    until: Time,
    /// Paths that have refused, and on which connection.
    refused: Vec<(PathId, u32)>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nobody was asked, or not with success.
    Idle {
        /// When somebody is.
        at: Time,
        /// How long to wait after the next failure.
        interval: Duration,
    },
    /// A path was asked for a reset.
    Asked { by: Asked, number: u64, interval: Duration },
    /// Its controller has begun with it.
    Begun {
        by: Asked,
        /// When to look; `None` while an answer is awaited.
        look: Option<Time>,
        interval: Duration,
        /// Looks that have found nothing.
        missing: u32,
    },
}

impl State {
    const NEW: Self = Self::Idle { at: Time::ZERO, interval: AGAIN };

    fn asked(self) -> Option<Asked> {
        match self {
            Self::Idle { .. } => None,
            Self::Asked { by, .. } | Self::Begun { by, .. } => Some(by),
        }
    }
}

/// A path on one of its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Asked {
    path: PathId,
    connection: u32,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// Ask a path for a reset, which has this number.
    Reset { by: PathId, number: u64, impacted: ControllerInstance },
    /// Look at the log page of a path's controller.
    Look { by: PathId },
    /// Lost instances are over.
    Over(Over),
}

/// Lost instances of a path's controller are over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Over {
    pub(crate) path: PathId,
    /// Numbers of the connections to them.
    pub(crate) first: u32,
    pub(crate) last: u32,
    pub(crate) how: How,
    /// How long after the loss.
    pub(crate) after: Duration,
    /// How long the clock should run by the rule, if it has run for a shorter time.
    pub(crate) risks: Option<Duration>,
}

/// Who says that a lost instance is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// A Cross-Controller Reset by this path.
    Reset(PathId),
    /// The clock.
    Clock,
}

impl Fences {
    /// Whether every lost instance is over.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Whether lost instances of a path are not over.
    pub(crate) fn has(&self, path: PathId) -> bool {
        self.list.iter().any(|fence| fence.path == path)
    }

    /// How long a lost instance of this path may take by the clock, where no reset is known.
    pub(crate) fn clock_of(&self, path: PathId) -> Option<Time> {
        let of_path = self.list.iter().filter(|fence| fence.path == path && fence.state.asked().is_none());
        of_path.map(|fence| fence.until).max()
    }

    /// An instance is lost, on the connection with this number.
    pub(crate) fn lost(&mut self, now: Time, path: PathId, connection: u32, instance: Instance) {
        if self.list.len() >= FENCES_MAX {
            self.join_oldest();
        }
        self.list.push(Fence {
            path,
            first: connection,
            last: connection,
            instance,
            since: now,
            until: Time::MAX,
            refused: Vec::new(),
            state: State::NEW,
        });
    }

    /// The two oldest of a path become one.
    fn join_oldest(&mut self) {
        let Some(path) = self.list.first().map(|fence| fence.path) else { return };
        let Some(next) = self.list.iter().skip(1).position(|fence| fence.path == path) else { return };
        let next = self.list.remove(next + 1);
        let oldest = &mut self.list[0];
        oldest.last = next.last;
        oldest.until = oldest.until.max(next.until);
        oldest.instance = Instance { id: None, ..next.instance };
        oldest.state = State::NEW;
    }

    /// The connections of a path have ended, on every engine: the clock runs.
    pub(crate) fn closed(&mut self, now: Time, path: PathId) {
        for fence in self.list.iter_mut().filter(|fence| fence.path == path && fence.until == Time::MAX) {
            fence.until = now + fence.instance.replay_delay;
        }
    }

    /// A path has answered a reset.
    pub(crate) fn answered(&mut self, now: Time, number: u64, answer: ResetAnswer) -> Option<Act> {
        let is_asked =
            |fence: &Fence| matches!(fence.state, State::Asked { number: asked, .. } if asked == number);
        let index = self.list.iter().position(is_asked)?;
        let fence = &mut self.list[index];
        let State::Asked { by, interval, .. } = fence.state else { return None };
        let later = State::Idle { at: now + interval, interval: (interval * 2).min(AGAIN_MAX) };
        match answer {
            ResetAnswer::Over => return Some(Act::Over(self.end(now, index, How::Reset(by.path)))),
            ResetAnswer::Begun => {
                let look = Some(now + AGAIN);
                fence.state = State::Begun { by, look, interval: AGAIN * 2, missing: 0 };
            }
            ResetAnswer::Later => fence.state = later,
            ResetAnswer::LogFull => {
                fence.state = later;
                return Some(Act::Look { by: by.path });
            }
            ResetAnswer::Refused(status) => {
                tracing::debug!(%status, "Cross-Controller Reset refused");
                fence.refuse(by);
            }
        }
        None
    }

    /// A path's controller tells that a reset is done: it is looked at now.
    pub(crate) fn reset_done(&mut self, now: Time, by: PathId) {
        for fence in &mut self.list {
            if let State::Begun { by: asked, look, .. } = &mut fence.state
                && asked.path == by
            {
                *look = Some(now);
            }
        }
    }

    /// The log page of a path's controller. Instances that are over by it come from [`Fences::next`].
    pub(crate) fn log(&mut self, now: Time, path: PathId, entries: &[ResetEntry]) -> Vec<Over> {
        let mut over = Vec::new();
        let mut index = 0;
        while index < self.list.len() {
            let fence = &mut self.list[index];
            let State::Begun { by, look: look @ None, interval, missing } = &mut fence.state else {
                index += 1;
                continue;
            };
            let id = fence.instance.id;
            let is_meant = |entry: &&ResetEntry| {
                id.is_some_and(|id| entry.icid.get() == id.cntlid && entry.ciu == id.ciu)
            };
            if by.path != path {
                index += 1;
                continue;
            }
            let by = *by;
            // An instance has one entry; if it was reset twice, the later one is further back.
            match entries.iter().rev().find(is_meant).map(|entry| (entry.status, entry.flags.retry())) {
                Some((CrossControllerResetStatus::SUCCESS, _)) => {
                    over.push(self.end(now, index, How::Reset(by.path)));
                    continue;
                }
                Some((CrossControllerResetStatus::FAILED, true)) => {
                    fence.state =
                        State::Idle { at: now + *interval, interval: (*interval * 2).min(AGAIN_MAX) };
                }
                Some((CrossControllerResetStatus::FAILED, false)) => fence.refuse(by),
                None if *missing + 1 >= MISSING_MAX => fence.refuse(by),
                found => {
                    *missing = if found.is_none() { *missing + 1 } else { 0 };
                    *look = Some(now + *interval);
                    *interval = (*interval * 2).min(AGAIN_MAX);
                }
            }
            index += 1;
        }
        over
    }

    /// What to do next, with these paths.
    pub(crate) fn next(&mut self, now: Time, helpers: &[Helper]) -> Option<Act> {
        let is_there = |asked: Asked| {
            helpers
                .iter()
                .any(|one| one.path == asked.path && one.connection == asked.connection && one.resets_max > 0)
        };
        for fence in &mut self.list {
            if fence.state.asked().is_some_and(|asked| !is_there(asked)) {
                fence.state = State::NEW;
            }
        }
        if let Some(index) = self.list.iter().position(|fence| fence.until <= now) {
            return Some(Act::Over(self.end(now, index, How::Clock)));
        }
        self.next_look(now).or_else(|| self.next_reset(now, helpers))
    }

    fn next_look(&mut self, now: Time) -> Option<Act> {
        let due = |fence: &Fence| match fence.state {
            State::Begun { by, look: Some(at), .. } if at <= now => Some(by.path),
            _ => None,
        };
        let by = self.list.iter().find_map(due)?;
        // One look is for all that this path was asked.
        for fence in &mut self.list {
            if let State::Begun { by: asked, look, .. } = &mut fence.state
                && asked.path == by
            {
                *look = None;
            }
        }
        Some(Act::Look { by })
    }

    fn next_reset(&mut self, now: Time, helpers: &[Helper]) -> Option<Act> {
        for index in 0..self.list.len() {
            let fence = &self.list[index];
            let State::Idle { at, interval } = fence.state else { continue };
            let (Some(impacted), true) = (fence.instance.id, at <= now) else { continue };
            let Some(helper) = self.helper(fence, helpers) else {
                // Only another path changes that.
                self.list[index].state = State::Idle { at: Time::ZERO, interval };
                continue;
            };
            let by = Asked { path: helper.path, connection: helper.connection };
            self.numbers += 1;
            let number = self.numbers;
            self.list[index].state = State::Asked { by, number, interval };
            return Some(Act::Reset { by: helper.path, number, impacted });
        }
        None
    }

    /// Whom to ask: another path if there is one, then the path itself on another connection.
    fn helper<'a>(&self, fence: &Fence, helpers: &'a [Helper]) -> Option<&'a Helper> {
        let in_progress = |helper: &Helper| {
            let is_its = |fence: &&Fence| fence.state.asked().is_some_and(|asked| asked.path == helper.path);
            self.list.iter().filter(is_its).count()
        };
        let can = |helper: &&Helper| {
            in_progress(helper) < usize::from(helper.resets_max)
                && !fence.refused.contains(&(helper.path, helper.connection))
                && (helper.path != fence.path || helper.connection > fence.last)
        };
        helpers.iter().filter(can).min_by_key(|helper| helper.path == fence.path)
    }

    /// When there is something to do.
    pub(crate) fn due(&self) -> Time {
        let due = |fence: &Fence| {
            let state = match fence.state {
                State::Idle { at, .. } if at > Time::ZERO && fence.instance.id.is_some() => at,
                State::Begun { look: Some(at), .. } => at,
                _ => Time::MAX,
            };
            state.min(fence.until)
        };
        self.list.iter().map(due).min().unwrap_or(Time::MAX)
    }

    fn end(&mut self, now: Time, index: usize, how: How) -> Over {
        let Fence { path, first, last, since, instance, .. } = self.list.remove(index);
        let risks = instance.risks.filter(|_| how == How::Clock);
        Over { path, first, last, how, after: now.since(since), risks }
    }
}

impl Fence {
    /// A path does not reset it on this connection.
    fn refuse(&mut self, by: Asked) {
        self.refused.retain(|(path, _)| *path != by.path);
        self.refused.push((by.path, by.connection));
        self.state = State::NEW;
    }
}

#[cfg(test)]
mod tests {
    use ringfab_spec::Status;
    use ringfab_spec::log::CrossControllerResetFlags;

    use super::*;

    const ONE: PathId = PathId::first(0);
    const OTHER: PathId = PathId::first(1);
    const ID: ControllerInstance = ControllerInstance { cntlid: 3, ciu: 7, cirn: 9 };
    const INSTANCE: Instance =
        Instance { id: Some(ID), resets_max: 4, replay_delay: Duration::from_secs(22), risks: None };

    fn at(ms: u64) -> Time {
        Time::ZERO + Duration::from_millis(ms)
    }

    fn helper(path: PathId, connection: u32) -> Helper {
        Helper { path, connection, resets_max: 1 }
    }

    /// The instance of the first path's connection 5 is lost at 1 s, and its connections have ended 100 ms later.
    fn lost(instance: Instance) -> Fences {
        let mut fences = Fences::default();
        fences.lost(at(1000), ONE, 5, instance);
        fences.closed(at(1100), ONE);
        fences
    }

    fn over(how: How, after_ms: u64) -> Act {
        let after = Duration::from_millis(after_ms);
        Act::Over(Over { path: ONE, first: 5, last: 5, how, after, risks: None })
    }

    fn reset(by: PathId, number: u64) -> Act {
        Act::Reset { by, number, impacted: ID }
    }

    fn entry(status: CrossControllerResetStatus, retry: bool) -> ResetEntry {
        let mut entry = ResetEntry::zeroed();
        (entry.icid, entry.ciu, entry.status) = (ID.cntlid.into(), ID.ciu, status);
        entry.flags = CrossControllerResetFlags::default().with_retry(retry);
        entry
    }

    #[test]
    fn without_a_reset_the_clock_runs_from_the_end_of_the_connections() {
        for instance in [INSTANCE, Instance { id: None, ..INSTANCE }] {
            let mut fences = lost(instance);
            let helpers = if instance.id.is_none() { vec![helper(OTHER, 1), helper(ONE, 6)] } else { vec![] };
            assert_eq!(fences.next(at(23_099), &helpers), None);
            assert_eq!((fences.due(), fences.clock_of(ONE)), (at(23_100), Some(at(23_100))));
            assert_eq!(fences.next(at(23_100), &helpers), Some(over(How::Clock, 22_100)));
            assert!(fences.is_empty() && fences.due() == Time::MAX);
        }
        let mut fences = Fences::default();
        fences.lost(at(1000), ONE, 5, INSTANCE);
        assert_eq!(fences.next(at(1_000_000), &[]), None, "the connections have not ended");
    }

    #[test]
    fn another_path_is_asked_first_and_who_refuses_is_not_asked_again() {
        let mut fences = lost(INSTANCE);
        let helpers = [helper(ONE, 6), helper(OTHER, 1)];
        assert_eq!(fences.next(at(2000), &helpers), Some(reset(OTHER, 1)));
        assert_eq!(fences.next(at(2000), &helpers), None, "one asks");
        assert_eq!(fences.answered(at(2001), 1, ResetAnswer::Refused(Status::INVALID_FIELD)), None);
        assert_eq!(fences.next(at(2001), &helpers[1..]), None);
        assert_eq!(fences.due(), at(23_100), "only another path changes that");
        assert_eq!(fences.next(at(2002), &helpers), Some(reset(ONE, 2)), "the path itself");
        assert_eq!(fences.answered(at(2003), 1, ResetAnswer::Over), None, "of an earlier one");
        assert_eq!(fences.answered(at(2003), 2, ResetAnswer::Over), Some(over(How::Reset(ONE), 1003)));
        assert!(fences.is_empty());
    }

    #[test]
    fn the_connection_that_was_lost_resets_nothing() {
        let mut fences = lost(INSTANCE);
        assert_eq!(fences.next(at(2000), &[helper(ONE, 5)]), None);
        let none = Helper { resets_max: 0, ..helper(OTHER, 1) };
        assert_eq!(fences.next(at(2000), &[none]), None, "nor one whose controller does not");
    }

    #[test]
    fn a_path_that_is_lost_while_it_was_asked_leaves_that_to_another() {
        let mut fences = lost(INSTANCE);
        assert_eq!(fences.next(at(2000), &[helper(OTHER, 1)]), Some(reset(OTHER, 1)));
        assert_eq!(fences.next(at(2001), &[helper(OTHER, 2)]), Some(reset(OTHER, 2)), "it is back");
        fences.answered(at(2002), 2, ResetAnswer::Begun);
        assert_eq!(fences.next(at(2003), &[helper(ONE, 6)]), Some(reset(ONE, 3)));
    }

    #[test]
    fn what_has_begun_is_looked_at_in_intervals_and_at_the_event() {
        let mut fences = lost(INSTANCE);
        let helpers = [helper(OTHER, 1)];
        fences.next(at(2000), &helpers);
        fences.answered(at(2000), 1, ResetAnswer::Begun);
        assert_eq!((fences.due(), fences.next(at(2019), &helpers)), (at(2020), None));
        assert_eq!(fences.next(at(2020), &helpers), Some(Act::Look { by: OTHER }));
        assert_eq!(fences.next(at(2020), &helpers), None, "one look at a time");
        let in_progress = entry(CrossControllerResetStatus::IN_PROGRESS, false);
        assert_eq!(fences.log(at(2021), OTHER, &[in_progress]), []);
        assert_eq!(fences.due(), at(2061));
        fences.reset_done(at(2030), OTHER);
        assert_eq!(fences.next(at(2030), &helpers), Some(Act::Look { by: OTHER }));
        let done = entry(CrossControllerResetStatus::SUCCESS, false);
        let is_over = fences.log(at(2031), OTHER, &[in_progress, done]);
        assert_eq!(is_over.into_iter().map(Act::Over).collect::<Vec<_>>(), [over(How::Reset(OTHER), 1031)]);
    }

    #[test]
    fn a_reset_that_has_failed_is_tried_again_if_the_log_says_so_and_one_that_is_missing_is_none() {
        let helpers = [helper(OTHER, 1)];
        let begun = || {
            let mut fences = lost(INSTANCE);
            fences.next(at(2000), &helpers);
            fences.answered(at(2000), 1, ResetAnswer::Begun);
            fences.next(at(2020), &helpers);
            fences
        };
        let failed = |retry| entry(CrossControllerResetStatus::FAILED, retry);
        let mut fences = begun();
        assert_eq!(fences.log(at(2020), OTHER, &[failed(true)]), []);
        assert_eq!((fences.next(at(2050), &helpers), fences.due()), (None, at(2060)));
        assert_eq!(fences.next(at(2060), &helpers), Some(reset(OTHER, 2)));
        let mut fences = begun();
        assert_eq!(fences.log(at(2020), OTHER, &[failed(false)]), []);
        assert_eq!(fences.next(at(9000), &helpers), None);
        let mut fences = begun();
        let mut now = at(2020);
        for _ in 0..MISSING_MAX {
            assert_eq!(fences.log(now, OTHER, &[]), []);
            now += AGAIN_MAX;
            fences.next(now, &helpers);
        }
        assert_eq!(fences.due(), at(23_100), "what is left is the clock");
    }

    #[test]
    fn a_controller_that_has_too_much_to_do_is_asked_later_and_never_for_more_than_it_does_at_once() {
        let mut fences = lost(INSTANCE);
        fences.lost(at(1200), ONE, 6, Instance { id: Some(ControllerInstance { ciu: 8, ..ID }), ..INSTANCE });
        let helpers = [helper(OTHER, 1)];
        assert_eq!(fences.next(at(2000), &helpers), Some(reset(OTHER, 1)));
        assert_eq!(fences.next(at(2000), &helpers), None, "it does one at once");
        assert_eq!(fences.answered(at(2000), 1, ResetAnswer::LogFull), Some(Act::Look { by: OTHER }));
        assert!(
            matches!(fences.next(at(2000), &helpers), Some(Act::Reset { number: 2, .. })),
            "the other one"
        );
        fences.answered(at(2001), 2, ResetAnswer::Later);
        assert_eq!(fences.due(), at(2020));
        assert_eq!(fences.next(at(2020), &helpers), Some(reset(OTHER, 3)));
    }

    #[test]
    fn more_losses_than_are_told_apart_are_over_together() {
        let mut fences = Fences::default();
        for connection in 0..100 {
            fences.lost(at(u64::from(connection)), ONE, connection, INSTANCE);
            fences.closed(at(u64::from(connection)), ONE);
        }
        assert_eq!(fences.list.len(), FENCES_MAX);
        let mut seen = Vec::new();
        while let Some(Act::Over(over)) = fences.next(at(1_000_000), &[]) {
            seen.extend(over.first..=over.last);
        }
        assert!(seen.into_iter().eq(0..100), "none is forgotten");
    }
}
