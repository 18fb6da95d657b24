//! The connections of a rival: an admin queue and I/O queues over NVMe/TCP.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use ringfab_fabric::rdma::Slice;
use ringfab_fabric::tcp::{
    ConnectParameters, ConnectionId, Digests, SubmitData, TcpConfig, TcpEvent, TcpStack,
};
use ringfab_memory::{ClassLayout, Pool, SharedBuffer};
use ringfab_reactor::sim::{HostId, World};
use ringfab_reactor::{Reactor, SocketOptions, Time, Wait};
use ringfab_spec::property::offset;
use ringfab_spec::sqe::{ConnectData, PropertySize};
use ringfab_spec::{CompletionEntry, IntoBytes, Nqn, SglDescriptor, SubmissionEntry};

use crate::raw_host::CC_ENABLE;
use crate::world::content::Random;
use crate::world::server::{NQN, Server};

/// The `owner` of its tokens.
const OWNER: u8 = 9;

/// Entries of a queue, of which one is always free.
const ENTRIES: u16 = 32;

/// Before the next attempt to connect, and before another look whether the controller is ready.
const PAUSE: Duration = Duration::from_millis(20);
const READY_PAUSE: Duration = Duration::from_millis(5);

/// How long nothing may come that is waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// What its owner is told.
#[derive(Debug)]
pub(super) enum Happened {
    /// A command has its answer.
    Answer { queue: u16, entry: CompletionEntry },
    /// All connections are gone.
    Lost,
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// It has no connections, until then.
    Away { until: Time },
    /// The queue with this number is being connected.
    Opening(u16),
    /// The controller is being enabled.
    Enabling,
    /// It is not ready yet, and is asked again then.
    NotReady { until: Time },
    /// Commands can be sent.
    Ready,
    /// Connections end.
    Closing,
}

#[derive(Debug, Default)]
struct Queue {
    connection: Option<ConnectionId>,
    /// Which slots are in use; the low bits of a command's identifier are its slot.
    slots: u32,
}

/// The connections.
#[derive(Debug)]
pub(super) struct Connections {
    reactor: Reactor,
    tcp: TcpStack,
    pool: Pool,
    address: SocketAddr,
    host_nqn: String,
    step: Step,
    /// The admin queue comes first.
    queues: Vec<Queue>,
    controller_id: u16,
    serial: u16,
    /// When something has last come.
    heard: Time,
    leaving: bool,
    happened: VecDeque<Happened>,
}

impl Connections {
    /// With so many I/O queues; none is connected yet.
    pub(super) fn new(world: &World, host: HostId, server: &Server, name: &str, queues: u16) -> Self {
        let classes =
            [ClassLayout { buffer_bytes: 8192, count: 64 }, ClassLayout { buffer_bytes: 65_536, count: 32 }];
        Self {
            reactor: Reactor::simulated(world, host),
            tcp: TcpStack::new(TcpConfig::new(OWNER, [host_number(name); 32])),
            pool: Pool::new(&classes).expect("a pool"),
            address: server.plain_address(),
            host_nqn: format!("nqn.2026-11.org.ringfab:{name}"),
            step: Step::Away { until: Time::ZERO },
            queues: (0..=queues).map(|_| Queue::default()).collect(),
            controller_id: 0,
            serial: 0,
            heard: Time::ZERO,
            leaving: false,
            happened: VecDeque::new(),
        }
    }

    pub(super) fn is_ready(&self) -> bool {
        self.step == Step::Ready && !self.leaving
    }

    /// Whether nothing is left of them after they were to end.
    pub(super) fn are_gone(&self) -> bool {
        self.leaving && matches!(self.step, Step::Away { .. })
    }

    /// Ends them in order; what is answered before that is still told.
    pub(super) fn leave(&mut self) {
        self.leaving = true;
        for connection in self.queues.iter().filter_map(|queue| queue.connection) {
            self.tcp.disconnect(&mut self.reactor, connection);
        }
    }

    /// When something is due that no completion tells of. `waits`: for answers.
    pub(super) fn due(&self, waits: bool) -> Time {
        match self.step {
            Step::Away { .. } if self.leaving => Time::MAX,
            Step::Away { until } | Step::NotReady { until } => until,
            Step::Ready if !waits => Time::MAX,
            Step::Opening(_) | Step::Enabling | Step::Ready => self.heard + PATIENCE,
            Step::Closing => Time::MAX,
        }
    }

    /// One turn. Whether anything was done.
    pub(super) fn turn(&mut self, waits: bool) -> bool {
        self.tcp.poll(&mut self.reactor);
        self.tcp.flush(&mut self.reactor);
        self.reactor.turn(Wait::No).expect("a turn of a rival");
        while let Some(completion) = self.reactor.next_completion() {
            self.tcp.on_completion(&mut self.reactor, completion);
        }
        let mut active = self.act_when_due(waits);
        while let Some(event) = self.tcp.next_event() {
            active = true;
            self.heard = self.reactor.now();
            self.on_event(event);
        }
        active
    }

    /// What has happened.
    pub(super) fn next(&mut self) -> Option<Happened> {
        self.happened.pop_front()
    }

    /// Sends what was submitted.
    pub(super) fn flush(&mut self) {
        self.tcp.flush(&mut self.reactor);
    }

    /// Memory that holds these bytes.
    pub(super) fn memory(&self, bytes: &[u8]) -> Option<SharedBuffer> {
        let mut buffer = self.pool.take(bytes.len())?;
        buffer.set_len(bytes.len());
        buffer.copy_from_slice(bytes);
        Some(buffer.share())
    }

    /// The I/O queues.
    pub(super) fn io_queues(&self) -> std::ops::Range<u16> {
        1..self.queues.len() as u16
    }

    /// One of them.
    pub(super) fn pick_io(&self, random: &mut Random) -> u16 {
        1 + random.below(self.queues.len() as u64 - 1) as u16
    }

    /// Sends a command on a queue. Returns its identifier.
    pub(super) fn submit(&mut self, queue: u16, entry: SubmissionEntry, data: SubmitData) -> u16 {
        let Queue { connection, slots } = &mut self.queues[usize::from(queue)];
        let slot = slots.trailing_ones() as u16;
        assert!(slot < ENTRIES - 1, "a queue has room for what is in flight");
        *slots |= 1 << slot;
        self.serial = (self.serial + 1) % (u16::MAX / ENTRIES);
        let cid = self.serial * ENTRIES + slot;
        if let Some(connection) = *connection {
            // The end of a connection is told by an event.
            let _ended = self.tcp.submit(connection, entry.with_cid(cid), data);
        }
        cid
    }

    fn act_when_due(&mut self, waits: bool) -> bool {
        let now = self.reactor.now();
        if now < self.due(waits) {
            return false;
        }
        match self.step {
            Step::Away { .. } => self.open(0),
            Step::NotReady { .. } => self.ask_whether_ready(),
            _ => self.give_up(),
        }
        true
    }

    fn open(&mut self, number: u16) {
        let parameters = ConnectParameters {
            address: self.address,
            digests: Digests::default(),
            tls: None,
            commands_max: ENTRIES - 1,
            socket: SocketOptions::default(),
            timeout: PATIENCE,
        };
        let connection = self.tcp.connect(&mut self.reactor, &parameters).expect("a socket");
        self.queues[usize::from(number)] = Queue { connection: Some(connection), slots: 0 };
        (self.step, self.heard) = (Step::Opening(number), self.reactor.now());
    }

    fn on_event(&mut self, event: TcpEvent) {
        match event {
            TcpEvent::Established { connection } => {
                if let (Some(number), Step::Opening(_)) = (self.number_of(connection), self.step) {
                    self.connect_queue(number);
                }
            }
            TcpEvent::Response { connection, cqe, .. } => {
                let Some(number) = self.number_of(connection) else { return };
                self.queues[usize::from(number)].slots &= !(1 << (cqe.cid.get() % ENTRIES));
                self.on_response(number, cqe);
            }
            TcpEvent::ConnectFailed { connection, .. } | TcpEvent::Disconnected { connection, .. } => {
                if let Some(number) = self.number_of(connection) {
                    self.queues[usize::from(number)].connection = None;
                    self.give_up();
                }
            }
            other => panic!("{} did not expect {other:?}", self.host_nqn),
        }
    }

    fn on_response(&mut self, queue: u16, entry: CompletionEntry) {
        let status = entry.status();
        match self.step {
            Step::Ready => self.happened.push_back(Happened::Answer { queue, entry }),
            // The target may say that it has ended this controller.
            _ if !status.is_success() => self.give_up(),
            Step::Opening(0) => {
                self.controller_id = entry.connect_cntlid();
                let set = SubmissionEntry::property_set(0, offset::CC, PropertySize::Four, CC_ENABLE);
                self.submit(0, set, SubmitData::None);
                self.step = Step::Enabling;
            }
            Step::Enabling if entry.result() & 1 == 0 => {
                self.step = Step::NotReady { until: self.reactor.now() + READY_PAUSE };
            }
            Step::Enabling => self.open(1),
            Step::Opening(number) if usize::from(number) + 1 < self.queues.len() => self.open(number + 1),
            Step::Opening(_) => self.step = Step::Ready,
            Step::Away { .. } | Step::NotReady { .. } | Step::Closing => {}
        }
    }

    fn ask_whether_ready(&mut self) {
        let get = SubmissionEntry::property_get(0, offset::CSTS, PropertySize::Four);
        self.submit(0, get, SubmitData::None);
        (self.step, self.heard) = (Step::Enabling, self.reactor.now());
    }

    /// Sends the Connect of a queue.
    fn connect_queue(&mut self, number: u16) {
        let controller_id = if number == 0 { ConnectData::CNTLID_DYNAMIC } else { self.controller_id };
        let (subsystem, host) = (Nqn::new(NQN).expect("a name"), Nqn::new(&self.host_nqn).expect("a name"));
        let mut host_id = [0x5a; 16];
        host_id[15] = host_number(&self.host_nqn);
        let data = ConnectData::new(host_id, controller_id, subsystem, host);
        let Some(shared_buffer) = self.memory(data.as_bytes()) else { return self.give_up() };
        let length = shared_buffer.len() as u32;
        let entry = SubmissionEntry::connect(0, number, ENTRIES.into(), 0, false)
            .with_sgl(SglDescriptor::in_capsule(0, length));
        self.submit(number, entry, SubmitData::Capsule(Slice { shared_buffer, offset: 0, length }));
    }

    /// Ends all connections. When they have, it is told.
    fn give_up(&mut self) {
        self.step = Step::Closing;
        for connection in self.queues.iter().filter_map(|queue| queue.connection) {
            self.tcp.abort(&mut self.reactor, connection);
        }
        if self.queues.iter().all(|queue| queue.connection.is_none()) {
            self.step = Step::Away { until: self.reactor.now() + PAUSE };
            self.happened.push_back(Happened::Lost);
        }
    }

    fn number_of(&self, connection: ConnectionId) -> Option<u16> {
        let position = self.queues.iter().position(|queue| queue.connection == Some(connection));
        position.map(|number| number as u16)
    }
}

/// The digit at the end of a rival's name.
fn host_number(name: &str) -> u8 {
    name.as_bytes().last().copied().unwrap_or(0)
}
