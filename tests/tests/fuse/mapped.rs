//! Files that programs map.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use ringfab_tests::{TestTarget, have, not_run, run_bounded};

use crate::way::{Way, by_both_ways};
use crate::{MEMORY, file, mount, open};

by_both_ways! {
    a_shared_mapping_and_reads_and_writes_are_the_same_bytes
    what_fio_writes_through_a_mapping_is_what_it_reads_without_one
}

/// Whether the kernel maps files that are open for direct I/O.
fn is_possible() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("the kernel's release");
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version < (6, 6) {
        not_run(&format!("shared mappings through FUSE need Linux 6.6; this is {}", release.trim()));
    }
    version >= (6, 6)
}

/// What a program does with a mapping, by the file's path. It prints what it found.
const MAPPER: &str = r#"
import mmap, os, sys
path, size = sys.argv[1], int(sys.argv[2])
disk = os.open(path, os.O_RDWR)
shared = mmap.mmap(disk, size)
assert shared[:] == bytes([5]) * size, "what was there"
shared[5000:5010] = b"0123456789"
assert os.pread(disk, 10, 5000) == b"0123456789", "a read sees what a mapping has"
os.pwrite(disk, b"abcdefghij", 5005)
assert shared[5000:5015] == b"01234abcdefghij", "a mapping sees what was written"
other = mmap.mmap(os.open(path, os.O_RDWR), size)
other[size - 3:] = b"end"
assert shared[size - 3:] == b"end", "two mappings are one"
private = mmap.mmap(disk, size, flags=mmap.MAP_PRIVATE)
private[0:3] = b"own"
assert os.pread(disk, 3, 0) == bytes([5]) * 3, "a private mapping is its own"
# Pages that are far apart and not in order; nothing before them is to be taken for skipped.
shared.flush()
anew = os.open(path, os.O_RDWR | os.O_TRUNC)
assert os.fstat(anew).st_size > size, "it keeps its size"
late = mmap.mmap(anew, size)
late[size // 2:size // 2 + 4] = b"late"
late.flush()
late[8192:8196] = b"soon"
late.flush()
shared.flush()
print("mapped")
"#;

fn a_shared_mapping_and_reads_and_writes_are_the_same_bytes(way: &Way) {
    if !is_possible() {
        return;
    }
    if !have("python3") {
        return not_run("a program that maps a file: python3 is not installed");
    }
    const SIZE: usize = 1 << 20;
    let target = TestTarget::start(MEMORY);
    let service = mount(way, &target.url("").to_string(), &[]);
    // Blocks of 512 and of 4096 bytes.
    for name in ["ns1", "ns2"] {
        let path = file(&service, name);
        let disk = open(&path);
        disk.write_all_at(&[5; SIZE], 0).expect("written");
        let arguments = ["-c", MAPPER, &path.display().to_string(), &SIZE.to_string()];
        assert_eq!(run_bounded(60, "python3", &arguments).trim(), "mapped", "{name}");
        // What the target has: another attachment reads it.
        let nsid = name.trim_start_matches("ns").parse().expect("a number");
        let mut there = vec![0; SIZE];
        target.attach().read_at(nsid, 0, &mut there).expect("read");
        let at = |start: usize, length: usize| &there[start..start + length];
        assert_eq!(at(SIZE / 2, 4), b"late", "{name}");
        assert_eq!(at(8192, 4), b"soon", "{name}");
        assert_eq!(at(0, 3), [5; 3], "{name}");
        assert_eq!(at(SIZE / 2 - 4, 4), [5; 4], "{name}: what a mapping does not touch stays");
        // Until the program made the file shorter, it was one with the other mappings.
        assert_eq!(at(5000, 15), *b"01234abcdefghij", "{name}");
    }
}

fn what_fio_writes_through_a_mapping_is_what_it_reads_without_one(way: &Way) {
    if !is_possible() {
        return;
    }
    if !have("fio") {
        return not_run("fio through a mapping: fio is not installed");
    }
    let target = TestTarget::start(MEMORY);
    let service = mount(way, &target.url("").to_string(), &["--cores", "2", "--queues", "2"]);
    let path = file(&service, "ns1");
    fio(&path, &["--ioengine=mmap", "--rw=randrw", "--numjobs=1", "--do_verify=0"]);
    fio(&path, &["--ioengine=psync", "--rw=randrw", "--verify_only=1"]);
    fio(&path, &["--ioengine=psync", "--direct=1", "--rw=randrw", "--do_verify=0"]);
    fio(&path, &["--ioengine=mmap", "--rw=randrw", "--verify_only=1"]);
}

/// Runs fio over the whole of a file, with the same blocks each time.
fn fio(path: &Path, more: &[&str]) {
    let name = format!("--filename={}", path.display());
    let common = [
        "--name=mapped",
        &name,
        "--bs=4k",
        "--size=4m",
        "--verify=crc32c",
        "--verify_fatal=1",
        "--verify_state_save=0",
        "--randseed=7",
        "--end_fsync=1",
        "--aux-path=/nonexistent",
    ];
    let arguments: Vec<&str> = common.iter().chain(more).copied().collect();
    run_bounded(120, "fio", &arguments);
}
