//! Descriptors that name memory which the host did not give: the target's RDMA READ or WRITE is a violation at the
//! host's RNIC, which ends that connection with a Terminate, and nothing else ends.

use ringfab_fabric::rdma::{Access, DisconnectReason};
use ringfab_spec::property::offset;
use ringfab_spec::sqe::PropertySize;
use ringfab_spec::{IntoBytes, SglDescriptor, Status, SubmissionEntry};

use crate::bench::Bench;

/// Sends a command with a descriptor made from a region; that queue ends, its controller does not.
fn ends_only_its_queue(
    access: Access,
    entry: impl FnOnce(u16) -> SubmissionEntry,
    descriptor: impl FnOnce(u64, u32) -> SglDescriptor,
) {
    let (mut bench, attached) = Bench::attached();
    let region = bench.host.expose(&[0x77; 4096], access);
    let sgl = descriptor(region.remote.address, region.remote.key);
    let cid = bench.host.next_cid();
    bench.host.send(attached.io, entry(cid).with_sgl(sgl).as_bytes(), None);
    let reason = bench.host.end(attached.io);
    assert!(matches!(reason, DisconnectReason::Violation(_)), "{reason:?}");
    assert_eq!(region.bytes(), [0x77; 4096], "nothing was written");
    bench.host.revoke(region);
    let cid = bench.host.next_cid();
    let csts = SubmissionEntry::property_get(cid, offset::CSTS, PropertySize::Four);
    assert_eq!(bench.host.command(attached.admin, &csts).result(), 1, "the controller is still ready");
    let again = bench.host.attach_io(attached.association, 1, 32);
    bench.io_works(crate::bench::Attached { io: again, ..attached });
    assert_eq!(bench.host.pool_usage().taken, 0, "the host has all its memory back");
}

fn write(cid: u16) -> SubmissionEntry {
    SubmissionEntry::write(cid, 1, 0, 8, false)
}

fn read(cid: u16) -> SubmissionEntry {
    SubmissionEntry::read(cid, 1, 0, 8)
}

#[test]
fn a_wrong_stag_to_read_from_ends_the_queue() {
    ends_only_its_queue(Access::RemoteRead, write, |address, key| {
        SglDescriptor::keyed(address, 4096, key ^ 0x0100, false)
    });
}

#[test]
fn a_wrong_stag_to_write_to_ends_the_queue() {
    ends_only_its_queue(Access::RemoteWrite, read, |address, key| {
        SglDescriptor::keyed(address, 4096, key ^ 0x0100, false)
    });
}

#[test]
fn a_read_beyond_the_region_ends_the_queue() {
    let longer = |cid| SubmissionEntry::write(cid, 1, 0, 9, false);
    ends_only_its_queue(Access::RemoteRead, longer, |address, key| {
        SglDescriptor::keyed(address, 4608, key, false)
    });
}

#[test]
fn a_write_beyond_the_region_ends_the_queue() {
    ends_only_its_queue(Access::RemoteWrite, read, |address, key| {
        SglDescriptor::keyed(address + 1, 4096, key, false)
    });
}

#[test]
fn a_write_before_the_region_ends_the_queue() {
    ends_only_its_queue(Access::RemoteWrite, read, |address, key| {
        SglDescriptor::keyed(address - 1, 4096, key, false)
    });
}

#[test]
fn a_write_to_a_region_for_reading_ends_the_queue() {
    ends_only_its_queue(Access::RemoteRead, read, |address, key| {
        SglDescriptor::keyed(address, 4096, key, false)
    });
}

#[test]
fn a_read_from_a_region_for_writing_ends_the_queue() {
    ends_only_its_queue(Access::RemoteWrite, write, |address, key| {
        SglDescriptor::keyed(address, 4096, key, false)
    });
}

#[test]
fn a_region_that_was_invalidated_cannot_be_used_again() {
    let (mut bench, attached) = Bench::attached();
    let region = bench.host.expose(&[0; 4096], Access::RemoteWrite);
    let remote = region.remote;
    let sgl = SglDescriptor::keyed(remote.address, 4096, remote.key, true);
    let cid = bench.host.next_cid();
    let completion = bench.host.command(attached.io, &read(cid).with_sgl(sgl));
    assert_eq!(completion.status(), Status::SUCCESS);
    let cid = bench.host.next_cid();
    bench.host.send(attached.io, read(cid).with_sgl(sgl).as_bytes(), None);
    let reason = bench.host.end(attached.io);
    assert!(matches!(reason, DisconnectReason::Violation(_)), "{reason:?}");
    bench.host.revoke(region);
}
