//! What is sent to a client. Reply headers are copied into the send. The data of reads is sent from where the target
//! wrote it.

use std::ops::Range;
use std::{io, mem};

use ringfab_memory::SharedBuffer;
use ringfab_proto::nbd::{CHUNK_HEAD_BYTES, data_chunk, error_chunk, simple_reply};
use ringfab_reactor::SendBatch;

use super::super::export::EXTENTS_MAX;
use super::super::negotiation::greeting;
use super::buffers::BufferQuota;
use super::requests::{Failure, Reason, WINDOW};
use super::transmission::Reply;
use super::{Connection, Phase, ServerContext, kind, part_bytes_max};

/// The longest text of an error.
const TEXT_BYTES_MAX: usize = 256;
/// Room that any reply fits in, without its data.
const REPLY_HEAD_BYTES_MAX: usize = 320;
const _: () = assert!(CHUNK_HEAD_BYTES + 4 + EXTENTS_MAX * 8 <= REPLY_HEAD_BYTES_MAX, "all extents fit");
/// Bytes of one send after which the next waits, so that buffers come back soon.
const BATCH_BYTES: usize = 512 << 10;

/// Copied bytes of one send: heads of replies.
const BATCH_HEAD_BYTES: usize = 16 << 10;
/// Heads and payloads of one send.
const BATCH_PIECES: usize = 256;

/// What is to be sent.
pub(super) struct Outbound {
    /// `None` while a send is in flight.
    pub(super) batch: Option<Box<SendBatch>>,
    /// Buffers of the send in flight.
    buffers: BufferQuota,
    /// Bytes of the handshake.
    pub(super) handshake: Vec<u8>,
}

impl Outbound {
    pub(super) fn new() -> Self {
        Self {
            batch: Some(SendBatch::new(BATCH_HEAD_BYTES, BATCH_PIECES)),
            buffers: BufferQuota::default(),
            handshake: greeting().to_vec(),
        }
    }

    /// Whether all was sent.
    pub(super) fn is_empty(&self) -> bool {
        self.handshake.is_empty() && self.batch.is_some()
    }

    fn push_handshake(&mut self, batch: &mut SendBatch) {
        let length = self.handshake.len().min(BATCH_HEAD_BYTES / 2);
        if length > 0 {
            batch.push_bytes(&self.handshake[..length]);
            self.handshake.drain(..length);
        }
    }

    fn push_data(&mut self, batch: &mut SendBatch, buffer: SharedBuffer, bytes: Range<usize>) {
        self.buffers.add(buffer.len() as u32);
        batch.push_shared(buffer, bytes.start, bytes.len());
    }
}

impl Connection {
    /// Takes the end of a send.
    pub(super) fn on_sent(
        &mut self,
        mut batch: Box<SendBatch>,
        result: &io::Result<u32>,
        context: &mut ServerContext<'_>,
    ) {
        batch.clear();
        self.outbound.batch = Some(batch);
        self.transmission.buffers.put_back_all(mem::take(&mut self.outbound.buffers));
        if let Err(error) = result
            && !matches!(self.phase, Phase::Closed)
        {
            tracing::debug!(connection = self.id.index, %error, "the client is gone");
            self.close(context);
        }
    }

    /// Sends what is ready, if no send is in flight.
    pub(super) fn pump_outbound(&mut self, context: &mut ServerContext<'_>) {
        if matches!(self.phase, Phase::Closed) {
            return;
        }
        let Some(mut batch) = self.outbound.batch.take() else { return };
        self.outbound.push_handshake(&mut batch);
        while batch.has_room(REPLY_HEAD_BYTES_MAX, 2) && batch.bytes() < BATCH_BYTES {
            let Some(reply) = self.transmission.replies.pop_front() else { break };
            match reply {
                Reply::Data { slot, part } => self.push_part(&mut batch, slot, part, context),
                Reply::End { slot } => self.transmission.push_end(&mut batch, slot),
            }
        }
        if batch.is_empty() {
            self.outbound.batch = Some(batch);
            return;
        }
        let token = self.id.token(kind::SEND);
        context.host.reactor().send(self.socket, batch, token);
    }

    fn push_part(&mut self, batch: &mut SendBatch, slot: u16, part: u32, context: &ServerContext<'_>) {
        let structured = self.transmission.structured;
        let Some(export) = self.export(context) else { return };
        let (most, block) = (part_bytes_max(export), export.namespace.block_bytes);
        let entry = self.transmission.requests.get(slot);
        let ordered = entry.is_ordered(structured);
        let index = part as usize % WINDOW;
        let Some(buffer) = entry.parts[index].take() else { return };
        entry.busy &= !(1 << index);
        // The client gets no more of the first and the last block than it has asked for.
        let (start, offset, bytes) = entry.asked(part, most, block);
        let first = entry.sent == 0;
        entry.sent += bytes;
        let request = entry.request;
        let last = entry.sent == request.length;
        if !ordered {
            batch.push_bytes(&data_chunk(request.cookie, offset, bytes, last));
        } else if first && structured {
            batch.push_bytes(&data_chunk(request.cookie, request.offset, request.length, true));
        } else if first {
            batch.push_bytes(&simple_reply(None, request.cookie));
        }
        self.outbound.push_data(batch, buffer, start as usize..(start + bytes) as usize);
        if last {
            self.transmission.requests.remove(slot);
        }
    }
}

pub(super) fn push_error(batch: &mut SendBatch, cookie: u64, failure: Failure) {
    // Errors are rare, so this text may be made on the heap.
    let text = match failure.reason {
        Reason::Text(text) => text.to_owned(),
        Reason::Io(error) => error.to_string(),
    };
    let mut length = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(length) {
        length -= 1;
    }
    batch.push_bytes(&error_chunk(cookie, failure.errno, length as u16));
    batch.push_bytes(&text.as_bytes()[..length]);
}
