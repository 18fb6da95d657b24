//! From a queue pair's making on a device to its end.

use std::io;
use std::net::SocketAddr;

use ringfab_reactor::{Reactor, Token};

use super::adapter::Adapter;
use super::connection::{Connection, End, Phase};
use super::domain::Domain;
use super::queue_pairs::{QueuePairs, REMOVED, RESOLVE_TRY, adapter_of, full};
use super::sys::{self, CmEvent, CmEventKind, CmId, ConnectionParameters, QueuePairLimits};
use crate::rdma::{ConnectError, DisconnectReason, ProtectionDomain, QueuePairAttributes, RnicEvent};
use crate::table::Key;

impl QueuePairs {
    pub(super) fn insert(
        &mut self,
        mut cm: CmId,
        phase: Phase,
        attributes: &QueuePairAttributes,
        addresses: (SocketAddr, SocketAddr),
    ) -> io::Result<Key> {
        let make = |key| {
            cm.set_context(Connection::context(key));
            Box::new(Connection::new(key, cm, phase, attributes.clone(), addresses))
        };
        self.connections.insert_with(make).ok_or_else(full)
    }

    pub(super) fn answer(&mut self, key: Key, initiator_depth: u8, private_data: &[u8]) -> io::Result<()> {
        let Some(connection) = self.connections.get_mut(key) else { return Err(full()) };
        let limits = self.adapters[adapter_of(&self.domains, connection)].limits;
        let wanted = u8::try_from(connection.attributes.initiator_depth).unwrap_or(u8::MAX);
        connection.initiator_depth = wanted.min(initiator_depth).min(limits.initiator_depth);
        let resources = u8::try_from(connection.attributes.responder_resources).unwrap_or(u8::MAX);
        connection.cm.accept(&ConnectionParameters {
            private_data,
            responder_resources: resources.min(limits.responder_resources),
            initiator_depth: connection.initiator_depth,
        })
    }

    /// Makes the queue pair on the device that the identifier is bound to, with its receives.
    pub(super) fn put_on_device(&mut self, reactor: &mut Reactor, key: Key) -> io::Result<()> {
        let Some(connection) = self.connections.get(key) else { return Err(full()) };
        let context = connection.cm.context().ok_or(io::ErrorKind::NetworkUnreachable)?;
        let local = connection.cm.local_address().ok_or(io::ErrorKind::AddrNotAvailable)?;
        let attributes = connection.attributes.clone();
        let adapter_index = self.adapter_for(reactor, context, local)?;
        let domain_index = self.domain_for(attributes.domain, adapter_index)?;
        let Self { adapters, domains, connections, .. } = self;
        let (Some(connection), Some(domain)) = (connections.get_mut(key), domains[domain_index].as_mut())
        else {
            return Err(full());
        };
        let adapter = &mut adapters[adapter_index];
        let limits = adapter.limits;
        domain.register(&attributes.pool, &limits)?;
        let receives = domain.receives_for(attributes.receive_bytes_max, &limits)?;
        // A message whose memory goes with it needs an entry for the window, too.
        let exposes = limits.windows && attributes.responder_resources > 0;
        let send_entries = attributes.send_depth * if exposes { 2 } else { 1 };
        if send_entries > limits.send_requests {
            let why = format!(
                "{} takes {} requests on a queue, not {send_entries}",
                adapter.name, limits.send_requests
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let completions = send_entries + attributes.receive_depth;
        adapter.reserve(completions)?;
        connection.reserved = completions;
        connection.limits = limits;
        connection.domain = Some(domain_index);
        connection.receives = receives;
        domain.queue_pairs += 1;
        domain.reserve_receives(receives, attributes.receive_depth, limits.iwarp)?;
        connection.credits = attributes.receive_depth;
        let queue_pair = make_queue_pair(connection, domain, adapter, send_entries)?;
        self.by_number.insert((adapter_index, queue_pair.number), key);
        connection.queue_pair = Some(queue_pair);
        connection.sends.open(domain, send_entries)?;
        domain.fill();
        Ok(())
    }

    /// The next step towards a connection: an address, a route to it, and the request to connect.
    pub(super) fn resolve_further(&mut self, reactor: &mut Reactor, key: Key, event: &CmEvent) {
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

    /// Sends the connection request.
    pub(super) fn ask(&mut self, key: Key) -> io::Result<()> {
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

    pub(super) fn establish(&mut self, reactor: &mut Reactor, key: Key, event: &CmEvent) {
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

    fn adapter_for(
        &mut self,
        reactor: &Reactor,
        context: sys::Context,
        local: SocketAddr,
    ) -> io::Result<usize> {
        if let Some(index) = self.adapters.position(context) {
            return Ok(index);
        }
        Ok(self.adapters.add(Adapter::new(context, local, &self.channel, reactor.waker())?))
    }

    fn domain_for(&mut self, number: ProtectionDomain, adapter: usize) -> io::Result<usize> {
        let same = |domain: &Domain| domain.number == number && domain.adapter == adapter;
        if let Some(index) = self.domains.iter().position(|domain| domain.as_ref().is_some_and(same)) {
            return Ok(index);
        }
        let free = self.domains.iter().position(Option::is_none);
        let index = free.unwrap_or(self.domains.len());
        let name = u16::try_from(index).ok().filter(|index| *index < 1 << 15).ok_or_else(full)?;
        let domain = Domain::new(number, name, adapter, self.adapters[adapter].context)?;
        if index == self.domains.len() {
            self.domains.push(Some(domain));
        } else {
            self.domains[index] = Some(domain);
        }
        Ok(index)
    }

    pub(super) fn on_timer(&mut self, reactor: &Reactor, token: Token) {
        let Some(key) = self.connections.key_of(token.index, token.generation) else { return };
        let Some(connection) = self.connections.get(key) else { return };
        if !connection.is_overdue(reactor.now()) {
            return;
        }
        let seconds = connection.timeout.as_secs();
        let end = match connection.phase {
            Phase::Resolving => End::Failed(ConnectError::TimedOut { step: "resolve", seconds }),
            Phase::Connecting | Phase::Accepting => {
                End::Failed(ConnectError::TimedOut { step: "connect", seconds })
            }
            // The peer spoke before its confirmation arrived: that ended the wait, and this is what is left of it.
            Phase::Established => return,
            Phase::Draining | Phase::Closing => End::Disconnected(DisconnectReason::Local),
        };
        self.finish_soon(key, end);
    }

    /// An orderly end: once nothing is outstanding the peer is told.
    pub(super) fn disconnect_when_drained(&mut self, reactor: &mut Reactor, key: Key) {
        let timeout = self.config.close_timeout;
        let Some(connection) = self.connections.get_mut(key) else { return };
        if connection.phase == Phase::Draining && connection.sends.is_drained() {
            connection.phase = Phase::Closing;
            connection.set_timer(self.config.owner, reactor, timeout);
            if let Err(error) = connection.cm.disconnect() {
                tracing::debug!(%error, "the peer could not be told of the end");
                let end = End::Disconnected(DisconnectReason::Local);
                self.finish_soon(key, end);
            }
        }
    }

    /// The device of one queue pair's identifier is being removed.
    pub(super) fn lose_connection(&mut self, key: Key, phase: Phase) {
        let end = match phase {
            Phase::Resolving | Phase::Connecting | Phase::Accepting => {
                End::Failed(ConnectError::Connect(std::io::Error::other(REMOVED)))
            }
            Phase::Established | Phase::Draining | Phase::Closing => {
                End::Disconnected(DisconnectReason::Broken(REMOVED.to_owned()))
            }
        };
        self.finish_soon(key, end);
    }

    /// Ends a queue pair before the turn is over. The first reason counts.
    pub(super) fn finish_soon(&mut self, key: Key, end: End) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        connection.end.get_or_insert(end);
        if matches!(connection.phase, Phase::Established | Phase::Draining) {
            // The peer is told; whether it hears it is not waited for.
            let _told = connection.cm.disconnect();
        }
        connection.phase = Phase::Closing;
        if !std::mem::replace(&mut connection.finish_due, true) {
            self.finishing.push(key);
        }
    }

    pub(super) fn finish_due(&mut self, reactor: &mut Reactor) {
        while let Some(key) = self.finishing.pop() {
            self.finish(reactor, key);
        }
    }

    /// The end: nothing of the peer reaches us any more, and everything that was posted is given back.
    fn finish(&mut self, reactor: &mut Reactor, key: Key) {
        // What has completed already is not lost.
        self.take_completions(reactor);
        let Some(end) = self.connections.get_mut(key).and_then(|connection| connection.end.take()) else {
            return;
        };
        let Some(mut connection) = self.release(reactor, key) else { return };
        connection.sends.flush_all(&mut self.events);
        let queue_pair = connection.id();
        self.events.push_with(|| match end {
            End::Disconnected(reason) => RnicEvent::Disconnected { queue_pair, reason },
            End::Rejected(private_data) => RnicEvent::Rejected { queue_pair, private_data },
            End::Failed(error) => RnicEvent::ConnectFailed { queue_pair, error },
        });
    }

    /// Ends a queue pair of which the caller has not heard yet.
    pub(super) fn forget(&mut self, reactor: &mut Reactor, key: Key) {
        drop(self.release(reactor, key));
    }

    /// Takes a queue pair off its device and out of the tables.
    fn release(&mut self, reactor: &mut Reactor, key: Key) -> Option<Box<Connection>> {
        let mut connection = self.connections.retire(key)?;
        connection.stop_timer(reactor);
        // A device may not let go of a queue pair to which windows are bound.
        self.exposures.close_all(key);
        let number = connection.queue_pair.take().map(|queue_pair| queue_pair.number);
        connection.cm.destroy_queue_pair();
        if let Some(index) = connection.domain
            && let Some(domain) = self.domains[index].as_mut()
        {
            if let Some(number) = number {
                self.by_number.remove(&(domain.adapter, number));
            }
            domain.queue_pairs -= 1;
            domain.unreserve_receives(connection.receives, connection.credits);
            let adapter = &mut self.adapters[domain.adapter];
            adapter.release(connection.reserved);
            adapter.outstanding.subtract(connection.sends.outstanding());
        }
        Some(connection)
    }
}

/// Makes a connection's queue pair from what was put down for it: its receives, and how much it may send at once.
fn make_queue_pair(
    connection: &mut Connection,
    domain: &Domain,
    adapter: &Adapter,
    send_entries: u32,
) -> io::Result<sys::QueuePair> {
    let limits =
        QueuePairLimits { send_requests: send_entries, inline_bytes: crate::rdma::Inline::LEN_MAX as u32 };
    let queue = domain.receive_queue(connection.receives);
    let completions = (adapter.sends(), adapter.receives());
    match connection.cm.create_queue_pair(domain.raw(), completions, queue, &limits) {
        // Some devices take nothing inline, and say so only in this way.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            let limits = QueuePairLimits { inline_bytes: 0, ..limits };
            connection.cm.create_queue_pair(domain.raw(), completions, queue, &limits)
        }
        made => made,
    }
}
