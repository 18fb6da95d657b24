//! How a queue pair ends: a reason is noted once, the socket is closed when there is nothing more to say, and when
//! nothing is in flight any more everything outstanding comes back and the last event follows.

use std::io;
use std::time::Duration;

use ringfab_proto::iwarp::EngineError;
use ringfab_reactor::Reactor;

use super::connection::{Connection, End, Phase};
use super::shared::Shared;
use crate::rdma::{ConnectError, DisconnectReason, Event};

/// How long a Terminate may take to be sent, and the peer to close after it; and how long to wait for the receiving
/// side's reason after sending has failed.
const TERMINATE_TIMEOUT: Duration = Duration::from_secs(1);

impl Connection {
    /// The owner wants it to end.
    pub(super) fn disconnect(&mut self, shared: &mut Shared, reactor: &mut Reactor) {
        match self.phase {
            Phase::Established => {
                self.note_end(End::Disconnected(DisconnectReason::Local));
                self.phase = Phase::Draining;
                self.set_timer(shared, reactor, shared.config.close_timeout);
                self.check_drained(shared, reactor);
            }
            Phase::Connecting | Phase::Requesting | Phase::Replying => {
                self.close(shared, reactor, End::Disconnected(DisconnectReason::Local));
            }
            Phase::Closing => self.note_end(End::Disconnected(DisconnectReason::Local)),
            Phase::Draining | Phase::Terminating | Phase::Lingering | Phase::Ended => {}
        }
    }

    /// The owner wants it to end now, without another byte on the wire.
    pub(super) fn abort(&mut self, shared: &mut Shared, reactor: &mut Reactor) {
        if matches!(self.phase, Phase::Closing | Phase::Ended) {
            return self.note_end(End::Disconnected(DisconnectReason::Local));
        }
        if let Some(socket) = self.socket.take() {
            reactor.abort_socket(socket);
        }
        self.close(shared, reactor, End::Disconnected(DisconnectReason::Local));
    }

    /// The engine has ended the connection.
    #[cold]
    pub(super) fn on_engine_error(&mut self, shared: &mut Shared, reactor: &mut Reactor, error: EngineError) {
        let peer = self.addresses.1;
        match error {
            EngineError::Terminated(terminate) => {
                tracing::warn!(%peer, code = %terminate.code, "the peer ended the connection with a Terminate");
                let reason = DisconnectReason::PeerTerminated(terminate.code.to_string());
                self.close(shared, reactor, End::Disconnected(reason));
            }
            EngineError::Closed | EngineError::Truncated { .. } => {
                let reason = DisconnectReason::Broken(error.to_string());
                self.close(shared, reactor, End::Disconnected(reason));
            }
            EngineError::Violation(violation) => {
                self.terminate(shared, reactor, violation.to_string());
            }
            EngineError::Local(code) => self.terminate(shared, reactor, code.to_string()),
        }
    }

    /// A Terminate waits in the engine: it goes out behind what is in flight.
    fn terminate(&mut self, shared: &mut Shared, reactor: &mut Reactor, what: String) {
        tracing::warn!(peer = %self.addresses.1, %what, "the peer broke the protocol: connection ended");
        shared.counters.violations += 1;
        self.note_end(End::Disconnected(DisconnectReason::Violation(what)));
        self.phase = Phase::Terminating;
        self.set_timer(shared, reactor, TERMINATE_TIMEOUT);
        self.mark_dirty(shared);
        self.check_drained(shared, reactor);
    }

    /// Ends our stream when everything that should still be sent was sent.
    pub(super) fn check_drained(&mut self, shared: &mut Shared, reactor: &mut Reactor) {
        let work_left = match self.phase {
            Phase::Draining => !self.work.is_empty(),
            Phase::Terminating => false,
            _ => return,
        };
        let unsent = self.engine.as_ref().is_some_and(|engine| engine.wants_transmit());
        if work_left || unsent || self.sending {
            return;
        }
        if let Some(socket) = self.socket {
            reactor.shutdown_write(socket);
        }
        self.phase = Phase::Lingering;
        self.paused = None;
        if !self.receiving {
            self.discard(shared, reactor);
        }
    }

    /// Sending has failed. The receiving side may still hold the peer's reason, a Terminate.
    pub(super) fn on_send_failed(&mut self, shared: &mut Shared, reactor: &mut Reactor, error: &io::Error) {
        let reason = DisconnectReason::Broken(error.to_string());
        if self.is_streaming() && self.receiving {
            self.send_failed = Some(reason);
            return self.set_timer(shared, reactor, TERMINATE_TIMEOUT);
        }
        self.on_broken(shared, reactor, error);
    }

    /// The socket has failed.
    pub(super) fn on_broken(&mut self, shared: &mut Shared, reactor: &mut Reactor, error: &io::Error) {
        let end = match self.phase {
            Phase::Requesting | Phase::Replying => End::Failed(ConnectError::MpaEnded(error.to_string())),
            _ => End::Disconnected(DisconnectReason::Broken(error.to_string())),
        };
        self.close(shared, reactor, end);
    }

    /// A phase took too long.
    pub(super) fn on_timer(&mut self, shared: &mut Shared, reactor: &mut Reactor) {
        if self.timer.is_none_or(|(_, at)| reactor.now() < at) {
            // A timer that was replaced when it had fired already.
            return;
        }
        self.timer = None;
        let handshake = shared.config.handshake_timeout;
        match self.phase {
            Phase::Connecting => self.close(shared, reactor, self.timed_out("connect", handshake)),
            Phase::Requesting | Phase::Replying => {
                self.close(shared, reactor, self.timed_out("MPA", handshake));
            }
            Phase::Closing => self.note_end(self.timed_out("MPA", handshake)),
            Phase::Established if self.send_failed.is_none() => self.nudge(shared, reactor),
            _ => self.close_ended(shared, reactor),
        }
    }

    /// Notes why it ended, if nothing was noted before, and closes.
    pub(super) fn close(&mut self, shared: &mut Shared, reactor: &mut Reactor, end: End) {
        self.note_end(end);
        self.close_ended(shared, reactor);
    }

    /// Closes after its end was noted.
    pub(super) fn close_ended(&mut self, shared: &mut Shared, reactor: &mut Reactor) {
        if let Some(reason) = self.send_failed.take() {
            self.note_end(End::Disconnected(reason));
        }
        self.cancel_timer(reactor);
        self.close_socket(shared, reactor);
        self.try_finish(shared, reactor);
    }

    pub(super) fn close_socket(&mut self, shared: &mut Shared, reactor: &mut Reactor) {
        if let (Some(tap), Some(capture)) = (self.tap.take(), &mut shared.capture) {
            tap.close(capture, reactor.wall_clock());
        }
        if let Some(socket) = self.socket.take() {
            reactor.close_socket(socket);
        }
        self.paused = None;
        self.phase = Phase::Closing;
    }

    /// Finishes when nothing is in flight any more.
    pub(super) fn try_finish(&mut self, shared: &mut Shared, reactor: &mut Reactor) {
        if self.phase != Phase::Closing || self.connecting || self.receiving || self.sending {
            return;
        }
        if self.try_retry(shared, reactor) {
            return;
        }
        self.cancel_timer(reactor);
        if let Some(engine) = &mut self.engine {
            engine.transport_closed();
        }
        self.collect(shared);
        self.count_fpdus(&mut shared.counters);
        self.phase = Phase::Ended;
        if let Some(receive) = self.receive.take() {
            shared.give_receive(receive);
        }
        let event = self.last_event();
        shared.events.push_back(event);
    }

    fn note_end(&mut self, end: End) {
        self.end.get_or_insert(end);
    }

    fn last_event(&mut self) -> Event {
        let queue_pair = self.id();
        let broken = || End::Disconnected(DisconnectReason::Broken("closed".to_owned()));
        match self.end.take().unwrap_or_else(broken) {
            End::Failed(error) => Event::ConnectFailed { queue_pair, error },
            End::Rejected(private_data) => Event::Rejected { queue_pair, private_data },
            End::Disconnected(reason) => {
                tracing::debug!(peer = %self.addresses.1, %reason, "RDMA connection ended");
                Event::Disconnected { queue_pair, reason }
            }
        }
    }
}
