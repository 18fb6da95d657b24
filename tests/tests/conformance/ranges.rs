//! Verify, Copy and Dataset Management: commands whose limits Identify tells.

use std::os::unix::fs::FileExt;

use ringfab_spec::identify::{CommandSet, IdentifyController, IdentifyNamespace, IdentifyNvmController};
use ringfab_spec::sqe::{CopyRange, DsmRange};
use ringfab_spec::{CompletionEntry, FromBytes, IntoBytes, SglDescriptor, Status, SubmissionEntry};
use ringfab_tests::TestTarget;
use ringfab_tests::raw_host::RawHost;

use crate::bench::{Attached, BLOCKS, Bench};

/// Blocks with their numbers in them, from the first.
fn numbered(bench: &mut Bench, attached: Attached, blocks: u64) {
    for lba in 0..blocks {
        let entry = SubmissionEntry::write(bench.host.next_cid(), 1, lba, 1, false);
        let completion = bench.host.command_with(attached.io, &entry, &[lba as u8; 512]);
        assert_eq!(completion.status(), Status::SUCCESS);
    }
}

/// The first byte of each of some blocks.
fn read(bench: &mut Bench, attached: Attached, lba: u64, blocks: u32) -> Vec<u8> {
    let entry = SubmissionEntry::read(bench.host.next_cid(), 1, lba, blocks);
    let (completion, bytes) = bench.host.fetch(attached.io, &entry, blocks as usize * 512);
    assert_eq!(completion.status(), Status::SUCCESS);
    let whole = |block: &[u8]| block.iter().all(|byte| *byte == block[0]).then_some(block[0]);
    bytes.chunks(512).map(|block| whole(block).expect("a block of one byte")).collect()
}

fn bytes_of(ranges: &[CopyRange]) -> Vec<u8> {
    ranges.iter().flat_map(|range| range.as_bytes().to_vec()).collect()
}

/// A Copy with its ranges in the capsule.
fn copy(bench: &mut Bench, attached: Attached, to: u64, ranges: &[CopyRange]) -> CompletionEntry {
    let entry = SubmissionEntry::copy(bench.host.next_cid(), 1, to, ranges.len() as u16);
    bench.host.command_with(attached.io, &entry, &bytes_of(ranges))
}

#[test]
fn verify_reads_without_sending_anything() {
    let (mut bench, attached) = Bench::attached();
    for (lba, blocks) in [(0, 1), (BLOCKS - 1, 1), (3, 300), (0, 2048)] {
        let entry = SubmissionEntry::verify(bench.host.next_cid(), 1, lba, blocks);
        assert_eq!(bench.host.command(attached.io, &entry).status(), Status::SUCCESS);
    }
    let entry = SubmissionEntry::verify(bench.host.next_cid(), 1, BLOCKS - 1, 2);
    bench.io_refused(attached, &entry, (Status::LBA_OUT_OF_RANGE, Some((40, 0))));
    let entry = SubmissionEntry::verify(bench.host.next_cid(), 1, 0, 2049);
    bench.io_refused(attached, &entry, (Status::INVALID_FIELD, Some((48, 0))));
}

#[test]
fn copy_takes_its_ranges_in_order_from_the_capsule_or_from_memory() {
    let (mut bench, attached) = Bench::attached();
    numbered(&mut bench, attached, 16);
    let ranges = [CopyRange::new(9, 2), CopyRange::new(0, 1), CopyRange::new(4, 3)];
    assert_eq!(copy(&mut bench, attached, 100, &ranges).status(), Status::SUCCESS);
    assert_eq!(read(&mut bench, attached, 100, 7), [9, 10, 0, 4, 5, 6, 0]);
    let entry = SubmissionEntry::copy(bench.host.next_cid(), 1, 200, 3);
    let list = bench.host.expose(&bytes_of(&ranges), ringfab_fabric::rdma::Access::RemoteRead);
    let completion = bench.host.command(attached.io, &entry.with_sgl(list.sgl()));
    bench.host.revoke(list);
    assert_eq!(completion.status(), Status::SUCCESS);
    assert_eq!(read(&mut bench, attached, 200, 7), [9, 10, 0, 4, 5, 6, 0]);
}

#[test]
fn copy_moves_ranges_of_many_pieces() {
    let (mut bench, attached) = Bench::attached();
    numbered(&mut bench, attached, 255);
    // More than one piece of 64 KiB, and a last one that is not full.
    let ranges = [CopyRange::new(0, 200), CopyRange::new(7, 248)];
    assert_eq!(copy(&mut bench, attached, 1000, &ranges).status(), Status::SUCCESS);
    let expected: Vec<u8> = (0..200).chain(7..255).collect();
    assert_eq!(read(&mut bench, attached, 1000, 448), expected);
}

#[test]
fn a_copy_that_fails_says_which_range_is_wrong_and_has_copied_nothing() {
    let (mut bench, attached) = Bench::attached();
    numbered(&mut bench, attached, 4);
    let good = CopyRange::new(1, 1);
    let wrong = [
        (vec![good, CopyRange::new(BLOCKS, 1)], Status::LBA_OUT_OF_RANGE, 1),
        (vec![good, good, CopyRange::new(u64::MAX, 1)], Status::LBA_OUT_OF_RANGE, 2),
        (vec![CopyRange::new(0, 2049)], Status::COMMAND_SIZE_LIMIT_EXCEEDED, 0),
        (vec![CopyRange::new(0, 2048); 17], Status::COMMAND_SIZE_LIMIT_EXCEEDED, 0),
    ];
    for (ranges, status, range) in wrong {
        let completion = copy(&mut bench, attached, 300, &ranges);
        assert_eq!((completion.status(), completion.dw0.get()), (status.with_dnr(), range));
        assert_eq!(read(&mut bench, attached, 300, 1), [0]);
    }
    // The destination, of which the first block still fits.
    let completion = copy(&mut bench, attached, BLOCKS - 1, &[CopyRange::new(0, 2)]);
    assert_eq!(completion.status(), Status::LBA_OUT_OF_RANGE.with_dnr());
    assert_eq!(read(&mut bench, attached, BLOCKS - 1, 1), [0]);
}

#[test]
fn what_copy_does_not_have_is_refused_with_its_place() {
    let (mut bench, attached) = Bench::attached();
    let sgl = |length| SglDescriptor::keyed(1 << 32, length, 1, false);
    let with = |cid, dword_12: u32| {
        let mut entry = SubmissionEntry::copy(cid, 1, 0, 1).with_sgl(sgl(32));
        entry.cdw12.set(dword_12);
        entry
    };
    for (dword_12, place) in [(1 << 8, (49, 0)), (2 << 8, (49, 0)), (3 << 8, (49, 0)), (15 << 8, (49, 0))] {
        let entry = with(bench.host.next_cid(), dword_12);
        bench.io_refused(attached, &entry, (Status::INVALID_FIELD, Some(place)));
    }
    for (dword_12, place) in [(1 << 12, (49, 4)), (1 << 20, (50, 4)), (1 << 26, (51, 2))] {
        let entry = with(bench.host.next_cid(), dword_12);
        bench.io_refused(attached, &entry, (Status::INVALID_FIELD, Some(place)));
    }
    let entry = SubmissionEntry::copy(bench.host.next_cid(), 1, 0, 129).with_sgl(sgl(129 * 32));
    bench.io_refused(attached, &entry, (Status::COMMAND_SIZE_LIMIT_EXCEEDED, Some((48, 0))));
    let entry = SubmissionEntry::copy(bench.host.next_cid(), 1, 0, 2).with_sgl(sgl(32));
    bench.io_refused(attached, &entry, (Status::DATA_SGL_LENGTH_INVALID, Some((32, 0))));
    let entry = SubmissionEntry::copy(bench.host.next_cid(), 1, BLOCKS, 1).with_sgl(sgl(32));
    bench.io_refused(attached, &entry, (Status::LBA_OUT_OF_RANGE, Some((40, 0))));
}

#[test]
fn dataset_management_takes_more_than_it_recommends() {
    let (mut bench, attached) = Bench::attached();
    numbered(&mut bench, attached, 255);
    // As many as the field can say, each of one block.
    let ranges: Vec<u8> = (0..256).flat_map(|lba| DsmRange::new(lba, 1).as_bytes().to_vec()).collect();
    let entry = SubmissionEntry::deallocate(bench.host.next_cid(), 1, 256);
    let completion = bench.host.command_with(attached.io, &entry, &ranges);
    assert_eq!(completion.status(), Status::SUCCESS);
    assert_eq!(read(&mut bench, attached, 0, 255), [0; 255]);
    // Whatever the length of a range, its end has to lie within the namespace.
    for blocks in [4 << 20, (4 << 20) + 1, u32::MAX] {
        let entry = SubmissionEntry::deallocate(bench.host.next_cid(), 1, 1);
        let completion = bench.host.command_with(attached.io, &entry, DsmRange::new(0, blocks).as_bytes());
        assert_eq!(completion.status(), Status::LBA_OUT_OF_RANGE.with_dnr());
    }
    let whole = DsmRange::new(0, BLOCKS as u32);
    let entry = SubmissionEntry::deallocate(bench.host.next_cid(), 1, 1);
    let completion = bench.host.command_with(attached.io, &entry, whole.as_bytes());
    assert_eq!(completion.status(), Status::SUCCESS);
}

#[test]
fn a_range_of_more_than_two_gibibytes_of_a_file_is_deallocated_to_its_last_block() {
    const BYTES: u64 = 5 << 30;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("disk");
    let file = std::fs::File::create_new(&path).and_then(|file| file.set_len(BYTES));
    let file = file.and_then(|()| std::fs::File::options().read(true).write(true).open(&path));
    let file = file.expect("a sparse file");
    // Around the ends of the pieces that it is done in.
    let places = [0, (1 << 30) - 512, 1 << 30, (4 << 30) - 512, BYTES - 1024];
    for place in places {
        file.write_all_at(&[0xee; 512], place).expect("written");
    }
    file.write_all_at(&[0xdd; 512], BYTES - 512).expect("written");
    let namespace = format!(
        "[[subsystem.namespace]]\npath = {path:?}\nblock_bytes = 512\ndirect = false\nallow_page_cache = true\n"
    );
    let target = TestTarget::start(&namespace);
    let mut host = RawHost::new(target.address());
    let association = host.attach();
    let io = host.attach_io(association, 1, 32);
    let entry = SubmissionEntry::deallocate(host.next_cid(), 1, 1);
    let range = DsmRange::new(0, (BYTES / 512 - 1) as u32);
    assert_eq!(host.command_with(io, &entry, range.as_bytes()).status(), Status::SUCCESS);
    let at = |place| {
        let mut bytes = [0; 512];
        file.read_exact_at(&mut bytes, place).map(|()| bytes).expect("read")
    };
    assert!(places.iter().all(|place| at(*place) == [0; 512]));
    assert_eq!(at(BYTES - 512), [0xdd; 512], "what is behind the range stays");
}

#[test]
fn write_zeroes_takes_as_many_blocks_as_its_field_can_say() {
    let (mut bench, attached) = Bench::attached();
    numbered(&mut bench, attached, 255);
    let entry = SubmissionEntry::write_zeroes(bench.host.next_cid(), 1, 0, 65_536, true, false);
    assert_eq!(bench.host.command(attached.io, &entry).status(), Status::SUCCESS);
    assert_eq!(read(&mut bench, attached, 0, 255), [0; 255]);
}

#[test]
fn identify_tells_the_commands_and_their_limits() {
    let (mut bench, attached) = Bench::attached();
    let mut page = |nsid, cns, csi: CommandSet| {
        let entry = SubmissionEntry::identify(bench.host.next_cid(), cns, nsid, 0, csi.0);
        let (completion, bytes) = bench.host.fetch(attached.admin, &entry, 4096);
        assert_eq!(completion.status(), Status::SUCCESS);
        bytes
    };
    let bytes = page(0, 0x01, CommandSet::NVM);
    let controller = IdentifyController::ref_from_bytes(&bytes).expect("a page");
    assert!(controller.oncs.verify() && controller.oncs.copy() && controller.oncs.compare());
    assert_eq!(controller.cdfs.get(), 1);
    assert_eq!(controller.rtd3e.get(), 60_000_000, "a shutdown flushes every disk");
    let bytes = page(1, 0x00, CommandSet::NVM);
    let namespace = IdentifyNamespace::ref_from_bytes(&bytes).expect("a page");
    assert_eq!((namespace.mssrl.get(), namespace.mcl.get(), namespace.msrc_z), (2048, 32_768, 127));
    let bytes = page(0, 0x06, CommandSet::NVM);
    let nvm = IdentifyNvmController::ref_from_bytes(&bytes).expect("a page");
    assert_eq!((nvm.vsl, nvm.wzsl, nvm.dmrl, nvm.dmrsl.get()), (8, 16, 255, 4 << 20));
    assert_eq!(nvm.dmsl.get(), 255 * (4 << 20));
}
