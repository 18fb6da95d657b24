//! How a stream ends: a reason is noted once, the socket is closed when there is nothing more to say, and when nothing is in
//! flight any more the protocol lets go of everything and reports it.

use std::io;
use std::time::Duration;

use ringfab_reactor::Reactor;

use super::life::{Phase, Stream};
use super::{Protocol, Shared};

/// How long the protocol's last word may take to be sent, and the peer to close after it; and how long to wait for the
/// receiving side's reason after sending has failed.
const TERMINATE_TIMEOUT: Duration = Duration::from_secs(1);

/// Why an established connection ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DisconnectReason {
    /// We disconnected.
    #[error("disconnected here")]
    Local,
    /// The peer closed the stream in an orderly way.
    #[error("the peer closed the connection")]
    PeerClosed,
    /// The socket failed.
    #[error("the connection broke: {0}")]
    Broken(String),
    /// The peer sent a Terminate message.
    #[error("the peer sent a Terminate: {0}")]
    PeerTerminated(String),
    /// The peer violated the protocol, and we sent a Terminate.
    #[error("protocol violation: {0}")]
    Violation(String),
}

impl DisconnectReason {
    /// What is known beyond the kind, for a connection that was never established.
    pub(crate) fn into_detail(self) -> String {
        match self {
            Self::Broken(what) | Self::PeerTerminated(what) | Self::Violation(what) => what,
            Self::Local | Self::PeerClosed => self.to_string(),
        }
    }
}

/// How a stream has ended.
#[derive(Debug)]
pub(crate) enum End {
    /// There is no TCP connection.
    Refused(io::Error),
    /// It was not established in time.
    TimedOut {
        /// Whether there was a TCP connection at least.
        connected: bool,
        limit: Duration,
    },
    /// It ended before it was established, other than by our will.
    Unopened(DisconnectReason),
    /// It has ended.
    Disconnected(DisconnectReason),
}

/// What keeps a protocol from going on.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The peer broke the protocol. What is to be said about it waits to be sent.
    Violation(String),
    /// There is nothing more to say.
    Ended(DisconnectReason),
    /// The peer may understand another attempt to connect.
    Retry,
}

impl<P: Protocol> Stream<P> {
    /// The owner wants it to end.
    pub(super) fn disconnect(&mut self, shared: &mut Shared<P>, reactor: &mut Reactor) {
        let end = End::Disconnected(DisconnectReason::Local);
        match self.phase {
            Phase::Established => {
                self.note_end(end);
                self.phase = Phase::Draining;
                self.set_timer(shared, reactor, shared.config.close_timeout);
                self.check_drained(shared, reactor);
            }
            Phase::Connecting | Phase::Opening => self.close(shared, reactor, end),
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
        if let Some(socket) = self.socket.take() {
            reactor.abort_socket(socket);
        }
        self.close(shared, reactor, end);
    }

    /// The protocol cannot go on.
    #[cold]
    pub(super) fn on_fault(&mut self, shared: &mut Shared<P>, reactor: &mut Reactor, fault: Fault) {
        let peer = self.addresses.1;
        match fault {
            Fault::Violation(what) => {
                // Of a connection that has an owner the owner tells, who knows more of the peer.
                if !self.protocol.has_owner() {
                    tracing::warn!(%peer, %what, "the peer broke the protocol: connection ended");
                }
                shared.counters.violations += 1;
                let end = self.ended_by(DisconnectReason::Violation(what));
                self.note_end(end);
                self.phase = Phase::Terminating;
                self.set_timer(shared, reactor, TERMINATE_TIMEOUT);
                self.mark_dirty(shared);
                self.check_drained(shared, reactor);
            }
            Fault::Ended(reason) => {
                if !self.protocol.has_owner()
                    && let DisconnectReason::PeerTerminated(what) | DisconnectReason::Violation(what) =
                        &reason
                {
                    tracing::warn!(%peer, %what, "connection ended");
                }
                let end = self.ended_by(reason);
                self.close(shared, reactor, end);
            }
            Fault::Retry => {
                self.close_socket(reactor);
                self.try_finish(shared, reactor);
            }
        }
    }

    fn ended_by(&self, reason: DisconnectReason) -> End {
        if self.phase == Phase::Opening { End::Unopened(reason) } else { End::Disconnected(reason) }
    }

    /// Ends our stream when everything that should still be sent was sent.
    pub(super) fn check_drained(&mut self, shared: &Shared<P>, reactor: &mut Reactor) {
        let idle = match self.phase {
            Phase::Draining => self.protocol.is_idle(),
            Phase::Terminating => true,
            _ => return,
        };
        if !idle || self.protocol.wants_transmit() || self.sending {
            return;
        }
        if let Some(socket) = self.socket {
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
        if self.is_streaming() && self.receiving {
            self.send_failed = Some(DisconnectReason::Broken(error.to_string()));
            return self.set_timer(shared, reactor, TERMINATE_TIMEOUT);
        }
        self.on_broken(shared, reactor, error);
    }

    /// The socket has failed.
    pub(super) fn on_broken(&mut self, shared: &mut Shared<P>, reactor: &mut Reactor, error: &io::Error) {
        let end = self.ended_by(DisconnectReason::Broken(error.to_string()));
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
        self.cancel_timer(reactor);
        self.close_socket(reactor);
        self.try_finish(shared, reactor);
    }

    fn close_socket(&mut self, reactor: &mut Reactor) {
        if let Some(socket) = self.socket.take() {
            reactor.close_socket(socket);
        }
        self.paused = false;
        self.phase = Phase::Closing;
    }

    /// Finishes when nothing is in flight any more, or connects again if no end was noted.
    pub(super) fn try_finish(&mut self, shared: &mut Shared<P>, reactor: &mut Reactor) {
        if self.phase != Phase::Closing || self.connecting || self.receiving || self.sending {
            return;
        }
        let end = match self.end.take() {
            Some(end) => end,
            None => match self.connect_again(shared, reactor) {
                Ok(()) => return,
                Err(error) => End::Refused(error),
            },
        };
        tracing::debug!(peer = %self.addresses.1, ?end, "connection ended");
        self.cancel_timer(reactor);
        self.phase = Phase::Ended;
        if let Some(receive) = self.receive.take() {
            shared.give_receive(receive);
        }
        if let Some(batch) = self.batch.take() {
            shared.give_batch(batch);
        }
        self.protocol.finish(shared, reactor, end);
    }

    fn connect_again(&mut self, shared: &mut Shared<P>, reactor: &mut Reactor) -> io::Result<()> {
        self.unread = 0..0;
        self.protocol.retry(shared, reactor)?;
        self.start_connect(shared, reactor)
    }

    pub(super) fn note_end(&mut self, end: End) {
        self.end.get_or_insert(end);
    }
}
