//! Which paths lead to the volumes: they come and go, and their controllers tell access states.
//!
//! Whenever something of that changes, the best paths of each group are decided anew. A command then takes one of them.

use ringfab_reactor::Time;
use ringfab_spec::Status;

use super::records::Failover;
use super::{Aside, Volumes};
use crate::access::AccessStates;
use crate::chooser::Way;
use crate::error::{ConnectError, IoError};
use crate::path::IoQueues;
use crate::path_status::{PathState, PathStatus};
use crate::request::{HostEvent, PathId};
use crate::resources::Resources;

impl Way for IoQueues {
    #[inline]
    fn has_room(&self) -> bool {
        self.queue_with_room().is_some()
    }

    #[inline]
    fn outstanding(&self) -> usize {
        self.outstanding()
    }
}

impl Volumes {
    /// A path is to come, in a slot without one.
    pub(crate) fn expect_path(&mut self, path: PathId) {
        if self.aside.len() <= path.index() {
            self.aside.resize_with(path.index() + 1, Aside::default);
        }
        let aside = std::mem::take(&mut self.aside[path.index()]);
        debug_assert_eq!(aside.delayed.len(), 0, "the path before has ended, and its commands with it");
        self.subsystem.expect_path(path);
    }

    /// A path leads here, perhaps again: I/O goes on.
    pub(crate) fn path_is_ready(&mut self, now: Time, path: PathId) {
        let was_lost = self.aside[path.index()].record.losses > 0;
        let well_at = if was_lost { now + self.options.paths.well_for } else { now };
        self.subsystem.path_is_ready(path, well_at);
        self.choose_again(now);
    }

    /// A path was lost. What it has not answered is held.
    pub(crate) fn path_is_lost(&mut self, now: Time, path: PathId, error: &ConnectError) {
        self.aside[path.index()].record.lost(now, error.clone());
        if self.held.has(path) {
            self.failover.get_or_insert(Failover { from: path, since: now });
        }
        self.subsystem.path_is_lost(path);
        self.choose_again(now);
        self.release_of(path);
    }

    /// The controller of a path tells these access states.
    pub(crate) fn set_access(&mut self, resources: &mut Resources, path: PathId, access: AccessStates) {
        let changed = self.subsystem.set_access(path, access);
        self.choose_again(resources.now());
        if changed {
            resources.events.push_with(|| HostEvent::AccessChanged { controller: self.id, path });
        }
    }

    /// A path has answered a command of a group with a status that is about the path. Says whether that is news about
    /// an access state.
    pub(super) fn path_is_refused(&mut self, now: Time, path: PathId, group: u32, status: Status) -> bool {
        let until = now + self.options.paths.well_for;
        let is_news = self.subsystem.is_refused(path, group, status, until);
        self.choose_again(now);
        is_news
    }

    /// Decides anew which paths are the best for each group.
    pub(super) fn choose_again(&mut self, now: Time) {
        let (subsystem, by) = (&self.subsystem, self.options.paths.chooser);
        for (group, chooser) in self.lines.choosers() {
            chooser.set(subsystem.best_paths(group, now), by);
        }
        let policy = &self.options.reconnect;
        let limits = [policy.fast_io_fail_timeout, policy.controller_loss_timeout];
        self.lines.note_closed(now, |group| {
            let transition = subsystem.closed_by(group)?;
            Some(limits.into_iter().chain([transition]).flatten().min())
        });
        self.attentive = self.failover.is_some() || subsystem.is_leaving_path();
    }

    /// Whether what follows from an answer has to be looked at.
    #[inline]
    pub(crate) fn is_attentive(&self) -> bool {
        self.attentive
    }

    /// A path has answered a command. If one was lost before and nothing was answered since, I/O goes on.
    pub(crate) fn note_answer(&mut self, resources: &mut Resources, to: PathId) {
        let Some(Failover { from, since }) = self.failover.take() else { return };
        self.attentive = self.subsystem.is_leaving_path();
        let after = resources.now().since(since);
        self.aside[from.index()].record.failover = Some(after);
        if from != to {
            let controller = self.id;
            resources.events.push_with(|| HostEvent::FailedOver { controller, from, to, after });
        }
    }

    /// When something is due: a command gets its next try, a path is well again, or a group was closed for too long.
    pub(crate) fn due(&self, now: Time) -> Time {
        let delayed = self.aside.iter().map(|aside| aside.delayed.due()).min().unwrap_or(Time::MAX);
        let well_at = if self.aside.len() > 1 { self.subsystem.well_at(now) } else { Time::MAX };
        delayed.min(well_at).min(self.lines.closed_until())
    }

    /// Does what is due.
    pub(crate) fn on_timer(&mut self, resources: &mut Resources) {
        let now = resources.now();
        self.release_due(now);
        if self.aside.len() > 1 {
            self.choose_again(now);
        }
        for command in self.lines.take_closed(now) {
            resources.done(self.id, command, Err(IoError::NoPath));
        }
    }

    /// What is known here of a path.
    pub(crate) fn complete(&self, now: Time, status: &mut PathStatus) {
        let record = &self.aside[status.id.index()].record;
        status.groups = self.subsystem.access(status.id).groups().to_vec();
        status.losses = record.losses;
        status.last_loss = record.last_loss(now).or(status.last_loss.take());
        status.last_failover = record.failover;
        if status.state == PathState::Ready && self.subsystem.is_recovering(status.id, now) {
            status.state = PathState::Recovering;
        }
    }
}
