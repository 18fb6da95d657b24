//! What devices and their connection managers report.

use std::io;
use std::net::SocketAddr;

use ringfab_reactor::Reactor;

use super::connection::{Connection, End, Phase, send_of};
use super::device::{Device, RESOLVE_TRY, adapter_of, full};
use super::domain::{Domain, ReceiveId};
use super::exposure::Exposures;
use super::listener::{self, PendingAccept};
use super::posted::Outstanding;
use super::sys::{self, CmEvent, CmEventKind, ConnectionParameters, WorkCompletion};
use crate::events::Events;
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
            let adapter = self.adapters.iter_mut().find(|(_, adapter)| adapter.is_of(&event));
            if let Some(index) = adapter.map(|(index, _)| index) {
                return self.on_removal(reactor, index);
            }
        }
        let key = Key { index: event.context as u32, generation: (event.context >> 32) as u32 };
        let Some(phase) = self.connections.get(key).map(|connection| connection.phase) else { return };
        match (event.kind, phase) {
            (CmEventKind::AddressResolved | CmEventKind::RouteResolved, Phase::Resolving) => {
                self.resolve_further(reactor, key, &event);
            }
            // Our own timer says when it is enough.
            (CmEventKind::Unresolved, Phase::Resolving) if event.status == -libc::ETIMEDOUT => {
                self.resolve_further(reactor, key, &event);
            }
            (CmEventKind::Established, Phase::Connecting | Phase::Accepting) => {
                self.establish(reactor, key, &event);
            }
            (CmEventKind::Rejected, Phase::Connecting) => {
                let end = rejection(&event);
                self.finish_soon(key, end);
            }
            (
                CmEventKind::Unresolved | CmEventKind::Failed | CmEventKind::Rejected,
                Phase::Resolving | Phase::Connecting | Phase::Accepting,
            ) => {
                let error = io::Error::from_raw_os_error(event.status.unsigned_abs() as i32);
                self.finish_soon(key, End::Failed(ConnectError::Connect(error)));
            }
            (CmEventKind::Disconnected, _) => {
                if let Some(connection) = self.connections.get(key) {
                    // The peer waits for our word, too.
                    let _told = connection.cm.disconnect();
                }
                self.take_completions(reactor);
                self.finish_soon(key, End::Disconnected(DisconnectReason::PeerClosed));
            }
            (CmEventKind::DeviceRemoved, phase) => self.lose_connection(key, phase),
            _ => {}
        }
    }

    /// The next step towards a connection: an address, a route to it, and the request to connect.
    fn resolve_further(&mut self, reactor: &mut Reactor, key: Key, event: &CmEvent) {
        let Some(connection) = self.connections.get(key) else { return };
        let asked = match event.kind {
            CmEventKind::AddressResolved => connection.cm.resolve_route(RESOLVE_TRY),
            CmEventKind::RouteResolved => self.put_on_device(reactor, key).and_then(|()| self.ask(key)),
            _ => connection.cm.resolve_address(connection.addresses.1, RESOLVE_TRY),
        };
        if let Err(error) = asked {
            self.finish_soon(key, End::Failed(ConnectError::Connect(error)));
        }
    }

    /// What has happened to a listener, or to a request of its that nobody has accepted yet.
    fn on_listener_event(&mut self, reactor: &mut Reactor, index: u32, event: CmEvent) {
        let Some(key) = self.listeners.keys().into_iter().find(|key| key.index == index) else { return };
        let Some(listener) = self.listeners.get(key) else { return };
        match event.kind {
            CmEventKind::Request => self.on_request(index, listener.address, event),
            CmEventKind::DeviceRemoved if listener.cm.as_ref().is_some_and(|cm| event.names(cm)) => {
                self.lose_listener(reactor, key);
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
        self.events.push_with(|| RnicEvent::ConnectRequest(request));
    }

    /// Sends the connection request.
    fn ask(&mut self, key: Key) -> io::Result<()> {
        let Some(connection) = self.connections.get_mut(key) else { return Err(full()) };
        let limits = self.adapters[adapter_of(&self.domains, connection)].limits;
        let resources = u8::try_from(connection.attributes.responder_resources).unwrap_or(u8::MAX);
        let depth = u8::try_from(connection.attributes.initiator_depth).unwrap_or(u8::MAX);
        connection.initiator_depth = depth.min(limits.initiator_depth);
        connection.phase = Phase::Connecting;
        connection.cm.connect(&ConnectionParameters {
            private_data: &connection.private_data,
            responder_resources: resources.min(limits.responder_resources),
            initiator_depth: connection.initiator_depth,
        })
    }

    fn establish(&mut self, reactor: &mut Reactor, key: Key, event: &CmEvent) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        connection.stop_timer(reactor);
        let private_data = match connection.phase {
            Phase::Accepting => std::mem::take(&mut connection.private_data),
            _ => event.private_data.clone(),
        };
        connection.phase = Phase::Established;
        if let Some(addresses) = connection.cm.addresses() {
            connection.addresses = addresses;
        }
        let queue_pair = connection.id();
        self.events.push_with(|| RnicEvent::Established { queue_pair, private_data });
    }

    pub(super) fn take_completions(&mut self, reactor: &mut Reactor) -> bool {
        let mut total = 0;
        let Self { adapters, connections, domains, exposures, events, by_number, .. } = self;
        let mut completed = Outstanding::default();
        let mut troubled = Vec::new();
        let mut drained = Vec::new();
        for (index, adapter) in adapters.iter_mut() {
            total += adapter.poll(|completion| match ReceiveId::from_bits(completion.id) {
                Some(receive) => {
                    let key = by_number.get(&(index, completion.queue_pair)).copied();
                    let connection = key.and_then(|key| connections.get_mut(key));
                    let Some(domain) = domains.get_mut(usize::from(receive.domain)).and_then(Option::as_mut)
                    else {
                        return;
                    };
                    if let Some(end) = received(domain, connection, receive, completion, exposures, events) {
                        troubled.extend(key.map(|key| (key, end)));
                    }
                }
                None => {
                    let (slot, generation, count) = send_of(completion.id);
                    let Some(key) = by_number.get(&(index, completion.queue_pair)).copied() else { return };
                    if key.index != slot || key.generation & 0x3ff != generation {
                        return;
                    }
                    let Some(connection) = connections.get_mut(key) else { return };
                    completed.add(connection.completed(count, completion, events));
                    if completion.status != 0 && completion.status != sys::STATUS_FLUSHED {
                        let why = format!("a work request failed: {}", sys::status_text(completion.status));
                        troubled.push((key, End::Disconnected(DisconnectReason::Broken(why))));
                    } else if connection.phase == Phase::Draining {
                        drained.push(key);
                    }
                }
            });
            adapter.outstanding.subtract(std::mem::take(&mut completed));
        }
        for (key, end) in troubled {
            self.violations += 1;
            self.finish_soon(key, end);
        }
        for key in drained {
            self.disconnect_when_drained(reactor, key);
        }
        total > 0
    }
}

/// A receive has completed. Returns why its queue pair must end, if it must.
fn received(
    domain: &mut Domain,
    connection: Option<&mut Box<Connection>>,
    receive: ReceiveId,
    completion: &WorkCompletion,
    exposures: &mut Exposures,
    events: &mut Events<RnicEvent>,
) -> Option<End> {
    let queue = usize::from(receive.queue);
    let Some(connection) = connection.filter(|_| completion.status == 0) else {
        domain.recycle(queue, receive.number);
        let why = match completion.status {
            0 | sys::STATUS_FLUSHED => return None,
            sys::STATUS_LENGTH => {
                return Some(violation("a message longer than the receive for it"));
            }
            status => format!("a receive failed: {}", sys::status_text(status)),
        };
        return Some(End::Disconnected(DisconnectReason::Broken(why)));
    };
    let Some(credits) = connection.credits.checked_sub(1) else {
        domain.recycle(queue, receive.number);
        return Some(violation("a message without a receive credit"));
    };
    connection.credits = credits;
    domain.unreserve_receives(queue, 1);
    let (head, data) = domain.received(queue, receive.number, completion.bytes as usize);
    let queue_pair = connection.id();
    if connection.phase == Phase::Accepting {
        // The peer's confirmation is still on its way; that it speaks says as much.
        connection.phase = Phase::Established;
        let private_data = std::mem::take(&mut connection.private_data);
        events.push_with(|| RnicEvent::Established { queue_pair, private_data });
    }
    if let Some(key) = completion.invalidated {
        exposures.invalidated(connection.key, key);
    }
    events.push_with(|| RnicEvent::Received { queue_pair, head, data, invalidated: completion.invalidated });
    None
}

fn violation(what: &str) -> End {
    End::Disconnected(DisconnectReason::Violation(what.to_owned()))
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
