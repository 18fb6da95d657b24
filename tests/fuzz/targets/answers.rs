//! What a controller answers, as the initiator takes it: responses in any order and number, and the data of every
//! command with which it attaches.
#![cfg_attr(feature = "libfuzzer", no_main)]

#[path = "../../../initiator/library/src/wire/answers.rs"]
#[expect(dead_code, reason = "the initiator uses more of it")]
mod answers;
#[path = "../../../initiator/library/src/wire/data.rs"]
mod data;
#[path = "../../../initiator/library/src/flow.rs"]
mod flow;
#[path = "../../../initiator/library/src/retry.rs"]
#[expect(dead_code, reason = "the initiator uses more of it")]
mod retry;
#[path = "../../../initiator/library/src/slots.rs"]
#[expect(dead_code, reason = "the initiator uses more of it")]
mod slots;

/// What `answers` and `retry` name by their places in the initiator.
mod namespace {
    pub(crate) use ringfab_initiator::NamespaceIdentity;
}
mod options {
    pub(crate) use ringfab_initiator::ReconnectPolicy;
}

use std::collections::BTreeSet;
use std::hint::black_box;

use ringfab_fuzz::fuzz_target;
use ringfab_spec::{CompletionEntry, FromBytes};

use data::{AnswerData, Short};
use flow::SubmissionRing;
use slots::SlotTable;

/// Entries of the queue.
const ENTRIES: u16 = 9;

/// Bytes of an Identify data structure.
const IDENTIFY_BYTES: usize = 4096;

fuzz_target!(|input: &[u8]| {
    answer(input);
    let mut room = vec![0; IDENTIFY_BYTES];
    let received = input.len().min(room.len());
    room[..received].copy_from_slice(&input[..received]);
    // As much as came, and as if the rest had come as zeroes.
    for received in [received, IDENTIFY_BYTES] {
        parse(AnswerData::new(&room, received));
    }
    black_box((answers::accept_queue_size(input), answers::reject_text(input)));
});

/// The data of each command with which the initiator attaches.
fn parse(data: AnswerData<'_>) {
    match answers::parse_controller(data) {
        Ok(facts) => {
            let names = &facts.names;
            for text in [&names.serial, &names.model, &names.firmware, &names.subsystem] {
                assert!(!text.chars().any(char::is_control), "{text:?} could write to a terminal");
            }
        }
        Err(short) => check_short(short, data),
    }
    let refused = [
        answers::parse_namespace(data).err(),
        answers::parse_nvm_limits(data).err(),
        answers::parse_uuid(data).err(),
    ];
    refused.into_iter().flatten().for_each(|short| check_short(short, data));
    let mut list = Vec::new();
    match answers::parse_active(data, &mut list) {
        Ok(()) => assert!(!list.contains(&0) && list.len() <= IDENTIFY_BYTES / 4),
        Err(short) => check_short(short, data),
    }
}

/// Nothing is refused that came whole.
fn check_short(short: Short, data: AnswerData<'_>) {
    assert!(short.received < short.needed && short.received as usize == data.received().len());
}

/// A queue that is kept full gets these responses, up to the first that breaks the rules.
fn answer(input: &[u8]) {
    let mut table = SlotTable::new(usize::from(ENTRIES) - 1);
    let (mut ring, mut outstanding, mut next) = (SubmissionRing::new(ENTRIES), BTreeSet::new(), 0_u32);
    for bytes in input.chunks_exact(CompletionEntry::SIZE) {
        while ring.has_room() && !table.is_full() {
            let id = table.insert(next).expect("it is not full");
            assert!(outstanding.insert((id, next)), "an identifier that is in use");
            ring.push();
            next += 1;
        }
        let entry = CompletionEntry::read_from_bytes(bytes).expect("as long as a response");
        black_box((answers::is_namespace_change(&entry), answers::parse_queue_count(&entry)));
        black_box(format!("{}", entry.status()));
        black_box((answers::parse_capabilities(entry.result()), answers::parse_status(entry.result())));
        // Any identifier of 16 bits may come; one of those that are outstanding comes often.
        let said = entry.cid.get();
        let likely = outstanding.iter().nth(usize::from(said) % (outstanding.len() + 1)).map(|(id, _)| *id);
        let id = likely.unwrap_or(said);
        let Some(command) = table.take(id) else {
            assert!(!outstanding.iter().any(|(one, _)| *one == id));
            return;
        };
        assert!(outstanding.remove(&(id, command)), "a command that was answered before");
        if !ring.advance(entry.sqhd.get(), table.len()) {
            return;
        }
    }
}
