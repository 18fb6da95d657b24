//! Connection management: private data, rejections, limits.

use ringfab_fabric::rdma::{ConnectError, DisconnectReason, RnicEvent};

use crate::support::{End, Pair, pattern, scenarios};

scenarios! {
    private_data_travels_both_ways_and_both_ends_are_established,
    a_rejection_carries_private_data_and_is_the_last_event,
    a_dropped_request_fails_the_connection,
    two_hundred_connections_live_side_by_side,
    a_disconnect_is_seen_by_the_peer_and_the_slot_is_used_again,
    a_disconnect_sends_what_was_posted_before,
    the_depths_of_reads_are_the_smaller_of_both_ends,
}

fn private_data_travels_both_ways_and_both_ends_are_established(pair: &mut Pair) {
    let said = pattern(508, 1);
    let here = pair.host.connect(pair.listening, &said);
    let request = pair.connect_request();
    assert_eq!(request.private_data, said);
    assert_eq!(request.initiator_depth_max, Some(8));
    let attributes = pair.target.attributes();
    let answer = pattern(196, 2);
    let accepted = pair.target.rnic.accept(&mut pair.target.reactor, request, &attributes, &answer);
    let there = accepted.expect("accepted");
    assert_eq!(pair.established(here), answer);
    let (local, peer) = pair.host.rnic.addresses(here).expect("addresses");
    assert_eq!(pair.target.rnic.addresses(there), Some((peer, local)));
    assert_eq!(peer, pair.listening);
}

fn a_rejection_carries_private_data_and_is_the_last_event(pair: &mut Pair) {
    let here = pair.host.connect(pair.listening, b"please");
    let request = pair.connect_request();
    pair.target.rnic.reject(&mut pair.target.reactor, request, b"no");
    let said = pair.until("rejected", |pair| match pair.host.events.pop_front()? {
        RnicEvent::Rejected { queue_pair, private_data } if queue_pair == here => Some(private_data),
        other => panic!("{other:?}"),
    });
    assert_eq!(&said[..], b"no");
    assert_eq!(pair.host.rnic.counters().queue_pairs, 0);
}

fn a_dropped_request_fails_the_connection(pair: &mut Pair) {
    let here = pair.host.connect(pair.listening, b"please");
    // The first attempt ends without a reply, as with a peer of revision 1; the second one too.
    for _ in 0..2 {
        drop(pair.connect_request());
    }
    pair.until("failed", |pair| match pair.host.events.pop_front()? {
        RnicEvent::ConnectFailed { queue_pair, error: ConnectError::MpaEnded(_) } if queue_pair == here => {
            Some(())
        }
        other => panic!("{other:?}"),
    });
}

fn two_hundred_connections_live_side_by_side(pair: &mut Pair) {
    let connected: Vec<_> = (0..200).map(|_| pair.connected()).collect();
    for (index, (here, _)) in connected.iter().enumerate() {
        pair.host.send(*here, index as u64, &(index as u32).to_le_bytes());
    }
    let mut seen = [false; 200];
    for _ in 0..200 {
        let received = pair.received(End::Target);
        let index = u32::from_le_bytes(received.head.as_slice().try_into().expect("four bytes"));
        assert!(!std::mem::replace(&mut seen[index as usize], true), "{index} came twice");
    }
    assert_eq!(pair.target.rnic.counters().queue_pairs, 200);
}

fn a_disconnect_is_seen_by_the_peer_and_the_slot_is_used_again(pair: &mut Pair) {
    let (here, there) = pair.connected();
    pair.host.disconnect(here);
    assert_eq!(pair.disconnected(End::Target, there), (DisconnectReason::PeerClosed, vec![]));
    assert_eq!(pair.disconnected(End::Host, here), (DisconnectReason::Local, vec![]));
    let (again, _) = pair.connected();
    assert_eq!(again.index, here.index);
    assert_ne!(again.generation, here.generation);
    // The old handle reaches nobody.
    pair.host.disconnect(here);
    pair.host.rnic.post_receive(here, 1);
    assert!(pair.host.rnic.addresses(here).is_none());
    pair.host.send(again, 1, b"still there");
    assert_eq!(pair.received(End::Target).head.as_slice(), b"still there");
}

fn a_disconnect_sends_what_was_posted_before(pair: &mut Pair) {
    let (here, there) = pair.connected();
    for id in 0..16 {
        pair.host.send(here, id, &[id as u8; 64]);
    }
    pair.host.disconnect(here);
    for id in 0..16 {
        assert_eq!(pair.received(End::Target).head.as_slice(), [id; 64]);
    }
    assert_eq!(pair.disconnected(End::Host, here), (DisconnectReason::Local, vec![]));
    assert_eq!(pair.disconnected(End::Target, there).0, DisconnectReason::PeerClosed);
}

fn the_depths_of_reads_are_the_smaller_of_both_ends(pair: &mut Pair) {
    let mut attributes = pair.host.attributes();
    attributes.responder_resources = 0;
    let target = pair.target.attributes();
    let (_, there) = pair.connected_with(attributes, &target);
    let sink = pair.target.buffer(&[0; 64]);
    let work = ringfab_fabric::rdma::Work::Read { sink, length: 64, remote_key: 1, remote_address: 0 };
    let request = ringfab_fabric::rdma::SendRequest { id: 1, work, signaled: true };
    let refused = pair.target.rnic.post_send(there, request);
    assert!(matches!(refused, Err(ringfab_fabric::rdma::PostError::NoReads(_))), "{refused:?}");
}
