//! The engine against a small controller over the software RNIC on loopback.

#[allow(dead_code, reason = "each test program uses its part")]
mod support;

use std::time::Duration;

use ringfab_initiator::{
    BlockRange, Cause, ControllerId, DiscardRanges, Host, HostEvent, IoDone, IoError, IoOperation, IoRequest,
    Step, SubmitError,
};
use ringfab_spec::Status;
use ringfab_spec::cqe::ConnectParameter;
use support::host::{attached_with, done, filled, host, next_event, options, read, until, write};
use support::{BLOCK, BLOCKS, Peer};

fn attached() -> (Host, Peer, ControllerId) {
    attached_with(|_| {}, |_| {})
}

fn run(host: &mut Host, peer: &mut Peer, controller: ControllerId, request: IoRequest) -> IoDone {
    host.submit(controller, request).expect("taken");
    done(host, peer)
}

#[test]
fn what_is_written_in_capsule_and_by_rdma_read_is_read_back() {
    let (mut host, mut peer, controller) = attached();
    let info = host.info(controller).expect("ready").clone();
    assert_eq!((info.serial.as_str(), info.queues, info.queue_size), ("S123", 2, 17));
    assert_eq!((info.in_capsule_bytes_max, info.transfer_bytes_max), (8192, Some(65_536)));
    for (lba, nlb, byte) in [(0, 1, 0xa1), (5, 2, 0xa2), (9, 16, 0xa3)] {
        let request = write(&host, 1, lba, nlb, byte);
        assert_eq!(run(&mut host, &mut peer, controller, request).result, Ok(()));
        let request = read(&host, 2, lba, nlb);
        let read = run(&mut host, &mut peer, controller, request);
        let buffer = read.buffer.expect("the buffer comes back");
        assert!(read.result.is_ok() && buffer.iter().all(|one| *one == byte), "{nlb} blocks at {lba}");
    }
    host.turn(ringfab_reactor::Wait::No).expect("a turn");
    assert_eq!(host.rnic_counters().regions, 0, "nothing stays exposed");
}

#[test]
fn the_other_commands_do_what_they_say() {
    let (mut host, mut peer, controller) = attached();
    let all = write(&host, 1, 0, 4, 7);
    run(&mut host, &mut peer, controller, all);
    let zero = IoOperation::WriteZeroes { lba: 0, nlb: 1, deallocate: false, fua: true };
    let ranges = DiscardRanges::new(host.pool(), &[BlockRange { lba: 2, nlb: 1 }]).expect("a buffer");
    for operation in [zero, IoOperation::Discard { ranges }, IoOperation::Flush] {
        let request = IoRequest { nsid: 1, tag: 2, operation };
        assert_eq!(run(&mut host, &mut peer, controller, request).result, Ok(()));
    }
    let bytes: Vec<u8> = (0..4).map(|block| peer.memory[block * BLOCK]).collect();
    assert_eq!(bytes, [0, 7, 0, 7]);
    for (byte, expected) in [(7, Ok(())), (8, Err(IoError::Status(Status::COMPARE_FAILURE)))] {
        let source = filled(&host, 1, byte);
        let operation = IoOperation::Compare { lba: 1, nlb: 1, source, offset: 0 };
        let compared = run(&mut host, &mut peer, controller, IoRequest { nsid: 1, tag: 3, operation });
        assert_eq!(compared.result, expected);
        assert!(compared.source.is_some(), "the source comes back");
    }
}

#[test]
fn requests_beyond_the_depth_wait_and_all_are_answered() {
    let (mut host, mut peer, controller) = attached();
    for tag in 0..100 {
        let request = write(&host, tag, tag, 1, tag as u8);
        host.submit(controller, request).expect("it may wait");
    }
    assert_eq!(host.outstanding(controller), 100);
    let mut tags: Vec<u64> = (0..100).map(|_| done(&mut host, &mut peer).tag).collect();
    tags.sort_unstable();
    assert!(tags.into_iter().eq(0..100));
    assert!((0..100).all(|lba| peer.memory[lba * BLOCK] == lba as u8));
}

#[test]
fn commands_take_the_queues_in_turn() {
    let (mut host, mut peer, controller) = attached_with(|peer| peer.faults.mute = true, |_| {});
    for tag in 0..9 {
        let request = read(&host, tag, tag, 1);
        host.submit(controller, request).expect("taken");
    }
    until(&mut host, &mut peer, |peer| peer.withheld.len() == 9);
    assert_eq!((peer.withheld_by(1), peer.withheld_by(2)), (5, 4));
}

#[test]
fn requests_that_cannot_be_commands_come_back_with_the_reason() {
    let (mut host, _peer, controller) = attached();
    let cases = [
        (read(&host, 0, BLOCKS as u64, 1), SubmitError::Range),
        (read(&host, 0, u64::MAX, 1), SubmitError::Range),
        (IoRequest { nsid: 2, ..read(&host, 0, 0, 1) }, SubmitError::NoNamespace(2)),
        (
            IoRequest {
                nsid: 1,
                tag: 0,
                operation: IoOperation::WriteZeroes { lba: 0, nlb: 0, deallocate: false, fua: false },
            },
            SubmitError::Length,
        ),
        (
            IoRequest {
                nsid: 1,
                tag: 0,
                operation: IoOperation::Write {
                    lba: 0,
                    nlb: 1,
                    source: filled(&host, 1, 0),
                    offset: 1,
                    fua: false,
                },
            },
            SubmitError::Buffer,
        ),
    ];
    for (request, expected) in cases {
        let refused = host.submit(controller, request).expect_err("refused");
        assert_eq!(refused.reason, expected);
    }
}

#[test]
fn after_a_cut_what_was_not_answered_is_sent_again_and_everything_arrives() {
    let (mut host, mut peer, controller) = attached();
    peer.faults.cut_after = Some(10);
    for tag in 0..60 {
        let request = write(&host, tag, tag, 1, 0x80 | tag as u8);
        host.submit(controller, request).expect("it may wait");
    }
    let (mut answered, mut story) = (0, Vec::new());
    while answered < 60 {
        match next_event(&mut host, &mut peer) {
            HostEvent::IoDone(done) => {
                assert_eq!(done.result, Ok(()));
                answered += 1;
            }
            HostEvent::Lost { .. } => story.push("lost"),
            HostEvent::Reconnecting { .. } => {
                peer.faults.mute = false;
                story.push("reconnecting");
            }
            HostEvent::Ready { reconnected: true, .. } => story.push("ready"),
            event => panic!("{event:?}"),
        }
    }
    assert_eq!(story, ["lost", "reconnecting", "ready"]);
    assert!((0..60).all(|lba| peer.memory[lba * BLOCK] == 0x80 | lba as u8));
}

#[test]
fn a_namespace_that_came_back_as_another_one_is_not_written_to() {
    let (mut host, mut peer, controller) = attached();
    peer.faults.cut_after = Some(0);
    let request = write(&host, 1, 0, 1, 1);
    host.submit(controller, request).expect("taken");
    peer.faults.other_nguid = true;
    let mut result = None;
    loop {
        match next_event(&mut host, &mut peer) {
            HostEvent::Reconnecting { .. } => peer.faults.mute = false,
            HostEvent::IoDone(done) => result = Some(done.result),
            HostEvent::Failed { error, .. } => {
                assert!(matches!(error.cause, Cause::Changed { nsid: 1, .. }), "{error}");
                break;
            }
            _ => {}
        }
    }
    assert_eq!(result, Some(Err(IoError::NoPath)));
    assert!(peer.executed.is_empty() && peer.memory[0] == 0);
}

#[test]
fn an_answer_that_comes_twice_costs_the_connection_and_nothing_else() {
    let (mut host, mut peer, controller) = attached();
    peer.faults.answer_twice = true;
    let request = write(&host, 1, 0, 1, 1);
    host.submit(controller, request).expect("taken");
    let mut lost = false;
    loop {
        match next_event(&mut host, &mut peer) {
            HostEvent::IoDone(done) => assert_eq!(done.result, Ok(())),
            HostEvent::Lost { error, .. } => {
                assert!(matches!(error.cause, Cause::Protocol(_)), "{error}");
                peer.faults.answer_twice = false;
                lost = true;
            }
            HostEvent::Ready { .. } if lost => break,
            _ => {}
        }
    }
}

#[test]
fn a_controller_that_does_not_answer_is_left_and_found_again() {
    let (mut host, mut peer) = (host(), Peer::new());
    let mut options = options(&peer);
    options.timeouts.io = Duration::from_millis(50);
    let controller = host.attach(options);
    assert!(matches!(next_event(&mut host, &mut peer), HostEvent::Ready { .. }));
    peer.faults.mute = true;
    let request = write(&host, 1, 3, 1, 9);
    host.submit(controller, request).expect("taken");
    match next_event(&mut host, &mut peer) {
        HostEvent::Lost { error, .. } => assert!(matches!(error.cause, Cause::TimedOut { .. }), "{error}"),
        event => panic!("{event:?}"),
    }
    peer.faults.mute = false;
    let done = loop {
        if let HostEvent::IoDone(done) = next_event(&mut host, &mut peer) {
            break done;
        }
    };
    assert_eq!((done.result, peer.memory[3 * BLOCK]), (Ok(()), 9));
}

#[test]
fn with_fast_io_fail_requests_fail_while_the_controller_is_away_and_it_is_given_up_in_the_end() {
    let (mut host, mut peer) = (host(), Peer::new());
    let mut options = options(&peer);
    options.reconnect.fast_io_fail_timeout = Some(Duration::from_millis(50));
    options.reconnect.controller_loss_timeout = Some(Duration::from_millis(200));
    let controller = host.attach(options);
    assert!(matches!(next_event(&mut host, &mut peer), HostEvent::Ready { .. }));
    peer.faults.cut_after = Some(0);
    peer.faults.reject = true;
    let request = write(&host, 1, 0, 1, 1);
    host.submit(controller, request).expect("taken");
    let mut failed_early = false;
    loop {
        match next_event(&mut host, &mut peer) {
            HostEvent::IoDone(done) => {
                assert_eq!(done.result, Err(IoError::NoPath));
                failed_early = true;
            }
            HostEvent::Failed { error, .. } => {
                assert!(matches!(error.cause, Cause::GaveUp { .. }), "{error}");
                break;
            }
            _ => {}
        }
    }
    assert!(failed_early);
    let request = write(&host, 2, 0, 1, 1);
    assert_eq!(host.submit(controller, request).expect_err("gone").reason, SubmitError::Gone);
}

#[test]
fn each_step_that_fails_is_named_with_the_answer_of_the_peer() {
    type Fault = fn(&mut Peer);
    let set: [(Fault, Step, &str); 8] = [
        (|peer| peer.faults.reject = true, Step::Mpa, "No Resources"),
        (
            |peer| peer.faults.connect = Some((0, Status::CONNECT_INVALID_HOST.with_dnr(), 0)),
            Step::FabricsConnect,
            "Connect Invalid Host (status type 0x1 code 0x84): the target refuses HOSTNQN, which is \
             nqn.2026-01.org.example:me",
        ),
        (
            |peer| refuse(peer, 0, ConnectParameter::Data(256)),
            Step::FabricsConnect,
            "the target refuses SUBNQN, which is nqn.2026-01.org.example:disk",
        ),
        (
            |peer| refuse(peer, 1, ConnectParameter::Command(44)),
            Step::IoQueues,
            "the target refuses SQSIZE, which is 17 entries",
        ),
        (
            |peer| refuse(peer, 0, ConnectParameter::Command(0)),
            Step::FabricsConnect,
            "Connect Invalid Parameters (status type 0x1 code 0x82)",
        ),
        (|peer| peer.faults.never_ready = true, Step::Ready, "CSTS.RDY"),
        (|peer| peer.blocks = 0, Step::Identify, "the target has namespace 1, but it is not ready"),
        (
            |peer| (peer.blocks, peer.nsids) = (0, vec![2]),
            Step::Identify,
            "the subsystem has no active namespace 1",
        ),
    ];
    for (fault, step, answer) in set {
        let (mut host, mut peer) = (host(), Peer::new());
        fault(&mut peer);
        let mut options = options(&peer);
        options.url.namespace = Some(1);
        host.attach(options);
        match next_event(&mut host, &mut peer) {
            HostEvent::Failed { error, .. } => {
                assert_eq!(error.step, step, "{error}");
                assert!(error.to_string().contains(answer), "{error}");
            }
            event => panic!("{event:?}"),
        }
    }
}

fn refuse(peer: &mut Peer, queue: u16, field: ConnectParameter) {
    let status = Status::CONNECT_INVALID_PARAMETERS.with_dnr();
    peer.faults.connect = Some((queue, status, field.to_dw0().into()));
}

#[test]
fn detaching_ends_requests_flushes_and_shuts_down() {
    let (mut host, mut peer, controller) = attached();
    for tag in 0..40 {
        let request = write(&host, tag, tag, 1, 5);
        host.submit(controller, request).expect("taken");
    }
    host.detach(controller);
    let mut answered = 0;
    loop {
        match next_event(&mut host, &mut peer) {
            HostEvent::IoDone(done) => answered += u32::from(done.result == Ok(())),
            HostEvent::Detached { trouble, .. } => {
                assert!(trouble.is_none(), "{trouble:?}");
                break;
            }
            event => panic!("{event:?}"),
        }
    }
    assert!(answered == 40 && peer.shut_down);
    assert_eq!(peer.flushed, [1]);
    assert_eq!(peer.executed.last(), Some(&0));
    assert_eq!(host.rnic_counters().queue_pairs, 0);
}

#[test]
fn cancelling_answers_everything_also_while_attaching() {
    let (mut host, mut peer, controller) = attached();
    peer.faults.mute = true;
    let request = read(&host, 1, 0, 1);
    host.submit(controller, request).expect("taken");
    host.cancel(controller);
    let cancelled = done(&mut host, &mut peer);
    assert_eq!(cancelled.result, Err(IoError::Cancelled));
    assert!(cancelled.buffer.is_some(), "the buffer comes back");
    assert!(matches!(next_event(&mut host, &mut peer), HostEvent::Detached { .. }));
    let second = host.attach(options(&peer));
    assert_ne!(second, controller);
    host.cancel(second);
    assert!(matches!(next_event(&mut host, &mut peer), HostEvent::Detached { .. }));
}
