//! A stream that is echoed over bad links: every byte in order, or a reset.

use std::time::Duration;

use ringfab_reactor::sim::{LinkFaults, World};
use ringfab_reactor::{Completion, Payload, Reactor, SocketId};

use crate::{CONNECT, LISTEN, RECEIVE, SEND, batch, connect, errno_of, listen, receive_op, received, run};

const STREAM_BYTES: usize = 40_000;

/// What one echoed stream came to.
struct Outcome {
    echoed: usize,
    error: Option<i32>,
    trace_hash: u64,
    ends_at: u64,
}

#[derive(Default)]
struct Client {
    socket: Option<SocketId>,
    sent: usize,
    echoed: usize,
    error: Option<i32>,
}

impl Client {
    fn handle(&mut self, world: &World, reactor: &mut Reactor, completion: &Completion) {
        let socket = self.socket.expect("it was connected first");
        if let Some(error) = errno_of(completion) {
            self.fail(reactor, socket, error);
            return;
        }
        match completion.token {
            CONNECT => {
                self.send_more(world, reactor, socket);
                reactor.receive(socket, receive_op(3000), RECEIVE);
            }
            SEND => self.send_more(world, reactor, socket),
            RECEIVE => self.check(reactor, socket, received(completion)),
            other => panic!("nothing of mine: {other:?}"),
        }
    }

    fn fail(&mut self, reactor: &mut Reactor, socket: SocketId, error: i32) {
        if self.error.is_none() {
            self.error = Some(error);
            reactor.close_socket(socket);
        }
    }

    fn send_more(&mut self, world: &World, reactor: &mut Reactor, socket: SocketId) {
        if self.error.is_some() {
            return;
        }
        if self.sent == STREAM_BYTES {
            reactor.shutdown_write(socket);
            return;
        }
        let length = (1 + world.random_below(5000) as usize).min(STREAM_BYTES - self.sent);
        let bytes: Vec<u8> = (self.sent..self.sent + length).map(pattern).collect();
        self.sent += length;
        reactor.send(socket, batch(&bytes), SEND);
    }

    fn check(&mut self, reactor: &mut Reactor, socket: SocketId, bytes: &[u8]) {
        if self.error.is_some() {
            return;
        }
        if bytes.is_empty() {
            assert_eq!(self.echoed, STREAM_BYTES, "the stream ended early");
            reactor.close_socket(socket);
            return;
        }
        for (index, byte) in bytes.iter().enumerate() {
            assert_eq!(*byte, pattern(self.echoed + index), "byte {}", self.echoed + index);
        }
        self.echoed += bytes.len();
        reactor.receive(socket, receive_op(3000), RECEIVE);
    }
}

#[derive(Default)]
struct Server {
    socket: Option<SocketId>,
}

impl Server {
    fn handle(&mut self, reactor: &mut Reactor, completion: &Completion) {
        if completion.result.is_err() {
            if let Some(socket) = self.socket.take() {
                reactor.close_socket(socket);
            }
            return;
        }
        if let Payload::Accepted(socket, _) = &completion.payload {
            assert_eq!(completion.token, LISTEN);
            self.socket = Some(*socket);
        }
        let Some(socket) = self.socket else { return };
        match &completion.payload {
            Payload::Receive(_) if received(completion).is_empty() => reactor.close_socket(socket),
            Payload::Receive(_) => reactor.send(socket, batch(received(completion)), SEND),
            _ => reactor.receive(socket, receive_op(2000), RECEIVE),
        }
    }
}

fn pattern(position: usize) -> u8 {
    ((position as u32).wrapping_mul(2_654_435_761) >> 24) as u8
}

fn echo(seed: u64, faults: LinkFaults) -> Outcome {
    let world = World::new(seed);
    let hosts = [world.add_host("client"), world.add_host("server")];
    world.set_link(hosts[0], hosts[1], faults);
    let mut reactors = hosts.map(|host| Reactor::simulated(&world, host));
    let [near, far] = &mut reactors;
    let address = world.socket_address(hosts[1], 4420);
    listen(far, address);
    let (mut client, mut server) = (Client::default(), Server::default());
    client.socket = Some(connect(near, address));
    run(&world, &mut [near, far], |reactor, index, completion| {
        if index == 0 {
            client.handle(&world, reactor, &completion);
        } else {
            server.handle(reactor, &completion);
        }
    });
    assert_eq!(world.connections(), 0, "seed {seed}: both ends were closed");
    Outcome {
        echoed: client.echoed,
        error: client.error,
        trace_hash: world.trace_hash(),
        ends_at: world.now().as_nanos(),
    }
}

fn rough_link(world_seed: u64) -> LinkFaults {
    LinkFaults {
        delay_min: Duration::from_micros(1),
        delay_max: Duration::from_millis(3),
        chunk_max: 1 + (world_seed as usize * 37) % 4000,
        buffer_bytes: 500 + (world_seed as usize * 91) % 20_000,
        ..LinkFaults::default()
    }
}

#[test]
fn without_cuts_every_byte_comes_back_in_order_whatever_the_delays_and_chunks() {
    for seed in 0..40 {
        let outcome = echo(seed, rough_link(seed));
        assert_eq!((outcome.echoed, outcome.error), (STREAM_BYTES, None), "seed {seed}");
    }
}

#[test]
fn with_cuts_a_stream_is_whole_or_a_correct_beginning_followed_by_a_reset() {
    let (mut whole, mut cut_midway) = (0, 0);
    for seed in 0..120 {
        let outcome = echo(seed, LinkFaults { cut_probability: 0.0005, ..rough_link(seed) });
        match outcome.error {
            None => {
                assert_eq!(outcome.echoed, STREAM_BYTES, "seed {seed}");
                whole += 1;
            }
            Some(error) => {
                assert_eq!(error, libc::ECONNRESET, "seed {seed}");
                cut_midway += usize::from(outcome.echoed > 0 && outcome.echoed < STREAM_BYTES);
            }
        }
    }
    assert!(whole > 5 && cut_midway > 5, "the seeds show both: {whole} whole, {cut_midway} cut");
}

#[test]
fn the_same_seed_gives_the_same_world_and_another_seed_another() {
    let faults = |seed| LinkFaults { cut_probability: 0.002, ..rough_link(seed) };
    let run_of = |seed: u64| {
        let outcome = echo(seed, faults(7));
        (outcome.trace_hash, outcome.ends_at, outcome.echoed)
    };
    let hashes: Vec<_> = (0..10).map(run_of).collect();
    assert_eq!(hashes, (0..10).map(run_of).collect::<Vec<_>>());
    let mut distinct = hashes.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), hashes.len());
}
