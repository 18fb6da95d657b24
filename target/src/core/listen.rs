//! From a connection to a queue on the right core.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use ringfab_auth::UnknownIdentity;
use ringfab_fabric::rdma::{ConnectRequest, QueuePairAttributes};
use ringfab_fabric::tcp::{AcceptParameters, Incoming};
use ringfab_spec::sqe::ConnectCommand;
use ringfab_spec::tcp::ADMIN_IN_CAPSULE_BYTES;
use ringfab_spec::{FabricsType, IntoBytes, SubmissionEntry, rdma_cm};

use super::{Core, CoreMessage};
use crate::model::{ControllerLimits, Listener, TlsChannel};
use crate::placement::Place;
use crate::queue::{Queue, QueueParameters};
use crate::resources::HostId;
use crate::resources::hosts::PoolKind;
use crate::transport::{Endpoint, IncomingConnection, Link, ListenerId, Transports};

/// The most RDMA READs of one queue that are outstanding.
const INITIATOR_DEPTH: u16 = 64;

/// A listener that is bound on this core.
#[derive(Clone, Debug)]
pub(crate) struct BoundListener {
    pub(crate) id: ListenerId,
    /// Which one it is. Its number alone does not say that: another listener may have it next.
    pub(crate) listener: Arc<Listener>,
}

impl BoundListener {
    /// What its controllers may use.
    fn limits(&self) -> ControllerLimits {
        self.listener.limits()
    }

    /// The most entries of a queue.
    fn entries_max(&self) -> u16 {
        u16::try_from(self.limits().queue_entries_max).unwrap_or(u16::MAX)
    }
}

/// What a connection shall be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueRequest {
    /// Queue identifier.
    id: u16,
    /// Entries of the submission queue.
    entries: u16,
    /// Bytes of in-capsule data that the listener allows.
    in_capsule_bytes: u32,
    /// The controller that an I/O queue is for, if the host has said so.
    controller_id: Option<u16>,
}

impl Core {
    /// A connection on a listener of this core: finds out what the host wants and hands it to the core that shall serve
    /// it.
    pub(super) fn route(&mut self, connection: IncomingConnection) {
        let Some(listener) = self.listeners.of(&connection) else { return };
        let queue_request = match &connection {
            IncomingConnection::Rdma(request) => parse_private_data(&request.private_data, &listener),
            IncomingConnection::Tcp(incoming) => Ok(parse_connect(incoming, &listener)),
        };
        match queue_request {
            Ok(queue_request) => {
                let place = self.place_for(&connection, queue_request);
                let cores = self.cores.len();
                let core = match &place {
                    Some(place) => place.core(),
                    // Admin queues do little and take turns.
                    None => self.resources.target.next_admin_core(cores),
                };
                let message = CoreMessage::Accept { connection: Box::new(connection), queue_request, place };
                self.cores[core].send(message);
            }
            Err(status) => self.reject(connection, status, &status.to_string()),
        }
    }

    /// The place of an I/O queue.
    fn place_for(&self, connection: &IncomingConnection, queue_request: QueueRequest) -> Option<Place> {
        let (peer, _) = connection.addresses();
        let cores = self.cores.len();
        (queue_request.id != 0)
            .then(|| self.resources.target.placement().place(peer.ip(), queue_request.controller_id, cores))
    }

    /// Serves a connection on this core.
    pub(super) fn accept(
        &mut self,
        connection: IncomingConnection,
        queue_request: QueueRequest,
        place: Option<Place>,
    ) {
        let (peer, listener) = connection.addresses();
        let room = if self.draining.is_some() { Err("the target is ending") } else { self.make_room(peer) };
        let number = room.and_then(|()| self.free_number().ok_or("the table of queues is full"));
        let number = match number {
            Ok(number) => number,
            Err(reason) => return self.reject(connection, rdma_cm::RejectStatus::NO_RESOURCES, reason),
        };
        let address = self.resources.hosts.enter(peer.ip());
        let accepted = match connection {
            IncomingConnection::Rdma(request) => self.accept_rdma(request, queue_request, address),
            IncomingConnection::Tcp(incoming) => self.accept_tcp(*incoming, queue_request, address),
        };
        let endpoint = match accepted {
            Ok(endpoint) => endpoint,
            Err(error) => {
                self.resources.hosts.leave(address, address, true);
                return tracing::warn!(%peer, reason = %error, "connection refused");
            }
        };
        let Ok(tls) = tls_channel(&self.resources.transports, endpoint) else {
            self.resources.hosts.leave(address, address, true);
            self.resources.transports.abort(&mut self.resources.reactor, endpoint);
            return tracing::error!(%peer, "connection refused: its TLS has a key that nobody has");
        };
        let QueueRequest { id, entries, .. } = queue_request;
        let parameters =
            QueueParameters { number, endpoint, id, entries, peer, listener, tls, address, place };
        let queue = Queue::new(parameters, self.resources.reactor.now());
        self.insert(number, queue);
    }

    fn accept_rdma(
        &mut self,
        request: ConnectRequest,
        queue_request: QueueRequest,
        host: HostId,
    ) -> io::Result<Endpoint> {
        let attributes = QueuePairAttributes {
            domain: self.resources.domain,
            send_depth: Link::depth(queue_request.entries),
            receive_depth: u32::from(queue_request.entries),
            receive_bytes_max: size_of::<SubmissionEntry>() as u32 + queue_request.in_capsule_bytes,
            pool: self.resources.hosts.pool(host, queue_request.pool_kind()).clone(),
            initiator_depth: INITIATOR_DEPTH,
            responder_resources: 0,
        };
        let answer = rdma_cm::Accept::new(queue_request.entries);
        let (rnic, reactor) = (&mut self.resources.transports.rnic, &mut self.resources.reactor);
        rnic.accept(reactor, request, &attributes, answer.as_bytes()).map(Endpoint::Rdma)
    }

    fn accept_tcp(
        &mut self,
        incoming: Incoming,
        queue_request: QueueRequest,
        host: HostId,
    ) -> io::Result<Endpoint> {
        let parameters = AcceptParameters {
            commands_max: queue_request.entries,
            // The data of a Connect may be in its capsule on every queue.
            capsule_bytes_max: queue_request.in_capsule_bytes.max(ADMIN_IN_CAPSULE_BYTES),
            pool: self.resources.hosts.pool(host, queue_request.pool_kind()).clone(),
        };
        let (tcp, reactor) = (&mut self.resources.transports.tcp, &mut self.resources.reactor);
        tcp.accept(reactor, incoming, &parameters).map(Endpoint::Tcp)
    }

    fn insert(&mut self, number: u16, queue: Queue) {
        let (kind, index) = queue.endpoint().place();
        let numbers = &mut self.by_endpoint[kind];
        if numbers.len() <= index {
            numbers.resize(index + 1, None);
        }
        numbers[index] = Some(number);
        self.queues[usize::from(number)] = Some(Box::new(queue));
        self.arm_housekeeping();
        self.arm_eviction();
    }

    /// A free slot for a queue, in the table or at its end.
    fn free_number(&mut self) -> Option<u16> {
        if let Some(index) = self.queues.iter().position(Option::is_none) {
            return Some(index as u16);
        }
        let number = u16::try_from(self.queues.len()).ok()?;
        self.queues.push(None);
        Some(number)
    }

    /// Refuses a connection; over RDMA the host is told why, over TCP the connection closes.
    fn reject(&mut self, connection: IncomingConnection, status: rdma_cm::RejectStatus, reason: &str) {
        let (peer, _) = connection.addresses();
        tracing::warn!(%peer, reason, "connection refused");
        if let IncomingConnection::Rdma(request) = connection {
            let answer = rdma_cm::Reject::new(status);
            self.resources.transports.rnic.reject(&mut self.resources.reactor, request, answer.as_bytes());
        }
    }
}

impl IncomingConnection {
    pub(super) fn is_on(&self, listener: ListenerId) -> bool {
        match self {
            Self::Rdma(request) => listener == ListenerId::Rdma(request.listener),
            Self::Tcp(incoming) => listener == ListenerId::Tcp(incoming.listener),
        }
    }

    /// The host's address, and ours.
    fn addresses(&self) -> (SocketAddr, SocketAddr) {
        match self {
            Self::Rdma(request) => (request.peer, request.local),
            Self::Tcp(incoming) => (incoming.peer, incoming.local),
        }
    }
}

impl QueueRequest {
    fn pool_kind(self) -> PoolKind {
        if self.id == 0 { PoolKind::Admin } else { PoolKind::Io }
    }
}

/// What the private data of an RDMA connection request asks for, if we can give it.
fn parse_private_data(
    private_data: &[u8],
    listener: &BoundListener,
) -> Result<QueueRequest, rdma_cm::RejectStatus> {
    let queue = rdma_cm::Request::parse(private_data)?;
    if queue.qid.get() > listener.limits().io_queues_max {
        return Err(rdma_cm::RejectStatus::INVALID_QID);
    }
    let (send_entries_z, receive_entries) = (queue.hsqsize_z.get(), queue.hrqsize.get());
    // HSQSIZE counts from zero; a queue has at least two entries. HRQSIZE must hold a response for each.
    if send_entries_z == 0 || send_entries_z >= listener.entries_max() {
        return Err(rdma_cm::RejectStatus::INVALID_HSQSIZE);
    }
    if receive_entries < send_entries_z {
        return Err(rdma_cm::RejectStatus::INVALID_HRQSIZE);
    }
    let in_capsule_bytes = listener.limits().in_capsule_bytes;
    let controller_id = Some(queue.cntlid.get());
    Ok(QueueRequest { id: queue.qid.get(), entries: send_entries_z + 1, in_capsule_bytes, controller_id })
}

/// The queue that the first command of a TCP connection wants to connect. Nothing is refused here: a host is told by
/// the status of its command, and what is no Connect finds a queue that takes nothing else.
fn parse_connect(incoming: &Incoming, listener: &BoundListener) -> QueueRequest {
    let first = &incoming.first;
    let connects = first.is_fabrics() && first.fabrics_type() == FabricsType::CONNECT;
    let connect = ConnectCommand::of(first);
    let id = if connects { connect.qid.get() } else { 0 };
    let entries = u16::try_from(connect.sqsize()).unwrap_or(u16::MAX).clamp(2, listener.entries_max());
    let in_capsule_bytes = listener.limits().in_capsule_bytes;
    QueueRequest { id, entries, in_capsule_bytes, controller_id: incoming.controller_id }
}

/// The TLS of a connection, unless it is in clear text.
fn tls_channel(
    transports: &Transports,
    endpoint: Endpoint,
) -> Result<Option<Arc<TlsChannel>>, UnknownIdentity> {
    let Endpoint::Tcp(connection) = endpoint else { return Ok(None) };
    let security = transports.tcp.security(connection);
    security.map(|security| TlsChannel::new(security).map(Arc::new)).transpose()
}
