//! Nothing is sent that the controller did not announce, against a controller that refuses whatever that is.

#[allow(dead_code, reason = "each test program uses its part")]
mod support;

use std::time::Duration;

use ringfab_initiator::{
    BlockRange, ControllerId, DiscardRanges, Host, HostEvent, IoError, IoOperation, IoRequest, SubmitError,
};
use support::announced::{Announced, COMPARE, DEALLOCATES, DISCARD, VERIFY, WRITE_ZEROES};
use support::host::{attached_with, done, filled, host, next_event, nothing_for, options, until, write};
use support::{BLOCK, Peer};

fn attached(announced: Announced) -> (Host, Peer, ControllerId) {
    attached_with(|peer| peer.announced = announced, |_| {})
}

fn submit(
    attached: &mut (Host, Peer, ControllerId),
    operation: IoOperation,
) -> Result<Result<(), IoError>, SubmitError> {
    let (host, peer, controller) = attached;
    match host.submit(*controller, IoRequest { nsid: 1, tag: 1, operation }) {
        Ok(()) => Ok(done(host, peer).result),
        Err(refused) => Err(refused.reason),
    }
}

fn zeroes(nlb: u32, deallocate: bool) -> IoOperation {
    IoOperation::WriteZeroes { lba: 0, nlb, deallocate, fua: true }
}

fn discard(host: &Host, ranges: &[BlockRange]) -> IoOperation {
    IoOperation::Discard { ranges: DiscardRanges::new(host.pool(), ranges).expect("a buffer") }
}

#[test]
fn deallocating_zeroes_are_plain_zeroes_where_the_namespace_cannot_deallocate() {
    for dlfeat in [0, 1, DEALLOCATES] {
        let mut all = attached(Announced { dlfeat, ..Announced::default() });
        all.1.memory.fill(7);
        assert_eq!(submit(&mut all, zeroes(2, true)), Ok(Ok(())), "DLFEAT {dlfeat}");
        assert!(all.1.memory[..2 * BLOCK].iter().all(|byte| *byte == 0));
        assert_eq!(all.1.memory[2 * BLOCK], 7);
        let namespace = &all.0.namespaces(all.2)[0];
        assert_eq!(namespace.write_zeroes_deallocates, dlfeat == DEALLOCATES);
    }
}

#[test]
fn a_command_that_the_controller_does_not_have_is_not_sent() {
    let mut all = attached(Announced { oncs: 0, ..Announced::default() });
    let source = filled(&all.0, 1, 0);
    let discard = discard(&all.0, &[BlockRange { lba: 0, nlb: 1 }]);
    for (operation, name) in [
        (zeroes(1, false), "Write Zeroes"),
        (IoOperation::Compare { lba: 0, nlb: 1, source, offset: 0 }, "Compare"),
        (IoOperation::Verify { lba: 0, nlb: 1 }, "Verify"),
        (discard, "Dataset Management"),
    ] {
        assert_eq!(submit(&mut all, operation), Err(SubmitError::NoCommand(name)));
    }
    assert_eq!(all.1.executed, [], "nothing reached the controller");
    let mut all =
        attached(Announced { oncs: COMPARE | VERIFY | WRITE_ZEROES | DISCARD, ..Announced::default() });
    assert_eq!(submit(&mut all, IoOperation::Verify { lba: 0, nlb: 1 }), Ok(Ok(())));
}

/// The opcode of each I/O that a program can ask for. There are no others: docs/not-there.md says what is never sent.
fn opcode(operation: &IoOperation) -> u8 {
    match operation {
        IoOperation::Flush => 0,
        IoOperation::Write { .. } => 1,
        IoOperation::Read { .. } => 2,
        IoOperation::Compare { .. } => 5,
        IoOperation::WriteZeroes { .. } => 8,
        IoOperation::Discard { .. } => 9,
        IoOperation::Verify { .. } => 12,
        other => panic!("{other:?} has no row here"),
    }
}

#[test]
fn of_a_controller_that_has_everything_seven_commands_are_used_and_none_is_fused() {
    let mut all = attached(Announced { oncs: u16::MAX, ..Announced::default() });
    let source = filled(&all.0, 1, 0);
    let buffer = all.0.pool().take(BLOCK).expect("a buffer");
    let operations = [
        IoOperation::Flush,
        IoOperation::Write { lba: 0, nlb: 1, source: source.clone(), offset: 0, fua: true },
        IoOperation::Read { lba: 0, nlb: 1, buffer },
        IoOperation::Compare { lba: 0, nlb: 1, source, offset: 0 },
        zeroes(1, true),
        discard(&all.0, &[BlockRange { lba: 0, nlb: 1 }]),
        IoOperation::Verify { lba: 0, nlb: 1 },
    ];
    let opcodes: Vec<u8> = operations.iter().map(opcode).collect();
    for operation in operations {
        assert_eq!(submit(&mut all, operation), Ok(Ok(())));
    }
    assert_eq!(all.1.executed, opcodes, "the controller refuses every half of a fused command");
}

#[test]
fn a_namespace_with_metadata_is_not_used() {
    let (mut host, mut peer) = (host(), Peer::new());
    peer.announced.metadata_bytes = 8;
    host.attach(options(&peer));
    let HostEvent::Failed { error, .. } = next_event(&mut host, &mut peer) else { panic!("it was attached") };
    let said = error.to_string();
    assert!(said.contains("namespace 1") && said.contains("8 bytes of metadata"), "{said}");
}

#[test]
fn lengths_keep_to_the_limits_of_the_controller() {
    // Two pages of 4 KiB each.
    let limited = Announced { vsl: 1, wzsl: 1, oncs: VERIFY | WRITE_ZEROES, ..Announced::default() };
    let mut all = attached(limited);
    let namespace = all.0.namespaces(all.2)[0].clone();
    assert_eq!((namespace.verify_blocks_max, namespace.write_zeroes_blocks_max), (2, 2));
    assert_eq!(submit(&mut all, zeroes(2, false)), Ok(Ok(())));
    assert_eq!(submit(&mut all, zeroes(3, false)), Err(SubmitError::Length));
    assert_eq!(submit(&mut all, IoOperation::Verify { lba: 0, nlb: 2 }), Ok(Ok(())));
    assert_eq!(submit(&mut all, IoOperation::Verify { lba: 0, nlb: 3 }), Err(SubmitError::Length));
    // Without limits that are told, those of transfers hold.
    let mut all = attached(Announced { limits: false, ..Announced::default() });
    assert_eq!(all.0.namespaces(all.2)[0].write_zeroes_blocks_max, 16);
    assert_eq!(submit(&mut all, zeroes(16, false)), Ok(Ok(())));
    assert_eq!(submit(&mut all, zeroes(17, false)), Err(SubmitError::Length));
}

#[test]
fn ranges_keep_to_the_limits_of_the_controller_and_to_the_namespace() {
    let limited = Announced { dmrl: 2, dmrsl: 4, dmsl: 6, ..Announced::default() };
    let mut all = attached(limited);
    let range = |lba, nlb| BlockRange { lba, nlb };
    for (ranges, expected) in [
        (&[range(0, 4), range(8, 2)][..], Ok(Ok(()))),
        (&[range(0, 5)], Err(SubmitError::Length)),
        (&[range(0, 4), range(8, 3)], Err(SubmitError::Length)),
        (&[range(0, 1), range(2, 1), range(4, 1)], Err(SubmitError::Length)),
        (&[range(255, 2)], Err(SubmitError::Range)),
        (&[range(u64::MAX, 2)], Err(SubmitError::Range)),
    ] {
        let operation = discard(&all.0, ranges);
        assert_eq!(submit(&mut all, operation), expected, "{ranges:?}");
    }
}

#[test]
fn an_old_controller_is_not_asked_for_what_came_later() {
    for (version, asked) in [(0x0001_0201, false), (0x0001_0300, true)] {
        let all = attached(Announced { version, ..Announced::default() });
        assert_eq!(all.1.identified.contains(&3), asked, "descriptors of {version:#x}");
    }
}

#[test]
fn as_many_aborts_are_asked_for_at_once_as_the_controller_takes() {
    let prepare = |peer: &mut Peer| peer.announced.acl = 1;
    let timeout = Duration::from_millis(200);
    let (mut host, mut peer, controller) = attached_with(prepare, |options| options.timeouts.io = timeout);
    (peer.faults.mute, peer.faults.mute_abort, peer.aborts) = (true, true, true);
    for tag in 0..3 {
        let request = write(&host, tag, tag, 1, 9);
        host.submit(controller, request).expect("taken");
    }
    until(&mut host, &mut peer, |peer| !peer.aborts_withheld.is_empty());
    // Shorter than what makes the host give the connection up.
    nothing_for(&mut host, &mut peer, timeout / 2);
    assert_eq!(peer.aborts_withheld.len(), 2);
    peer.answer_aborts();
    for _ in 0..3 {
        assert_eq!(done(&mut host, &mut peer).result, Err(IoError::TimedOut));
    }
}
