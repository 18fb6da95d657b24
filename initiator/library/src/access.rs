//! Access states of groups of namespaces (ANA), and the log page that tells them (Base 2.0, section 5.16.1.13).
//!
//! The page is read without the namespaces of each group: Identify Namespace says to which one a namespace belongs.

use std::time::Duration;

use ringfab_spec::FromBytes;
use ringfab_spec::log::{AnaGroupDescriptor, AnaLogHeader, AnaState};

/// The access state of a group of namespaces by one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupAccess {
    /// The group (ANAGRPID).
    pub group: u32,
    /// Its state there.
    pub state: AnaState,
}

/// What a controller says of all groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AccessStates {
    /// Ascending by group; none where the controller tells no states.
    groups: Vec<GroupAccess>,
    /// The longest transition (ANATT), if it says one.
    pub(crate) transition: Option<Duration>,
}

/// Groups at most: every read of the log page is bounded by them.
pub(crate) const GROUPS_MAX: u32 = 1024;

impl AccessStates {
    /// Reads a whole log page of groups only. A controller has `count_max` groups at most.
    ///
    /// # Errors
    /// What no log page can say.
    pub(crate) fn parse(page: &[u8], count_max: u32, transition: Option<Duration>) -> Result<Self, String> {
        let (header, mut rest) =
            AnaLogHeader::read_from_prefix(page).map_err(|_| "it has no header".to_owned())?;
        let count = header.groups.get();
        if u32::from(count) > count_max {
            return Err(format!("it says it has {count} groups, of {count_max} that there are"));
        }
        let mut groups = Vec::with_capacity(count.into());
        for number in 1..=count {
            let short = |_| format!("it ends before group {number} of {count}");
            let (descriptor, behind) = AnaGroupDescriptor::read_from_prefix(rest).map_err(short)?;
            let (group, nsids) = (descriptor.group.get(), descriptor.nsids.get());
            if nsids != 0 {
                return Err(format!("group {group} lists namespaces ({nsids}), and none was asked for"));
            }
            if group == 0 {
                return Err("it has a group 0".to_owned());
            }
            groups.push(GroupAccess { group, state: descriptor.state.state() });
            rest = behind;
        }
        groups.sort_unstable_by_key(|one| one.group);
        match groups.windows(2).find(|pair| pair[0].group == pair[1].group) {
            Some(pair) => Err(format!("it has group {} twice", pair[0].group)),
            None => Ok(Self { groups, transition }),
        }
    }

    /// The bytes of a log page of groups only, as its first bytes say. A controller has `count_max` groups at most.
    pub(crate) fn page_bytes(start: &[u8], count_max: u32) -> usize {
        let count = AnaLogHeader::read_from_prefix(start).map_or(0, |(header, _)| header.groups.get());
        AnaLogHeader::SIZE + u32::from(count).min(count_max) as usize * AnaGroupDescriptor::SIZE
    }

    /// All groups, ascending.
    pub(crate) fn groups(&self) -> &[GroupAccess] {
        &self.groups
    }

    /// The state of a group. Where the controller tells none, or the namespace has no group, it is optimized. One that
    /// the page leaves out is inaccessible.
    pub(crate) fn of_group(&self, group: u32) -> AnaState {
        if self.groups.is_empty() || group == 0 {
            return AnaState::OPTIMIZED;
        }
        let found = self.groups.binary_search_by_key(&group, |one| one.group);
        found.map_or(AnaState::INACCESSIBLE, |index| self.groups[index].state)
    }

    /// A command was answered with what only this state means. Says whether the state was another one.
    pub(crate) fn set(&mut self, group: u32, state: AnaState) -> bool {
        let found = self.groups.binary_search_by_key(&group, |one| one.group);
        let Ok(index) = found else { return false };
        let before = std::mem::replace(&mut self.groups[index].state, state);
        before != state
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ringfab_spec::IntoBytes as _;

    use super::*;

    fn page(groups: &[(u32, AnaState, u32)], count: u16) -> Vec<u8> {
        let mut page = AnaLogHeader::new(7, count).as_bytes().to_vec();
        for (group, state, nsids) in groups {
            page.extend(AnaGroupDescriptor::new(*group, *state, 7, *nsids).as_bytes());
        }
        page
    }

    #[test]
    fn states_are_found_by_their_groups_in_whatever_order_the_page_has_them() {
        let page = page(&[(9, AnaState::CHANGE, 0), (2, AnaState::NON_OPTIMIZED, 0)], 2);
        assert_eq!(AccessStates::page_bytes(&page, 8), page.len());
        let mut states = AccessStates::parse(&page, 8, None).expect("a page");
        let seen: Vec<_> = [0, 2, 3, 9].map(|group| states.of_group(group)).to_vec();
        let expected =
            [AnaState::OPTIMIZED, AnaState::NON_OPTIMIZED, AnaState::INACCESSIBLE, AnaState::CHANGE];
        assert_eq!(seen, expected);
        assert!(states.set(2, AnaState::INACCESSIBLE) && !states.set(2, AnaState::INACCESSIBLE));
        assert!(!states.set(3, AnaState::OPTIMIZED), "a group that is not there stays away");
        assert_eq!(AccessStates::default().of_group(3), AnaState::OPTIMIZED, "it tells no states");
    }

    #[test]
    fn what_no_page_can_say_is_refused_with_a_sentence() {
        let good = AnaState::OPTIMIZED;
        let rows = [
            (page(&[], 0)[..15].to_vec(), "no header"),
            (page(&[(1, good, 0)], 2), "ends before group 2 of 2"),
            (page(&[(1, good, 0)], 9), "says it has 9 groups, of 8"),
            (page(&[(0, good, 0)], 1), "a group 0"),
            (page(&[(1, good, 3)], 1), "group 1 lists namespaces (3)"),
            (page(&[(4, good, 0), (4, good, 0)], 2), "group 4 twice"),
        ];
        for (page, said) in rows {
            let error = AccessStates::parse(&page, 8, None).expect_err("refused");
            assert!(error.contains(said), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_page_is_read_without_a_panic_and_is_bounded(bytes: Vec<u8>, count_max in 0_u32..GROUPS_MAX) {
            let length = AccessStates::page_bytes(&bytes, count_max);
            prop_assert!(length <= AnaLogHeader::SIZE + count_max as usize * AnaGroupDescriptor::SIZE);
            if let Ok(states) = AccessStates::parse(&bytes, count_max, None) {
                prop_assert!(states.groups().len() <= count_max as usize);
            }
        }
    }
}
