//! What the software RNIC adds to a stream: a queue pair.

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use ringfab_memory::{Pool, SharedBuffer};
use ringfab_proto::iwarp::mpa::Negotiated;
use ringfab_proto::iwarp::{self as proto, Engine, EngineConfig, EngineError, FpduCounts, Requester, crc};
use ringfab_reactor::{Reactor, STRIDES_MAX};

use super::capture::{Capture, Tap};
use super::message::{Message, Segment};
use super::opening::Opening;
use super::regions::{Handle, Regions};
use super::work::WorkTable;
use crate::rdma::{ConnectError, DisconnectReason, QueuePairAttributes, QueuePairId, RnicConfig, RnicEvent};
use crate::stream::{End, FRONTS_BYTES, Fault, Gather, Protocol, ReceiveTarget, Shared, Step};
use crate::table::Key;

/// FPDUs whose payload misses at least this many bytes are received straight into their final place.
const DIRECT_BYTES_MIN: usize = 16 << 10;

/// What an FPDU has around its ULPDU: length field, padding and CRC.
const FPDU_OVERHEAD_BYTES: u32 = 2 + 3 + 4;

/// How long the peer may take to answer our first message before it is nudged; each time twice as long.
const NUDGE_AFTER: Duration = Duration::from_millis(100);

/// How often it is nudged.
const NUDGES_MAX: u32 = 6;

/// What all queue pairs of a core have in common.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) config: RnicConfig,
    pub(super) regions: Regions,
    pub(super) capture: Option<Capture>,
    /// Of queue pairs that have ended.
    pub(super) fpdus: FpduCounts,
}

impl Core {
    pub(super) fn new(config: RnicConfig) -> io::Result<Self> {
        let capture = config.capture.as_deref().map(Capture::create).transpose()?;
        let regions = Regions::new(config.regions_max, config.seed);
        Ok(Self { config, regions, capture, fpdus: FpduCounts::default() })
    }
}

/// A queue pair.
#[derive(Debug)]
pub(super) struct QueuePair {
    pub(super) key: Key,
    peer: SocketAddr,
    pub(super) attributes: QueuePairAttributes,
    /// The MPA exchange, until it is over.
    pub(super) opening: Option<Box<Opening>>,
    /// None before that.
    pub(super) engine: Option<Engine<Handle>>,
    pub(super) work: WorkTable,
    /// SENDs and WRITEs that have completed since the last event that told of one.
    pub(super) untold: u32,
    pub(super) message: Message,
    /// The segment that waits for a buffer.
    pub(super) paused: Option<Segment>,
    /// How often the peer was nudged to answer our first message.
    nudges: u32,
    /// Whether we connected.
    active: bool,
    pub(super) tap: Option<Box<Tap>>,
}

impl QueuePair {
    pub(super) fn new(key: Key, peer: SocketAddr, attributes: QueuePairAttributes, opening: Opening) -> Self {
        Self {
            key,
            peer,
            work: WorkTable::new(attributes.send_depth),
            untold: 0,
            attributes,
            active: opening.is_active(),
            opening: Some(Box::new(opening)),
            engine: None,
            message: Message::new(),
            paused: None,
            nudges: 0,
            tap: None,
        }
    }

    pub(super) fn id(&self) -> QueuePairId {
        queue_pair_id(self.key)
    }

    /// From now on the stream carries FPDUs.
    fn establish(&mut self, shared: &mut Shared<Self>, negotiated: Negotiated, private_data: Bytes) {
        let mut engine = Engine::new(self.engine_config(&shared.core.config, negotiated));
        for _ in 0..self.attributes.receive_depth {
            engine.post_recv(self.attributes.receive_bytes_max).expect("the queue is larger than this");
        }
        tracing::debug!(peer = %self.peer, ?negotiated, "RDMA connection established");
        self.engine = Some(engine);
        self.opening = None;
        if let Some(tap) = &mut self.tap {
            tap.start_framing();
        }
        shared.events.push_with(|| RnicEvent::Established { queue_pair: self.id(), private_data });
    }

    fn engine_config(&self, config: &RnicConfig, negotiated: Negotiated) -> EngineConfig {
        let requester = Requester {
            pd: proto::ProtectionDomain(self.attributes.domain.0),
            qp: proto::QueuePairId(self.key.index),
        };
        let ulpdu = config.fpdu_bytes_max.saturating_sub(FPDU_OVERHEAD_BYTES);
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

    /// Its FPDUs.
    pub(super) fn fpdu_counts(&self) -> FpduCounts {
        self.engine.as_ref().map_or_else(FpduCounts::default, Engine::fpdu_counts)
    }

    pub(super) fn set_receive_pool(&mut self, pool: &Pool) {
        self.attributes.pool = pool.clone();
    }

    pub(super) fn post_receive(&mut self, count: u32) {
        let Some(engine) = &mut self.engine else { return };
        for _ in 0..count {
            let posted = engine.post_recv(self.attributes.receive_bytes_max);
            posted.expect("no more receive credits than twice those at the start");
        }
    }

    /// Whether the peer has not answered our first message.
    fn awaits_first_answer(&self) -> bool {
        self.active && self.fpdu_counts().received == 0
    }

    /// Writes what the capture has gathered.
    pub(super) fn flush_tap(&mut self, core: &mut Core, reactor: &Reactor) {
        if let (Some(tap), Some(capture)) = (&mut self.tap, &mut core.capture) {
            tap.flush(capture, reactor.wall_clock());
        }
    }

    fn close_tap(&mut self, core: &mut Core, reactor: &Reactor) {
        if let (Some(tap), Some(capture)) = (self.tap.take(), &mut core.capture) {
            tap.close(capture, reactor.wall_clock());
        }
    }

    fn last_event(&mut self, end: End) -> RnicEvent {
        let queue_pair = self.id();
        let rejected = self.opening.as_deref_mut().and_then(Opening::take_rejection);
        let error = match (end, rejected) {
            (End::Disconnected(reason), _) => return RnicEvent::Disconnected { queue_pair, reason },
            (_, Some(private_data)) => return RnicEvent::Rejected { queue_pair, private_data },
            (End::Refused(error), _) => ConnectError::Connect(error),
            (End::TimedOut { step, limit }, _) => {
                let step = if step == Step::Connect { "connect" } else { "MPA" };
                ConnectError::TimedOut { step, seconds: limit.as_secs() }
            }
            (End::Unsecured(what) | End::Unopened(DisconnectReason::Violation(what)), _) => {
                ConnectError::Mpa(what)
            }
            (End::Unopened(reason), _) => ConnectError::MpaEnded(reason.into_detail()),
        };
        RnicEvent::ConnectFailed { queue_pair, error }
    }
}

impl Protocol for QueuePair {
    type Core = Core;
    type Event = RnicEvent;
    /// A listener's connections are [`super::half_open::HalfOpen`]s.
    type Terms = std::convert::Infallible;

    /// One FPDU of the largest size fits, whatever it is.
    const STAGING_BYTES: usize = 256 * 1024;

    fn accepted(_: Key, terms: Self::Terms) -> Self {
        match terms {}
    }

    fn connected(
        &mut self,
        shared: &mut Shared<Self>,
        reactor: &Reactor,
        addresses: (SocketAddr, SocketAddr),
    ) {
        if let Some(capture) = &mut shared.core.capture {
            let mut tap = Tap::open(capture, reactor.wall_clock(), addresses, self.active);
            if let Some(opening) = &self.opening {
                tap.received(opening.received());
            }
            self.tap = Some(Box::new(tap));
        }
    }

    fn is_established(&self) -> bool {
        self.engine.is_some()
    }

    #[inline]
    fn receive(
        &mut self,
        shared: &mut Shared<Self>,
        staging: &[u8],
        unread: &mut Range<usize>,
    ) -> Result<ReceiveTarget, Fault> {
        if self.engine.is_none() {
            let reply =
                self.opening.as_mut().map(|opening| opening.take_reply(staging, unread)).transpose()?;
            let Some((negotiated, said)) = reply.flatten() else {
                return Ok(ReceiveTarget::Staging { bytes_max: usize::MAX });
            };
            self.establish(shared, negotiated, said);
        }
        let wanted = self.feed(shared, staging, unread);
        shared.copies.make(staging);
        self.collect(shared);
        wanted
    }

    fn placed(&mut self, shared_buffer: &SharedBuffer, range: Range<usize>) {
        let Some(engine) = &mut self.engine else { return };
        engine.direct_received(range.len(), |state| {
            shared_buffer.with_bytes(range.clone(), |bytes| crc::update(state, bytes))
        });
        if let Some(tap) = &mut self.tap {
            shared_buffer.with_bytes(range, |bytes| tap.received(bytes));
        }
    }

    #[inline]
    fn observe(&mut self, shared: &mut Shared<Self>, reactor: &Reactor, bytes: &[u8]) {
        if let Some(tap) = &mut self.tap {
            tap.received(bytes);
            self.flush_tap(&mut shared.core, reactor);
        }
    }

    fn stream_ended(&mut self, unread: usize) -> Option<Fault> {
        let Some(engine) = &mut self.engine else {
            let again = self.opening.as_ref().is_some_and(|opening| opening.may_retry());
            return again.then_some(Fault::Retry);
        };
        match engine.stream_ended(unread) {
            error @ EngineError::Truncated { .. } => Some(fault(error)),
            _ => None,
        }
    }

    #[inline]
    fn wants_transmit(&self) -> bool {
        match (&self.engine, &self.opening) {
            (Some(engine), _) => engine.wants_transmit(),
            (None, Some(opening)) => opening.has_frame(),
            (None, None) => false,
        }
    }

    #[inline]
    fn transmit(&mut self, shared: &mut Shared<Self>, reactor: &Reactor, gather: &mut Gather<'_>) -> usize {
        let bytes = self.emit(&shared.core, gather);
        self.flush_tap(&mut shared.core, reactor);
        bytes
    }

    #[inline]
    fn transmitted(&mut self, shared: &mut Shared<Self>, bytes: usize) {
        match &mut self.engine {
            Some(engine) => engine.transmitted(bytes),
            None => {
                if let Some((negotiated, said)) =
                    self.opening.as_mut().and_then(|opening| opening.frame_sent())
                {
                    self.establish(shared, negotiated, said);
                }
            }
        }
        self.collect(shared);
    }

    #[inline]
    fn fault(&self) -> Option<Fault> {
        self.engine.as_ref().and_then(Engine::error).map(fault)
    }

    fn is_idle(&self) -> bool {
        self.work.is_empty()
    }

    fn patience(&self) -> Option<Duration> {
        let awaited = self.awaits_first_answer() && self.nudges < NUDGES_MAX;
        awaited.then(|| NUDGE_AFTER * 2_u32.pow(self.nudges))
    }

    fn post_empty_write(&mut self) -> bool {
        self.nudges += 1;
        self.awaits_first_answer() && self.engine.as_mut().is_some_and(Engine::post_empty_write)
    }

    fn retry(&mut self, shared: &mut Shared<Self>, reactor: &Reactor) -> io::Result<()> {
        self.close_tap(&mut shared.core, reactor);
        match self.opening.as_deref_mut() {
            Some(opening) => opening.restart(&shared.core.config, &self.attributes),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    fn finish(&mut self, shared: &mut Shared<Self>, reactor: &Reactor, end: End) {
        self.close_tap(&mut shared.core, reactor);
        if let Some(engine) = &mut self.engine {
            engine.transport_closed();
        }
        self.collect(shared);
        let counts = self.fpdu_counts();
        shared.core.fpdus.received += counts.received;
        shared.core.fpdus.emitted += counts.emitted;
        let event = self.last_event(end);
        shared.events.push_with(|| event);
    }
}

/// The queue pair that a key names, told from those of the other provider by being even.
pub(super) fn queue_pair_id(key: Key) -> QueuePairId {
    QueuePairId { index: key.index << 1, generation: key.generation }
}

/// Also when all that was expected to go on belongs there instead of where it came.
const _: () = assert!(QueuePair::STAGING_BYTES >= FRONTS_BYTES + STRIDES_MAX * proto::FPDU_LEN_MAX);

/// What the engine's error means for the stream.
#[cold]
pub(super) fn fault(error: EngineError) -> Fault {
    match error {
        EngineError::Violation(violation) => Fault::Violation(violation.to_string()),
        EngineError::Local(code) => Fault::Violation(code.to_string()),
        EngineError::Terminated(terminate) => {
            Fault::Ended(DisconnectReason::PeerTerminated(terminate.code.to_string()))
        }
        EngineError::Closed | EngineError::Truncated { .. } => {
            Fault::Ended(DisconnectReason::Broken(error.to_string()))
        }
    }
}
