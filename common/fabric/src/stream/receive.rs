//! The receive loop of a stream: one receive is in flight, unless the protocol waits for a buffer.

use std::io;

use ringfab_reactor::{Reactor, ReceiveOp};

use super::intake::Intake;
use super::life::{Phase, Stream};
use super::receive_target::ReceiveTarget;
use super::{DisconnectReason, Fault, Protocol, Shared};

impl<P: Protocol> Stream<P> {
    /// A receive has ended.
    pub(super) fn on_received(
        &mut self,
        shared: &mut Shared<P>,
        reactor: &mut Reactor,
        mut receive: Box<ReceiveOp>,
        result: io::Result<u32>,
    ) {
        self.receiving = false;
        let result = result.map(|bytes| bytes > 0);
        // The shared buffer goes here, whatever came: if its place is full now, the memory becomes unique again below.
        let (parts, shared_buffer) = (receive.parts(), receive.take_direct());
        let shared_buffer = shared_buffer.filter(|_| self.phase.is_streaming() && matches!(result, Ok(true)));
        self.staging.receive = Some(receive);
        match (self.phase, result) {
            (Phase::Opening | Phase::Established | Phase::Draining, Ok(true)) => {
                let Self { protocol, staging, .. } = self;
                Intake { protocol, staging, shared, reactor }.take_in(shared_buffer, &parts);
                self.pump(shared, reactor);
            }
            (Phase::Securing, Ok(true)) => {
                self.staging.unread.end = parts[0].staged.end;
                self.secure(shared, reactor);
            }
            (Phase::Securing | Phase::Opening | Phase::Established | Phase::Draining, result) => {
                self.on_stream_end(shared, reactor, result.err().as_ref());
            }
            (Phase::Terminating | Phase::Lingering, Ok(true)) => self.discard(shared, reactor),
            (Phase::Terminating | Phase::Lingering, _) => self.close_ended(shared, reactor),
            (Phase::Closing, _) => self.try_finish(shared, reactor),
            (Phase::Connecting | Phase::Ended, _) => {}
        }
    }

    /// Feeds the protocol until it wants more, and aims the next receive accordingly.
    pub(super) fn pump(&mut self, shared: &mut Shared<P>, reactor: &mut Reactor) {
        if !self.ensure_receive(shared, reactor) {
            return;
        }
        let Some(receive) = &self.staging.receive else { return };
        let wanted = self.protocol.receive(shared, receive.staging(), &mut self.staging.unread);
        self.check_established(reactor);
        match wanted {
            Ok(ReceiveTarget::Staging { bytes_max }) => {
                if self.staging.aim_behind(shared, bytes_max) {
                    self.arm(shared, reactor);
                }
            }
            Ok(ReceiveTarget::Direct(place)) => {
                self.staging.aim_direct(place);
                self.arm(shared, reactor);
            }
            Ok(ReceiveTarget::Buffer) => {
                self.paused = true;
                shared.paused.push_back(self.key);
            }
            Ok(ReceiveTarget::Turn) => {
                self.paused = true;
                shared.yielded.push_back(self.key);
            }
            Err(fault) => return self.on_fault(shared, reactor, fault),
        }
        self.mark_dirty(shared);
        self.check_drained(shared, reactor);
    }

    /// Has staging memory. Without any the connection ends.
    pub(super) fn ensure_receive(&mut self, shared: &mut Shared<P>, reactor: &mut Reactor) -> bool {
        if self.staging.receive.is_some() {
            return true;
        }
        match shared.take_receive() {
            Ok(receive) => self.staging.receive = Some(receive),
            Err(error) => {
                tracing::warn!(peer = %self.addresses.1, reason = %error, "connection ended: no memory for it");
                self.on_broken(shared, reactor, &error);
            }
        }
        self.staging.receive.is_some()
    }

    /// Goes on after [`ReceiveTarget::Turn`], or tries again to find a buffer, if one is waited for. Returns whether it
    /// went on.
    pub(super) fn resume(&mut self, shared: &mut Shared<P>, reactor: &mut Reactor) -> bool {
        if !self.paused {
            return false;
        }
        self.paused = false;
        self.pump(shared, reactor);
        !self.paused
    }

    /// Throws away what came, and waits for more of it or the end.
    pub(super) fn discard(&mut self, shared: &mut Shared<P>, reactor: &mut Reactor) {
        self.staging.aim_away();
        self.arm(shared, reactor);
    }

    /// Puts a receive in flight, as it has been aimed.
    pub(super) fn arm(&mut self, shared: &mut Shared<P>, reactor: &mut Reactor) {
        let (Some(_), Some(receive)) = (self.wire.socket, self.staging.receive.take()) else { return };
        self.receiving = true;
        let token = shared.token(super::kind::RECEIVE, self.key);
        self.wire.receive(shared, reactor, receive, token);
    }

    /// The peer's stream has ended, or receiving has failed.
    fn on_stream_end(&mut self, shared: &mut Shared<P>, reactor: &mut Reactor, error: Option<&io::Error>) {
        let reason = error.map_or(DisconnectReason::PeerClosed, DisconnectReason::of);
        if self.phase == Phase::Securing || matches!(reason, DisconnectReason::Insecure(_)) {
            return self.fail_tls(shared, reactor, reason);
        }
        // Some peers refuse by a failure.
        let refuses = error.is_none() || self.phase == Phase::Opening;
        let fault = refuses.then(|| self.protocol.stream_ended(self.staging.unread.len())).flatten();
        match (fault, error) {
            (Some(fault), _) => self.on_fault(shared, reactor, fault),
            (None, Some(error)) => self.on_broken(shared, reactor, error),
            (None, None) => {
                let fault = Fault::Ended(self.send_failed.take().unwrap_or(reason));
                self.on_fault(shared, reactor, fault);
            }
        }
    }
}
