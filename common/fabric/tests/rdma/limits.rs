//! Configurations off the beaten track, and the quotas.

use std::time::Duration;

use ringfab_fabric::rdma::{
    Access, ConnectParameters, DisconnectReason, ProviderChoice, QueuePairAttributes, Slice, Work,
};
use ringfab_reactor::SocketOptions;

use crate::support::{End, Pair, config, pattern, send_work, slice};

/// A write, a read and a send each way.
fn exchange(pair: &mut Pair) {
    let (here, there) = pair.connected();
    let bytes = pattern(200_000, 3);
    let room = pair.host.shared_buffer(&vec![0; 200_000]);
    let remote = pair.host.expose(&room, Access::RemoteWrite);
    let source = slice(&pair.target.shared_buffer(&bytes));
    let work = Work::Write { source, remote_key: remote.key, remote_address: remote.address };
    pair.target.post(there, 1, work);
    let data = pair.target.shared_buffer(&bytes[..8000]);
    pair.target.post(there, 2, send_work(b"written", Some(slice(&data))));
    assert_eq!(pair.received(End::Host).head.as_slice()[..7], *b"written");
    assert!(room.with_bytes(0..200_000, |landed| landed == bytes));
    pair.host.rnic.revoke(remote.region).expect("exposed");
    let readable = pair.host.expose(&room, Access::RemoteRead);
    let (remote_key, remote_address) = (readable.key, readable.address);
    let sink = pair.target.buffer(&vec![0; 200_000]);
    pair.target.post(there, 3, Work::Read { sink, length: 200_000, remote_key, remote_address });
    assert_eq!(pair.read(End::Target).1[..], bytes);
    pair.host.disconnect(here);
    pair.disconnected(End::Target, there);
    pair.disconnected(End::Host, here);
}

#[test]
fn checksums_are_used_when_either_end_asks_and_everything_works_without() {
    for (host, target) in [(true, false), (false, true), (false, false)] {
        let mut configs = (config(), config());
        (configs.0.crc, configs.1.crc) = (host, target);
        exchange(&mut Pair::over_loopback(configs));
    }
}

#[test]
fn small_fpdus_carry_large_messages() {
    for bytes in [1, 512, 1460, 9000] {
        let mut configs = (config(), config());
        (configs.0.fpdu_bytes_max, configs.1.fpdu_bytes_max) = (bytes, bytes);
        exchange(&mut Pair::over_loopback(configs));
    }
}

#[test]
fn the_table_of_queue_pairs_is_a_limit_at_both_ends() {
    let mut configs = (config(), config());
    (configs.0.queue_pairs_max, configs.1.queue_pairs_max) = (3, 2);
    let mut pair = Pair::over_loopback(configs);
    let (first, _) = pair.connected();
    pair.connected();
    pair.host.connect(pair.listening, b"");
    let request = pair.connect_request();
    let attributes = pair.target.attributes();
    let refused = pair.target.rnic.accept(&mut pair.target.reactor, request, &attributes, b"");
    assert!(refused.is_err());
    let attributes = pair.host.attributes();
    let (address, timeout) = (pair.listening, Duration::from_secs(1));
    let parameters = ConnectParameters {
        address,
        provider: ProviderChoice::Iwarp,
        attributes,
        private_data: b"",
        timeout,
        socket: SocketOptions::default(),
    };
    assert!(pair.host.rnic.connect(&mut pair.host.reactor, &parameters).is_err());
    pair.host.send(first, 1, b"alive");
    assert_eq!(pair.received(End::Target).head.as_slice(), b"alive");
}

#[test]
fn a_message_that_no_buffer_of_the_pool_could_hold_is_a_mistake_at_the_start() {
    let mut pair = Pair::over_loopback((config(), config()));
    let mut attributes = pair.host.attributes();
    attributes.receive_bytes_max = 64 + (1 << 20) + 1;
    let (address, timeout) = (pair.listening, Duration::from_secs(1));
    let parameters = ConnectParameters {
        address,
        provider: ProviderChoice::Iwarp,
        attributes,
        private_data: b"",
        timeout,
        socket: SocketOptions::default(),
    };
    assert!(pair.host.rnic.connect(&mut pair.host.reactor, &parameters).is_err());
}

#[test]
fn private_data_beyond_the_frame_is_a_mistake_at_the_start() {
    let mut pair = Pair::over_loopback((config(), config()));
    let (address, timeout) = (pair.listening, Duration::from_secs(1));
    for (length, fits) in [(508, true), (509, false)] {
        let attributes = pair.host.attributes();
        let said = vec![1; length];
        let parameters = ConnectParameters {
            address,
            provider: ProviderChoice::Iwarp,
            attributes,
            private_data: &said,
            timeout,
            socket: SocketOptions::default(),
        };
        assert_eq!(pair.host.rnic.connect(&mut pair.host.reactor, &parameters).is_ok(), fits, "{length}");
    }
}

#[test]
fn a_peer_that_sends_much_at_once_does_not_get_more_than_its_turn() {
    const COUNT: u64 = 400;
    let mut pair = Pair::over_loopback((config(), config()));
    let host = QueuePairAttributes { send_depth: COUNT as u32, ..pair.host.attributes() };
    let target = QueuePairAttributes { receive_depth: COUNT as u32, ..pair.target.attributes() };
    let (here, _) = pair.connected_with(host, &target);
    for id in 0..COUNT {
        pair.host.send(here, id, b"one of many");
    }
    let (mut all, mut most) = (0, 0);
    pair.until("all of them", |pair| {
        most = most.max(pair.target.events.len());
        all += pair.target.events.drain(..).count() as u64;
        (all == COUNT).then_some(())
    });
    // As they come, and as they go on at the end of the same turn.
    assert!(most <= 2 * 64, "{most} events in one turn");
}

#[test]
fn what_was_posted_and_never_sent_comes_back() {
    let mut pair = Pair::over_loopback((config(), config()));
    let (here, there) = pair.connected();
    let data = pair.host.shared_buffer(&[7; 4096]);
    for id in 0..3 {
        pair.host.post(here, id, send_work(b"with data", Some(slice(&data))));
    }
    pair.host.rnic.abort(&mut pair.host.reactor, here);
    let (reason, flushed) = pair.disconnected(End::Host, here);
    assert_eq!((reason, flushed), (DisconnectReason::Local, vec![2]), "they would have completed together");
    data.into_unique().expect("nothing holds it any more");
    pair.disconnected(End::Target, there);
    assert!(pair.target.events.is_empty(), "nothing was sent");
}

#[test]
fn a_slice_of_a_shared_buffer_goes_with_its_own_checksum_copied_or_by_reference() {
    let mut pair = Pair::over_loopback((config(), config()));
    let (here, there) = pair.connected();
    let bytes = pattern(4096, 5);
    let shared_buffer = pair.host.shared_buffer(&bytes);
    for (offset, length) in [(1, 512), (1001, 2000)] {
        let part = Slice { shared_buffer: shared_buffer.clone(), offset, length };
        let expected = &bytes[offset as usize..(offset + length) as usize];
        pair.host.post(here, 1, send_work(&[0; 64], Some(part)));
        let data = pair.received(End::Target).data.expect("what is behind the head");
        assert!(data[..] == *expected, "{length} bytes at {offset}");
        pair.target.rnic.post_receive(there, 1);
    }
}
