//! I/O commands with a field that is wrong.

use ringfab_spec::{IoOpcode, SglDescriptor, Status, SubmissionEntry};

use crate::bench::{BLOCKS, Bench, Place};

/// A descriptor that nobody looks into: the command fails before.
fn some_sgl(length: u32) -> SglDescriptor {
    SglDescriptor::keyed(1 << 32, length, 1, false)
}

fn read(cid: u16, nsid: u32, lba: u64, blocks: u32) -> SubmissionEntry {
    SubmissionEntry::read(cid, nsid, lba, blocks).with_sgl(some_sgl(blocks * 512))
}

/// A command that fails, with its status and the place of the field.
fn refuse(change: impl FnOnce(u16) -> SubmissionEntry, status: Status, place: Place) {
    let (mut bench, attached) = Bench::attached();
    let cid = bench.host.next_cid();
    bench.io_refused(attached, &change(cid), (status, place));
    bench.io_works(attached);
}

#[test]
fn blocks_beyond_the_namespace_are_out_of_range_and_the_last_one_is_not() {
    let (mut bench, attached) = Bench::attached();
    for (lba, blocks) in [(BLOCKS, 1), (BLOCKS - 1, 2), (u64::MAX, 1), (u64::MAX - 1, 8), (1 << 55, 1)] {
        for make in [SubmissionEntry::read, SubmissionEntry::compare] {
            let cid = bench.host.next_cid();
            let entry = make(cid, 1, lba, blocks).with_sgl(some_sgl(blocks * 512));
            bench.io_refused(attached, &entry, (Status::LBA_OUT_OF_RANGE, Some((40, 0))));
            assert_eq!(bench.newest_error(attached).lba.get(), lba);
        }
        let cid = bench.host.next_cid();
        let entry = SubmissionEntry::write(cid, 1, lba, blocks, false).with_sgl(some_sgl(blocks * 512));
        bench.io_refused(attached, &entry, (Status::LBA_OUT_OF_RANGE, Some((40, 0))));
        let cid = bench.host.next_cid();
        let entry = SubmissionEntry::write_zeroes(cid, 1, lba, blocks, false, false);
        bench.io_refused(attached, &entry, (Status::LBA_OUT_OF_RANGE, Some((40, 0))));
    }
    let cid = bench.host.next_cid();
    let last = SubmissionEntry::read(cid, 1, BLOCKS - 1, 1);
    assert_eq!(bench.host.fetch(attached.io, &last, 512).0.status(), Status::SUCCESS);
}

#[test]
fn a_deallocation_beyond_the_namespace_is_out_of_range() {
    let (mut bench, attached) = Bench::attached();
    for (lba, blocks) in [(BLOCKS, 1), (BLOCKS - 1, 2), (u64::MAX, 1)] {
        let range = ringfab_spec::sqe::DsmRange::new(lba, blocks);
        let cid = bench.host.next_cid();
        let entry = SubmissionEntry::deallocate(cid, 1, 1);
        let data = ringfab_spec::IntoBytes::as_bytes(&range);
        let completion = bench.host.command_with(attached.io, &entry, data);
        // The range is in the data, so that there is no place in the command.
        bench.check_io(attached, &entry, &completion, (Status::LBA_OUT_OF_RANGE, None));
        // Where other commands have their first block, this one has how many ranges there are.
        assert_eq!(bench.newest_error(attached).lba.get(), 0);
    }
}

#[test]
fn a_transfer_above_mdts_is_an_invalid_field_and_one_of_exactly_mdts_is_done() {
    let (mut bench, attached) = Bench::attached();
    for blocks in [2049, 65_536] {
        let cid = bench.host.next_cid();
        let entry = SubmissionEntry::read(cid, 1, 0, blocks).with_sgl(some_sgl(0xff_ffff));
        bench.io_refused(attached, &entry, (Status::INVALID_FIELD, Some((48, 0))));
    }
    let cid = bench.host.next_cid();
    let largest = SubmissionEntry::read(cid, 1, 0, 2048);
    let (completion, bytes) = bench.host.fetch(attached.io, &largest, 1 << 20);
    assert_eq!(completion.status(), Status::SUCCESS);
    assert!(bytes.iter().all(|byte| *byte == 0));
}

#[test]
fn descriptors_of_another_kind_are_of_an_invalid_type() {
    let (mut bench, attached) = Bench::attached();
    for identifier in [0x00, 0x0a, 0x10, 0x20, 0x30, 0x41, 0x4a, 0x5a, 0x51, 0x60, 0xf0] {
        let mut bytes = [0; 16];
        bytes[8..12].copy_from_slice(&512_u32.to_le_bytes());
        bytes[15] = identifier;
        let sgl = ringfab_spec::FromBytes::read_from_bytes(&bytes).expect("16 bytes");
        let cid = bench.host.next_cid();
        let entry = SubmissionEntry::write(cid, 1, 0, 1, false).with_sgl(sgl);
        bench.io_refused(attached, &entry, (Status::SGL_TYPE_INVALID, Some((39, 0))));
    }
    bench.io_works(attached);
}

#[test]
fn data_for_the_host_cannot_go_into_a_capsule() {
    refuse(
        |cid| SubmissionEntry::read(cid, 1, 0, 1).with_sgl(SglDescriptor::in_capsule(0, 512)),
        Status::SGL_TYPE_INVALID,
        Some((39, 0)),
    );
}

#[test]
fn a_descriptor_longer_or_shorter_than_the_data_has_an_invalid_length() {
    let (mut bench, attached) = Bench::attached();
    for length in [0, 1, 511, 513, 1024, SglDescriptor::KEYED_LENGTH_MAX] {
        let cid = bench.host.next_cid();
        let entry = SubmissionEntry::write(cid, 1, 0, 1, false).with_sgl(some_sgl(length));
        bench.io_refused(attached, &entry, (Status::DATA_SGL_LENGTH_INVALID, Some((32, 0))));
    }
    // Identify Controller says so: SGLS bit 18, for descriptors longer than the data, is clear.
    let cid = bench.host.next_cid();
    let identify = SubmissionEntry::identify(cid, 1, 0, 0, 0);
    let (_, page) = bench.host.fetch(attached.admin, &identify, 4096);
    let sgls = u32::from_le_bytes([page[536], page[537], page[538], page[539]]);
    assert_eq!(sgls & 1 << 18, 0);
}

#[test]
fn data_outside_the_capsule_have_an_invalid_offset() {
    let (mut bench, attached) = Bench::attached();
    for (offset, length) in [(0, 1024), (1, 512), (512, 512), (u64::MAX, 512), (u64::MAX - 511, 512)] {
        let cid = bench.host.next_cid();
        let blocks = length / 512;
        let entry = SubmissionEntry::write(cid, 1, 0, blocks, false)
            .with_sgl(SglDescriptor::in_capsule(offset, length));
        bench.host.send(attached.io, ringfab_spec::IntoBytes::as_bytes(&entry), Some(&[0x11; 512]));
        let completion = bench.host.completion(attached.io);
        bench.check_io(attached, &entry, &completion, (Status::SGL_OFFSET_INVALID, Some((24, 0))));
    }
    bench.io_works(attached);
}

#[test]
fn in_capsule_data_that_did_not_come_have_an_invalid_offset() {
    refuse(
        |cid| SubmissionEntry::write(cid, 1, 0, 1, false).with_sgl(SglDescriptor::in_capsule(0, 512)),
        Status::SGL_OFFSET_INVALID,
        Some((24, 0)),
    );
}

#[test]
fn in_capsule_data_at_an_offset_are_found_there() {
    let (mut bench, attached) = Bench::attached();
    let cid = bench.host.next_cid();
    let entry = SubmissionEntry::write(cid, 1, 9, 1, false).with_sgl(SglDescriptor::in_capsule(7680, 512));
    let capsule: Vec<u8> = (0..8192_u32).map(|byte| (byte / 512) as u8).collect();
    bench.host.send(attached.io, ringfab_spec::IntoBytes::as_bytes(&entry), Some(&capsule));
    assert_eq!(bench.host.completion(attached.io).status(), Status::SUCCESS);
    let cid = bench.host.next_cid();
    let (_, bytes) = bench.host.fetch(attached.io, &SubmissionEntry::read(cid, 1, 9, 1), 512);
    assert_eq!(bytes, [15; 512]);
}

#[test]
fn an_address_that_wraps_around_is_an_invalid_field() {
    refuse(
        |cid| read(cid, 1, 0, 1).with_sgl(SglDescriptor::keyed(u64::MAX - 100, 512, 1, false)),
        Status::INVALID_FIELD,
        Some((24, 0)),
    );
}

#[test]
fn prps_instead_of_an_sgl_are_an_invalid_field() {
    for psdt in [0b00, 0b11] {
        refuse(
            |cid| SubmissionEntry { flags: psdt << 6, ..read(cid, 1, 0, 1) },
            Status::INVALID_FIELD,
            Some((1, 6)),
        );
    }
}

#[test]
fn fused_commands_other_than_compare_and_write_are_an_invalid_field() {
    for fuse in [0b01, 0b10, 0b11] {
        let fused = |cid| SubmissionEntry { flags: 0b01 << 6 | fuse, ..read(cid, 1, 0, 1) };
        refuse(fused, Status::INVALID_FIELD, Some((1, 0)));
    }
}

#[test]
fn opcodes_that_identify_does_not_list_are_invalid() {
    let (mut bench, attached) = Bench::attached();
    let known = [0x00, 0x01, 0x02, 0x05, 0x08, 0x09, 0x0c, 0x18, 0x19, 0x7f];
    for opcode in (0..=u8::MAX).filter(|opcode| !known.contains(opcode)) {
        let cid = bench.host.next_cid();
        let entry = SubmissionEntry::new(opcode, cid, 1);
        bench.io_refused(attached, &entry, (Status::INVALID_OPCODE, Some((0, 0))));
    }
}

#[test]
fn namespaces_that_are_not_there_are_invalid() {
    let (mut bench, attached) = Bench::attached();
    for nsid in [0, 3, 4096, 0xffff_fffe, 0xffff_ffff] {
        let cid = bench.host.next_cid();
        let entry = read(cid, nsid, 0, 1);
        bench.io_refused(attached, &entry, (Status::INVALID_NAMESPACE, Some((4, 0))));
    }
    let cid = bench.host.next_cid();
    let flush_all = SubmissionEntry::flush(cid, u32::MAX);
    assert_eq!(bench.host.command(attached.io, &flush_all).status(), Status::SUCCESS);
}

#[test]
fn the_descriptor_of_a_deallocation_may_be_longer_than_its_ranges_but_not_shorter() {
    let (mut bench, attached) = Bench::attached();
    let mut data = [0; 4096];
    let range = ringfab_spec::sqe::DsmRange::new(8, 8);
    data[..16].copy_from_slice(ringfab_spec::IntoBytes::as_bytes(&range));
    // As Linux does: one range, in memory for all 256 that there could be.
    let entry = SubmissionEntry::deallocate(bench.host.next_cid(), 1, 1);
    let completion = bench.host.command_with(attached.io, &entry, &data);
    assert_eq!(completion.status(), Status::SUCCESS);
    let cid = bench.host.next_cid();
    let entry = SubmissionEntry::deallocate(cid, 1, 2).with_sgl(some_sgl(16));
    bench.io_refused(attached, &entry, (Status::DATA_SGL_LENGTH_INVALID, Some((32, 0))));
}

#[test]
fn writes_to_a_read_only_namespace_are_refused() {
    let (mut bench, attached) = Bench::attached();
    let writes = [
        |cid| SubmissionEntry::write(cid, 2, 0, 1, false).with_sgl(some_sgl(4096)),
        |cid| SubmissionEntry::write_zeroes(cid, 2, 0, 1, false, false),
        |cid| SubmissionEntry::deallocate(cid, 2, 1).with_sgl(some_sgl(16)),
        |cid| SubmissionEntry::copy(cid, 2, 0, 1).with_sgl(some_sgl(32)),
    ];
    for write in writes {
        let cid = bench.host.next_cid();
        bench.io_refused(attached, &write(cid), (Status::NAMESPACE_WRITE_PROTECTED, None));
    }
}

#[test]
fn protection_information_that_no_namespace_has_is_an_invalid_field() {
    refuse(
        |cid| {
            let mut entry = read(cid, 1, 0, 1);
            entry.cdw12.set(1 << 29);
            entry
        },
        Status::INVALID_FIELD,
        Some((51, 2)),
    );
}

#[test]
fn a_command_takes_the_place_of_an_event_request_that_its_host_has_forgotten() {
    let (mut bench, attached) = Bench::attached();
    let cid = 0x7123;
    // Some hosts use the identifier again, for instance to shut down.
    for _ in 0..100 {
        let waits = SubmissionEntry::async_event_request(cid);
        bench.host.send(attached.admin, ringfab_spec::IntoBytes::as_bytes(&waits), None);
        let second = SubmissionEntry::keep_alive(cid);
        assert_eq!(bench.host.command(attached.admin, &second).status(), Status::SUCCESS);
    }
    let abort = SubmissionEntry::abort(bench.host.next_cid(), 0, cid);
    assert_eq!(bench.host.command(attached.admin, &abort).dw0.get(), 1, "nothing waits any more");
    bench.host.controller_status(attached.association);
}

#[test]
fn io_commands_that_fabrics_has_no_use_for_are_invalid_fields() {
    let (mut bench, attached) = Bench::attached();
    for fabrics_type in [0x00, 0x02, 0x04, 0x05, 0x06, 0x09, 0xff] {
        let cid = bench.host.next_cid();
        let entry = SubmissionEntry::new(IoOpcode::FABRICS.0, cid, fabrics_type);
        bench.io_refused(attached, &entry, (Status::INVALID_FIELD, Some((4, 0))));
    }
}
