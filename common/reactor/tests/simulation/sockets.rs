//! The life of a socket: addresses, half-close, close, moving.

use ringfab_reactor::sim::World;
use ringfab_reactor::{ListenAddr, Payload, PeerAddr, Reactor, SocketOptions};

use crate::{
    CONNECT, LISTEN, Pair, RECEIVE, SEND, batch, connect, errno_of, listen, only, receive_op, received, run,
};

#[test]
fn connecting_is_refused_where_nobody_listens_and_fails_where_nobody_is() {
    let world = World::new(1);
    let (host, other) = (world.add_host("a"), world.add_host("b"));
    let mut reactor = Reactor::simulated(&world, host);
    let refused = connect(&mut reactor, world.socket_address(other, 1));
    let completion = only(&world, &mut reactor);
    assert_eq!((completion.token, errno_of(&completion)), (CONNECT, Some(libc::ECONNREFUSED)));
    reactor.receive(refused, receive_op(1), RECEIVE);
    assert_eq!(errno_of(&only(&world, &mut reactor)), Some(libc::ENOTCONN));
    let lost = connect(&mut reactor, "192.0.2.1:4420".parse().expect("an address"));
    assert_eq!(errno_of(&only(&world, &mut reactor)), Some(libc::EHOSTUNREACH));
    reactor.close_socket(refused);
    reactor.close_socket(lost);
    assert_eq!(world.connections(), 0);
}

#[test]
fn port_zero_picks_a_port_and_an_address_in_use_is_refused() {
    let world = World::new(2);
    let host = world.add_host("a");
    let mut reactor = Reactor::simulated(&world, host);
    let any = "0.0.0.0:0".parse().expect("an address");
    let (one, two) = (listen(&mut reactor, any), listen(&mut reactor, any));
    let (ListenAddr::Tcp(first), ListenAddr::Tcp(second)) = (&one.address, &two.address) else {
        panic!("they listen on TCP")
    };
    assert!(first.port() != 0 && second.port() != 0 && first != second);
    let options = SocketOptions::default();
    let again = reactor.listen(&one.address, &options, LISTEN).expect_err("in use");
    assert_eq!(again.raw_os_error(), Some(libc::EADDRINUSE));
    reactor.close_listener(one.listener);
    reactor.listen(&one.address, &options, LISTEN).expect("free again");
    let foreign = ListenAddr::Tcp("192.0.2.1:4420".parse().expect("an address"));
    let foreign = reactor.listen(&foreign, &options, LISTEN).expect_err("not ours");
    assert_eq!(foreign.raw_os_error(), Some(libc::EADDRNOTAVAIL));
}

#[test]
fn both_ends_agree_on_their_addresses_also_over_loopback() {
    let pair = Pair::new(3);
    let (local, peer) = pair.client.socket_addresses(pair.near).expect("addresses");
    assert_eq!(pair.server.socket_addresses(pair.far).expect("addresses"), (peer, local));
    assert_eq!(peer, pair.world.socket_address(pair.hosts[1], 4420));

    let mut alone = Reactor::simulated(&pair.world, pair.hosts[0]);
    listen(&mut alone, "127.0.0.1:80".parse().expect("an address"));
    connect(&mut alone, "127.0.0.1:80".parse().expect("an address"));
    let mut peers = Vec::new();
    run(&pair.world, &mut [&mut alone], |_, _, completion| {
        if let Payload::Accepted(_, PeerAddr::Tcp(peer)) = completion.payload {
            peers.push(peer.ip().is_loopback());
        }
    });
    assert_eq!(peers, [true]);
}

#[test]
fn a_half_close_ends_one_direction_after_its_send_and_leaves_the_other() {
    let mut pair = Pair::new(4);
    let [a, b] = pair.hosts;
    let faults = ringfab_reactor::sim::LinkFaults { buffer_bytes: 4, ..Default::default() };
    pair.world.set_link(a, b, faults);
    pair.client.send(pair.near, batch(b"question"), SEND);
    pair.client.shutdown_write(pair.near);
    let mut asked = Vec::new();
    loop {
        pair.server.receive(pair.far, receive_op(100), RECEIVE);
        let [_, at_server] = pair.settle();
        if received(&at_server[0]).is_empty() {
            break;
        }
        asked.extend_from_slice(received(&at_server[0]));
    }
    assert_eq!(asked, b"question");
    pair.client.send(pair.near, batch(b"more"), SEND);
    pair.client.receive(pair.near, receive_op(100), RECEIVE);
    pair.server.send(pair.far, batch(b"yes"), SEND);
    let [at_client, _] = pair.settle();
    assert_eq!(errno_of(&at_client[0]), Some(libc::EPIPE));
    assert_eq!(received(&at_client[1]), b"yes");
}

#[test]
fn closing_gives_everything_in_flight_back_and_kills_the_handle_at_once() {
    let mut pair = Pair::new(5);
    pair.client.receive(pair.near, receive_op(1), RECEIVE);
    pair.client.close_socket(pair.near);
    pair.client.receive(pair.near, receive_op(1), RECEIVE);
    pair.client.send(pair.near, batch(b"x"), SEND);
    pair.server.receive(pair.far, receive_op(1), RECEIVE);
    let [at_client, at_server] = pair.settle();
    assert_eq!(at_client.iter().map(errno_of).collect::<Vec<_>>(), [Some(libc::ECANCELED); 3]);
    assert_eq!(at_server[0].result.as_ref().expect("an end of stream"), &0);
    assert!(pair.client.socket_addresses(pair.near).is_err());
}

#[test]
fn closing_with_unread_bytes_or_sending_to_a_closed_end_resets_the_sender() {
    let mut unread = Pair::new(6);
    unread.client.send(unread.near, batch(b"never read"), SEND);
    unread.settle();
    unread.server.close_socket(unread.far);
    unread.client.receive(unread.near, receive_op(1), RECEIVE);
    let [at_client, _] = unread.settle();
    assert_eq!(errno_of(&at_client[0]), Some(libc::ECONNRESET));

    let mut closed = Pair::new(7);
    closed.server.close_socket(closed.far);
    closed.settle();
    closed.client.send(closed.near, batch(b"too late"), SEND);
    let [at_client, _] = closed.settle();
    assert!(at_client[0].result.is_ok(), "the kernel took it before it knew");
    closed.client.send(closed.near, batch(b"now it knows"), SEND);
    let [at_client, _] = closed.settle();
    assert_eq!(errno_of(&at_client[0]), Some(libc::ECONNRESET));
}

#[test]
fn a_socket_moves_to_another_core_with_the_bytes_that_wait_on_it() {
    let mut pair = Pair::new(8);
    let mut second = Reactor::simulated(&pair.world, pair.hosts[1]);
    pair.client.send(pair.near, batch(b"before"), SEND);
    pair.settle();
    let moving = pair.server.detach_socket(pair.far);
    pair.client.send(pair.near, batch(b" and meanwhile"), SEND);
    pair.settle();
    let socket = second.attach_socket(moving).expect("the same host");
    second.receive(socket, receive_op(100), RECEIVE);
    let completion = only(&pair.world, &mut second);
    assert_eq!(received(&completion), b"before and meanwhile");
    pair.server.receive(pair.far, receive_op(1), RECEIVE);
    let [_, at_server] = pair.settle();
    assert_eq!(errno_of(&at_server[0]), Some(libc::ECANCELED), "the old handle is dead");
}

#[test]
fn a_detached_socket_closes_when_it_is_dropped_and_stays_on_its_host() {
    let mut pair = Pair::new(9);
    let moving = pair.server.detach_socket(pair.far);
    let foreign = pair.client.attach_socket(moving).expect_err("another host");
    assert_eq!(foreign.raw_os_error(), Some(libc::EINVAL));
    pair.client.receive(pair.near, receive_op(1), RECEIVE);
    let [at_client, _] = pair.settle();
    assert_eq!(at_client[0].result.as_ref().expect("an end of stream"), &0);
}

#[test]
#[should_panic(expected = "nothing is in flight")]
fn a_socket_with_a_receive_in_flight_cannot_be_detached() {
    let mut pair = Pair::new(10);
    pair.server.receive(pair.far, receive_op(1), RECEIVE);
    pair.server.detach_socket(pair.far);
}

#[test]
fn a_payload_lands_in_its_place_and_the_rest_in_the_staging() {
    let mut pair = Pair::new(11);
    let shared_buffer = crate::pool(4096, 1).take(4096).expect("a buffer").share();
    let mut operation = ringfab_reactor::ReceiveOp::new(64);
    operation.set_target(Some((shared_buffer.clone(), 10, 4)), 8, 64);
    pair.server.receive(pair.far, operation, RECEIVE);
    pair.client.send(pair.near, batch(b"datahead"), SEND);
    let [_, mut at_server] = pair.settle();
    let Payload::Receive(operation) = at_server.remove(0).payload else { panic!("a receive") };
    assert_eq!((operation.direct_received(), operation.staging_received()), (4, 4));
    assert_eq!(&operation.staging()[8..12], b"head");
    shared_buffer.with_bytes(10..14, |bytes| assert_eq!(bytes, b"data"));
}

#[test]
fn strides_land_behind_the_place_and_their_gaps_in_the_staging() {
    let mut pair = Pair::new(12);
    let shared_buffer = crate::pool(4096, 1).take(4096).expect("a buffer").share();
    let mut operation = ringfab_reactor::ReceiveOp::new(64);
    operation.set_target(Some((shared_buffer.clone(), 10, 4)), 8, 64);
    operation.add_strides(ringfab_reactor::Strides { gap: 2, step: 3, total: 5 });
    pair.server.receive(pair.far, operation, RECEIVE);
    pair.client.send(pair.near, batch(b"dataABmor12e!rest"), SEND);
    let [_, mut at_server] = pair.settle();
    let Payload::Receive(operation) = at_server.remove(0).payload else { panic!("a receive") };
    assert_eq!((operation.direct_received(), operation.staging_received()), (9, 8));
    assert_eq!(&operation.staging()[8..16], b"AB12rest");
    shared_buffer.with_bytes(10..19, |bytes| assert_eq!(bytes, b"datamore!"));
}
