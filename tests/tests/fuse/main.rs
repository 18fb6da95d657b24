//! `ringfab fuse` through the kernel: a namespace is a file that programs use as any other. Each test runs by both ways
//! that the kernel's requests can come.

mod announced;
mod mapped;
mod replaced;
mod sizes;
mod way;

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use nix::errno::Errno;
use nix::sys::statvfs::statvfs;
use ringfab_tests::{
    NQN, Service, TestTarget, file_target, free_port, is_mounted, not_run, own_mounts, program, run_bounded,
    wait_until,
};

use way::{Way, by_both_ways, while_off};

const MEMORY: &str = "[[subsystem.namespace]]\nmemory = \"16MiB\"\nblock_bytes = 512\n\
                      [[subsystem.namespace]]\nmemory = \"8MiB\"\nblock_bytes = 4096\n";
const BYTES: u64 = 16 << 20;

fn mount(way: &Way, url: &str, more: &[&str]) -> Service {
    own_mounts();
    Service::start("ringfab", |folder| {
        let directory = folder.join("disks");
        fs::create_dir(&directory).expect("a directory");
        let directory = directory.display().to_string();
        let common = ["fuse", url, &directory, way.option(), "--reconnect-delay", "50ms"];
        common.iter().chain(more).map(|argument| (*argument).to_owned()).collect()
    })
}

fn file(service: &Service, name: &str) -> PathBuf {
    service.path("disks").join(name)
}

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).expect("opened")
}

by_both_ways! {
    every_namespace_is_a_file_of_its_size_and_nothing_else_is_there
    bytes_at_any_place_and_of_any_length_are_what_was_written
    several_engine_threads_serve_one_disk
    writers_of_parts_of_the_same_block_do_not_lose_each_others_bytes
    a_read_only_mount_refuses_to_open_for_writing
    io_waits_for_a_target_that_was_killed
    what_the_file_system_does_not_do_is_refused
    who_may_enter_is_as_the_options_say
    io_fails_when_the_target_is_given_up_and_the_files_stay
    a_server_that_is_killed_leaves_nobody_waiting
    a_signal_unmounts_in_order_and_an_unmount_ends_the_program
    a_file_that_stays_open_delays_the_end_only_so_long
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

fn several_engine_threads_serve_one_disk(way: &Way) {
    const BLOCK: usize = 8192;
    for listener in ["transport = \"tcp\"\n", "transport = \"rdma\"\n"] {
        let target = TestTarget::with("cores = 2\nspin_us = 20", listener, MEMORY);
        let service = mount(way, &target.url("").to_string(), &["--cores", "2", "--queues", "4"]);
        assert_eq!(target.target.controllers().len(), 1, "one controller for all");
        let path = file(&service, "ns1");
        std::thread::scope(|scope| {
            for number in 0..8_u64 {
                let disk = open(&path);
                scope.spawn(move || {
                    for round in 0..50_u8 {
                        // A part of a block in front of it takes several commands.
                        let at = number * (1 << 20) + u64::from(round) * BLOCK as u64 + 100;
                        let bytes = vec![round ^ number as u8; BLOCK];
                        disk.write_all_at(&bytes, at).expect("written");
                        let mut back = vec![0; BLOCK];
                        disk.read_exact_at(&mut back, at).expect("read");
                        assert!(back == bytes, "{listener}: other bytes came back");
                    }
                    disk.sync_all().expect("flushed");
                });
            }
        });
        drop(service);
        wait_until("it has left in order", || target.target.controllers().is_empty());
    }
}

fn every_namespace_is_a_file_of_its_size_and_nothing_else_is_there(way: &Way) {
    let target = TestTarget::start(MEMORY);
    let service = mount(way, &target.url("").to_string(), &[]);
    let mut names: Vec<(String, u64)> = fs::read_dir(service.path("disks"))
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
    assert_eq!(disk.write_at(b"x", BYTES).expect_err("the end").kind(), ErrorKind::StorageFull);
    assert_eq!(disk.write_at(&[1; 20], BYTES - 5).expect("what fits"), 5);
    assert_eq!(disk.read_at(&mut [0; 20], BYTES - 5).expect("what is there"), 5);
}

fn bytes_at_any_place_and_of_any_length_are_what_was_written(way: &Way) {
    let target = TestTarget::start(MEMORY);
    let service = mount(way, &target.url("").to_string(), &[]);
    for name in ["ns1", "ns2"] {
        let path = file(&service, name);
        let disk = open(&path);
        let mut expected = vec![0_u8; 1 << 20];
        let mut random = Random(0x5eed);
        for round in 0..200_u64 {
            let start = random.below(expected.len() as u64 - 1);
            // Every tenth is longer than one command and one entry of a channel.
            let most = if round % 10 == 0 { 700_000 } else { 40_000 };
            let length = 1 + random.below((expected.len() as u64 - start).min(most));
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

fn writers_of_parts_of_the_same_block_do_not_lose_each_others_bytes(way: &Way) {
    let target = TestTarget::start(MEMORY);
    let service = mount(way, &target.url("").to_string(), &[]);
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

fn a_read_only_mount_refuses_to_open_for_writing(way: &Way) {
    let target = TestTarget::start(MEMORY);
    let service = mount(way, &target.url("").to_string(), &["-o", "ro,noatime"]);
    let path = file(&service, "ns1");
    let error = OpenOptions::new().write(true).open(&path).expect_err("read only");
    assert_eq!(error.kind(), ErrorKind::ReadOnlyFilesystem);
    File::open(&path).expect("opened").read_exact_at(&mut [0; 4096], 0).expect("read");
}

fn io_waits_for_a_target_that_was_killed(way: &Way) {
    let folder = tempfile::tempdir().expect("a folder");
    let image = folder.path().join("disk.img");
    File::create(&image).and_then(|file| file.set_len(BYTES)).expect("an image");
    let port = free_port();
    let mut target = file_target(port, &image);
    let service = mount(way, &format!("nvme+rdma://127.0.0.1:{port}/{NQN}"), &[]);
    let disk = open(&file(&service, "ns1"));
    disk.write_all_at(&[1; 4096], 0).expect("written");
    target.kill();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            disk.write_all_at(&[2; 4096], 4096).expect("written in the end");
            disk.sync_all().expect("flushed");
        });
        // It must be seen to wait.
        std::thread::sleep(Duration::from_millis(300));
        assert!(!waiting.is_finished(), "it cannot be written while the target is away");
        target = file_target(port, &image);
        waiting.join().expect("the writer");
    });
    let mut read = [0; 8192];
    disk.read_exact_at(&mut read, 0).expect("read");
    assert!(read[..4096] == [1; 4096] && read[4096..] == [2; 4096]);
}

fn a_signal_unmounts_in_order_and_an_unmount_ends_the_program(way: &Way) {
    let target = TestTarget::start(MEMORY);
    let url = target.url("").to_string();
    let mut service = mount(way, &url, &[]);
    let directory = service.path("disks");
    open(&file(&service, "ns1")).write_all_at(&[3; 512], 0).expect("written");
    assert!(is_mounted(&directory));
    service.signal("TERM");
    assert_eq!(service.wait(Duration::from_secs(15)).code(), Some(0), "{}", service.log());
    assert!(!is_mounted(&directory) && !service.path("ready").exists());
    let mut service = mount(way, &url, &[]);
    let directory = service.path("disks").display().to_string();
    run_bounded(20, "umount", &[&directory]);
    assert_eq!(service.wait(Duration::from_secs(15)).code(), Some(0), "{}", service.log());
}

fn a_file_that_stays_open_delays_the_end_only_so_long(way: &Way) {
    let target = TestTarget::start(MEMORY);
    let mut service = mount(way, &target.url("").to_string(), &[]);
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

fn what_the_file_system_does_not_do_is_refused(way: &Way) {
    let target = TestTarget::start(MEMORY);
    let service = mount(way, &target.url("").to_string(), &[]);
    let (directory, disk) = (service.path("disks"), file(&service, "ns1"));
    let found = fs::metadata(&disk).expect("attributes");
    assert_eq!((found.blocks(), found.blksize(), found.mode()), (BYTES / 512, 4096, 0o100_600));
    let whole = statvfs(&directory).expect("the whole");
    assert_eq!((whole.blocks(), whole.files(), whole.blocks_free()), ((BYTES + (8 << 20)) / 4096, 2, 0));
    let refused = |result: io::Result<()>, error: Errno| {
        assert_eq!(result.expect_err("refused").raw_os_error(), Some(error as i32));
    };
    // Twice: the kernel remembers what a file system does not know, and goes other ways then.
    for _ in 0..2 {
        refused(File::create_new(directory.join("new")).map(drop), Errno::EPERM);
        refused(fs::remove_file(&disk), Errno::EPERM);
        refused(fs::rename(&disk, directory.join("new")), Errno::EPERM);
        refused(fs::rename(&disk, directory.join("ns2")), Errno::EPERM);
        refused(fs::create_dir(directory.join("folder")), Errno::EPERM);
    }
    refused(symlink("ns1", directory.join("link")), Errno::EPERM);
    refused(fs::hard_link(&disk, directory.join("link")), Errno::EPERM);
    refused(fs::set_permissions(&disk, Permissions::from_mode(0o644)), Errno::EPERM);
    refused(fs::metadata(directory.join("n".repeat(255))).map(drop), Errno::ENOENT);
    refused(fs::read_dir(&disk).map(drop), Errno::ENOTDIR);
    // Times are taken and forgotten.
    open(&disk).set_modified(SystemTime::UNIX_EPOCH).expect("accepted");
    // On a busy machine it may have waited for the target.
    let log = service.log();
    let warned: Vec<&str> = log.lines().filter(|line| !line.contains("still waiting")).collect();
    assert_eq!(warned, [""; 0], "nothing to warn of");
}

fn who_may_enter_is_as_the_options_say(way: &Way) {
    if !nix::unistd::geteuid().is_root() {
        return not_run("another user can be tried by root only");
    }
    let target = TestTarget::start(MEMORY);
    let url = target.url("").to_string();
    for (options, may) in [(&[][..], false), (&["-o", "allow_root"], false), (&["-o", "allow_other"], true)] {
        let service = mount(way, &url, options);
        // Else the way there would be refused.
        fs::set_permissions(service.path(""), Permissions::from_mode(0o755)).expect("its own folder");
        let other = ["--reuid=65534", "--regid=65534", "--clear-groups", "stat"];
        let entered = Command::new("setpriv").args(other).arg(file(&service, "ns1")).output();
        let entered = entered.expect("setpriv runs");
        assert_eq!(entered.status.success(), may, "{options:?}: {entered:?}");
        assert!(fs::metadata(file(&service, "ns1")).is_ok(), "{options:?}: who mounted it may");
    }
}

fn io_fails_when_the_target_is_given_up_and_the_files_stay(way: &Way) {
    let folder = tempfile::tempdir().expect("a folder");
    let image = folder.path().join("disk.img");
    File::create(&image).and_then(|file| file.set_len(BYTES)).expect("an image");
    let port = free_port();
    let mut target = file_target(port, &image);
    let url = format!("nvme+rdma://127.0.0.1:{port}/{NQN}");
    let mut service = mount(way, &url, &["--ctrl-loss-timeout", "500ms"]);
    let disk = open(&file(&service, "ns1"));
    target.kill();
    let start = Instant::now();
    for attempt in ["while it is away", "when it is given up", "again"] {
        assert!(disk.write_all_at(&[1; 4096], 0).is_err(), "{attempt}");
        assert!(disk.write_all_at(&[1; 100], 50).is_err(), "{attempt}");
        assert!(disk.sync_all().is_err(), "{attempt}");
        assert!(start.elapsed() < Duration::from_secs(15), "{attempt}: after {:?}", start.elapsed());
    }
    assert_eq!(fs::metadata(file(&service, "ns1")).expect("attributes").len(), BYTES);
    (0..50).for_each(|_| assert!(disk.write_all_at(&[1; 4096], 0).is_err()));
    drop(disk);
    service.signal("TERM");
    assert!(!service.wait(Duration::from_secs(15)).success());
    let log = service.log();
    assert!(log.contains("given up"), "{log}");
    // However many fail, a few have a line, and the rest a number.
    assert!((1..=10).contains(&log.matches("an I/O command has failed").count()), "{log}");
    let rest = log.lines().find(|line| line.contains("more I/O commands have failed")).expect(&log);
    assert!(rest.contains("left_out=") && !rest.contains("left_out=0"), "{log}");
    assert!(!is_mounted(&service.path("disks")));
}

fn a_server_that_is_killed_leaves_nobody_waiting(way: &Way) {
    let target = TestTarget::start(MEMORY);
    let mut service = mount(way, &target.url("").to_string(), &[]);
    let directory = service.path("disks");
    let disk = open(&file(&service, "ns1"));
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..8).map(|_| scope.spawn(|| read_until_it_fails(&disk))).collect();
        // The readers are at work. If one is not yet, it finds the end sooner.
        std::thread::sleep(Duration::from_millis(200));
        service.kill();
        for reader in readers {
            reader.join().expect("it got an error");
        }
    });
    drop(disk);
    // Nobody else is left who could.
    run_bounded(20, "umount", &[&directory.display().to_string()]);
}

fn read_until_it_fails(disk: &File) {
    let start = Instant::now();
    while disk.read_at(&mut [0; 4096], 0).is_ok() {
        assert!(start.elapsed() < Duration::from_secs(20), "it is still answered");
    }
}

#[test]
fn io_uring_where_the_kernel_does_not_offer_it_is_an_error_and_mounts_nothing() {
    if Way::device().is_none() {
        return;
    }
    let target = TestTarget::start(MEMORY);
    let folder = tempfile::tempdir().expect("a folder");
    let tried = while_off(|| {
        let arguments = ["fuse", &target.url("").to_string(), "--io-uring=always"].map(str::to_owned);
        Command::new(program("ringfab")).args(arguments).arg(folder.path()).output().expect("it runs")
    });
    let Some(tried) = tried else { return };
    let said = String::from_utf8_lossy(&tried.stderr);
    assert!(!tried.status.success() && said.contains("enable_uring"), "{said}");
    assert!(!is_mounted(folder.path()));
}
