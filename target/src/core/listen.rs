//! From a connection to a queue on the right core.

use std::sync::Arc;

use ringfab_auth::UnknownIdentity;
use ringfab_spec::{IntoBytes, rdma_cm};

use super::Core;
use super::message::CoreMessage;
use super::queue_request::QueueRequest;
use crate::model::{TlsChannel, Way};
use crate::placement::Place;
use crate::queue::{Queue, QueueParameters};
use crate::resources::Resources;
use crate::transport::{Endpoint, IncomingConnection, Transports};

impl Core {
    /// A connection on a listener of this core: finds out what the host wants and hands it to the core that shall serve
    /// it.
    pub(super) fn route(&mut self, connection: IncomingConnection) {
        let Some(listener) = self.listeners.of(&connection) else { return };
        match QueueRequest::of(&connection, &listener) {
            Ok(queue_request) => {
                let (target, cores) = (&self.resources.target, self.cores.len());
                let (peer, local) = connection.addresses();
                let way = Way { local, listener: Arc::clone(listener.listener()) };
                let place = (queue_request.id != 0)
                    .then(|| target.placement().place(peer.ip(), queue_request.controller_id, cores));
                let core = match &place {
                    Some(place) => place.core(),
                    // Admin queues do little and take turns.
                    None => target.next_admin_core(cores),
                };
                let connection = Box::new(connection);
                let message = CoreMessage::Accept { connection, way, queue_request, place };
                self.cores[core].send(message);
            }
            Err(status) => reject(&mut self.resources, connection, status, &status.to_string()),
        }
    }

    /// Serves a connection on this core.
    pub(super) fn accept(
        &mut self,
        connection: IncomingConnection,
        way: Way,
        queue_request: QueueRequest,
        place: Option<Place>,
    ) {
        let Self { resources, queues, listeners, admission, .. } = self;
        let (peer, _) = connection.addresses();
        let room = if self.drain.is_on() {
            Err("the target is ending")
        } else {
            admission.make_room(queues, resources, listeners.half_open(), peer)
        };
        let number = room.and_then(|()| queues.free_number().ok_or("the table of queues is full"));
        let number = match number {
            Ok(number) => number,
            Err(reason) => {
                return reject(resources, connection, rdma_cm::RejectStatus::NO_RESOURCES, reason);
            }
        };
        let address = resources.hosts.enter(peer.ip());
        let endpoint = match queue_request.accept(resources, connection, address) {
            Ok(endpoint) => endpoint,
            Err(error) => {
                resources.hosts.leave(address, address, true);
                return tracing::warn!(%peer, reason = %error, "connection refused");
            }
        };
        let Ok(tls) = tls_channel(&resources.transports, endpoint) else {
            resources.hosts.leave(address, address, true);
            resources.transports.abort(&mut resources.reactor, endpoint);
            return tracing::error!(%peer, "connection refused: its TLS has a key that nobody has");
        };
        let QueueRequest { id, entries, .. } = queue_request;
        let parameters = QueueParameters { number, endpoint, id, entries, peer, way, tls, address, place };
        queues.insert(number, Queue::new(parameters, resources.reactor.now()));
        admission.arm_timer(resources);
        self.arm_housekeeping();
    }
}

/// Refuses a connection; over RDMA the host is told why, over TCP the connection closes.
fn reject(
    resources: &mut Resources,
    connection: IncomingConnection,
    status: rdma_cm::RejectStatus,
    reason: &str,
) {
    let (peer, _) = connection.addresses();
    tracing::warn!(%peer, reason, "connection refused");
    if let IncomingConnection::Rdma(request) = connection {
        let answer = rdma_cm::Reject::new(status);
        resources.transports.rnic.reject(&mut resources.reactor, request, answer.as_bytes());
    }
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
