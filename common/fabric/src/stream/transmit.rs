//! The transmit loop of a stream. One batch is in flight. Messages that are posted meanwhile go into the next batch, so
//! many small messages share a send.

use std::io;

use ringfab_memory::SharedBuffer;
use ringfab_reactor::{Reactor, SendBatch};

use super::life::{Phase, Stream};
use super::{DisconnectReason, Protocol, Shared, kind};

/// A batch ends with the message that reaches this many bytes.
const BATCH_BYTES: usize = 1 << 20;

/// Payloads up to this size, a small block, are copied into the batch: cheaper than a piece of their own, for which the
/// kernel begins two more copies.
const COPY_BYTES_MAX: usize = 512;

/// Pieces that one message may add: header, payload, trailer.
const MESSAGE_PIECES_MAX: usize = 3;

/// Takes the pieces of what is to be sent, in the order of the stream.
#[derive(Debug)]
pub(crate) struct Gather<'a>(&'a mut SendBatch);

impl Gather<'_> {
    /// Whether there is room for a message: a payload, and so many bytes around it.
    #[inline]
    pub(crate) fn fits(&self, head_bytes: usize) -> bool {
        self.0.bytes() < BATCH_BYTES && self.0.has_room(head_bytes + COPY_BYTES_MAX, MESSAGE_PIECES_MAX)
    }

    /// Copies a header or a trailer.
    #[inline(always)]
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.0.push_bytes(bytes);
    }

    /// Room for a header or a trailer, to be filled in at once.
    #[inline(always)]
    pub(crate) fn room(&mut self, length: usize) -> &mut [u8] {
        self.0.push_room(length)
    }

    /// The last bytes that were copied, behind the last payload that was not.
    pub(crate) fn copied_last(&self, length: usize) -> &[u8] {
        self.0.copied_last(length)
    }

    /// Takes a payload from where it lies, or a copy of a small one.
    #[inline]
    pub(crate) fn push_shared(&mut self, shared_buffer: SharedBuffer, offset: usize, length: usize) {
        if length <= COPY_BYTES_MAX {
            shared_buffer.read_at(offset, self.0.push_room(length));
        } else {
            self.0.push_shared(shared_buffer, offset, length);
        }
    }
}

impl<P: Protocol> Stream<P> {
    /// The protocol, which is about to be given something, and the batch that is sent next.
    #[inline]
    pub(super) fn get_to_send(&mut self, shared: &mut Shared<P>) -> (&mut P, Gather<'_>) {
        self.enlist(shared);
        let batch = self.batch.get_or_insert_with(|| shared.take_batch());
        (&mut self.protocol, Gather(batch))
    }

    /// Puts the stream on the list that the next flush visits, if a flush could do something for it.
    #[inline]
    pub(super) fn mark_dirty(&mut self, shared: &mut Shared<P>) {
        if self.protocol.wants_transmit() && self.wire.carries_protocol() && self.wire.socket.is_some() {
            self.enlist(shared);
        }
    }

    /// Has the next flush visit it, unless what is in flight brings that about.
    #[inline]
    fn enlist(&mut self, shared: &mut Shared<P>) {
        if !self.dirty && !self.sending {
            self.dirty = true;
            shared.dirty.push_back(self.key);
        }
    }

    /// Sends what there is to send, unless a batch is in flight already.
    #[inline]
    pub(super) fn transmit(&mut self, shared: &mut Shared<P>, reactor: &mut Reactor) {
        self.dirty = false;
        if self.wire.socket.is_none() || self.sending || self.send_failed.is_some() {
            return;
        }
        if !(self.protocol.wants_transmit() && self.wire.carries_protocol()) {
            // It took nothing of what it was given: no idle stream keeps a batch.
            if let Some(batch) = self.batch.take() {
                shared.give_batch(batch);
            }
            return;
        }
        let mut batch = self.batch.take().unwrap_or_else(|| shared.take_batch());
        self.transmitted = self.protocol.transmit(shared, reactor, &mut Gather(&mut batch));
        if batch.is_empty() {
            shared.give_batch(batch);
        } else {
            shared.counters.sent_bytes += batch.bytes() as u64;
            shared.counters.sent_copied_bytes += batch.copied_bytes() as u64;
            self.send(shared, reactor, batch);
        }
        if self.phase.is_streaming()
            && let Some(fault) = self.protocol.fault()
        {
            self.on_fault(shared, reactor, fault);
        }
    }

    /// Puts a batch in flight.
    #[inline]
    pub(super) fn send(&mut self, shared: &mut Shared<P>, reactor: &mut Reactor, batch: Box<SendBatch>) {
        self.sending = true;
        let token = shared.token(kind::SEND, self.key);
        self.wire.send(shared, reactor, batch, token);
    }

    /// A batch was sent, or could not be.
    pub(super) fn on_sent(
        &mut self,
        shared: &mut Shared<P>,
        reactor: &mut Reactor,
        batch: Box<SendBatch>,
        result: io::Result<u32>,
    ) {
        self.sending = false;
        shared.give_batch(batch);
        match (self.phase, result) {
            (Phase::Closing, _) => self.try_finish(shared, reactor),
            (Phase::Securing, Ok(_)) => self.secure(shared, reactor),
            (Phase::Securing, Err(error)) => {
                self.fail_tls(shared, reactor, DisconnectReason::of(&error));
            }
            (_, Err(error)) => self.on_send_failed(shared, reactor, &error),
            (_, Ok(_)) => {
                self.protocol.transmitted(shared, self.transmitted);
                if self.check_established(shared, reactor) {
                    // Nothing was received before the peer had our answer.
                    return self.pump(shared, reactor);
                }
                self.mark_dirty(shared);
                self.check_drained(shared, reactor);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ringfab_memory::{ClassLayout, Pool};

    use super::*;

    #[test]
    fn a_batch_takes_messages_up_to_the_one_that_reaches_its_limit() {
        const BUFFER_BYTES: usize = 128 << 10;
        let pool = Pool::new(&[ClassLayout { buffer_bytes: BUFFER_BYTES, count: 1 }]).expect("a pool");
        let shared_buffer = pool.take(BUFFER_BYTES).expect("a buffer").share();
        let mut batch = SendBatch::new(8192, 64);
        let mut gather = Gather(&mut batch);
        for _ in 1..BATCH_BYTES / BUFFER_BYTES {
            gather.push_shared(shared_buffer.clone(), 0, BUFFER_BYTES);
        }
        gather.push_shared(shared_buffer.clone(), 0, BUFFER_BYTES - 1);
        assert!(gather.fits(24));
        gather.push(&[0]);
        assert!(!gather.fits(24));
    }
}
