//! Access groups whose state allows no I/O, and what the admin queue still says of their namespaces.

use ringfab_spec::lba_status::LbaStatusAction;
use ringfab_spec::log::AnaState;

use super::*;
use crate::config::AccessGroup;

/// The controller, with group 1 in this state.
fn in_state(state: AnaState) -> Admin {
    let target = target();
    let mut draft = target.served().draft();
    let group = AccessGroup { state, ..AccessGroup::default() };
    draft.set_access_groups(DISK, |groups| drop(groups.insert(1, group))).unwrap();
    target.publish(draft.check().unwrap()).unwrap();
    enabled(&target, DISK)
}

#[test]
fn the_size_of_a_namespace_that_is_not_accessible_stays_and_what_is_in_use_is_not_told() {
    let used = |state| {
        let page = bytes(&in_state(state), &identify(0x00, 1));
        assert_eq!((u64_at(&page, 0), u64_at(&page, 8)), (1 << 21, 1 << 21), "NSZE, NCAP");
        assert_eq!(u32_at(&page, 92), 1, "ANAGRPID");
        u64_at(&page, 16)
    };
    for state in [AnaState::OPTIMIZED, AnaState::NON_OPTIMIZED, AnaState::CHANGE] {
        assert_eq!(used(state), 1 << 21, "{state:?}");
    }
    for state in [AnaState::INACCESSIBLE, AnaState::PERSISTENT_LOSS] {
        assert_eq!(used(state), 0, "{state:?}");
    }
}

#[test]
fn the_status_of_blocks_is_not_told_where_there_is_no_access() {
    let status = SubmissionEntry::get_lba_status(1, 1, 0, 8, 64, LbaStatusAction::ALLOCATED);
    for (state, expected) in [
        (AnaState::OPTIMIZED, None),
        (AnaState::NON_OPTIMIZED, None),
        (AnaState::INACCESSIBLE, Some(Status::ANA_INACCESSIBLE)),
        (AnaState::PERSISTENT_LOSS, Some(Status::ANA_PERSISTENT_LOSS)),
        (AnaState::CHANGE, Some(Status::ANA_TRANSITION)),
    ] {
        // Do Not Retry is clear: the host is to ask on another path.
        assert_eq!(run(&in_state(state), &status).err().map(|failure| failure.status), expected, "{state:?}");
    }
}
