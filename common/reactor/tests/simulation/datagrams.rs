//! What a link does to datagrams: it loses some, doubles some, and lets some overtake others.

use std::net::SocketAddr;
use std::time::Duration;

use ringfab_reactor::sim::{HostId, LinkFaults, World};
use ringfab_reactor::{Completion, Datagram, DatagramSocketId, Payload, Reactor, SocketOptions};

use crate::{RECEIVE, SEND, collect, errno_of, run};

/// Two hosts with a socket each.
struct Ends {
    world: World,
    hosts: [HostId; 2],
    reactors: [Reactor; 2],
    sockets: [DatagramSocketId; 2],
    addresses: [SocketAddr; 2],
}

impl Ends {
    fn new(seed: u64, link: LinkFaults) -> Self {
        let world = World::new(seed);
        let hosts = ["near", "far"].map(|name| world.add_host(name));
        world.set_link(hosts[0], hosts[1], link);
        let mut reactors = hosts.map(|host| Reactor::simulated(&world, host));
        let bound = [0, 1].map(|end| {
            let any = world.socket_address(hosts[end], 0);
            reactors[end].datagrams().bind(any, &SocketOptions::default()).expect("an address")
        });
        let (sockets, addresses) = (bound.map(|(socket, _)| socket), bound.map(|(_, address)| address));
        Self { world, hosts, reactors, sockets, addresses }
    }

    /// Sends numbered datagrams from the first to the second.
    fn send(&mut self, numbers: std::ops::Range<u32>) {
        for number in numbers {
            let mut datagram = Datagram::with_room(64);
            datagram.set(self.addresses[1], &number.to_be_bytes());
            self.reactors[0].datagrams().send(self.sockets[0], datagram, SEND);
        }
    }

    /// The numbers of those that have come, in order.
    fn received(&mut self, most: usize) -> Vec<u32> {
        for _ in 0..most {
            self.reactors[1].datagrams().receive(self.sockets[1], Datagram::with_room(64), RECEIVE);
        }
        let (mut numbers, from) = (Vec::new(), self.addresses[0]);
        let [near, far] = &mut self.reactors;
        run(&self.world, &mut [near, far], |_, _, completion| {
            let Payload::Datagram(datagram) = &completion.payload else { panic!("{completion:?}") };
            let bytes = completion.result.as_ref().expect("it is sent, or has come");
            assert_eq!(*bytes as usize, datagram.bytes().len());
            if completion.token == RECEIVE {
                assert_eq!(datagram.peer(), Some(from));
                numbers.push(u32::from_be_bytes(datagram.bytes().try_into().expect("a number")));
            }
        });
        numbers
    }
}

fn datagram_of(completion: &Completion) -> &Datagram {
    match &completion.payload {
        Payload::Datagram(datagram) => datagram,
        other => panic!("{other:?}"),
    }
}

#[test]
fn without_faults_all_come_once_and_in_order() {
    let mut ends = Ends::new(1, LinkFaults::default());
    ends.send(0..100);
    assert_eq!(ends.received(200), (0..100).collect::<Vec<u32>>());
}

#[test]
fn a_link_loses_doubles_and_reorders_as_often_as_it_is_told_to() {
    let link = LinkFaults {
        loss_probability: 0.1,
        duplicate_probability: 0.1,
        delay_max: Duration::from_micros(50),
        ..LinkFaults::default()
    };
    let run = |seed| {
        let mut ends = Ends::new(seed, link.clone());
        ends.send(0..1000);
        let received = ends.received(2000);
        (received, ends.world.trace_hash())
    };
    let (received, hash) = run(7);
    let times = |number: u32| received.iter().filter(|one| **one == number).count();
    let count = |wanted: usize| (0..1000).filter(|number| times(*number) == wanted).count();
    assert!((50..200).contains(&count(0)), "lost: {}", count(0));
    assert!((40..200).contains(&count(2)), "twice: {}", count(2));
    assert_eq!(count(0) + count(1) + count(2), 1000);
    assert!(!received.is_sorted(), "some overtake others");
    assert_eq!(run(7), (received, hash), "the same seed, the same fates");
}

#[test]
fn a_partition_loses_what_is_sent_meanwhile() {
    let mut ends = Ends::new(2, LinkFaults::default());
    let [near, far] = ends.hosts;
    ends.world.partition(near, far, true);
    ends.send(0..10);
    assert!(ends.received(1).is_empty());
    ends.world.partition(near, far, false);
    ends.send(10..11);
    assert_eq!(ends.received(1), [10]);
}

#[test]
fn what_nobody_receives_waits_as_far_as_there_is_room() {
    let mut ends = Ends::new(3, LinkFaults { buffer_bytes: 40, ..LinkFaults::default() });
    ends.send(0..20);
    assert!(ends.received(0).is_empty());
    assert_eq!(ends.received(20), (0..10).collect::<Vec<u32>>(), "40 bytes are ten of them");
}

#[test]
fn what_is_too_long_for_its_room_is_cut_and_says_so() {
    let mut ends = Ends::new(4, LinkFaults::default());
    let mut long = Datagram::with_room(100);
    long.set(ends.addresses[0], &[7; 100]);
    ends.reactors[0].datagrams().send(ends.sockets[0], long, SEND);
    ends.reactors[0].datagrams().receive(ends.sockets[0], Datagram::with_room(60), RECEIVE);
    let completions = collect(&ends.world, &mut ends.reactors[0]);
    let cut = completions.iter().find(|one| one.token == RECEIVE).expect("it has come to itself");
    assert!(datagram_of(cut).is_truncated());
    assert_eq!(datagram_of(cut).bytes(), [7; 60]);
}

#[test]
fn a_socket_that_is_closed_gives_back_what_it_holds_and_an_address_has_one_owner() {
    let mut ends = Ends::new(5, LinkFaults::default());
    let options = SocketOptions::default();
    let taken = ends.reactors[1].datagrams().bind(ends.addresses[1], &options);
    assert_eq!(taken.expect_err("somebody has it").raw_os_error(), Some(libc::EADDRINUSE));
    let elsewhere = ends.reactors[1].datagrams().bind(ends.addresses[0], &options);
    assert_eq!(elsewhere.expect_err("another host's").raw_os_error(), Some(libc::EADDRNOTAVAIL));
    ends.reactors[1].datagrams().receive(ends.sockets[1], Datagram::with_room(60), RECEIVE);
    ends.reactors[1].datagrams().close(ends.sockets[1]);
    ends.reactors[1].datagrams().receive(ends.sockets[1], Datagram::with_room(60), RECEIVE);
    let completions = collect(&ends.world, &mut ends.reactors[1]);
    assert_eq!(completions.len(), 2);
    assert!(completions.iter().all(|one| errno_of(one) == Some(libc::ECANCELED)));
    ends.send(0..1);
    assert!(ends.received(0).is_empty(), "nobody is there");
    ends.reactors[1].datagrams().bind(ends.addresses[1], &options).expect("it is free again");
}
