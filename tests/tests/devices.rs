//! Disks that the target does not know, served end to end: what a device of a program of one's own has to implement
//! is enough.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ringfab_block::{BlockError, DriveStatus};
use ringfab_fabric::rdma::Access;
use ringfab_initiator::blocking::{Controller, EngineOptions};
use ringfab_initiator::{ConnectOptions, HostIdentity};
use ringfab_spec::{Status, SubmissionEntry};
use ringfab_target::control::Manager;
use ringfab_tests::devices::drive::{Drive, DriveDriver};
use ringfab_tests::devices::library::{Image, LibraryDriver, Remote, RemoteDriver};
use ringfab_tests::devices::socket::SocketServer;
use ringfab_tests::raw_host::RawHost;
use ringfab_tests::{PATIENCE, TestTarget};

const DISK_BYTES: usize = 4 << 20;
const THREADS: u64 = 8;

/// What each thread writes into a part of its own: every block with its place and the round in it.
fn content(offset: u64, round: u8, length: usize) -> Vec<u8> {
    (0..length).map(|at| ((offset as usize + at) >> 12) as u8 ^ round.wrapping_mul(37)).collect()
}

/// Writes and reads with several commands in flight, of several threads and sizes, and looks at every byte.
fn exercise(target: &TestTarget) {
    let controller = target.attach();
    thread::scope(|scope| {
        for part in 0..THREADS {
            let controller: &Controller = &controller;
            scope.spawn(move || exercise_part(controller, part * DISK_BYTES as u64 / THREADS));
        }
    });
    controller.flush(1).expect("flushed");
    let mut block = [1; 4096];
    controller.write_zeroes(1, 4096, 4096, false).expect("zeroed");
    controller.read_at(1, 4096, &mut block).expect("read");
    assert_eq!(block, [0; 4096]);
    controller.detach().expect("detached");
}

fn exercise_part(controller: &Controller, start: u64) {
    for (round, length) in [(1, 4096), (2, 65_536), (3, DISK_BYTES / THREADS as usize)] {
        let written = content(start, round, length);
        controller.write_at(1, start, &written, false).expect("written");
        let mut read = vec![0; length];
        controller.read_at(1, start, &mut read).expect("read");
        assert!(read == written, "{length} bytes at {start} came back as they were written");
    }
}

#[test]
fn a_library_with_an_eventfd_and_a_thread_of_its_own_is_served_and_one_poll_finishes_many_operations() {
    let image = Image::new(DISK_BYTES);
    let target = TestTarget::with_device(LibraryDriver(Arc::clone(&image)));
    assert_eq!(image.handles(), 2, "one for each core");
    exercise(&target);
    assert!(image.answers_max() > 1, "the library answers several calls with one signal");
    let kept = content(0, 3, 4096);
    assert_eq!(image.bytes()[..4096], kept[..], "the library has what was written");
    drop(target);
    assert_eq!(image.handles(), 0, "every core has closed its handle");
}

#[test]
fn a_disk_behind_a_socket_is_served_though_its_answers_come_in_another_order() {
    let server = SocketServer::start(DISK_BYTES).expect("a server");
    let target = TestTarget::with_device(server.driver(DISK_BYTES as u64));
    exercise(&target);
}

#[test]
fn a_disk_whose_server_goes_away_fails_what_is_in_flight_and_the_target_goes_on() {
    let server = SocketServer::start(DISK_BYTES).expect("a server");
    let target = TestTarget::with_device(server.driver(DISK_BYTES as u64));
    let controller = target.attach();
    let stopped = AtomicBool::new(false);
    thread::scope(|scope| {
        for part in 0..THREADS {
            let (controller, stopped) = (&controller, &stopped);
            scope.spawn(move || {
                let begun = Instant::now();
                while controller.write_at(1, part * 65_536, &[part as u8; 65_536], false).is_ok() {
                    assert!(begun.elapsed() < PATIENCE, "writes succeed without a server");
                }
                stopped.store(true, Ordering::Relaxed);
            });
        }
        // It must be seen to go on for a while.
        thread::sleep(Duration::from_millis(100));
        assert!(!stopped.load(Ordering::Relaxed), "it works until the server goes away");
        server.cut();
    });
    let mut block = [0; 4096];
    controller.read_at(1, 0, &mut block).expect_err("the disk is gone");
    assert!(controller.identify_controller().is_ok(), "the controller is not");
    controller.detach().expect_err("the flush of its shutdown fails");
    let ended = target.end().expect_err("what was written is not known to be safe").to_string();
    assert!(ended.contains("could not be flushed"), "{ended}");
}

#[test]
fn what_a_drive_answers_reaches_the_host_unchanged_and_counts_as_a_failure_of_the_disk() {
    let drive = Drive::new(DISK_BYTES);
    let target = TestTarget::with_device_over("rdma", 1, 4096, DriveDriver(Arc::clone(&drive)));
    let manager = target.manager();
    let mut host = RawHost::new(target.address());
    let association = host.attach();
    let io = host.attach_io(association, 1, 32);
    let data = host.expose(&[1; 4096], Access::RemoteRead);
    let media_errors = || manager.list().remove(0).media_errors;
    for (status, damaged) in [
        (Status::ACCESS_DENIED, false),
        (Status::ACCESS_DENIED.with_dnr(), false),
        (Status::UNRECOVERED_READ_ERROR.with_dnr(), true),
        (Status::new(7, 0xc1).with_dnr(), false),
    ] {
        let cid = host.next_cid();
        for entry in [
            SubmissionEntry::read(cid, 1, 0, 1).with_sgl(data.sgl()),
            SubmissionEntry::write(cid, 1, 0, 1, false).with_sgl(data.sgl()),
            SubmissionEntry::write_zeroes(cid, 1, 0, 1, false, false),
        ] {
            let before = media_errors();
            let answered = DriveStatus::from_bits(status.with_more().bits());
            drive.answer((Err(BlockError::Drive(answered)), 0x1234_5678_9abc_def0));
            let completion = host.command(io, &entry);
            assert_eq!((completion.status(), completion.result()), (status, 0x1234_5678_9abc_def0));
            assert_eq!(media_errors() - before, u64::from(damaged), "{status}");
        }
    }
    assert_eq!(drive.bytes()[0], 0, "nothing was done");
    // What succeeds has a value, too, where it is one operation.
    let cid = host.next_cid();
    for entry in [SubmissionEntry::write_zeroes(cid, 1, 0, 1, false, false), SubmissionEntry::flush(cid, 1)] {
        drive.answer((Ok(()), 7 << 32 | 5));
        let completion = host.command(io, &entry);
        assert_eq!((completion.status(), completion.result()), (Status::SUCCESS, 7 << 32 | 5));
    }
    let completion = host.command(io, &SubmissionEntry::write(cid, 1, 0, 1, false).with_sgl(data.sgl()));
    assert_eq!((completion.status(), completion.result(), drive.bytes()[0]), (Status::SUCCESS, 0, 1));
}

/// Attaches as a host that tries nothing again.
fn once(target: &TestTarget) -> Controller {
    let url = target.url("");
    let host = HostIdentity::for_url(&url).expect("an identity");
    let mut options = ConnectOptions::new(url, host);
    options.reconnect.retries = 0;
    Controller::connect(options, EngineOptions::default()).expect("attached")
}

/// State and reason of the only namespace.
fn health(manager: &Manager) -> (&'static str, String) {
    let one = manager.list().remove(0);
    (one.state, one.reason.unwrap_or_default())
}

#[test]
fn another_disk_behind_the_name_of_a_device_is_not_served_until_it_is_confirmed() {
    let image = Image::new(DISK_BYTES);
    let target = TestTarget::with_device(RemoteDriver::new(Arc::clone(&image), Remote::Present));
    let mut manager = target.manager();
    let controller = target.attach();
    controller.write_at(1, 0, &[1; 4096], false).expect("written");
    // It may tell later which disk it is.
    image.set_identity("image 1");
    manager.poll();
    assert_eq!(health(&manager), ("ready", String::new()));

    image.set_identity("image 2");
    image.bytes().resize(2 * DISK_BYTES, 0);
    manager.poll();
    let (state, reason) = health(&manager);
    assert!(state == "needs reopen" && reason.contains("image 2 instead of image 1"), "{state}: {reason}");
    let only = once(&target);
    assert!(only.write_at(1, 0, &[2; 4096], false).is_err() && only.read_at(1, 0, &mut [0; 4096]).is_err());
    assert_eq!(image.bytes()[0], 1, "nothing was written to the other disk");

    // The first request says what it is, the second one has read that.
    let refused = manager.reopen(None, 1).expect_err("to be confirmed");
    assert!(refused.contains("was that of device remote (image 1)"), "{refused}");
    assert!(refused.contains("would take device remote (image 2)"), "{refused}");
    assert_eq!((health(&manager).0, image.reopened()), ("needs reopen", 0));
    let reopened = manager.reopen(None, 1).expect("confirmed");
    assert_eq!((reopened.state, reopened.bytes), ("ready", 2 * DISK_BYTES as u64));
    assert_eq!(image.reopened(), 2, "on both cores");
    ringfab_tests::wait_until("its host knows the size", || {
        controller.write_at(1, DISK_BYTES as u64, &[3; 4096], false).is_ok()
    });

    // The disk that was there comes back: nothing is to be confirmed but that.
    image.set_identity("image 3");
    manager.poll();
    image.set_identity("image 2");
    manager.poll();
    assert_eq!(health(&manager).0, "needs reopen", "somebody has to look at it");
    assert_eq!(manager.reopen(None, 1).expect("it is back").state, "ready");
    controller.read_at(1, 0, &mut [0; 4096]).expect("read");
}

#[test]
fn a_device_that_is_not_there_or_does_not_answer_is_served_when_it_is() {
    for state in [Remote::Absent, Remote::Silent] {
        let image = Image::new(DISK_BYTES);
        let driver = RemoteDriver::new(Arc::clone(&image), state);
        let begun = Instant::now();
        let target = TestTarget::with_device(driver.clone());
        assert!(begun.elapsed() < PATIENCE, "the start does not wait for it");
        let mut manager = target.manager();
        let shown = |manager: &Manager| {
            let one = manager.list().remove(0);
            (one.state, one.reason.unwrap_or_default(), one.bytes)
        };
        let (name, reason, _) = shown(&manager);
        let expected = if state == Remote::Absent { "no such image" } else { "hangs" };
        assert!(name == "not ready" && reason.contains(expected), "{reason}");
        manager.poll();
        assert_eq!(shown(&manager).0, "not ready");
        assert_eq!(image.handles(), 0, "no core has opened it");

        driver.set(Remote::Present);
        ringfab_tests::wait_until("it is ready", || {
            manager.poll();
            shown(&manager).0 == "ready"
        });
        let controller = target.attach();
        controller.write_at(1, 0, &[7; 4096], false).expect("written");

        image.bytes().resize(2 * DISK_BYTES, 0);
        manager.poll();
        assert_eq!(shown(&manager).2, 2 * DISK_BYTES as u64, "its size is watched");
        ringfab_tests::wait_until("its host knows", || {
            controller.write_at(1, DISK_BYTES as u64, &[8; 4096], false).is_ok()
        });
        assert_eq!(image.bytes()[DISK_BYTES], 8);
        // While cores have it, a look that fails changes nothing.
        driver.set(Remote::Absent);
        manager.poll();
        controller.read_at(1, 0, &mut [0; 4096]).expect("read");
    }
}
