//! The target is killed and never comes back: every wait has the end that the policy gives it.

use std::fs::File;
use std::time::{Duration, Instant};

use ringfab_initiator::blocking::Controller;
use ringfab_initiator::{IoError, ReconnectPolicy};
use ringfab_tests::{Caching, Service, file_target_with, free_port};
use tempfile::TempDir;

use crate::load::{IMAGE_BYTES, PATIENT, attach};

/// How much later than the policy says an answer may come on a busy machine.
const SLACK: Duration = Duration::from_secs(10);

/// An attached controller whose target has just been killed.
fn orphan(policy: ReconnectPolicy) -> (Controller, Service, TempDir) {
    let (port, folder) = (free_port(), tempfile::tempdir().expect("a folder"));
    let image = folder.path().join("image");
    File::create(&image).and_then(|file| file.set_len(IMAGE_BYTES)).expect("an image");
    let mut target = file_target_with(port, &image, Caching::Page);
    let controller = attach(port, policy);
    controller.write_at(1, 0, &[1; 4096], true).expect("written while it was there");
    target.kill();
    (controller, target, folder)
}

/// How long a write takes to fail, and with what.
fn failing_write(controller: &Controller) -> (IoError, Duration) {
    let started = Instant::now();
    let error = controller.write_at(1, 0, &[2; 4096], false).expect_err("nobody is there");
    (error, started.elapsed())
}

#[test]
fn writes_wait_as_long_as_fast_io_fail_says_and_then_fail_at_once() {
    let limit = Duration::from_millis(1500);
    let (controller, ..) = orphan(PATIENT.with_fast_io_fail_timeout(Some(limit)));
    let (error, took) = failing_write(&controller);
    assert_eq!(error, IoError::NoPath);
    assert!(took > limit / 2 && took < limit + SLACK, "{took:?}");
    let (error, took) = failing_write(&controller);
    assert_eq!(error, IoError::NoPath);
    assert!(took < limit / 2, "{took:?}");
}

#[test]
fn writes_wait_until_the_controller_is_given_up_and_then_there_is_none() {
    let limit = Duration::from_millis(1500);
    let (controller, ..) = orphan(PATIENT.with_controller_loss_timeout(Some(limit)));
    let (error, took) = failing_write(&controller);
    assert_eq!(error, IoError::NoPath);
    assert!(took > limit / 2 && took < limit + SLACK, "{took:?}");
    let (error, took) = failing_write(&controller);
    assert_eq!(error, IoError::NoPath);
    assert!(took < limit / 2, "{took:?}");
    assert!(controller.detach().is_err(), "its end is told");
}

#[test]
fn with_both_limits_writes_fail_at_the_first_and_the_controller_goes_at_the_second() {
    let (fast, lost) = (Duration::from_millis(500), Duration::from_millis(2500));
    let policy = PATIENT.with_fast_io_fail_timeout(Some(fast)).with_controller_loss_timeout(Some(lost));
    let (controller, ..) = orphan(policy);
    let started = Instant::now();
    let (_, took) = failing_write(&controller);
    assert!(took < fast + SLACK && took < lost, "{took:?}");
    while started.elapsed() < lost + Duration::from_millis(1500) {
        assert_eq!(failing_write(&controller).0, IoError::NoPath);
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(controller.detach().is_err(), "its end is told");
}

#[test]
fn detaching_from_a_target_that_is_gone_does_not_wait_for_it() {
    let (controller, ..) = orphan(PATIENT);
    let started = Instant::now();
    // Whether the loss was noticed before decides what it says of it.
    let _said = controller.detach();
    assert!(started.elapsed() < Duration::from_secs(10) + SLACK, "{:?}", started.elapsed());
}
