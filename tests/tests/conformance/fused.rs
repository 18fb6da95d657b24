//! The fused operation Compare and Write.

use std::time::{Duration, Instant};

use ringfab_fabric::rdma::Access;
use ringfab_spec::{IntoBytes, SglDescriptor, Status, SubmissionEntry};
use ringfab_tests::PATIENCE;

use crate::bench::{Attached, BLOCKS, Bench};

const FIRST: u8 = SubmissionEntry::FUSE_FIRST;
const SECOND: u8 = SubmissionEntry::FUSE_SECOND;

impl Bench {
    fn compare_half(&mut self, lba: u64, blocks: u32) -> SubmissionEntry {
        SubmissionEntry::compare(self.host.next_cid(), 1, lba, blocks).with_fuse(FIRST)
    }

    fn write_half(&mut self, lba: u64, blocks: u32) -> SubmissionEntry {
        SubmissionEntry::write(self.host.next_cid(), 1, lba, blocks, false).with_fuse(SECOND)
    }

    /// Sends a command with one byte, many times, in its capsule.
    fn send_filled(&mut self, attached: Attached, entry: &SubmissionEntry, byte: u8, length: usize) {
        let entry = entry.with_sgl(SglDescriptor::in_capsule(0, length as u32));
        self.host.send(attached.io, entry.as_bytes(), Some(&vec![byte; length]));
    }

    /// The next responses: identifiers and statuses.
    fn responses<const N: usize>(&mut self, attached: Attached) -> [(u16, Status); N] {
        std::array::from_fn(|_| {
            let entry = self.host.completion(attached.io);
            (entry.cid.get(), entry.status())
        })
    }

    /// Compares one block with one byte, writes another in its place, and gives the statuses.
    fn exchange(&mut self, attached: Attached, lba: u64, from: u8, to: u8) -> [Status; 2] {
        let (compare, write) = (self.compare_half(lba, 1), self.write_half(lba, 1));
        self.send_filled(attached, &compare, from, 512);
        self.send_filled(attached, &write, to, 512);
        let [first, second] = self.responses(attached);
        assert_eq!((first.0, second.0), (compare.cid.get(), write.cid.get()), "in their order");
        [first.1, second.1]
    }

    fn byte_at(&mut self, attached: Attached, lba: u64) -> u8 {
        let entry = SubmissionEntry::read(self.host.next_cid(), 1, lba, 1);
        let (completion, bytes) = self.host.fetch(attached.io, &entry, 512);
        assert_eq!(completion.status(), Status::SUCCESS);
        assert!(bytes.iter().all(|byte| *byte == bytes[0]));
        bytes[0]
    }
}

#[test]
fn the_write_of_a_pair_is_done_only_if_its_compare_succeeds() {
    let (mut bench, attached) = Bench::attached();
    let both = [Status::SUCCESS; 2];
    assert_eq!(bench.exchange(attached, 7, 0, 1), both);
    let neither = [Status::COMPARE_FAILURE.with_dnr(), Status::ABORTED_FAILED_FUSED.with_dnr()];
    assert_eq!(bench.exchange(attached, 7, 0, 2), neither);
    assert_eq!(bench.byte_at(attached, 7), 1);
    assert_eq!(bench.exchange(attached, 7, 1, 2), both);
    assert_eq!(bench.byte_at(attached, 7), 2);
}

#[test]
fn other_commands_may_come_between_the_halves() {
    let (mut bench, attached) = Bench::attached();
    let (compare, write) = (bench.compare_half(7, 1), bench.write_half(7, 1));
    bench.send_filled(attached, &compare, 0, 512);
    for byte in 3..6 {
        let between = SubmissionEntry::write(bench.host.next_cid(), 1, 8, 1, false);
        assert_eq!(bench.host.command_with(attached.io, &between, &[byte; 512]).status(), Status::SUCCESS);
    }
    bench.send_filled(attached, &write, 9, 512);
    let [first, second] = bench.responses(attached);
    assert_eq!([first.1, second.1], [Status::SUCCESS; 2]);
    assert_eq!((bench.byte_at(attached, 7), bench.byte_at(attached, 8)), (9, 5));
}

#[test]
fn the_data_of_a_pair_may_be_in_memory_of_the_host() {
    let (mut bench, attached) = Bench::attached();
    for capsules in [[false, false], [true, false], [false, true]] {
        let before = bench.byte_at(attached, 64);
        let length = 64 << 10;
        // Data in a capsule is bounded by the listener: 8 KiB here.
        let length = if capsules == [false, false] { length } else { 8 << 10 };
        let blocks = length as u32 / 512;
        let halves = [(bench.compare_half(64, blocks), before), (bench.write_half(64, blocks), before + 1)];
        let mut memory = Vec::new();
        for ((entry, byte), capsule) in halves.into_iter().zip(capsules) {
            if capsule {
                bench.send_filled(attached, &entry, byte, length);
            } else {
                let exposed = bench.host.expose(&vec![byte; length], Access::RemoteRead);
                bench.host.send(attached.io, entry.with_sgl(exposed.sgl()).as_bytes(), None);
                memory.push(exposed);
            }
        }
        let [first, second] = bench.responses(attached);
        assert_eq!([first.1, second.1], [Status::SUCCESS; 2], "{capsules:?}");
        memory.into_iter().for_each(|exposed| bench.host.revoke(exposed));
        assert_eq!(bench.byte_at(attached, 64 + u64::from(blocks) - 1), before + 1);
    }
}

#[test]
fn a_first_half_alone_is_aborted_by_the_next_one_or_after_a_while() {
    let (mut bench, attached) = Bench::attached();
    let missing = Status::ABORTED_MISSING_FUSED.with_dnr();
    let (alone, next) = (bench.compare_half(1, 1), bench.compare_half(2, 1));
    bench.send_filled(attached, &alone, 0, 512);
    assert!(bench.host.is_silent(attached.io, Duration::from_millis(300)), "it waits for its second half");
    bench.send_filled(attached, &next, 0, 512);
    assert_eq!(bench.responses(attached), [(alone.cid.get(), missing)]);
    assert_eq!(bench.responses(attached), [(next.cid.get(), missing)]);
    bench.check_newest(attached, &next, Status::ABORTED_MISSING_FUSED);
    // Its time is over, and so is the second's chance.
    let late = bench.write_half(2, 1);
    bench.send_filled(attached, &late, 1, 512);
    assert_eq!(bench.responses(attached), [(late.cid.get(), missing)]);
    assert_eq!(bench.byte_at(attached, 2), 0);
    assert_eq!(bench.exchange(attached, 2, 0, 1), [Status::SUCCESS; 2]);
}

#[test]
fn a_second_half_alone_is_aborted_at_once() {
    let (mut bench, attached) = Bench::attached();
    let alone = bench.write_half(3, 1);
    bench.send_filled(attached, &alone, 1, 512);
    let missing = Status::ABORTED_MISSING_FUSED.with_dnr();
    assert_eq!(bench.responses(attached), [(alone.cid.get(), missing)]);
    assert_eq!(bench.byte_at(attached, 3), 0);
}

#[test]
fn when_one_half_is_wrong_neither_is_done() {
    let (mut bench, attached) = Bench::attached();
    let failed = Status::ABORTED_FAILED_FUSED.with_dnr();
    // The first is wrong by itself, the second is, and both do not fit each other.
    let cases = [
        ((BLOCKS, 1), (BLOCKS - 1, 1), [Status::LBA_OUT_OF_RANGE.with_dnr(), failed]),
        ((BLOCKS - 1, 1), (BLOCKS, 1), [failed, Status::LBA_OUT_OF_RANGE.with_dnr()]),
        ((5, 1), (6, 1), [Status::INVALID_FIELD.with_dnr(), failed]),
        ((5, 1), (5, 2), [Status::INVALID_FIELD.with_dnr(), failed]),
    ];
    for ((compared, count), (written, written_count), statuses) in cases {
        let (compare, write) =
            (bench.compare_half(compared, count), bench.write_half(written, written_count));
        bench.send_filled(attached, &compare, 0, count as usize * 512);
        bench.send_filled(attached, &write, 1, written_count as usize * 512);
        let [first, second] = bench.responses(attached);
        assert_eq!([first, second], [(compare.cid.get(), statuses[0]), (write.cid.get(), statuses[1])]);
    }
    for lba in [5, 6, BLOCKS - 1] {
        assert_eq!(bench.byte_at(attached, lba), 0);
    }
    // More than ACWU says.
    let (compare, write) = (bench.compare_half(0, 129), bench.write_half(0, 129));
    let sgl = SglDescriptor::keyed(1 << 32, 129 * 512, 1, false);
    bench.host.send(attached.io, compare.with_sgl(sgl).as_bytes(), None);
    bench.host.send(attached.io, write.with_sgl(sgl).as_bytes(), None);
    let [first, second] = bench.responses(attached);
    assert_eq!([first.1, second.1], [Status::ATOMIC_WRITE_UNIT_EXCEEDED.with_dnr(), failed]);
}

#[test]
fn an_aborted_half_takes_the_other_with_it() {
    let (mut bench, attached) = Bench::attached();
    let (compare, write) = (bench.compare_half(4, 1), bench.write_half(4, 1));
    bench.send_filled(attached, &compare, 0, 512);
    // It comes on another connection than the Abort, which may be the first: that finds nothing then.
    let begun = Instant::now();
    loop {
        let abort = SubmissionEntry::abort(bench.host.next_cid(), 1, compare.cid.get());
        let answer = bench.host.command(attached.admin, &abort);
        assert_eq!(answer.status(), Status::SUCCESS);
        if answer.dw0.get() == 0 {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "not aborted");
    }
    assert_eq!(bench.responses(attached), [(compare.cid.get(), Status::ABORT_REQUESTED)]);
    bench.send_filled(attached, &write, 1, 512);
    let failed = Status::ABORTED_FAILED_FUSED.with_dnr();
    assert_eq!(bench.responses(attached), [(write.cid.get(), failed)]);
    assert_eq!(bench.byte_at(attached, 4), 0);
}

#[test]
fn a_connection_that_ends_between_or_during_pairs_leaves_nothing_claimed() {
    let (mut bench, attached) = Bench::attached();
    for halves in 1..=8 {
        // With commands outstanding, its controller ends with it.
        let association = bench.host.attach();
        let io = bench.host.attach_io(association, 1, 32);
        let other = Attached { association, admin: association.admin, io };
        for half in 0..halves {
            let entry = if half % 2 == 0 { bench.compare_half(40, 16) } else { bench.write_half(40, 16) };
            bench.send_filled(other, &entry, 0, 8192);
        }
        bench.host.close(io);
        // Were the blocks still claimed, this would wait for ever.
        assert_eq!(bench.byte_at(attached, 40), 0);
        assert_eq!(bench.exchange(attached, 40, 0, 0), [Status::SUCCESS; 2]);
    }
}
