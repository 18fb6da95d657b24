//! Sizes of files: what programs set, and what they are told.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::statvfs::statvfs;
use ringfab_tests::fake_disk::{Abilities, Disk};
use ringfab_tests::fake_target::{BLOCK, FakeTarget, Fault, Script};
use ringfab_tests::{NQN, TestTarget, run_bounded};

use crate::way::{Way, by_both_ways};
use crate::{BYTES, MEMORY, file, mount, open};

by_both_ways! {
    a_size_that_a_program_sets_changes_nothing_but_what_the_program_skips_reads_as_zeroes
    cp_dd_and_a_shell_write_into_a_file_and_leave_the_rest
    how_much_is_in_use_is_what_the_controller_says
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
        std::thread::sleep(Duration::from_millis(700));
    }
    assert!(start.elapsed() < Duration::from_secs(10), "after {:?}", start.elapsed());
}
