//! Admin commands and properties that are wrong.

use std::time::{Duration, Instant};

use ringfab_fabric::rdma::DisconnectReason;
use ringfab_spec::lba_status::{LbaStatusAction, LbaStatusHeader};
use ringfab_spec::property::offset;
use ringfab_spec::sqe::PropertySize;
use ringfab_spec::{FromBytes as _, IntoBytes, SglDescriptor, Status, SubmissionEntry};

use crate::bench::{Attached, Bench};

#[test]
fn properties_that_do_not_exist_or_have_another_size_are_invalid_fields() {
    let (mut bench, attached) = Bench::attached();
    let (four, eight) = (PropertySize::Four, PropertySize::Eight);
    for (offset, size, byte) in [
        (0x24, four, 44),
        (0x02, four, 44),
        (0x1000, eight, 44),
        (u32::MAX, four, 44),
        (offset::CAP, four, 40),
        (offset::VS, eight, 40),
        (offset::CC, eight, 40),
    ] {
        let entry = SubmissionEntry::property_get(bench.host.next_cid(), offset, size);
        bench.admin_refused(attached, &entry, (Status::INVALID_FIELD, Some((byte, 0))));
    }
    for (offset, size, byte) in
        [(offset::CAP, eight, 44), (offset::CSTS, four, 44), (0x30, four, 44), (offset::CC, eight, 40)]
    {
        let entry = SubmissionEntry::property_set(bench.host.next_cid(), offset, size, 0);
        bench.admin_refused(attached, &entry, (Status::INVALID_FIELD, Some((byte, 0))));
    }
    bench.io_works(attached);
}

#[test]
fn admin_commands_before_the_controller_is_ready_are_out_of_sequence() {
    let mut bench = Bench::new();
    let association = bench.host.associate(0);
    let early =
        SubmissionEntry::identify(77, 1, 0, 0, 0).with_sgl(SglDescriptor::keyed(1 << 32, 4096, 1, false));
    let status = Status::COMMAND_SEQUENCE_ERROR.with_dnr();
    assert_eq!(bench.host.command(association.admin, &early).status(), status);
    bench.host.enable(association);
    let attached = Attached { association, admin: association.admin, io: association.admin };
    bench.is_logged(attached, 0, &early, (status, None));
}

#[test]
fn opcodes_of_queues_and_of_other_controllers_are_invalid() {
    let (mut bench, attached) = Bench::attached();
    let known = [0x02, 0x06, 0x08, 0x09, 0x0a, 0x0c, 0x18, 0x38, 0x7f, 0x86];
    for opcode in (0..=u8::MAX).filter(|opcode| !known.contains(opcode)) {
        let entry = SubmissionEntry::new(opcode, bench.host.next_cid(), 0);
        bench.admin_refused(attached, &entry, (Status::INVALID_OPCODE, Some((0, 0))));
    }
}

#[test]
fn identify_of_an_unknown_structure_or_namespace_is_refused() {
    let (mut bench, attached) = Bench::attached();
    let sgl = SglDescriptor::keyed(1 << 32, 4096, 1, false);
    let unknown = SubmissionEntry::identify(bench.host.next_cid(), 0x7e, 0, 0, 0).with_sgl(sgl);
    bench.admin_refused(attached, &unknown, (Status::INVALID_FIELD, Some((40, 0))));
    let nobody = SubmissionEntry::identify(bench.host.next_cid(), 0, 0xffff_fffe, 0, 0).with_sgl(sgl);
    bench.admin_refused(attached, &nobody, (Status::INVALID_NAMESPACE, Some((4, 0))));
}

#[test]
fn get_lba_status_is_refused_where_it_makes_no_sense() {
    let (mut bench, attached) = Bench::attached();
    let sgl = SglDescriptor::keyed(1 << 32, 4096, 1, false);
    let status = |cid, nsid, slba, length, action| {
        SubmissionEntry::get_lba_status(cid, nsid, slba, length, 4096, action).with_sgl(sgl)
    };
    let allocated = LbaStatusAction::ALLOCATED;
    for (nsid, slba, length, action, refused, byte) in [
        (9, 0, 1, allocated, Status::INVALID_NAMESPACE, 4),
        (u32::MAX, 0, 1, allocated, Status::INVALID_NAMESPACE, 4),
        (1, 0, 1, LbaStatusAction::SCAN, Status::INVALID_FIELD, 55),
        (1, 0, 1, LbaStatusAction::TRACKED, Status::INVALID_FIELD, 55),
        (1, u64::MAX, 1, allocated, Status::LBA_OUT_OF_RANGE, 40),
        (1, u64::MAX, 0, allocated, Status::LBA_OUT_OF_RANGE, 40),
        (1, 1 << 40, 5, allocated, Status::LBA_OUT_OF_RANGE, 40),
    ] {
        let entry = status(bench.host.next_cid(), nsid, slba, length, action);
        bench.admin_refused(attached, &entry, (refused, Some((byte, 0))));
    }
    // More data than an admin command may have.
    let mut entry = status(bench.host.next_cid(), 1, 0, 1, allocated);
    entry.cdw12.set(u32::MAX);
    bench.admin_refused(attached, &entry, (Status::INVALID_FIELD, Some((48, 0))));
}

#[test]
fn get_lba_status_answers_with_as_much_as_the_host_has_memory_for() {
    let (mut bench, attached) = Bench::attached();
    for (memory, descriptors) in [(4096, 1), (28, 1), (24, 1), (20, 0), (8, 0)] {
        // It allows more than that.
        let entry =
            SubmissionEntry::get_lba_status(bench.host.next_cid(), 1, 0, 8, 4096, LbaStatusAction::ALLOCATED);
        let (completion, bytes) = bench.host.fetch(attached.admin, &entry, memory);
        assert_eq!(completion.status(), Status::SUCCESS, "{memory}");
        let (header, _) = LbaStatusHeader::ref_from_prefix(&bytes).expect("a header");
        assert_eq!((bytes.len(), header.nlsd.get()), (memory, descriptors));
        assert_eq!(header.is_complete(), descriptors == 1, "{memory}");
    }
    // Less than MNDW allows is no mistake; more is.
    let sgl = SglDescriptor::keyed(1 << 32, 4096, 1, false);
    let less =
        SubmissionEntry::get_lba_status(bench.host.next_cid(), 1, 0, 8, 64, LbaStatusAction::ALLOCATED);
    bench.admin_refused(attached, &less.with_sgl(sgl), (Status::DATA_SGL_LENGTH_INVALID, Some((32, 0))));
}

#[test]
fn log_pages_out_of_range_or_unknown_are_refused() {
    let (mut bench, attached) = Bench::attached();
    let sgl = |bytes| SglDescriptor::keyed(1 << 32, bytes, 1, false);
    let page = |cid, lid, offset, length: u32| {
        SubmissionEntry::get_log_page(cid, lid, u32::MAX, offset, length, false).with_sgl(sgl(length))
    };
    for (lid, log_offset, length, status, byte) in [
        (0x7f, 0, 64, Status::INVALID_LOG_PAGE, 40),
        (0x01, 64 * 64 + 4, 64, Status::INVALID_FIELD, 48),
        (0x02, 516, 4, Status::INVALID_FIELD, 48),
        (0x02, u64::MAX - 3, 4, Status::INVALID_FIELD, 48),
        (0x02, 3, 4, Status::INVALID_FIELD, 48),
        (0x02, 0, (1 << 20) + 4, Status::INVALID_FIELD, 42),
    ] {
        let entry = page(bench.host.next_cid(), lid, log_offset, length);
        bench.admin_refused(attached, &entry, (status, Some((byte, 0))));
    }
    let most = SubmissionEntry::get_log_page(bench.host.next_cid(), 0x02, u32::MAX, 0, 1 << 20, false);
    let (completion, bytes) = bench.host.fetch(attached.admin, &most, 1 << 20);
    assert_eq!(completion.status(), Status::SUCCESS, "as much as MDTS allows");
    assert!(bytes[512..].iter().all(|byte| *byte == 0), "there is nothing behind the page");
    let last = SubmissionEntry::get_log_page(bench.host.next_cid(), 0x02, u32::MAX, 508, 4, false);
    assert_eq!(bench.host.fetch(attached.admin, &last, 4).0.status(), Status::SUCCESS);
}

#[test]
fn features_that_are_unknown_or_cannot_be_saved_are_refused() {
    let (mut bench, attached) = Bench::attached();
    let unknown = SubmissionEntry::set_features(bench.host.next_cid(), 0x7d, false, 0);
    bench.admin_refused(attached, &unknown, (Status::INVALID_FIELD, Some((40, 0))));
    let saved = SubmissionEntry::set_features(bench.host.next_cid(), 0x0f, true, 1000);
    bench.admin_refused(attached, &saved, (Status::FEATURE_NOT_SAVEABLE, Some((43, 7))));
}

#[test]
fn the_number_of_queues_is_settled_before_the_first_io_queue() {
    let (mut bench, attached) = Bench::attached();
    let entry = SubmissionEntry::set_features(bench.host.next_cid(), 0x07, false, 0);
    bench.admin_refused(attached, &entry, (Status::COMMAND_SEQUENCE_ERROR, None));
}

#[test]
fn one_event_request_more_than_the_limit_is_refused() {
    let (mut bench, attached) = Bench::attached();
    for cid in 0x7100..0x7104 {
        bench.host.send(attached.admin, SubmissionEntry::async_event_request(cid).as_bytes(), None);
    }
    assert!(bench.host.is_silent(attached.admin, Duration::from_millis(50)), "four wait");
    let fifth = SubmissionEntry::async_event_request(0x7104);
    bench.admin_refused(attached, &fifth, (Status::AER_LIMIT_EXCEEDED, None));
}

#[test]
fn what_waits_is_aborted_and_what_is_unknown_is_not() {
    let (mut bench, attached) = Bench::attached();
    bench.host.send(attached.admin, SubmissionEntry::async_event_request(0x7100).as_bytes(), None);
    let abort = SubmissionEntry::abort(0x7101, 0, 0x7100);
    bench.host.send(attached.admin, abort.as_bytes(), None);
    let aborted = bench.host.completion(attached.admin);
    assert_eq!((aborted.cid.get(), aborted.status()), (0x7100, Status::ABORT_REQUESTED));
    let answer = bench.host.completion(attached.admin);
    assert_eq!((answer.cid.get(), answer.status(), answer.dw0.get()), (0x7101, Status::SUCCESS, 0));
    for (queue_id, command_id) in [(0, 0x7100), (0, 0x7abc), (1, 3), (2, 3), (u16::MAX, u16::MAX)] {
        let abort = SubmissionEntry::abort(bench.host.next_cid(), queue_id, command_id);
        let answer = bench.host.command(attached.admin, &abort);
        assert_eq!((answer.status(), answer.dw0.get()), (Status::SUCCESS, 1), "not aborted");
    }
    let itself = SubmissionEntry::abort(0x7102, 0, 0x7102);
    assert_eq!(bench.host.command(attached.admin, &itself).dw0.get(), 1, "an Abort does not wait");
}

#[test]
fn a_reset_drops_the_event_requests_and_their_identifiers_and_entries_are_free() {
    let (mut bench, attached) = Bench::attached();
    for round in 0..20 {
        for cid in 0x7100..0x7104 {
            bench.host.send(attached.admin, SubmissionEntry::async_event_request(cid).as_bytes(), None);
        }
        assert!(bench.host.is_silent(attached.admin, Duration::from_millis(20)), "round {round}");
        bench.host.set_configuration(attached.association, 0);
        bench.host.wait_ready(attached.association, 0);
        bench.host.enable(attached.association);
    }
    let entry = SubmissionEntry::keep_alive(0x7100);
    assert_eq!(bench.host.command(attached.admin, &entry).status(), Status::SUCCESS);
}

#[test]
fn a_reset_ends_the_io_queues() {
    let (mut bench, attached) = Bench::attached();
    bench.host.set_configuration(attached.association, 0);
    assert_eq!(bench.host.end(attached.io), DisconnectReason::PeerClosed);
    bench.host.wait_ready(attached.association, 0);
    bench.host.enable(attached.association);
    let io = bench.host.attach_io(attached.association, 1, 32);
    bench.io_works(Attached { io, ..attached });
}

#[test]
fn a_configuration_that_cannot_run_is_fatal_until_a_reset() {
    let mut bench = Bench::new();
    let association = bench.host.associate(0);
    bench.host.set_configuration(association, 0x0046_0081);
    assert_eq!(bench.host.controller_status(association) & 3, 2, "CSTS.CFS without CSTS.RDY");
    bench.host.set_configuration(association, 0);
    bench.host.wait_ready(association, 0);
    bench.host.enable(association);
}

#[test]
fn io_after_a_shutdown_is_out_of_sequence() {
    let (mut bench, attached) = Bench::attached();
    bench.host.set_configuration(attached.association, 0x0046_4001);
    let entry = SubmissionEntry::flush(bench.host.next_cid(), 1);
    bench.io_refused(attached, &entry, (Status::COMMAND_SEQUENCE_ERROR, None));
    assert_eq!(bench.host.controller_status(attached.association) >> 2 & 3, 2, "complete");
}

#[test]
fn a_silent_host_loses_its_controller_and_one_that_speaks_keeps_it() {
    let mut bench = Bench::new();
    let speaking = bench.host.associate(1000);
    bench.host.enable(speaking);
    let silent = bench.host.associate(1000);
    bench.host.enable(silent);
    let io = bench.host.attach_io(silent, 1, 32);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(700) {
        bench.host.controller_status(speaking);
    }
    let before = bench.target.target.controllers().len();
    while bench.target.target.controllers().len() == before && begun.elapsed() < Duration::from_secs(10) {
        let keep_alive = SubmissionEntry::keep_alive(bench.host.next_cid());
        assert_eq!(bench.host.command(speaking.admin, &keep_alive).status(), Status::SUCCESS);
        std::thread::sleep(Duration::from_millis(20));
    }
    let waited = begun.elapsed();
    assert!((Duration::from_millis(900)..Duration::from_secs(5)).contains(&waited), "{waited:?}");
    assert_eq!(bench.host.end(silent.admin), DisconnectReason::PeerClosed);
    assert_eq!(bench.host.end(io), DisconnectReason::PeerClosed);
    bench.host.controller_status(speaking);
}
