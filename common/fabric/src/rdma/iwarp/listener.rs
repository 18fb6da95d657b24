//! Listeners, and accepted sockets until their MPA request is complete.

use std::io;
use std::net::SocketAddr;

use bytes::Bytes;
use ringfab_proto::iwarp::mpa::{MpaConfig, MpaError, Responder};
use ringfab_reactor::{
    Completion, DetachedSocket, ListenAddr, ListenerId, Payload, PeerAddr, Reactor, ReceiveOp, SocketId,
    Time, TimerId,
};

use super::connect::revision;
use super::farewell::Farewells;
use super::kind;
use super::shared::Shared;
use crate::rdma::provider::Pending;
use crate::rdma::table::{Key, Table};
use crate::rdma::{ConnectRequest, Event, ListenParameters};

/// A request with the most private data, and a byte that must not follow it.
const REQUEST_BYTES_MAX: usize = 20 + 512 + 1;

/// The most listeners.
const LISTENERS_MAX: u32 = 1024;

/// An accepted socket after the peer's MPA request. It may travel to another core.
#[derive(Debug)]
pub(crate) struct PendingAccept {
    pub(super) socket: DetachedSocket,
    pub(super) responder: Responder,
    /// The bytes of the request, for a capture.
    pub(super) request: Vec<u8>,
}

/// A listening socket.
#[derive(Debug)]
struct Listener {
    /// None until the system has bound it.
    id: Option<ListenerId>,
    half_open: u32,
    half_open_max: u32,
    mpa: MpaConfig,
}

/// A socket whose request is not complete.
#[derive(Debug)]
struct HalfOpen {
    listener: Key,
    listener_id: ListenerId,
    /// None once it is closed.
    socket: Option<SocketId>,
    peer: SocketAddr,
    responder: Responder,
    request: Vec<u8>,
    timer: (TimerId, Time),
    receiving: bool,
}

/// What to do with a half-open socket.
enum Verdict {
    Wait,
    Request,
    /// It speaks MPA but asks for what we cannot do: it is told so.
    Refuse,
    Close,
}

/// All listeners of a core and what they accepted.
#[derive(Debug)]
pub(super) struct Listeners {
    listeners: Table<Listener>,
    half_open: Table<HalfOpen>,
}

/// What a listener brings to an exchange, before anybody knows the limits of the queue pair that will answer.
fn mpa_of(parameters: &ListenParameters) -> MpaConfig {
    let revision = revision(parameters.mpa_revision);
    MpaConfig { revision, crc: parameters.crc, ..MpaConfig::default() }
}

impl Listeners {
    pub(super) fn new(half_open_max: u32) -> Self {
        Self { listeners: Table::new(LISTENERS_MAX), half_open: Table::new(half_open_max) }
    }

    pub(super) fn listen(
        &mut self,
        shared: &Shared,
        reactor: &mut Reactor,
        parameters: &ListenParameters,
    ) -> io::Result<(ListenerId, SocketAddr)> {
        let mpa = mpa_of(parameters);
        let make = |_| Listener { id: None, half_open: 0, half_open_max: parameters.half_open_max, mpa };
        let Some(key) = self.listeners.insert_with(make) else {
            return Err(io::ErrorKind::QuotaExceeded.into());
        };
        let token = shared.token(kind::ACCEPTED, key);
        let bound = reactor.listen(&ListenAddr::Tcp(parameters.address), &parameters.socket, token);
        match bound {
            Ok(bind) => {
                if let Some(listener) = self.listeners.get_mut(key) {
                    listener.id = Some(bind.listener);
                }
                match bind.address {
                    ListenAddr::Tcp(address) => Ok((bind.listener, address)),
                    ListenAddr::Unix(_) => Err(io::ErrorKind::Unsupported.into()),
                }
            }
            Err(error) => {
                self.listeners.remove(key);
                Err(error)
            }
        }
    }

    pub(super) fn close(&mut self, reactor: &mut Reactor, listener: ListenerId) {
        let found = |key: &Key| self.listeners.get(*key).is_some_and(|known| known.id == Some(listener));
        if let Some(key) = self.listeners.keys().into_iter().find(found) {
            self.listeners.remove(key);
            reactor.close_listener(listener);
        }
    }

    /// A listener accepted a connection, or could not.
    pub(super) fn on_accepted(&mut self, shared: &Shared, reactor: &mut Reactor, completion: Completion) {
        let (socket, peer) = match (completion.result, completion.payload) {
            (Ok(_), Payload::Accepted(socket, PeerAddr::Tcp(peer))) => (socket, peer),
            (Ok(_), Payload::Accepted(socket, PeerAddr::Unix)) => return reactor.close_socket(socket),
            (Err(error), _) => return tracing::warn!(%error, "accept failed"),
            _ => return,
        };
        let token = completion.token;
        let listener = self.listeners.key_of(token.index, token.generation);
        let room = listener.filter(|key| self.has_room(*key));
        let Some(listener) = room else {
            tracing::warn!(%peer, "too many connections in handshake: closed");
            return reactor.close_socket(socket);
        };
        self.open(shared, reactor, listener, socket, peer);
    }

    fn has_room(&self, listener: Key) -> bool {
        let known = self.listeners.get(listener);
        known.is_some_and(|listener| listener.half_open < listener.half_open_max) && !self.half_open.is_full()
    }

    fn open(
        &mut self,
        shared: &Shared,
        reactor: &mut Reactor,
        listener: Key,
        socket: SocketId,
        peer: SocketAddr,
    ) {
        let at = reactor.now() + shared.config.handshake_timeout;
        let known = self.listeners.get(listener).and_then(|known| Some((known.id?, known.mpa)));
        let Some((listener_id, mpa)) = known else { return reactor.close_socket(socket) };
        let inserted = self.half_open.insert_with(|key| HalfOpen {
            listener,
            listener_id,
            socket: Some(socket),
            peer,
            responder: Responder::new(mpa),
            request: Vec::with_capacity(REQUEST_BYTES_MAX),
            timer: (reactor.set_timer(at, shared.token(kind::HALF_OPEN_TIMER, key)), at),
            receiving: false,
        });
        let Some(key) = inserted else { return reactor.close_socket(socket) };
        if let Some(listener) = self.listeners.get_mut(listener) {
            listener.half_open += 1;
        }
        if let Some(half_open) = self.half_open.get_mut(key) {
            half_open.receive(shared, reactor, key, ReceiveOp::new(REQUEST_BYTES_MAX));
        }
    }

    /// Bytes of a request, or the end of the stream.
    pub(super) fn on_received(
        &mut self,
        shared: &mut Shared,
        reactor: &mut Reactor,
        farewells: &mut Farewells,
        completion: Completion,
    ) {
        let token = completion.token;
        let Payload::Receive(receive) = completion.payload else { return };
        let Some(key) = self.half_open.key_of(token.index, token.generation) else { return };
        let Some(half_open) = self.half_open.get_mut(key) else { return };
        half_open.receiving = false;
        match half_open.judge(&receive, &completion.result) {
            Verdict::Wait => half_open.receive(shared, reactor, key, receive),
            verdict => {
                if let Some(half_open) = self.remove(reactor, key) {
                    half_open.answer(shared, reactor, farewells, &verdict);
                }
            }
        }
    }

    /// A request took too long.
    pub(super) fn on_timer(&mut self, reactor: &mut Reactor, completion: &Completion) {
        let token = completion.token;
        let Some(key) = self.half_open.key_of(token.index, token.generation) else { return };
        let Some(half_open) = self.half_open.get_mut(key) else { return };
        if reactor.now() < half_open.timer.1 {
            return;
        }
        tracing::warn!(peer = %half_open.peer, "no complete MPA request in time: closed");
        // The receive in flight comes back and takes the entry with it.
        if let Some(socket) = half_open.socket.take() {
            reactor.close_socket(socket);
        }
    }

    fn remove(&mut self, reactor: &mut Reactor, key: Key) -> Option<HalfOpen> {
        let half_open = self.half_open.remove(key)?;
        reactor.cancel_timer(half_open.timer.0);
        if let Some(listener) = self.listeners.get_mut(half_open.listener) {
            listener.half_open -= 1;
        }
        Some(half_open)
    }
}

impl HalfOpen {
    fn receive(&mut self, shared: &Shared, reactor: &mut Reactor, key: Key, mut receive: Box<ReceiveOp>) {
        let Some(socket) = self.socket else { return };
        receive.aim(None, 0, REQUEST_BYTES_MAX);
        self.receiving = true;
        reactor.receive(socket, receive, shared.token(kind::HALF_OPEN_RECEIVE, key));
    }

    /// Looks at what came.
    fn judge(&mut self, receive: &ReceiveOp, result: &io::Result<u32>) -> Verdict {
        if self.socket.is_none() || !matches!(result, Ok(1..)) {
            return Verdict::Close;
        }
        let bytes = &receive.staging()[..receive.staging_received()];
        match self.responder.receive(bytes) {
            Ok((consumed, complete)) => {
                self.request.extend_from_slice(&bytes[..consumed]);
                match (complete, consumed == bytes.len()) {
                    (true, true) => Verdict::Request,
                    (true, false) => {
                        tracing::warn!(peer = %self.peer, "bytes follow an MPA request before its reply: closed");
                        Verdict::Close
                    }
                    (false, _) => Verdict::Wait,
                }
            }
            Err(error) => {
                tracing::warn!(peer = %self.peer, %error, "bad MPA request: closed");
                let spoke_mpa = matches!(
                    error,
                    MpaError::Revision(_)
                        | MpaError::Markers
                        | MpaError::EnhancedLen(_)
                        | MpaError::NoMatchingReady
                );
                if spoke_mpa { Verdict::Refuse } else { Verdict::Close }
            }
        }
    }

    /// Acts on a final verdict.
    fn answer(
        self,
        shared: &mut Shared,
        reactor: &mut Reactor,
        farewells: &mut Farewells,
        verdict: &Verdict,
    ) {
        let Some(socket) = self.socket else { return };
        match (verdict, self.responder.reject(&[])) {
            (Verdict::Request, _) => match reactor.socket_addresses(socket) {
                Ok((local, _)) => {
                    let event = Event::ConnectRequest(self.into_request(reactor, socket, local));
                    shared.events.push_back(event);
                }
                // The peer has left already.
                Err(_) => reactor.close_socket(socket),
            },
            (Verdict::Refuse, Ok(frame)) => farewells.start(shared, reactor, socket, &frame),
            _ => reactor.close_socket(socket),
        }
    }

    fn into_request(self, reactor: &mut Reactor, socket: SocketId, local: SocketAddr) -> ConnectRequest {
        ConnectRequest {
            listener: crate::rdma::ListenerId::Iwarp(self.listener_id),
            local,
            peer: self.peer,
            private_data: Bytes::copy_from_slice(self.responder.private_data()),
            initiator_depth_max: self.responder.peer_depths().map(|(ird, _)| ird),
            pending: Box::new(Pending::Iwarp(PendingAccept {
                socket: reactor.detach_socket(socket),
                responder: self.responder,
                request: self.request,
            })),
        }
    }
}
