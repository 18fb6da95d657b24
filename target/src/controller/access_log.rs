//! What a controller has said of access groups (Asymmetric Namespace Access), and how often that has changed.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ringfab_spec::log::AnaState;

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
    pub(super) leaving: AtomicBool,
    counts: Mutex<Counts>,
}

/// How often what the page says has changed.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Since the last reset.
    pub(super) page: u64,
    /// What the page said last: nothing before it was looked at.
    pub(super) said: Option<Vec<Said>>,
    /// The count of the page that the host has read last, if it has read any since the reset.
    pub(super) read: Option<u64>,
}

/// What the page said of a group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Said {
    group: u32,
    state: AnaState,
    namespaces: u64,
    change_count: u64,
}

impl Counts {
    /// The page says this now. Returns whether that is something else. Groups get their counts.
    pub(super) fn note(&mut self, groups: &mut [ReportedGroup]) -> bool {
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

    pub(super) fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
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
