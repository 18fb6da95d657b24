//! The simulated NBD server: it exports the disk of its host, which forgets what was not flushed when its power goes.
//!
//! It does what its clients ask for at once, all together and in any order, and answers as it is done. What it has
//! begun for a client goes on when the connection ends.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use ringfab_block::{BlockDevice, Detail, DiskTokens, Driver, DriverHandle, OpenError, Seen};
use ringfab_memory::{ClassLayout, Pool};
use ringfab_nbd::{NbdDriver, NbdOptions};
use ringfab_proto::nbd::{
    BlockSizes, Command, Errno, ExportInfo, IHAVEOPT, NBDMAGIC, OPTION_REPLY_MAGIC, REQUEST_BYTES, Request,
    be32, data_chunk, error_chunk, export, flag, handshake, info, none_chunk, option, reply, simple_reply,
};
use ringfab_reactor::sim::{HostId, World};
use ringfab_reactor::{
    Allocate, Completion, FileId, FileOptions, FileRange, ListenAddr, Payload, Reactor, ReceiveOp, SendBatch,
    SocketId, SocketOptions, Time, Token, Wait,
};

use super::content::{Random, SECTOR_BYTES};
use super::scenario::Scenario;
use super::server::DISK;

/// Where it listens.
const PORT: u16 = 10809;

/// Bytes that are received or sent at once.
const PIECE_BYTES: usize = 16 << 10;

/// The most bytes of a read or a write: as many as the target's largest buffer has.
const REQUEST_BYTES_MAX: u32 = 128 << 10;

/// Before this, something that a client has sent and given up may still arrive and be done: longer than links are late,
/// and than the slowest disk takes.
pub const REPLAY_DELAY: Duration = Duration::from_secs(2);

/// Kinds of the server's reactor operations.
mod kind {
    pub(super) const LISTEN: u8 = 0;
    pub(super) const RECEIVE: u8 = 1;
    pub(super) const SEND: u8 = 2;
    pub(super) const DISK: u8 = 3;
    /// The flush of a change that has to be durable.
    pub(super) const SYNC: u8 = 4;
}

/// A server that can lose its power or its process, and is started again.
#[derive(Debug)]
pub struct Export {
    world: World,
    /// Its host.
    pub host: HostId,
    exported: Exported,
    random: Random,
    running: Option<Process>,
    boot_at: Time,
    /// Whether the target that runs now has asked it for something.
    was_asked: bool,
}

/// What is exported, as a target is told of it.
#[derive(Clone, Copy, Debug)]
pub struct Exported {
    address: SocketAddr,
    info: ExportInfo,
    options: NbdOptions,
}

/// One life of its process.
#[derive(Debug)]
struct Process {
    reactor: Reactor,
    file: FileId,
    pool: Pool,
    clients: BTreeMap<u32, Client>,
    /// Requests that the disk works on.
    work: BTreeMap<u32, Work>,
    /// The number of the next client or request.
    next: u32,
    /// Requests that it has taken.
    requests: u64,
}

/// A client's connection.
#[derive(Debug)]
struct Client {
    socket: SocketId,
    stage: Stage,
    /// What has come and was not looked at yet.
    input: Vec<u8>,
    /// What is to be sent.
    output: Vec<u8>,
    batch: Option<Box<SendBatch>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Flags,
    Options,
    Requests,
}

#[derive(Debug)]
struct Work {
    client: u32,
    request: Request,
}

impl Export {
    /// A server on a host of its own, which has the disk; it is not running yet.
    pub fn new(world: &World, scenario: &Scenario) -> Self {
        let host = world.add_host("export");
        let mut random = Random::new(scenario.seed, 6);
        let mut flags = export::HAS_FLAGS
            | export::SEND_FLUSH
            | export::SEND_TRIM
            | export::SEND_WRITE_ZEROES
            | export::CAN_MULTI_CONN;
        if !random.one_in(3) {
            flags |= export::SEND_FUA;
        }
        let minimum = scenario.disk.alignment;
        let exported = Exported {
            address: world.socket_address(host, PORT),
            info: ExportInfo {
                bytes: scenario.disk_sectors() * SECTOR_BYTES as u64,
                flags,
                structured: random.one_in(2),
                block_sizes: BlockSizes { minimum, preferred: 4096, maximum: REQUEST_BYTES_MAX },
            },
            options: NbdOptions {
                cores: scenario.machines.cores,
                patience: Duration::from_millis(random.pick(&[100, 30_000])),
                replay_delay: REPLAY_DELAY,
                write_through: flags & export::SEND_FUA != 0 && random.one_in(4),
                ..NbdOptions::default()
            },
        };
        Self {
            world: world.clone(),
            host,
            exported,
            random,
            running: None,
            boot_at: Time::ZERO,
            was_asked: false,
        }
    }

    /// What a target is told of it.
    pub fn exported(&self) -> Exported {
        self.exported
    }

    /// Whether it is running.
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// When it is to be started, if it is not running.
    pub fn boots_at(&self) -> Option<Time> {
        self.running.is_none().then_some(self.boot_at)
    }

    /// Starts it when its time has come. Returns its host if it has just begun.
    pub fn booted_when_due(&mut self) -> Option<HostId> {
        if self.running.is_some() || self.world.now() < self.boot_at {
            return None;
        }
        self.running = Some(Process::start(&self.world, self.host, self.exported.address));
        Some(self.host)
    }

    /// The power of its host goes, and comes back later.
    pub fn lose_power(&mut self, pause: Duration) {
        self.world.crash(self.host);
        self.running = None;
        self.boot_at = self.world.now() + pause;
    }

    /// Its process is killed. As under Linux, the kernel lets go of it when the disk has done what it was given, so
    /// that the pause has to be longer than the disk takes.
    pub fn kill(&mut self, pause: Duration) {
        self.running = None;
        self.boot_at = self.world.now() + pause;
    }

    /// A target begins.
    pub fn target_boots(&mut self) {
        self.was_asked = false;
    }

    /// Whether this target has asked it for something: it can find out then that the server has lost something.
    pub fn was_asked(&self) -> bool {
        self.was_asked
    }

    /// Takes a turn.
    pub fn turn(&mut self) {
        if let Some(process) = &mut self.running {
            let before = process.requests;
            process.turn(&self.exported.info, &mut self.random);
            self.was_asked |= process.requests > before;
        }
    }
}

impl Exported {
    /// The driver of one life of a target.
    pub fn driver(&self) -> DriverHandle {
        let address = format!("nbd://{}/disk", self.address).parse().expect("an address");
        let inner = NbdDriver::known(address, self.options, self.info).expect("an export of some size");
        DriverHandle::new(Known { inner, bytes: self.info.bytes })
    }
}

/// A driver whose looks ask nobody, since nobody may block here: what the export is, is known.
#[derive(Debug)]
struct Known {
    inner: NbdDriver,
    bytes: u64,
}

impl Driver for Known {
    fn name(&self) -> String {
        self.inner.name()
    }

    fn look(&self) -> io::Result<Seen> {
        match self.inner.fault() {
            Some(fault) => Err(io::Error::new(io::ErrorKind::NotConnected, fault)),
            None => Ok(Seen::default().with_bytes(self.bytes)),
        }
    }

    fn fault(&self) -> Option<String> {
        self.inner.fault()
    }

    fn details(&self) -> Vec<Detail> {
        self.inner.details()
    }

    fn open(&self, reactor: &mut Reactor, tokens: DiskTokens) -> Result<Box<dyn BlockDevice>, OpenError> {
        self.inner.open(reactor, tokens)
    }
}

impl Process {
    fn start(world: &World, host: HostId, address: SocketAddr) -> Self {
        let mut reactor = Reactor::simulated(world, host);
        let options = FileOptions::default();
        let (file, _) = reactor.files().open(Path::new(DISK), options).expect("the disk is there");
        let token = Token::new(0, kind::LISTEN, 0, 0);
        reactor.listen(&ListenAddr::Tcp(address), &SocketOptions::default(), token).expect("a free port");
        let layout = [
            ClassLayout { buffer_bytes: 8192, count: 512 },
            ClassLayout { buffer_bytes: REQUEST_BYTES_MAX as usize, count: 256 },
        ];
        let pool = Pool::new(&layout).expect("memory");
        Self { reactor, file, pool, clients: BTreeMap::new(), work: BTreeMap::new(), next: 1, requests: 0 }
    }

    fn turn(&mut self, info: &ExportInfo, random: &mut Random) {
        self.reactor.turn(Wait::No).expect("a turn of the server");
        while let Some(completion) = self.reactor.next_completion() {
            let Completion { token, result, payload } = completion;
            match token.kind {
                kind::LISTEN => {
                    if let Payload::Accepted(socket, _) = payload {
                        self.greet(socket);
                    }
                }
                kind::RECEIVE => self.received(token.index, &result, payload, info),
                kind::SEND => self.sent(token.index, &result, payload),
                _ => self.disk_done(token, &result, &payload, info, random),
            }
        }
    }

    fn number(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    fn greet(&mut self, socket: SocketId) {
        let number = self.number();
        let flags = handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES;
        let parts = [&NBDMAGIC.to_be_bytes()[..], &IHAVEOPT.to_be_bytes(), &flags.to_be_bytes()];
        let batch = Some(SendBatch::new(PIECE_BYTES, 1));
        let (stage, input, output) = (Stage::Flags, Vec::new(), parts.concat());
        self.clients.insert(number, Client { socket, stage, input, output, batch });
        self.receive(number, ReceiveOp::new(PIECE_BYTES));
        self.send(number);
    }

    fn receive(&mut self, number: u32, mut operation: Box<ReceiveOp>) {
        let Some(client) = self.clients.get(&number) else { return };
        operation.set_target(None, 0, PIECE_BYTES);
        self.reactor.receive(client.socket, operation, Token::new(0, kind::RECEIVE, 0, number));
    }

    fn received(&mut self, number: u32, result: &io::Result<u32>, payload: Payload, info: &ExportInfo) {
        let Payload::Receive(operation) = payload else { return };
        let Some(client) = self.clients.get_mut(&number) else { return };
        let Some(count) = result.as_ref().ok().copied().filter(|count| *count > 0) else {
            return self.leave(number);
        };
        client.input.extend(&operation.staging()[..count as usize]);
        while self.take(number, info) {}
        self.send(number);
        self.receive(number, operation);
    }

    /// The connection is over; what was begun for it goes on.
    fn leave(&mut self, number: u32) {
        if let Some(client) = self.clients.remove(&number) {
            self.reactor.close_socket(client.socket);
        }
    }

    /// Takes the next whole message of a client, if it is there.
    fn take(&mut self, number: u32, info: &ExportInfo) -> bool {
        let Some(client) = self.clients.get_mut(&number) else { return false };
        match client.stage {
            Stage::Flags => client.take_bytes(4).is_some_and(|_| {
                client.stage = Stage::Options;
                true
            }),
            Stage::Options => client.take_option(info),
            Stage::Requests => {
                let Some(head) = client.input.first_chunk::<REQUEST_BYTES>() else { return false };
                let request = Request::parse(head).expect("our client speaks the protocol");
                let payload = request.payload_bytes() as usize;
                let Some(bytes) = client.take_bytes(REQUEST_BYTES + payload) else { return false };
                if request.command == Command::Disconnect {
                    self.leave(number);
                    return false;
                }
                self.requests += 1;
                self.begin(Work { client: number, request }, &bytes[REQUEST_BYTES..], info);
                true
            }
        }
    }

    /// Has the disk do what a request asks for.
    fn begin(&mut self, work: Work, bytes: &[u8], info: &ExportInfo) {
        let Request { flags, command, offset, length, .. } = work.request;
        let range = FileRange { offset, at: 0, length: length as usize };
        assert!(info.has(export::SEND_FUA) || flags & flag::FUA == 0, "the server has no FUA");
        let Some(mut buffer) = self.pool.take(range.length.max(1)).filter(|_| length <= REQUEST_BYTES_MAX)
        else {
            let is_long = matches!(command, Command::Trim | Command::WriteZeroes);
            assert!(is_long, "a request of {length} bytes, or more of them than there can be");
            return self.begin_long(work);
        };
        let number = self.number();
        let token = Token::new(0, kind::DISK, 0, number);
        match command {
            Command::Read => self.reactor.files().read(self.file, range, buffer, token),
            Command::Write => {
                buffer[..bytes.len()].copy_from_slice(bytes);
                let durable = flags & flag::FUA != 0;
                self.reactor.files().write(self.file, range, buffer.share(), durable, token);
            }
            Command::Flush => self.reactor.files().sync(self.file, token),
            Command::Trim | Command::WriteZeroes => {
                drop(buffer);
                return self.begin_long(work);
            }
            other => panic!("our client does not ask for {other:?}"),
        }
        self.work.insert(number, work);
    }

    /// Has the disk do what carries nothing.
    fn begin_long(&mut self, work: Work) {
        let number = self.number();
        let what =
            if work.request.command == Command::Trim { Allocate::PunchHole } else { Allocate::ZeroRange };
        let (offset, length) = (work.request.offset, work.request.length.into());
        let token = Token::new(0, kind::DISK, 0, number);
        self.reactor.files().allocate(self.file, what, offset, length, token);
        self.work.insert(number, work);
    }

    fn disk_done(
        &mut self,
        token: Token,
        result: &io::Result<u32>,
        payload: &Payload,
        info: &ExportInfo,
        random: &mut Random,
    ) {
        let Some(work) = self.work.remove(&token.index) else { return };
        let Request { flags, command, length, .. } = work.request;
        let lags = matches!(command, Command::Trim | Command::WriteZeroes) && flags & flag::FUA != 0;
        if lags && token.kind == kind::DISK && result.is_ok() {
            self.reactor.files().sync(self.file, Token { kind: kind::SYNC, ..token });
            self.work.insert(token.index, work);
            return;
        }
        let outcome = result.as_ref().map(drop).map_err(|error| match error.kind() {
            io::ErrorKind::StorageFull => Errno::NoSpc,
            _ => Errno::Io,
        });
        let bytes = match payload {
            Payload::Buffer(buffer) if outcome.is_ok() => &buffer[..length as usize],
            _ => &[],
        };
        self.answer(&work, outcome, bytes, info, random);
    }

    fn answer(
        &mut self,
        work: &Work,
        outcome: Result<(), Errno>,
        bytes: &[u8],
        info: &ExportInfo,
        random: &mut Random,
    ) {
        let Work { client: number, request: Request { command, cookie, offset, .. } } = *work;
        let Some(client) = self.clients.get_mut(&number) else { return };
        match (info.structured, outcome) {
            (false, outcome) => {
                client.output.extend(simple_reply(outcome.err(), cookie));
                client.output.extend(bytes);
            }
            (true, Err(error)) => client.output.extend(error_chunk(cookie, error, 0)),
            (true, Ok(())) if command == Command::Read => {
                let half = random.below(bytes.len() as u64) as usize;
                let (first, second) = bytes.split_at(half);
                // The later part comes first, if there are two.
                client.output.extend(data_chunk(
                    cookie,
                    offset + half as u64,
                    second.len() as u32,
                    first.is_empty(),
                ));
                client.output.extend(second);
                if !first.is_empty() {
                    client.output.extend(data_chunk(cookie, offset, first.len() as u32, true));
                    client.output.extend(first);
                }
            }
            (true, Ok(())) => client.output.extend(none_chunk(cookie)),
        }
        self.send(number);
    }

    fn send(&mut self, number: u32) {
        let Some(client) = self.clients.get_mut(&number) else { return };
        if client.output.is_empty() {
            return;
        }
        let Some(mut batch) = client.batch.take() else { return };
        let length = client.output.len().min(PIECE_BYTES);
        batch.push_bytes(&client.output[..length]);
        client.output.drain(..length);
        self.reactor.send(client.socket, batch, Token::new(0, kind::SEND, 0, number));
    }

    fn sent(&mut self, number: u32, result: &io::Result<u32>, payload: Payload) {
        let (Payload::Send(mut batch), Some(client)) = (payload, self.clients.get_mut(&number)) else {
            return;
        };
        batch.clear();
        client.batch = Some(batch);
        if result.is_ok() {
            self.send(number);
        }
    }
}

impl Client {
    fn take_bytes(&mut self, length: usize) -> Option<Vec<u8>> {
        (self.input.len() >= length).then(|| self.input.drain(..length).collect())
    }

    /// Answers the next option, if it has come as a whole.
    fn take_option(&mut self, exported: &ExportInfo) -> bool {
        const HEAD_BYTES: usize = 16;
        if self.input.len() < HEAD_BYTES {
            return false;
        }
        let (asked, length) = (be32(&self.input, 8), be32(&self.input, 12) as usize);
        if self.take_bytes(HEAD_BYTES + length).is_none() {
            return false;
        }
        match asked {
            option::STRUCTURED_REPLY if exported.structured => self.reply(asked, reply::ACK, &[]),
            option::GO => {
                let (bytes, flags) = (exported.bytes.to_be_bytes(), exported.flags.to_be_bytes());
                let BlockSizes { minimum, preferred, maximum } = exported.block_sizes;
                let sizes = [minimum, preferred, maximum].map(u32::to_be_bytes).concat();
                self.reply(asked, reply::INFO, &[&info::EXPORT.to_be_bytes()[..], &bytes, &flags].concat());
                self.reply(asked, reply::INFO, &[&info::BLOCK_SIZE.to_be_bytes()[..], &sizes].concat());
                self.reply(asked, reply::ACK, &[]);
                self.stage = Stage::Requests;
            }
            _ => self.reply(asked, reply::ERR_UNSUP, &[]),
        }
        true
    }

    fn reply(&mut self, to: u32, kind: u32, bytes: &[u8]) {
        self.output.extend(OPTION_REPLY_MAGIC.to_be_bytes());
        for number in [to, kind, bytes.len() as u32] {
            self.output.extend(number.to_be_bytes());
        }
        self.output.extend(bytes);
    }
}
