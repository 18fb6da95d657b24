//! One core's NVMe/TCP.

use std::io;
use std::net::SocketAddr;

use ringfab_memory::{Buffer, Pool};
use ringfab_proto::tcp::{Engine, HostConfig};
use ringfab_reactor::{Completion, ListenerId, Reactor};
use ringfab_spec::{CompletionEntry, SubmissionEntry};

use super::connection::{Connection, DIRECT_BYTES_MIN};
use super::{
    AcceptParameters, C2hData, ConnectParameters, ConnectionId, Ended, Incoming, ListenParameters,
    SubmitData, TcpConfig, TcpEvent,
};
use crate::stream::{Adopted, Connect, Gather, Listen, Security, StreamConfig, Streams, TlsConfig};
use crate::{CopiedBytes, Events};

/// R2Ts that a controller may have outstanding for a command.
const R2TS_MAX: u32 = 16;

/// What a core's NVMe/TCP has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Connections that exist now.
    pub connections: u64,
    /// Data received straight into their final place, in bytes.
    pub received_direct_bytes: u64,
    /// What was copied.
    pub copied_bytes: CopiedBytes,
    /// Bytes given to sockets.
    pub sent_bytes: u64,
    /// Connections ended by a violation of the peer.
    pub violations: u64,
}

/// One core's connections and listeners.
#[derive(Debug)]
pub struct TcpStack {
    streams: Streams<Connection>,
}

impl TcpStack {
    /// No connection yet.
    pub fn new(config: TcpConfig) -> Self {
        let TcpConfig { owner, handshake_timeout, close_timeout, connections_max, seed, kernel_tls } = config;
        let streams_max = connections_max;
        let tls = Some(TlsConfig { seed, kernel: kernel_tls });
        let config = StreamConfig { owner, streams_max, handshake_timeout, close_timeout, tls };
        Self { streams: Streams::new(config, ()) }
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
        let ListenParameters { address, half_open_max, digests, ref tls, ref socket } = *parameters;
        let tls = tls.clone();
        self.streams.listen(reactor, Listen { address, options: socket, half_open_max, tls, terms: digests })
    }

    /// Stops listening.
    pub fn close_listener(&mut self, reactor: &mut Reactor, listener: ListenerId) {
        self.streams.close_listener(reactor, listener);
    }

    /// Starts a connection to a controller. [`TcpEvent::Established`] or [`TcpEvent::ConnectFailed`] follows.
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
        let to = Connect {
            address: parameters.address,
            options: &parameters.socket,
            limit: parameters.timeout,
            tls: parameters.tls.clone(),
        };
        let made = self.streams.connect(reactor, to, |key| Connection::new(key, engine));
        made.map(ConnectionId::from)
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
        let Incoming { local, peer, socket, negotiated, bytes, tls, .. } = incoming;
        let adopted = Adopted { socket, addresses: (local, peer), unread: &bytes, tls };
        let made =
            self.streams.adopt(reactor, adopted, |key| Connection::adopted(key, negotiated, parameters));
        made.map(ConnectionId::from)
    }

    /// Ends a connection: what was given before is still sent, for a bounded time; then [`TcpEvent::Disconnected`]
    /// follows.
    pub fn disconnect(&mut self, reactor: &mut Reactor, connection: ConnectionId) {
        self.streams.disconnect(reactor, connection.into());
    }

    /// Ends a connection at once: what was not yet sent never is, and the peer is reset. Then
    /// [`TcpEvent::Disconnected`] follows.
    pub fn abort(&mut self, reactor: &mut Reactor, connection: ConnectionId) {
        self.streams.abort(reactor, connection.into());
    }

    /// How a connection is protected by TLS, from [`TcpEvent::Established`] or [`TcpStack::accept`] on. `None`: it is
    /// in clear text, or has ended.
    pub fn security(&self, connection: ConnectionId) -> Option<&Security> {
        self.streams.get(connection.into())?.wire.security()
    }

    /// Sends a command; [`TcpEvent::Response`] follows. It starts with the next [`TcpStack::flush`], as everything
    /// does.
    ///
    /// # Errors
    /// When the connection has ended.
    #[inline(always)]
    pub fn submit(
        &mut self,
        connection: ConnectionId,
        sqe: SubmissionEntry,
        data: SubmitData,
    ) -> Result<(), Ended> {
        self.give(connection, |connection, gather| connection.submit(gather, sqe, data))
    }

    /// Asks for all `length` bytes of a command's data, into pieces of one size, of which the last may be shorter.
    /// [`TcpEvent::Data`] follows for each, under its name.
    ///
    /// # Errors
    /// When the connection has ended; the pieces were not taken out of the iterator then.
    #[inline]
    pub fn request_data(
        &mut self,
        connection: ConnectionId,
        cid: u16,
        length: u32,
        pieces: impl Iterator<Item = (u64, Buffer)>,
    ) -> Result<(), Ended> {
        self.give(connection, |connection, _| connection.request_data(cid, length, pieces))
    }

    /// Sends data of a command, in the order of their offsets. [`TcpEvent::Sent`] counts it.
    ///
    /// # Errors
    /// When the connection has ended.
    #[inline(always)]
    pub fn send_data(&mut self, connection: ConnectionId, data: C2hData) -> Result<(), Ended> {
        self.give(connection, |connection, gather| {
            connection.send_data(gather, data);
            Ok(())
        })
    }

    /// Answers a command; [`TcpEvent::Sent`] counts it.
    ///
    /// # Errors
    /// When the connection has ended.
    #[inline(always)]
    pub fn respond(&mut self, connection: ConnectionId, cqe: CompletionEntry) -> Result<(), Ended> {
        self.give(connection, |connection, gather| {
            connection.engine.respond(cqe, gather);
            Ok(())
        })
    }

    /// Has in-capsule data of a connection go into another share of its pool.
    pub(crate) fn set_receive_pool(&mut self, connection: ConnectionId, pool: &Pool) {
        if let Some(stream) = self.streams.get_mut(connection.into()) {
            stream.protocol.pool = Some(pool.clone());
        }
    }

    /// Starts everything given since the last flush, on all connections, with as few sends as possible.
    pub fn flush(&mut self, reactor: &mut Reactor) {
        self.streams.flush(reactor);
    }

    /// Takes a completion of the reactor that bears our owner.
    pub fn on_completion(&mut self, reactor: &mut Reactor, completion: Completion) {
        self.streams.on_completion(reactor, completion);
    }

    /// Once per turn, after whatever may have freed buffers: resumes what waited for them. Returns whether something
    /// did.
    pub fn poll(&mut self, reactor: &mut Reactor) -> bool {
        self.streams.poll(reactor)
    }

    /// Once in a while: gives back memory that has not been used for some time.
    pub fn trim(&mut self) {
        self.streams.trim();
    }

    /// Whether the core may sleep in its ring. While received bytes wait for the next turn it may not.
    pub fn may_sleep(&self) -> bool {
        !self.streams.is_busy()
    }

    /// The next event, in the order of each connection.
    #[inline]
    pub fn next_event(&mut self) -> Option<TcpEvent> {
        self.streams.next_event()
    }

    /// The same for many, which are looked at where they lie: [`Events::exchange`] with the events that wait.
    #[inline]
    pub fn exchange_events(&mut self, taken: &mut Events<TcpEvent>) -> bool {
        self.streams.exchange_events(taken)
    }

    /// What it has done.
    pub fn counters(&self) -> Counters {
        let counters = self.streams.counters();
        Counters {
            connections: self.streams.len() as u64,
            received_direct_bytes: counters.received_direct_bytes,
            copied_bytes: counters.copied(),
            sent_bytes: counters.sent_bytes,
            violations: counters.violations,
        }
    }

    /// Inlined into who gives, with all that it does, so that what is given is put together where it stays.
    #[inline(always)]
    fn give(
        &mut self,
        connection: ConnectionId,
        act: impl FnOnce(&mut Connection, &mut Gather<'_>) -> Result<(), Ended>,
    ) -> Result<(), Ended> {
        match self.streams.get_to_send(connection.into()) {
            Some((connection, mut gather)) => act(connection, &mut gather),
            None => Err(Ended),
        }
    }
}
