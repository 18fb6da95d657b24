//! One core's NVMe/TCP.

use std::io;
use std::net::SocketAddr;

use ringfab_memory::{Buffer, Lease};
use ringfab_proto::tcp::{Engine, HostConfig};
use ringfab_reactor::{Completion, ListenerId, Payload, Reactor};
use ringfab_spec::{CompletionEntry, SubmissionEntry};

use super::connection::{Connection, End, Phase};
use super::listener::{DIRECT_BYTES_MIN, Listeners, adopted_engine};
use super::shared::Shared;
use super::{
    AcceptParameters, ConnectError, ConnectParameters, Ended, Event, Incoming, ListenParameters, SubmitData,
    TcpConfig, kind,
};
use crate::rdma::Slice;
use crate::rdma::table::{Key, Table};

/// R2Ts that a controller may have outstanding for a command.
const R2TS_MAX: u32 = 16;

/// A connection of this core. Handles of ended ones are recognised and ignored.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ConnectionId {
    /// Slot in the table; small and dense, so that a caller may index by it.
    pub index: u32,
    /// Generation of the slot.
    pub generation: u32,
}

/// What a core's NVMe/TCP has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Connections that exist now.
    pub connections: u64,
    /// Data received straight into their final place, in bytes.
    pub received_direct_bytes: u64,
    /// Data copied from staging memory, in bytes.
    pub received_copied_bytes: u64,
    /// Bytes given to sockets.
    pub sent_bytes: u64,
    /// Connections ended by a violation of the peer.
    pub violations: u64,
}

/// One core's connections and listeners.
#[derive(Debug)]
pub struct TcpStack {
    connections: Table<Box<Connection>>,
    listeners: Listeners,
    shared: Shared,
}

impl TcpStack {
    /// No connection yet.
    pub fn new(config: TcpConfig) -> Self {
        Self {
            connections: Table::new(config.connections_max),
            listeners: Listeners::new(),
            shared: Shared::new(config),
        }
    }

    /// Listens for connections.
    ///
    /// # Errors
    /// The system's refusal to bind.
    pub fn listen(
        &mut self,
        reactor: &mut Reactor,
        parameters: &ListenParameters,
    ) -> io::Result<(ListenerId, SocketAddr)> {
        self.listeners.listen(&self.shared, reactor, parameters)
    }

    /// Stops listening.
    pub fn close_listener(&mut self, reactor: &mut Reactor, listener: ListenerId) {
        self.listeners.close(reactor, listener);
    }

    /// Starts a connection to a controller. [`Event::Established`] or [`Event::ConnectFailed`] follows.
    ///
    /// # Errors
    /// When the table is full, or no socket could be made.
    pub fn connect(
        &mut self,
        reactor: &mut Reactor,
        parameters: &ConnectParameters,
    ) -> io::Result<ConnectionId> {
        let engine = Engine::host(HostConfig {
            digests: parameters.digests,
            alignment_dwords: 1,
            r2ts_max: R2TS_MAX,
            commands_max: parameters.commands_max,
            direct_bytes_min: DIRECT_BYTES_MIN,
        });
        let addresses = (parameters.address, parameters.address);
        let key = self.insert(Phase::Connecting, addresses, engine)?;
        let Some(connection) = self.connections.get_mut(key) else { return Err(full()) };
        let token = self.shared.token(kind::CONNECT, key);
        match reactor.connect(parameters.address, &parameters.socket, token) {
            Ok(socket) => {
                (connection.socket, connection.connecting) = (Some(socket), true);
                connection.connect_timeout = parameters.timeout;
                connection.set_timer(&self.shared, reactor, parameters.timeout);
                Ok(connection.id())
            }
            Err(error) => {
                self.connections.remove(key);
                Err(error)
            }
        }
    }

    /// Adopts a connection of any core's listener. Its first command follows.
    ///
    /// # Errors
    /// When a table is full.
    pub fn accept(
        &mut self,
        reactor: &mut Reactor,
        incoming: Incoming,
        parameters: &AcceptParameters,
    ) -> io::Result<ConnectionId> {
        if parameters.capsule_bytes_max as usize > parameters.pool.buffer_bytes_max() {
            let what = "the largest capsule does not fit a buffer of the pool";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let engine = adopted_engine(&incoming, parameters);
        let key = self.insert(Phase::Established, (incoming.local, incoming.peer), engine)?;
        let socket = match reactor.attach_socket(incoming.socket) {
            Ok(socket) => socket,
            Err(error) => {
                self.connections.remove(key);
                return Err(error);
            }
        };
        let id = ConnectionId { index: key.index, generation: key.generation };
        self.with(reactor, key, |connection, shared, reactor| {
            connection.socket = Some(socket);
            connection.adopt(shared, reactor, &incoming.bytes, parameters);
        });
        Ok(id)
    }

    /// Ends a connection: what was given before is still sent, for a bounded time; then [`Event::Disconnected`] follows.
    pub fn disconnect(&mut self, reactor: &mut Reactor, connection: ConnectionId) {
        self.with(reactor, key(connection), |connection, shared, reactor| {
            connection.disconnect(shared, reactor);
        });
    }

    /// Ends a connection at once: what was not yet sent never is, and the peer is reset. Then [`Event::Disconnected`]
    /// follows.
    pub fn abort(&mut self, reactor: &mut Reactor, connection: ConnectionId) {
        self.with(reactor, key(connection), |connection, shared, reactor| connection.abort(shared, reactor));
    }

    /// Sends a command; [`Event::Response`] follows. It starts with the next [`TcpStack::flush`], as everything does.
    ///
    /// # Errors
    /// When the connection has ended.
    #[inline]
    pub fn submit(
        &mut self,
        connection: ConnectionId,
        sqe: SubmissionEntry,
        data: SubmitData,
    ) -> Result<(), Ended> {
        let found = self.connections.get_mut(key(connection)).ok_or(Ended)?;
        found.submit(&mut self.shared, sqe, data)
    }

    /// Asks for all `length` bytes of a command's data, into pieces of one size, of which the last may be shorter.
    /// [`Event::Data`] follows for each, under its name.
    ///
    /// # Errors
    /// When the connection has ended; the pieces were not taken out of the iterator then.
    #[inline]
    pub fn request_data(
        &mut self,
        connection: ConnectionId,
        (cid, length): (u16, u32),
        pieces: impl Iterator<Item = (u64, Buffer)>,
    ) -> Result<(), Ended> {
        let found = self.connections.get_mut(key(connection)).ok_or(Ended)?;
        found.request_data(&mut self.shared, (cid, length), pieces)
    }

    /// Sends data of a command, in the order of their offsets. `last` says that they are the end. With `success`, a response
    /// is not needed: the host takes the command for done. That is for queues without flow control only, because it
    /// carries no SQHD. [`Event::Sent`] follows then under that name.
    ///
    /// # Errors
    /// When the connection has ended.
    #[inline]
    pub fn send_data(
        &mut self,
        connection: ConnectionId,
        (cid, offset): (u16, u32),
        data: Slice,
        last: bool,
        success: Option<u64>,
    ) -> Result<(), Ended> {
        let found = self.connections.get_mut(key(connection)).ok_or(Ended)?;
        found.send_data(&mut self.shared, (cid, offset), data, last, success)
    }

    /// Answers a command; [`Event::Sent`] follows under this name.
    ///
    /// # Errors
    /// When the connection has ended.
    #[inline]
    pub fn respond(&mut self, connection: ConnectionId, cqe: CompletionEntry, id: u64) -> Result<(), Ended> {
        let found = self.connections.get_mut(key(connection)).ok_or(Ended)?;
        found.respond(&mut self.shared, cqe, id)
    }

    /// Starts everything given since the last flush, on all connections, with as few sends as possible.
    pub fn flush(&mut self, reactor: &mut Reactor) {
        while let Some(key) = self.shared.dirty.pop_front() {
            self.with(reactor, key, |connection, shared, reactor| {
                connection.dirty = false;
                connection.transmit(shared, reactor);
            });
        }
    }

    /// Takes a completion of the reactor that bears our owner.
    pub fn on_completion(&mut self, reactor: &mut Reactor, completion: Completion) {
        if completion.token.kind == kind::ACCEPTED {
            let Self { connections, listeners, shared } = self;
            return listeners.on_accepted(shared, reactor, connections, completion);
        }
        let Completion { token, result, payload } = completion;
        let Some(key) = self.connections.key_of(token.index, token.generation) else { return };
        self.with(reactor, key, |connection, shared, reactor| match (token.kind, payload) {
            (kind::RECEIVE, Payload::Receive(receive)) => {
                connection.on_received(shared, reactor, receive, result);
            }
            (kind::SEND, Payload::Send(batch)) => connection.on_sent(shared, reactor, batch, result),
            (kind::CONNECT, _) => connection.on_connected(shared, reactor, result),
            (kind::TIMER, _) => connection.on_timer(shared, reactor),
            _ => {}
        });
    }

    /// Once per turn, after whatever may have freed buffers: resumes what waited for them. Returns whether something did.
    pub fn poll(&mut self, reactor: &mut Reactor) -> bool {
        let mut resumed = false;
        // Once around: who finds no buffer keeps its place, but not one with another pool from being served.
        for _ in 0..self.shared.paused.len() {
            let Some(key) = self.shared.paused.pop_front() else { break };
            let resume = |connection: &mut Connection, shared: &mut Shared, reactor: &mut Reactor| {
                connection.resume(shared, reactor)
            };
            match self.with(reactor, key, resume) {
                Some(false) => self.shared.paused.push_back(key),
                Some(true) => resumed = true,
                None => {}
            }
        }
        resumed
    }

    /// The next event, in the order of each connection.
    #[inline]
    pub fn next_event(&mut self) -> Option<Event> {
        let event = self.shared.events.pop_front();
        if event.is_none() {
            self.connections.reuse();
        }
        event
    }

    /// What it has done.
    pub fn counters(&self) -> Counters {
        Counters { connections: self.connections.len() as u64, ..self.shared.counters }
    }

    /// Does something with a connection, hands it out if it may be adopted, and frees its slot if that was its end.
    #[inline]
    fn with<R>(
        &mut self,
        reactor: &mut Reactor,
        key: Key,
        act: impl FnOnce(&mut Connection, &mut Shared, &mut Reactor) -> R,
    ) -> Option<R> {
        let connection = self.connections.get_mut(key)?;
        let result = act(connection, &mut self.shared, reactor);
        if connection.may_be_adopted() {
            connection.hand_out(&mut self.shared, reactor);
        }
        if connection.phase == Phase::Ended {
            if let Some(origin) = connection.origin {
                self.listeners.left(origin);
            }
            self.connections.retire(key);
        }
        Some(result)
    }

    fn insert(
        &mut self,
        phase: Phase,
        addresses: (SocketAddr, SocketAddr),
        engine: Engine<Lease>,
    ) -> io::Result<Key> {
        let make = |key| Box::new(Connection::new(key, phase, addresses, engine));
        self.connections.insert_with(make).ok_or_else(full)
    }
}

impl Connection {
    /// The TCP connection was made or refused.
    fn on_connected(&mut self, shared: &mut Shared, reactor: &mut Reactor, result: io::Result<u32>) {
        self.connecting = false;
        if self.phase == Phase::Closing {
            return self.try_finish(shared, reactor);
        }
        let addresses = result.and_then(|_| match self.socket {
            Some(socket) => reactor.socket_addresses(socket),
            None => Err(io::ErrorKind::NotConnected.into()),
        });
        match addresses {
            Ok(addresses) => {
                self.addresses = addresses;
                self.phase = Phase::Initializing;
                self.pump(shared, reactor);
            }
            Err(error) => self.close(shared, reactor, End::Failed(ConnectError::Connect(error))),
        }
    }
}

fn key(connection: ConnectionId) -> Key {
    Key { index: connection.index, generation: connection.generation }
}

fn full() -> io::Error {
    io::Error::new(io::ErrorKind::QuotaExceeded, "the table of connections is full")
}
