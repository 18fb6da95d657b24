//! The number of a removed namespace is given to another disk.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use nix::errno::Errno;
use ringfab_target::control::Manager;
use ringfab_tests::{Service, TestTarget, wait_until};
use serde_json::{Value, json};

use crate::way::{Way, by_both_ways};
use crate::{file, mount, open};

const BYTES: usize = 1 << 20;
/// A subsystem is never empty.
const OTHER: &str = "[[subsystem.namespace]]\nnsid = 7\nmemory = \"1MiB\"\n";

by_both_ways! {
    an_open_file_never_reaches_the_disk_that_has_got_the_number_of_its_own_and_a_new_one_does
    a_file_of_a_namespace_that_was_removed_has_nothing_but_errors_until_it_is_there_again
}

fn disk(folder: &Path, name: &str, byte: u8) -> Value {
    let path = folder.join(name);
    fs::write(&path, vec![byte; BYTES]).expect("a disk");
    let path = path.to_str().expect("UTF-8");
    json!({ "path": path, "nsid": 1, "block_bytes": 4096, "direct": false, "allow_page_cache": true })
}

fn add(manager: &mut Manager, disk: &Value) {
    let Value::Object(table) = disk else { panic!("a table") };
    // Its file may still be closing.
    wait_until("it is added", || manager.add(None, table.clone()).is_ok());
}

fn says(service: &Service, text: &str) {
    wait_until(text, || service.log().contains(text));
}

/// Every use of a file that has lost its disk.
fn has_only_errors(old: &File) {
    let eio = Some(Errno::EIO as i32);
    for (offset, length) in [(0, 4096), (100, 50)] {
        assert_eq!(old.read_at(&mut vec![0; length], offset).expect_err("read").raw_os_error(), eio);
        assert_eq!(old.write_at(&vec![9; length], offset).expect_err("written").raw_os_error(), eio);
    }
    assert_eq!(old.sync_all().expect_err("flushed").raw_os_error(), eio);
    let seeks = nix::unistd::lseek(old, 0, nix::unistd::Whence::SeekHole);
    assert!(seeks == Err(Errno::EIO), "no hole: {seeks:?}");
    let mode = nix::fcntl::FallocateFlags::FALLOC_FL_ZERO_RANGE;
    assert_eq!(nix::fcntl::fallocate(old, mode, 0, 4096), Err(Errno::EIO));
    assert!(old.metadata().is_err());
}

fn an_open_file_never_reaches_the_disk_that_has_got_the_number_of_its_own_and_a_new_one_does(way: &Way) {
    let folder = tempfile::tempdir().expect("a folder");
    let target = TestTarget::start(OTHER);
    let mut manager = target.manager();
    add(&mut manager, &disk(folder.path(), "first", 1));
    let first = manager.list()[0].uuid.clone();
    let service = mount(way, &target.url("").to_string(), &[]);
    let path = file(&service, "ns1");
    let old = open(&path);
    old.write_all_at(&[9; 8192], 8192).expect("written");
    let inode = path.metadata().expect("it is there").ino();
    manager.remove(None, 1).expect("it is there");
    add(&mut manager, &disk(folder.path(), "second", 2));
    let second = manager.list()[0].uuid.clone();
    // The kernel may remember the old one for a while.
    wait_until("the new one is there", || path.metadata().is_ok_and(|found| found.ino() != inode));
    let new = open(&path);
    has_only_errors(&old);
    says(&service, &format!("the number 1 by now: it was UUID {first}"));
    says(&service, &format!("is UUID {second}"));
    let mut read = [0; 4096];
    new.read_exact_at(&mut read, 0).expect("read");
    assert_eq!(read, [2; 4096]);
    new.write_all_at(&[7; 100], 5000).expect("written");
    new.sync_all().expect("flushed");
    let bytes = fs::read(folder.path().join("second")).expect("the disk");
    assert!(bytes[5000..5100].iter().all(|byte| *byte == 7));
    assert!(bytes[..5000].iter().chain(&bytes[5100..]).all(|byte| *byte == 2));
}

fn a_file_of_a_namespace_that_was_removed_has_nothing_but_errors_until_it_is_there_again(way: &Way) {
    let folder = tempfile::tempdir().expect("a folder");
    let target = TestTarget::start(OTHER);
    let mut manager = target.manager();
    let mut same = disk(folder.path(), "disk", 1);
    same["uuid"] = "5be1fa8e-4a3b-44f5-9d9a-6ab4d7e2a001".into();
    add(&mut manager, &same);
    let service = mount(way, &target.url("").to_string(), &[]);
    let path = file(&service, "ns1");
    let disk = open(&path);
    for _ in 0..2 {
        disk.write_all_at(&[9; 4096], 0).expect("written");
        manager.remove(None, 1).expect("it is there");
        wait_until("its end is noticed", || File::open(&path).is_err());
        has_only_errors(&disk);
        assert_eq!(File::open(&path).expect_err("gone").raw_os_error(), Some(Errno::ENOENT as i32));
        add(&mut manager, &same);
        wait_until("it is there again", || disk.read_at(&mut [0; 4096], 0).is_ok());
    }
    let times = service.log().matches("the target has removed this namespace").count();
    assert_eq!(times, 2, "once each time: {}", service.log());
}
