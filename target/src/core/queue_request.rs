//! What a connection shall be, as its host has said: over RDMA in private data, over TCP by its first command.

use std::io;

use ringfab_fabric::rdma::{ConnectRequest, QueuePairAttributes};
use ringfab_fabric::tcp::{AcceptParameters, Incoming};
use ringfab_spec::sqe::ConnectCommand;
use ringfab_spec::tcp::ADMIN_IN_CAPSULE_BYTES;
use ringfab_spec::{FabricsType, IntoBytes, SubmissionEntry, rdma_cm};

use super::bind::BoundListener;
use crate::resources::hosts::PoolKind;
use crate::resources::{HostId, Resources};
use crate::transport::{Endpoint, IncomingConnection, Link};

/// The most RDMA READs of one queue that are outstanding.
const INITIATOR_DEPTH: u16 = 64;

/// What a connection shall be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueRequest {
    /// Queue identifier.
    pub(super) id: u16,
    /// Entries of the submission queue.
    pub(super) entries: u16,
    /// Bytes of in-capsule data that the listener allows.
    in_capsule_bytes: u32,
    /// The controller that an I/O queue is for, if the host has said so.
    pub(super) controller_id: Option<u16>,
}

impl QueueRequest {
    /// What a connection asks for, if a listener can give it.
    pub(super) fn of(
        connection: &IncomingConnection,
        listener: &BoundListener,
    ) -> Result<Self, rdma_cm::RejectStatus> {
        match connection {
            IncomingConnection::Rdma(request) => parse_private_data(&request.private_data, listener),
            IncomingConnection::Tcp(incoming) => Ok(parse_connect(incoming, listener)),
        }
    }

    /// Takes the connection, which comes from a host.
    pub(super) fn accept(
        self,
        resources: &mut Resources,
        connection: IncomingConnection,
        host: HostId,
    ) -> io::Result<Endpoint> {
        match connection {
            IncomingConnection::Rdma(request) => self.accept_rdma(resources, request, host),
            IncomingConnection::Tcp(incoming) => self.accept_tcp(resources, *incoming, host),
        }
    }

    fn accept_rdma(
        self,
        resources: &mut Resources,
        request: ConnectRequest,
        host: HostId,
    ) -> io::Result<Endpoint> {
        let attributes = QueuePairAttributes {
            domain: resources.domain,
            send_depth: Link::depth(self.entries),
            receive_depth: u32::from(self.entries),
            receive_bytes_max: size_of::<SubmissionEntry>() as u32 + self.in_capsule_bytes,
            pool: resources.hosts.pool(host, self.pool_kind()).clone(),
            initiator_depth: INITIATOR_DEPTH,
            responder_resources: 0,
        };
        let answer = rdma_cm::Accept::new(self.entries);
        let (rnic, reactor) = (&mut resources.transports.rnic, &mut resources.reactor);
        rnic.accept(reactor, request, &attributes, answer.as_bytes()).map(Endpoint::Rdma)
    }

    fn accept_tcp(self, resources: &mut Resources, incoming: Incoming, host: HostId) -> io::Result<Endpoint> {
        let parameters = AcceptParameters {
            commands_max: self.entries,
            // The data of a Connect may be in its capsule on every queue.
            capsule_bytes_max: self.in_capsule_bytes.max(ADMIN_IN_CAPSULE_BYTES),
            pool: resources.hosts.pool(host, self.pool_kind()).clone(),
        };
        resources.transports.tcp.accept(&mut resources.reactor, incoming, &parameters).map(Endpoint::Tcp)
    }

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
