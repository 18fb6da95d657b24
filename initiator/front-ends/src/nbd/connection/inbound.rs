//! What a client sends.
//!
//! One receive takes all requests and payloads that have arrived, and payloads are copied to their buffers. Only a
//! payload of which much is missing is received straight into its buffer, together with the header of the next request,
//! because each such receive costs a turn.

use std::io;

use ringfab_initiator::IoOperation;
use ringfab_memory::SharedBuffer;
use ringfab_reactor::ReceiveOp;

use super::super::negotiation::Progress;
use super::super::wire::{Command, Errno, REQUEST_BYTES, Request, flag};
use super::{Connection, Phase, Ready, SMALL_BYTES, Shared, kind, part_bytes_max};

/// A part that misses so many bytes is received in place.
const DIRECT_BYTES_MIN: u32 = 32 << 10;

/// A payload that is being received.
#[derive(Debug)]
pub(super) struct Incoming {
    slot: u16,
    /// Bytes of the payload before the current part.
    before: u32,
    /// Bytes of the payload from the current part on.
    rest: u32,
    /// The current part; `None` until there is a buffer, and while it is being received.
    shared_buffer: Option<SharedBuffer>,
    part_bytes: u32,
    /// Bytes of the current part that are there.
    filled: u32,
    /// Whether the payload is thrown away.
    discard: bool,
}

impl Incoming {
    /// Bytes of the current part that are not there.
    fn missing(&self) -> u32 {
        self.part_bytes - self.filled
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
        shared: &mut Shared<'_>,
    ) {
        let (direct, staged) = match &result {
            Ok(_) => (operation.direct_received(), operation.staging_received()),
            Err(_) => (0, 0),
        };
        let shared_buffer = operation.take_direct();
        self.receive = Some(operation);
        match (&mut self.incoming, shared_buffer) {
            (_, None) => {}
            (Some(incoming), Some(shared_buffer)) if !incoming.discard => {
                incoming.shared_buffer = Some(shared_buffer);
                incoming.filled += direct as u32;
            }
            // The connection ended meanwhile: the buffer goes back.
            (_, Some(shared_buffer)) => {
                let bytes = shared_buffer.len() as u32;
                drop(shared_buffer);
                self.returned(bytes);
            }
        }
        self.staged.end += staged;
        match result {
            Ok(0) => self.drain(shared),
            Ok(_) => {}
            Err(error) if matches!(self.phase, Phase::Closed) => {
                tracing::trace!(%error, "a receive ended with its connection");
            }
            Err(error) => {
                tracing::debug!(connection = self.index, %error, "the client is gone");
                self.close(shared);
            }
        }
    }

    /// Looks at what is there, as far as there are slots and buffers, and receives more.
    pub(super) fn pump_inbound(&mut self, shared: &mut Shared<'_>) -> Result<(), &'static str> {
        while self.receive.is_some() {
            match self.step(shared)? {
                Step::Again => {}
                Step::Wait => break,
                Step::Receive => self.start_receive(shared),
            }
        }
        Ok(())
    }

    /// Forgets a payload that will not come whole. What arrived of it may be written already.
    pub(super) fn abandon_incoming(&mut self) {
        let Some(incoming) = self.incoming.take() else { return };
        if let Some(shared_buffer) = incoming.shared_buffer {
            drop(shared_buffer);
            self.returned(incoming.part_bytes);
        }
        let entry = self.requests.get(incoming.slot);
        entry.complete = true;
        entry.fail((Errno::Shutdown, "the payload did not arrive").into());
        if entry.in_flight == 0 {
            self.ready.push_back(Ready::End { slot: incoming.slot });
        }
    }

    fn step(&mut self, shared: &mut Shared<'_>) -> Result<Step, &'static str> {
        if self.incoming.is_some() {
            return Ok(self.take_payload(shared));
        }
        match self.phase {
            Phase::Negotiating(_) => self.negotiate(shared),
            Phase::Serving => self.take_request(shared),
            Phase::Draining | Phase::Closed => Ok(Step::Wait),
        }
    }

    fn negotiate(&mut self, shared: &mut Shared<'_>) -> Result<Step, &'static str> {
        let (Phase::Negotiating(negotiation), Some(operation)) = (&mut self.phase, &self.receive) else {
            return Ok(Step::Wait);
        };
        // Who reads no answers gets to ask no more.
        if self.handshake.len() > HANDSHAKE_BACKLOG {
            return Ok(Step::Wait);
        }
        let input = &operation.staging()[self.staged.clone()];
        let (taken, progress) = negotiation.advance(input, shared.exports, &mut self.handshake)?;
        self.staged.start += taken;
        match progress {
            Progress::More => Ok(Step::Receive),
            Progress::Use { export, structured } => {
                self.structured = structured;
                self.phase = Phase::Serving;
                self.export = Some(export);
                self.stop_timer(shared);
                tracing::info!(connection = self.index, export = shared.exports[export].name, "serving");
                Ok(Step::Again)
            }
            Progress::End => {
                self.drain(shared);
                Ok(Step::Wait)
            }
        }
    }

    fn take_request(&mut self, shared: &mut Shared<'_>) -> Result<Step, &'static str> {
        if self.staged.len() < REQUEST_BYTES {
            return Ok(Step::Receive);
        }
        if self.requests.is_full() {
            return Ok(Step::Wait);
        }
        let Some(operation) = &self.receive else { return Ok(Step::Wait) };
        let start = self.staged.start;
        let head = operation.staging()[start..start + REQUEST_BYTES].try_into().expect("as many bytes");
        let request = Request::parse(head).ok_or("a request without its magic")?;
        self.staged.start += REQUEST_BYTES;
        if request.command == Command::Disconnect {
            self.drain(shared);
            return Ok(Step::Wait);
        }
        let slot = self.requests.insert(request).expect("there is a free slot");
        self.accept(slot, request, shared);
        Ok(Step::Again)
    }

    /// Puts a request on its way.
    fn accept(&mut self, slot: u16, request: Request, shared: &Shared<'_>) {
        let payload = request.payload_bytes();
        let Some(export) = self.export(shared) else { return };
        let entry = self.requests.get(slot);
        let refusal = export.check(&request).err();
        if let Some(refusal) = refusal {
            entry.fail(refusal.into());
        }
        let empty = request.length == 0 && request.command != Command::Flush;
        if payload > 0 {
            let part_bytes = payload.min(part_bytes_max(export));
            self.incoming = Some(Incoming {
                slot,
                before: 0,
                rest: payload,
                shared_buffer: None,
                part_bytes,
                filled: 0,
                discard: refusal.is_some(),
            });
        } else if refusal.is_some() || empty {
            entry.complete = true;
            self.ready.push_back(Ready::End { slot });
        } else {
            entry.flush_due = request.command == Command::Trim && request.flags & flag::FUA != 0;
            self.pending.push_back(slot);
        }
    }

    fn take_payload(&mut self, shared: &mut Shared<'_>) -> Step {
        let Some(incoming) = &mut self.incoming else { return Step::Again };
        if incoming.discard {
            return self.discard_payload();
        }
        if incoming.shared_buffer.is_none() {
            let bytes = incoming.part_bytes;
            let Some(buffer) = self.take_buffer(bytes, false, shared) else { return Step::Wait };
            self.incoming.as_mut().expect("still there").shared_buffer = Some(buffer.share());
            return Step::Again;
        }
        let (Some(shared_buffer), Some(operation)) = (&incoming.shared_buffer, &self.receive) else {
            return Step::Wait;
        };
        let there = self.staged.len().min(incoming.missing() as usize);
        if there > 0 {
            let bytes = &operation.staging()[self.staged.start..self.staged.start + there];
            shared_buffer.write_at(incoming.filled as usize, bytes);
            self.staged.start += there;
            incoming.filled += there as u32;
        }
        if incoming.filled < incoming.part_bytes {
            return Step::Receive;
        }
        self.write_part(shared);
        Step::Again
    }

    fn discard_payload(&mut self) -> Step {
        let Some(incoming) = &mut self.incoming else { return Step::Again };
        let there = self.staged.len().min(incoming.rest as usize);
        self.staged.start += there;
        incoming.rest -= there as u32;
        if incoming.rest > 0 {
            return Step::Receive;
        }
        let slot = incoming.slot;
        self.incoming = None;
        self.requests.get(slot).complete = true;
        self.ready.push_back(Ready::End { slot });
        Step::Again
    }

    /// Writes a part that is there, and goes on to the next.
    fn write_part(&mut self, shared: &mut Shared<'_>) {
        let export = self.export(shared);
        let Some(incoming) = &mut self.incoming else { return };
        let (Some(source), Some(export)) = (incoming.shared_buffer.take(), export) else { return };
        let (slot, bytes, before) = (incoming.slot, incoming.part_bytes, incoming.before);
        incoming.before += bytes;
        incoming.rest -= bytes;
        incoming.part_bytes = bytes.min(incoming.rest);
        incoming.filled = 0;
        let last = incoming.rest == 0;
        if last {
            self.incoming = None;
        }
        let entry = self.requests.get(slot);
        entry.complete = last;
        let request = entry.request;
        let block = u64::from(export.namespace.block_bytes);
        let operation = IoOperation::Write {
            lba: (request.offset + u64::from(before)) / block,
            nlb: bytes / block as u32,
            source,
            offset: 0,
            fua: request.flags & flag::FUA != 0,
        };
        let mark = u16::from(bytes > SMALL_BYTES);
        self.submit(slot, mark, operation, shared);
    }

    fn start_receive(&mut self, shared: &mut Shared<'_>) {
        let Some(mut operation) = self.receive.take() else { return };
        operation.staging_mut().copy_within(self.staged.clone(), 0);
        self.staged = 0..self.staged.len();
        let start = self.staged.end;
        let whole = operation.staging().len();
        match &mut self.incoming {
            Some(incoming) if !incoming.discard && incoming.missing() >= DIRECT_BYTES_MIN => {
                let last = incoming.rest == incoming.part_bytes;
                let (filled, bytes) = (incoming.filled as usize, incoming.part_bytes as usize);
                let direct = incoming
                    .shared_buffer
                    .take()
                    .map(|shared_buffer| (shared_buffer, filled, bytes - filled));
                operation.set_target(direct, 0, if last { REQUEST_BYTES } else { 0 });
            }
            _ => operation.set_target(None, start, whole),
        }
        let token = self.token(kind::RECEIVE);
        shared.host.reactor().receive(self.socket, operation, token);
    }
}

/// Bytes of the handshake that may wait to be sent before the client's next option is looked at.
const HANDSHAKE_BACKLOG: usize = 64 << 10;
