//! What a client sends.
//!
//! One receive takes all requests and payloads that have arrived, and payloads are copied to their buffers. Only a
//! payload of which much is missing is received straight into its buffer, together with the header of the next request,
//! because each such receive costs a turn.

use std::io;
use std::ops::Range;

use ringfab_initiator::IoOperation;
use ringfab_initiator::bytes::{next_piece, part_bytes, touched_blocks};
use ringfab_memory::SharedBuffer;
use ringfab_proto::nbd::{Command, Errno, REQUEST_BYTES, Request, flag};
use ringfab_reactor::{Reactor, ReceiveOp, SocketId, Token};

use super::super::export::{Export, REMOVED, Refusal};
use super::super::negotiation::Progress;
use super::{
    Connection, Phase, Reply, SMALL_BYTES, STAGING_BYTES, ServerContext, Work, kind, part_bytes_max,
};
use crate::failures;

/// A part that misses so many bytes is received in place.
const DIRECT_BYTES_MIN: u32 = 32 << 10;

/// What is received.
pub(super) struct Inbound {
    /// `None` while a receive is in flight.
    pub(super) receive: Option<Box<ReceiveOp>>,
    /// Bytes in the staging memory that were not looked at.
    staged: Range<usize>,
    pub(super) payload: Option<IncomingPayload>,
}

/// A payload that is being received.
#[derive(Debug)]
pub(super) struct IncomingPayload {
    slot: u16,
    /// Bytes of the payload before the current part.
    before: u32,
    /// Bytes of the payload from the current part on.
    rest: u32,
    /// The current part; `None` until there is a buffer, and while it is being received.
    buffer: Option<SharedBuffer>,
    part_bytes: u32,
    /// Bytes of the current part that are there.
    filled: u32,
    /// Whether the payload is thrown away.
    discard: bool,
}

impl IncomingPayload {
    /// Bytes of the current part that are not there.
    fn missing(&self) -> u32 {
        self.part_bytes - self.filled
    }
}

impl Inbound {
    pub(super) fn new() -> Self {
        Self { receive: Some(ReceiveOp::new(STAGING_BYTES)), staged: 0..0, payload: None }
    }

    /// Receives more: a payload that misses much in place, everything else to the staging memory.
    fn start_receive(&mut self, socket: SocketId, token: Token, reactor: &mut Reactor) {
        let Some(mut operation) = self.receive.take() else { return };
        operation.staging_mut().copy_within(self.staged.clone(), 0);
        self.staged = 0..self.staged.len();
        let start = self.staged.end;
        let whole = operation.staging().len();
        match &mut self.payload {
            Some(payload) if !payload.discard && payload.missing() >= DIRECT_BYTES_MIN => {
                let last = payload.rest == payload.part_bytes;
                let (filled, bytes) = (payload.filled as usize, payload.part_bytes as usize);
                let direct = payload.buffer.take().map(|buffer| (buffer, filled, bytes - filled));
                operation.set_target(direct, 0, if last { REQUEST_BYTES } else { 0 });
            }
            _ => operation.set_target(None, start, whole),
        }
        reactor.receive(socket, operation, token);
    }
}

/// What comes next.
enum Step {
    /// Look again.
    Again,
    /// More bytes are needed.
    Receive,
    /// A buffer or a slot is needed, or nothing more is wanted.
    Wait,
}

impl Connection {
    /// Takes the end of a receive.
    pub(super) fn on_received(
        &mut self,
        mut operation: Box<ReceiveOp>,
        result: io::Result<u32>,
        context: &mut ServerContext<'_>,
    ) {
        let (direct, staged) = match &result {
            Ok(_) => (operation.direct_received(), operation.staging_received()),
            Err(_) => (0, 0),
        };
        let buffer = operation.take_direct();
        self.inbound.receive = Some(operation);
        match (&mut self.inbound.payload, buffer) {
            (_, None) => {}
            (Some(payload), Some(buffer)) if !payload.discard => {
                payload.buffer = Some(buffer);
                payload.filled += direct as u32;
            }
            // The connection ended meanwhile: the buffer goes back.
            (_, Some(buffer)) => {
                let bytes = buffer.len() as u32;
                drop(buffer);
                self.transmission.buffers.put_back(bytes);
            }
        }
        self.inbound.staged.end += staged;
        match result {
            Ok(0) => self.drain(context),
            Ok(_) => {}
            Err(error) if matches!(self.phase, Phase::Closed) => {
                tracing::trace!(%error, "a receive ended with its connection");
            }
            Err(error) => {
                tracing::debug!(connection = self.id.index, %error, "the client is gone");
                self.close(context);
            }
        }
    }

    /// Looks at what is there, as far as there are slots and buffers, and receives more.
    pub(super) fn pump_inbound(&mut self, context: &mut ServerContext<'_>) -> Result<(), &'static str> {
        while self.inbound.receive.is_some() {
            match self.step(context)? {
                Step::Again => {}
                Step::Wait => break,
                Step::Receive => {
                    let token = self.id.token(kind::RECEIVE);
                    self.inbound.start_receive(self.socket, token, context.host.reactor());
                }
            }
        }
        Ok(())
    }

    /// Forgets a payload that will not come whole. What arrived of it may be written already.
    pub(super) fn abandon_payload(&mut self) {
        let Some(payload) = self.inbound.payload.take() else { return };
        if let Some(buffer) = payload.buffer {
            drop(buffer);
            self.transmission.buffers.put_back(payload.part_bytes);
        }
        let entry = self.transmission.requests.get(payload.slot);
        entry.complete = true;
        entry.fail(Refusal::new(Errno::Shutdown, "the payload did not arrive").into());
        if entry.in_flight == 0 {
            self.transmission.replies.push_back(Reply::End { slot: payload.slot });
        }
    }

    fn step(&mut self, context: &mut ServerContext<'_>) -> Result<Step, &'static str> {
        if self.inbound.payload.is_some() {
            return Ok(self.take_payload(context));
        }
        match self.phase {
            Phase::Handshake(_) => self.negotiate(context),
            Phase::Transmission => self.take_request(context),
            Phase::Draining | Phase::Closed => Ok(Step::Wait),
        }
    }

    fn negotiate(&mut self, context: &mut ServerContext<'_>) -> Result<Step, &'static str> {
        let (Phase::Handshake(negotiation), Some(operation)) = (&mut self.phase, &self.inbound.receive)
        else {
            return Ok(Step::Wait);
        };
        // Who reads no answers gets to ask no more.
        if self.outbound.handshake.len() > HANDSHAKE_BACKLOG {
            return Ok(Step::Wait);
        }
        let input = &operation.staging()[self.inbound.staged.clone()];
        let (taken, progress) = negotiation.advance(input, context.exports, &mut self.outbound.handshake)?;
        self.inbound.staged.start += taken;
        match progress {
            Progress::More => Ok(Step::Receive),
            Progress::Use { export, structured, allocation } => {
                (self.transmission.structured, self.allocation) = (structured, allocation);
                self.phase = Phase::Transmission;
                self.export = Some(export);
                self.deadline.clear(context.host.reactor());
                tracing::info!(connection = self.id.index, export = context.exports[export].name, "serving");
                Ok(Step::Again)
            }
            Progress::End => {
                self.drain(context);
                Ok(Step::Wait)
            }
        }
    }

    fn take_request(&mut self, context: &mut ServerContext<'_>) -> Result<Step, &'static str> {
        if self.inbound.staged.len() < REQUEST_BYTES {
            return Ok(Step::Receive);
        }
        if self.transmission.requests.is_full() {
            return Ok(Step::Wait);
        }
        let Some(operation) = &self.inbound.receive else { return Ok(Step::Wait) };
        let start = self.inbound.staged.start;
        let head = operation.staging()[start..start + REQUEST_BYTES].try_into().expect("as many bytes");
        let request = Request::parse(head).ok_or("a request without its magic")?;
        self.inbound.staged.start += REQUEST_BYTES;
        if request.command == Command::Disconnect {
            self.drain(context);
            return Ok(Step::Wait);
        }
        let slot = self.transmission.requests.insert(request).expect("there is a free slot");
        self.accept(slot, request, context);
        Ok(Step::Again)
    }

    /// Puts a request on its way.
    fn accept(&mut self, slot: u16, request: Request, context: &ServerContext<'_>) {
        let payload_bytes = request.payload_bytes();
        let Some(export) = self.export(context) else { return };
        let unknown = request.command == Command::BlockStatus && !self.allocation;
        let refusal = match export.check(&request) {
            Ok(()) if unknown => Some(Refusal::new(Errno::Inval, "no metadata context was chosen")),
            result => result.err(),
        };
        let entry = self.transmission.requests.get(slot);
        if let Some(refusal) = refusal {
            entry.fail(refusal.into());
            // Everything else is the client's mistake.
            if refusal.text == REMOVED {
                failures::note_reason(&REMOVED);
            }
        }
        let empty = request.length == 0 && request.command != Command::Flush;
        if payload_bytes > 0 {
            // What is thrown away may be anywhere, and is never looked at in parts.
            let part_bytes = match refusal {
                Some(_) => payload_bytes,
                None => piece_bytes(request.offset, payload_bytes, export),
            };
            self.inbound.payload = Some(IncomingPayload {
                slot,
                before: 0,
                rest: payload_bytes,
                buffer: None,
                part_bytes,
                filled: 0,
                discard: refusal.is_some(),
            });
        } else if refusal.is_some() || empty {
            entry.complete = true;
            self.transmission.replies.push_back(Reply::End { slot });
        } else {
            entry.flush_due = request.command == Command::Trim && request.flags & flag::FUA != 0;
            self.transmission.pending.push_back(slot);
        }
    }

    fn take_payload(&mut self, context: &mut ServerContext<'_>) -> Step {
        let Some(payload) = &mut self.inbound.payload else { return Step::Again };
        if payload.discard {
            return self.discard_payload();
        }
        if payload.buffer.is_none() {
            let bytes = payload.part_bytes;
            let Some(buffer) = self.transmission.buffers.take(bytes, false, context.host.pool()) else {
                return Step::Wait;
            };
            self.inbound.payload.as_mut().expect("still there").buffer = Some(buffer.share());
            return Step::Again;
        }
        let (Some(buffer), Some(operation)) = (&payload.buffer, &self.inbound.receive) else {
            return Step::Wait;
        };
        let there = self.inbound.staged.len().min(payload.missing() as usize);
        if there > 0 {
            let bytes = &operation.staging()[self.inbound.staged.start..self.inbound.staged.start + there];
            buffer.write_at(payload.filled as usize, bytes);
            self.inbound.staged.start += there;
            payload.filled += there as u32;
        }
        if payload.filled < payload.part_bytes {
            return Step::Receive;
        }
        if self.write_part(context) { Step::Again } else { Step::Wait }
    }

    fn discard_payload(&mut self) -> Step {
        let Some(payload) = &mut self.inbound.payload else { return Step::Again };
        let there = self.inbound.staged.len().min(payload.rest as usize);
        self.inbound.staged.start += there;
        payload.rest -= there as u32;
        if payload.rest > 0 {
            return Step::Receive;
        }
        let slot = payload.slot;
        self.inbound.payload = None;
        self.transmission.requests.get(slot).complete = true;
        self.transmission.replies.push_back(Reply::End { slot });
        Step::Again
    }

    /// Writes a part that is there, and goes on to the next. Returns whether it could: somebody may have claimed its
    /// blocks.
    fn write_part(&mut self, context: &mut ServerContext<'_>) -> bool {
        let Some(export) = self.export(context) else { return false };
        let Some(payload) = &mut self.inbound.payload else { return false };
        let (slot, bytes, before) = (payload.slot, payload.part_bytes, payload.before);
        let request = self.transmission.requests.get(slot).request;
        let (block, offset) = (export.namespace.block_bytes, request.offset + u64::from(before));
        let range = offset..offset + u64::from(bytes);
        let is_part = part_bytes(&range, block) > 0;
        if !is_part && context.writer.must_wait(export.namespace.nsid, &touched_blocks(&range, block)) {
            return false;
        }
        let Some(source) = payload.buffer.take() else { return false };
        payload.before += bytes;
        payload.rest -= bytes;
        payload.part_bytes = piece_bytes(range.end, payload.rest, export);
        payload.filled = 0;
        let last = payload.rest == 0;
        if last {
            self.inbound.payload = None;
        }
        self.transmission.requests.get(slot).complete = last;
        let fua = request.flags & flag::FUA != 0;
        if is_part {
            let part = source.with_bytes(0..bytes as usize, <[u8]>::to_vec);
            drop(source);
            self.transmission.buffers.put_back(bytes);
            self.start_chore(slot, Work::Write { offset, bytes: part, fua }, context);
        } else {
            let (lba, nlb) = (offset / u64::from(block), bytes / block);
            let operation = IoOperation::Write { lba, nlb, source, offset: 0, fua };
            self.submit(slot, u16::from(bytes > SMALL_BYTES), operation, context);
        }
        true
    }
}

/// Bytes of the next part of a payload, which is a part of a block or what one command takes.
fn piece_bytes(offset: u64, rest: u32, export: &Export) -> u32 {
    let rest = offset..offset + u64::from(rest);
    let piece = next_piece(&rest, export.namespace.block_bytes, part_bytes_max(export));
    (piece.end - piece.start) as u32
}

/// Bytes of the handshake that may wait to be sent before the client's next option is looked at.
const HANDSHAKE_BACKLOG: usize = 64 << 10;
