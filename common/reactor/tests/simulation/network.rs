//! What a link does to a connection: backpressure, partitions, cuts, crashes.

use std::time::Duration;

use ringfab_reactor::sim::LinkFaults;
use ringfab_reactor::{Payload, Reactor, Time};

use crate::{
    Pair, RECEIVE, SEND, batch, collect, connect, errno_of, listen, only, receive_op, received, run,
};

#[test]
fn a_send_completes_only_when_its_last_byte_fits_into_the_peers_buffer() {
    let mut pair = Pair::new(1);
    let buffer_bytes = 1000;
    pair.world.set_link(pair.hosts[0], pair.hosts[1], LinkFaults { buffer_bytes, ..LinkFaults::default() });
    pair.client.send(pair.near, batch(&[7; 2500]), SEND);
    let [at_client, at_server] = pair.settle();
    assert!(at_client.is_empty() && at_server.is_empty(), "1500 bytes have no room yet");
    pair.server.receive(pair.far, receive_op(1499), RECEIVE);
    let [at_client, at_server] = pair.settle();
    assert_eq!(at_server[0].result.as_ref().expect("bytes"), &1000);
    assert!(at_client.is_empty(), "500 bytes have no room yet");
    pair.server.receive(pair.far, receive_op(500), RECEIVE);
    let [at_client, _] = pair.settle();
    assert_eq!(at_client[0].result.as_ref().expect("sent"), &2500);
}

#[test]
fn a_partition_stalls_silently_and_healing_delivers_what_was_stalled() {
    let mut pair = Pair::new(2);
    let [a, b] = pair.hosts;
    pair.server.receive(pair.far, receive_op(100), RECEIVE);
    pair.world.partition(a, b, true);
    pair.client.send(pair.near, batch(b"hello"), SEND);
    let [at_client, at_server] = pair.settle();
    assert!(at_client[0].result.is_ok(), "the kernel took it");
    assert!(at_server.is_empty());
    pair.world.partition(a, b, false);
    let [_, at_server] = pair.settle();
    assert_eq!(received(&at_server[0]), b"hello");
}

#[test]
fn what_was_already_on_its_way_stalls_too_and_connecting_waits_for_the_healing() {
    let mut pair = Pair::new(3);
    let [a, b] = pair.hosts;
    pair.server.receive(pair.far, receive_op(100), RECEIVE);
    pair.client.send(pair.near, batch(b"late"), SEND);
    pair.world.partition(a, b, true);
    connect(&mut pair.client, pair.world.socket_address(b, 4420));
    let [at_client, at_server] = pair.settle();
    assert_eq!((at_client.len(), at_server.len()), (1, 0), "only the send completes");
    pair.world.partition(a, b, false);
    let [at_client, at_server] = pair.settle();
    assert_eq!((at_client.len(), at_server.len()), (1, 2));
    assert!(at_client[0].result.is_ok(), "connected");
}

#[test]
fn a_link_that_is_lost_in_one_direction_still_carries_what_comes_back() {
    let mut pair = Pair::new(4);
    let [a, b] = pair.hosts;
    pair.server.receive(pair.far, receive_op(100), RECEIVE);
    pair.client.receive(pair.near, receive_op(100), RECEIVE);
    pair.world.partition_one_way(a, b, true);
    pair.client.send(pair.near, batch(b"there"), SEND);
    pair.server.send(pair.far, batch(b"back"), SEND);
    let [at_client, at_server] = pair.settle();
    assert!(at_server.iter().all(|done| matches!(done.payload, Payload::Send(_))), "nothing arrives there");
    let came = at_client.iter().find(|done| matches!(done.payload, Payload::Receive(_)));
    assert_eq!(received(came.expect("something has come back")), b"back");
    pair.world.partition_one_way(a, b, false);
    let [_, at_server] = pair.settle();
    assert_eq!(received(&at_server[0]), b"there");
}

#[test]
fn each_way_to_a_host_has_a_link_of_its_own() {
    let mut pair = Pair::new(5);
    let [a, b] = pair.hosts;
    let way = pair.world.add_way(b, "another way");
    assert_ne!(pair.world.address(way), pair.world.address(b));
    listen(&mut pair.server, pair.world.socket_address(way, 4420));
    pair.world.partition(a, b, true);
    connect(&mut pair.client, pair.world.socket_address(way, 4420));
    let [at_client, at_server] = pair.settle();
    assert_eq!((at_client.len(), at_server.len()), (1, 1), "the other way is well");
    assert!(at_client[0].result.is_ok(), "connected");
    let Payload::Accepted(socket, _) = at_server[0].payload else { panic!("{at_server:?}") };
    let moving = pair.server.detach_socket(socket);
    pair.server.attach_socket(moving).expect("a host has what comes by any of its addresses");
    pair.world.cut_links(a, way);
    pair.client.receive(pair.near, receive_op(1), RECEIVE);
    let [at_client, _] = pair.settle();
    assert!(at_client.is_empty(), "the first connection was not cut");
}

#[test]
fn an_end_may_learn_late_that_the_other_has_given_up_and_gets_nothing_more_before() {
    let mut waited = Vec::new();
    for seed in 0..20 {
        let mut pair = Pair::new(seed);
        let [a, b] = pair.hosts;
        let late_max = Duration::from_secs(1);
        pair.world.set_link(a, b, LinkFaults { late_max, ..LinkFaults::default() });
        pair.server.receive(pair.far, receive_op(100), RECEIVE);
        pair.client.send(pair.near, batch(b"lost"), SEND);
        let begun = pair.world.now();
        pair.client.abort_socket(pair.near);
        let [_, at_server] = pair.settle();
        assert_eq!(at_server.iter().map(errno_of).collect::<Vec<_>>(), [Some(libc::ECONNRESET)]);
        waited.push(pair.world.now() - begun);
    }
    let late = waited.iter().filter(|time| **time > Duration::from_millis(300)).count();
    assert!((5..20).contains(&late), "{waited:?}");
}

#[test]
fn what_an_end_has_sent_before_it_gave_up_may_arrive_after_its_next_connection_is_made() {
    let (mut overtaken, mut lost) = (0, 0);
    for seed in 0..40 {
        let mut pair = Pair::new(seed);
        let [a, b] = pair.hosts;
        let late_max = Duration::from_secs(1);
        pair.world.set_link(a, b, LinkFaults { late_max, late_data: true, ..LinkFaults::default() });
        pair.server.receive(pair.far, receive_op(100), RECEIVE);
        pair.client.send(pair.near, batch(b"write"), SEND);
        pair.client.abort_socket(pair.near);
        connect(&mut pair.client, pair.world.socket_address(b, 4420));
        let [_, at_server] = pair.settle();
        let kinds = at_server.iter().map(|completion| match &completion.payload {
            Payload::Accepted(..) => "a connection",
            Payload::Receive(_) if completion.result.is_ok() => "bytes",
            _ => "a reset",
        });
        match kinds.collect::<Vec<_>>()[..] {
            ["a connection", "bytes"] => overtaken += 1,
            ["a connection", "a reset"] => lost += 1,
            ["bytes" | "a reset", "a connection"] => {}
            ref other => panic!("{other:?}"),
        }
    }
    assert!(overtaken > 5 && lost > 5, "{overtaken} {lost}");
}

#[test]
fn cutting_a_link_resets_both_ends_and_gives_everything_back() {
    let mut pair = Pair::new(4);
    let [a, b] = pair.hosts;
    let faults = LinkFaults { buffer_bytes: 10, ..LinkFaults::default() };
    pair.world.set_link(a, b, faults);
    pair.server.receive(pair.far, receive_op(5), RECEIVE);
    pair.client.receive(pair.near, receive_op(5), RECEIVE);
    pair.client.send(pair.near, batch(&[1; 100]), SEND);
    pair.world.cut_links(a, b);
    let [at_client, at_server] = pair.settle();
    let errors: Vec<_> = at_client.iter().map(errno_of).collect();
    assert_eq!(errors, [Some(libc::ECONNRESET); 2]);
    assert!(matches!(at_client[0].payload, Payload::Receive(_)));
    assert!(matches!(at_client[1].payload, Payload::Send(_)));
    assert_eq!(at_server.len(), 1);
    pair.client.send(pair.near, batch(b"x"), SEND);
    pair.client.close_socket(pair.near);
    pair.server.close_socket(pair.far);
    let [at_client, _] = pair.settle();
    assert_eq!(errno_of(&at_client[0]), Some(libc::ECONNRESET));
    assert_eq!(pair.world.connections(), 0);
}

#[test]
fn a_crash_resets_the_peers_and_the_host_boots_again() {
    let mut pair = Pair::new(5);
    pair.client.receive(pair.near, receive_op(5), RECEIVE);
    pair.server.receive(pair.far, receive_op(5), RECEIVE);
    pair.world.crash(pair.hosts[1]);
    assert!(pair.server.turn(ringfab_reactor::Wait::No).is_err());
    assert!(pair.server.next_completion().is_none());
    let completion = only(&pair.world, &mut pair.client);
    assert_eq!(errno_of(&completion), Some(libc::ECONNRESET));

    let address = pair.world.socket_address(pair.hosts[1], 4420);
    connect(&mut pair.client, address);
    assert_eq!(errno_of(&only(&pair.world, &mut pair.client)), Some(libc::ECONNREFUSED));
    let mut booted = Reactor::simulated(&pair.world, pair.hosts[1]);
    listen(&mut booted, address);
    connect(&mut pair.client, address);
    let mut connected = 0;
    run(&pair.world, &mut [&mut pair.client, &mut booted], |_, _, completion| {
        connected += usize::from(completion.result.is_ok());
    });
    assert_eq!(connected, 2);
}

#[test]
fn a_crash_drops_what_was_in_flight_and_its_memory_returns() {
    let mut pair = Pair::new(6);
    let pool = crate::pool(4096, 2);
    let shared_buffer = pool.take(4096).expect("a buffer").share();
    let mut operation = ringfab_reactor::ReceiveOp::new(16);
    operation.set_target(Some((shared_buffer, 0, 4096)), 0, 16);
    pair.server.receive(pair.far, operation, RECEIVE);
    assert_eq!(pool.usage().taken, 1);
    pair.world.crash(pair.hosts[1]);
    assert_eq!(pool.usage().taken, 0);
    let late = pool.take(4096).expect("a buffer").share();
    let mut operation = ringfab_reactor::ReceiveOp::new(16);
    operation.set_target(Some((late, 0, 4096)), 0, 16);
    pair.server.receive(pair.far, operation, RECEIVE);
    assert_eq!(pool.usage().taken, 0, "an operation of a dead host vanishes with what it holds");
}

#[test]
fn a_link_that_refuses_refuses_although_somebody_listens() {
    let mut pair = Pair::new(7);
    let [a, b] = pair.hosts;
    let faults = LinkFaults { refuse_probability: 1.0, ..LinkFaults::default() };
    pair.world.set_default_link(faults);
    connect(&mut pair.client, pair.world.socket_address(b, 4420));
    let [at_client, at_server] = pair.settle();
    assert_eq!(errno_of(&at_client[0]), Some(libc::ECONNREFUSED));
    assert!(at_server.is_empty());
    pair.world.set_link(a, b, LinkFaults::default());
    connect(&mut pair.client, pair.world.socket_address(b, 4420));
    let [at_client, _] = pair.settle();
    assert!(at_client[0].result.is_ok(), "a link's own behaviour goes first");
}

#[test]
fn delays_lie_between_their_bounds() {
    let mut pair = Pair::new(8);
    let [a, b] = pair.hosts;
    let (delay_min, delay_max) = (Duration::from_millis(2), Duration::from_millis(5));
    pair.world.set_link(a, b, LinkFaults { delay_min, delay_max, ..LinkFaults::default() });
    let mut delays = Vec::new();
    for _ in 0..50 {
        let start: Time = pair.world.now();
        pair.client.send(pair.near, batch(b"x"), SEND);
        pair.server.receive(pair.far, receive_op(1), RECEIVE);
        pair.settle();
        delays.push(pair.world.now() - start);
    }
    assert!(delays.iter().all(|delay| (delay_min..=delay_max).contains(delay)), "{delays:?}");
    assert!(delays.iter().max() > delays.iter().min());
}

#[test]
fn the_end_of_a_process_is_an_end_of_stream_for_its_peers() {
    let mut pair = Pair::new(9);
    pair.client.receive(pair.near, receive_op(5), RECEIVE);
    drop(pair.server);
    let completions = collect(&pair.world, &mut pair.client);
    assert_eq!(completions[0].result.as_ref().expect("an end of stream"), &0);
}
