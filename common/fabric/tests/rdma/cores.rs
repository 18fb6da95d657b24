//! A connection that one core's listener took and another core's RNIC accepts, as a target spreads its queues.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use ringfab_fabric::rdma::{ConnectRequest, RnicEvent};
use ringfab_reactor::{Waker, mailbox};

use crate::support::{End, Node, Pair, config, pattern, send_work, slice};

fn assert_send<T: Send>() {}

#[test]
fn a_request_accepted_on_another_core_works_like_any_other() {
    assert_send::<ConnectRequest>();
    let mut pair = Pair::over_loopback((config(), config()));
    let here = pair.host.connect(pair.listening, b"for the other core");
    let request = pair.connect_request();
    let (sender, wakers) = mpsc::channel::<Waker>();
    let (requests, other_cores) = mpsc::channel();
    let accepting = std::thread::spawn(move || echo_once(&sender, &other_cores));
    let waker = wakers.recv().expect("the other core's waker");
    requests.send(request).expect("it waits");
    waker.wake();
    pair.established(here);
    let (head, data) = (pattern(64, 1), pattern(8192, 2));
    let shared_buffer = pair.host.shared_buffer(&data);
    pair.host.post(here, 1, send_work(&head, Some(slice(&shared_buffer))));
    let echo = pair.received(End::Host);
    assert_eq!(echo.head.as_slice(), head);
    assert_eq!(echo.data.expect("in-capsule data")[..], data);
    pair.host.disconnect(here);
    pair.disconnected(End::Host, here);
    assert_eq!(pair.target.rnic.counters().queue_pairs, 0, "the listener's core never had it");
    accepting.join().expect("the other core");
}

/// The other core: accepts, sends the first message back, and lives until the peer leaves.
fn echo_once(wakers: &mpsc::Sender<Waker>, requests: &mpsc::Receiver<ConnectRequest>) {
    let mut node = Node::over_ring(config());
    wakers.send(node.reactor.waker()).expect("somebody waits");
    let begun = Instant::now();
    let mut gone = false;
    while !gone {
        assert!(begun.elapsed() < Duration::from_secs(20), "nobody came");
        if let Ok(request) = requests.try_recv() {
            let attributes = node.attributes();
            let accepted = node.rnic.accept(&mut node.reactor, request, &attributes, b"");
            accepted.expect("accepted");
        }
        node.step();
        while let Some(event) = node.events.pop_front() {
            match event {
                RnicEvent::Received { queue_pair, head, data, .. } => {
                    let data = data.expect("in-capsule data").share();
                    node.post(queue_pair, 1, send_work(head.as_slice(), Some(slice(&data))));
                }
                RnicEvent::Disconnected { .. } => gone = true,
                _ => {}
            }
        }
    }
}

#[test]
fn a_request_may_travel_through_a_mailbox() {
    let mut pair = Pair::over_loopback((config(), config()));
    let (sender, mut receiver) = mailbox(pair.host.reactor.waker());
    let here = pair.host.connect(pair.listening, b"");
    let request = pair.connect_request();
    sender.send(request).expect("the mailbox is open");
    let request = receiver.try_receive().expect("the request");
    pair.target.rnic.reject(&mut pair.target.reactor, request, b"no");
    pair.until("rejected", |pair| {
        matches!(pair.host.events.pop_front(), Some(RnicEvent::Rejected { queue_pair, .. }) if queue_pair == here)
            .then_some(())
    });
}
