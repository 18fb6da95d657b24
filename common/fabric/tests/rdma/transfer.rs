//! SEND, READ and WRITE of all sizes, in order.

use ringfab_fabric::rdma::{
    Access, Inline, PostError, QueuePairId, RemoteBuffer, RnicEvent, SendRequest, Slice, Work,
};

use crate::support::{End, Node, Pair, pattern, scenarios, send_work, slice};

scenarios! {
    capsules_travel_both_ways,
    in_capsule_data_lands_page_aligned_behind_the_head,
    writes_of_every_size_land_exactly,
    reads_of_every_size_bring_exactly_what_is_there,
    a_write_is_in_place_when_the_send_behind_it_arrives,
    completions_come_in_the_order_of_posting,
    more_reads_than_the_peer_allows_wait_for_their_turn,
    an_invalidated_key_is_dead_and_its_shared_buffer_comes_back,
    a_full_send_queue_gives_the_request_back,
    an_unsignaled_send_completes_silently,
    while_the_pool_is_empty_receiving_waits_and_then_goes_on_in_order,
}

fn capsules_travel_both_ways(pair: &mut Pair) {
    let (here, there) = pair.connected();
    for length in [0, 1, 63, 64] {
        let bytes = pattern(length, 3);
        pair.host.send(here, 1, &bytes);
        let received = pair.received(End::Target);
        assert_eq!(received.head.as_slice(), bytes);
        assert!(received.data.is_none() && received.invalidated.is_none());
        pair.target.rnic.post_receive(there, 1);
        pair.target.send(there, 2, &bytes);
        assert_eq!(pair.received(End::Host).head.as_slice(), bytes);
        pair.host.rnic.post_receive(here, 1);
        assert_eq!((pair.sent(End::Host), pair.sent(End::Target)), (1, 2));
    }
}

fn in_capsule_data_lands_page_aligned_behind_the_head(pair: &mut Pair) {
    let (here, there) = pair.connected();
    for length in [1, 255, 256, 257, 512, 4096, 8191, 8192] {
        let (head, data) = (pattern(64, 4), pattern(length, 5));
        let shared_buffer = pair.host.shared_buffer(&data);
        pair.host.post(here, 1, send_work(&head, Some(slice(&shared_buffer))));
        let received = pair.received(End::Target);
        assert_eq!(received.head.as_slice(), head);
        let landed = received.data.expect("in-capsule data");
        assert_eq!(landed[..], data, "{length} bytes");
        assert_eq!(landed.io_pointer(0, 1) as usize % 4096, 0);
        pair.target.rnic.post_receive(there, 1);
        assert_eq!(pair.sent(End::Host), 1);
    }
}

const SIZES: [usize; 14] =
    [1, 2, 3, 4, 255, 257, 4095, 4096, 65_515, 65_521, 65_522, 131_072, 1_000_003, 1 << 20];

fn write_work(node: &Node, bytes: &[u8], remote: RemoteBuffer) -> Work {
    let shared_buffer = node.shared_buffer(bytes);
    Work::Write { source: slice(&shared_buffer), remote_key: remote.key, remote_address: remote.address }
}

fn writes_of_every_size_land_exactly(pair: &mut Pair) {
    let (here, there) = pair.connected();
    for size in SIZES {
        let room = pair.host.shared_buffer(&vec![0xee; size]);
        let remote = pair.host.expose(&room, Access::RemoteWrite);
        let bytes = pattern(size, 6);
        let work = write_work(&pair.target, &bytes, remote);
        pair.target.post(there, 1, work);
        pair.target.send(there, 2, b"done");
        assert_eq!(pair.received(End::Host).head.as_slice(), b"done");
        pair.host.rnic.post_receive(here, 1);
        drop(pair.host.rnic.revoke(remote.region).expect("the exposure's shared_buffer"));
        let landed = room.into_unique().expect("nobody else holds it");
        assert!(landed[..] == bytes[..], "{size} bytes differ");
        assert_eq!(pair.sent_of(End::Target, 2), 2);
    }
    let (host, target) = (pair.host.rnic.counters(), pair.target.rnic.counters());
    assert!(host.received_direct_bytes > 0, "large payloads go straight to their place");
    let moved = SIZES.iter().sum::<usize>() as u64;
    assert!(host.received_direct_bytes + host.copied_bytes.received >= moved, "{host:?}");
    assert!((1..moved / 100).contains(&target.copied_bytes.sent), "payloads are sent from where they lie");
}

fn read_work(node: &Node, length: usize, remote: RemoteBuffer) -> Work {
    let sink = node.buffer(&vec![0xee; length]);
    Work::Read { sink, length: length as u32, remote_key: remote.key, remote_address: remote.address }
}

fn reads_of_every_size_bring_exactly_what_is_there(pair: &mut Pair) {
    let (_, there) = pair.connected();
    for size in SIZES {
        let bytes = pattern(size, 7);
        let source = pair.host.shared_buffer(&bytes);
        let remote = pair.host.expose(&source, Access::RemoteRead);
        let work = read_work(&pair.target, size, remote);
        pair.target.post(there, 9, work);
        let (id, sink) = pair.read(End::Target);
        assert_eq!(id, 9);
        assert!(sink[..] == bytes[..], "{size} bytes differ");
        assert!(pair.host.rnic.revoke(remote.region).is_some());
    }
    assert_eq!(pair.host.rnic.counters().regions, 0);
}

fn a_write_is_in_place_when_the_send_behind_it_arrives(pair: &mut Pair) {
    let (here, there) = pair.connected();
    for round in 0..50 {
        let room = pair.host.shared_buffer(&vec![0; 131_072]);
        let remote = pair.host.expose(&room, Access::RemoteWrite);
        let bytes = pattern(131_072, round);
        // In two halves, the second one first.
        let source = pair.target.shared_buffer(&bytes);
        for offset in [65_536, 0] {
            let work = Work::Write {
                source: Slice { shared_buffer: source.clone(), offset, length: 65_536 },
                remote_key: remote.key,
                remote_address: remote.address + u64::from(offset),
            };
            let request = SendRequest { id: 1, work, signaled: false };
            pair.target.rnic.post_send(there, request).expect("posted");
        }
        pair.target.send(there, 2, b"done");
        pair.received(End::Host);
        assert!(room.with_bytes(0..131_072, |landed| landed == bytes), "round {round}");
        pair.host.rnic.post_receive(here, 1);
        pair.host.rnic.revoke(remote.region).expect("exposed");
        assert_eq!(pair.sent_of(End::Target, 3), 2);
    }
}

fn completions_come_in_the_order_of_posting(pair: &mut Pair) {
    let (_, there) = pair.connected();
    let source = pair.host.shared_buffer(&pattern(65_536, 8));
    let room = pair.host.shared_buffer(&[0; 64]);
    let readable = pair.host.expose(&source, Access::RemoteRead);
    let writable = pair.host.expose(&room, Access::RemoteWrite);
    for round in 0..5 {
        let read = read_work(&pair.target, 65_536, readable);
        pair.target.post(there, round * 3, read);
        let write = write_work(&pair.target, &[1; 64], writable);
        pair.target.post(there, round * 3 + 1, write);
        pair.target.send(there, round * 3 + 2, b"x");
    }
    let mut next = 0;
    while next < 15 {
        let (id, count) = pair.until("a completion", |pair| match pair.target.events.pop_front()? {
            RnicEvent::Sent { id, count, .. } => Some((id, u64::from(count))),
            RnicEvent::Read { id, .. } => Some((id, 1)),
            other => panic!("{other:?}"),
        });
        next += count;
        assert_eq!(id, next - 1);
    }
}

fn more_reads_than_the_peer_allows_wait_for_their_turn(pair: &mut Pair) {
    let (host, mut target) = (pair.host.attributes(), pair.target.attributes());
    target.initiator_depth = 2;
    let (_, there) = pair.connected_with(host, &target);
    let bytes = pattern(16_384, 9);
    let source = pair.host.shared_buffer(&bytes);
    let remote = pair.host.expose(&source, Access::RemoteRead);
    for id in 0..16 {
        let work = read_work(&pair.target, 16_384, remote);
        pair.target.post(there, id, work);
    }
    for expected in 0..16 {
        let (id, sink) = pair.read(End::Target);
        assert_eq!(id, expected);
        assert!(sink[..] == bytes[..]);
    }
}

fn an_invalidated_key_is_dead_and_its_shared_buffer_comes_back(pair: &mut Pair) {
    let (here, there) = pair.connected();
    let room = pair.host.shared_buffer(&[0; 512]);
    let remote = pair.host.expose(&room, Access::RemoteWrite);
    let work = write_work(&pair.target, &[5; 512], remote);
    pair.target.post(there, 1, work);
    let response = Inline::new(&[7; 16]);
    let send = Work::Send { head: response, data: None, invalidate: Some(remote.key), solicited: true };
    pair.target.post(there, 2, send);
    let received = pair.received(End::Host);
    assert_eq!(received.invalidated, Some(remote.key));
    assert!(pair.host.rnic.revoke(remote.region).is_some());
    assert!(pair.host.rnic.revoke(remote.region).is_none());
    assert_eq!(room.into_unique().expect("the only one")[..], [5; 512]);
    assert_alive(pair, here, there);
}

fn assert_alive(pair: &mut Pair, here: QueuePairId, _there: QueuePairId) {
    pair.host.send(here, 77, b"alive");
    assert_eq!(pair.received(End::Target).head.as_slice(), b"alive");
}

fn a_full_send_queue_gives_the_request_back(pair: &mut Pair) {
    let (here, there) = pair.connected();
    for id in 0..16 {
        pair.host.send(here, id, b"x");
    }
    let request = SendRequest { id: 99, work: send_work(b"y", None), signaled: true };
    match pair.host.rnic.post_send(here, request) {
        Err(PostError::Full(request)) => assert_eq!(request.id, 99),
        other => panic!("{other:?}"),
    }
    assert_eq!(pair.sent_of(End::Host, 16), 15);
    pair.target.rnic.post_receive(there, 1);
    pair.host.send(here, 16, b"room again");
    assert_eq!(pair.sent(End::Host), 16);
}

fn an_unsignaled_send_completes_silently(pair: &mut Pair) {
    let (here, _) = pair.connected();
    let request = SendRequest { id: 1, work: send_work(b"quiet", None), signaled: false };
    pair.host.rnic.post_send(here, request).expect("posted");
    pair.host.send(here, 2, b"loud");
    assert_eq!(pair.sent_of(End::Host, 2), 2);
    assert!(pair.host.events.is_empty());
}

fn while_the_pool_is_empty_receiving_waits_and_then_goes_on_in_order(pair: &mut Pair) {
    let (here, _) = pair.connected();
    let mut held: Vec<_> = std::iter::from_fn(|| pair.target.pool.take(8192)).collect();
    let data = pattern(8192, 10);
    for id in 0..8 {
        let shared_buffer = pair.host.shared_buffer(&data);
        pair.host.post(here, id, send_work(&[id as u8; 64], Some(slice(&shared_buffer))));
        assert_eq!(pair.sent(End::Host), id);
    }
    pair.run_for(std::time::Duration::from_millis(50));
    assert!(pair.target.events.is_empty(), "{:?}", pair.target.events);
    let mut landed = Vec::new();
    for id in 0..8 {
        held.pop();
        let received = pair.received(End::Target);
        assert_eq!(received.head.as_slice(), [id; 64]);
        landed.push(received.data.expect("in-capsule data"));
        assert!(landed.last().is_some_and(|bytes| bytes[..] == data[..]));
    }
}
