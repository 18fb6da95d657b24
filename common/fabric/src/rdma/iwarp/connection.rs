//! A queue pair and its phases.

use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use ringfab_proto::iwarp::mpa::{Negotiated, Role};
use ringfab_proto::iwarp::{self as proto, Engine, EngineConfig, Requester};
use ringfab_reactor::{Reactor, ReceiveOp, SendBatch, SocketId, Time, TimerId};

use super::capture::Tap;
use super::connect::Dial;
use super::kind;
use super::message::{Message, Segment};
use super::regions::Handle;
use super::shared::Shared;
use super::work::WorkTable;
use crate::rdma::table::Key;
use crate::rdma::{ConnectError, DisconnectReason, Event, QueuePairAttributes, QueuePairId, RnicCounters};

/// FPDUs whose payload misses at least this many bytes are received straight into their final place.
const DIRECT_BYTES_MIN: usize = 2048;

/// What an FPDU has around its ULPDU: length field, padding and CRC.
const FPDU_OVERHEAD_BYTES: u32 = 2 + 3 + 4;

/// What a queue pair is doing. The arrows:
/// `Connecting -> Requesting -> Established`, `Replying -> Established`,
/// `Established -> Draining -> Lingering -> Closing`, `Established -> Terminating -> Lingering -> Closing`,
/// and from everywhere to `Closing`, which a retry with a lower MPA revision leaves for `Connecting`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// The TCP connection is being made.
    Connecting,
    /// The MPA request is on its way, or its reply is awaited.
    Requesting,
    /// The MPA reply is on its way.
    Replying,
    /// Work flows both ways.
    Established,
    /// We disconnected; what was posted before is still sent.
    Draining,
    /// The peer broke the protocol; the Terminate is on its way.
    Terminating,
    /// Our stream has ended; what still comes is thrown away until the peer's ends too. Closing at once could make the
    /// peer's kernel throw away what we sent last.
    Lingering,
    /// The socket is closed; operations in flight are awaited.
    Closing,
    /// Nothing is in flight; the slot may be freed.
    Ended,
}

/// How it ended, which decides the last event.
#[derive(Debug)]
pub(super) enum End {
    Failed(ConnectError),
    Rejected(Bytes),
    Disconnected(DisconnectReason),
}

/// A queue pair.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) key: Key,
    pub(super) phase: Phase,
    pub(super) attributes: QueuePairAttributes,
    /// None before it is made and once it is closed.
    pub(super) socket: Option<SocketId>,
    /// The two ends (local, peer).
    pub(super) addresses: (SocketAddr, SocketAddr),
    pub(super) engine: Option<Engine<Handle>>,
    pub(super) work: WorkTable,
    pub(super) message: Message,
    /// Ours except while it is in flight.
    pub(super) receive: Option<Box<ReceiveOp>>,
    /// Bytes of the staging memory that the engine has not consumed.
    pub(super) unread: Range<usize>,
    /// Where in its lease the direct receive in flight began.
    pub(super) direct_start: usize,
    pub(super) connecting: bool,
    pub(super) receiving: bool,
    pub(super) sending: bool,
    /// How many bytes of the batch in flight are the engine's.
    pub(super) engine_bytes: usize,
    /// Whether it is on the list of those that may have something to send.
    pub(super) dirty: bool,
    /// The segment that waits for a buffer.
    pub(super) paused: Option<Segment>,
    /// What to say if the receiving side gives no better reason: sending has failed.
    pub(super) send_failed: Option<DisconnectReason>,
    pub(super) timer: Option<(TimerId, Time)>,
    /// How often the peer was nudged to answer our first message.
    pub(super) nudges: u32,
    pub(super) end: Option<End>,
    /// The connecting side's state until it is established.
    pub(super) dial: Option<Box<Dial>>,
    /// The accepting side's, while its reply is on its way, and what the request said.
    pub(super) reply: Option<(Negotiated, Bytes)>,
    pub(super) tap: Option<Box<Tap>>,
}

impl Connection {
    pub(super) fn new(
        key: Key,
        attributes: QueuePairAttributes,
        addresses: (SocketAddr, SocketAddr),
    ) -> Self {
        Self {
            key,
            phase: Phase::Connecting,
            work: WorkTable::new(attributes.send_depth),
            attributes,
            socket: None,
            addresses,
            engine: None,
            message: Message::new(),
            receive: None,
            unread: 0..0,
            direct_start: 0,
            connecting: false,
            receiving: false,
            sending: false,
            engine_bytes: 0,
            dirty: false,
            paused: None,
            send_failed: None,
            timer: None,
            nudges: 0,
            end: None,
            dial: None,
            reply: None,
            tap: None,
        }
    }

    pub(super) fn id(&self) -> QueuePairId {
        super::device::queue_pair_id(self.key)
    }

    /// Whether the engine runs and its stream is intact both ways.
    pub(super) fn is_streaming(&self) -> bool {
        matches!(self.phase, Phase::Established | Phase::Draining)
    }

    /// From now on the stream carries FPDUs.
    pub(super) fn establish(
        &mut self,
        shared: &mut Shared,
        reactor: &mut Reactor,
        negotiated: Negotiated,
        private_data: Bytes,
    ) {
        let mut engine = Engine::new(self.engine_config(shared, negotiated));
        for _ in 0..self.attributes.receive_depth {
            engine.post_recv(self.attributes.receive_bytes_max).expect("the queue is larger than this");
        }
        tracing::debug!(peer = %self.addresses.1, ?negotiated, "RDMA connection established");
        self.engine = Some(engine);
        self.dial = None;
        self.phase = Phase::Established;
        self.cancel_timer(reactor);
        if negotiated.role == Role::Initiator {
            self.await_first_answer(shared, reactor);
        }
        if let Some(tap) = &mut self.tap {
            tap.start_framing();
        }
        shared.events.push_back(Event::Established { queue_pair: self.id(), private_data });
        self.mark_dirty(shared);
        self.pump(shared, reactor);
    }

    fn engine_config(&self, shared: &Shared, negotiated: Negotiated) -> EngineConfig {
        let requester = Requester {
            pd: proto::ProtectionDomain(self.attributes.domain.0),
            qp: proto::QueuePairId(self.key.index),
        };
        let ulpdu = shared.config.fpdu_bytes_max.saturating_sub(FPDU_OVERHEAD_BYTES);
        EngineConfig {
            send_queue_depth: self.attributes.send_depth.max(1) as usize,
            recv_queue_depth: self.receive_queue_depth(),
            ulpdu_len_max: u16::try_from(ulpdu).unwrap_or(u16::MAX),
            direct_min: DIRECT_BYTES_MIN,
            ..EngineConfig::new(negotiated, requester)
        }
    }

    /// Room for the credits at the start and as many again.
    fn receive_queue_depth(&self) -> usize {
        self.attributes.receive_depth.max(1) as usize * 2
    }

    /// Adds this queue pair's FPDUs.
    pub(super) fn count_fpdus(&self, counters: &mut RnicCounters) {
        let Some(engine) = &self.engine else { return };
        let counts = engine.fpdu_counts();
        counters.received_fpdus += counts.received;
        counters.sent_fpdus += counts.emitted;
    }

    pub(super) fn post_receive(&mut self, count: u32) {
        let Some(engine) = &mut self.engine else { return };
        for _ in 0..count {
            let posted = engine.post_recv(self.attributes.receive_bytes_max);
            posted.expect("no more receive credits than twice those at the start");
        }
    }

    /// Puts the queue pair on the list that the next flush visits, if a flush could do something for it.
    #[inline]
    pub(super) fn mark_dirty(&mut self, shared: &mut Shared) {
        let wanted = self.engine.as_ref().is_some_and(Engine::wants_transmit);
        if wanted && !self.dirty && !self.sending && self.socket.is_some() {
            self.dirty = true;
            shared.dirty.push_back(self.key);
        }
    }

    /// Sends an MPA frame.
    pub(super) fn send_frame(&mut self, shared: &mut Shared, reactor: &mut Reactor, frame: &[u8]) {
        let mut batch = shared.take_batch();
        batch.push_bytes(frame);
        if let Some(tap) = &mut self.tap {
            tap.sent(frame);
        }
        self.send(shared, reactor, batch, 0);
    }

    /// Puts a batch in flight.
    pub(super) fn send(
        &mut self,
        shared: &mut Shared,
        reactor: &mut Reactor,
        batch: Box<SendBatch>,
        engine_bytes: usize,
    ) {
        let Some(socket) = self.socket else { return shared.give_batch(batch) };
        self.flush_tap(shared, reactor);
        self.sending = true;
        self.engine_bytes = engine_bytes;
        reactor.send(socket, batch, shared.token(kind::SEND, self.key));
    }

    /// Puts a receive in flight, as it has been aimed.
    pub(super) fn arm(&mut self, shared: &Shared, reactor: &mut Reactor) {
        let (Some(socket), Some(receive)) = (self.socket, self.receive.take()) else { return };
        self.receiving = true;
        reactor.receive(socket, receive, shared.token(kind::RECEIVE, self.key));
    }

    /// Replaces the timer.
    pub(super) fn set_timer(&mut self, shared: &Shared, reactor: &mut Reactor, after: Duration) {
        self.cancel_timer(reactor);
        let at = reactor.now() + after;
        self.timer = Some((reactor.set_timer(at, shared.token(kind::TIMER, self.key)), at));
    }

    pub(super) fn cancel_timer(&mut self, reactor: &mut Reactor) {
        if let Some((timer, _)) = self.timer.take() {
            reactor.cancel_timer(timer);
        }
    }

    /// Writes what the capture has gathered.
    pub(super) fn flush_tap(&mut self, shared: &mut Shared, reactor: &Reactor) {
        if let (Some(tap), Some(capture)) = (&mut self.tap, &mut shared.capture) {
            tap.flush(capture, reactor.wall_clock());
        }
    }

    /// Starts to capture, when that was asked for; `active` is the side that connects.
    pub(super) fn open_tap(&mut self, shared: &mut Shared, reactor: &Reactor, active: bool) {
        if let Some(capture) = &mut shared.capture {
            self.tap = Some(Box::new(Tap::open(capture, reactor.wall_clock(), self.addresses, active)));
        }
    }
}
