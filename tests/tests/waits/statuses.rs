//! What a host does with statuses, against a target that answers as it is told.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ringfab_initiator::blocking::{CancelToken, Controller, EngineOptions};
use ringfab_initiator::{Cause, ConnectOptions, HostIdentity, IoError};
use ringfab_spec::Status;
use ringfab_tests::NQN;
use ringfab_tests::fake_target::{FakeTarget, Fault, Script};

fn options(target: &FakeTarget) -> ConnectOptions {
    let url = format!("nvme+tcp://{}/{NQN}", target.address).parse().expect("a URL");
    let host = HostIdentity::for_url(&url).expect("an identity");
    ConnectOptions::new(url, host)
}

fn attach(target: &FakeTarget, change: impl FnOnce(&mut ConnectOptions)) -> Controller {
    let mut options = options(target);
    change(&mut options);
    Controller::connect(options, EngineOptions::default()).expect("attached")
}

/// A target that answers the next I/O commands with these.
fn answering(statuses: &[Status]) -> FakeTarget {
    let statuses = VecDeque::from(statuses.to_vec());
    FakeTarget::with_script(Fault::None, Script { statuses, ..Script::default() })
}

fn with_crd(status: Status, crd: u16) -> Status {
    Status::from_bits(status.bits() | crd << 11)
}

#[test]
fn an_internal_error_that_passes_is_not_seen() {
    let target = answering(&[Status::INTERNAL_ERROR; 2]);
    let controller = attach(&target, |_| {});
    let mut read = [0; 4096];
    controller.read_at(1, 0, &mut read).expect("read, the third time");
    assert_eq!((read[0], target.io_commands()), (0x5a, 3));
    target.script(|script| script.statuses.push_back(Status::INTERNAL_ERROR));
    controller.write_at(1, 0, &[1; 4096], false).expect("written, the second time");
    target.script(|script| script.statuses.push_back(Status::NAMESPACE_NOT_READY));
    controller.flush(1).expect("flushed, the second time");
    assert_eq!(target.io_commands(), 7);
}

#[test]
fn do_not_retry_and_a_wrong_command_fail_at_once() {
    for status in
        [Status::INTERNAL_ERROR.with_dnr(), Status::ANA_INACCESSIBLE.with_dnr(), Status::INVALID_FIELD]
    {
        let target = answering(&[status]);
        let controller = attach(&target, |_| {});
        let error = controller.read_at(1, 0, &mut [0; 4096]).expect_err("refused");
        assert_eq!((error, target.io_commands()), (IoError::Status(status), 1));
    }
}

#[test]
fn tries_are_bounded_and_the_error_says_how_many_there_were() {
    let target = answering(&[Status::INTERNAL_ERROR; 9]);
    let controller = attach(&target, |options| options.reconnect.retries = 2);
    let error = controller.read_at(1, 0, &mut [0; 4096]).expect_err("it never succeeds");
    assert_eq!(error, IoError::Exhausted { status: Status::INTERNAL_ERROR, tries: 3 });
    assert_eq!(error.to_string(), "Internal Error, after 3 tries");
    assert_eq!(target.io_commands(), 3);
}

#[test]
fn a_command_that_waits_for_another_try_holds_no_other_up() {
    let target = answering(&[]);
    target.script(|script| script.crdt = [50, 0, 0]);
    let controller = attach(&target, |_| {});
    target.script(|script| script.statuses.push_back(with_crd(Status::INTERNAL_ERROR, 1)));
    std::thread::scope(|scope| {
        let start = Instant::now();
        let held = scope.spawn(|| controller.read_at(1, 0, &mut [0; 4096]));
        while target.io_commands() == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        for _ in 0..100 {
            controller.read_at(1, 4096, &mut [0; 4096]).expect("read");
        }
        assert!(!held.is_finished() && start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        held.join().expect("no panic").expect("read after the delay");
    });
}

#[test]
fn the_controllers_retry_delay_is_kept_and_asked_for_only_where_there_is_one() {
    let target = answering(&[]);
    target.script(|script| script.crdt = [7, 0, 0]);
    let controller = attach(&target, |_| {});
    assert!(target.script(|script| script.acre), "the host said that it honours delays");
    target.script(|script| script.statuses.push_back(with_crd(Status::COMMAND_INTERRUPTED, 1)));
    let start = Instant::now();
    controller.read_at(1, 0, &mut [0; 4096]).expect("read");
    assert!(start.elapsed() >= Duration::from_millis(700), "{:?}", start.elapsed());
    let target = answering(&[]);
    let _controller = attach(&target, |_| {});
    assert!(!target.script(|script| script.acre), "without delays there is nothing to say");
}

#[test]
fn a_transition_is_waited_for_and_is_over_when_the_controller_says_so() {
    for status in [Status::ANA_TRANSITION, Status::ANA_INACCESSIBLE] {
        let target = answering(&[]);
        target.script(|script| script.always = Some(status));
        let controller = attach(&target, |options| options.reconnect.retries = 0);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| controller.read_at(1, 0, &mut [0; 4096]));
            // It must be seen to wait.
            std::thread::sleep(Duration::from_secs(3));
            assert!(!reader.is_finished(), "{status}");
            target.script(|script| script.always = None);
            reader.join().expect("no panic").expect("read");
        });
    }
}

#[test]
fn a_path_that_stays_closed_is_given_up_as_anatt_and_the_policy_say() {
    for (status, anatt, fast_fail) in
        [(Status::ANA_TRANSITION, 1, None), (Status::ANA_INACCESSIBLE, 0, Some(Duration::from_secs(1)))]
    {
        let target = answering(&[]);
        target.script(|script| (script.always, script.anatt) = (Some(status), anatt));
        let controller = attach(&target, |options| options.reconnect.fast_io_fail_timeout = fast_fail);
        let start = Instant::now();
        let error = controller.read_at(1, 0, &mut [0; 4096]).expect_err("given up");
        assert!(
            matches!(error, IoError::Exhausted { status: told, tries: 2.. } if told == status),
            "{error}"
        );
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    }
}

#[test]
fn a_wait_for_another_try_ends_when_it_is_cancelled_and_when_the_controller_is_left() {
    let target = answering(&[]);
    target.script(|script| script.always = Some(Status::ANA_INACCESSIBLE));
    let cancel = CancelToken::new();
    let engine = EngineOptions::with_cancel(cancel.clone());
    let controller = Controller::connect(options(&target), engine).expect("attached");
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| controller.read_at(1, 0, &mut [0; 4096]));
        // It waits for the namespace by then. If it does not yet, it ends in the same way.
        std::thread::sleep(Duration::from_millis(300));
        cancel.cancel();
        assert_eq!(reader.join().expect("no panic"), Err(IoError::Cancelled));
    });
    let start = Instant::now();
    // What cannot be left in order is left all the same.
    let _trouble = controller.detach();
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

#[test]
fn a_keep_alive_without_an_answer_is_noticed_within_its_timeout() {
    let target = FakeTarget::start(Fault::MuteKeepAlive);
    let controller = attach(&target, |options| options.keep_alive = Duration::from_secs(1));
    let start = Instant::now();
    // An admin queue and an I/O queue; more are those of an attempt to reconnect.
    while target.accepted() <= 2 {
        assert!(start.elapsed() < Duration::from_secs(10), "as long as an admin command may take");
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(controller);
}

#[test]
fn a_controller_that_fails_while_it_shuts_down_is_not_waited_for() {
    let target = answering(&[]);
    target.script(|script| script.fails_to_shut_down = true);
    let controller = attach(&target, |_| {});
    controller.write_at(1, 0, &[1; 4096], false).expect("written");
    let start = Instant::now();
    let error = controller.detach().expect_err("it says that it has failed");
    assert!(matches!(error.cause, Cause::ControllerFatal), "{error}");
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}
