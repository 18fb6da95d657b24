//! The receive loop of a queue pair: one receive is in flight, unless a message waits for a buffer.

use std::io;

use ringfab_proto::iwarp::{self as proto, EngineError, Placement, TerminateCode, crc};
use ringfab_reactor::{Reactor, ReceiveOp};

use super::connection::{Connection, End, Phase};
use super::message::Segment;
use super::regions::Handle;
use super::shared::Shared;
use crate::rdma::DisconnectReason;

/// Staging behind a direct receive: enough for the trailer, the next header and a few small FPDUs, and not so much that a
/// good part of the next large payload would land there and be copied.
const BEHIND_DIRECT_BYTES: usize = 512;

/// How the engine's appetite ended.
enum Pump {
    /// It wants more bytes in the staging memory.
    Staging,
    /// It wants bytes straight in their final place.
    Direct(Placement<Handle>, usize),
    /// A message needs a buffer and there is none.
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
        // The lease goes here, whatever came: if this was the end, the sink of a READ becomes unique again below.
        if let Some(lease) = receive.take_direct()
            && self.is_streaming()
            && matches!(result, Ok(true))
        {
            self.on_direct(shared, &lease, placed);
        }
        self.receive = Some(receive);
        match (self.phase, result) {
            (Phase::Established | Phase::Draining, Ok(true)) => self.on_staged(shared, reactor, staged),
            (Phase::Established | Phase::Draining, Ok(false)) => self.on_stream_end(shared, reactor),
            (Phase::Established | Phase::Draining, Err(error)) => self.on_broken(shared, reactor, &error),
            (Phase::Requesting, Ok(true)) => self.on_staged(shared, reactor, staged),
            (Phase::Requesting, Ok(false)) => self.on_reply_missing(shared, reactor, "closed by the peer"),
            (Phase::Requesting, Err(error)) => self.on_reply_missing(shared, reactor, &error.to_string()),
            (Phase::Terminating | Phase::Lingering, Ok(true)) => self.discard(shared, reactor),
            (Phase::Terminating | Phase::Lingering, _) => self.close_ended(shared, reactor),
            (Phase::Closing, _) => self.try_finish(shared, reactor),
            (Phase::Connecting | Phase::Replying | Phase::Ended, _) => {}
        }
    }

    fn on_direct(&mut self, shared: &mut Shared, lease: &ringfab_memory::Lease, length: usize) {
        let Some(engine) = &mut self.engine else { return };
        let range = self.direct_start..self.direct_start + length;
        engine.direct_received(length, |state| {
            lease.with_bytes(range.clone(), |bytes| crc::update(state, bytes))
        });
        shared.counters.received_direct_bytes += length as u64;
        if let Some(tap) = &mut self.tap {
            lease.with_bytes(range, |bytes| tap.received(bytes));
        }
    }

    fn on_staged(&mut self, shared: &mut Shared, reactor: &mut Reactor, staged: usize) {
        let (start, end) = (self.unread.end, self.unread.end + staged);
        if let (Some(tap), Some(receive)) = (&mut self.tap, &self.receive) {
            tap.received(&receive.staging()[start..end]);
        }
        self.flush_tap(shared, reactor);
        self.unread.end = end;
        match self.phase {
            Phase::Requesting => self.on_reply(shared, reactor),
            _ => self.pump(shared, reactor),
        }
    }

    /// Feeds the engine until it wants more, and aims the next receive accordingly.
    pub(super) fn pump(&mut self, shared: &mut Shared, reactor: &mut Reactor) {
        let pumped = self.feed(shared);
        self.collect(shared);
        match pumped {
            Ok(Pump::Staging) => self.arm_staging(shared, reactor),
            Ok(Pump::Direct(place, length)) => self.arm_direct(shared, reactor, place, length),
            Ok(Pump::Paused) => shared.paused.push_back(self.key),
            Err(error) => return self.on_engine_error(shared, reactor, error),
        }
        self.mark_dirty(shared);
        self.check_drained(shared, reactor);
    }

    /// Tries again to find a buffer for the message that waits. Returns whether there was one.
    pub(super) fn resume(&mut self, shared: &mut Shared, reactor: &mut Reactor) -> bool {
        let Some(segment) = self.paused.take() else { return true };
        if !self.message.reserve(&segment, &self.attributes.pool, self.attributes.receive_bytes_max) {
            self.paused = Some(segment);
            return false;
        }
        self.take_segment(shared, &segment);
        self.pump(shared, reactor);
        true
    }

    fn feed(&mut self, shared: &mut Shared) -> Result<Pump, EngineError> {
        loop {
            let (Some(engine), Some(receive)) = (&mut self.engine, &self.receive) else {
                return Ok(Pump::Staging);
            };
            let input = &receive.staging()[self.unread.clone()];
            let base = self.unread.start;
            let step = engine.receive(input, &mut shared.regions.table)?;
            self.unread.start += step.consumed;
            match step.event {
                proto::Event::NeedMore { .. } => return Ok(Pump::Staging),
                proto::Event::Direct { to, remaining } => return Ok(Pump::Direct(to, remaining)),
                proto::Event::Place { to, payload } => {
                    let found = shared.regions.memory.resolve(&self.work, to.handle, to.offset);
                    let Some((lease, offset)) = found else { return Err(self.region_gone()) };
                    shared.counters.received_copied_bytes += payload.len() as u64;
                    lease.write_at(offset, &input[payload]);
                }
                proto::Event::SendSegment { mo, payload, last, invalidated, .. } => {
                    let payload = payload.start + base..payload.end + base;
                    let segment = Segment { offset: mo as usize, payload, last, invalidated };
                    let bytes_max = self.attributes.receive_bytes_max;
                    if !self.message.reserve(&segment, &self.attributes.pool, bytes_max) {
                        self.paused = Some(segment);
                        return Ok(Pump::Paused);
                    }
                    self.take_segment(shared, &segment);
                }
            }
        }
    }

    fn take_segment(&mut self, shared: &mut Shared, segment: &Segment) {
        let Some(receive) = &self.receive else { return };
        let bytes = &receive.staging()[segment.payload.clone()];
        shared.counters.received_copied_bytes += bytes.len() as u64;
        self.message.place(segment.offset, bytes);
        if segment.last {
            let length = segment.offset + bytes.len();
            let event = self.message.finish(self.id(), length, segment.invalidated);
            shared.events.push_back(event);
        }
    }

    fn arm_staging(&mut self, shared: &mut Shared, reactor: &mut Reactor) {
        if self.receive.is_none() {
            self.receive = Some(shared.take_receive());
        }
        let Some(receive) = &mut self.receive else { return };
        // The remainder moves to the front, so that a whole FPDU fits behind it.
        let length = self.unread.len();
        receive.staging_mut().copy_within(self.unread.clone(), 0);
        self.unread = 0..length;
        receive.aim(None, length, receive.staging().len());
        self.arm(shared, reactor);
    }

    fn arm_direct(
        &mut self,
        shared: &mut Shared,
        reactor: &mut Reactor,
        place: Placement<Handle>,
        length: usize,
    ) {
        let found = shared.regions.memory.resolve(&self.work, place.handle, place.offset);
        let Some((lease, offset)) = found else {
            let error = self.region_gone();
            return self.on_engine_error(shared, reactor, error);
        };
        let Some(receive) = &mut self.receive else { return };
        self.direct_start = offset;
        self.unread = 0..0;
        receive.aim(Some((lease.clone(), offset, length)), 0, BEHIND_DIRECT_BYTES);
        self.arm(shared, reactor);
    }

    /// The exposure ended between the header that named it and its payload.
    fn region_gone(&mut self) -> EngineError {
        let code = TerminateCode::DDP_INVALID_STAG;
        if let Some(engine) = &mut self.engine {
            engine.terminate(code);
        }
        EngineError::Local(code)
    }

    /// The peer's stream has ended.
    fn on_stream_end(&mut self, shared: &mut Shared, reactor: &mut Reactor) {
        let ended = self.engine.as_mut().map(|engine| engine.stream_ended(self.unread.len()));
        let reason = match ended {
            Some(error @ EngineError::Truncated { .. }) => DisconnectReason::Broken(error.to_string()),
            _ => self.send_failed.take().unwrap_or(DisconnectReason::PeerClosed),
        };
        self.close(shared, reactor, End::Disconnected(reason));
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
