//! The send queue of a queue pair: work requests in order, from posted to completed.
//!
//! States of a work request:
//! - `Waiting`: posted, nothing or only a part of its message has been emitted;
//! - `Emitted`: the whole message of a Send or Write has been emitted, the transport may still read its payload;
//! - `Reading`: a Read Request has been emitted, its response is outstanding;
//! - `Read`: the last byte of the response is in place.
//!
//! Completions leave in the order of posting, so a finished Send behind an unfinished Read waits for it.

use std::collections::VecDeque;

use ringfab_spec::IntoBytes;
use ringfab_spec::iwarp::{self, QueueNumber, RdmapOpcode, TaggedHeader, UntaggedHeader};

use super::error::Violation;
use super::mpa::ReadyToReceive;
use super::region::Placement;
use super::rx::Tagged;
use super::tx::{SegmentHeader, TxSink, emit, segment_len};
use super::work::{
    Completion, Local, PostError, ReadRequest, SendRequest, WorkRequest, WorkStatus, WriteRequest,
};
use crate::first_uses::FirstUses;

#[derive(Debug)]
pub(crate) struct SendQueue<H> {
    slots: VecDeque<Slot<H>>,
    posted: FirstUses,
    depth: usize,
    /// The sequence number of the first slot; a work request keeps its number while slots before it leave.
    first_seq: u64,
    /// The slot that is emitted next or partly emitted, and how much of its message is out.
    emit_seq: u64,
    emitted: u64,
    reads: VecDeque<u64>,
    ord: usize,
    /// Bytes of the oldest outstanding read that are in place.
    read_len: u32,
    send_msn: u32,
    read_msn: u32,
}

#[derive(Debug)]
struct Slot<H> {
    wr_id: u64,
    work: Work<H>,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum Work<H> {
    Posted(WorkRequest<H>),
    /// The engine's own first message in peer-to-peer mode, of which the owner hears nothing.
    Ready(ReadyToReceive),
}

#[derive(Clone, Copy, Debug)]
enum State {
    Waiting,
    /// The position in the emitted stream behind the message.
    Emitted(u64),
    Reading,
    Read,
}

/// What the emitting side needs to know about the connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wire {
    pub(crate) ulpdu_len_max: u16,
    pub(crate) crc_used: bool,
}

impl Wire {
    pub(crate) fn tagged_payload_max(self) -> u32 {
        u32::from(self.ulpdu_len_max) - TaggedHeader::SIZE as u32
    }

    fn untagged_payload_max(self) -> u32 {
        u32::from(self.ulpdu_len_max) - UntaggedHeader::SIZE as u32
    }
}

impl<H: Copy> SendQueue<H> {
    pub(crate) fn new(depth: usize, ord: usize) -> Self {
        Self {
            slots: VecDeque::new(),
            posted: FirstUses::default(),
            depth,
            first_seq: 0,
            emit_seq: 0,
            emitted: 0,
            reads: VecDeque::with_capacity(ord.max(1)),
            ord,
            read_len: 0,
            send_msn: 1,
            read_msn: 1,
        }
    }

    #[inline]
    pub(crate) fn post(&mut self, wr_id: u64, work: WorkRequest<H>) -> Result<(), PostError> {
        if self.slots.len() >= self.depth {
            return Err(PostError::Full(self.depth));
        }
        if matches!(work, WorkRequest::Read(_)) && self.ord == 0 {
            return Err(PostError::NoReads);
        }
        if !ranges_fit(&work) {
            return Err(PostError::Range);
        }
        if self.posted.now_in_earnest() {
            // One more for the ready-to-receive message.
            self.slots.reserve_exact(self.depth + 1 - self.slots.len());
        }
        self.slots.push_back(Slot { wr_id, work: Work::Posted(work), state: State::Waiting });
        Ok(())
    }

    /// Appends a message of the engine's own, which completes in silence.
    pub(crate) fn post_ready(&mut self, ready: ReadyToReceive) {
        self.slots.push_back(Slot { wr_id: 0, work: Work::Ready(ready), state: State::Waiting });
    }

    /// Free slots.
    pub(crate) fn room(&self) -> usize {
        self.depth.saturating_sub(self.slots.len())
    }

    /// Whether [`Self::emit`] would emit something.
    pub(crate) fn can_emit(&self) -> bool {
        match self.slot(self.emit_seq) {
            None => false,
            // The ready-to-receive Read is allowed even when no others are.
            Some(slot) => !slot.work.is_read() || self.reads.len() < self.ord.max(1),
        }
    }

    /// Whether the message at the front is partly emitted.
    pub(crate) fn mid_message(&self) -> bool {
        self.emitted > 0
    }

    /// Emits the next FPDU, at stream position `position`, and returns its length in bytes. Call only when
    /// [`Self::can_emit`].
    pub(crate) fn emit(&mut self, sink: &mut impl TxSink<H>, wire: Wire, position: u64) -> usize {
        let Some(slot) = self.slot(self.emit_seq) else { return 0 };
        let (fpdu_len, last) = match slot.work {
            Work::Posted(WorkRequest::Send(send)) => {
                let len = send_len(&send);
                self.emit_send(sink, wire, &send, len)
            }
            Work::Posted(WorkRequest::Write(write)) => self.emit_write(sink, wire, &write),
            Work::Posted(WorkRequest::Read(read)) => (self.emit_read(sink, wire, &read_request(&read)), true),
            Work::Ready(ready) => (self.emit_ready(sink, wire, ready), true),
        };
        if last {
            self.message_emitted(position + fpdu_len as u64);
        }
        fpdu_len
    }

    fn emit_send(
        &mut self,
        sink: &mut impl TxSink<H>,
        wire: Wire,
        send: &SendRequest<H>,
        len: u64,
    ) -> (usize, bool) {
        let segment = u64::from(segment_len(len, wire.untagged_payload_max())).min(len - self.emitted);
        let last = self.emitted + segment == len;
        let (qn, msn, mo) = (QueueNumber::SEND, self.send_msn, low_word(self.emitted));
        let header = UntaggedHeader::new(send_opcode(send), last, qn, msn, mo);
        let header = SegmentHeader::Untagged(header.with_invalidate_stag(send.invalidate.unwrap_or(0)));
        let inline = if self.emitted == 0 { send.inline.as_slice() } else { &[] };
        let payload_len = low_word(segment - inline.len() as u64);
        let before = self.emitted.saturating_sub(send.inline.as_slice().len() as u64);
        let payload = send.payload.map(|local| slice(local, before, payload_len));
        let fpdu_len = emit(sink, header, inline, payload, wire.crc_used);
        self.emitted += segment;
        (fpdu_len, last)
    }

    fn emit_write(
        &mut self,
        sink: &mut impl TxSink<H>,
        wire: Wire,
        write: &WriteRequest<H>,
    ) -> (usize, bool) {
        let len = u64::from(write.payload.len);
        let segment = u64::from(segment_len(len, wire.tagged_payload_max())).min(len - self.emitted);
        let last = self.emitted + segment == len;
        let to = write.to.wrapping_add(self.emitted);
        let header = SegmentHeader::Tagged(TaggedHeader::new(RdmapOpcode::RDMA_WRITE, last, write.stag, to));
        let payload = slice(write.payload, self.emitted, low_word(segment));
        let fpdu_len = emit(sink, header, &[], Some(payload), wire.crc_used);
        self.emitted += segment;
        (fpdu_len, last)
    }

    fn emit_read(&self, sink: &mut impl TxSink<H>, wire: Wire, request: &iwarp::ReadRequest) -> usize {
        let (opcode, qn) = (RdmapOpcode::RDMA_READ_REQUEST, QueueNumber::READ_REQUEST);
        let header = UntaggedHeader::new(opcode, true, qn, self.read_msn, 0);
        emit(sink, SegmentHeader::Untagged(header), request.as_bytes(), None, wire.crc_used)
    }

    /// A message of no bytes; STag and offset 0 are never checked.
    fn emit_ready(&self, sink: &mut impl TxSink<H>, wire: Wire, ready: ReadyToReceive) -> usize {
        let header = match ready {
            ReadyToReceive::Read => return self.emit_read(sink, wire, &iwarp::ReadRequest::zeroed()),
            ReadyToReceive::Write => {
                SegmentHeader::Tagged(TaggedHeader::new(RdmapOpcode::RDMA_WRITE, true, 0, 0))
            }
            ReadyToReceive::Send => {
                let (opcode, qn) = (RdmapOpcode::SEND, QueueNumber::SEND);
                SegmentHeader::Untagged(UntaggedHeader::new(opcode, true, qn, self.send_msn, 0))
            }
        };
        emit(sink, header, &[], None, wire.crc_used)
    }

    fn message_emitted(&mut self, position: u64) {
        self.emitted = 0;
        let seq = self.emit_seq;
        self.emit_seq += 1;
        let Some(slot) = self.slot_mut(seq) else { return };
        match slot.work {
            Work::Posted(WorkRequest::Read(_)) | Work::Ready(ReadyToReceive::Read) => {
                slot.state = State::Reading;
                self.reads.push_back(seq);
                self.read_msn = self.read_msn.wrapping_add(1);
            }
            Work::Posted(WorkRequest::Send(_)) | Work::Ready(ReadyToReceive::Send) => {
                slot.state = State::Emitted(position);
                self.send_msn = self.send_msn.wrapping_add(1);
            }
            Work::Posted(WorkRequest::Write(_)) | Work::Ready(ReadyToReceive::Write) => {
                slot.state = State::Emitted(position);
            }
        }
    }

    /// Checks a Read Response against the oldest outstanding read (RFC 5040, section 5.2) and says where it goes; `None`
    /// for the response to a read of the engine's own, which has no bytes.
    #[inline]
    pub(crate) fn check_response(&self, header: Tagged, len: u32) -> Result<Option<Placement<H>>, Violation> {
        let Some(read) = self.oldest_read() else {
            return Err(Violation::UnaskedResponse { stag: header.stag });
        };
        if header.stag != read.stag {
            return Err(Violation::ResponseStag { stag: header.stag, expected: read.stag });
        }
        let expected = read.to.wrapping_add(u64::from(self.read_len));
        let room = read.len - self.read_len;
        if header.to != expected || len > room {
            return Err(Violation::ResponseBounds { to: header.to, len, expected, room });
        }
        let missing = room - len;
        if header.last != (missing == 0) {
            return Err(Violation::ResponseEnd { missing, last: header.last });
        }
        let place = |local: Local<H>| Placement {
            handle: local.handle,
            offset: local.offset + u64::from(self.read_len),
        };
        Ok(read.local.map(place))
    }

    /// Counts a checked Read Response as delivered.
    #[inline]
    pub(crate) fn response_delivered(&mut self, len: u32, last: bool) {
        self.read_len += len;
        if !last {
            return;
        }
        self.read_len = 0;
        if let Some(slot) = self.reads.pop_front().and_then(|seq| self.slot_mut(seq)) {
            slot.state = State::Read;
        }
    }

    /// The next completion in order. `transmitted` is the position up to which the transport has taken the stream;
    /// `flush` hands back everything.
    #[inline]
    pub(crate) fn pop_completion(&mut self, transmitted: u64, flush: bool) -> Option<Completion<H>> {
        loop {
            let status = match self.slots.front()?.state {
                State::Emitted(position) if position <= transmitted => WorkStatus::Done,
                State::Read => WorkStatus::Done,
                _ if flush => WorkStatus::Flushed,
                _ => return None,
            };
            let slot = self.slots.pop_front()?;
            self.first_seq += 1;
            if self.slots.is_empty() {
                // From here the next ones go to its front again, which is in the cache.
                self.slots.clear();
            }
            if let Work::Posted(work) = slot.work {
                let (kind, local) = (work.kind(), work.local());
                return Some(Completion { wr_id: slot.wr_id, kind, local, status });
            }
        }
    }

    fn oldest_read(&self) -> Option<Sink<H>> {
        match &self.slot(*self.reads.front()?)?.work {
            Work::Posted(WorkRequest::Read(read)) => Some(Sink {
                stag: read.sink_stag,
                to: read.sink_to,
                len: read.sink.len,
                local: Some(read.sink),
            }),
            Work::Ready(_) => Some(Sink { stag: 0, to: 0, len: 0, local: None }),
            Work::Posted(_) => None,
        }
    }

    fn slot(&self, seq: u64) -> Option<&Slot<H>> {
        self.slots.get(usize::try_from(seq.checked_sub(self.first_seq)?).ok()?)
    }

    fn slot_mut(&mut self, seq: u64) -> Option<&mut Slot<H>> {
        self.slots.get_mut(usize::try_from(seq.checked_sub(self.first_seq)?).ok()?)
    }
}

/// Where the oldest read expects its response.
struct Sink<H> {
    stag: u32,
    to: u64,
    len: u32,
    local: Option<Local<H>>,
}

impl<H> Work<H> {
    fn is_read(&self) -> bool {
        matches!(self, Self::Posted(WorkRequest::Read(_)) | Self::Ready(ReadyToReceive::Read))
    }
}

fn send_len<H>(send: &SendRequest<H>) -> u64 {
    send.inline.as_slice().len() as u64 + send.payload.as_ref().map_or(0, |local| u64::from(local.len))
}

/// Tagged offsets and message offsets must not wrap (RFC 5041, section 5.1).
fn ranges_fit<H: Copy>(work: &WorkRequest<H>) -> bool {
    let fits = |to: u64, len: u32| to.checked_add(u64::from(len)).is_some();
    let local = work.local().is_none_or(|local| fits(local.offset, local.len));
    local
        && work.message_len() <= u64::from(u32::MAX)
        && match work {
            WorkRequest::Send(_) => true,
            WorkRequest::Write(write) => fits(write.to, write.payload.len),
            WorkRequest::Read(read) => fits(read.to, read.sink.len) && fits(read.sink_to, read.sink.len),
        }
}

fn send_opcode<H>(send: &SendRequest<H>) -> RdmapOpcode {
    match (send.solicited, send.invalidate.is_some()) {
        (false, false) => RdmapOpcode::SEND,
        (false, true) => RdmapOpcode::SEND_INVALIDATE,
        (true, false) => RdmapOpcode::SEND_SE,
        (true, true) => RdmapOpcode::SEND_SE_INVALIDATE,
    }
}

fn read_request<H>(read: &ReadRequest<H>) -> iwarp::ReadRequest {
    iwarp::ReadRequest::new((read.sink_stag, read.sink_to), read.sink.len, (read.stag, read.to))
}

fn slice<H: Copy>(local: Local<H>, skip: u64, len: u32) -> Local<H> {
    Local { handle: local.handle, offset: local.offset + skip, len }
}

/// Message lengths were checked to fit 32 bits when they were posted.
fn low_word(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}
