//! The transmit loop of a stream. One batch is in flight. Messages that are posted meanwhile go into the next batch, so
//! many small messages share a send.

use std::io;

use ringfab_reactor::{Reactor, SendBatch};

use super::life::{Phase, Stream};
use super::outbox::Gather;
use super::{DisconnectReason, Protocol, Shared, kind};

impl<P: Protocol> Stream<P> {
    /// The protocol, which is about to be given something, and the batch that is sent next.
    #[inline]
    pub(super) fn get_to_send(&mut self, shared: &mut Shared<P>) -> (&mut P, Gather<'_>) {
        self.outbox.enlist(shared);
        (&mut self.protocol, self.outbox.gather(shared))
    }

    /// Puts the stream on the list that the next flush visits, if a flush could do something for it.
    #[inline]
    pub(super) fn mark_dirty(&mut self, shared: &mut Shared<P>) {
        if self.protocol.wants_transmit() && self.wire.carries_protocol() && self.wire.socket.is_some() {
            self.outbox.enlist(shared);
        }
    }

    /// Sends what there is to send, unless a batch is in flight already.
    #[inline]
    pub(super) fn transmit(&mut self, shared: &mut Shared<P>, reactor: &mut Reactor) {
        self.outbox.dirty = false;
        if self.wire.socket.is_none() || self.outbox.sending || self.send_failed.is_some() {
            return;
        }
        if !(self.protocol.wants_transmit() && self.wire.carries_protocol()) {
            // It took nothing of what it was given: no idle stream keeps a batch.
            if let Some(batch) = self.outbox.batch.take() {
                shared.give_batch(batch);
            }
            return;
        }
        let mut batch = self.outbox.batch.take().unwrap_or_else(|| shared.take_batch());
        self.outbox.transmitted = self.protocol.transmit(shared, reactor, &mut Gather::of(&mut batch));
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
        self.outbox.sending = true;
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
        self.outbox.sending = false;
        shared.give_batch(batch);
        match (self.phase, result) {
            (Phase::Closing, _) => self.try_finish(shared, reactor),
            (Phase::Securing, Ok(_)) => self.secure(shared, reactor),
            (Phase::Securing, Err(error)) => {
                self.fail_tls(shared, reactor, DisconnectReason::of(&error));
            }
            (_, Err(error)) => self.on_send_failed(shared, reactor, &error),
            (_, Ok(_)) => {
                self.protocol.transmitted(shared, self.outbox.transmitted);
                if self.check_established(reactor) {
                    // Nothing was received before the peer had our answer.
                    return self.pump(shared, reactor);
                }
                self.mark_dirty(shared);
                self.check_drained(shared, reactor);
            }
        }
    }
}
