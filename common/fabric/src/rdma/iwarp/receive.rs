//! What comes on a queue pair, and the memory for it.

use std::ops::{ControlFlow, Range};

use ringfab_proto::iwarp::{
    Continuation, EngineError, Pause, Placement, Receiver, SendSegment, TerminateCode,
};
use ringfab_reactor::Strides;

use super::message::{Message, Segment};
use super::queue_pair::{Core, QueuePair, fault};
use super::regions::{ExposedMemory, Handle, Regions};
use super::work::WorkTable;
use crate::events::Events;
use crate::rdma::{QueuePairAttributes, QueuePairId, ReceivedHead, RnicEvent};
use crate::stream::{Copies, Counters, Fault, Place, ReceiveTarget, Shared, TURN_EVENTS};

/// Acts on what the engine understands.
struct Receiving<'a> {
    queue_pair: QueuePairId,
    /// What was received, and where in it the engine's input begins.
    staging: &'a [u8],
    base: usize,
    work: &'a WorkTable,
    memory: &'a ExposedMemory,
    message: &'a mut Message,
    /// The segment that waits for a buffer.
    paused: &'a mut Option<Segment>,
    attributes: &'a QueuePairAttributes,
    events: &'a mut Events<RnicEvent>,
    copies: &'a mut Copies,
    counters: &'a mut Counters,
    /// With so many events it is the turn of others.
    enough: usize,
    /// An exposure ended between the header that named it and its payload.
    region_gone: bool,
}

impl Receiver<Handle> for Receiving<'_> {
    #[inline]
    fn place(&mut self, to: Placement<Handle>, payload: Range<usize>) -> ControlFlow<()> {
        let Some((shared_buffer, offset)) = self.memory.resolve(self.work, to.handle, to.offset) else {
            self.region_gone = true;
            return ControlFlow::Break(());
        };
        self.counters.received_copied_bytes += payload.len() as u64;
        let payload = payload.start + self.base..payload.end + self.base;
        self.copies.add(self.staging, shared_buffer, offset, payload);
        ControlFlow::Continue(())
    }

    #[inline]
    fn send_segment(&mut self, segment: SendSegment) -> ControlFlow<()> {
        let SendSegment { mo, payload, last, invalidated, .. } = segment;
        let payload = payload.start + self.base..payload.end + self.base;
        self.take_segment(Segment { offset: mo as usize, payload, last, invalidated })
    }
}

impl Receiving<'_> {
    /// Takes a segment of a SEND in. It waits where there is no buffer for it.
    #[inline]
    fn take_segment(&mut self, segment: Segment) -> ControlFlow<()> {
        if segment.is_short() {
            // A capsule without data: what it is received into is the event.
            let Segment { payload, invalidated, .. } = segment;
            self.counters.received_copied_bytes += payload.len() as u64;
            let (queue_pair, bytes) = (self.queue_pair, &self.staging[payload]);
            let event = |head| RnicEvent::Received { queue_pair, head, data: None, invalidated };
            // Commands and responses are copied in a known length, straight into the event.
            if let Ok(command) = <&[u8; 64]>::try_from(bytes) {
                self.events.push_with(|| event(ReceivedHead::whole(command)));
            } else if let Ok(response) = <&[u8; 16]>::try_from(bytes) {
                self.events.push_with(|| event(ReceivedHead::whole(response)));
            } else {
                self.events.push_with(|| event(ReceivedHead::new(bytes)));
            }
        } else if !self.take_long(segment) {
            return ControlFlow::Break(());
        }
        if self.events.len() >= self.enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// The same for what needs a buffer, or comes in several segments. Whether there was a buffer.
    fn take_long(&mut self, segment: Segment) -> bool {
        let QueuePairAttributes { pool, receive_bytes_max, .. } = self.attributes;
        if !self.message.reserve(&segment, pool, *receive_bytes_max) {
            *self.paused = Some(segment);
            return false;
        }
        let bytes = &self.staging[segment.payload];
        self.counters.received_copied_bytes += bytes.len() as u64;
        self.message.place(segment.offset, bytes);
        if segment.last {
            let length = segment.offset + bytes.len();
            let event = self.message.finish(self.queue_pair, length, segment.invalidated);
            self.events.push_with(|| event);
        }
        true
    }
}

impl QueuePair {
    /// Feeds the engine until it wants more.
    pub(super) fn feed(
        &mut self,
        shared: &mut Shared<Self>,
        staging: &[u8],
        unread: &mut Range<usize>,
    ) -> Result<ReceiveTarget, Fault> {
        let (queue_pair, waiting) = (self.id(), self.paused.take());
        let Self { engine: Some(engine), work, message, paused, attributes, .. } = self else {
            return Ok(ReceiveTarget::Staging { bytes_max: usize::MAX });
        };
        let Shared { core: Core { regions, .. }, events, counters, copies, .. } = shared;
        let Regions { table, memory, .. } = regions;
        let (base, enough) = (unread.start, events.len() + TURN_EVENTS);
        let mut receiving = Receiving {
            queue_pair,
            staging,
            base,
            work,
            memory,
            message,
            paused,
            attributes,
            events,
            copies,
            counters,
            enough,
            region_gone: false,
        };
        let flow = waiting.map_or(ControlFlow::Continue(()), |segment| receiving.take_segment(segment));
        let pause = match flow {
            ControlFlow::Break(()) => Pause::Stopped,
            ControlFlow::Continue(()) => {
                let (consumed, pause) =
                    engine.receive(&staging[unread.clone()], table, &mut receiving).map_err(fault)?;
                unread.start += consumed;
                pause
            }
        };
        let gone = receiving.region_gone;
        match pause {
            Pause::NeedMore(_) => Ok(ReceiveTarget::Staging { bytes_max: usize::MAX }),
            Pause::Direct { to, remaining, continuation } => {
                self.want(&shared.core, to, remaining, continuation)
            }
            Pause::Stopped if gone => Err(self.region_gone()),
            Pause::Stopped if self.paused.is_some() => Ok(ReceiveTarget::Buffer),
            Pause::Stopped => Ok(ReceiveTarget::Turn),
        }
    }

    fn want(
        &mut self,
        core: &Core,
        place: Placement<Handle>,
        length: usize,
        continuation: Option<Continuation>,
    ) -> Result<ReceiveTarget, Fault> {
        let Some((shared_buffer, offset)) =
            core.regions.memory.resolve(&self.work, place.handle, place.offset)
        else {
            return Err(self.region_gone());
        };
        let strides = continuation.map(|Continuation { gap, step, total }| Strides { gap, step, total });
        Ok(ReceiveTarget::Direct(Place {
            shared_buffer: shared_buffer.clone(),
            offset,
            length,
            is_last: true,
            strides,
        }))
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
