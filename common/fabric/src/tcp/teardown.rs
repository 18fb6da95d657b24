//! How a connection ends: a reason is noted once, the socket is closed when there is nothing more to say, and when nothing is
//! in flight any more everything outstanding comes back and the last event follows.

use std::io;
use std::time::Duration;

use ringfab_proto::tcp::EngineError;
use ringfab_reactor::Reactor;

use super::connection::{Connection, End, Phase};
use super::shared::Shared;
use super::{ConnectError, DisconnectReason, Event};

/// How long a termination request may take to be sent, and the peer to close after it; and how long to wait for the
/// receiving side's reason after sending has failed.
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
            Phase::Connecting | Phase::Initializing | Phase::Accepted => {
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
            EngineError::Violation(violation) => {
                tracing::warn!(%peer, %violation, "the peer broke the protocol: connection ended");
                shared.counters.violations += 1;
                self.note_end(self.ended_by(&violation.to_string(), DisconnectReason::Violation));
                self.phase = Phase::Terminating;
                self.set_timer(shared, reactor, TERMINATE_TIMEOUT);
                self.mark_dirty(shared);
                self.check_drained(shared, reactor);
            }
            EngineError::Terminated(termination) => {
                tracing::warn!(%peer, %termination, "the peer ended the connection with a termination request");
                let end = self.ended_by(&termination.to_string(), DisconnectReason::PeerTerminated);
                self.close(shared, reactor, end);
            }
            EngineError::Ended => {
                let end = self.ended_by("it had ended before", DisconnectReason::Broken);
                self.close(shared, reactor, end);
            }
        }
    }

    /// The end for a reason, as a failure to connect or as the end of what was connected.
    fn ended_by(&self, what: &str, reason: impl Fn(String) -> DisconnectReason) -> End {
        match self.phase {
            Phase::Initializing => End::Failed(ConnectError::Initialize(what.to_owned())),
            _ => End::Disconnected(reason(what.to_owned())),
        }
    }

    /// Ends our stream when everything that should still be sent was sent.
    pub(super) fn check_drained(&mut self, shared: &mut Shared, reactor: &mut Reactor) {
        let ending = matches!(self.phase, Phase::Draining | Phase::Terminating);
        if !ending || self.engine.wants_transmit() || self.sending {
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

    /// Sending has failed. The receiving side may still hold the peer's reason, a termination request.
    pub(super) fn on_send_failed(&mut self, shared: &mut Shared, reactor: &mut Reactor, error: &io::Error) {
        if self.is_streaming() && self.receiving {
            self.send_failed = Some(DisconnectReason::Broken(error.to_string()));
            return self.set_timer(shared, reactor, TERMINATE_TIMEOUT);
        }
        self.on_broken(shared, reactor, error);
    }

    /// The socket has failed.
    pub(super) fn on_broken(&mut self, shared: &mut Shared, reactor: &mut Reactor, error: &io::Error) {
        let end = self.ended_by(&error.to_string(), DisconnectReason::Broken);
        self.close(shared, reactor, end);
    }

    /// A phase took too long.
    pub(super) fn on_timer(&mut self, shared: &mut Shared, reactor: &mut Reactor) {
        if self.timer.is_none_or(|(_, at)| reactor.now() < at) {
            // A timer that was replaced when it had fired already.
            return;
        }
        self.timer = None;
        let seconds = self.connect_timeout.as_secs();
        match self.phase {
            Phase::Connecting => {
                let error = ConnectError::TimedOut { step: "connect", seconds };
                self.close(shared, reactor, End::Failed(error));
            }
            Phase::Initializing => {
                let error = ConnectError::TimedOut { step: "ICReq", seconds };
                self.close(shared, reactor, End::Failed(error));
            }
            Phase::Accepted => {
                tracing::warn!(peer = %self.addresses.1, "no first command in time: closed");
                self.close(shared, reactor, End::Disconnected(DisconnectReason::Local));
            }
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
        if let Some(socket) = self.socket.take() {
            reactor.close_socket(socket);
        }
        self.paused = false;
        self.phase = Phase::Closing;
        self.try_finish(shared, reactor);
    }

    /// Finishes when nothing is in flight any more.
    pub(super) fn try_finish(&mut self, shared: &mut Shared, reactor: &mut Reactor) {
        if self.phase != Phase::Closing || self.connecting || self.receiving || self.sending {
            return;
        }
        self.cancel_timer(reactor);
        self.engine.close();
        self.capsule = None;
        self.phase = Phase::Ended;
        if let Some(receive) = self.receive.take() {
            shared.give_receive(receive);
        }
        // Of one that nobody has adopted, nobody has heard.
        if self.origin.is_some() {
            return;
        }
        let connection = self.id();
        for (id, _) in self.transfers.end_all() {
            shared.events.push_back(Event::Data { connection, id, sink: None, intact: false });
        }
        let event = self.last_event();
        shared.events.push_back(event);
    }

    fn note_end(&mut self, end: End) {
        self.end.get_or_insert(end);
    }

    fn last_event(&mut self) -> Event {
        let connection = self.id();
        let broken = || End::Disconnected(DisconnectReason::Broken("closed".to_owned()));
        match self.end.take().unwrap_or_else(broken) {
            End::Failed(error) => Event::ConnectFailed { connection, error },
            End::Disconnected(reason) => {
                tracing::debug!(peer = %self.addresses.1, %reason, "NVMe/TCP connection ended");
                Event::Disconnected { connection, reason }
            }
        }
    }
}
