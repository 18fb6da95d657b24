//! What is sent to a client. Reply headers are copied into the send. The data of reads is sent from where the target
//! wrote it.

use std::io;

use ringfab_memory::SharedBuffer;
use ringfab_reactor::SendBatch;

use super::super::wire::{Command, data_chunk, error_chunk, none_chunk, simple_reply};
use super::requests::{Entry, Failure, Reason, WINDOW};
use super::{Connection, Phase, Ready, SMALL_BYTES, Shared, kind, part_bytes_max};

/// The longest text of an error.
const TEXT_BYTES_MAX: usize = 256;
/// Room that any reply fits in, without its data.
const REPLY_HEAD_BYTES_MAX: usize = 320;
/// Bytes of one send after which the next waits, so that buffers come back soon.
const BATCH_BYTES: usize = 512 << 10;

impl Connection {
    /// Takes the end of a send.
    pub(super) fn on_sent(
        &mut self,
        mut batch: Box<SendBatch>,
        result: &io::Result<u32>,
        shared: &mut Shared<'_>,
    ) {
        batch.clear();
        self.batch = Some(batch);
        self.small_out -= std::mem::take(&mut self.batch_small);
        self.large_out -= std::mem::take(&mut self.batch_large);
        if let Err(error) = result
            && !matches!(self.phase, Phase::Closed)
        {
            tracing::debug!(connection = self.index, %error, "the client is gone");
            self.close(shared);
        }
    }

    /// Sends what is ready, if no send is in flight.
    pub(super) fn pump_outbound(&mut self, shared: &mut Shared<'_>) {
        if matches!(self.phase, Phase::Closed) {
            return;
        }
        let Some(mut batch) = self.batch.take() else { return };
        self.push_handshake(&mut batch);
        while batch.has_room(REPLY_HEAD_BYTES_MAX, 2) && batch.bytes() < BATCH_BYTES {
            let Some(ready) = self.ready.pop_front() else { break };
            match ready {
                Ready::Part { slot, part } => self.push_part(&mut batch, slot, part, shared),
                Ready::End { slot } => self.push_end(&mut batch, slot),
            }
        }
        if batch.is_empty() {
            self.batch = Some(batch);
            return;
        }
        let token = self.token(kind::SEND);
        shared.host.reactor().send(self.socket, batch, token);
    }

    fn push_handshake(&mut self, batch: &mut SendBatch) {
        let length = self.handshake.len().min(super::BATCH_HEAD_BYTES / 2);
        if length > 0 {
            batch.push_bytes(&self.handshake[..length]);
            self.handshake.drain(..length);
        }
    }

    fn push_part(&mut self, batch: &mut SendBatch, slot: u16, part: u32, shared: &Shared<'_>) {
        let ordered = self.is_ordered(slot);
        let structured = self.structured;
        let Some(most) = self.export(shared).map(part_bytes_max) else { return };
        let entry = self.requests.get(slot);
        let index = part as usize % WINDOW;
        let Some(shared_buffer) = entry.parts[index].take() else { return };
        entry.busy &= !(1 << index);
        let bytes = shared_buffer.len() as u32;
        let first = entry.sent == 0;
        entry.sent += bytes;
        let request = entry.request;
        let last = entry.sent == request.length;
        if !ordered {
            let offset = request.offset + u64::from(part) * u64::from(most);
            batch.push_bytes(&data_chunk(request.cookie, offset, bytes, last));
        } else if first && structured {
            batch.push_bytes(&data_chunk(request.cookie, request.offset, request.length, true));
        } else if first {
            batch.push_bytes(&simple_reply(None, request.cookie));
        }
        self.push_data(batch, shared_buffer, bytes);
        if last {
            self.requests.remove(slot);
        }
    }

    fn push_data(&mut self, batch: &mut SendBatch, shared_buffer: SharedBuffer, bytes: u32) {
        batch.push_shared(shared_buffer, 0, bytes as usize);
        if bytes <= SMALL_BYTES {
            self.batch_small += 1;
        } else {
            self.batch_large += 1;
        }
    }

    fn push_end(&mut self, batch: &mut SendBatch, slot: u16) {
        let Entry { request, failure, .. } = self.requests.remove(slot);
        match failure {
            Some(failure) if self.structured => push_error(batch, request.cookie, failure),
            None if self.structured && request.command == Command::Read => {
                batch.push_bytes(&none_chunk(request.cookie));
            }
            failure => {
                let error = failure.map(|failure| failure.errno);
                batch.push_bytes(&simple_reply(error, request.cookie));
            }
        }
    }
}

fn push_error(batch: &mut SendBatch, cookie: u64, failure: Failure) {
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
