//! One core's software RNIC.

use std::io;
use std::net::SocketAddr;

use bytes::Bytes;
use ringfab_memory::Lease;
use ringfab_reactor::{Completion, ListenerId, Payload, Reactor};

use super::connect::Dial;
use super::connection::{Connection, Phase};
use super::farewell::Farewells;
use super::kind;
use super::listener::{Listeners, PendingAccept};
use super::message::Message;
use super::shared::Shared;
use crate::rdma::table::{Key, Table};
use crate::rdma::{
    Access, ConnectParameters, Event, ListenParameters, PostError, ProtectionDomain, QueuePairAttributes,
    QueuePairId, RemoteBuffer, RnicConfig, RnicCounters, Scope, SendRequest,
};

/// The tables of a core's software RNIC.
#[derive(Debug)]
pub(crate) struct Device {
    connections: Table<Box<Connection>>,
    listeners: Listeners,
    farewells: Farewells,
    shared: Shared,
}

impl Device {
    pub(crate) fn new(config: RnicConfig) -> io::Result<Self> {
        Ok(Self {
            connections: Table::new(config.queue_pairs_max),
            listeners: Listeners::new(config.queue_pairs_max),
            farewells: Farewells::new(config.queue_pairs_max),
            shared: Shared::new(config)?,
        })
    }

    pub(crate) fn allocate_domain(&mut self) -> ProtectionDomain {
        self.shared.regions.allocate_domain()
    }

    pub(crate) fn deallocate_domain(&mut self, domain: ProtectionDomain) {
        self.shared.regions.deallocate_domain(domain);
    }

    pub(crate) fn expose(
        &mut self,
        scope: Scope,
        lease: Lease,
        offset: u32,
        length: u32,
        access: Access,
    ) -> Option<RemoteBuffer> {
        let domain = match scope {
            Scope::Domain(domain) => domain,
            Scope::QueuePair(queue_pair) => self.connections.get(key(queue_pair))?.attributes.domain,
        };
        self.shared.regions.expose(domain, lease, offset, length, access)
    }

    pub(crate) fn revoke(&mut self, key: u32) -> Option<Lease> {
        self.shared.regions.revoke(key)
    }

    pub(crate) fn listen(
        &mut self,
        reactor: &mut Reactor,
        parameters: &ListenParameters,
    ) -> io::Result<(ListenerId, SocketAddr)> {
        self.listeners.listen(&self.shared, reactor, parameters)
    }

    pub(crate) fn close_listener(&mut self, reactor: &mut Reactor, listener: ListenerId) {
        self.listeners.close(reactor, listener);
    }

    pub(crate) fn connect(
        &mut self,
        reactor: &mut Reactor,
        parameters: &ConnectParameters<'_>,
    ) -> io::Result<QueuePairId> {
        check(&parameters.attributes)?;
        let dial = Dial::new(&self.shared.config, parameters)?;
        let addresses = (unspecified(parameters.address), parameters.address);
        let key = self.insert(&parameters.attributes, addresses)?;
        let Some(connection) = self.connections.get_mut(key) else { return Err(full()) };
        connection.dial = Some(Box::new(dial));
        if let Err(error) = connection.start_connect(&mut self.shared, reactor) {
            self.connections.remove(key);
            return Err(error);
        }
        connection.start_connect_timer(&self.shared, reactor);
        Ok(connection.id())
    }

    pub(crate) fn accept(
        &mut self,
        reactor: &mut Reactor,
        pending: PendingAccept,
        said: Bytes,
        attributes: &QueuePairAttributes,
        private_data: &[u8],
    ) -> io::Result<QueuePairId> {
        check(attributes)?;
        let invalid = |error| io::Error::new(io::ErrorKind::InvalidInput, error);
        let mut responder = pending.responder;
        responder.set_depths(attributes.responder_resources, attributes.initiator_depth);
        let (negotiated, reply) = responder.accept(private_data).map_err(invalid)?;
        if self.connections.is_full() {
            return Err(full());
        }
        let socket = reactor.attach_socket(pending.socket)?;
        let addresses = reactor.socket_addresses(socket);
        let made = addresses.and_then(|addresses| self.insert(attributes, addresses));
        let key = made.inspect_err(|_| reactor.close_socket(socket))?;
        let Some(connection) = self.connections.get_mut(key) else { return Err(full()) };
        connection.phase = Phase::Replying;
        connection.socket = Some(socket);
        connection.reply = Some((negotiated, said));
        connection.open_tap(&mut self.shared, reactor, false);
        if let Some(tap) = &mut connection.tap {
            tap.received(&pending.request);
        }
        connection.set_timer(&self.shared, reactor, self.shared.config.handshake_timeout);
        connection.send_frame(&mut self.shared, reactor, &reply);
        Ok(connection.id())
    }

    pub(crate) fn reject(&mut self, reactor: &mut Reactor, pending: PendingAccept, private_data: &[u8]) {
        let frame = pending.responder.reject(private_data);
        match (frame, reactor.attach_socket(pending.socket)) {
            (Ok(frame), Ok(socket)) => self.farewells.start(&self.shared, reactor, socket, &frame),
            (Err(error), Ok(socket)) => {
                tracing::warn!(%error, "a rejection could not be said");
                reactor.close_socket(socket);
            }
            (_, Err(error)) => tracing::warn!(%error, "a rejection could not be sent"),
        }
    }

    pub(crate) fn disconnect(&mut self, reactor: &mut Reactor, queue_pair: QueuePairId) {
        self.with(key(queue_pair), |connection, shared| connection.disconnect(shared, reactor));
    }

    pub(crate) fn abort(&mut self, reactor: &mut Reactor, queue_pair: QueuePairId) {
        self.with(key(queue_pair), |connection, shared| connection.abort(shared, reactor));
    }

    #[inline]
    pub(crate) fn post_send(
        &mut self,
        queue_pair: QueuePairId,
        request: SendRequest,
    ) -> Result<(), PostError> {
        match self.connections.get_mut(key(queue_pair)) {
            Some(connection) => connection.post(&mut self.shared, request),
            None => Err(PostError::Ended(Box::new(request))),
        }
    }

    #[inline]
    pub(crate) fn post_receive(&mut self, queue_pair: QueuePairId, count: u32) {
        if let Some(connection) = self.connections.get_mut(key(queue_pair)) {
            connection.post_receive(count);
        }
    }

    pub(crate) fn flush(&mut self, reactor: &mut Reactor) {
        while let Some(key) = self.shared.dirty.pop_front() {
            self.with(key, |connection, shared| {
                connection.dirty = false;
                connection.transmit(shared, reactor);
            });
        }
    }

    pub(crate) fn on_completion(&mut self, reactor: &mut Reactor, completion: Completion) {
        match completion.token.kind {
            kind::ACCEPTED => self.listeners.on_accepted(&self.shared, reactor, completion),
            kind::HALF_OPEN_RECEIVE => {
                self.listeners.on_received(&mut self.shared, reactor, &mut self.farewells, completion);
            }
            kind::HALF_OPEN_TIMER => self.listeners.on_timer(reactor, &completion),
            kind::FAREWELL_SEND | kind::FAREWELL_RECEIVE | kind::FAREWELL_TIMER => {
                self.farewells.on_completion(&self.shared, reactor, completion);
            }
            _ => self.on_connection(reactor, completion),
        }
    }

    pub(crate) fn poll(&mut self, reactor: &mut Reactor) -> bool {
        let mut resumed = false;
        // Once around: who finds no buffer keeps its place, but not one with another pool from being served.
        for _ in 0..self.shared.paused.len() {
            let Some(key) = self.shared.paused.pop_front() else { break };
            let served = self.with(key, |connection, shared| connection.resume(shared, reactor));
            match served {
                Some(false) => self.shared.paused.push_back(key),
                Some(true) => resumed = true,
                None => {}
            }
        }
        resumed
    }

    #[inline]
    pub(crate) fn next_event(&mut self) -> Option<Event> {
        let event = self.shared.events.pop_front();
        if event.is_none() {
            self.connections.reuse();
        }
        event
    }

    pub(crate) fn addresses(&self, queue_pair: QueuePairId) -> Option<(SocketAddr, SocketAddr)> {
        self.connections.get(key(queue_pair)).map(|connection| connection.addresses)
    }

    pub(crate) fn counters(&self) -> RnicCounters {
        let mut counters = self.shared.counters;
        counters.queue_pairs = self.connections.len() as u64;
        counters.regions = self.shared.regions.len() as u64;
        for connection in self.connections.iter() {
            connection.count_fpdus(&mut counters);
        }
        counters
    }

    fn on_connection(&mut self, reactor: &mut Reactor, completion: Completion) {
        let Completion { token, result, payload } = completion;
        let Some(key) = self.connections.key_of(token.index, token.generation) else { return };
        self.with(key, |connection, shared| match (token.kind, payload) {
            (kind::RECEIVE, Payload::Receive(receive)) => {
                connection.on_received(shared, reactor, receive, result);
            }
            (kind::SEND, Payload::Send(batch)) => connection.on_sent(shared, reactor, batch, result),
            (kind::CONNECT, _) => connection.on_connected(shared, reactor, result),
            (kind::TIMER, _) => connection.on_timer(shared, reactor),
            _ => {}
        });
    }

    /// Does something with a queue pair, and frees its slot if that was its end.
    #[inline]
    fn with<R>(&mut self, key: Key, act: impl FnOnce(&mut Connection, &mut Shared) -> R) -> Option<R> {
        let connection = self.connections.get_mut(key)?;
        let result = act(connection, &mut self.shared);
        if connection.phase == Phase::Ended {
            self.connections.retire(key);
        }
        Some(result)
    }

    fn insert(
        &mut self,
        attributes: &QueuePairAttributes,
        addresses: (SocketAddr, SocketAddr),
    ) -> io::Result<Key> {
        let make = |key| Box::new(Connection::new(key, attributes.clone(), addresses));
        self.connections.insert_with(make).ok_or_else(full)
    }
}

/// The queue pair that a key names, told from those of the other provider by being even.
pub(super) fn queue_pair_id(key: Key) -> QueuePairId {
    QueuePairId { index: key.index << 1, generation: key.generation }
}

fn key(queue_pair: QueuePairId) -> Key {
    Key { index: queue_pair.index >> 1, generation: queue_pair.generation }
}

fn full() -> io::Error {
    io::Error::new(io::ErrorKind::QuotaExceeded, "the table of queue pairs is full")
}

/// What we know of our own address before the connection is made.
fn unspecified(peer: SocketAddr) -> SocketAddr {
    let any: std::net::IpAddr = match peer {
        SocketAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    SocketAddr::new(any, 0)
}

/// A message that no buffer could ever hold would wait for ever.
fn check(attributes: &QueuePairAttributes) -> io::Result<()> {
    if Message::data_bytes_max(attributes.receive_bytes_max) > attributes.pool.buffer_bytes_max() {
        let what = "the largest message does not fit a buffer of the pool";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    Ok(())
}
