//! What the tests share.
#![allow(dead_code, reason = "each test uses its part")]

use std::time::{Duration, Instant};

use ringfab_memory::{ClassLayout, Pool};
use ringfab_reactor::{
    Bind, Completion, ListenAddr, Payload, Reactor, ReactorConfig, ReceiveOp, SocketId, SocketOptions, Token,
    Wait,
};

/// No wait of a test is longer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn reactor() -> Reactor {
    reactor_with(Duration::from_micros(20))
}

pub(crate) fn reactor_with(spin: Duration) -> Reactor {
    Reactor::new(&ReactorConfig { entries: 64, spin, descriptors_max: 512 }).expect("a ring")
}

pub(crate) fn token(index: u32) -> Token {
    Token::new(1, 2, 3, index)
}

pub(crate) fn pool(buffer_bytes: usize, count: usize) -> Pool {
    Pool::new(&[ClassLayout { buffer_bytes, count }]).expect("a pool")
}

/// The next completion, whatever it is.
pub(crate) fn next(reactor: &mut Reactor) -> Completion {
    next_by(reactor, Wait::Event)
}

/// The same, waiting in that way.
pub(crate) fn next_by(reactor: &mut Reactor, wait: Wait) -> Completion {
    let deadline = Instant::now() + PATIENCE;
    let guard = reactor.set_timer(reactor.clock() + PATIENCE, Token::new(255, 0, 0, 0));
    loop {
        if let Some(completion) = reactor.next_completion() {
            reactor.cancel_timer(guard);
            assert_ne!(completion.token.owner, 255, "nothing happened for {PATIENCE:?}");
            return completion;
        }
        assert!(Instant::now() < deadline + PATIENCE, "nothing happened");
        reactor.turn(wait).expect("a turn");
    }
}

/// The next completion of that token; any other one is a failure.
pub(crate) fn expect(reactor: &mut Reactor, expected: Token) -> Completion {
    let completion = next(reactor);
    assert_eq!(completion.token, expected, "{completion:?}");
    completion
}

/// Turns without waiting until `done` says so.
pub(crate) fn turn_until(reactor: &mut Reactor, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "it did not happen");
        reactor.turn(Wait::No).expect("a turn");
    }
}

pub(crate) fn listen(reactor: &mut Reactor, token: Token) -> (Bind, std::net::SocketAddr) {
    let any = ListenAddr::Tcp("127.0.0.1:0".parse().expect("an address"));
    let bind = reactor.listen(&any, &SocketOptions::default(), token).expect("a listener");
    let ListenAddr::Tcp(address) = bind.address else { panic!("not TCP") };
    (bind, address)
}

/// Two ends of a connection within one reactor.
pub(crate) fn connected_pair(reactor: &mut Reactor) -> (SocketId, SocketId) {
    let (bind, address) = listen(reactor, token(900));
    let near = reactor.connect(address, &SocketOptions::default(), token(901)).expect("a socket");
    let mut far = None;
    for _ in 0..2 {
        let completion = next(reactor);
        assert!(completion.result.is_ok(), "{completion:?}");
        if let Payload::Accepted(socket, _) = completion.payload {
            far = Some(socket);
        }
    }
    reactor.close_listener(bind.listener);
    (near, far.expect("an accepted socket"))
}

/// A small generator, so that the tests repeat.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}

/// A receive of so many bytes into its staging memory.
pub(crate) fn receive(bytes: usize) -> Box<ReceiveOp> {
    let mut operation = ReceiveOp::new(bytes);
    operation.set_target(None, 0, bytes);
    operation
}

/// Fills in what stands at a position of a stream.
pub(crate) fn pattern(bytes: &mut [u8], position: usize) {
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = pattern_byte(position + index);
    }
}

/// Panics unless it is what stands there.
pub(crate) fn assert_pattern(bytes: &[u8], position: usize) {
    let wrong = bytes.iter().enumerate().find(|(index, byte)| **byte != pattern_byte(position + index));
    assert!(wrong.is_none(), "byte {:?} at {position}", wrong);
}

fn pattern_byte(position: usize) -> u8 {
    (position ^ (position >> 8) ^ (position >> 16)) as u8
}
