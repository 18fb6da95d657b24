//! The simulated world, through the methods that everything above it uses.

mod datagrams;
mod disks;
mod echo;
mod network;
mod sockets;
mod time;

use std::net::SocketAddr;

use ringfab_memory::{ClassLayout, Pool};
use ringfab_reactor::sim::{HostId, World};
use ringfab_reactor::{
    Bind, Completion, ListenAddr, Payload, Reactor, ReceiveOp, SendBatch, SocketId, SocketOptions, Token,
    Wait,
};

/// More steps than any test needs; one that takes them does not end by itself.
const STEPS_MAX: usize = 1_000_000;

const LISTEN: Token = Token::new(1, 1, 0, 0);
const CONNECT: Token = Token::new(1, 2, 0, 0);
const RECEIVE: Token = Token::new(1, 3, 0, 0);
const SEND: Token = Token::new(1, 4, 0, 0);

/// Turns the reactors and lets time pass until nothing is left to happen.
fn run(
    world: &World,
    reactors: &mut [&mut Reactor],
    mut handle: impl FnMut(&mut Reactor, usize, Completion),
) {
    for _ in 0..STEPS_MAX {
        turn_all(reactors, &mut handle);
        if !world.has_ready() && !world.advance() {
            return;
        }
    }
    panic!("the world does not come to rest");
}

fn turn_all(reactors: &mut [&mut Reactor], handle: &mut impl FnMut(&mut Reactor, usize, Completion)) {
    for (index, reactor) in reactors.iter_mut().enumerate() {
        reactor.turn(Wait::No).expect("a turn");
        while let Some(completion) = reactor.next_completion() {
            handle(reactor, index, completion);
        }
    }
}

/// Everything that completes on one reactor until the world rests.
fn collect(world: &World, reactor: &mut Reactor) -> Vec<Completion> {
    let mut completions = Vec::new();
    run(world, &mut [reactor], |_, _, completion| completions.push(completion));
    completions
}

/// The only completion until the world rests.
fn only(world: &World, reactor: &mut Reactor) -> Completion {
    let mut completions = collect(world, reactor);
    assert_eq!(completions.len(), 1, "{completions:?}");
    completions.remove(0)
}

fn errno_of(completion: &Completion) -> Option<i32> {
    completion.result.as_ref().err().and_then(std::io::Error::raw_os_error)
}

fn listen(reactor: &mut Reactor, address: SocketAddr) -> Bind {
    reactor.listen(&ListenAddr::Tcp(address), &SocketOptions::default(), LISTEN).expect("listening")
}

fn connect(reactor: &mut Reactor, address: SocketAddr) -> SocketId {
    reactor.connect(address, &SocketOptions::default(), CONNECT).expect("a socket")
}

fn receive_op(bytes: usize) -> Box<ReceiveOp> {
    let mut operation = ReceiveOp::new(bytes);
    operation.set_target(None, 0, bytes);
    operation
}

fn batch(bytes: &[u8]) -> Box<SendBatch> {
    let mut batch = SendBatch::new(bytes.len(), 1);
    batch.push_bytes(bytes);
    batch
}

fn pool(buffer_bytes: usize, count: usize) -> Pool {
    Pool::new(&[ClassLayout { buffer_bytes, count }]).expect("a pool")
}

/// The bytes that a completed receive got.
fn received(completion: &Completion) -> &[u8] {
    let Payload::Receive(operation) = &completion.payload else { panic!("not a receive: {completion:?}") };
    &operation.staging()[..operation.staging_received()]
}

/// Two hosts with a core each and a connection between them.
struct Pair {
    world: World,
    hosts: [HostId; 2],
    client: Reactor,
    server: Reactor,
    near: SocketId,
    far: SocketId,
}

impl Pair {
    fn new(seed: u64) -> Self {
        let world = World::new(seed);
        let hosts = [world.add_host("client"), world.add_host("server")];
        let mut client = Reactor::simulated(&world, hosts[0]);
        let mut server = Reactor::simulated(&world, hosts[1]);
        let address = world.socket_address(hosts[1], 4420);
        listen(&mut server, address);
        let near = connect(&mut client, address);
        let mut far = None;
        run(&world, &mut [&mut client, &mut server], |_, index, completion| {
            assert_eq!(completion.token, [CONNECT, LISTEN][index]);
            completion.result.expect("a connection");
            if let Payload::Accepted(socket, _) = completion.payload {
                far = Some(socket);
            }
        });
        Self { world, hosts, client, server, near, far: far.expect("it was accepted") }
    }

    /// Everything that completes on either side until the world rests.
    fn settle(&mut self) -> [Vec<Completion>; 2] {
        let mut completions = [Vec::new(), Vec::new()];
        run(&self.world, &mut [&mut self.client, &mut self.server], |_, index, completion| {
            completions[index].push(completion);
        });
        completions
    }
}
