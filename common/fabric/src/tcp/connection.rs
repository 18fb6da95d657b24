//! A connection and its phases.

use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use ringfab_memory::{Lease, Pool};
use ringfab_proto::tcp::Engine;
use ringfab_reactor::{Reactor, ReceiveOp, SendBatch, SocketId, Time, TimerId};

use super::inbound::{Capsule, Transfers};
use super::kind;
use super::shared::Shared;
use super::{ConnectError, ConnectionId, DisconnectReason, ListenerId};
use crate::rdma::table::Key;

/// What a connection is doing. The arrows: `Connecting -> Initializing -> Established` for a host,
/// `Accepted -> (adopted by a core) Established` for a controller,
/// `Established -> Draining -> Lingering -> Closing`, `-> Terminating -> Lingering -> Closing`,
/// and from everywhere to `Closing`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// The TCP connection is being made.
    Connecting,
    /// ICReq is on its way, or ICResp is awaited.
    Initializing,
    /// A listener has it: ICReq, then the header of the first capsule are awaited.
    Accepted,
    /// Commands flow.
    Established,
    /// We disconnected; what was given before is still sent.
    Draining,
    /// The peer broke the protocol; the termination request is on its way.
    Terminating,
    /// Our stream has ended; what still comes is thrown away until the peer's ends too. Closing at once could make the
    /// peer's kernel throw away what we sent last.
    Lingering,
    /// The socket is closed; operations in flight are awaited.
    Closing,
    /// Nothing is in flight; the slot may be freed.
    Ended,
}

/// How it ended, which decides the last event.
#[derive(Debug)]
pub(super) enum End {
    Failed(ConnectError),
    Disconnected(DisconnectReason),
}

/// What only a listener's connection has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    pub(super) key: Key,
    pub(super) id: ListenerId,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) key: Key,
    pub(super) phase: Phase,
    /// None before it is made and once it is closed.
    pub(super) socket: Option<SocketId>,
    /// The two ends (local, peer).
    pub(super) addresses: (SocketAddr, SocketAddr),
    pub(super) engine: Engine<Lease>,
    /// Memory for in-capsule data; a host needs none.
    pub(super) pool: Option<Pool>,
    pub(super) capsule: Option<Capsule>,
    pub(super) transfers: Transfers,
    /// Ours except while it is in flight.
    pub(super) receive: Option<Box<ReceiveOp>>,
    /// Bytes of the staging memory that the engine has not consumed.
    pub(super) unread: Range<usize>,
    /// Where in its lease the direct receive in flight began.
    pub(super) direct_start: usize,
    pub(super) connecting: bool,
    pub(super) receiving: bool,
    pub(super) sending: bool,
    /// Whether it is on the list of those that may have something to send.
    pub(super) dirty: bool,
    /// Whether the capsule waits for a buffer.
    pub(super) paused: bool,
    /// What to say if the receiving side gives no better reason: sending has failed.
    pub(super) send_failed: Option<DisconnectReason>,
    pub(super) timer: Option<(TimerId, Time)>,
    /// The bound on making the connection.
    pub(super) connect_timeout: Duration,
    pub(super) end: Option<End>,
    /// While nobody has adopted it.
    pub(super) origin: Option<Origin>,
}

impl Connection {
    pub(super) fn new(
        key: Key,
        phase: Phase,
        addresses: (SocketAddr, SocketAddr),
        engine: Engine<Lease>,
    ) -> Self {
        Self {
            key,
            phase,
            socket: None,
            addresses,
            engine,
            pool: None,
            capsule: None,
            transfers: Transfers::new(0),
            receive: None,
            unread: 0..0,
            direct_start: 0,
            connecting: false,
            receiving: false,
            sending: false,
            dirty: false,
            paused: false,
            send_failed: None,
            timer: None,
            connect_timeout: Duration::ZERO,
            end: None,
            origin: None,
        }
    }

    pub(super) fn id(&self) -> ConnectionId {
        ConnectionId { index: self.key.index, generation: self.key.generation }
    }

    /// Whether the engine runs and its stream is intact both ways.
    pub(super) fn is_streaming(&self) -> bool {
        matches!(self.phase, Phase::Established | Phase::Draining | Phase::Initializing | Phase::Accepted)
    }

    /// Puts the connection on the list that the next flush visits, if a flush could do something for it.
    #[inline]
    pub(super) fn mark_dirty(&mut self, shared: &mut Shared) {
        if self.engine.wants_transmit() && !self.dirty && !self.sending && self.socket.is_some() {
            self.dirty = true;
            shared.dirty.push_back(self.key);
        }
    }

    /// Puts a batch in flight.
    pub(super) fn send(&mut self, shared: &mut Shared, reactor: &mut Reactor, batch: Box<SendBatch>) {
        let Some(socket) = self.socket else { return shared.give_batch(batch) };
        self.sending = true;
        reactor.send(socket, batch, shared.token(kind::SEND, self.key));
    }

    /// Puts a receive in flight, as it has been aimed.
    pub(super) fn arm(&mut self, shared: &Shared, reactor: &mut Reactor) {
        let (Some(socket), Some(receive)) = (self.socket, self.receive.take()) else { return };
        self.receiving = true;
        reactor.receive(socket, receive, shared.token(kind::RECEIVE, self.key));
    }

    /// Replaces the timer.
    pub(super) fn set_timer(&mut self, shared: &Shared, reactor: &mut Reactor, after: Duration) {
        self.cancel_timer(reactor);
        let at = reactor.now() + after;
        self.timer = Some((reactor.set_timer(at, shared.token(kind::TIMER, self.key)), at));
    }

    pub(super) fn cancel_timer(&mut self, reactor: &mut Reactor) {
        if let Some((timer, _)) = self.timer.take() {
            reactor.cancel_timer(timer);
        }
    }
}
