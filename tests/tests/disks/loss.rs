//! Data that is lost: whoever is told of it, nobody is told that it is safe.

use ringfab_initiator::IoError;
use ringfab_spec::log::LogId;
use ringfab_spec::{Status, SubmissionEntry};
use ringfab_tests::raw_host::RawHost;
use ringfab_tests::{PATIENCE, TestTarget};

use super::filesystem::Mounted;
use super::{MIB, Target, cached, make_file, wait_until};

fn is_write_fault(outcome: Result<(), IoError>) -> bool {
    matches!(outcome, Err(IoError::Status(status)) if status.code() == Status::WRITE_FAULT && status.dnr())
}

#[test]
fn no_flush_succeeds_after_a_loss_until_the_disk_is_opened_anew() {
    let mounted = Mounted::new(MIB);
    let target = Target::start(&cached(&mounted.path()));
    let hosts = [target.attach(), target.attach()];
    hosts[0].write_at(1, 0, &[1; 4096], false).expect("it is in the page cache");
    hosts[0].flush(1).expect("the disk is well");
    for (index, host) in hosts.iter().enumerate() {
        host.write_at(1, 65_536 * index as u64, &[2; 4096], false).expect("it is in the page cache");
    }
    mounted.fail_writes(100);
    assert!(is_write_fault(hosts[0].flush(1)), "the first is told by the system");
    mounted.fail_writes(0);
    // The system has said so once to each descriptor: those of both cores say yes now.
    for _ in 0..6 {
        for host in &hosts {
            assert!(is_write_fault(host.flush(1)), "the blocks of two hosts are gone");
            assert!(is_write_fault(host.write_at(1, 8192, &[3; 512], true)), "Force Unit Access");
        }
    }
    let late = target.attach();
    assert!(is_write_fault(late.flush(1)), "also for who comes later");
    late.write_at(1, 16_384, &[4; 512], false).expect("what promises nothing goes on");
    assert_eq!(target.state(), "needs reopen");
    let reason = target.reason();
    assert!(reason.contains("Input/output error") && reason.contains("namespace reopen 1"), "{reason}");
    assert!(target.namespace()["media_errors"].as_u64() >= Some(1));
    let (done, said) = target.run(&["namespace", "list"]);
    assert!(done && said.contains("  needs reopen  ") && said.contains("is needs reopen: "), "{said}");

    let (done, said) = target.run(&["namespace", "reopen", "1"]);
    assert!(done && said.contains("state=ready"), "{said}");
    for host in hosts.iter().chain([&late]) {
        for _ in 0..4 {
            host.write_at(1, 0, &[5; 4096], false).expect("a write");
            host.flush(1).expect("the disk is well, and nobody remembers");
        }
        host.write_at(1, 4096, &[6; 512], true).expect("Force Unit Access");
    }
    assert_eq!(target.state(), "ready");
    let log = target.service.log();
    assert_eq!(log.matches("a namespace has lost data").count(), 1, "{log}");
    assert_eq!(log.matches("namespace reopened").count(), 1, "{log}");
    assert!(log.contains("a disk has failed") && log.contains("operation=\"flush\""), "{log}");
}

#[test]
fn a_disk_that_still_fails_is_not_opened_anew() {
    let mounted = Mounted::new(MIB);
    let target = Target::start(&cached(&mounted.path()));
    let host = target.attach();
    host.write_at(1, 0, &[1; 4096], false).expect("it is in the page cache");
    mounted.fail_writes(1000);
    assert!(is_write_fault(host.flush(1)));
    host.write_at(1, 0, &[2; 4096], false).expect("it is in the page cache");
    let (done, said) = target.run(&["namespace", "reopen", "1"]);
    assert!(!done && said.contains("still fails: Input/output error"), "{said}");
    mounted.fail_writes(0);
    assert!(is_write_fault(host.flush(1)), "nothing has changed");
    let (done, said) = target.run(&["namespace", "reopen", "1"]);
    assert!(done, "{said}");
    host.flush(1).expect("it is well");
}

#[test]
fn a_shutdown_whose_last_flush_fails_says_so() {
    let mounted = Mounted::new(MIB);
    let mut target = Target::start(&cached(&mounted.path()));
    let host = target.attach();
    host.write_at(1, 0, &[1; 4096], false).expect("it is in the page cache");
    mounted.fail_writes(1000);
    target.service.signal("TERM");
    let status = target.service.wait(PATIENCE);
    let log = target.service.log();
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(log.contains("could not be flushed"), "{log}");
    assert!(log.contains("a disk has failed"), "{log}");
}

#[test]
fn a_file_that_was_cut_off_is_not_served_and_not_made_whole_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = make_file(folder.path(), "disk", MIB);
    let target = Target::start(&cached(&path));
    let host = target.attach();
    let file = std::fs::File::options().write(true).open(&path).expect("opened");
    file.set_len(MIB as u64 / 2).expect("cut off");
    // To write to its end would hide what has happened.
    let end = MIB as u64 - 4096;
    assert!(host.write_at(1, end, &[3; 4096], false).is_err());
    assert!(host.read_at(1, end, &mut [0; 4096]).is_err(), "there are no zeroes that nobody wrote");
    wait_until("it is noticed", || target.state() == "needs reopen");
    // What was refused has failed, too.
    let status = target.status();
    let errors = &status["namespaces"][0]["errors"];
    assert!(errors.as_u64() >= Some(2) && *errors == status["controllers"][0]["errors"], "{status}");
    let reason = target.reason();
    assert!(reason.contains("its file has become shorter while it was served (write)"), "{reason}");
    assert_eq!(file.metadata().expect("its size").len(), MIB as u64 / 2, "nobody made it longer");
    let (done, said) = target.run(&["namespace", "resize", "1"]);
    assert!(!done && said.contains("needs") | said.contains("reopen"), "{said}");
    std::fs::write(&path, vec![0x22; MIB]).expect("restored");
    // It must be seen to stay so.
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert_eq!(target.state(), "needs reopen", "whether that is right, only an administrator knows");
    let (done, said) = target.run(&["namespace", "reopen", "1"]);
    assert!(done && said.contains("state=ready bytes=1048576"), "{said}");
    let mut read = [0; 4096];
    wait_until("it is served again", || host.read_at(1, MIB as u64 - 4096, &mut [0; 4096]).is_ok());
    host.read_at(1, MIB as u64 - 4096, &mut read).expect("a read");
    assert_eq!(read, [0x22; 4096]);
    assert_eq!(target.service.log().matches("a namespace is no longer served").count(), 1);
}

#[test]
fn a_file_that_was_cut_off_is_noticed_also_when_nobody_uses_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = make_file(folder.path(), "disk", MIB);
    let target = Target::start(&cached(&path));
    std::fs::File::options().write(true).open(&path).and_then(|file| file.set_len(4096)).expect("cut off");
    wait_until("it is noticed", || target.state() == "needs reopen");
    let reason = target.reason();
    assert!(reason.contains("its file was cut off, from 1048576 to 4096 bytes"), "{reason}");
    assert!(target.service.log().contains("a namespace is no longer served"));
}

#[test]
fn a_host_that_shuts_down_after_a_loss_does_not_read_that_all_is_flushed() {
    /// CSTS: Controller Fatal Status, and Shutdown Status as "complete".
    const FATAL: u64 = 1 << 1;
    const COMPLETE: u64 = 2 << 2;
    let mounted = Mounted::new(MIB);
    let target = TestTarget::with_target("cores = 2\nspin_us = 20", &cached(&mounted.path()));
    let writer = target.attach();
    writer.write_at(1, 0, &[1; 4096], false).expect("it is in the page cache");
    mounted.fail_writes(1000);
    assert!(is_write_fault(writer.flush(1)));
    mounted.fail_writes(0);
    let mut host = RawHost::new(target.address());
    let association = host.attach();
    let page = SubmissionEntry::get_log_page(host.next_cid(), LogId::SMART.0, u32::MAX, 0, 512, false);
    let smart = host.fetch(association.admin, &page, 512).1;
    assert_eq!(smart[0] & 1 << 2, 1 << 2, "reliability degraded");
    assert!(smart[160..168] != [0; 8], "media errors, though this controller is new");
    // CC: enabled, with the sizes of queue entries, and an ordinary shutdown (SHN).
    host.set_configuration(association, 0x0046_4001);
    // It must be seen not to be complete.
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(host.controller_status(association) & (FATAL | COMPLETE), FATAL);
    target.manager().reopen(None, 1).expect("opened anew");
    let association = host.attach();
    host.set_configuration(association, 0x0046_4001);
    let begun = std::time::Instant::now();
    while host.controller_status(association) & (FATAL | COMPLETE) != COMPLETE {
        assert!(begun.elapsed() < PATIENCE, "the shutdown never ends");
    }
}
