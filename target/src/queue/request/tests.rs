//! The table of requests.

use super::*;

/// A table of so many entries at most.
fn table(entries: u16) -> Requests {
    Requests::new(3, entries)
}

fn command(cid: u16) -> SubmissionEntry {
    let mut command = SubmissionEntry::zeroed();
    command.cid.set(cid);
    command
}

#[test]
fn a_table_takes_as_many_commands_as_it_has_entries_and_not_one_more() {
    let mut states = RequestStates::default();
    let mut requests = table(2);
    let first = requests.allocate(&mut states, &command(7)).expect("first");
    requests.allocate(&mut states, &command(8)).expect("second");
    assert_eq!(requests.allocate(&mut states, &command(9)), Err(NoSlot::Full));
    requests.release(&mut states, first);
    assert!(requests.allocate(&mut states, &command(9)).is_ok());
}

#[test]
fn a_table_that_grows_keeps_its_commands_and_takes_as_many_as_it_has_entries_then() {
    let mut states = RequestStates::default();
    let mut requests = table(2);
    let first = requests.allocate(&mut states, &command(7)).expect("first");
    requests.grow(5);
    assert_eq!(requests[first].cid(), 7);
    assert_eq!(requests.allocate(&mut states, &command(7)), Err(NoSlot::IdentifierInUse));
    let more: Vec<Slot> = (10..14)
        .map(|cid| requests.allocate(&mut states, &command(cid)).expect("room for four more"))
        .collect();
    assert!(!more.contains(&first));
    assert_eq!(requests.allocate(&mut states, &command(14)), Err(NoSlot::Full));
    requests.release(&mut states, first);
    assert!(requests.allocate(&mut states, &command(7)).is_ok());
}

#[test]
fn a_table_is_made_whole_with_the_command_after_a_few() {
    let mut states = RequestStates::default();
    let mut requests = table(128);
    for cid in 0..FEW {
        let slot = requests.allocate(&mut states, &command(cid)).expect("a slot");
        requests.release(&mut states, slot);
    }
    assert_eq!(requests.slots.len(), usize::from(FEW));
    requests.allocate(&mut states, &command(0)).expect("a slot");
    assert_eq!(requests.slots.len(), 128);
    assert!(requests.slots.iter().enumerate().all(|(index, slot)| usize::from(slot.id().slot) == index));
    assert!(requests.slots.capacity() == 128 && requests.free.capacity() == 128);
}

#[test]
fn an_identifier_in_use_is_refused_until_its_command_has_completed() {
    let mut states = RequestStates::default();
    let mut requests = table(4);
    let first = requests.allocate(&mut states, &command(7)).expect("first");
    assert_eq!(requests.allocate(&mut states, &command(7)), Err(NoSlot::IdentifierInUse));
    requests.release(&mut states, first);
    assert!(requests.allocate(&mut states, &command(7)).is_ok());
}

#[test]
fn a_late_completion_of_an_earlier_life_finds_no_slot() {
    let mut states = RequestStates::default();
    let mut requests = table(1);
    let slot = requests.allocate(&mut states, &command(1)).expect("slot");
    let generation = requests[slot].id().generation;
    assert_eq!(requests.find(slot.number(), generation), None, "it has not waited yet");
    requests[slot].enter(&mut states, State::AtDisk);
    assert_eq!(requests.find(slot.number(), generation), Some(slot));
    requests.release(&mut states, slot);
    assert_eq!(requests.find(slot.number(), generation), None);
    requests.allocate(&mut states, &command(1)).expect("the same slot");
    assert_eq!(requests.find(slot.number(), generation), None);
    assert_eq!(requests.find(9, 0), None);
}

#[test]
fn the_first_failure_of_a_request_is_the_one_reported() {
    let mut request = Request::new(
        RequestId { queue: 0, slot: 0, generation: 0 },
        Pieces::try_with_capacity(0).expect("nothing"),
    );
    request.fail(Failure::invalid_field(40));
    request.fail(Failure::new(Status::INTERNAL_ERROR));
    assert_eq!(request.status.code(), Status::INVALID_FIELD);
    assert_eq!(request.location, Some(ErrorLocation::byte(40)));
}

/// A table with all its slots, and no command outstanding.
fn busy_once(states: &mut RequestStates) -> (Requests, Slot, u16) {
    let mut requests = table(128);
    let slots: Vec<Slot> =
        (0..20).map(|cid| requests.allocate(states, &command(cid)).expect("a slot")).collect();
    let (last, generation) = (slots[19], requests[slots[19]].id().generation);
    slots.into_iter().for_each(|slot| requests.release(states, slot));
    (requests, last, generation)
}

#[test]
fn a_table_that_has_been_idle_keeps_few_slots_and_is_made_whole_again() {
    let mut states = RequestStates::default();
    let (mut requests, last, generation) = busy_once(&mut states);
    assert_eq!((0..=IDLE_CHECKS).map(|_| requests.trim()).filter(|rested| *rested).count(), 1);
    assert_eq!(requests.slots.capacity(), 0);
    for cid in 0..128 {
        requests.allocate(&mut states, &command(cid)).expect("a slot");
    }
    assert_eq!(requests.allocate(&mut states, &command(128)), Err(NoSlot::Full));
    assert_eq!(requests.find(last.number(), generation), None, "a late completion finds nothing");
    assert_eq!(requests.free.len(), 0);
}

#[test]
fn a_table_that_is_used_keeps_its_slots() {
    let mut states = RequestStates::default();
    let (mut requests, ..) = busy_once(&mut states);
    for cid in 0..100 {
        let slot = requests.allocate(&mut states, &command(cid)).expect("a slot");
        requests.release(&mut states, slot);
        assert!(!requests.trim());
    }
    let waits = requests.allocate(&mut states, &command(7)).expect("a slot");
    assert!((0..100).all(|_| !requests.trim()), "a command is outstanding");
    requests.release(&mut states, waits);
    assert_eq!(requests.slots.len(), 128);
}
