//! The states of access groups for one controller: by the way on which its host came.

use std::sync::atomic::Ordering;

use ringfab_spec::log::AnaState;

use super::access_log::ReportedGroup;
use super::{Controller, Event};
use crate::model::ServedSubsystem;

/// What a host may access by a controller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access<'a>(pub(crate) &'a Controller);

impl Access<'_> {
    /// The state of an access group for its host.
    pub(crate) fn state(&self, served: &ServedSubsystem, group: u32) -> AnaState {
        let state = served.access_state(group, &self.0.way());
        // What is lost for good is not said to be back soon.
        if self.is_leaving() && state != AnaState::PERSISTENT_LOSS { AnaState::INACCESSIBLE } else { state }
    }

    /// Whether some group is in a state that allows no I/O, whatever its disks do.
    pub(crate) fn is_restricted(&self, served: &ServedSubsystem) -> bool {
        let groups = served.groups();
        self.is_leaving()
            || groups.may_restrict() && {
                let way = self.0.way();
                groups.ids().into_iter().any(|group| !groups.state(group, &way).allows_io())
            }
    }

    /// Whether its host is asked to go elsewhere.
    pub(crate) fn is_leaving(&self) -> bool {
        self.0.access.leaving.load(Ordering::Acquire)
    }

    /// Asks its host to go elsewhere. What is served says so to the cores.
    pub(crate) fn set_leaving(&self) {
        self.0.access.leaving.store(true, Ordering::Release);
    }

    /// Whether its host wants to be told of access groups that change.
    pub(crate) fn hears_of_it(&self) -> bool {
        self.0.events.wants(Event::AccessChanged)
    }

    /// The log page, with its change count. `read` says whether the host gets it.
    pub(crate) fn log(&self, served: &ServedSubsystem, read: bool) -> (u64, Vec<ReportedGroup>) {
        let mut groups = self.reported(served);
        let mut counts = self.0.access.counts();
        counts.note(&mut groups);
        if read {
            counts.read = Some(counts.page);
        }
        (counts.page, groups)
    }

    /// Something may be different: the host is told if the log page is. Calls the wake.
    pub(crate) fn may_have_changed(&self, served: &ServedSubsystem) {
        let mut groups = self.reported(served);
        let changed = {
            let mut counts = self.0.access.counts();
            // Before anybody has looked, nobody knows what it was.
            let first = counts.said.is_none();
            counts.note(&mut groups) || first
        };
        if changed {
            self.0.events.post(Event::AccessChanged);
        }
    }

    /// Whether the host has read the log page as it is now.
    pub(crate) fn has_read_log(&self) -> bool {
        let counts = self.0.access.counts();
        counts.read == Some(counts.page)
    }

    fn reported(&self, served: &ServedSubsystem) -> Vec<ReportedGroup> {
        let groups = served.groups();
        let empty = |group| ReportedGroup {
            group,
            state: self.state(served, group),
            nsids: Vec::new(),
            change_count: 0,
        };
        let mut all: Vec<_> = groups.ids().into_iter().map(empty).collect();
        for nsid in
            served.namespaces().map(|one| one.nsid()).filter(|nsid| served.shows(*nsid, &self.0.host.nqn))
        {
            if let Ok(index) = all.binary_search_by_key(&groups.of(nsid), |one| one.group) {
                all[index].nsids.push(nsid);
            }
        }
        all
    }
}
