//! One controller, served by several engine threads with I/O queues of their own.

mod crew;
mod paths;

use std::time::Duration;

use crew::{Crew, Life, options};
use ringfab_initiator::{Cause, ConnectError, IoError};
use ringfab_tests::cutter::Cutter;
use ringfab_tests::{TestTarget, program, run_bounded};

const MEMORY: &str = "[[subsystem.namespace]]\nnsid = 1\nmemory = \"8MiB\"\nblock_bytes = 4096\n";
const TRANSPORTS: [&str; 2] = ["transport = \"tcp\"\n", "transport = \"rdma\"\n"];

fn target(listener: &str) -> TestTarget {
    TestTarget::with("cores = 2\nspin_us = 20", listener, MEMORY)
}

/// A load goes on, with one controller, and the crew leaves it.
fn ends_in_order(crew: &mut Crew, target: &TestTarget) {
    crew.wait_for_answers(200);
    crew.stop_load();
    assert_eq!(target.target.controllers().len(), 1, "one controller for all of them");
    crew.detach(0);
    crew.expect("detached", |life| matches!(life, Life::Detached(None)));
}

#[test]
fn each_engine_reads_what_the_others_have_written_to_one_controller() {
    for transport in TRANSPORTS {
        let target = target(transport);
        let mut crew = Crew::attach(options(&target, target.address()), 3, 5);
        crew.expect("ready", |life| matches!(life, Life::Ready { reconnected: false }));
        assert_eq!(target.target.controllers().len(), 1, "one controller for all of them");
        for writer in 0..3 {
            crew.write(writer, 100 + writer, writer as u8 + 1);
            for reader in 0..3 {
                assert_eq!(crew.read(reader, 100 + writer), writer as u8 + 1, "{transport}");
            }
        }
        assert!(crew.has_admin(0) && !crew.has_admin(1), "the first one has the admin queue");
        crew.detach(1);
        crew.expect("detached", |life| matches!(life, Life::Detached(None)));
        ringfab_tests::wait_until("it has shut down", || target.target.controllers().is_empty());
    }
}

#[test]
fn any_connection_that_is_cut_ends_all_and_each_command_is_answered_once() {
    for transport in TRANSPORTS {
        let target = target(transport);
        let cutter = Cutter::start(target.address());
        let mut crew = Crew::attach(options(&target, cutter.address), 3, 4);
        crew.expect("ready", |life| matches!(life, Life::Ready { .. }));
        crew.start_load();
        // The admin queue, queues of the engine that leads, and those of each that follows.
        for round in 0..10 {
            crew.wait_for_answers(200);
            cutter.cut(round % 5);
            crew.expect("lost", |life| matches!(life, Life::Lost));
            crew.expect("back", |life| matches!(life, Life::Ready { reconnected: true }));
        }
        ends_in_order(&mut crew, &target);
    }
}

#[test]
fn a_reset_ends_all_connections_and_each_command_is_answered_once() {
    for transport in TRANSPORTS {
        let target = target(transport);
        let mut crew = Crew::attach(options(&target, target.address()), 3, 4);
        crew.expect("ready", |life| matches!(life, Life::Ready { .. }));
        let first = target.target.controllers()[0].id();
        crew.start_load();
        for round in 0..10 {
            crew.wait_for_answers(200);
            // Who follows cannot; nothing comes of it.
            crew.reset(1);
            crew.reset(0);
            crew.expect("reset", |life| matches!(life, Life::Lost));
            crew.expect("back", |life| matches!(life, Life::Ready { reconnected: true }));
            assert!(round > 0 || target.target.controllers()[0].id() != first, "it is another one");
        }
        ends_in_order(&mut crew, &target);
    }
}

#[test]
fn a_reset_while_the_target_is_away_does_not_wait_for_the_next_attempt() {
    let target = target(TRANSPORTS[0]);
    let cutter = Cutter::start(target.address());
    let mut options = options(&target, cutter.address);
    (options.reconnect.delay, options.reconnect.delay_max) =
        (Duration::from_secs(600), Duration::from_secs(600));
    let mut crew = Crew::attach(options, 2, 2);
    crew.expect("ready", |life| matches!(life, Life::Ready { .. }));
    cutter.cut(0);
    crew.expect("lost", |life| matches!(life, Life::Lost));
    crew.expect("it waits", |life| matches!(life, Life::Reconnecting));
    crew.reset(0);
    crew.expect("back", |life| matches!(life, Life::Ready { reconnected: true }));
    crew.detach(0);
    crew.expect("detached", |life| matches!(life, Life::Detached(None)));
}

#[test]
fn a_target_that_stays_away_is_given_up_on_every_engine_and_nothing_waits_any_more() {
    let target = target(TRANSPORTS[0]);
    let cutter = Cutter::start(target.address());
    let mut options = options(&target, cutter.address);
    options.reconnect.controller_loss_timeout = Some(Duration::from_millis(600));
    options.reconnect.fast_io_fail_timeout = Some(Duration::from_millis(100));
    let mut crew = Crew::attach(options, 2, 2);
    crew.expect("ready", |life| matches!(life, Life::Ready { .. }));
    cutter.refuse();
    for engine in 0..2 {
        assert_eq!(crew.try_write(engine, engine, 1), Err(IoError::NoPath), "it waited, and failed");
    }
    crew.expect("given up", |life| {
        matches!(life, Life::Failed(ConnectError { cause: Cause::GaveUp { .. }, .. }))
    });
}

#[test]
fn a_target_that_is_not_there_fails_the_attachment_on_every_engine() {
    let target = target(TRANSPORTS[0]);
    let cutter = Cutter::start(target.address());
    cutter.refuse();
    let mut crew = Crew::attach(options(&target, cutter.address), 2, 2);
    crew.expect("failed", |life| matches!(life, Life::Failed(_)));
}

#[test]
fn fewer_queues_than_engines_are_refused_with_the_reason() {
    let target = target("transport = \"tcp\"\nio_queues_max = 2\n");
    let mut crew = Crew::attach(options(&target, target.address()), 3, 5);
    crew.expect("failed", |life| {
        matches!(life, Life::Failed(error) if error.to_string().contains("2 I/O queues, too few for 3"))
    });
}

#[test]
fn an_engine_that_ends_takes_its_queues_along_and_the_others_go_on() {
    let target = target(TRANSPORTS[0]);
    let mut crew = Crew::attach(options(&target, target.address()), 3, 3);
    crew.expect("ready", |life| matches!(life, Life::Ready { .. }));
    crew.end(1);
    crew.expect("back", |life| matches!(life, Life::Ready { reconnected: true }));
    crew.write(2, 7, 9);
    assert_eq!(crew.read(0, 7), 9);
    crew.detach(0);
    crew.expect("detached", |life| matches!(life, Life::Detached(None)));
}

#[test]
fn when_the_engine_that_leads_ends_the_others_fail() {
    let target = target(TRANSPORTS[0]);
    let mut crew = Crew::attach(options(&target, target.address()), 2, 2);
    crew.expect("ready", |life| matches!(life, Life::Ready { .. }));
    crew.end(0);
    crew.expect("failed", |life| matches!(life, Life::Failed(_)));
}

/// What `ringfab bench --verify` of a target's namespace says, with two engines that have two queues each.
fn bench_verify(target: &TestTarget, seconds: &str) -> serde_json::Value {
    let url = target.url("").to_string();
    let load =
        ["--rw", "randrw", "--verify", "--size", "4M", "--time", seconds, "--warmup", "0s", "--depth", "16"];
    let common = ["bench", &url, "--json", "--destroy-data", "1", "--cores", "2", "--queues", "4"];
    let ringfab = program("ringfab");
    let text = run_bounded(180, ringfab.to_str().expect("a path"), &[&common[..], &load].concat());
    serde_json::from_str(&text).expect("a document")
}

#[test]
fn the_benchmark_verifies_with_several_engines_what_each_has_written() {
    for transport in TRANSPORTS {
        let target = target(transport);
        // Each engine has written the places of its half, most of them by then, on a slow machine after a while.
        let is_enough = |found: &serde_json::Value| {
            assert_eq!((&found["queues"], &found["outstanding"]), (&4.into(), &64.into()), "{found}");
            assert_eq!(found["verify"]["mismatches"], 0, "{found}");
            ringfab_tests::wait_until("it has left in order", || target.target.controllers().is_empty());
            found["verify"]["read_back"].as_u64().is_some_and(|places| places > 512)
        };
        let mut runs = ["500ms", "5s", "60s"].iter().map(|seconds| bench_verify(&target, seconds));
        assert!(
            runs.any(|found| is_enough(&found)),
            "{transport:?}: not even half of the places were written"
        );
    }
}
