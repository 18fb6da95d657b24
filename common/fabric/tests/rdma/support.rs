//! Two ends in one thread, over the kernel's loopback or in a simulated world.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ringfab_fabric::rdma::{
    Access, ConnectParameters, ConnectRequest, DisconnectReason, Inline, ListenParameters, ProtectionDomain,
    ProviderChoice, QueuePairAttributes, QueuePairId, ReceivedHead, RemoteBuffer, Rnic, RnicConfig,
    RnicEvent, SendRequest, Slice, Work,
};
use ringfab_memory::{Buffer, ClassLayout, Pool, SharedBuffer};
use ringfab_reactor::{Reactor, ReactorConfig, SocketOptions, Wait};

/// The `owner` of every RNIC here.
pub(crate) const OWNER: u8 = 7;

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// Defaults that fail fast.
pub(crate) fn config() -> RnicConfig {
    let mut config = RnicConfig::new(OWNER, [42; 32]);
    config.handshake_timeout = Duration::from_secs(2);
    config.close_timeout = Duration::from_secs(1);
    config
}

/// One core: reactor, RNIC, memory, and the events that nobody has looked at.
pub(crate) struct Node {
    pub(crate) reactor: Reactor,
    pub(crate) rnic: Rnic,
    pub(crate) pool: Pool,
    pub(crate) domain: ProtectionDomain,
    pub(crate) events: VecDeque<RnicEvent>,
    crc: bool,
    mpa_revision: u8,
}

impl Node {
    pub(crate) fn new(reactor: Reactor, config: RnicConfig) -> Self {
        let (crc, mpa_revision) = (config.crc, config.mpa_revision);
        let mut rnic = Rnic::new(config).expect("an RNIC");
        let domain = rnic.allocate_domain();
        let layout = [
            ClassLayout { buffer_bytes: 4096, count: 64 },
            ClassLayout { buffer_bytes: 16_384, count: 512 },
            ClassLayout { buffer_bytes: 1 << 20, count: 64 },
        ];
        let pool = Pool::new(&layout).expect("a pool");
        Self { reactor, rnic, pool, domain, events: VecDeque::new(), crc, mpa_revision }
    }

    pub(crate) fn over_ring(config: RnicConfig) -> Self {
        let reactor = ReactorConfig { entries: 512, spin: Duration::ZERO, descriptors_max: 1024 };
        Self::new(Reactor::new(&reactor).expect("a ring"), config)
    }

    /// One turn of a core's loop.
    pub(crate) fn step(&mut self) {
        self.rnic.turn(&mut self.reactor, Wait::No).expect("a turn");
        self.events.extend(std::iter::from_fn(|| self.rnic.next_event()));
    }

    pub(crate) fn listen(&mut self, address: SocketAddr) -> SocketAddr {
        let (crc, mpa_revision) = (self.crc, self.mpa_revision);
        let parameters = ListenParameters { crc, mpa_revision, ..ListenParameters::new(address) };
        self.rnic.listen(&mut self.reactor, &parameters).expect("listening").1
    }

    /// The usual queue pair: 16 deep, 8 KiB of in-capsule data, 8 reads each way.
    pub(crate) fn attributes(&self) -> QueuePairAttributes {
        QueuePairAttributes {
            domain: self.domain,
            send_depth: 16,
            receive_depth: 16,
            receive_bytes_max: 64 + 8192,
            pool: self.pool.clone(),
            initiator_depth: 8,
            responder_resources: 8,
        }
    }

    pub(crate) fn connect(&mut self, address: SocketAddr, private_data: &[u8]) -> QueuePairId {
        let attributes = self.attributes();
        self.connect_with(address, private_data, attributes)
    }

    pub(crate) fn connect_with(
        &mut self,
        address: SocketAddr,
        private_data: &[u8],
        attributes: QueuePairAttributes,
    ) -> QueuePairId {
        let timeout = Duration::from_secs(3);
        let parameters = ConnectParameters {
            address,
            provider: ProviderChoice::Iwarp,
            attributes,
            private_data,
            timeout,
            socket: SocketOptions::default(),
        };
        self.rnic.connect(&mut self.reactor, &parameters).expect("a connection on its way")
    }

    pub(crate) fn buffer(&self, bytes: &[u8]) -> Buffer {
        let mut buffer = self.pool.take(bytes.len()).expect("a buffer");
        buffer.copy_from_slice(bytes);
        buffer
    }

    pub(crate) fn shared_buffer(&self, bytes: &[u8]) -> SharedBuffer {
        self.buffer(bytes).share()
    }

    pub(crate) fn expose(&mut self, shared_buffer: &SharedBuffer, access: Access) -> RemoteBuffer {
        let length = shared_buffer.len() as u32;
        self.rnic.expose(self.domain, shared_buffer.clone(), 0, length, access).expect("room in the table")
    }

    pub(crate) fn post(&mut self, queue_pair: QueuePairId, id: u64, work: Work) {
        let request = SendRequest { id, work, signaled: true };
        self.rnic.post_send(queue_pair, request).expect("posted");
    }

    pub(crate) fn send(&mut self, queue_pair: QueuePairId, id: u64, head: &[u8]) {
        self.post(queue_pair, id, send_work(head, None));
    }

    pub(crate) fn disconnect(&mut self, queue_pair: QueuePairId) {
        self.rnic.disconnect(&mut self.reactor, queue_pair);
    }

    /// Takes the first event that `pick` wants; the others keep their order.
    fn take<R>(&mut self, mut pick: impl FnMut(RnicEvent) -> ControlFlow<R, RnicEvent>) -> Option<R> {
        for _ in 0..self.events.len() {
            let event = self.events.pop_front()?;
            match pick(event) {
                ControlFlow::Break(found) => return Some(found),
                ControlFlow::Continue(event) => self.events.push_back(event),
            }
        }
        None
    }
}

/// The work of sending a capsule.
pub(crate) fn send_work(head: &[u8], data: Option<Slice>) -> Work {
    Work::Send { head: Inline::new(head), data, invalidate: None, solicited: false }
}

/// The whole of a shared buffer.
pub(crate) fn slice(shared_buffer: &SharedBuffer) -> Slice {
    Slice { shared_buffer: shared_buffer.clone(), offset: 0, length: shared_buffer.len() as u32 }
}

/// Bytes that differ everywhere.
pub(crate) fn pattern(length: usize, seed: u32) -> Vec<u8> {
    let word = |index: usize| (index as u32).wrapping_mul(2_654_435_761).wrapping_add(seed);
    (0..length).map(|index| (word(index) >> 13) as u8).collect()
}

/// A message that arrived.
pub(crate) struct Received {
    pub(crate) head: ReceivedHead,
    pub(crate) data: Option<Buffer>,
    pub(crate) invalidated: Option<u32>,
}

/// What moves time when nobody does anything.
pub(crate) enum Time {
    Real,
    Simulated(ringfab_reactor::sim::World),
}

/// A connecting and a listening end.
pub(crate) struct Pair {
    pub(crate) host: Node,
    pub(crate) target: Node,
    pub(crate) listening: SocketAddr,
    pub(crate) time: Time,
}

impl Pair {
    pub(crate) fn over_loopback(configs: (RnicConfig, RnicConfig)) -> Self {
        let host = Node::over_ring(configs.0);
        let mut target = Node::over_ring(configs.1);
        let listening = target.listen("127.0.0.1:0".parse().expect("an address"));
        Self { host, target, listening, time: Time::Real }
    }

    pub(crate) fn in_a_simulated_world(configs: (RnicConfig, RnicConfig)) -> Self {
        Self::in_a_simulated_world_of(configs, 11)
    }

    pub(crate) fn in_a_simulated_world_of(configs: (RnicConfig, RnicConfig), seed: u64) -> Self {
        let world = ringfab_reactor::sim::World::new(seed);
        let (one, two) = (world.add_host("host"), world.add_host("target"));
        let host = Node::new(Reactor::simulated(&world, one), configs.0);
        let mut target = Node::new(Reactor::simulated(&world, two), configs.1);
        let listening = target.listen(world.socket_address(two, 4420));
        Self { host, target, listening, time: Time::Simulated(world) }
    }

    /// Turns both loops until `done` has an answer.
    pub(crate) fn until<R>(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> Option<R>) -> R {
        let (started, begun) = (Instant::now(), self.host.reactor.clock());
        loop {
            self.step();
            if let Some(found) = done(self) {
                return found;
            }
            if let Time::Simulated(world) = &self.time
                && !world.has_ready()
            {
                world.advance();
            }
            let waited = self.host.reactor.clock().since(begun);
            let late = waited > PATIENCE || started.elapsed() > 3 * PATIENCE;
            assert!(!late, "never: {what}; host {:?}; target {:?}", self.host.events, self.target.events);
        }
    }

    /// One turn of both.
    pub(crate) fn step(&mut self) {
        self.host.step();
        self.target.step();
    }

    /// Turns both for some time.
    pub(crate) fn run_for(&mut self, time: Duration) {
        let start = self.host.reactor.clock();
        // A timer of ours makes a quiet simulated world move.
        let token = ringfab_reactor::Token::new(OWNER, u8::MAX, 0, u32::MAX);
        let at = self.host.reactor.now() + time;
        self.host.reactor.set_timer(at, token);
        self.until("time passes", |pair| (pair.host.reactor.clock().since(start) >= time).then_some(()));
    }

    pub(crate) fn connect_request(&mut self) -> ConnectRequest {
        self.until("a connect request", |pair| {
            pair.target.take(|event| match event {
                RnicEvent::ConnectRequest(request) => ControlFlow::Break(request),
                other => ControlFlow::Continue(other),
            })
        })
    }

    /// Connects with the usual attributes.
    pub(crate) fn connected(&mut self) -> (QueuePairId, QueuePairId) {
        let (host, target) = (self.host.attributes(), self.target.attributes());
        self.connected_with(host, &target)
    }

    pub(crate) fn connected_with(
        &mut self,
        host: QueuePairAttributes,
        target: &QueuePairAttributes,
    ) -> (QueuePairId, QueuePairId) {
        let here = self.host.connect_with(self.listening, b"", host);
        let request = self.connect_request();
        let accepted = self.target.rnic.accept(&mut self.target.reactor, request, target, b"");
        let there = accepted.expect("accepted");
        self.established(here);
        self.until("established at the target", |pair| {
            pair.target.take(|event| match event {
                RnicEvent::Established { queue_pair, .. } if queue_pair == there => ControlFlow::Break(()),
                other => ControlFlow::Continue(other),
            })
        });
        self.greet(here, there);
        (here, there)
    }

    /// The accepting end may not send before something has arrived (RFC 5044, section 7.1.3).
    fn greet(&mut self, here: QueuePairId, there: QueuePairId) {
        // Of a capsule's size: Wireshark takes shorter ones for broken messages of another protocol.
        self.host.send(here, 0, &[b'!'; 64]);
        assert_eq!(self.received(End::Target).head.as_slice(), [b'!'; 64]);
        assert_eq!(self.sent(End::Host), 0);
        self.target.rnic.post_receive(there, 1);
    }

    /// What the target said when it accepted.
    pub(crate) fn established(&mut self, queue_pair: QueuePairId) -> Bytes {
        self.until("established at the host", |pair| {
            pair.host.take(|event| match event {
                RnicEvent::Established { queue_pair: which, private_data } if which == queue_pair => {
                    ControlFlow::Break(private_data)
                }
                other => ControlFlow::Continue(other),
            })
        })
    }

    pub(crate) fn received(&mut self, end: End) -> Received {
        self.until("a message", |pair| {
            pair.node(end).take(|event| match event {
                RnicEvent::Received { head, data, invalidated, .. } => {
                    ControlFlow::Break(Received { head, data, invalidated })
                }
                other => ControlFlow::Continue(other),
            })
        })
    }

    /// The name of a SEND or a WRITE, which completes with no others.
    pub(crate) fn sent(&mut self, end: End) -> u64 {
        self.sent_of(end, 1)
    }

    /// The name of the last of so many SENDs and WRITEs, which complete in events of their own or together.
    pub(crate) fn sent_of(&mut self, end: End, mut count: u32) -> u64 {
        loop {
            let (id, counted) = self.until("a send completes", |pair| {
                pair.node(end).take(|event| match event {
                    RnicEvent::Sent { id, count, .. } => ControlFlow::Break((id, count)),
                    other => ControlFlow::Continue(other),
                })
            });
            count = count.checked_sub(counted).expect("no more completes than was posted");
            if count == 0 {
                return id;
            }
        }
    }

    pub(crate) fn read(&mut self, end: End) -> (u64, Buffer) {
        self.until("a read completes", |pair| {
            pair.node(end).take(|event| match event {
                RnicEvent::Read { id, sink, .. } => ControlFlow::Break((id, sink)),
                other => ControlFlow::Continue(other),
            })
        })
    }

    /// The last event of a queue pair, and the names of what was flushed before it.
    pub(crate) fn disconnected(&mut self, end: End, queue_pair: QueuePairId) -> (DisconnectReason, Vec<u64>) {
        let reason = self.until("disconnected", |pair| {
            pair.node(end).take(|event| match event {
                RnicEvent::Disconnected { queue_pair: which, reason } if which == queue_pair => {
                    ControlFlow::Break(reason)
                }
                other => ControlFlow::Continue(other),
            })
        });
        let mut flushed = Vec::new();
        while let Some(id) = self.node(end).take(|event| match event {
            RnicEvent::Flushed { queue_pair: which, id, .. } if which == queue_pair => ControlFlow::Break(id),
            other => ControlFlow::Continue(other),
        }) {
            flushed.push(id);
        }
        (reason, flushed)
    }

    pub(crate) fn node(&mut self, end: End) -> &mut Node {
        match end {
            End::Host => &mut self.host,
            End::Target => &mut self.target,
        }
    }
}

/// Which end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    Host,
    Target,
}

/// Runs each scenario over loopback and in a simulated world.
macro_rules! scenarios {
    ($($name:ident),* $(,)?) => {
        mod over_loopback {
            use crate::support::{Pair, config};
            $(#[test]
            fn $name() {
                super::$name(&mut Pair::over_loopback((config(), config())));
            })*
        }
        mod in_a_simulated_world {
            use crate::support::{Pair, config};
            $(#[test]
            fn $name() {
                super::$name(&mut Pair::in_a_simulated_world((config(), config())));
            })*
        }
    };
}
pub(crate) use scenarios;
