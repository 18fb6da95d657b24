//! What a controller answers, as the initiator takes it: responses in any order and number, and the data of every
//! command with which it attaches.
#![no_main]

#[path = "../../../initiator/library/src/wire/answers.rs"]
#[expect(dead_code, reason = "the initiator uses more of it")]
mod answers;
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

use libfuzzer_sys::fuzz_target;
use ringfab_spec::{CompletionEntry, FromBytes};

use flow::SubmissionRing;
use slots::SlotTable;

/// Entries of the queue.
const ENTRIES: u16 = 9;

/// Bytes of an Identify data structure.
const IDENTIFY_BYTES: usize = 4096;

fuzz_target!(|input: &[u8]| {
    answer(input);
    let mut data = vec![0; IDENTIFY_BYTES];
    let length = input.len().min(data.len());
    data[..length].copy_from_slice(&input[..length]);
    let facts = answers::parse_controller(&data);
    for text in [&facts.names.serial, &facts.names.model, &facts.names.firmware, &facts.names.subsystem] {
        assert!(!text.chars().any(char::is_control), "{text:?} could write to a terminal");
    }
    black_box((answers::parse_namespace(&data), answers::parse_nvm_limits(&data)));
    black_box((answers::parse_uuid(&data), answers::parse_uuid(input)));
    let mut list = Vec::new();
    answers::parse_active(&data, &mut list);
    assert!(!list.contains(&0) && list.len() <= IDENTIFY_BYTES / 4);
    black_box((answers::accept_queue_size(input), answers::reject_text(input)));
});

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
