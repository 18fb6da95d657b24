//! The receive loop of a connection: one receive is in flight, unless a capsule waits for a buffer.

use std::io;

use ringfab_memory::Lease;
use ringfab_proto::tcp::{self as proto, EngineError, Place, crc};
use ringfab_reactor::{Reactor, ReceiveOp};
use ringfab_spec::tcp::{CapsuleCmd, IcReq};

use super::connection::{Connection, End, Phase};
use super::inbound::Capsule;
use super::shared::Shared;
use super::{ConnectError, DisconnectReason, Event};

/// Staging behind a direct receive: enough for a digest, the next headers and small data, and not so much that a good part
/// of the next large data would land there and be copied.
const BEHIND_DIRECT_BYTES: usize = 512;

/// How the engine's appetite ended.
enum Pump {
    /// It wants more bytes in the staging memory.
    Staging,
    /// It wants bytes straight in their final place.
    Direct(Place, usize),
    /// A capsule needs a buffer and there is none.
    Paused,
}

impl Connection {
    /// A receive has ended.
    pub(super) fn on_received(
        &mut self,
        shared: &mut Shared,
        reactor: &mut Reactor,
        mut receive: Box<ReceiveOp>,
        result: io::Result<u32>,
    ) {
        self.receiving = false;
        let (placed, staged) = (receive.direct_received(), receive.staging_received());
        let result = result.map(|bytes| bytes > 0);
        // The lease goes here, whatever came: with the end of its transfer the memory becomes unique again.
        if let Some(lease) = receive.take_direct()
            && self.is_streaming()
            && matches!(result, Ok(true))
        {
            self.on_direct(shared, &lease, placed);
        }
        self.receive = Some(receive);
        match (self.phase, result) {
            (Phase::Established | Phase::Draining | Phase::Initializing | Phase::Accepted, Ok(true)) => {
                self.unread.end += staged;
                self.pump(shared, reactor);
            }
            (Phase::Established | Phase::Draining | Phase::Initializing | Phase::Accepted, Ok(false)) => {
                self.on_stream_end(shared, reactor);
            }
            (Phase::Established | Phase::Draining | Phase::Initializing | Phase::Accepted, Err(error)) => {
                self.on_broken(shared, reactor, &error);
            }
            (Phase::Terminating | Phase::Lingering, Ok(true)) => self.discard(shared, reactor),
            (Phase::Terminating | Phase::Lingering, _) => self.close_ended(shared, reactor),
            (Phase::Closing, _) => self.try_finish(shared, reactor),
            (Phase::Connecting | Phase::Ended, _) => {}
        }
    }

    fn on_direct(&mut self, shared: &mut Shared, lease: &Lease, length: usize) {
        let range = self.direct_start..self.direct_start + length;
        self.engine
            .direct_received(length, |state| lease.with_bytes(range, |bytes| crc::update(state, bytes)));
        shared.counters.received_direct_bytes += length as u64;
    }

    /// Feeds the engine until it wants more, and aims the next receive accordingly.
    pub(super) fn pump(&mut self, shared: &mut Shared, reactor: &mut Reactor) {
        match self.feed(shared, reactor) {
            Ok(Pump::Staging) => self.arm_staging(shared, reactor),
            Ok(Pump::Direct(place, length)) => self.arm_direct(shared, reactor, place, length),
            Ok(Pump::Paused) => {
                self.paused = true;
                shared.paused.push_back(self.key);
            }
            Err(error) => return self.on_engine_error(shared, reactor, error),
        }
        self.mark_dirty(shared);
        self.check_drained(shared, reactor);
    }

    /// Tries again to find a buffer for the capsule that waits. Returns whether there was one.
    pub(super) fn resume(&mut self, shared: &mut Shared, reactor: &mut Reactor) -> bool {
        if !self.paused {
            return true;
        }
        if !self.reserve() {
            return false;
        }
        self.paused = false;
        self.pump(shared, reactor);
        true
    }

    fn reserve(&mut self) -> bool {
        match (&mut self.capsule, &self.pool) {
            (Some(capsule), Some(pool)) => capsule.reserve(pool),
            _ => true,
        }
    }

    fn feed(&mut self, shared: &mut Shared, reactor: &mut Reactor) -> Result<Pump, EngineError> {
        loop {
            let Some(receive) = &self.receive else { return Ok(Pump::Staging) };
            let input = &receive.staging()[self.unread.clone()];
            // The header of the first capsule is for who adopts the connection.
            if self.phase == Phase::Accepted && self.engine.agreed().is_some() {
                return Ok(Pump::Staging);
            }
            let step = self.engine.receive(input)?;
            let base = self.unread.start;
            self.unread.start += step.consumed;
            match step.event {
                proto::Event::NeedMore => return Ok(Pump::Staging),
                proto::Event::Direct { to, remaining } => return Ok(Pump::Direct(to, remaining)),
                proto::Event::Place { to, payload } => {
                    shared.counters.received_copied_bytes += payload.len() as u64;
                    self.place(to, payload.start + base..payload.end + base);
                }
                proto::Event::Initialized => self.on_initialized(shared, reactor),
                proto::Event::Command { sqe, data_bytes: 0 } => {
                    let connection = self.id();
                    shared.events.push_back(Event::Command { connection, sqe, data: None, intact: true });
                }
                proto::Event::Command { sqe, data_bytes } => {
                    self.capsule = Some(Capsule { sqe, bytes: data_bytes, data: None });
                    if !self.reserve() {
                        return Ok(Pump::Paused);
                    }
                }
                proto::Event::CommandEnd { intact } => self.on_capsule(shared, intact),
                proto::Event::TransferEnd { tag, intact } => self.on_transfer(shared, tag, intact),
                proto::Event::Response { cqe, intact } => {
                    shared.events.push_back(Event::Response { connection: self.id(), cqe, intact });
                }
            }
        }
    }

    fn on_initialized(&mut self, shared: &mut Shared, reactor: &mut Reactor) {
        if self.phase == Phase::Initializing {
            self.phase = Phase::Established;
            self.cancel_timer(reactor);
            shared.events.push_back(Event::Established { connection: self.id() });
        }
    }

    fn on_capsule(&mut self, shared: &mut Shared, intact: bool) {
        let Some(Capsule { sqe, data, .. }) = self.capsule.take() else { return };
        let data = data.map(unique);
        shared.events.push_back(Event::Command { connection: self.id(), sqe, data, intact });
    }

    fn on_transfer(&mut self, shared: &mut Shared, tag: u16, intact: bool) {
        let connection = self.id();
        for (id, lease) in self.transfers.end(tag) {
            let sink = Some(unique(lease));
            shared.events.push_back(Event::Data { connection, id, sink, intact });
        }
    }

    /// The memory of a place: where it starts there, and how much of it is in one piece.
    fn resolve(&self, place: Place) -> Option<(&Lease, usize, usize)> {
        match place {
            Place::Capsule { offset } => {
                let lease = self.capsule.as_ref()?.data.as_ref()?;
                Some((lease, offset as usize, lease.len() - offset as usize))
            }
            Place::Transfer { tag, offset } => {
                let (lease, start) = self.transfers.find(tag, offset)?;
                Some((lease, start, lease.len() - start))
            }
            Place::Command { cid, offset } => {
                let sink = self.engine.sink(cid)?;
                Some((&sink.handle, (sink.offset + offset) as usize, (sink.length - offset) as usize))
            }
        }
    }

    /// Copies staged bytes to their place, which may be in several pieces.
    fn place(&self, to: Place, payload: std::ops::Range<usize>) {
        let Some(receive) = &self.receive else { return };
        let mut rest = &receive.staging()[payload];
        let mut at = to;
        while !rest.is_empty() {
            let (lease, start, room) =
                self.resolve(at).expect("the engine names places of what is outstanding");
            let (now, later) = rest.split_at(rest.len().min(room));
            lease.write_at(start, now);
            at = at.advanced(now.len() as u32);
            rest = later;
        }
    }

    fn arm_staging(&mut self, shared: &mut Shared, reactor: &mut Reactor) {
        if self.receive.is_none() {
            self.receive = Some(shared.take_receive());
        }
        let window = self.window();
        let Some(receive) = &mut self.receive else { return };
        // The remainder moves to the front, so that whole headers fit behind it.
        let length = self.unread.len();
        receive.staging_mut().copy_within(self.unread.clone(), 0);
        self.unread = 0..length;
        if length >= window {
            return;
        }
        let end = window.min(receive.staging().len());
        receive.aim(None, length, end);
        self.arm(shared, reactor);
    }

    /// Bytes of the stream to look at: of a connection that nobody has adopted, no more than the next header.
    fn window(&self) -> usize {
        match (self.phase, self.engine.agreed()) {
            (Phase::Accepted, None) => IcReq::SIZE,
            (Phase::Accepted, Some(_)) => CapsuleCmd::SIZE,
            _ => usize::MAX,
        }
    }

    /// Whether the header of the first capsule of a connection that nobody has adopted is here, and nothing is in flight.
    pub(super) fn may_be_adopted(&self) -> bool {
        self.phase == Phase::Accepted
            && self.engine.agreed().is_some()
            && self.unread.len() >= CapsuleCmd::SIZE
            && !self.sending
            && !self.engine.wants_transmit()
    }

    fn arm_direct(&mut self, shared: &mut Shared, reactor: &mut Reactor, place: Place, length: usize) {
        let found = self.resolve(place).expect("the engine names places of what is outstanding");
        let (lease, offset, room) = (found.0.clone(), found.1, found.2);
        let Some(receive) = &mut self.receive else { return };
        self.direct_start = offset;
        self.unread = 0..0;
        // What does not fit this piece of memory comes with the next receive.
        let behind = if length <= room { BEHIND_DIRECT_BYTES } else { 0 };
        receive.aim(Some((lease, offset, length.min(room))), 0, behind);
        self.arm(shared, reactor);
    }

    /// The peer's stream has ended.
    fn on_stream_end(&mut self, shared: &mut Shared, reactor: &mut Reactor) {
        let end = match self.phase {
            Phase::Initializing => {
                End::Failed(ConnectError::Initialize("the peer closed the connection".to_owned()))
            }
            _ => End::Disconnected(self.send_failed.take().unwrap_or(DisconnectReason::PeerClosed)),
        };
        self.close(shared, reactor, end);
    }

    /// Throws away what came, and waits for more of it or the end.
    pub(super) fn discard(&mut self, shared: &mut Shared, reactor: &mut Reactor) {
        if let Some(receive) = &mut self.receive {
            self.unread = 0..0;
            receive.aim(None, 0, receive.staging().len());
        }
        self.arm(shared, reactor);
    }
}

/// The memory of what has come whole: no receive into it is in flight.
fn unique(lease: Lease) -> ringfab_memory::Buffer {
    lease.into_unique().expect("no receive into the memory of ended data is in flight")
}
