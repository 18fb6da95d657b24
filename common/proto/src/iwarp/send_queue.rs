//! The send queue of a queue pair: work requests in order, from posted to completed.
//!
//! States of a work request:
//! - `Waiting`: posted, nothing or only a part of its message has been emitted;
//! - `Emitted`: the whole message of a Send or Write has been emitted, the transport may still read its payload;
//! - `Reading`: a Read Request has been emitted, its response is outstanding;
//! - `Read`: the last byte of the response is in place.
//!
//! Completions leave in the order of posting, so a finished Send behind an unfinished Read waits for it.
//!
//! Work requests that are emitted as they are posted, one after the other and into the same transmission, are one slot,
//! a run: they are emitted when they come here, and the transport takes them together, so that they complete together.

use std::collections::VecDeque;

use super::error::Violation;
use super::messages::{Emitted, Emitter, FramingParameters};
use super::mpa::ReadyToReceive;
use super::region::Placement;
use super::rx::Tagged;
use super::tx::TxSink;
use super::work::{Completion, Local, PostError, SendRef, WorkKind, WorkRequest, WorkStatus, WriteRequest};
use crate::ring::Ring;
use crate::use_counter::UseCounter;

#[derive(Debug)]
pub(crate) struct SendQueue<H> {
    slots: Ring<Slot<H>>,
    /// Work requests in the slots.
    outstanding: usize,
    posted: UseCounter,
    depth: usize,
    /// Whether the last slot is a run that may have more.
    run_open: bool,
    /// The sequence number of the first slot; a slot keeps its number while those before it leave.
    first_seq: u64,
    /// The slot that is emitted next or partly emitted, and how far.
    emit_seq: u64,
    emitter: Emitter,
    reads: VecDeque<u64>,
    ord: usize,
    /// Bytes of the oldest outstanding read that are in place.
    read_len: u32,
}

#[derive(Clone, Copy, Debug)]
struct Slot<H> {
    /// Of the last work request, if it is a run.
    wr_id: u64,
    work: Work<H>,
    state: State,
    /// Work requests: several in a run.
    count: u32,
}

impl<H> Slot<H> {
    /// Of a work request that waits.
    fn waiting(wr_id: u64, work: Work<H>) -> Self {
        Self { wr_id, work, state: State::Waiting, count: 1 }
    }
}

/// What a slot that is not used is filled with.
impl<H> Default for Slot<H> {
    fn default() -> Self {
        Self::waiting(0, Work::Ready(ReadyToReceive::Write))
    }
}

#[derive(Clone, Copy, Debug)]
enum Work<H> {
    Posted(WorkRequest<H>),
    /// A run of Sends and Writes that were emitted as they were posted, and the kind of the last one.
    Now(WorkKind),
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

impl<H: Copy> SendQueue<H> {
    pub(crate) fn new(depth: usize, ord: usize) -> Self {
        Self {
            slots: Ring::new(),
            outstanding: 0,
            posted: UseCounter::default(),
            depth,
            run_open: false,
            first_seq: 0,
            emit_seq: 0,
            emitter: Emitter::default(),
            reads: VecDeque::with_capacity(ord.max(1)),
            ord,
            read_len: 0,
        }
    }

    #[inline(always)]
    pub(crate) fn post(&mut self, wr_id: u64, work: WorkRequest<H>) -> Result<(), PostError> {
        if self.outstanding >= self.depth {
            return Err(PostError::Full(self.depth));
        }
        if matches!(work, WorkRequest::Read(_)) && self.ord == 0 {
            return Err(PostError::NoReads);
        }
        if !ranges_fit(&work) {
            return Err(PostError::Range);
        }
        self.push(Slot::waiting(wr_id, Work::Posted(work)));
        Ok(())
    }

    #[inline(always)]
    fn push(&mut self, slot: Slot<H>) {
        if self.posted.reaches_threshold() {
            // One more for the ready-to-receive message.
            self.slots.reserve(self.depth + 1);
        }
        self.append(slot);
    }

    #[inline(always)]
    fn append(&mut self, slot: Slot<H>) {
        self.slots.push(slot);
        self.outstanding += 1;
        self.run_open = false;
    }

    /// Whether what is posted now may be emitted at once: there is room for it, and nothing waits before it.
    #[inline]
    pub(crate) fn is_clear(&self) -> bool {
        self.outstanding < self.depth && place(self.first_seq, self.emit_seq) == Some(self.slots.len())
    }

    /// Posts a Send and emits it, at stream position `position`. Call only when [`Self::is_clear`].
    #[inline(always)]
    pub(crate) fn send_now(
        &mut self,
        wr_id: u64,
        send: &SendRef<'_, H>,
        sink: &mut impl TxSink<H>,
        wire: FramingParameters,
        position: u64,
    ) -> EmittedNow {
        let Emitted { fpdu_len, .. } = self.emitter.send_whole(sink, wire, send);
        self.emitted_now(wr_id, WorkKind::Send, position, fpdu_len)
    }

    /// The same for a Write.
    #[inline(always)]
    pub(crate) fn write_now(
        &mut self,
        wr_id: u64,
        write: &WriteRequest<H>,
        sink: &mut impl TxSink<H>,
        wire: FramingParameters,
        position: u64,
    ) -> EmittedNow {
        let Emitted { fpdu_len, .. } = Emitter::write_whole(sink, wire, write);
        self.emitted_now(wr_id, WorkKind::Write, position, fpdu_len)
    }

    #[inline(always)]
    fn emitted_now(&mut self, wr_id: u64, kind: WorkKind, position: u64, fpdu_len: usize) -> EmittedNow {
        debug_assert!(self.is_clear(), "nothing waits before what is emitted as it is posted");
        let (work, state) = (Work::Now(kind), State::Emitted(position + fpdu_len as u64));
        let joined = match self.slots.last_mut() {
            Some(run) if self.run_open => {
                (run.wr_id, run.work, run.state) = (wr_id, work, state);
                run.count += 1;
                self.outstanding += 1;
                true
            }
            _ => {
                self.push(Slot { wr_id, work, state, count: 1 });
                self.emit_seq += 1;
                self.run_open = true;
                false
            }
        };
        EmittedNow { fpdu_len, joined }
    }

    /// The transport is given what was emitted: what comes from here on is not taken with it.
    #[inline]
    pub(crate) fn end_run(&mut self) {
        self.run_open = false;
    }

    /// Appends a message of the engine's own, which completes in silence.
    pub(crate) fn post_ready(&mut self, ready: ReadyToReceive) {
        self.append(Slot::waiting(0, Work::Ready(ready)));
    }

    /// How many work requests can be posted.
    pub(crate) fn room(&self) -> usize {
        self.depth.saturating_sub(self.outstanding)
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
        self.emitter.emitted > 0
    }

    /// Emits the next FPDU, at stream position `position`, and returns its length in bytes. Call only when
    /// [`Self::can_emit`].
    #[inline]
    pub(crate) fn emit(
        &mut self,
        sink: &mut impl TxSink<H>,
        wire: FramingParameters,
        position: u64,
    ) -> usize {
        let (seq, emitter) = (self.emit_seq, &mut self.emitter);
        let place = place(self.first_seq, seq);
        let Some(slot) = place.and_then(|place| self.slots.get_mut(place)) else { return 0 };
        let Emitted { fpdu_len, last } = match &slot.work {
            Work::Posted(WorkRequest::Send(send)) => emitter.send(sink, wire, &send.borrowed()),
            Work::Posted(WorkRequest::Write(write)) => emitter.write(sink, wire, write),
            Work::Posted(WorkRequest::Read(read)) => emitter.read(sink, wire, read),
            Work::Ready(ready) => emitter.ready(sink, wire, *ready),
            Work::Now(..) => return 0,
        };
        if last {
            self.emit_seq += 1;
            if slot.work.is_read() {
                slot.state = State::Reading;
                self.reads.push_back(seq);
            } else {
                slot.state = State::Emitted(position + fpdu_len as u64);
            }
        }
        fpdu_len
    }

    /// Checks a Read Response against the oldest outstanding read (RFC 5040, section 5.2) and says where it goes;
    /// `None` for the response to a read of the engine's own, which has no bytes.
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

    /// Bytes of the oldest outstanding read that are not in place.
    pub(crate) fn response_missing(&self) -> u32 {
        self.oldest_read().map_or(0, |read| read.len - self.read_len)
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
            // Looked at where it lies: it is larger than its completion.
            let slot = self.slots.get(0)?;
            let status = match slot.state {
                State::Emitted(position) if position <= transmitted => WorkStatus::Done,
                State::Read => WorkStatus::Done,
                _ if flush => WorkStatus::Flushed,
                _ => return None,
            };
            let (wr_id, count) = (slot.wr_id, slot.count);
            let work = match &slot.work {
                Work::Posted(work) => Some((work.kind(), work.local())),
                Work::Now(kind) => Some((*kind, None)),
                Work::Ready(_) => None,
            };
            self.slots.remove_first();
            self.first_seq += 1;
            self.outstanding -= count as usize;
            if let Some((kind, local)) = work {
                return Some(Completion { wr_id, count, kind, local, status });
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
            Work::Posted(_) | Work::Now(..) => None,
        }
    }

    fn slot(&self, seq: u64) -> Option<&Slot<H>> {
        self.slots.get(place(self.first_seq, seq)?)
    }

    fn slot_mut(&mut self, seq: u64) -> Option<&mut Slot<H>> {
        self.slots.get_mut(place(self.first_seq, seq)?)
    }
}

/// A work request that was emitted as it was posted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EmittedNow {
    /// Its only FPDU, in bytes.
    pub(crate) fpdu_len: usize,
    /// Whether it is of one run with the work request before it.
    pub(crate) joined: bool,
}

/// Where the slot of a sequence number is; `None` when it has left.
fn place(first_seq: u64, seq: u64) -> Option<usize> {
    usize::try_from(seq.checked_sub(first_seq)?).ok()
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
