//! What a controller says of access groups (Asymmetric Namespace Access): their states by the way on which its host
//! came, and how often that has changed.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ringfab_spec::log::AnaState;

use super::{Controller, Event};
use crate::model::ServedSubsystem;

/// An access group as the log page shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReportedGroup {
    /// ANA Group ID.
    pub(crate) group: u32,
    /// Its state for the controller.
    pub(crate) state: AnaState,
    /// Its namespaces that the host sees, ascending.
    pub(crate) nsids: Vec<u32>,
    /// The change count of the page when the group changed last.
    pub(crate) change_count: u64,
}

/// The state of one controller.
#[derive(Debug, Default)]
pub(super) struct AccessLog {
    /// Whether the host is asked to go elsewhere: every group is inaccessible.
    leaving: AtomicBool,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    /// Since the last reset.
    page: u64,
    /// What the page said last: nothing before it was looked at.
    said: Option<Vec<Said>>,
    /// The count of the page that the host has read last, if it has read any since the reset.
    read: Option<u64>,
}

/// What the page said of a group.
#[derive(Clone, Copy, Debug)]
struct Said {
    group: u32,
    state: AnaState,
    namespaces: u64,
    change_count: u64,
}

impl Counts {
    /// The page says this now. Returns whether that is something else. Groups get their counts.
    fn note(&mut self, groups: &mut [ReportedGroup]) -> bool {
        let digest = |nsids: &[u32]| {
            let mut hasher = DefaultHasher::new();
            nsids.hash(&mut hasher);
            hasher.finish()
        };
        let old = self.said.take();
        let next = self.page.wrapping_add(1);
        let mut changed = old.as_ref().is_some_and(|old| old.len() != groups.len());
        let one = |group: &mut ReportedGroup| {
            let namespaces = digest(&group.nsids);
            let before = old.as_ref().and_then(|old| old.iter().find(|one| one.group == group.group));
            group.change_count = match before {
                Some(one) if one.state == group.state && one.namespaces == namespaces => one.change_count,
                None if old.is_none() => self.page,
                _ => {
                    changed = true;
                    next
                }
            };
            Said { group: group.group, state: group.state, namespaces, change_count: group.change_count }
        };
        self.said = Some(groups.iter_mut().map(one).collect());
        if changed {
            self.page = next;
        }
        changed
    }
}

impl AccessLog {
    /// The controller was reset: nothing has changed since.
    pub(super) fn reset(&self) {
        *self.counts() = Counts::default();
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Controller {
    /// The state of an access group for its host.
    pub(crate) fn access_state(&self, served: &ServedSubsystem, group: u32) -> AnaState {
        let state = served.access_state(group, &self.way());
        // What is lost for good is not said to be back soon.
        if self.is_leaving() && state != AnaState::PERSISTENT_LOSS { AnaState::INACCESSIBLE } else { state }
    }

    /// Whether some group is in a state that allows no I/O, whatever its disks do.
    pub(crate) fn is_restricted(&self, served: &ServedSubsystem) -> bool {
        let groups = served.groups();
        self.is_leaving()
            || groups.may_restrict() && {
                let way = self.way();
                groups.ids().into_iter().any(|group| !groups.state(group, &way).allows_io())
            }
    }

    /// Whether its host is asked to go elsewhere.
    pub(crate) fn is_leaving(&self) -> bool {
        self.access.leaving.load(Ordering::Acquire)
    }

    /// Asks its host to go elsewhere. What is served says so to the cores.
    pub(crate) fn set_leaving(&self) {
        self.access.leaving.store(true, Ordering::Release);
    }

    /// Whether its host wants to be told of access groups that change.
    pub(crate) fn hears_of_access(&self) -> bool {
        self.events.wants(Event::AccessChanged)
    }

    /// The log page, with its change count. `read` says whether the host gets it.
    pub(crate) fn access_log(&self, served: &ServedSubsystem, read: bool) -> (u64, Vec<ReportedGroup>) {
        let mut groups = self.reported(served);
        let mut counts = self.access.counts();
        counts.note(&mut groups);
        if read {
            counts.read = Some(counts.page);
        }
        (counts.page, groups)
    }

    /// Something may be different: the host is told if the log page is. Calls the wake.
    pub(crate) fn access_may_have_changed(&self, served: &ServedSubsystem) {
        let mut groups = self.reported(served);
        let changed = {
            let mut counts = self.access.counts();
            // Before anybody has looked, nobody knows what it was.
            let first = counts.said.is_none();
            counts.note(&mut groups) || first
        };
        if changed {
            self.events.post(Event::AccessChanged);
        }
    }

    /// Whether the host has read the log page as it is now.
    pub(crate) fn has_read_access_log(&self) -> bool {
        let counts = self.access.counts();
        counts.read == Some(counts.page)
    }

    fn reported(&self, served: &ServedSubsystem) -> Vec<ReportedGroup> {
        let groups = served.groups();
        let empty = |group| ReportedGroup {
            group,
            state: self.access_state(served, group),
            nsids: Vec::new(),
            change_count: 0,
        };
        let mut all: Vec<_> = groups.ids().into_iter().map(empty).collect();
        for nsid in
            served.namespaces().map(|one| one.nsid()).filter(|nsid| served.shows(*nsid, &self.host.nqn))
        {
            if let Ok(index) = all.binary_search_by_key(&groups.of(nsid), |one| one.group) {
                all[index].nsids.push(nsid);
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(group: u32, state: AnaState, nsids: &[u32]) -> ReportedGroup {
        ReportedGroup { group, state, nsids: nsids.to_vec(), change_count: 99 }
    }

    #[test]
    fn counts_grow_with_what_changes_and_only_then() {
        let mut counts = Counts::default();
        let mut note = |groups: &mut [ReportedGroup]| {
            let changed = counts.note(groups);
            (changed, counts.page, groups.iter().map(|one| one.change_count).collect::<Vec<_>>())
        };
        let (good, bad) = (AnaState::OPTIMIZED, AnaState::INACCESSIBLE);
        assert_eq!(note(&mut [group(1, good, &[1]), group(2, good, &[])]), (false, 0, vec![0, 0]));
        assert_eq!(note(&mut [group(1, good, &[1]), group(2, good, &[])]), (false, 0, vec![0, 0]));
        assert_eq!(note(&mut [group(1, good, &[1]), group(2, bad, &[])]), (true, 1, vec![0, 1]));
        assert_eq!(note(&mut [group(1, good, &[1, 2]), group(2, bad, &[])]), (true, 2, vec![2, 1]));
        assert_eq!(note(&mut [group(1, good, &[1, 2])]), (true, 3, vec![2]));
        assert_eq!(note(&mut [group(1, good, &[1, 2]), group(7, good, &[])]), (true, 4, vec![2, 4]));
    }

    #[test]
    fn the_largest_count_is_followed_by_zero() {
        let mut counts = Counts { page: u64::MAX, ..Counts::default() };
        counts.note(&mut [group(1, AnaState::OPTIMIZED, &[])]);
        assert!(counts.note(&mut [group(1, AnaState::CHANGE, &[])]));
        assert_eq!(counts.page, 0);
    }
}
