//! What devices and their connection managers report.

use std::io;
use std::net::SocketAddr;

use ringfab_reactor::Reactor;

use super::connection::{End, Phase};
use super::device::Device;
use super::listener::{self, PendingAccept};
use super::sys::{CmEvent, CmEventKind};
use crate::rdma::{ConnectError, ConnectRequest, DisconnectReason, ListenerId, RnicEvent};
use crate::table::Key;

/// The reason with which a peer's program rejects, as the InfiniBand CM numbers it.
const REJECTED_BY_CONSUMER: i32 = 28;
/// Nobody listens for the service, in the same numbers.
const REJECTED_NO_SERVICE: i32 = 8;

impl Device {
    pub(super) fn take_connection_events(&mut self, reactor: &mut Reactor) {
        loop {
            match self.channel.next() {
                Ok(Some(event)) => self.on_connection_event(reactor, event),
                Ok(None) => return,
                Err(error) => return tracing::error!(%error, "events of connections are lost"),
            }
        }
    }

    fn on_connection_event(&mut self, reactor: &mut Reactor, event: CmEvent) {
        tracing::debug!(kind = ?event.kind, status = event.status, "event of a connection");
        if let Some(index) = listener::listener_of(event.context).filter(|_| event.context != u64::MAX) {
            return self.on_listener_event(reactor, index, event);
        }
        if event.kind == CmEventKind::DeviceRemoved {
            let adapter = self.queue_pairs.adapters.iter_mut().find(|(_, adapter)| adapter.is_of(&event));
            if let Some(index) = adapter.map(|(index, _)| index) {
                return self.on_removal(reactor, index);
            }
        }
        let key = Key { index: event.context as u32, generation: (event.context >> 32) as u32 };
        let Some(phase) = self.queue_pairs.connections.get(key).map(|connection| connection.phase) else {
            return;
        };
        match (event.kind, phase) {
            (CmEventKind::AddressResolved | CmEventKind::RouteResolved, Phase::Resolving) => {
                self.queue_pairs.resolve_further(reactor, key, &event);
            }
            // Our own timer says when it is enough.
            (CmEventKind::Unresolved, Phase::Resolving) if event.status == -libc::ETIMEDOUT => {
                self.queue_pairs.resolve_further(reactor, key, &event);
            }
            (CmEventKind::Established, Phase::Connecting | Phase::Accepting) => {
                self.queue_pairs.establish(reactor, key, &event);
            }
            (CmEventKind::Rejected, Phase::Connecting) => {
                let end = rejection(&event);
                self.queue_pairs.finish_soon(key, end);
            }
            (
                CmEventKind::Unresolved | CmEventKind::Failed | CmEventKind::Rejected,
                Phase::Resolving | Phase::Connecting | Phase::Accepting,
            ) => {
                let error = io::Error::from_raw_os_error(event.status.unsigned_abs() as i32);
                self.queue_pairs.finish_soon(key, End::Failed(ConnectError::Connect(error)));
            }
            (CmEventKind::Disconnected, _) => {
                if let Some(connection) = self.queue_pairs.connections.get(key) {
                    // The peer waits for our word, too.
                    let _told = connection.cm.disconnect();
                }
                self.queue_pairs.take_completions(reactor);
                self.queue_pairs.finish_soon(key, End::Disconnected(DisconnectReason::PeerClosed));
            }
            (CmEventKind::DeviceRemoved, phase) => self.queue_pairs.lose_connection(key, phase),
            _ => {}
        }
    }

    /// What has happened to a listener, or to a request of its that nobody has accepted yet.
    fn on_listener_event(&mut self, reactor: &mut Reactor, index: u32, event: CmEvent) {
        let Some(listener) = self.listeners.get(index) else { return };
        match event.kind {
            CmEventKind::Request => self.on_request(index, listener.address, event),
            CmEventKind::DeviceRemoved if listener.cm.as_ref().is_some_and(|cm| event.names(cm)) => {
                self.listeners.lose(reactor, index);
            }
            _ => {}
        }
    }

    fn on_request(&mut self, index: u32, bound: SocketAddr, event: CmEvent) {
        let Some(cm) = event.request else { return };
        let Some((local, peer)) = cm.addresses() else { return };
        let local = if local.ip().is_unspecified() { bound } else { local };
        let initiator_depth = event.initiator_depth;
        let request = ConnectRequest {
            listener: ListenerId::Verbs(index),
            local,
            peer,
            private_data: event.private_data,
            initiator_depth_max: Some(u16::from(initiator_depth)),
            pending: Box::new(PendingAccept { cm, initiator_depth }),
        };
        self.queue_pairs.events.push_with(|| RnicEvent::ConnectRequest(request));
    }
}

/// What a peer that refused has said.
fn rejection(event: &CmEvent) -> End {
    // Over InfiniBand the status is the CM's reason; over iWARP an error number, and what was said tells who spoke.
    if event.status == REJECTED_BY_CONSUMER || event.status < 0 && !event.private_data.is_empty() {
        return End::Rejected(event.private_data.clone());
    }
    let error = match event.status {
        status if status < 0 => io::Error::from_raw_os_error(-status),
        REJECTED_NO_SERVICE => io::Error::new(io::ErrorKind::ConnectionRefused, "nobody listens there"),
        reason => io::Error::new(
            io::ErrorKind::ConnectionRefused,
            format!("the connection manager of the peer rejects with reason {reason}"),
        ),
    };
    End::Failed(ConnectError::Connect(error))
}
