//! Listening sockets. What they accept are streams that nobody has adopted.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;

use ringfab_reactor::{
    Completion, ListenAddr, ListenerId, Payload, PeerAddr, Reactor, SocketId, SocketOptions, Token,
};

use crate::table::{Key, Table};

/// The most listeners.
const LISTENERS_MAX: u32 = 1024;

/// The most connections that wait until fewer are in handshake: as many as hosts may come at once after a power cut.
const WAITING_MAX: usize = 2048;

/// A socket to listen on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listen<'a, T> {
    /// Port zero picks a free one.
    pub(crate) address: SocketAddr,
    /// Of every accepted connection.
    pub(crate) options: &'a SocketOptions,
    /// The most connections in handshake at once; more wait, without any memory of ours.
    pub(crate) half_open_max: u32,
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
#[derive(Clone, Copy)]
pub(super) struct Accepted<T> {
    pub(super) socket: SocketId,
    pub(super) peer: SocketAddr,
    pub(super) origin: Origin,
    pub(super) terms: T,
}

#[derive(Debug)]
struct Listener<T> {
    /// None until the system has bound it.
    id: Option<ListenerId>,
    half_open: u32,
    half_open_max: u32,
    /// Accepted, and to be received from when fewer are in handshake.
    waiting: VecDeque<(SocketId, SocketAddr)>,
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
        listen: &Listen<'_, T>,
        token: impl FnOnce(Key) -> Token,
    ) -> io::Result<(ListenerId, SocketAddr)> {
        let Listen { half_open_max, terms, .. } = *listen;
        let make = |_| Listener { id: None, half_open: 0, half_open_max, waiting: VecDeque::new(), terms };
        let Some(key) = self.0.insert_with(make) else { return Err(io::ErrorKind::QuotaExceeded.into()) };
        match reactor.listen(&ListenAddr::Tcp(listen.address), listen.options, token(key)) {
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

    /// A listener accepted a connection, or could not. None when it is not to be had, which was dealt with then, or has to
    /// wait for [`Listeners::next`].
    pub(super) fn on_accepted(
        &mut self,
        reactor: &mut Reactor,
        completion: Completion,
        full: bool,
    ) -> Option<Accepted<T>> {
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
        let Some(listener) = listener.filter(|listener| listener.waiting.len() < WAITING_MAX) else {
            tracing::warn!(%peer, "too many connections in handshake: closed");
            reactor.close_socket(socket);
            return None;
        };
        listener.waiting.push_back((socket, peer));
        self.next(key?)
    }

    /// The first of a listener's connections that wait, if one more may be in handshake.
    pub(super) fn next(&mut self, key: Key) -> Option<Accepted<T>> {
        let listener = self.0.get_mut(key)?;
        let id = listener.id.filter(|_| listener.half_open < listener.half_open_max)?;
        let (socket, peer) = listener.waiting.pop_front()?;
        listener.half_open += 1;
        Some(Accepted { socket, peer, origin: Origin { key, id }, terms: listener.terms })
    }

    /// A stream has left, to be adopted or for good.
    pub(super) fn left(&mut self, origin: Origin) {
        if let Some(listener) = self.0.get_mut(origin.key) {
            listener.half_open -= 1;
        }
    }
}
