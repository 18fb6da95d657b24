//! How a stream ends. The first reason is kept. The socket is closed when nothing is left to send. When nothing is in
//! flight, the protocol releases everything and reports the end.

use std::io;
use std::time::Duration;

use ringfab_reactor::Reactor;

use super::life::{Phase, Stream};
use super::wire::{HANDSHAKE_RECORD, Tls};
use super::{DisconnectReason, End, Fault, Protocol, Shared};

/// How long the protocol's last word may take to be sent, and the peer to close after it; and how long to wait for the
/// receiving side's reason after sending has failed.
const TERMINATE_TIMEOUT: Duration = Duration::from_secs(1);

impl<P: Protocol> Stream<P> {
    /// The owner wants it to end.
    pub(super) fn disconnect(&mut self, shared: &mut Shared<P>, reactor: &mut Reactor) {
        let end = End::Disconnected(DisconnectReason::Local);
        match self.phase {
            Phase::Established => {
                self.note_end(end);
                self.phase = Phase::Draining;
                self.alarm.set(reactor, shared.config.close_timeout);
                self.check_drained(shared, reactor);
            }
            Phase::Connecting | Phase::Securing | Phase::Opening => self.close(shared, reactor, end),
            Phase::Closing => self.note_end(end),
            Phase::Draining | Phase::Terminating | Phase::Lingering | Phase::Ended => {}
        }
    }

    /// The owner wants it to end now, without another byte on the wire.
    pub(super) fn abort(&mut self, shared: &mut Shared<P>, reactor: &mut Reactor) {
        let end = End::Disconnected(DisconnectReason::Local);
        if matches!(self.phase, Phase::Closing | Phase::Ended) {
            return self.note_end(end);
        }
        if let Some(socket) = self.wire.socket.take() {
            reactor.abort_socket(socket);
        }
        self.close(shared, reactor, end);
    }

    /// The protocol cannot go on.
    #[cold]
    pub(super) fn on_fault(&mut self, shared: &mut Shared<P>, reactor: &mut Reactor, fault: Fault) {
        let peer = self.addresses.1;
        match fault {
            Fault::Violation(_) if begins_with_tls(self) => {
                self.wire.tls = Tls::refused();
                let what = "it begins with TLS, which is off here".to_owned();
                self.fail_tls(shared, reactor, DisconnectReason::Insecure(what));
            }
            Fault::Violation(what) => {
                // Of a connection that has an owner the owner tells, who knows more of the peer.
                if !self.protocol.has_owner() {
                    let (host, subsystem) = self.wire.names();
                    tracing::warn!(
                        %peer, host, subsystem, %what,
                        "the peer broke the protocol: connection ended"
                    );
                }
                shared.counters.violations += 1;
                let end = self.phase.end(DisconnectReason::Violation(what));
                self.note_end(end);
                self.terminate(shared, reactor);
            }
            Fault::Ended(reason) => {
                if !self.protocol.has_owner()
                    && let DisconnectReason::PeerTerminated(what) | DisconnectReason::Violation(what) =
                        &reason
                {
                    let (host, subsystem) = self.wire.names();
                    tracing::warn!(%peer, host, subsystem, %what, "connection ended");
                }
                let end = self.phase.end(reason);
                self.close(shared, reactor, end);
            }
            Fault::Retry => {
                self.close_socket(reactor);
                self.try_finish(shared, reactor);
            }
        }
    }

    /// Ends our stream behind the last word, after the end was noted.
    pub(super) fn terminate(&mut self, shared: &mut Shared<P>, reactor: &mut Reactor) {
        self.phase = Phase::Terminating;
        self.alarm.set(reactor, TERMINATE_TIMEOUT);
        self.mark_dirty(shared);
        self.check_drained(shared, reactor);
    }

    /// Ends our stream when everything that should still be sent was sent.
    pub(super) fn check_drained(&mut self, shared: &mut Shared<P>, reactor: &mut Reactor) {
        let idle = match self.phase {
            Phase::Draining => self.protocol.is_idle(),
            Phase::Terminating => true,
            _ => return,
        };
        let wants_transmit = self.protocol.wants_transmit() && self.wire.carries_protocol();
        if !idle || wants_transmit || self.outbox.sending {
            return;
        }
        if let Some(batch) = self.wire.take_last_word(shared) {
            return self.send(shared, reactor, batch);
        }
        if let Some(socket) = self.wire.socket {
            reactor.shutdown_write(socket);
        }
        self.phase = Phase::Lingering;
        self.paused = false;
        if !self.receiving {
            self.discard(shared, reactor);
        }
    }

    /// Sending has failed. The receiving side may still hold the peer's reason.
    pub(super) fn on_send_failed(
        &mut self,
        shared: &mut Shared<P>,
        reactor: &mut Reactor,
        error: &io::Error,
    ) {
        if self.phase.is_streaming() && self.receiving {
            self.send_failed = Some(DisconnectReason::of(error));
            return self.alarm.set(reactor, TERMINATE_TIMEOUT);
        }
        self.on_broken(shared, reactor, error);
    }

    /// The socket has failed.
    pub(super) fn on_broken(&mut self, shared: &mut Shared<P>, reactor: &mut Reactor, error: &io::Error) {
        let end = self.phase.end(DisconnectReason::of(error));
        self.close(shared, reactor, end);
    }

    /// Notes why it ended, if nothing was noted before, and closes.
    pub(super) fn close(&mut self, shared: &mut Shared<P>, reactor: &mut Reactor, end: End) {
        self.note_end(end);
        self.close_ended(shared, reactor);
    }

    /// Closes after its end was noted.
    pub(super) fn close_ended(&mut self, shared: &mut Shared<P>, reactor: &mut Reactor) {
        if let Some(reason) = self.send_failed.take() {
            self.note_end(End::Disconnected(reason));
        }
        self.alarm.cancel(reactor);
        self.close_socket(reactor);
        self.try_finish(shared, reactor);
    }

    fn close_socket(&mut self, reactor: &mut Reactor) {
        if let Some(socket) = self.wire.socket.take() {
            reactor.close_socket(socket);
        }
        self.paused = false;
        self.phase = Phase::Closing;
    }

    /// Finishes when nothing is in flight any more, or connects again if no end was noted.
    pub(super) fn try_finish(&mut self, shared: &mut Shared<P>, reactor: &mut Reactor) {
        if self.phase != Phase::Closing || self.connecting || self.receiving || self.outbox.sending {
            return;
        }
        let end = match self.end.take() {
            Some(end) => end,
            None => {
                match self.protocol.retry(shared, reactor).and_then(|()| self.start_connect(shared, reactor))
                {
                    Ok(()) => return,
                    Err(error) => End::Refused(error),
                }
            }
        };
        tracing::debug!(peer = %self.addresses.1, ?end, "connection ended");
        self.alarm.cancel(reactor);
        self.phase = Phase::Ended;
        if let Some(receive) = self.staging.receive.take() {
            shared.give_receive(receive);
        }
        if let Some(batch) = self.outbox.batch.take() {
            shared.give_batch(batch);
        }
        self.wire.release(shared);
        self.protocol.finish(shared, reactor, end);
    }

    pub(super) fn note_end(&mut self, end: End) {
        self.end.get_or_insert(end);
    }
}

/// Whether a listener's peer speaks TLS to a protocol that is in clear text.
fn begins_with_tls<P: Protocol>(stream: &Stream<P>) -> bool {
    stream.origin.is_some()
        && stream.wire.tls.is_none()
        && stream.staging.unread().first() == Some(&HANDSHAKE_RECORD)
}
