//! A stream and its phases.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use ringfab_reactor::{DetachedSocket, ListenerId, Reactor, SocketId, SocketOptions, Time, TimerId, Token};

use super::listener::Origin;
use super::outbox::Outbox;
use super::staging::Staging;
use super::wire::Wire;
use super::{DisconnectReason, End, Offered, Protocol, Shared, Step, kind};
use crate::table::Key;

/// What a stream is doing. The arrows: `Connecting -> Securing -> Opening -> Established -> Draining -> Lingering ->
/// Closing`, `Securing, Opening or Established -> Terminating -> Lingering -> Closing`, and from everywhere to
/// `Closing`, which another attempt leaves for `Connecting`. A listener's stream leaves `Opening` by being handed out;
/// who adopts it goes on from there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// The TCP connection is being made.
    Connecting,
    /// The TLS handshake, or the first byte of a peer that may begin one. In clear text it takes no time.
    Securing,
    /// The two sides agree, as the protocol provides.
    Opening,
    /// Work flows both ways.
    Established,
    /// We disconnected; what was given before is still sent.
    Draining,
    /// The peer broke the protocol, or TLS failed; what is to be said about it is on its way.
    Terminating,
    /// Our stream has ended; what still comes is thrown away until the peer's ends too. Closing at once could make the
    /// peer's kernel throw away what we sent last.
    Lingering,
    /// The socket is closed; operations in flight are awaited.
    Closing,
    /// Nothing is in flight; the slot may be freed.
    Ended,
}

impl Phase {
    /// Whether the protocol's stream is intact both ways.
    pub(super) fn is_streaming(self) -> bool {
        matches!(self, Self::Established | Self::Draining)
    }

    /// What an end is for this reason.
    pub(super) fn end(self, reason: DisconnectReason) -> End {
        match self {
            Self::Securing => End::Unsecured(reason.into_detail()),
            Self::Opening => End::Unopened(reason),
            _ => End::Disconnected(reason),
        }
    }

    /// What a listener's connection has not brought in time.
    fn missing(self) -> &'static str {
        if self == Self::Securing { "TLS handshake" } else { "message" }
    }

    /// What was not done in time.
    fn step(self) -> Step {
        match self {
            Self::Connecting => Step::Connect,
            Self::Securing => Step::Secure,
            _ => Step::Open,
        }
    }
}

/// The bound on what a stream does.
#[derive(Debug)]
pub(super) struct Alarm {
    token: Token,
    timer: Option<(TimerId, Time)>,
    /// The bound on becoming established.
    opening_limit: Duration,
}

impl Alarm {
    fn new(token: Token) -> Self {
        Self { token, timer: None, opening_limit: Duration::ZERO }
    }

    /// Replaces the timer.
    pub(super) fn set(&mut self, reactor: &mut Reactor, after: Duration) {
        self.cancel(reactor);
        let at = reactor.now() + after;
        self.timer = Some((reactor.set_timer(at, self.token), at));
    }

    /// Bounds the time until the stream is established.
    pub(super) fn set_opening_limit(&mut self, reactor: &mut Reactor, limit: Duration) {
        self.opening_limit = limit;
        self.set(reactor, limit);
    }

    pub(super) fn cancel(&mut self, reactor: &mut Reactor) {
        if let Some((timer, _)) = self.timer.take() {
            reactor.cancel_timer(timer);
        }
    }

    /// A timer has fired. Returns whether it is the one that was set last, and not one that had fired already when it
    /// was replaced.
    fn fires(&mut self, now: Time) -> bool {
        let fires = self.timer.is_some_and(|(_, at)| now >= at);
        if fires {
            self.timer = None;
        }
        fires
    }
}

/// A connection over TCP.
#[derive(Debug)]
pub(crate) struct Stream<P> {
    pub(crate) protocol: P,
    /// The two ends (local, peer).
    pub(crate) addresses: (SocketAddr, SocketAddr),
    pub(super) key: Key,
    pub(super) phase: Phase,
    pub(crate) wire: Wire,
    /// Of a connection that we make.
    pub(super) options: SocketOptions,
    pub(super) staging: Staging,
    pub(super) connecting: bool,
    pub(super) receiving: bool,
    pub(super) outbox: Outbox,
    /// Whether it is on the list of those that wait for a buffer.
    pub(super) paused: bool,
    /// What to say if the receiving side gives no better reason: sending has failed.
    pub(super) send_failed: Option<DisconnectReason>,
    pub(super) alarm: Alarm,
    /// How it ended, which is noted once.
    pub(super) end: Option<End>,
    /// Of a listener's stream, of which nobody has heard yet.
    pub(super) origin: Option<Origin>,
}

impl<P: Protocol> Stream<P> {
    pub(super) fn new(
        shared: &Shared<P>,
        key: Key,
        phase: Phase,
        addresses: (SocketAddr, SocketAddr),
        protocol: P,
    ) -> Self {
        Self {
            protocol,
            addresses,
            key,
            phase,
            wire: Wire::default(),
            options: SocketOptions::default(),
            staging: Staging::default(),
            connecting: false,
            receiving: false,
            outbox: Outbox::new(key),
            paused: false,
            send_failed: None,
            alarm: Alarm::new(shared.token(kind::TIMER, key)),
            end: None,
            origin: None,
        }
    }

    /// Starts the TCP connection.
    pub(super) fn start_connect(&mut self, shared: &Shared<P>, reactor: &mut Reactor) -> io::Result<()> {
        let token = shared.token(kind::CONNECT, self.key);
        self.wire.socket = Some(reactor.connect(self.addresses.1, &self.options, token)?);
        self.staging.unread = 0..0;
        self.connecting = true;
        self.phase = Phase::Connecting;
        Ok(())
    }

    /// The TCP connection was made or refused.
    pub(super) fn on_connected(
        &mut self,
        shared: &mut Shared<P>,
        reactor: &mut Reactor,
        result: io::Result<u32>,
    ) {
        self.connecting = false;
        if self.phase == Phase::Closing {
            return self.try_finish(shared, reactor);
        }
        let addresses = result.and_then(|_| match self.wire.socket {
            Some(socket) => reactor.socket_addresses(socket),
            None => Err(io::ErrorKind::NotConnected.into()),
        });
        match addresses {
            Ok(addresses) => {
                self.addresses = addresses;
                self.protocol.connected(shared, reactor, addresses);
                self.phase = Phase::Securing;
                self.secure(shared, reactor);
            }
            Err(error) => self.close(shared, reactor, End::Refused(error)),
        }
    }

    /// The protocol may begin.
    pub(super) fn open(&mut self, shared: &mut Shared<P>, reactor: &mut Reactor) {
        self.phase = Phase::Opening;
        self.transmit(shared, reactor);
        self.pump(shared, reactor);
    }

    /// Goes on with a socket that came from a listener, behind `unread` bytes that came with it.
    pub(super) fn adopt(
        &mut self,
        shared: &mut Shared<P>,
        reactor: &mut Reactor,
        socket: SocketId,
        unread: &[u8],
    ) {
        self.wire.socket = Some(socket);
        if !self.ensure_receive(shared, reactor) {
            return;
        }
        self.staging.fill(unread);
        self.protocol.connected(shared, reactor, self.addresses);
        self.alarm.set_opening_limit(reactor, shared.config.handshake_timeout);
        self.transmit(shared, reactor);
        // Otherwise what comes is of no use before the peer has our answer.
        if self.check_established(reactor) {
            self.pump(shared, reactor);
        }
    }

    /// Goes on if the two sides have just agreed; returns whether they have.
    #[inline]
    pub(super) fn check_established(&mut self, reactor: &mut Reactor) -> bool {
        let established = self.phase == Phase::Opening && self.protocol.is_established();
        if established {
            self.phase = Phase::Established;
            self.alarm.cancel(reactor);
            self.set_answer_timer(reactor);
        }
        established
    }

    /// Looks after a while whether the peer has said anything.
    pub(super) fn set_answer_timer(&mut self, reactor: &mut Reactor) {
        if let Some(after) = self.protocol.patience() {
            self.alarm.set(reactor, after);
        }
    }

    /// Whether it is a listener's and has brought enough to be handed out.
    #[inline]
    pub(super) fn is_adoptable(&self) -> bool {
        self.phase == Phase::Opening
            && self.origin.is_some()
            && !self.receiving
            && !self.outbox.sending
            && !self.protocol.wants_transmit()
            && self.protocol.is_adoptable(self.staging.unread())
    }

    /// Hands a listener's stream out, to be adopted. It ends here.
    pub(super) fn offer(mut self, shared: &mut Shared<P>, reactor: &mut Reactor, listener: ListenerId) {
        self.alarm.cancel(reactor);
        let (Some(socket), Some(receive)) = (self.wire.socket, self.staging.receive.take()) else { return };
        let tls = self.wire.carry(shared);
        let Ok(addresses) = reactor.socket_addresses(socket) else {
            // The peer has left already.
            shared.give_receive(receive);
            return reactor.close_socket(socket);
        };
        let socket: DetachedSocket = reactor.detach_socket(socket);
        let unread = &receive.staging()[self.staging.unread];
        let event = self.protocol.offer(Offered { listener, socket, addresses, unread, tls });
        if let Some(event) = event {
            shared.events.push_with(|| event);
        }
        shared.give_receive(receive);
    }

    /// A phase took too long.
    pub(super) fn on_timer(&mut self, shared: &mut Shared<P>, reactor: &mut Reactor) {
        if !self.alarm.fires(reactor.now()) {
            return;
        }
        let timed_out = End::TimedOut { step: self.phase.step(), limit: self.alarm.opening_limit };
        match self.phase {
            Phase::Connecting | Phase::Securing | Phase::Opening => {
                if self.origin.is_some() {
                    let ((host, subsystem), what) = (self.wire.names(), self.phase.missing());
                    let peer = self.addresses.1;
                    tracing::warn!(%peer, host, subsystem, "no complete {what} came in time: closed");
                }
                self.close(shared, reactor, timed_out);
            }
            // Only what is closed to connect again has a timer then.
            Phase::Closing => self.note_end(timed_out),
            Phase::Established if self.send_failed.is_none() => {
                if self.protocol.post_empty_write() {
                    tracing::debug!(peer = %self.addresses.1, "no answer to our first message yet: nudged");
                    self.mark_dirty(shared);
                }
                self.set_answer_timer(reactor);
            }
            _ => self.close_ended(shared, reactor),
        }
    }
}
