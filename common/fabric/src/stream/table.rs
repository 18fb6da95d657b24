//! The streams of a core.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ringfab_memory::has_headroom;
use ringfab_reactor::{Completion, DetachedSocket, ListenerId, Payload, Reactor, SocketOptions};
use ringfab_tls::Psk;

use super::life::{Phase, Stream};
use super::listener::{Accepted, Listen, Listeners};
use super::shared::Counters;
use super::wire::Tls;
use super::{Carried, Gather, Protocol, Shared, StreamConfig, kind};
use crate::events::Events;
use crate::table::{Key, Table};

/// What is left to the process when a connection is turned away: its staging memory may be refused, but what else it
/// and those that are there take until somebody looks again may not.
const ROOM_BYTES: usize = 32 << 20;

/// How many streams give way at once to those that wait. Each takes some ten microseconds, in which nobody is served.
const RELIEVED_AT_ONCE: usize = 16;

/// A socket that came from a listener, with nothing in flight.
#[derive(Debug)]
pub(crate) struct Adopted<'a> {
    pub(crate) socket: DetachedSocket,
    /// The two ends (local, peer).
    pub(crate) addresses: (SocketAddr, SocketAddr),
    /// What came with it and is not taken in.
    pub(crate) unread: &'a [u8],
    /// What has protected it so far, if something did.
    pub(crate) tls: Option<Carried>,
}

/// A connection to make.
#[derive(Debug)]
pub(crate) struct Connect<'a> {
    /// To whom.
    pub(crate) address: SocketAddr,
    pub(crate) options: &'a SocketOptions,
    /// The longest until it is established.
    pub(crate) limit: Duration,
    /// The keys that are offered for TLS, if it shall be protected.
    pub(crate) tls: Option<Arc<[Psk]>>,
}

/// One core's streams of a protocol, and its listeners.
#[derive(Debug)]
pub(crate) struct Streams<P: Protocol> {
    streams: Table<Box<Stream<P>>>,
    listeners: Listeners<P::Terms>,
    pub(crate) shared: Shared<P>,
}

impl<P: Protocol> Streams<P> {
    pub(crate) fn new(config: StreamConfig, core: P::Core) -> Self {
        Self {
            streams: Table::new(config.streams_max),
            listeners: Listeners::new(),
            shared: Shared::new(config, core),
        }
    }

    pub(crate) fn listen(
        &mut self,
        reactor: &mut Reactor,
        listen: Listen<'_, P::Terms>,
    ) -> io::Result<(ListenerId, SocketAddr)> {
        self.listeners.listen(reactor, listen, |key| self.shared.token(kind::ACCEPTED, key))
    }

    pub(crate) fn close_listener(&mut self, reactor: &mut Reactor, listener: ListenerId) {
        self.listeners.close(reactor, listener);
    }

    /// Starts a connection.
    pub(crate) fn connect(
        &mut self,
        reactor: &mut Reactor,
        connect: Connect<'_>,
        make: impl FnOnce(Key) -> P,
    ) -> io::Result<Key> {
        let Connect { address, options, limit, tls } = connect;
        let key = self.insert(Phase::Connecting, (unspecified(address), address), make)?;
        let Some(stream) = self.streams.get_mut(key) else { return Err(full()) };
        stream.options = options.clone();
        stream.wire.tls = tls.and_then(Tls::client);
        if let Err(error) = stream.start_connect(&self.shared, reactor) {
            self.streams.remove(key);
            return Err(error);
        }
        stream.alarm.set_opening_limit(reactor, limit);
        Ok(key)
    }

    /// Goes on with a socket of any core's listener.
    pub(crate) fn adopt(
        &mut self,
        reactor: &mut Reactor,
        adopted: Adopted<'_>,
        make: impl FnOnce(Key) -> P,
    ) -> io::Result<Key> {
        let Adopted { socket, addresses, unread, tls } = adopted;
        let key = self.insert(Phase::Opening, addresses, make)?;
        let socket = match reactor.attach_socket(socket) {
            Ok(socket) => socket,
            Err(error) => {
                self.streams.remove(key);
                return Err(error);
            }
        };
        self.with(reactor, key, |stream, shared, reactor| {
            stream.wire.tls = tls.and_then(|carried| Tls::adopted(carried, shared));
            stream.adopt(shared, reactor, socket, unread);
        });
        Ok(key)
    }

    /// Ends a connection after what was given before.
    pub(crate) fn disconnect(&mut self, reactor: &mut Reactor, key: Key) {
        self.with(reactor, key, Stream::disconnect);
    }

    /// Ends a connection at once.
    pub(crate) fn abort(&mut self, reactor: &mut Reactor, key: Key) {
        self.with(reactor, key, Stream::abort);
    }

    #[inline]
    pub(crate) fn get(&self, key: Key) -> Option<&Stream<P>> {
        self.streams.get(key).map(|stream| &**stream)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut Stream<P>> {
        self.streams.get_mut(key).map(|stream| &mut **stream)
    }

    /// An established connection, to be given something to send with the next [`Streams::flush`], and where it may
    /// gather that at once. No function is passed in here, since what is given would be moved into it.
    #[inline]
    pub(crate) fn get_to_send(&mut self, key: Key) -> Option<(&mut P, Gather<'_>)> {
        let stream = self.streams.get_mut(key).filter(|stream| stream.phase == Phase::Established)?;
        Some(stream.get_to_send(&mut self.shared))
    }

    /// Sends what was given.
    pub(crate) fn flush(&mut self, reactor: &mut Reactor) {
        while let Some(key) = self.shared.dirty.pop_front() {
            self.with(reactor, key, Stream::transmit);
        }
    }

    /// Takes a completion of one of the protocol's [`super::KINDS`].
    pub(crate) fn on_completion(&mut self, reactor: &mut Reactor, completion: Completion) {
        let kind = completion.token.kind - P::KIND_FIRST;
        match kind {
            kind::ACCEPTED => return self.on_accepted(reactor, completion),
            kind::RELIEF => {
                let token = completion.token;
                if let Some(listener) = self.listeners.disarm_eviction(token.index, token.generation) {
                    self.evict_overdue(reactor, listener);
                }
                return;
            }
            _ => {}
        }
        let Completion { token, result, payload } = completion;
        let Some(key) = self.streams.key_of(token.index, token.generation) else { return };
        self.with(reactor, key, |stream, shared, reactor| match (kind, payload) {
            (kind::RECEIVE, Payload::Receive(receive)) => {
                if let Some((receive, result)) = stream.wire.on_received(reactor, receive, result, token) {
                    stream.on_received(shared, reactor, receive, result);
                }
            }
            (kind::SEND, Payload::Send(batch)) => {
                if let Some((batch, result)) = stream.wire.on_sent(shared, reactor, batch, result, token) {
                    stream.on_sent(shared, reactor, batch, result);
                }
            }
            (kind::CONNECT, _) => stream.on_connected(shared, reactor, result),
            (kind::TIMER, _) => stream.on_timer(shared, reactor),
            _ => {}
        });
    }

    fn on_accepted(&mut self, reactor: &mut Reactor, completion: Completion) {
        let full = self.streams.is_full();
        let Some((listener, newcomer)) = self.listeners.on_accepted(reactor, completion, full) else {
            return;
        };
        if let Some(accepted) = self.listeners.next(listener) {
            return self.open(reactor, accepted);
        }
        if let Some((gone, accepted)) = self.listeners.next_instead(listener, newcomer, reactor.now()) {
            self.evict(reactor, gone);
            return self.open(reactor, accepted);
        }
        self.evict_overdue(reactor, listener);
    }

    /// Streams that take their time for the handshake give way to connections that wait.
    fn evict_overdue(&mut self, reactor: &mut Reactor, listener: Key) {
        for _ in 0..RELIEVED_AT_ONCE {
            let gone = self.listeners.overdue(listener, reactor.now());
            if let Some(gone) = gone {
                self.evict(reactor, gone);
            }
            // There may be room though nobody has left just now: some were turned away for lack of memory.
            match self.listeners.next(listener) {
                Some(accepted) => self.open(reactor, accepted),
                None if gone.is_none() => break,
                None => {}
            }
        }
        if let Some(at) = self.listeners.arm_eviction(listener, reactor.now()) {
            reactor.set_timer(at, self.shared.token(kind::RELIEF, listener));
        }
    }

    /// Ends a listener's stream, which is on no list any more, in favour of another.
    fn evict(&mut self, reactor: &mut Reactor, key: Key) {
        self.with(reactor, key, |stream, shared, reactor| {
            let reason = "too many connections in handshake, and this address has most of them";
            tracing::warn!(peer = %stream.addresses.1, reason, "connection closed");
            stream.abort(shared, reactor);
        });
    }

    /// Begins a connection that was accepted.
    fn open(&mut self, reactor: &mut Reactor, accepted: Accepted<P::Terms>) {
        let Accepted { socket, peer, origin, tls, terms } = accepted;
        if !has_headroom(ROOM_BYTES) {
            tracing::warn!(%peer, reason = "the process may have no more memory", "connection refused");
            return reactor.close_socket(socket);
        }
        let inserted = self.insert(Phase::Securing, (peer, peer), |key| P::accepted(key, terms));
        let Ok(key) = inserted else {
            tracing::warn!(%peer, reason = "the table of connections is full", "connection refused");
            return reactor.close_socket(socket);
        };
        self.listeners.opened(origin, key, peer.ip(), reactor.now());
        self.with(reactor, key, |stream, shared, reactor| {
            (stream.wire.socket, stream.origin) = (Some(socket), Some(origin));
            stream.wire.tls = Tls::accepted(tls);
            stream.alarm.set_opening_limit(reactor, shared.config.handshake_timeout);
            stream.secure(shared, reactor);
        });
    }

    /// Resumes what waited for this turn or for buffers. Returns whether something did.
    pub(crate) fn poll(&mut self, reactor: &mut Reactor) -> bool {
        let mut resumed = false;
        // Who yields once more goes on in the turn after this one.
        for _ in 0..self.shared.yielded.len() {
            let Some(key) = self.shared.yielded.pop_front() else { break };
            resumed |= self.with(reactor, key, Stream::resume).is_some();
        }
        // Once around: who finds no buffer keeps its place, but not one with another pool from being served.
        for _ in 0..self.shared.paused.len() {
            let Some(key) = self.shared.paused.pop_front() else { break };
            resumed |= self.with(reactor, key, Stream::resume).unwrap_or(false);
        }
        resumed
    }

    /// Once in a while: gives back what has not been used for some time.
    pub(crate) fn trim(&mut self) {
        self.shared.trim();
        if self.shared.protected > 0 {
            self.streams.iter_mut().for_each(|stream| stream.wire.trim());
        }
    }

    /// Whether something goes on without a completion: the next turn must not wait for one.
    pub(crate) fn is_busy(&self) -> bool {
        !self.shared.yielded.is_empty()
    }

    /// The next event, in the order of each connection.
    #[inline]
    pub(crate) fn next_event(&mut self) -> Option<P::Event> {
        // Asked before it is taken, so that an event is not moved past what is done without one.
        if self.shared.events.rewind() {
            self.streams.reuse();
            return None;
        }
        self.shared.events.take()
    }

    /// See [`Events::exchange`].
    #[inline]
    pub(crate) fn exchange_events(&mut self, taken: &mut Events<P::Event>) -> bool {
        let any = self.shared.events.exchange(taken);
        if !any {
            self.streams.reuse();
        }
        any
    }

    pub(crate) fn len(&self) -> usize {
        self.streams.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Stream<P>> {
        self.streams.iter().map(|stream| &**stream)
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Does something with a stream, hands it out if that was what was missing, and frees its slot if that was its end.
    #[inline]
    fn with<R>(
        &mut self,
        reactor: &mut Reactor,
        key: Key,
        act: impl FnOnce(&mut Stream<P>, &mut Shared<P>, &mut Reactor) -> R,
    ) -> Option<R> {
        let stream = self.streams.get_mut(key)?;
        let result = act(stream, &mut self.shared, reactor);
        while stream.wire.tls.is_some()
            && let Some((receive, received)) = stream.wire.take_ready()
        {
            stream.on_received(&mut self.shared, reactor, receive, received);
        }
        if stream.phase == Phase::Ended || stream.is_adoptable() {
            self.remove(reactor, key);
        }
        Some(result)
    }

    fn remove(&mut self, reactor: &mut Reactor, key: Key) {
        let Some(stream) = self.streams.retire(key) else { return };
        let Some(origin) = stream.origin else { return };
        self.listeners.left(origin, key);
        if stream.phase != Phase::Ended {
            stream.offer(&mut self.shared, reactor, origin.id);
        }
        if let Some(accepted) = self.listeners.next(origin.key) {
            self.open(reactor, accepted);
        }
    }

    fn insert(
        &mut self,
        phase: Phase,
        addresses: (SocketAddr, SocketAddr),
        make: impl FnOnce(Key) -> P,
    ) -> io::Result<Key> {
        let Self { shared, streams, .. } = self;
        let make = |key| Box::new(Stream::new(shared, key, phase, addresses, make(key)));
        streams.insert_with(make).ok_or_else(full)
    }
}

/// What we know of our own address before the connection is made.
fn unspecified(peer: SocketAddr) -> SocketAddr {
    let any: IpAddr = match peer {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    SocketAddr::new(any, 0)
}

fn full() -> io::Error {
    io::Error::new(io::ErrorKind::QuotaExceeded, "the table of connections is full")
}
