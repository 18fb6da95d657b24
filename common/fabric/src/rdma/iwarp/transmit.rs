//! What is sent on a queue pair, and what comes of it.

use std::mem;

use ringfab_memory::SharedBuffer;
use ringfab_proto::iwarp::{
    self as proto, Engine, Local, SendRef, TxSink, WorkKind, WorkRequest, WorkStatus, crc,
};

use super::capture::Tap;
use super::queue_pair::{Core, QueuePair};
use super::regions::{ExposedMemory, Handle};
use super::work::{Entry, WorkTable};
use crate::rdma::{Capsule, Inline, PostError, RnicEvent, SendRequest, Slice, Work};
use crate::stream::{Gather, Shared};

/// What an FPDU may have around its payload, front and trailer. The front is a header and an inline capsule, or a
/// Terminate with the headers that it quotes.
const FPDU_HEAD_BYTES_MAX: usize = 256;

/// Finds the memory of what the engine emits.
struct Sink<'a, 'b> {
    gather: &'a mut Gather<'b>,
    work: &'a WorkTable,
    memory: &'a ExposedMemory,
    tap: Option<&'a mut Tap>,
}

/// What the engine emits has memory.
const RESOLVED: &str = "the engine emits only memory that it has just checked, or of outstanding work";

impl TxSink<Handle> for Sink<'_, '_> {
    #[inline]
    fn has_room(&self) -> bool {
        self.gather.fits(FPDU_HEAD_BYTES_MAX)
    }

    #[inline(always)]
    fn room(&mut self, len: usize) -> &mut [u8] {
        self.gather.room(len)
    }

    #[inline(always)]
    fn filled(&mut self, len: usize) {
        if let Some(tap) = &mut self.tap {
            tap.sent(self.gather.copied_last(len));
        }
    }

    #[inline]
    fn payload(&mut self, handle: Handle, offset: u64, len: usize) {
        let (shared_buffer, start) = self.memory.resolve(self.work, handle, offset).expect(RESOLVED);
        self.gather.push_shared(shared_buffer.clone(), start, len);
        if let Some(tap) = &mut self.tap {
            shared_buffer.with_bytes(start..start + len, |bytes| tap.sent(bytes));
        }
    }

    #[inline]
    fn crc(&mut self, handle: Handle, offset: u64, len: usize, state: u32) -> u32 {
        let (shared_buffer, start) = self.memory.resolve(self.work, handle, offset).expect(RESOLVED);
        shared_buffer.with_bytes(start..start + len, |bytes| crc::update(state, bytes))
    }
}

/// Takes what is emitted as it is posted.
struct SinkNow<'a, 'b> {
    gather: &'a mut Gather<'b>,
    /// The memory behind the payload, which goes into the batch.
    shared_buffer: Option<SharedBuffer>,
    tap: Option<&'a mut Tap>,
}

impl TxSink<Handle> for SinkNow<'_, '_> {
    #[inline(always)]
    fn room(&mut self, len: usize) -> &mut [u8] {
        self.gather.room(len)
    }

    #[inline(always)]
    fn filled(&mut self, len: usize) {
        if let Some(tap) = &mut self.tap {
            tap.sent(self.gather.copied_last(len));
        }
    }

    #[inline(always)]
    fn payload(&mut self, _: Handle, offset: u64, len: usize) {
        let (shared_buffer, start) = (self.shared_buffer.take().expect(POSTED), offset as usize);
        if let Some(tap) = &mut self.tap {
            shared_buffer.with_bytes(start..start + len, |bytes| tap.sent(bytes));
        }
        self.gather.push_shared(shared_buffer, start, len);
    }

    #[inline]
    fn crc(&mut self, _: Handle, offset: u64, len: usize, state: u32) -> u32 {
        let (shared_buffer, start) = (self.shared_buffer.as_ref().expect(POSTED), offset as usize);
        shared_buffer.with_bytes(start..start + len, |bytes| crc::update(state, bytes))
    }
}

/// What is emitted as it is posted has one payload at most.
const POSTED: &str = "the memory of what is posted comes with it";

impl QueuePair {
    /// Takes a work request, and gathers its message at once if it can be next. This and all on the way here is inlined
    /// into who posts: there the kind of work is known, so that none of it is moved.
    #[inline(always)]
    pub(super) fn post(&mut self, gather: &mut Gather<'_>, request: SendRequest) -> Result<(), PostError> {
        let Some(engine) = &mut self.engine else { return Err(PostError::Ended(Box::new(request))) };
        if self.work.is_full() {
            return Err(PostError::Full(Box::new(request)));
        }
        if gather.fits(FPDU_HEAD_BYTES_MAX) && goes_now(engine, &request.work) {
            self.post_now(gather, request);
            return Ok(());
        }
        let work = describe(&request.work, self.work.slot_next());
        if let Err(error) = engine.post(request.id, work) {
            return Err(post_error(error, request));
        }
        let SendRequest { id, work, signaled } = request;
        let shared_buffer = self.work.push(id, signaled);
        match work {
            Work::Send { data: None, .. } => {}
            Work::Send { data: Some(slice), .. } | Work::Write { source: slice, .. } => {
                *shared_buffer = Some(slice.shared_buffer);
            }
            Work::Read { sink, .. } => *shared_buffer = Some(sink.share()),
        }
        Ok(())
    }

    /// The same for a capsule, which is not moved at all if it can be next.
    #[inline(always)]
    pub(super) fn post_capsule(
        &mut self,
        gather: &mut Gather<'_>,
        capsule: Capsule<'_>,
    ) -> Result<(), PostError> {
        assert!(capsule.head.len() <= Inline::LEN_MAX, "a capsule's head is small");
        let data_len = capsule.data.as_ref().map_or(0, |slice| slice.length);
        let len = capsule.head.len() as u64 + u64::from(data_len);
        let possible = self.engine.as_ref().is_some_and(|engine| engine.sends_now(len));
        if !possible || self.work.is_full() || !gather.fits(FPDU_HEAD_BYTES_MAX) {
            return self.post_copied(gather, capsule);
        }
        self.send_now(gather, capsule, false);
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn post_copied(&mut self, gather: &mut Gather<'_>, capsule: Capsule<'_>) -> Result<(), PostError> {
        self.post(gather, capsule.into())
    }

    /// Takes a work request of which [`goes_now`] holds, and gathers its message.
    #[inline(always)]
    fn post_now(&mut self, gather: &mut Gather<'_>, request: SendRequest) {
        let SendRequest { id, work, signaled } = request;
        match work {
            Work::Send { head, data, invalidate, solicited } => {
                let capsule = Capsule { id, head: head.as_slice(), data, invalidate, signaled };
                self.send_now(gather, capsule, solicited);
            }
            Work::Write { source, remote_key, remote_address } => {
                let Some(engine) = &mut self.engine else { return };
                let payload = local(self.work.slot_next(), &source);
                let write = proto::WriteRequest { stag: remote_key, to: remote_address, payload };
                let (shared_buffer, tap) = (Some(source.shared_buffer), self.tap.as_deref_mut());
                let joined = engine.write_now(id, &write, &mut SinkNow { gather, shared_buffer, tap });
                self.work.add(id, signaled, joined);
            }
            Work::Read { .. } => unreachable!("a READ waits for its turn"),
        }
    }

    /// Gathers a SEND that can be next.
    #[inline(always)]
    fn send_now(&mut self, gather: &mut Gather<'_>, capsule: Capsule<'_>, solicited: bool) {
        let Some(engine) = &mut self.engine else { return };
        let Capsule { id, head: inline, data, invalidate, signaled } = capsule;
        let payload = data.as_ref().map(|slice| local(self.work.slot_next(), slice));
        let send = SendRef { inline, payload, invalidate, solicited };
        let (shared_buffer, tap) = (data.map(|slice| slice.shared_buffer), self.tap.as_deref_mut());
        let joined = engine.send_now(id, &send, &mut SinkNow { gather, shared_buffer, tap });
        self.work.add(id, signaled, joined);
    }

    /// Gathers what there is to send; returns how many bytes are the engine's.
    #[inline]
    pub(super) fn emit(&mut self, core: &Core, gather: &mut Gather<'_>) -> usize {
        let tap = self.tap.as_deref_mut();
        let mut sink = Sink { gather, work: &self.work, memory: &core.regions.memory, tap };
        if let Some(engine) = &mut self.engine {
            return engine.transmit(&core.regions.table, &mut sink);
        }
        if let Some(frame) = self.opening.as_mut().and_then(|opening| opening.take_frame()) {
            sink.room(frame.len()).copy_from_slice(&frame);
            sink.filled(frame.len());
        }
        0
    }

    /// Turns the engine's completions into events.
    #[inline]
    pub(super) fn collect(&mut self, shared: &mut Shared<Self>) {
        let queue_pair = self.id();
        let Some(engine) = &mut self.engine else { return };
        while let Some(completion) = engine.poll_completion() {
            let Entry { id, signaled, count, shared_buffer } = self.work.pop();
            let sink = shared_buffer.filter(|_| completion.kind == WorkKind::Read).map(|shared_buffer| {
                shared_buffer.into_unique().expect("no receive into the sink of an ended READ is in flight")
            });
            // Each kind is pushed on its own: one value for all of them would be as large as the largest, and moved.
            match (completion.status, sink) {
                (WorkStatus::Done, Some(sink)) => {
                    shared.events.push_with(|| RnicEvent::Read { queue_pair, id, sink });
                }
                (WorkStatus::Done, None) => {
                    self.untold += count;
                    if signaled {
                        let count = mem::take(&mut self.untold);
                        shared.events.push_with(|| RnicEvent::Sent { queue_pair, id, count });
                    }
                }
                (WorkStatus::Flushed, sink) => {
                    shared.events.push_with(|| RnicEvent::Flushed { queue_pair, id, sink });
                }
            }
        }
    }
}

/// Whether the engine emits it as it is posted. The memory of a READ is not sent: it stays with the work request.
#[inline(always)]
fn goes_now(engine: &Engine<Handle>, work: &Work) -> bool {
    match work {
        Work::Send { head, data, .. } => {
            let data_len = data.as_ref().map_or(0, |slice| slice.length);
            engine.sends_now(head.as_slice().len() as u64 + u64::from(data_len))
        }
        Work::Write { source, remote_address, .. } => engine.writes_now(*remote_address, source.length),
        Work::Read { .. } => false,
    }
}

/// The memory of the work request in a slot, in the engine's terms.
#[inline(always)]
fn local(slot: u32, slice: &Slice) -> Local<Handle> {
    assert!(slice.end() <= slice.shared_buffer.len(), "a slice lies within its shared_buffer");
    Local { handle: Handle::Work(slot), offset: u64::from(slice.offset), len: slice.length }
}

/// A work request in the engine's terms.
#[inline(always)]
fn describe(work: &Work, slot: u32) -> WorkRequest<Handle> {
    match work {
        Work::Send { head, data, invalidate, solicited } => WorkRequest::Send(proto::SendRequest {
            inline: *head,
            payload: data.as_ref().map(|slice| local(slot, slice)),
            invalidate: *invalidate,
            solicited: *solicited,
        }),
        Work::Write { source, remote_key, remote_address } => WorkRequest::Write(proto::WriteRequest {
            stag: *remote_key,
            to: *remote_address,
            payload: local(slot, source),
        }),
        Work::Read { sink, length, remote_key, remote_address } => {
            assert!(*length as usize <= sink.len(), "a sink holds what is read into it");
            WorkRequest::Read(proto::ReadRequest {
                stag: *remote_key,
                to: *remote_address,
                // The response is placed by the work request and only has to name it in turn: this is not a key of a
                // region, and a peer that writes to it by other means is refused.
                sink_stag: slot + 1,
                sink_to: 0,
                sink: Local { handle: Handle::Work(slot), offset: 0, len: *length },
            })
        }
    }
}

#[cold]
fn post_error(error: proto::PostError, request: SendRequest) -> PostError {
    let request = Box::new(request);
    match error {
        proto::PostError::Full(_) => PostError::Full(request),
        proto::PostError::Ended => PostError::Ended(request),
        proto::PostError::NoReads => PostError::NoReads(request),
        proto::PostError::Range => PostError::Range(request),
    }
}
