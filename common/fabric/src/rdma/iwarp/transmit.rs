//! The transmit loop of a queue pair. One batch is in flight; what is posted meanwhile goes out in the next one, so that
//! many small messages share a send.

use std::io;

use ringfab_memory::Lease;
use ringfab_proto::iwarp::{self as proto, Inline, Local, TxSink, WorkKind, WorkRequest, WorkStatus, crc};
use ringfab_reactor::{Reactor, SendBatch};

use super::capture::Tap;
use super::connection::{Connection, Phase};
use super::regions::{ExposedMemory, Handle};
use super::shared::Shared;
use super::work::{Entry, WorkTable};
use crate::rdma::{Event, PostError, SendRequest, Slice, Work};

/// A batch ends with the FPDU that reaches this many bytes.
const BATCH_BYTES: usize = 1 << 20;

/// Payloads up to this size are copied into the batch: cheaper than a piece of their own.
const COPY_BYTES_MAX: usize = 256;

/// What one FPDU may add to the copied part of a batch: front, a small payload, trailer. The front is a header and an
/// inline capsule, or a Terminate with the headers that it quotes.
const FPDU_HEAD_BYTES_MAX: usize = 512;

/// Pieces that one FPDU may add: front, payload, trailer.
const FPDU_PIECES_MAX: usize = 3;

/// Puts what the engine emits into a batch.
struct Sink<'a> {
    batch: &'a mut SendBatch,
    work: &'a WorkTable,
    memory: &'a ExposedMemory,
    tap: Option<&'a mut Tap>,
}

impl Sink<'_> {
    fn lease(&self, handle: Handle, offset: u64) -> (&Lease, usize) {
        let found = self.memory.resolve(self.work, handle, offset);
        found.expect("the engine emits only memory that it has just checked, or of outstanding work")
    }
}

impl TxSink<Handle> for Sink<'_> {
    #[inline]
    fn has_room(&self) -> bool {
        self.batch.has_room(FPDU_HEAD_BYTES_MAX, FPDU_PIECES_MAX)
    }

    #[inline]
    fn bytes(&mut self, bytes: &[u8]) {
        self.batch.push_bytes(bytes);
        if let Some(tap) = &mut self.tap {
            tap.sent(bytes);
        }
    }

    #[inline]
    fn payload(&mut self, handle: Handle, offset: u64, len: usize) {
        let found = self.memory.resolve(self.work, handle, offset);
        let (lease, start) = found.expect("as for a checksum");
        if len <= COPY_BYTES_MAX {
            self.batch.push_with(len, |room| lease.read_at(start, room));
        } else {
            self.batch.push_lease(lease.clone(), start, len);
        }
        if let Some(tap) = &mut self.tap {
            lease.with_bytes(start..start + len, |bytes| tap.sent(bytes));
        }
    }

    #[inline]
    fn crc(&mut self, handle: Handle, offset: u64, len: usize, state: u32) -> u32 {
        let (lease, start) = self.lease(handle, offset);
        lease.with_bytes(start..start + len, |bytes| crc::update(state, bytes))
    }
}

impl Connection {
    /// Takes a work request.
    #[inline]
    pub(super) fn post(&mut self, shared: &mut Shared, request: SendRequest) -> Result<(), PostError> {
        let Some(engine) = self.engine.as_mut().filter(|_| self.phase == Phase::Established) else {
            return Err(PostError::Ended(Box::new(request)));
        };
        if self.work.is_full() {
            return Err(PostError::Full(Box::new(request)));
        }
        let work = describe(&request.work, self.work.slot_next());
        if let Err(error) = engine.post(request.id, work) {
            return Err(post_error(error, request));
        }
        let SendRequest { id, work, signaled } = request;
        self.work.push(Entry { id, signaled, lease: lease_of(work) });
        self.mark_dirty(shared);
        Ok(())
    }

    /// Sends what there is to send, unless a batch is in flight already.
    #[inline]
    pub(super) fn transmit(&mut self, shared: &mut Shared, reactor: &mut Reactor) {
        if self.sending || self.send_failed.is_some() || self.socket.is_none() {
            return;
        }
        let Some(engine) = self.engine.as_mut().filter(|engine| engine.wants_transmit()) else { return };
        let mut batch = shared.take_batch();
        let mut sink = Sink {
            batch: &mut batch,
            work: &self.work,
            memory: &shared.regions.memory,
            tap: self.tap.as_deref_mut(),
        };
        let bytes = engine.transmit(&shared.regions.table, &mut sink, BATCH_BYTES);
        let error = engine.error().filter(|_| self.is_streaming());
        if bytes > 0 {
            self.send(shared, reactor, batch, bytes);
        } else {
            shared.give_batch(batch);
        }
        if let Some(error) = error {
            self.on_engine_error(shared, reactor, error);
        }
    }

    /// A batch was sent, or could not be.
    pub(super) fn on_sent(
        &mut self,
        shared: &mut Shared,
        reactor: &mut Reactor,
        batch: Box<SendBatch>,
        result: io::Result<u32>,
    ) {
        self.sending = false;
        let bytes = std::mem::take(&mut self.engine_bytes);
        shared.give_batch(batch);
        match (self.phase, result) {
            (Phase::Closing, _) => self.try_finish(shared, reactor),
            (_, Err(error)) => self.on_send_failed(shared, reactor, &error),
            (Phase::Replying, Ok(_)) => {
                if let Some((negotiated, private_data)) = self.reply.take() {
                    self.establish(shared, reactor, negotiated, private_data);
                }
            }
            (_, Ok(_)) => {
                if let Some(engine) = &mut self.engine {
                    engine.transmitted(bytes);
                }
                self.collect(shared);
                self.mark_dirty(shared);
                self.check_drained(shared, reactor);
            }
        }
    }

    /// Turns the engine's completions into events.
    #[inline]
    pub(super) fn collect(&mut self, shared: &mut Shared) {
        let queue_pair = self.id();
        let Some(engine) = &mut self.engine else { return };
        while let Some(completion) = engine.poll_completion() {
            let Entry { id, signaled, lease } = self.work.pop();
            let is_read = completion.kind == WorkKind::Read;
            let sink = lease.filter(|_| is_read).map(|lease| {
                lease.into_unique().expect("no receive into the sink of an ended READ is in flight")
            });
            let event = match (completion.status, sink) {
                (WorkStatus::Done, Some(sink)) => Event::Read { queue_pair, id, sink },
                (WorkStatus::Done, None) if signaled => Event::Sent { queue_pair, id },
                (WorkStatus::Done, None) => continue,
                (WorkStatus::Flushed, sink) => Event::Flushed { queue_pair, id, sink },
            };
            shared.events.push_back(event);
        }
    }
}

/// A work request in the engine's terms.
#[inline]
fn describe(work: &Work, slot: u32) -> WorkRequest<Handle> {
    let local = |offset: u32, len: u32| Local { handle: Handle::Work(slot), offset: u64::from(offset), len };
    let range = |slice: &Slice| {
        let end = slice.offset as usize + slice.length as usize;
        assert!(end <= slice.lease.len(), "a slice lies within its lease");
        local(slice.offset, slice.length)
    };
    match work {
        Work::Send { head, data, invalidate, solicited } => WorkRequest::Send(proto::SendRequest {
            inline: Inline::new(head.as_slice()).expect("the engine's limit is the larger one"),
            payload: data.as_ref().map(range),
            invalidate: *invalidate,
            solicited: *solicited,
        }),
        Work::Write { source, remote_key, remote_address } => WorkRequest::Write(proto::WriteRequest {
            stag: *remote_key,
            to: *remote_address,
            payload: range(source),
        }),
        Work::Read { sink, length, remote_key, remote_address } => {
            assert!(*length as usize <= sink.len(), "a sink holds what is read into it");
            WorkRequest::Read(proto::ReadRequest {
                stag: *remote_key,
                to: *remote_address,
                // The response is placed by the work request and only has to name it in turn: this is no key of a region,
                // and a peer that writes to it by other means is refused.
                sink_stag: slot + 1,
                sink_to: 0,
                sink: local(0, *length),
            })
        }
    }
}

fn lease_of(work: Work) -> Option<Lease> {
    match work {
        Work::Send { data, .. } => data.map(|slice| slice.lease),
        Work::Write { source, .. } => Some(source.lease),
        Work::Read { sink, .. } => Some(sink.share()),
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
