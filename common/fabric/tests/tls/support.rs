//! Two ends in one thread, over the kernel's loopback or in a simulated world.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ringfab_auth::{CipherSuite, Secret};
use ringfab_fabric::rdma::Slice;
use ringfab_fabric::tcp::{
    AcceptParameters, C2hData, ConnectParameters, ConnectionId, Digests, Incoming, ListenParameters,
    ListenerTls, Psk, PskStore, SubmitData, TcpConfig, TcpEvent, TcpStack,
};
use ringfab_memory::{Buffer, ClassLayout, Pool, SharedBuffer};
use ringfab_reactor::sim::World;
use ringfab_reactor::{Reactor, ReactorConfig, SocketOptions, Wait};
use ringfab_spec::{CompletionEntry, Status, SubmissionEntry};

const OWNER: u8 = 5;

/// How long anything may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// The largest data of a command here.
pub(crate) const DATA_BYTES_MAX: usize = 1 << 20;

pub(crate) const SHA256: CipherSuite = CipherSuite::Aes128GcmSha256;
pub(crate) const SHA384: CipherSuite = CipherSuite::Aes256GcmSha384;

/// A key of bytes that are all the same.
pub(crate) fn psk(identity: &str, byte: u8, suite: CipherSuite) -> Psk {
    let bytes = if suite == SHA256 { 32 } else { 48 };
    Psk { identity: identity.into(), secret: Secret::copy_of(&vec![byte; bytes]), suite }
}

/// What the listeners here know.
#[derive(Debug)]
pub(crate) struct Store(Vec<Psk>);

impl PskStore for Store {
    fn find(&self, identity: &[u8]) -> Result<Vec<(Secret, CipherSuite)>, String> {
        let found = self.0.iter().find(|psk| psk.identity == identity).ok_or("nobody has it")?;
        Ok(vec![(found.secret.clone(), found.suite)])
    }
}

pub(crate) fn store(psks: &[Psk]) -> Arc<dyn PskStore> {
    Arc::new(Store(psks.to_vec()))
}

/// The key that both ends have, if nothing is said about that.
pub(crate) fn known() -> Psk {
    psk("NVMe1R01 nqn.host nqn.subsystem digest", 7, SHA256)
}

pub(crate) fn required() -> ListenerTls {
    ListenerTls::Required(store(&[known()]))
}

/// Recognisable bytes.
pub(crate) fn pattern(length: usize, seed: u16) -> Vec<u8> {
    (0..length).map(|at| (at as u32).wrapping_mul(2_654_435_761).rotate_left(9) as u8 ^ seed as u8).collect()
}

/// One core.
pub(crate) struct Node {
    pub(crate) reactor: Reactor,
    pub(crate) tcp: TcpStack,
    pub(crate) pool: Pool,
    pub(crate) events: VecDeque<TcpEvent>,
    /// How long a connection may take that it makes.
    pub(crate) timeout: Duration,
}

/// How long a handshake may take where a test waits for that, or time is simulated.
pub(crate) const SHORT: Duration = Duration::from_secs(2);

/// A handshake may take as long as a test waits for it, on a machine that is busy, too.
pub(crate) fn config() -> TcpConfig {
    TcpConfig {
        handshake_timeout: 3 * PATIENCE,
        close_timeout: Duration::from_secs(1),
        kernel_tls: false,
        ..TcpConfig::new(OWNER, [9; 32])
    }
}

/// Gives up handshakes soon.
pub(crate) fn hasty() -> TcpConfig {
    TcpConfig { handshake_timeout: SHORT, ..config() }
}

impl Node {
    pub(crate) fn new(reactor: Reactor, config: TcpConfig) -> Self {
        let layout = [
            ClassLayout { buffer_bytes: 8192, count: 64 },
            ClassLayout { buffer_bytes: 128 << 10, count: 32 },
            ClassLayout { buffer_bytes: DATA_BYTES_MAX, count: 8 },
        ];
        let pool = Pool::new(&layout).expect("a pool");
        let (events, timeout) = (VecDeque::new(), config.handshake_timeout);
        Self { reactor, tcp: TcpStack::new(config), pool, events, timeout }
    }

    pub(crate) fn over_ring(config: TcpConfig) -> Self {
        let reactor = ReactorConfig { entries: 256, spin: Duration::ZERO, descriptors_max: 2048 };
        Self::new(Reactor::new(&reactor).expect("a ring"), config)
    }

    /// One turn of a core's loop.
    pub(crate) fn step(&mut self) {
        self.tcp.poll(&mut self.reactor);
        self.tcp.flush(&mut self.reactor);
        self.reactor.turn(Wait::No).expect("a turn");
        while let Some(completion) = self.reactor.next_completion() {
            self.tcp.on_completion(&mut self.reactor, completion);
        }
        self.tcp.flush(&mut self.reactor);
        self.events.extend(std::iter::from_fn(|| self.tcp.next_event()));
    }

    pub(crate) fn listen(&mut self, address: SocketAddr, tls: ListenerTls) -> SocketAddr {
        let parameters = ListenParameters { tls, half_open_max: 64, ..ListenParameters::new(address) };
        self.tcp.listen(&mut self.reactor, &parameters).expect("listening").1
    }

    pub(crate) fn connect(&mut self, address: SocketAddr, tls: Option<&[Psk]>) -> ConnectionId {
        self.connect_with(address, tls, Digests::default())
    }

    pub(crate) fn connect_with(
        &mut self,
        address: SocketAddr,
        tls: Option<&[Psk]>,
        digests: Digests,
    ) -> ConnectionId {
        let parameters = ConnectParameters {
            address,
            digests,
            tls: tls.map(Arc::from),
            commands_max: 32,
            socket: SocketOptions::default(),
            timeout: self.timeout,
        };
        self.tcp.connect(&mut self.reactor, &parameters).expect("a connection on its way")
    }

    pub(crate) fn accept(&mut self, incoming: Incoming) -> ConnectionId {
        let parameters =
            AcceptParameters { commands_max: 32, capsule_bytes_max: 8192, pool: self.pool.clone() };
        self.tcp.accept(&mut self.reactor, incoming, &parameters).expect("room for it")
    }

    pub(crate) fn shared_buffer(&self, bytes: &[u8]) -> SharedBuffer {
        let mut buffer = self.pool.take(bytes.len().max(1)).expect("a buffer");
        buffer[..bytes.len()].copy_from_slice(bytes);
        buffer.share()
    }

    /// Submits a command: the controller learns the length of its data from the metadata pointer.
    pub(crate) fn submit(&mut self, connection: ConnectionId, cid: u16, length: usize, data: SubmitData) {
        let mut sqe = SubmissionEntry::new(u8::from(!matches!(data, SubmitData::None)), cid, 1);
        sqe.mptr.set(length as u64);
        if let SubmitData::ToHost(_) = data {
            sqe.opcode = READ;
        }
        self.tcp.submit(connection, sqe, data).expect("the connection is there");
    }

    /// Takes the first event of a kind.
    pub(crate) fn take<R>(
        &mut self,
        pick: impl Fn(&TcpEvent) -> bool,
        map: impl FnOnce(TcpEvent) -> R,
    ) -> Option<R> {
        let position = self.events.iter().position(pick)?;
        self.events.remove(position).map(map)
    }
}

const READ: u8 = 2;

/// How time passes.
pub(crate) enum Time {
    Real,
    Simulated(World),
}

/// A connecting and a listening end, and what the controller's end does with commands.
pub(crate) struct Pair {
    pub(crate) host: Node,
    pub(crate) target: Node,
    /// Another core of the target, which adopts connections where there is one.
    pub(crate) other: Option<Node>,
    pub(crate) listening: SocketAddr,
    pub(crate) time: Time,
    /// What hosts have written, by command.
    pub(crate) written: Vec<(u16, Vec<u8>)>,
    /// How connections that were adopted are protected.
    pub(crate) accepted: Vec<(ConnectionId, Option<ringfab_fabric::tcp::Security>)>,
    /// Pieces of transfers: command, and the pieces that came.
    transfers: Vec<(u16, usize, Vec<u8>)>,
}

impl Pair {
    pub(crate) fn over_loopback(tls: ListenerTls) -> Self {
        Self::over_loopback_with(config(), tls)
    }

    pub(crate) fn over_loopback_with(config: TcpConfig, tls: ListenerTls) -> Self {
        Self::between((config, config), tls)
    }

    /// With what the host's and the target's core are made with.
    pub(crate) fn between(configs: (TcpConfig, TcpConfig), tls: ListenerTls) -> Self {
        let (host, target) = (Node::over_ring(configs.0), Node::over_ring(configs.1));
        Self::new(host, target, "127.0.0.1:0".parse().expect("an address"), Time::Real, tls)
    }

    pub(crate) fn in_a_world(seed: u64, tls: ListenerTls) -> Self {
        let world = World::new(seed);
        let (one, two) = (world.add_host("host"), world.add_host("target"));
        let host = Node::new(Reactor::simulated(&world, one), hasty());
        let target = Node::new(Reactor::simulated(&world, two), hasty());
        let address = world.socket_address(two, 4420);
        Self::new(host, target, address, Time::Simulated(world), tls)
    }

    fn new(host: Node, mut target: Node, address: SocketAddr, time: Time, tls: ListenerTls) -> Self {
        let listening = target.listen(address, tls);
        let (written, accepted, transfers) = (Vec::new(), Vec::new(), Vec::new());
        Self { host, target, other: None, listening, time, written, accepted, transfers }
    }

    /// One turn of all, and of what the controller does.
    pub(crate) fn step(&mut self) {
        self.host.step();
        self.target.step();
        if let Some(other) = &mut self.other {
            other.step();
        }
        while let Some(incoming) = self.target.take(
            |event| matches!(event, TcpEvent::Incoming(_)),
            |event| match event {
                TcpEvent::Incoming(incoming) => *incoming,
                _ => unreachable!("picked"),
            },
        ) {
            let security = incoming.security.clone();
            let id = self.other.as_mut().unwrap_or(&mut self.target).accept(incoming);
            self.accepted.push((id, security));
        }
        self.serve();
    }

    fn serve(&mut self) {
        let node = self.other.as_mut().unwrap_or(&mut self.target);
        let mut left = VecDeque::new();
        while let Some(event) = node.events.pop_front() {
            match event {
                TcpEvent::Command { connection, sqe, data, intact } => {
                    assert!(intact);
                    let (cid, length) = (sqe.cid.get(), sqe.mptr.get() as usize);
                    let done = CompletionEntry::new(cid, 0, Status::SUCCESS);
                    if let Some(data) = data {
                        self.written.push((cid, data[..length].to_vec()));
                    } else if sqe.opcode == READ {
                        let shared_buffer = node.shared_buffer(&pattern(length, cid));
                        let slice = Slice { shared_buffer, offset: 0, length: length as u32 };
                        let data = C2hData { cid, offset: 0, slice, last: true, success: false };
                        let _ = node.tcp.send_data(connection, data);
                    } else if length > 0 {
                        let pieces = pieces(&node.pool, length, cid);
                        self.transfers.push((cid, length, Vec::new()));
                        let _ = node.tcp.request_data(connection, cid, length as u32, pieces.into_iter());
                        continue;
                    }
                    let _ = node.tcp.respond(connection, done);
                }
                TcpEvent::Data { connection, id, sink, intact } => {
                    let Some(sink) = sink else { continue };
                    assert!(intact);
                    let cid = id as u16;
                    let index =
                        self.transfers.iter().position(|(known, ..)| *known == cid).expect("asked for");
                    let (_, length, bytes) = &mut self.transfers[index];
                    let wanted = *length - bytes.len();
                    bytes.extend_from_slice(&sink[..sink.len().min(wanted)]);
                    if bytes.len() == *length {
                        let (_, _, bytes) = self.transfers.remove(index);
                        self.written.push((cid, bytes));
                        let done = CompletionEntry::new(cid, 0, Status::SUCCESS);
                        let _ = node.tcp.respond(connection, done);
                    }
                }
                TcpEvent::Sent { .. } => {}
                event => left.push_back(event),
            }
        }
        node.events = left;
    }

    /// Turns all loops until `done` has an answer.
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
            let late = self.host.reactor.clock().since(begun) > PATIENCE || started.elapsed() > 3 * PATIENCE;
            assert!(!late, "never: {what}; host {:?}; target {:?}", self.host.events, self.target.events);
        }
    }

    /// Whether a connection was made, or why not.
    pub(crate) fn outcome(&mut self, connection: ConnectionId) -> Result<(), String> {
        self.until("an outcome", |pair| {
            let ends = |event: &TcpEvent| match event {
                TcpEvent::Established { connection: id } | TcpEvent::ConnectFailed { connection: id, .. } => {
                    *id == connection
                }
                _ => false,
            };
            pair.host.take(ends, |event| match event {
                TcpEvent::ConnectFailed { error, .. } => Err(error.to_string()),
                _ => Ok(()),
            })
        })
    }

    pub(crate) fn establish(&mut self, tls: Option<&[Psk]>) -> ConnectionId {
        let connection = self.host.connect(self.listening, tls);
        assert_eq!(self.outcome(connection), Ok(()));
        connection
    }

    /// Why the host's end has ended.
    pub(crate) fn host_end(&mut self) -> String {
        self.until("the end at the host", |pair| {
            let ends = |event: &TcpEvent| matches!(event, TcpEvent::Disconnected { .. });
            pair.host.take(ends, |event| match event {
                TcpEvent::Disconnected { reason, .. } => reason.to_string(),
                _ => unreachable!("picked"),
            })
        })
    }

    /// Why the target's end has ended.
    pub(crate) fn target_end(&mut self) -> String {
        self.until("the end at the target", |pair| {
            let ends = |event: &TcpEvent| matches!(event, TcpEvent::Disconnected { .. });
            pair.other.as_mut().unwrap_or(&mut pair.target).take(ends, |event| match event {
                TcpEvent::Disconnected { reason, .. } => reason.to_string(),
                _ => unreachable!("picked"),
            })
        })
    }

    /// Waits for the answer to a command.
    pub(crate) fn answered(&mut self, cid: u16) {
        self.until("an answer", |pair| {
            pair.host.take(
                |event| matches!(event, TcpEvent::Response { cqe, intact: true, .. } if cqe.cid.get() == cid),
                |_| (),
            )
        });
    }

    /// A command without data.
    pub(crate) fn flush(&mut self, connection: ConnectionId, cid: u16) {
        self.host.submit(connection, cid, 0, SubmitData::None);
        self.answered(cid);
    }

    /// Reads, and says what came.
    pub(crate) fn read(&mut self, connection: ConnectionId, cid: u16, length: usize) -> Vec<u8> {
        let sink = self.host.shared_buffer(&vec![0; length]);
        let slice = Slice { shared_buffer: sink.clone(), offset: 0, length: length as u32 };
        self.host.submit(connection, cid, length, SubmitData::ToHost(slice));
        self.answered(cid);
        let mut bytes = vec![0; length];
        sink.read_at(0, &mut bytes);
        bytes
    }

    /// Writes, in the capsule if it fits there.
    pub(crate) fn write(&mut self, connection: ConnectionId, cid: u16, bytes: &[u8]) {
        let shared_buffer = self.host.shared_buffer(bytes);
        let slice = Slice { shared_buffer, offset: 0, length: bytes.len() as u32 };
        let data =
            if bytes.len() <= 8192 { SubmitData::Capsule(slice) } else { SubmitData::ToController(slice) };
        self.host.submit(connection, cid, bytes.len(), data);
        self.answered(cid);
    }

    /// Turns the loops until neither end has a connection.
    pub(crate) fn drained(&mut self) {
        self.until("no connections", |pair| {
            let other = pair.other.as_ref().map_or(0, |node| node.tcp.counters().connections);
            let all = pair.host.tcp.counters().connections + pair.target.tcp.counters().connections + other;
            (all == 0).then_some(())
        });
    }
}

/// Buffers of one size for a transfer, and the names of the pieces.
fn pieces(pool: &Pool, length: usize, cid: u16) -> Vec<(u64, Buffer)> {
    const PIECE_BYTES: usize = 128 << 10;
    let sizes = (0..length).step_by(PIECE_BYTES).map(|start| PIECE_BYTES.min(length - start));
    sizes
        .map(|bytes| {
            let mut buffer = pool.take(bytes.min(PIECE_BYTES)).expect("a buffer");
            buffer.set_len(bytes);
            (u64::from(cid), buffer)
        })
        .collect()
}

/// What was logged.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// What is logged by this thread while `act` runs.
    pub(crate) fn of<R>(act: impl FnOnce() -> R) -> (R, String) {
        let log = Self::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_max_level(tracing::Level::INFO)
            .with_writer(move || writer.clone())
            .finish();
        let result = tracing::subscriber::with_default(subscriber, act);
        let bytes = log.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        (result, String::from_utf8_lossy(&bytes).into_owned())
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
