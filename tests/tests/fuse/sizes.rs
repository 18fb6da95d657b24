//! Sizes of files: what programs set, and what they are told.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::statvfs::statvfs;
use nix::unistd::{Whence, lseek};
use ringfab_tests::fake_disk::{Abilities, Disk};
use ringfab_tests::fake_target::{BLOCK, FakeTarget, Fault, Script};
use ringfab_tests::{NQN, TestTarget, not_run, run_bounded};

use crate::way::{Way, by_both_ways};
use crate::{BYTES, MEMORY, file, mount, open};

by_both_ways! {
    a_size_that_a_program_sets_changes_nothing_but_what_the_program_skips_reads_as_zeroes
    what_others_have_written_since_a_file_was_made_shorter_stays
    others_may_write_while_what_a_program_skips_is_zeroed
    cp_dd_and_a_shell_write_into_a_file_and_leave_the_rest
    how_much_is_in_use_is_what_the_controller_says
    a_sparse_file_behind_the_target_has_its_holes_here_too
}

/// A target whose first disk is full of a byte, and its mounted file.
fn with_full_disk(way: &Way, byte: u8, act: impl FnOnce(&Path)) {
    let target = TestTarget::start(MEMORY);
    let service = mount(way, &target.url("").to_string(), &[]);
    let path = file(&service, "ns1");
    open(&path).write_all_at(&vec![byte; BYTES as usize], 0).expect("written");
    act(&path);
}

fn a_size_that_a_program_sets_changes_nothing_but_what_the_program_skips_reads_as_zeroes(way: &Way) {
    with_full_disk(way, 7, |path| {
        let disk = open(path);
        let size = || fs::metadata(path).expect("attributes").len();
        for shorter in [BYTES, BYTES - 1, 5000] {
            disk.set_len(shorter).expect("shorter");
            assert_eq!(size(), BYTES, "{shorter}");
        }
        let read = |at| {
            let mut two = [1; 2];
            disk.read_exact_at(&mut two, at).expect("read");
            two
        };
        assert_eq!((read(4999), read(BYTES - 2)), ([7; 2], [7; 2]), "nothing has changed");
        disk.set_len(BYTES - 1).expect("longer");
        assert_eq!((read(4999), read(BYTES - 2)), ([7, 0], [0, 7]), "what was added is zeroes");
        disk.set_len(1000).expect("shorter");
        disk.write_all_at(&[9; 100], 3000).expect("written");
        let mut read = [0; 4000];
        disk.read_exact_at(&mut read, 0).expect("read");
        let mut expected = [7; 4000];
        expected[1000..3000].fill(0);
        expected[3000..3100].fill(9);
        assert!(read == expected, "what lies between the end and the write reads as zeroes");
        // Another writer skips nothing.
        open(path).write_all_at(&[9; 100], 8000).expect("written");
        disk.read_exact_at(&mut read, 4000).expect("read");
        assert!(read[..1000] == [7; 1000] && read[1000..] == [0; 3000]);
        for longer in [BYTES + 1, u64::MAX >> 1] {
            assert_eq!(disk.set_len(longer).expect_err("longer").raw_os_error(), Some(Errno::EFBIG as i32));
        }
        let by_path = nix::unistd::truncate(path, 100);
        assert_eq!(by_path, Err(Errno::EINVAL), "as a block device says");
        assert_eq!(nix::unistd::truncate(path, BYTES as i64), Ok(()));
        assert_eq!(size(), BYTES);
        drop(disk);
        let reader = File::open(path).expect("opened");
        assert_eq!(reader.set_len(0).expect_err("not for writing").kind(), ErrorKind::InvalidInput);
    });
}

fn what_others_have_written_since_a_file_was_made_shorter_stays(way: &Way) {
    with_full_disk(way, 7, |path| {
        let anew = OpenOptions::new().write(true).truncate(true).open(path).expect("opened");
        let mut expected = vec![7; BYTES as usize];
        let read = |what: &str, expected: &[u8]| {
            let mut read = vec![1; expected.len()];
            open(path).read_exact_at(&mut read, 0).expect("read");
            let wrong = read.iter().zip(expected).position(|(read, expected)| read != expected);
            assert_eq!(wrong, None, "{what}");
        };
        // Whole blocks and parts of them, each by a program of its own.
        let others = [(1 << 20, 4096), (1_500_007, 300), ((2 << 20) - 512, 1024), (9 << 20, 1 << 20)];
        for (number, (at, bytes)) in (1_u8..).zip(others) {
            let other = open(path);
            other.write_all_at(&vec![number; bytes], at).expect("written");
            other.sync_all().expect("on the disk");
            expected[at as usize..at as usize + bytes].fill(number);
        }
        read("nothing else has changed", &expected);
        anew.write_all_at(&[9; 10], 3 << 20).expect("written");
        let zero =
            |expected: &mut [u8]| expected.iter_mut().filter(|byte| **byte == 7).for_each(|byte| *byte = 0);
        zero(&mut expected[..3 << 20]);
        expected[3 << 20..(3 << 20) + 10].fill(9);
        read("what it has skipped is zeroes, but for what others have written", &expected);
        let more = open(path);
        more.write_all_at(&[5; 700], 5 << 20).expect("written");
        expected[5 << 20..(5 << 20) + 700].fill(5);
        anew.set_len(BYTES).expect("its size");
        zero(&mut expected);
        read("the size", &expected);
        // Made shorter once more, it loses what is there by then.
        anew.set_len(1 << 20).expect("shorter");
        more.write_all_at(&[6; 512], 6 << 20).expect("written");
        anew.write_all_at(&[8; 512], 8 << 20).expect("written");
        expected[1 << 20..8 << 20].fill(0);
        expected[6 << 20..(6 << 20) + 512].fill(6);
        expected[8 << 20..(8 << 20) + 512].fill(8);
        read("shorter once more", &expected);
    });
}

fn others_may_write_while_what_a_program_skips_is_zeroed(way: &Way) {
    const WRITERS: u64 = 4;
    const WRITES: u64 = 120;
    // Each has its places, next to those of the others, often in the same block.
    let place = |writer: u64, write: u64| (write * 131_072 + writer * 1000, 300 + (write % 7) * 100);
    with_full_disk(way, 7, |path| {
        let anew = OpenOptions::new().write(true).truncate(true).open(path).expect("opened");
        std::thread::scope(|scope| {
            for writer in 0..WRITERS {
                scope.spawn(move || {
                    let disk = open(path);
                    // Some begin behind what is zeroed, and some in front of it.
                    for write in (0..WRITES).map(|write| (write * 7 + writer * 31) % WRITES) {
                        let (at, bytes) = place(writer, write);
                        disk.write_all_at(&vec![writer as u8 + 1; bytes as usize], at).expect("written");
                    }
                });
            }
            for step in 1..64 {
                anew.write_all_at(&[9; 8], step * (BYTES / 64) - 8).expect("written");
            }
        });
        anew.set_len(BYTES).expect("its size");
        let mut expected = vec![0; BYTES as usize];
        let mut put = |at: u64, bytes: u64, byte| expected[at as usize..(at + bytes) as usize].fill(byte);
        (1..64).for_each(|step| put(step * (BYTES / 64) - 8, 8, 9));
        for (writer, write) in (0..WRITERS).flat_map(|writer| (0..WRITES).map(move |write| (writer, write))) {
            let (at, bytes) = place(writer, write);
            put(at, bytes, writer as u8 + 1);
        }
        let mut read = vec![7; BYTES as usize];
        open(path).read_exact_at(&mut read, 0).expect("read");
        let wrong = read.iter().zip(&expected).position(|(read, expected)| read != expected);
        assert_eq!(wrong, None);
    });
}

fn cp_dd_and_a_shell_write_into_a_file_and_leave_the_rest(way: &Way) {
    with_full_disk(way, 7, |path| {
        let folder = tempfile::tempdir().expect("a folder");
        let image = folder.path().join("image");
        fs::write(&image, vec![1; 100_000]).expect("an image");
        let (image, to) = (image.display().to_string(), path.display().to_string());
        let mut expected = vec![7; 1 << 20];
        let check = |expected: &[u8], what: &str| {
            let mut read = vec![0; expected.len()];
            File::open(path).and_then(|file| file.read_exact_at(&mut read, 0)).expect("read");
            assert!(read == expected, "{what}");
            assert_eq!(fs::metadata(path).expect("attributes").len(), BYTES, "{what}");
        };
        run_bounded(20, "cp", &[&image, &to]);
        expected[..100_000].fill(1);
        check(&expected, "cp");
        // It sets the size to where it begins.
        run_bounded(
            20,
            "dd",
            &[&format!("if={image}"), &format!("of={to}"), "bs=10000", "seek=20", "count=1"],
        );
        expected[200_000..210_000].fill(1);
        check(&expected, "dd seek");
        run_bounded(20, "dd", &[&format!("if={image}"), &format!("of={to}"), "bs=512", "count=1"]);
        check(&expected, "dd");
        run_bounded(20, "sh", &["-c", "printf hello > \"$0\"; printf there >> \"$0.none\" || true", &to]);
        expected[..5].copy_from_slice(b"hello");
        check(&expected, "a shell");
        let mut anew = OpenOptions::new().write(true).truncate(true).open(path).expect("opened");
        anew.write_all(b"HELLO").expect("written");
        expected[..5].copy_from_slice(b"HELLO");
        check(&expected, "a program");
    });
}

fn how_much_is_in_use_is_what_the_controller_says(way: &Way) {
    const BLOCKS: usize = 4096;
    let used_of = |target: &FakeTarget, blocks| {
        target.script(|script| script.disk.as_mut().expect("a disk").used = blocks);
    };
    let disk = Some(Disk::new(Abilities::default(), BLOCKS, 7));
    let target = FakeTarget::with_script(Fault::None, Script { disk, ..Script::default() });
    let service = mount(way, &format!("nvme+tcp://{}/{NQN}", target.address), &[]);
    let (directory, path) = (service.path("disks"), file(&service, "ns1"));
    let pages = (BLOCKS * BLOCK / 4096) as u64;
    let deadline = Instant::now() + Duration::from_secs(20);
    for (used, free) in
        [(None, 0), (Some(BLOCKS as u64 / 4), pages / 4 * 3), (Some(0), pages), (Some(u64::MAX), 0)]
    {
        used_of(&target, used);
        loop {
            let whole = statvfs(&directory).expect("the whole");
            assert_eq!((whole.blocks(), whole.block_size(), whole.fragment_size()), (pages, 4096, 4096));
            assert_eq!(whole.blocks_free(), whole.blocks_available());
            if whole.blocks_free() == free {
                break;
            }
            assert!(Instant::now() < deadline, "{used:?}: {} are free, not {free}", whole.blocks_free());
            std::thread::sleep(Duration::from_millis(100));
        }
        // Attributes follow, as the kernel asks for them again.
        let blocks = (pages - free) * 8;
        while fs::metadata(&path).expect("attributes").blocks() != blocks {
            assert!(Instant::now() < deadline, "{used:?}: not {blocks} blocks");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    // A target that is away holds nobody up who asks.
    drop(target);
    let start = Instant::now();
    for _ in 0..3 {
        assert_eq!(statvfs(&directory).expect("the whole").blocks(), pages);
        // Longer than an answer is kept, so that each asks anew.
        std::thread::sleep(Duration::from_millis(700));
    }
    assert!(start.elapsed() < Duration::from_secs(10), "after {:?}", start.elapsed());
}

fn a_sparse_file_behind_the_target_has_its_holes_here_too(way: &Way) {
    const BLOCK: u64 = 4096;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("image");
    let image = File::create_new(&path).expect("an image");
    image.set_len(BYTES).expect("a size");
    image.write_all_at(&[7; 8192], 100 * BLOCK).expect("written");
    if lseek(&image, 0, Whence::SeekData) != Ok(100 * BLOCK as i64) {
        return not_run("holes: the file system of temporary files does not say where they are");
    }
    let target = TestTarget::start(&format!(
        "[[subsystem.namespace]]\npath = \"{}\"\nblock_bytes = 4096\n",
        path.display()
    ));
    let service = mount(way, &target.url("").to_string(), &[]);
    let disk = open(&file(&service, "ns1"));
    let seek = |place: u64, whence| lseek(&disk, place as i64, whence).map(|found| found as u64);
    assert_eq!(seek(0, Whence::SeekHole), Ok(0));
    assert_eq!(seek(5, Whence::SeekData), Ok(100 * BLOCK));
    assert_eq!(seek(100 * BLOCK + 5, Whence::SeekData), Ok(100 * BLOCK + 5));
    assert_eq!(seek(100 * BLOCK + 5, Whence::SeekHole), Ok(102 * BLOCK));
    assert_eq!(seek(102 * BLOCK, Whence::SeekData), Err(Errno::ENXIO));
    disk.write_all_at(&[1; 10], 3000 * BLOCK + 7).expect("written");
    assert_eq!(seek(102 * BLOCK, Whence::SeekData), Ok(3000 * BLOCK));
    let (from, to) = (file(&service, "ns1").display().to_string(), folder.path().join("copy"));
    run_bounded(20, "cp", &[&from, &to.display().to_string()]);
    assert!(fs::read(&to).expect("read") == fs::read(&path).expect("read"), "another copy");
}
