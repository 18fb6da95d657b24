//! What comes on a queue pair, and the memory for it.

use std::ops::Range;

use ringfab_proto::iwarp::{self as proto, Ahead, EngineError, Placement, TerminateCode};
use ringfab_reactor::Strides;

use super::message::Segment;
use super::queue_pair::{Core, QueuePair, fault};
use super::regions::Handle;
use crate::rdma::{Event, ReceivedHead};
use crate::stream::{Fault, Place, Shared, TURN_EVENTS, Want};

impl QueuePair {
    /// Feeds the engine until it wants more.
    pub(super) fn feed(
        &mut self,
        shared: &mut Shared<Self>,
        staging: &[u8],
        unread: &mut Range<usize>,
    ) -> Result<Want, Fault> {
        if let Some(segment) = self.paused.take()
            && !self.take_segment(shared, staging, segment)
        {
            return Ok(Want::Buffer);
        }
        let enough = shared.events.len() + TURN_EVENTS;
        loop {
            if shared.events.len() >= enough {
                return Ok(Want::Turn);
            }
            let Some(engine) = &mut self.engine else { return Ok(Want::Staging { bytes_max: usize::MAX }) };
            let (input, base) = (&staging[unread.clone()], unread.start);
            let step = engine.receive(input, &mut shared.core.regions.table).map_err(fault)?;
            unread.start += step.consumed;
            match step.event {
                proto::Event::NeedMore { .. } => return Ok(Want::Staging { bytes_max: usize::MAX }),
                proto::Event::Direct { to, remaining, ahead } => {
                    return self.want(&shared.core, to, remaining, ahead);
                }
                proto::Event::Place { to, payload } => {
                    let found = shared.core.regions.memory.resolve(&self.work, to.handle, to.offset);
                    let Some((lease, offset)) = found else { return Err(self.region_gone()) };
                    shared.counters.received_copied_bytes += payload.len() as u64;
                    let payload = payload.start + base..payload.end + base;
                    shared.copies.add(staging, lease, offset, payload);
                }
                proto::Event::SendSegment { mo, payload, last, invalidated, .. } => {
                    let payload = payload.start + base..payload.end + base;
                    let segment = Segment { offset: mo as usize, payload, last, invalidated };
                    if !self.take_segment(shared, staging, segment) {
                        return Ok(Want::Buffer);
                    }
                }
            }
        }
    }

    /// Takes a segment of a SEND in. Returns whether there was a buffer for it; it waits for one otherwise.
    #[inline]
    fn take_segment(&mut self, shared: &mut Shared<Self>, staging: &[u8], segment: Segment) -> bool {
        if segment.is_short() {
            // A capsule without data: what it is received into is the event.
            let Segment { payload, invalidated, .. } = segment;
            shared.counters.received_copied_bytes += payload.len() as u64;
            let (queue_pair, head) = (self.id(), ReceivedHead::new(&staging[payload]));
            shared.events.push_back(Event::Received { queue_pair, head, data: None, invalidated });
            return true;
        }
        self.take_long(shared, staging, segment)
    }

    /// The same for what needs a buffer, or comes in several segments.
    fn take_long(&mut self, shared: &mut Shared<Self>, staging: &[u8], segment: Segment) -> bool {
        if !self.message.reserve(&segment, &self.attributes.pool, self.attributes.receive_bytes_max) {
            self.paused = Some(segment);
            return false;
        }
        let bytes = &staging[segment.payload];
        shared.counters.received_copied_bytes += bytes.len() as u64;
        self.message.place(segment.offset, bytes);
        if segment.last {
            let length = segment.offset + bytes.len();
            let event = self.message.finish(self.id(), length, segment.invalidated);
            shared.events.push_back(event);
        }
        true
    }

    fn want(
        &mut self,
        core: &Core,
        place: Placement<Handle>,
        length: usize,
        ahead: Option<Ahead>,
    ) -> Result<Want, Fault> {
        let Some((lease, offset)) = core.regions.memory.resolve(&self.work, place.handle, place.offset)
        else {
            return Err(self.region_gone());
        };
        let strides = ahead.map(|Ahead { gap, step, total }| Strides { gap, step, total });
        Ok(Want::Place(Place { lease: lease.clone(), offset, length, is_last: true, strides }))
    }

    /// The exposure ended between the header that named it and its payload.
    fn region_gone(&mut self) -> Fault {
        let code = TerminateCode::DDP_INVALID_STAG;
        if let Some(engine) = &mut self.engine {
            engine.terminate(code);
        }
        fault(EngineError::Local(code))
    }
}
