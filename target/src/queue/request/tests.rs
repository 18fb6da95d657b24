//! The table of requests.

use super::*;

fn command(cid: u16) -> SubmissionEntry {
    let mut command = SubmissionEntry::zeroed();
    command.cid.set(cid);
    command
}

#[test]
fn the_automaton_of_a_request_is_the_documented_one() {
    let lines: Vec<String> =
        State::ALL.iter().map(|state| format!("{state:?} -> {:?}", state.followers())).collect();
    assert_eq!(
        lines,
        [
            "Free -> [NeedBuffer]",
            "NeedBuffer -> [DataIn, DataOut, Free]",
            "DataIn -> [Execute, DataOut, Free]",
            "Execute -> [DataOut, Free]",
            "DataOut -> [Complete, Free]",
            "Complete -> [Free]",
        ]
    );
}

#[test]
fn a_table_takes_as_many_commands_as_it_has_entries_and_not_one_more() {
    let mut requests = Requests::new(2);
    let first = requests.allocate(&command(7)).expect("first");
    requests.allocate(&command(8)).expect("second");
    assert_eq!(requests.allocate(&command(9)), Err(NoSlot::Full));
    requests.release(first);
    assert!(requests.allocate(&command(9)).is_ok());
}

#[test]
fn a_table_that_grows_keeps_its_commands_and_takes_as_many_as_it_has_entries_then() {
    let mut requests = Requests::new(2);
    let first = requests.allocate(&command(7)).expect("first");
    requests.grow(5);
    assert_eq!(requests[first].cid(), 7);
    assert_eq!(requests.counts()[State::Free as usize], 4);
    assert_eq!(requests.allocate(&command(7)), Err(NoSlot::IdentifierInUse));
    let more: Vec<Slot> =
        (10..14).map(|cid| requests.allocate(&command(cid)).expect("room for four more")).collect();
    assert!(!more.contains(&first));
    assert_eq!(requests.allocate(&command(14)), Err(NoSlot::Full));
    requests.release(first);
    assert!(requests.allocate(&command(7)).is_ok());
}

#[test]
fn a_table_is_made_whole_with_the_command_after_a_few() {
    let mut requests = Requests::new(128);
    for cid in 0..FEW {
        let slot = requests.allocate(&command(cid)).expect("a slot");
        requests.release(slot);
    }
    assert_eq!(requests.slots.len(), usize::from(FEW));
    requests.allocate(&command(0)).expect("a slot");
    assert_eq!(requests.slots.len(), 128);
    assert!(requests.slots.capacity() == 128 && requests.free.capacity() == 128);
}

#[test]
fn an_identifier_in_use_is_refused_until_its_command_has_completed() {
    let mut requests = Requests::new(4);
    let first = requests.allocate(&command(7)).expect("first");
    assert_eq!(requests.allocate(&command(7)), Err(NoSlot::IdentifierInUse));
    requests.release(first);
    assert!(requests.allocate(&command(7)).is_ok());
}

#[test]
fn a_late_completion_of_an_earlier_life_finds_no_slot() {
    let mut requests = Requests::new(1);
    let slot = requests.allocate(&command(1)).expect("slot");
    let generation = requests[slot].generation;
    assert_eq!(requests.find(slot.number(), generation), Some(slot));
    requests.release(slot);
    assert_eq!(requests.find(slot.number(), generation), None);
    requests.allocate(&command(1)).expect("the same slot");
    assert_eq!(requests.find(slot.number(), generation), None);
    assert_eq!(requests.find(9, 0), None);
}

#[test]
fn the_first_failure_of_a_request_is_the_one_reported() {
    let mut request = Request::new(0, Vec::new());
    request.fail(Failure::invalid_field(40));
    request.fail(Failure::new(Status::INTERNAL_ERROR));
    assert_eq!(request.status.code(), Status::INVALID_FIELD);
    assert_eq!(request.location, Some(ErrorLocation::byte(40)));
}

/// A table with all its slots, and no command outstanding.
fn busy_once() -> (Requests, Slot, u16) {
    let mut requests = Requests::new(128);
    let slots: Vec<Slot> = (0..20).map(|cid| requests.allocate(&command(cid)).expect("a slot")).collect();
    let (last, generation) = (slots[19], requests[slots[19]].generation);
    slots.into_iter().for_each(|slot| requests.release(slot));
    (requests, last, generation)
}

#[test]
fn a_table_that_has_been_idle_keeps_few_slots_and_is_made_whole_again() {
    let (mut requests, last, generation) = busy_once();
    assert_eq!((0..=LOOKS).map(|_| requests.rest()).filter(|rested| *rested).count(), 1);
    assert_eq!(requests.slots.capacity(), 0);
    for cid in 0..128 {
        requests.allocate(&command(cid)).expect("a slot");
    }
    assert_eq!(requests.allocate(&command(128)), Err(NoSlot::Full));
    assert_eq!(requests.find(last.number(), generation), None, "a late completion finds nothing");
    assert_eq!(requests.counts()[State::NeedBuffer as usize], 128);
}

#[test]
fn a_table_that_is_used_keeps_its_slots() {
    let (mut requests, ..) = busy_once();
    for cid in 0..100 {
        let slot = requests.allocate(&command(cid)).expect("a slot");
        requests.release(slot);
        assert!(!requests.rest());
    }
    let waits = requests.allocate(&command(7)).expect("a slot");
    assert!((0..100).all(|_| !requests.rest()), "a command is outstanding");
    requests.release(waits);
    assert_eq!(requests.slots.len(), 128);
}
