//! Datagrams over the real kernel.

mod support;

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use ringfab_reactor::{Completion, Datagram, DatagramSocketId, Payload, Reactor, SocketOptions};
use support::*;

const SEND: u32 = 1;
const RECEIVE: u32 = 2;

fn bind(reactor: &mut Reactor, address: impl Into<std::net::IpAddr>) -> (DatagramSocketId, SocketAddr) {
    let any = SocketAddr::new(address.into(), 0);
    reactor.datagrams().bind(any, &SocketOptions::default()).expect("an address")
}

fn datagram_of(completion: Completion) -> Box<Datagram> {
    match completion.payload {
        Payload::Datagram(datagram) => datagram,
        other => panic!("{other:?}"),
    }
}

/// The next completion of an operation that was started with this number; others are dropped.
fn next_of(reactor: &mut Reactor, number: u32) -> Completion {
    loop {
        let completion = next(reactor);
        if completion.token == token(number) {
            return completion;
        }
    }
}

#[test]
fn they_go_to_and_come_from_any_other_program() {
    let mut reactor = reactor();
    let addresses: [std::net::IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    for address in addresses {
        let Ok(other) = UdpSocket::bind((address, 0)) else {
            assert!(address.is_ipv6(), "every system has IPv4");
            continue;
        };
        let peer = other.local_addr().expect("an address");
        let (socket, own) = bind(&mut reactor, address);
        let mut datagram = Datagram::with_room(9000);
        datagram.set(peer, &[5; 8000]);
        reactor.datagrams().send(socket, datagram, token(SEND));
        let sent = next_of(&mut reactor, SEND);
        assert_eq!(sent.result.as_ref().expect("it is taken"), &8000);
        let mut seen = [0; 9000];
        assert_eq!(other.recv_from(&mut seen).expect("it has come"), (8000, own));
        assert_eq!(seen[..8000], [5; 8000]);
        reactor.datagrams().receive(socket, datagram_of(sent), token(RECEIVE));
        other.send_to(b"an answer", own).expect("sent");
        let received = next_of(&mut reactor, RECEIVE);
        assert_eq!(received.result.as_ref().expect("it has come"), &9);
        let received = datagram_of(received);
        assert_eq!((received.bytes(), received.peer()), (&b"an answer"[..], Some(peer)));
        assert!(!received.is_truncated());
        reactor.datagrams().close(socket);
    }
}

#[test]
fn several_are_in_flight_at_once() {
    let mut reactor = reactor();
    let (near, _) = bind(&mut reactor, Ipv4Addr::LOCALHOST);
    let (far, to) = bind(&mut reactor, Ipv4Addr::LOCALHOST);
    for number in 0..16_u8 {
        reactor.datagrams().receive(far, Datagram::with_room(16), token(RECEIVE));
        let mut datagram = Datagram::with_room(16);
        datagram.set(to, &[number; 8]);
        reactor.datagrams().send(near, datagram, token(SEND));
    }
    let mut seen: Vec<u8> = (0..16).map(|_| datagram_of(next_of(&mut reactor, RECEIVE)).bytes()[0]).collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..16).collect::<Vec<u8>>());
}

#[test]
fn one_that_is_too_long_for_its_room_is_cut_and_says_so() {
    let mut reactor = reactor();
    let (socket, own) = bind(&mut reactor, Ipv4Addr::LOCALHOST);
    reactor.datagrams().receive(socket, Datagram::with_room(10), token(RECEIVE));
    UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket").send_to(&[1; 20], own).expect("sent");
    let received = datagram_of(next_of(&mut reactor, RECEIVE));
    assert_eq!((received.bytes(), received.is_truncated()), (&[1; 10][..], true));
}

#[test]
fn a_socket_that_is_closed_gives_back_what_it_holds() {
    let mut reactor = reactor();
    let (socket, own) = bind(&mut reactor, Ipv4Addr::LOCALHOST);
    let taken = reactor.datagrams().bind(own, &SocketOptions::default());
    assert_eq!(taken.expect_err("somebody has it").raw_os_error(), Some(libc::EADDRINUSE));
    reactor.datagrams().receive(socket, Datagram::with_room(10), token(RECEIVE));
    reactor.datagrams().close(socket);
    reactor.datagrams().receive(socket, Datagram::with_room(10), token(RECEIVE));
    for _ in 0..2 {
        let ended = next_of(&mut reactor, RECEIVE);
        assert_eq!(ended.result.as_ref().expect_err("it is closed").raw_os_error(), Some(libc::ECANCELED));
        assert_eq!(datagram_of(ended).peer(), None);
    }
}
