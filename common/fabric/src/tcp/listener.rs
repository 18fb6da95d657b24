//! Listening sockets. What they accept are connections that nobody has adopted: they take ICReq, answer it, and wait for the
//! header of the first capsule, which says to which core they should go.

use std::io;
use std::net::SocketAddr;

use ringfab_proto::tcp::{ControllerConfig, Engine};
use ringfab_reactor::{Completion, ListenAddr, ListenerId, Payload, PeerAddr, Reactor, SocketId};
use ringfab_spec::FromBytes;
use ringfab_spec::tcp::{CapsuleCmd, Digests};

use super::connection::{Connection, Origin, Phase};
use super::shared::Shared;
use super::{AcceptParameters, Event, Incoming, ListenParameters, kind};
use crate::rdma::table::{Key, Table};

/// The most listeners.
const LISTENERS_MAX: u32 = 1024;

/// The most data of an H2CData PDU: as much as a large buffer of a pool has most often.
const H2C_BYTES_MAX: u32 = 128 << 10;

/// Data that miss at least this many bytes are received straight into their final place. Smaller ones are copied: a receive
/// that ends with one PDU would make a system call for each, when many are waiting.
pub(super) const DIRECT_BYTES_MIN: u32 = 16 << 10;

/// A listening socket.
#[derive(Debug)]
struct Listener {
    /// None until the system has bound it.
    id: Option<ListenerId>,
    half_open: u32,
    half_open_max: u32,
    digests: Digests,
}

/// All listeners of a core.
#[derive(Debug)]
pub(super) struct Listeners(Table<Listener>);

/// What a controller's end brings to a connection. Before it is adopted it takes no commands.
fn controller_config(digests: Digests, adopted: Option<&AcceptParameters>) -> ControllerConfig {
    ControllerConfig {
        digests,
        alignment_dwords: 1,
        capsule_bytes_max: adopted.map_or(0, |parameters| parameters.capsule_bytes_max),
        h2c_bytes_max: H2C_BYTES_MAX,
        transfers_max: adopted.map_or(0, |parameters| parameters.commands_max),
        direct_bytes_min: DIRECT_BYTES_MIN,
    }
}

impl Listeners {
    pub(super) fn new() -> Self {
        Self(Table::new(LISTENERS_MAX))
    }

    pub(super) fn listen(
        &mut self,
        shared: &Shared,
        reactor: &mut Reactor,
        parameters: &ListenParameters,
    ) -> io::Result<(ListenerId, SocketAddr)> {
        let ListenParameters { half_open_max, digests, .. } = *parameters;
        let make = |_| Listener { id: None, half_open: 0, half_open_max, digests };
        let Some(key) = self.0.insert_with(make) else { return Err(io::ErrorKind::QuotaExceeded.into()) };
        let token = shared.token(kind::ACCEPTED, key);
        match reactor.listen(&ListenAddr::Tcp(parameters.address), &parameters.socket, token) {
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
            self.0.remove(key);
            reactor.close_listener(listener);
        }
    }

    /// A connection that nobody has adopted has left the table.
    pub(super) fn left(&mut self, origin: Origin) {
        if let Some(listener) = self.0.get_mut(origin.key) {
            listener.half_open -= 1;
        }
    }

    /// A listener accepted a connection, or could not.
    pub(super) fn on_accepted(
        &mut self,
        shared: &mut Shared,
        reactor: &mut Reactor,
        connections: &mut Table<Box<Connection>>,
        completion: Completion,
    ) {
        let (socket, peer) = match (completion.result, completion.payload) {
            (Ok(_), Payload::Accepted(socket, PeerAddr::Tcp(peer))) => (socket, peer),
            (Ok(_), Payload::Accepted(socket, PeerAddr::Unix)) => return reactor.close_socket(socket),
            (Err(error), _) => return tracing::warn!(%error, "accept failed"),
            _ => return,
        };
        let key = self.0.key_of(completion.token.index, completion.token.generation);
        let found = key.and_then(|key| Some((key, self.0.get_mut(key)?)));
        let room = |(key, listener): (Key, &'_ mut Listener)| match listener.id {
            Some(id) if listener.half_open < listener.half_open_max && !connections.is_full() => {
                listener.half_open += 1;
                Some((Origin { key, id }, listener.digests))
            }
            _ => None,
        };
        let Some(origin) = found.and_then(room) else {
            tracing::warn!(%peer, "too many connections in handshake: closed");
            return reactor.close_socket(socket);
        };
        open(shared, reactor, connections, origin, (socket, peer));
    }
}

fn open(
    shared: &mut Shared,
    reactor: &mut Reactor,
    connections: &mut Table<Box<Connection>>,
    (origin, digests): (Origin, Digests),
    (socket, peer): (SocketId, SocketAddr),
) {
    let inserted = connections.insert_with(|key| {
        let engine = Engine::controller(controller_config(digests, None));
        let mut connection = Connection::new(key, Phase::Accepted, (peer, peer), engine);
        (connection.socket, connection.origin) = (Some(socket), Some(origin));
        Box::new(connection)
    });
    let Some(connection) = inserted.and_then(|key| connections.get_mut(key)) else {
        return reactor.close_socket(socket);
    };
    connection.set_timer(shared, reactor, shared.config.handshake_timeout);
    connection.pump(shared, reactor);
}

impl Connection {
    /// Hands a connection with the header of its first capsule out, to be adopted. It ends here.
    pub(super) fn hand_out(&mut self, shared: &mut Shared, reactor: &mut Reactor) {
        let (Some(socket), Some(agreed), Some(origin)) =
            (self.socket.take(), self.engine.agreed(), self.origin)
        else {
            return;
        };
        self.cancel_timer(reactor);
        self.phase = Phase::Ended;
        let Some(receive) = self.receive.take() else { return };
        let bytes = receive.staging()[self.unread.clone()].to_vec();
        shared.give_receive(receive);
        let Ok((local, peer)) = reactor.socket_addresses(socket) else {
            // The peer has left already.
            return reactor.close_socket(socket);
        };
        let header = CapsuleCmd::read_from_prefix(&bytes);
        let first = header.map_or_else(|_| CapsuleCmd::zeroed().sqe, |(header, _)| header.sqe);
        let socket = reactor.detach_socket(socket);
        let incoming = Incoming { listener: origin.id, local, peer, first, socket, agreed, bytes };
        shared.events.push_back(Event::Incoming(incoming));
    }

    /// Takes over a connection that a listener handed out.
    pub(super) fn adopt(
        &mut self,
        shared: &mut Shared,
        reactor: &mut Reactor,
        bytes: &[u8],
        parameters: &AcceptParameters,
    ) {
        self.pool = Some(parameters.pool.clone());
        self.transfers = super::inbound::Transfers::new(parameters.commands_max);
        let mut receive = shared.take_receive();
        receive.staging_mut()[..bytes.len()].copy_from_slice(bytes);
        self.receive = Some(receive);
        self.unread = 0..bytes.len();
        self.pump(shared, reactor);
    }
}

/// The engine of a connection that is adopted.
pub(super) fn adopted_engine(
    incoming: &Incoming,
    parameters: &AcceptParameters,
) -> Engine<ringfab_memory::Lease> {
    let config = controller_config(incoming.agreed.digests, Some(parameters));
    Engine::resume(config, incoming.agreed)
}
