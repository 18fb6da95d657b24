//! The transmit loop of a connection. One batch is in flight; what is given meanwhile goes out in the next one, so that many
//! small PDUs share a send.

use std::io;

use ringfab_memory::{Buffer, Lease};
use ringfab_proto::tcp::{CommandData, Source, TxSink, crc};
use ringfab_reactor::{Reactor, SendBatch};
use ringfab_spec::{CompletionEntry, SubmissionEntry};

use super::Event;
use super::connection::{Connection, Phase};
use super::shared::{COPY_BYTES_MAX, PDU_HEAD_BYTES_MAX, PDU_PIECES_MAX, Shared};
use crate::rdma::Slice;

/// A batch ends with the PDU that reaches this many bytes.
const BATCH_BYTES: usize = 1 << 20;

/// The connection has ended or is ending, which its last event says; nothing was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the connection has ended")]
pub struct Ended;

/// The data of a command of ours.
#[derive(Debug)]
pub enum SubmitData {
    /// It has none.
    None,
    /// They travel in its capsule.
    Capsule(Slice),
    /// The controller asks for them.
    ToController(Slice),
    /// The controller sends them here.
    ToHost(Slice),
}

/// Puts what the engine emits into a batch.
struct Sink<'a>(&'a mut SendBatch);

impl TxSink<Lease> for Sink<'_> {
    #[inline]
    fn has_room(&self) -> bool {
        self.0.has_room(PDU_HEAD_BYTES_MAX, PDU_PIECES_MAX)
    }

    #[inline]
    fn bytes(&mut self, bytes: &[u8]) {
        self.0.push_bytes(bytes);
    }

    #[inline]
    fn payload(&mut self, lease: &Lease, offset: u32, length: u32) {
        let (offset, length) = (offset as usize, length as usize);
        if length <= COPY_BYTES_MAX {
            self.0.push_with(length, |room| lease.read_at(offset, room));
        } else {
            self.0.push_lease(lease.clone(), offset, length);
        }
    }

    #[inline]
    fn crc(&mut self, lease: &Lease, offset: u32, length: u32, state: u32) -> u32 {
        let range = offset as usize..(offset + length) as usize;
        lease.with_bytes(range, |bytes| crc::update(state, bytes))
    }
}

impl Connection {
    fn is_open(&self) -> Result<(), Ended> {
        if self.phase == Phase::Established { Ok(()) } else { Err(Ended) }
    }

    pub(super) fn submit(
        &mut self,
        shared: &mut Shared,
        sqe: SubmissionEntry,
        data: SubmitData,
    ) -> Result<(), Ended> {
        self.is_open()?;
        let data = match data {
            SubmitData::None => CommandData::None,
            SubmitData::Capsule(slice) => CommandData::Capsule(source(slice)),
            SubmitData::ToController(slice) => CommandData::ToController(source(slice)),
            SubmitData::ToHost(slice) => CommandData::ToHost(source(slice)),
        };
        self.engine.submit(sqe, data).map_err(|_| Ended)?;
        self.mark_dirty(shared);
        Ok(())
    }

    pub(super) fn request_data(
        &mut self,
        shared: &mut Shared,
        (cid, length): (u16, u32),
        pieces: impl Iterator<Item = (u64, Buffer)>,
    ) -> Result<(), Ended> {
        self.is_open()?;
        let tag = self.engine.request(cid, 0, length).ok_or(Ended)?;
        self.transfers.begin(tag, pieces);
        self.mark_dirty(shared);
        Ok(())
    }

    pub(super) fn send_data(
        &mut self,
        shared: &mut Shared,
        (cid, offset): (u16, u32),
        slice: Slice,
        last: bool,
        success: Option<u64>,
    ) -> Result<(), Ended> {
        self.is_open()?;
        self.engine.send_data(cid, offset, source(slice), last, success);
        self.mark_dirty(shared);
        Ok(())
    }

    pub(super) fn respond(
        &mut self,
        shared: &mut Shared,
        cqe: CompletionEntry,
        id: u64,
    ) -> Result<(), Ended> {
        self.is_open()?;
        self.engine.respond(cqe, id);
        self.mark_dirty(shared);
        Ok(())
    }

    /// Sends what there is to send, unless a batch is in flight already.
    #[inline]
    pub(super) fn transmit(&mut self, shared: &mut Shared, reactor: &mut Reactor) {
        if self.sending
            || self.send_failed.is_some()
            || self.socket.is_none()
            || !self.engine.wants_transmit()
        {
            return;
        }
        let mut batch = shared.take_batch();
        let bytes = self.engine.transmit(&mut Sink(&mut batch), BATCH_BYTES);
        shared.counters.sent_bytes += bytes as u64;
        self.send(shared, reactor, batch);
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
        shared.give_batch(batch);
        match (self.phase, result) {
            (Phase::Closing, _) => self.try_finish(shared, reactor),
            (_, Err(error)) => self.on_send_failed(shared, reactor, &error),
            (_, Ok(_)) => {
                let connection = self.id();
                for id in self.engine.transmitted() {
                    shared.events.push_back(Event::Sent { connection, id });
                }
                self.mark_dirty(shared);
                self.check_drained(shared, reactor);
            }
        }
    }
}

fn source(slice: Slice) -> Source<Lease> {
    let Slice { lease, offset, length } = slice;
    assert!(offset as usize + length as usize <= lease.len(), "a slice lies within its lease");
    Source { handle: lease, offset, length }
}
