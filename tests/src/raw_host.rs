//! A host that says whatever it is told to: capsules byte by byte, any private data, any memory. It knows just
//! enough NVMe to get where a test begins.

mod association;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use ringfab_fabric::rdma::{
    Access, ConnectError, ConnectParameters, DisconnectReason, Inline, ProtectionDomain, ProviderChoice,
    QueuePairAttributes, QueuePairId, RemoteBuffer, Rnic, RnicConfig, RnicCounters, RnicEvent, SendRequest,
    Slice, Work,
};
use ringfab_memory::{ClassLayout, Pool, PoolUsage, SharedBuffer};
use ringfab_reactor::{Reactor, ReactorConfig, SocketOptions, Wait};
use ringfab_spec::{CompletionEntry, FromBytes, IntoBytes, SglDescriptor, SubmissionEntry, rdma_cm};

pub use association::{Association, CC_ENABLE};

/// The `owner` of its RNIC's tokens.
const OWNER: u8 = 9;

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Its name.
pub const HOST_NQN: &str = "nqn.2026-11.org.ringfab:raw-host";

/// Its identifier.
pub const HOST_ID: [u8; 16] = [0x5a; 16];

/// What came of a command.
#[derive(Debug)]
pub enum Answer {
    /// A response capsule.
    Completion(CompletionEntry),
    /// The connection has ended instead.
    Ended(DisconnectReason),
}

/// Why there is no connection.
#[derive(Debug)]
pub enum Refusal {
    /// The target rejected it, with this private data.
    Rejected(Vec<u8>),
    /// There was no answer of the kind.
    Failed(ConnectError),
}

/// Memory that a peer was given the key of.
#[derive(Debug)]
pub struct Exposed {
    /// As the peer names it.
    pub remote: RemoteBuffer,
    /// The bytes.
    pub shared_buffer: SharedBuffer,
}

impl Exposed {
    /// A descriptor of all of it.
    pub fn sgl(&self) -> SglDescriptor {
        SglDescriptor::keyed(self.remote.address, self.remote.length, self.remote.key, false)
    }

    /// What it holds now.
    pub fn bytes(&self) -> Vec<u8> {
        self.shared_buffer.with_bytes(0..self.shared_buffer.len(), <[u8]>::to_vec)
    }
}

/// One core of its own, driven by the thread that calls it.
#[derive(Debug)]
pub struct RawHost {
    reactor: Reactor,
    rnic: Rnic,
    pool: Pool,
    domain: ProtectionDomain,
    events: VecDeque<RnicEvent>,
    address: SocketAddr,
    cid: u16,
}

impl RawHost {
    /// A host for the target at `address`.
    ///
    /// # Panics
    /// When there is no ring.
    pub fn new(address: SocketAddr) -> Self {
        let config = ReactorConfig { entries: 256, spin: Duration::ZERO, descriptors_max: 1024 };
        let mut rnic = Rnic::new(RnicConfig::new(OWNER, [7; 32])).expect("an RNIC");
        let domain = rnic.allocate_domain();
        let classes =
            [ClassLayout { buffer_bytes: 8192, count: 256 }, ClassLayout { buffer_bytes: 1 << 20, count: 8 }];
        Self {
            reactor: Reactor::new(&config).expect("a ring"),
            rnic,
            pool: Pool::new(&classes).expect("a pool"),
            domain,
            events: VecDeque::new(),
            address,
            cid: 0,
        }
    }

    /// Its RNIC's counters.
    pub fn counters(&self) -> RnicCounters {
        self.rnic.counters()
    }

    /// Its memory in use.
    pub fn pool_usage(&self) -> PoolUsage {
        self.pool.usage()
    }

    /// An identifier that no command of this host has had lately.
    pub fn next_cid(&mut self) -> u16 {
        self.cid = (self.cid + 1) % 0x7000;
        self.cid
    }

    /// Connects with any private data.
    ///
    /// # Errors
    /// What the target, or the network, said instead.
    ///
    /// # Panics
    /// When nothing comes at all.
    pub fn connect(&mut self, private_data: &[u8]) -> Result<QueuePairId, Refusal> {
        let attributes = QueuePairAttributes {
            domain: self.domain,
            send_depth: 2048,
            receive_depth: 2048,
            receive_bytes_max: 64,
            pool: self.pool.clone(),
            initiator_depth: 0,
            responder_resources: 128,
        };
        let address = self.address;
        let parameters = ConnectParameters {
            address,
            provider: ProviderChoice::Iwarp,
            attributes,
            private_data,
            timeout: PATIENCE,
            socket: SocketOptions::default(),
        };
        let connecting = self.rnic.connect(&mut self.reactor, &parameters).expect("a connection on its way");
        self.wait_for("an answer to the connection", |event| match event {
            RnicEvent::Established { queue_pair, .. } if queue_pair == connecting => {
                ControlFlow::Break(Ok(queue_pair))
            }
            RnicEvent::Rejected { queue_pair, private_data } if queue_pair == connecting => {
                ControlFlow::Break(Err(Refusal::Rejected(private_data.to_vec())))
            }
            RnicEvent::ConnectFailed { queue_pair, error } if queue_pair == connecting => {
                ControlFlow::Break(Err(Refusal::Failed(error)))
            }
            other => ControlFlow::Continue(other),
        })
    }

    /// A connection for a queue of so many entries.
    ///
    /// # Panics
    /// When it is refused.
    pub fn open_queue(&mut self, queue_id: u16, entries: u16) -> QueuePairId {
        let request = rdma_cm::Request::new(queue_id, entries, entries, 0);
        self.connect(request.as_bytes()).expect("a connection")
    }

    /// Sends a message: at most 64 bytes and what follows them.
    ///
    /// # Panics
    /// When the queue pair takes nothing more.
    pub fn send(&mut self, queue_pair: QueuePairId, head: &[u8], data: Option<&[u8]>) {
        self.post(queue_pair, head, data);
        self.rnic.flush(&mut self.reactor);
    }

    /// Sends several commands at once, each with the same data in its capsule.
    ///
    /// # Panics
    /// When the queue pair takes nothing more.
    pub fn send_together(&mut self, queue_pair: QueuePairId, entries: &[SubmissionEntry], data: &[u8]) {
        for entry in entries {
            let entry = entry.with_sgl(SglDescriptor::in_capsule(0, data.len() as u32));
            self.post(queue_pair, entry.as_bytes(), Some(data));
        }
        self.rnic.flush(&mut self.reactor);
    }

    /// Sends several commands at once, and then does nothing at all: it neither reads nor answers the target.
    ///
    /// # Panics
    /// When the queue pair takes nothing more.
    pub fn send_and_stop(&mut self, queue_pair: QueuePairId, entries: &[SubmissionEntry]) {
        for entry in entries {
            self.post(queue_pair, entry.as_bytes(), None);
        }
        self.turn();
    }

    fn post(&mut self, queue_pair: QueuePairId, head: &[u8], data: Option<&[u8]>) {
        let data = data.map(|bytes| {
            let shared_buffer = self.memory(bytes);
            Slice { shared_buffer, offset: 0, length: bytes.len() as u32 }
        });
        let work = Work::Send { head: Inline::new(head), data, invalidate: None, solicited: false };
        self.rnic.post_send(queue_pair, SendRequest { id: 0, work, signaled: false }).expect("posted");
    }

    /// Memory that holds `bytes`, for the target to read or to write.
    ///
    /// # Panics
    /// When there is none left.
    pub fn expose(&mut self, bytes: &[u8], access: Access) -> Exposed {
        let shared_buffer = self.memory(bytes);
        let exposed = self.rnic.expose(self.domain, shared_buffer.clone(), 0, bytes.len() as u32, access);
        Exposed { remote: exposed.expect("room in the table"), shared_buffer }
    }

    /// Takes the memory back.
    pub fn revoke(&mut self, exposed: Exposed) {
        drop(self.rnic.revoke(exposed.remote.region));
        drop(exposed.shared_buffer);
    }

    /// The next response on a queue, or its end.
    ///
    /// # Panics
    /// When neither comes in time.
    pub fn answer(&mut self, queue_pair: QueuePairId) -> Answer {
        let answer = self.wait_for("an answer", |event| match event {
            RnicEvent::Received { queue_pair: on, head, .. } if on == queue_pair => {
                let entry = CompletionEntry::read_from_bytes(head.as_slice());
                ControlFlow::Break(Answer::Completion(entry.expect("a response of 16 bytes")))
            }
            RnicEvent::Disconnected { queue_pair: on, reason } if on == queue_pair => {
                ControlFlow::Break(Answer::Ended(reason))
            }
            other => ControlFlow::Continue(other),
        });
        if matches!(answer, Answer::Completion(_)) {
            self.rnic.post_receive(queue_pair, 1);
        }
        answer
    }

    /// The next response on a queue.
    ///
    /// # Panics
    /// When the connection ends instead.
    pub fn completion(&mut self, queue_pair: QueuePairId) -> CompletionEntry {
        match self.answer(queue_pair) {
            Answer::Completion(entry) => entry,
            Answer::Ended(reason) => panic!("the connection has ended: {reason}"),
        }
    }

    /// Waits for the connection's end; responses before it are passed over.
    ///
    /// # Panics
    /// When it does not come in time.
    pub fn end(&mut self, queue_pair: QueuePairId) -> DisconnectReason {
        loop {
            if let Answer::Ended(reason) = self.answer(queue_pair) {
                return reason;
            }
        }
    }

    /// Whether nothing comes on a queue for some time.
    pub fn is_silent(&mut self, queue_pair: QueuePairId, time: Duration) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < time {
            self.turn();
            let heard = self.events.iter().any(|event| {
                matches!(event,
                    RnicEvent::Received { queue_pair: on, .. } | RnicEvent::Disconnected { queue_pair: on, .. }
                        if *on == queue_pair)
            });
            if heard {
                return false;
            }
        }
        true
    }

    /// Closes a connection and waits until it is gone.
    pub fn close(&mut self, queue_pair: QueuePairId) {
        self.rnic.disconnect(&mut self.reactor, queue_pair);
        self.end(queue_pair);
    }

    /// Sends a command as it is and waits for its response.
    pub fn command(&mut self, queue_pair: QueuePairId, entry: &SubmissionEntry) -> CompletionEntry {
        self.send(queue_pair, entry.as_bytes(), None);
        let completion = self.completion(queue_pair);
        assert_eq!(completion.cid.get(), entry.cid.get(), "the response to another command");
        completion
    }

    /// Sends a command whose data the target puts into memory of ours.
    pub fn fetch(
        &mut self,
        queue_pair: QueuePairId,
        entry: &SubmissionEntry,
        length: usize,
    ) -> (CompletionEntry, Vec<u8>) {
        let room = self.expose(&vec![0xee; length], Access::RemoteWrite);
        let completion = self.command(queue_pair, &entry.with_sgl(room.sgl()));
        let bytes = room.bytes();
        self.revoke(room);
        (completion, bytes)
    }

    /// Sends a command with data in its capsule.
    pub fn command_with(
        &mut self,
        queue_pair: QueuePairId,
        entry: &SubmissionEntry,
        data: &[u8],
    ) -> CompletionEntry {
        let entry = entry.with_sgl(SglDescriptor::in_capsule(0, data.len() as u32));
        self.send(queue_pair, entry.as_bytes(), Some(data));
        self.completion(queue_pair)
    }

    fn memory(&self, bytes: &[u8]) -> SharedBuffer {
        let mut buffer = self.pool.take(bytes.len().max(1)).expect("memory");
        buffer.set_len(bytes.len());
        buffer.copy_from_slice(bytes);
        buffer.share()
    }

    /// Turns the loop until `pick` takes an event; the others keep their order.
    fn wait_for<R>(&mut self, what: &str, mut pick: impl FnMut(RnicEvent) -> ControlFlow<R, RnicEvent>) -> R {
        let begun = Instant::now();
        loop {
            for _ in 0..self.events.len() {
                let Some(event) = self.events.pop_front() else { break };
                match pick(event) {
                    ControlFlow::Break(found) => return found,
                    ControlFlow::Continue(event) => self.events.push_back(event),
                }
            }
            assert!(begun.elapsed() < PATIENCE, "never: {what}; but {:?}", self.events);
            self.turn();
        }
    }

    fn turn(&mut self) {
        self.rnic.turn(&mut self.reactor, Wait::No).expect("a turn");
        self.events.extend(std::iter::from_fn(|| self.rnic.next_event()));
        std::thread::yield_now();
    }
}
