//! Listening sockets. They accept streams that have no owner yet.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ringfab_reactor::{
    Completion, ListenAddr, ListenerId, Payload, PeerAddr, Reactor, SocketId, SocketOptions, Time, Token,
};

use super::ListenerTls;
use crate::peers::{PeerCounts, network_of};
use crate::table::{Key, Table};

/// The most listeners.
const LISTENERS_MAX: u32 = 1024;

/// Connections that wait until fewer are in handshake, for each that may be: as many as hosts may come at once after a
/// power cut.
const WAITING_FACTOR: usize = 2;

/// How long a connection may take for its handshake while others wait for its place.
pub(super) const GRACE: Duration = Duration::from_millis(250);

/// The least time between two looks whether somebody has taken longer.
const LOOK: Duration = Duration::from_millis(4);

/// How long it may take before it gives way to one that comes just then, though its peer has no more in handshake than
/// that one's: it has let pass what a handshake takes, and the newcomer may be in earnest.
const HASTE: Duration = Duration::from_millis(100);

/// A socket to listen on.
#[derive(Clone, Debug)]
pub(crate) struct Listen<'a, T> {
    /// Port zero picks a free one.
    pub(crate) address: SocketAddr,
    /// Of every accepted connection.
    pub(crate) options: &'a SocketOptions,
    /// The most connections in handshake at once; more wait, without any memory of ours.
    pub(crate) half_open_max: u32,
    /// Whether they are protected.
    pub(crate) tls: ListenerTls,
    /// What the protocol brings to them.
    pub(crate) terms: T,
}

/// What only a listener's stream has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    pub(super) key: Key,
    pub(super) id: ListenerId,
}

/// A connection that was accepted just now.
pub(super) struct Accepted<T> {
    pub(super) socket: SocketId,
    pub(super) peer: SocketAddr,
    pub(super) origin: Origin,
    pub(super) tls: ListenerTls,
    pub(super) terms: T,
}

/// A connection in handshake.
#[derive(Clone, Copy, Debug)]
struct Opening {
    stream: Key,
    address: IpAddr,
    since: Time,
}

#[derive(Debug)]
struct Listener<T> {
    /// None until the system has bound it.
    id: Option<ListenerId>,
    half_open_max: usize,
    /// In handshake, the oldest first, and how many each peer has of them.
    opening: VecDeque<Opening>,
    opening_shares: PeerCounts,
    /// Accepted, and to be received from when fewer are in handshake; and how many each peer has of them.
    waiting: VecDeque<(SocketId, SocketAddr)>,
    waiting_shares: PeerCounts,
    /// Whether a timer runs for those that wait.
    eviction_armed: bool,
    tls: ListenerTls,
    terms: T,
}

/// All listeners of a core, for one protocol.
#[derive(Debug)]
pub(super) struct Listeners<T>(Table<Listener<T>>);

impl<T: Copy> Listeners<T> {
    pub(super) fn new() -> Self {
        Self(Table::new(LISTENERS_MAX))
    }

    /// Listens; `token` makes the token of what is accepted.
    pub(super) fn listen(
        &mut self,
        reactor: &mut Reactor,
        listen: Listen<'_, T>,
        token: impl FnOnce(Key) -> Token,
    ) -> io::Result<(ListenerId, SocketAddr)> {
        let Listen { address, options, half_open_max, tls, terms } = listen;
        let made = self.0.insert_with(|_| Listener::new(half_open_max as usize, tls, terms));
        let Some(key) = made else { return Err(io::ErrorKind::QuotaExceeded.into()) };
        match reactor.listen(&ListenAddr::Tcp(address), options, token(key)) {
            Ok(bind) => {
                if let Some(listener) = self.0.get_mut(key) {
                    listener.id = Some(bind.listener);
                }
                match bind.address {
                    ListenAddr::Tcp(address) => Ok((bind.listener, address)),
                    ListenAddr::Unix(_) => Err(io::ErrorKind::Unsupported.into()),
                }
            }
            Err(error) => {
                self.0.remove(key);
                Err(error)
            }
        }
    }

    pub(super) fn close(&mut self, reactor: &mut Reactor, listener: ListenerId) {
        let found = |key: &Key| self.0.get(*key).is_some_and(|known| known.id == Some(listener));
        if let Some(key) = self.0.keys().into_iter().find(found) {
            let waiting = self.0.remove(key).map(|listener| listener.waiting).unwrap_or_default();
            waiting.into_iter().for_each(|(socket, _)| reactor.close_socket(socket));
            reactor.close_listener(listener);
        }
    }

    /// A listener accepted a connection, or could not. The connection is the last of those that wait then. Says which
    /// listener it was, and who came.
    pub(super) fn on_accepted(
        &mut self,
        reactor: &mut Reactor,
        completion: Completion,
        full: bool,
    ) -> Option<(Key, IpAddr)> {
        let (socket, peer) = match (completion.result, completion.payload) {
            (Ok(_), Payload::Accepted(socket, PeerAddr::Tcp(peer))) => (socket, peer),
            (Ok(_), Payload::Accepted(socket, PeerAddr::Unix)) => {
                reactor.close_socket(socket);
                return None;
            }
            (Err(error), _) => {
                tracing::warn!(%error, "accept failed");
                return None;
            }
            _ => return None,
        };
        let key = self.0.key_of(completion.token.index, completion.token.generation);
        let listener = key.filter(|_| !full).and_then(|key| self.0.get_mut(key));
        let Some(listener) = listener else {
            tracing::warn!(%peer, reason = "the table of connections is full", "connection refused");
            reactor.close_socket(socket);
            return None;
        };
        listener.waiting.push_back((socket, peer));
        listener.waiting_shares.enter(peer.ip());
        if listener.waiting.len() > listener.half_open_max * WAITING_FACTOR {
            listener.drop_waiting(reactor);
        }
        Some((key?, peer.ip()))
    }

    /// The connection that came last of those that wait, if one more may be in handshake. So each waits for a place
    /// alone, and not for all that somebody has put before it; who came first may have given up.
    pub(super) fn next(&mut self, key: Key) -> Option<Accepted<T>> {
        let listener = self.0.get_mut(key)?;
        let has_room = listener.opening.len() < listener.half_open_max;
        let id = listener.id.filter(|_| has_room)?;
        listener.accept(Origin { key, id })
    }

    /// The connection of a newcomer, which has just been put behind those that wait, and the stream that gives way to
    /// it: the oldest of the peer that has most in handshake, if that has more than the newcomer, or else the oldest of
    /// all, if that has taken its time.
    pub(super) fn next_instead(
        &mut self,
        key: Key,
        newcomer: IpAddr,
        now: Time,
    ) -> Option<(Key, Accepted<T>)> {
        let listener = self.0.get_mut(key)?;
        let id = listener.id?;
        // Who waits is taken off last, so that there is one for whoever gives way.
        listener.waiting.back()?;
        let gone = match listener.opening_shares.eviction_candidate(newcomer) {
            Some(network) => listener.leave_oldest(|opening| network_of(opening.address) == network),
            None => listener.leave_overdue(now, HASTE),
        }?;
        Some((gone, listener.accept(Origin { key, id })?))
    }

    /// The stream that gives way to who waits because it has taken its time: of the peer that has most, or else of all,
    /// the oldest.
    pub(super) fn overdue(&mut self, key: Key, now: Time) -> Option<Key> {
        let listener = self.0.get_mut(key).filter(|listener| !listener.waiting.is_empty())?;
        let (network, _) = listener.opening_shares.largest()?;
        let is_overdue = |opening: &Opening| now >= opening.since + GRACE;
        let of_greediest =
            listener.leave_oldest(|opening| network_of(opening.address) == network && is_overdue(opening));
        of_greediest.or_else(|| listener.leave_overdue(now, GRACE))
    }

    /// When to look whether somebody is overdue, if that is not known to who asks: while connections wait.
    pub(super) fn arm_eviction(&mut self, key: Key, now: Time) -> Option<Time> {
        let listener = self.0.get_mut(key).filter(|listener| !listener.waiting.is_empty())?;
        let oldest = listener.opening.front().map(|opening| opening.since + GRACE);
        (!std::mem::replace(&mut listener.eviction_armed, true))
            .then(|| oldest.unwrap_or(now).max(now + LOOK))
    }

    /// The timer for those that wait has fired.
    pub(super) fn disarm_eviction(&mut self, index: u32, generation_low: u16) -> Option<Key> {
        let key = self.0.key_of(index, generation_low)?;
        self.0.get_mut(key)?.eviction_armed = false;
        Some(key)
    }

    /// A stream of a listener is in handshake.
    pub(super) fn opened(&mut self, origin: Origin, stream: Key, address: IpAddr, since: Time) {
        if let Some(listener) = self.0.get_mut(origin.key) {
            listener.opening.push_back(Opening { stream, address, since });
            listener.opening_shares.enter(address);
        }
    }

    /// A stream has left, to be adopted or for good.
    pub(super) fn left(&mut self, origin: Origin, stream: Key) {
        if let Some(listener) = self.0.get_mut(origin.key) {
            listener.leave_oldest(|opening| opening.stream == stream);
        }
    }
}

impl<T: Copy> Listener<T> {
    /// Takes the connection that came last off the list of those that wait.
    fn accept(&mut self, origin: Origin) -> Option<Accepted<T>> {
        let (socket, peer) = self.waiting.pop_back()?;
        self.waiting_shares.leave(peer.ip());
        Some(Accepted { socket, peer, origin, tls: self.tls.clone(), terms: self.terms })
    }

    fn new(half_open_max: usize, tls: ListenerTls, terms: T) -> Self {
        Self {
            id: None,
            half_open_max: half_open_max.max(1),
            opening: VecDeque::new(),
            opening_shares: PeerCounts::default(),
            waiting: VecDeque::new(),
            waiting_shares: PeerCounts::default(),
            eviction_armed: false,
            tls,
            terms,
        }
    }

    /// Takes the oldest of a kind off the list of those in handshake.
    fn leave_oldest(&mut self, kind: impl Fn(&Opening) -> bool) -> Option<Key> {
        let position = self.opening.iter().position(kind)?;
        let Opening { stream, address, .. } = self.opening.remove(position)?;
        self.opening_shares.leave(address);
        Some(stream)
    }

    /// Takes the oldest of all off the list, if it is there for so long.
    fn leave_overdue(&mut self, now: Time, limit: Duration) -> Option<Key> {
        let oldest = self.opening.front().filter(|oldest| now >= oldest.since + limit)?.stream;
        self.leave_oldest(|opening| opening.stream == oldest)
    }

    /// Closes the connection that has waited longest of the peer that has most waiting.
    fn drop_waiting(&mut self, reactor: &mut Reactor) {
        let Some((network, _)) = self.waiting_shares.largest() else { return };
        let position = self.waiting.iter().position(|(_, peer)| network_of(peer.ip()) == network);
        let Some((socket, peer)) = position.and_then(|position| self.waiting.remove(position)) else {
            return;
        };
        self.waiting_shares.leave(peer.ip());
        let reason = "too many connections wait for a handshake, and this address has most of them";
        tracing::warn!(%peer, reason, "connection closed");
        reactor.close_socket(socket);
    }
}
