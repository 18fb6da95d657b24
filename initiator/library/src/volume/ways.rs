//! Which paths lead to the volumes: they come and go, and their controllers tell access states.
//!
//! Whenever something of that changes, the best paths of each group are decided anew. A command then takes one of them.

use ringfab_reactor::Time;
use ringfab_spec::Status;

use super::Volumes;
use super::records::{Failover, Record};
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
        self.waiting.expect_path(path);
        if self.records.len() <= path.index() {
            self.records.resize_with(path.index() + 1, Record::default);
        }
        self.records[path.index()] = Record::default();
        self.subsystem.expect_path(path);
    }

    /// A path leads here, perhaps again: I/O goes on.
    pub(crate) fn path_is_ready(&mut self, now: Time, path: PathId) {
        let was_lost = self.records[path.index()].losses > 0;
        let well_at = if was_lost { now + self.options.paths.well_for } else { now };
        self.subsystem.path_is_ready(path, well_at);
        self.choose_again(now);
    }

    /// A path was lost. What it has not answered is held.
    pub(crate) fn path_is_lost(&mut self, now: Time, path: PathId, error: &ConnectError) {
        self.records[path.index()].lost(now, error.clone());
        if self.waiting.held.of_path(path) > 0 {
            self.failover.get_or_insert(Failover { from: path, since: now });
        }
        self.subsystem.path_is_lost(path);
        self.choose_again(now);
        self.waiting.release_of(&self.subsystem, path);
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
        for (group, chooser) in self.waiting.lines.choosers() {
            chooser.set(subsystem.best_paths(group, now), by);
        }
        let policy = &self.options.reconnect;
        let limits = [policy.fast_io_fail_timeout, policy.controller_loss_timeout];
        self.waiting.lines.note_closed(now, |group| {
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
        self.records[from.index()].failover = Some(after);
        if from != to {
            let controller = self.id;
            resources.events.push_with(|| HostEvent::FailedOver { controller, from, to, after });
        }
    }

    /// When something is due: a command gets its next try, a path is well again, or a group was closed for too long.
    pub(crate) fn due(&self, now: Time) -> Time {
        let well_at = if self.records.len() > 1 { self.subsystem.well_at(now) } else { Time::MAX };
        self.waiting.due().min(well_at).min(self.waiting.lines.closed_until())
    }

    /// Does what is due.
    pub(crate) fn on_timer(&mut self, resources: &mut Resources) {
        let now = resources.now();
        self.waiting.release_due(&self.subsystem, now);
        if self.records.len() > 1 {
            self.choose_again(now);
        }
        for command in self.waiting.lines.take_closed(now) {
            resources.done(self.id, command, Err(IoError::NoPath));
        }
    }

    /// What is known here of a path.
    pub(crate) fn complete(&self, now: Time, status: &mut PathStatus) {
        let record = &self.records[status.id.index()];
        status.groups = self.subsystem.access(status.id).groups().to_vec();
        status.losses = record.losses;
        status.last_loss = record.last_loss(now).or(status.last_loss.take());
        status.last_failover = record.failover;
        if status.state == PathState::Ready && self.subsystem.is_recovering(status.id, now) {
            status.state = PathState::Recovering;
        }
    }
}
