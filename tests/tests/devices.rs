//! Disks that the target does not know, served end to end: what a device of a program of one's own has to implement
//! is enough.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ringfab_initiator::blocking::Controller;
use ringfab_target::control::Manager;
use ringfab_tests::devices::library::{Image, LibraryDriver, Remote, RemoteDriver};
use ringfab_tests::devices::socket::SocketServer;
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
        let expected = if state == Remote::Absent { "no such image" } else { "has not returned" };
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
