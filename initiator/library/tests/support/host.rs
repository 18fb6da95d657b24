//! The host's side of these tests.

use std::time::{Duration, Instant};

use ringfab_fabric::rdma::RnicConfig;
use ringfab_initiator::{
    ConnectOptions, ControllerId, Host, HostConfig, HostEvent, HostIdentity, IoDone, IoOperation, IoRequest,
    Url, ZonedIp,
};
use ringfab_memory::SharedBuffer;
use ringfab_reactor::Wait;

use super::{BLOCK, NQN, Peer, pool_layout, reactor};

const DEADLINE: Duration = Duration::from_secs(20);

pub(crate) fn host() -> Host {
    let config = HostConfig::new(pool_layout(), RnicConfig::new(0, [7; 32]), 7);
    Host::new(reactor(), config).expect("a host")
}

pub(crate) fn options(peer: &Peer) -> ConnectOptions {
    let ip = ZonedIp::new(peer.address.ip(), None).expect("not link-local");
    let url = Url::new(ip.into(), peer.address.port(), Some(NQN.to_owned()));
    let id = uuid::Uuid::from_u128(1);
    let mut options =
        ConnectOptions::new(url, HostIdentity { nqn: "nqn.2026-01.org.example:me".to_owned(), id });
    options.queues = 2;
    options.depth = 16;
    options.reconnect.delay = Duration::from_millis(20);
    // The controller of these tests does nothing late.
    options.replay_delay = Some(Duration::ZERO);
    options
}

/// A host that is attached, with options changed by `change`, to a controller prepared by `prepare`.
pub(crate) fn attached_with(
    prepare: impl FnOnce(&mut Peer),
    change: impl FnOnce(&mut ConnectOptions),
) -> (Host, Peer, ControllerId) {
    let (mut host, mut peer) = (host(), Peer::new());
    prepare(&mut peer);
    let mut options = options(&peer);
    change(&mut options);
    let controller = host.attach(options);
    match next_event(&mut host, &mut peer) {
        HostEvent::Ready { reconnected: false, .. } => (host, peer, controller),
        event => panic!("{event:?}"),
    }
}

/// Turns both ends for some time, in which the host has no event.
pub(crate) fn nothing_for(host: &mut Host, peer: &mut Peer, time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        host.turn(Wait::No).expect("a turn");
        peer.turn();
        if let Some(event) = host.next_event() {
            panic!("{event:?}");
        }
    }
}

/// Turns both ends until something is so.
pub(crate) fn until(host: &mut Host, peer: &mut Peer, mut so: impl FnMut(&Peer) -> bool) {
    let start = Instant::now();
    while !so(peer) {
        host.turn(Wait::No).expect("a turn");
        peer.turn();
        assert!(start.elapsed() < DEADLINE, "never");
    }
}

/// Turns both ends until the host has an event.
pub(crate) fn next_event(host: &mut Host, peer: &mut Peer) -> HostEvent {
    let start = Instant::now();
    loop {
        if let Some(event) = host.next_event() {
            return event;
        }
        host.turn(Wait::No).expect("a turn");
        peer.turn();
        assert!(start.elapsed() < DEADLINE, "no event in time");
    }
}

pub(crate) fn filled(host: &Host, blocks: usize, byte: u8) -> SharedBuffer {
    let mut buffer = host.pool().take(blocks * BLOCK).expect("a buffer");
    buffer.fill(byte);
    buffer.share()
}

pub(crate) fn write(host: &Host, tag: u64, lba: u64, nlb: u32, byte: u8) -> IoRequest {
    let source = filled(host, nlb as usize, byte);
    IoRequest { nsid: 1, tag, operation: IoOperation::Write { lba, nlb, source, offset: 0, fua: false } }
}

pub(crate) fn read(host: &Host, tag: u64, lba: u64, nlb: u32) -> IoRequest {
    let buffer = host.pool().take(nlb as usize * BLOCK).expect("a buffer");
    IoRequest { nsid: 1, tag, operation: IoOperation::Read { lba, nlb, buffer } }
}

pub(crate) fn done(host: &mut Host, peer: &mut Peer) -> IoDone {
    match next_event(host, peer) {
        HostEvent::IoDone(done) => done,
        event => panic!("{event:?}"),
    }
}
