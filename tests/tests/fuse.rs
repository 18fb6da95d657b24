//! `ringfab fuse` through the kernel: a namespace is a file that programs use as any other.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ringfab_tests::{NQN, Service, TestTarget, file_target, free_port, not_run, run_bounded};

const MEMORY: &str = "[[subsystem.namespace]]\nmemory = \"16MiB\"\nblock_bytes = 512\n\
                      [[subsystem.namespace]]\nmemory = \"8MiB\"\nblock_bytes = 4096\n";
const BYTES: u64 = 16 << 20;

/// Whether this process may mount.
fn can_mount() -> bool {
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse");
    if let Err(error) = device {
        not_run(&format!("/dev/fuse cannot be opened: {error}"));
        return false;
    }
    true
}

fn mount(url: &str, more: &[&str]) -> Service {
    Service::start("ringfab", |folder| {
        let directory = folder.join("disks");
        std::fs::create_dir(&directory).expect("a directory");
        let directory = directory.display().to_string();
        let common = ["fuse", url, &directory, "--reconnect-delay", "50ms"];
        common.iter().chain(more).map(|argument| (*argument).to_owned()).collect()
    })
}

fn file(service: &Service, name: &str) -> PathBuf {
    service.path("disks").join(name)
}

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).expect("opened")
}

fn is_mounted(directory: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mounts").expect("the mounts");
    mounts.lines().any(|line| line.split(' ').nth(1) == directory.to_str())
}

/// A small generator, so that the tests repeat.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

#[test]
fn every_namespace_is_a_file_of_its_size_and_nothing_else_is_there() {
    if !can_mount() {
        return;
    }
    let target = TestTarget::start(MEMORY);
    let service = mount(&target.url("").to_string(), &[]);
    let mut names: Vec<(String, u64)> = std::fs::read_dir(service.path("disks"))
        .expect("a directory")
        .map(|entry| entry.expect("an entry"))
        .map(|entry| {
            (entry.file_name().into_string().expect("text"), entry.metadata().expect("metadata").len())
        })
        .collect();
    names.sort();
    assert_eq!(names, [("ns1".to_owned(), BYTES), ("ns2".to_owned(), 8 << 20)]);
    assert_eq!(File::open(file(&service, "ns3")).expect_err("not there").kind(), ErrorKind::NotFound);
    let disk = open(&file(&service, "ns1"));
    assert_eq!(disk.set_len(0).expect_err("a fixed size").kind(), ErrorKind::PermissionDenied);
    assert_eq!(disk.write_at(b"x", BYTES).expect_err("the end").kind(), ErrorKind::StorageFull);
    assert_eq!(disk.write_at(&[1; 20], BYTES - 5).expect("what fits"), 5);
    assert_eq!(disk.read_at(&mut [0; 20], BYTES - 5).expect("what is there"), 5);
}

#[test]
fn bytes_at_any_place_and_of_any_length_are_what_was_written() {
    if !can_mount() {
        return;
    }
    let target = TestTarget::start(MEMORY);
    let service = mount(&target.url("").to_string(), &[]);
    for name in ["ns1", "ns2"] {
        let path = file(&service, name);
        let disk = open(&path);
        let mut expected = vec![0_u8; 1 << 20];
        let mut random = Random(0x5eed);
        for round in 0..200_u64 {
            let start = random.below(expected.len() as u64 - 1);
            let length = 1 + random.below((expected.len() as u64 - start).min(40_000));
            let data: Vec<u8> = (0..length).map(|byte| (byte * 7 + round) as u8).collect();
            disk.write_all_at(&data, start).expect("written");
            expected[start as usize..(start + length) as usize].copy_from_slice(&data);
        }
        for (flag, start, length) in
            [("--punch-hole", 100, 5000), ("--zero-range", 20_777, 99), ("--punch-hole", 65_536, 131_072)]
        {
            let (offset, bytes) = (start.to_string(), length.to_string());
            let path = path.display().to_string();
            run_bounded(
                20,
                "fallocate",
                &[flag, "--keep-size", "--offset", &offset, "--length", &bytes, &path],
            );
            expected[start..start + length].fill(0);
        }
        disk.sync_all().expect("flushed");
        let mut read = vec![0; expected.len()];
        disk.read_exact_at(&mut read, 0).expect("read");
        assert!(read == expected, "{name}: what is read is not what was written");
    }
}

#[test]
fn writers_of_parts_of_the_same_block_do_not_lose_each_others_bytes() {
    if !can_mount() {
        return;
    }
    let target = TestTarget::start(MEMORY);
    let service = mount(&target.url("").to_string(), &[]);
    let path = file(&service, "ns2");
    std::thread::scope(|scope| {
        for writer in 0..8_u64 {
            let disk = open(&path);
            scope.spawn(move || {
                for place in 0..256 {
                    disk.write_all_at(&[writer as u8 + 1], place * 8 + writer).expect("written");
                }
            });
        }
    });
    let mut read = [0; 2048];
    open(&path).read_exact_at(&mut read, 0).expect("read");
    assert!(read.chunks_exact(8).all(|bytes| bytes == [1, 2, 3, 4, 5, 6, 7, 8]), "{read:?}");
}

#[test]
fn a_read_only_mount_refuses_to_open_for_writing() {
    if !can_mount() {
        return;
    }
    let target = TestTarget::start(MEMORY);
    let service = mount(&target.url("").to_string(), &["-o", "ro,noatime"]);
    let path = file(&service, "ns1");
    let error = OpenOptions::new().write(true).open(&path).expect_err("read only");
    assert_eq!(error.kind(), ErrorKind::ReadOnlyFilesystem);
    File::open(&path).expect("opened").read_exact_at(&mut [0; 4096], 0).expect("read");
}

#[test]
fn io_waits_for_a_target_that_was_killed() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let image = folder.path().join("disk.img");
    File::create(&image).and_then(|file| file.set_len(BYTES)).expect("an image");
    let port = free_port();
    let mut target = file_target(port, &image);
    let service = mount(&format!("nvme+rdma://127.0.0.1:{port}/{NQN}"), &[]);
    let disk = open(&file(&service, "ns1"));
    disk.write_all_at(&[1; 4096], 0).expect("written");
    target.kill();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            disk.write_all_at(&[2; 4096], 4096).expect("written in the end");
            disk.sync_all().expect("flushed");
        });
        std::thread::sleep(Duration::from_millis(300));
        assert!(!waiting.is_finished(), "it cannot be written while the target is away");
        target = file_target(port, &image);
        waiting.join().expect("the writer");
    });
    let mut read = [0; 8192];
    disk.read_exact_at(&mut read, 0).expect("read");
    assert!(read[..4096] == [1; 4096] && read[4096..] == [2; 4096]);
}

#[test]
fn a_signal_unmounts_in_order_and_an_unmount_ends_the_program() {
    if !can_mount() {
        return;
    }
    let target = TestTarget::start(MEMORY);
    let url = target.url("").to_string();
    let mut service = mount(&url, &[]);
    let directory = service.path("disks");
    open(&file(&service, "ns1")).write_all_at(&[3; 512], 0).expect("written");
    assert!(is_mounted(&directory));
    service.signal("TERM");
    assert_eq!(service.wait(Duration::from_secs(15)).code(), Some(0), "{}", service.log());
    assert!(!is_mounted(&directory) && !service.path("ready").exists());
    let mut service = mount(&url, &[]);
    let directory = service.path("disks").display().to_string();
    run_bounded(20, "umount", &[&directory]);
    assert_eq!(service.wait(Duration::from_secs(15)).code(), Some(0), "{}", service.log());
}

#[test]
fn a_file_that_stays_open_delays_the_end_only_so_long() {
    if !can_mount() {
        return;
    }
    let target = TestTarget::start(MEMORY);
    let mut service = mount(&target.url("").to_string(), &[]);
    let directory = service.path("disks");
    let disk = open(&file(&service, "ns1"));
    let start = Instant::now();
    service.signal("TERM");
    let status = service.wait(Duration::from_secs(25));
    assert!(!status.success(), "it must say that somebody lost a file");
    assert!(service.log().contains("files were still open"), "{}", service.log());
    assert!(!is_mounted(&directory), "after {:?}", start.elapsed());
    assert!(disk.read_at(&mut [0; 512], 0).is_err());
}
