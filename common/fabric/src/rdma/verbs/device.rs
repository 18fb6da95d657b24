//! One core's provider over verbs.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ringfab_memory::Lease;
use ringfab_reactor::{Completion, Reactor, Time, Token};

use super::adapter::Adapter;
use super::connection::{Connection, End, Phase, send_of};
use super::domain::{Domain, ReceiveId};
use super::exposure::Exposures;
use super::kind;
use super::listener::{self, Listener, PendingAccept};
use super::sys::{
    self, AsyncEventKind, Chain, CmEvent, CmEventKind, CmId, ConnectionParameters, EventChannel,
    QueuePairLimits, WorkCompletion, WorkRequest,
};
use crate::rdma::provider::Pending;
use crate::rdma::table::{Key, Table};
use crate::rdma::{
    Access, ConnectError, ConnectParameters, ConnectRequest, DisconnectReason, Event, ListenParameters,
    ListenerId, PostError, ProtectionDomain, QueuePairAttributes, QueuePairId, RegionId, RemoteBuffer,
    RnicConfig, RnicCounters, SendRequest,
};

/// How long the kernel waits for a neighbour's answer before it is asked again.
const RESOLVE_TRY: Duration = Duration::from_millis(500);
/// The most listeners.
const LISTENERS_MAX: u32 = 1024;
/// The reason with which a peer's program rejects, as the InfiniBand CM numbers it.
const REJECTED_BY_CONSUMER: i32 = 28;
/// Nobody listens for the service, in the same numbers.
const REJECTED_NO_SERVICE: i32 = 8;

/// A core's queue pairs over verbs. The fields are dropped in this order: what uses a thing before the thing.
#[derive(Debug)]
pub(crate) struct Device {
    connections: Table<Box<Connection>>,
    exposures: Exposures,
    domains: Vec<Option<Domain>>,
    adapters: Vec<Adapter>,
    listeners: Table<Listener>,
    config: RnicConfig,
    events: VecDeque<Event>,
    /// Queue pairs with something to post.
    dirty: Vec<Key>,
    /// Queue pairs that have come to their end.
    finishing: Vec<Key>,
    /// By adapter and number.
    by_number: HashMap<(usize, u32), Key>,
    scratch: (Chain, Vec<WorkRequest>),
    /// When something was last found to do.
    active: Time,
    channel_watched: bool,
    violations: u64,
    channel: Arc<EventChannel>,
}

/// The queue pair that a key names, told from those of the other provider by being odd.
pub(super) fn queue_pair_id(key: Key) -> QueuePairId {
    QueuePairId { index: key.index << 1 | 1, generation: key.generation }
}

fn key_of(queue_pair: QueuePairId) -> Key {
    Key { index: queue_pair.index >> 1, generation: queue_pair.generation }
}

fn region_id(key: Key) -> RegionId {
    RegionId::Verbs { index: key.index, generation: key.generation_low() }
}

impl Device {
    /// # Errors
    /// When this machine has no RDMA devices, or their drivers no connection manager.
    pub(crate) fn new(config: RnicConfig) -> io::Result<Self> {
        Ok(Self {
            connections: Table::new(config.queue_pairs_max),
            exposures: Exposures::new(config.regions_max),
            domains: Vec::new(),
            adapters: Vec::new(),
            listeners: Table::new(LISTENERS_MAX),
            events: VecDeque::with_capacity(256),
            dirty: Vec::new(),
            finishing: Vec::new(),
            by_number: HashMap::new(),
            scratch: (Chain::default(), Vec::new()),
            active: Time::default(),
            channel_watched: false,
            violations: 0,
            channel: EventChannel::new()?,
            config,
        })
    }

    /// The device that owns a local address.
    ///
    /// # Errors
    /// When none does.
    pub(crate) fn device_at(&self, address: IpAddr) -> io::Result<String> {
        let probe = CmId::new(&self.channel)?;
        probe.bind(SocketAddr::new(address, 0))?;
        let none = || io::Error::new(io::ErrorKind::AddrNotAvailable, "no RDMA device owns the address");
        probe.context().map(sys::Context::name).ok_or_else(none)
    }

    // --- memory ----------------------------------------------------------------------------------------------------

    pub(crate) fn deallocate_domain(&mut self, domain: ProtectionDomain) {
        for index in 0..self.domains.len() {
            let Some(found) = self.domains[index].as_ref().filter(|found| found.number == domain) else {
                continue;
            };
            let in_use = found.queue_pairs > 0;
            self.exposures.remove_domain(index);
            if in_use {
                tracing::debug!("a protection domain stays until its queue pairs have ended");
            } else {
                self.domains[index] = None;
            }
        }
    }

    pub(crate) fn expose(
        &mut self,
        queue_pair: QueuePairId,
        lease: Lease,
        offset: u32,
        length: u32,
        access: Access,
    ) -> Option<RemoteBuffer> {
        let end = offset.checked_add(length).map(|end| end as usize);
        assert!(end.is_some_and(|end| end <= lease.len()), "an exposure lies within its memory");
        let key = key_of(queue_pair);
        let connection = self.connections.get_mut(key)?;
        if self.exposures.is_full() || !connection.can_expose() {
            return None;
        }
        let index = connection.domain?;
        let domain = self.domains[index].as_mut()?;
        let address = lease.io_pointer(offset as usize, length as usize) as u64;
        let windows = self.adapters[domain.adapter].limits.windows;
        let (window, remote_key) = if windows {
            let mut window = domain.take_window().inspect_err(no_window).ok()?;
            let remote_key = window.advance();
            (Some(window), remote_key)
        } else {
            (None, domain.exposed_key(address, length).inspect_err(no_window).ok()?)
        };
        let writable = access == Access::RemoteWrite;
        let exposure = self.exposures.add((lease, offset, length), (key, index), window, writable)?;
        if windows {
            connection.chain_bind(exposure);
            self.mark_dirty(key);
        }
        let region = region_id(exposure);
        Some(RemoteBuffer { address, length, key: remote_key, region, invalidate: windows })
    }

    pub(crate) fn revoke(&mut self, index: u32, generation: u16) -> Option<Lease> {
        let key = self.exposures.key_of(index, generation)?;
        let (lease, domain, window) = self.exposures.remove(key)?;
        if let (Some(window), Some(domain)) = (window, self.domains[domain].as_mut()) {
            domain.give_window(window);
        }
        Some(lease)
    }

    // --- connections -----------------------------------------------------------------------------------------------

    pub(crate) fn listen(
        &mut self,
        reactor: &mut Reactor,
        parameters: &ListenParameters,
    ) -> io::Result<(ListenerId, SocketAddr)> {
        let mut cm = CmId::new(&self.channel)?;
        cm.bind(parameters.address)?;
        cm.listen(i32::try_from(parameters.half_open_max).unwrap_or(i32::MAX))?;
        let address = cm.local_address().unwrap_or(parameters.address);
        self.watch_channel(reactor);
        let make = |key: Key| {
            cm.set_context(listener::context(key.index));
            Listener { _cm: cm, address }
        };
        let key = self.listeners.insert_with(make).ok_or(io::ErrorKind::QuotaExceeded)?;
        Ok((ListenerId::Verbs(key.index), address))
    }

    pub(crate) fn close_listener(&mut self, listener: u32) {
        for key in self.listeners.keys().into_iter().filter(|key| key.index == listener) {
            self.listeners.remove(key);
        }
    }

    pub(crate) fn connect(
        &mut self,
        reactor: &mut Reactor,
        parameters: &ConnectParameters<'_>,
    ) -> io::Result<QueuePairId> {
        let mut cm = CmId::new(&self.channel)?;
        let addresses = (unspecified(parameters.address), parameters.address);
        cm.set_context(u64::MAX);
        self.watch_channel(reactor);
        let key = self.insert(cm, Phase::Resolving, &parameters.attributes, addresses)?;
        let owner = self.config.owner;
        let Some(connection) = self.connections.get_mut(key) else { return Err(full()) };
        connection.private_data = Bytes::copy_from_slice(parameters.private_data);
        connection.timeout = parameters.timeout;
        if let Err(error) = connection.cm.resolve_address(parameters.address, RESOLVE_TRY) {
            self.connections.remove(key);
            return Err(error);
        }
        connection.set_timer(owner, reactor, parameters.timeout);
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
        let PendingAccept { mut cm, initiator_depth } = pending;
        cm.set_context(u64::MAX);
        cm.migrate(&self.channel)?;
        self.watch_channel(reactor);
        let addresses = cm.addresses().ok_or(io::ErrorKind::NotConnected)?;
        let key = self.insert(cm, Phase::Accepting, attributes, addresses)?;
        let owner = self.config.owner;
        let timeout = self.config.handshake_timeout;
        match self.put_on_device(reactor, key).and_then(|()| self.answer(key, initiator_depth, private_data))
        {
            Ok(()) => {
                let Some(connection) = self.connections.get_mut(key) else { return Err(full()) };
                connection.private_data = said;
                connection.timeout = timeout;
                connection.set_timer(owner, reactor, timeout);
                Ok(connection.id())
            }
            Err(error) => {
                self.forget(reactor, key);
                Err(error)
            }
        }
    }

    fn answer(&mut self, key: Key, initiator_depth: u8, private_data: &[u8]) -> io::Result<()> {
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

    pub(crate) fn disconnect(&mut self, reactor: &mut Reactor, queue_pair: QueuePairId) {
        let key = key_of(queue_pair);
        let timeout = self.config.close_timeout;
        let Some(connection) = self.connections.get_mut(key) else { return };
        match connection.phase {
            Phase::Established => {
                connection.phase = Phase::Draining;
                connection.end = Some(End::Disconnected(DisconnectReason::Local));
                connection.set_timer(self.config.owner, reactor, timeout);
                self.mark_dirty(key);
            }
            Phase::Draining | Phase::Closing => {}
            Phase::Resolving | Phase::Connecting | Phase::Accepting => {
                self.finish_soon(key, End::Disconnected(DisconnectReason::Local));
            }
        }
    }

    pub(crate) fn abort(&mut self, queue_pair: QueuePairId) {
        self.finish_soon(key_of(queue_pair), End::Disconnected(DisconnectReason::Local));
    }

    // --- work ------------------------------------------------------------------------------------------------------

    pub(crate) fn post_send(
        &mut self,
        queue_pair: QueuePairId,
        request: SendRequest,
    ) -> Result<(), PostError> {
        let key = key_of(queue_pair);
        let connection = self.connections.get_mut(key);
        let domain = connection.as_ref().and_then(|connection| connection.domain);
        let domain = domain.and_then(|index| self.domains[index].as_ref());
        let (Some(connection), Some(domain)) = (connection, domain) else {
            return Err(PostError::Ended(Box::new(request)));
        };
        connection.post(domain, request)?;
        self.mark_dirty(key);
        Ok(())
    }

    pub(crate) fn post_receive(&mut self, queue_pair: QueuePairId, count: u32) {
        let Some(connection) = self.connections.get_mut(key_of(queue_pair)) else { return };
        let Some(domain) = connection.domain.and_then(|index| self.domains[index].as_mut()) else { return };
        connection.credits += count;
        // What a message used was taken back when it came, so this cannot exceed what was promised at first.
        let _promised = domain.promise(connection.receives, count, false);
    }

    pub(crate) fn flush(&mut self, reactor: &mut Reactor) {
        // Receives first: the answer to what is sent now may come at once.
        for domain in self.domains.iter_mut().flatten() {
            domain.fill();
        }
        let mut dirty = std::mem::take(&mut self.dirty);
        for key in dirty.drain(..) {
            self.ring(reactor, key);
        }
        self.dirty = dirty;
        self.finish_due(reactor);
    }

    fn ring(&mut self, reactor: &mut Reactor, key: Key) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        connection.dirty = false;
        let domain = connection.domain.and_then(|index| self.domains[index].as_ref());
        if let Some(domain) =
            domain.filter(|_| matches!(connection.phase, Phase::Established | Phase::Draining))
        {
            let posted = connection.ring(&mut self.scratch, domain, &self.exposures);
            if let Err(error) = posted {
                let why = format!("the device refuses work requests: {error}");
                return self.finish_soon(key, End::Disconnected(DisconnectReason::Broken(why)));
            }
        }
        self.hang_up_when_drained(reactor, key);
    }

    /// An orderly end: once nothing is outstanding the peer is told.
    fn hang_up_when_drained(&mut self, reactor: &mut Reactor, key: Key) {
        let timeout = self.config.close_timeout;
        let Some(connection) = self.connections.get_mut(key) else { return };
        if connection.phase == Phase::Draining && connection.is_drained() {
            connection.phase = Phase::Closing;
            connection.set_timer(self.config.owner, reactor, timeout);
            if let Err(error) = connection.cm.disconnect() {
                tracing::debug!(%error, "the peer could not be told of the end");
                let end = End::Disconnected(DisconnectReason::Local);
                self.finish_soon(key, end);
            }
        }
    }

    /// Looks for completions; whether there was anything.
    pub(crate) fn poll(&mut self, reactor: &mut Reactor) -> bool {
        let mut found = self.take_completions(reactor);
        for index in 0..self.adapters.len() {
            while let Some(event) = self.adapters[index].next_event() {
                if event.kind == AsyncEventKind::QueuePair
                    && let Some(key) =
                        event.queue_pair.and_then(|number| self.by_number.get(&(index, number)))
                {
                    self.violations += 1;
                    let why = format!("the device reports event {} of the queue pair", event.number);
                    self.finish_soon(*key, End::Disconnected(DisconnectReason::Broken(why)));
                }
            }
        }
        found |= !self.finishing.is_empty();
        self.finish_due(reactor);
        if found {
            self.active = reactor.now();
        }
        found
    }

    fn take_completions(&mut self, reactor: &mut Reactor) -> bool {
        let mut total = 0;
        let Self { adapters, connections, domains, exposures, events, by_number, .. } = self;
        let mut troubled = Vec::new();
        let mut drained = Vec::new();
        for (index, adapter) in adapters.iter().enumerate() {
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
                    connection.completed(count, completion, events);
                    if completion.status != 0 && completion.status != sys::STATUS_FLUSHED {
                        let why = format!("a work request failed: {}", sys::status_text(completion.status));
                        troubled.push((key, End::Disconnected(DisconnectReason::Broken(why))));
                    } else if connection.phase == Phase::Draining {
                        drained.push(key);
                    }
                }
            });
        }
        for (key, end) in troubled {
            self.violations += 1;
            self.finish_soon(key, end);
        }
        for key in drained {
            self.hang_up_when_drained(reactor, key);
        }
        total > 0
    }

    /// Whether the core may sleep: nothing has happened for a while, and whatever happens next wakes it.
    pub(crate) fn may_sleep(&mut self, reactor: &mut Reactor) -> bool {
        if self.adapters.is_empty() {
            return self.events.is_empty();
        }
        if !self.events.is_empty() || reactor.clock() < self.active + self.config.spin {
            return false;
        }
        let mut armed = false;
        for (index, adapter) in self.adapters.iter_mut().enumerate() {
            armed |= adapter.arm();
            if !adapter.watched {
                let token = Token::new(self.config.owner, kind::COMPLETIONS, 0, index as u32);
                reactor.poll_readable(adapter.descriptor(), token);
                adapter.watched = true;
            }
        }
        // What came before the queue was armed notifies nobody.
        !(armed && self.poll(reactor)) && self.events.is_empty()
    }

    pub(crate) fn on_completion(&mut self, reactor: &mut Reactor, completion: &Completion) {
        match completion.token.kind {
            kind::CONNECTIONS => {
                self.channel_watched = false;
                self.take_connection_events(reactor);
                self.watch_channel(reactor);
            }
            kind::COMPLETIONS => {
                if let Some(adapter) = self.adapters.get_mut(completion.token.index as usize) {
                    adapter.notified();
                }
                self.active = reactor.now();
            }
            kind::TIMER => self.on_timer(reactor, completion.token),
            _ => {}
        }
    }

    pub(crate) fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    pub(crate) fn addresses(&self, queue_pair: QueuePairId) -> Option<(SocketAddr, SocketAddr)> {
        self.connections.get(key_of(queue_pair)).map(|connection| connection.addresses)
    }

    pub(crate) fn count(&self, counters: &mut RnicCounters) {
        counters.queue_pairs += self.connections.len() as u64;
        counters.regions += self.exposures.len() as u64;
        counters.violations += self.violations;
    }

    fn watch_channel(&mut self, reactor: &mut Reactor) {
        if !self.channel_watched {
            let token = Token::new(self.config.owner, kind::CONNECTIONS, 0, 0);
            reactor.poll_readable(self.channel.descriptor(), token);
            self.channel_watched = true;
        }
    }

    fn mark_dirty(&mut self, key: Key) {
        if let Some(connection) = self.connections.get_mut(key)
            && !std::mem::replace(&mut connection.dirty, true)
        {
            self.dirty.push(key);
        }
    }

    // --- events of connections -------------------------------------------------------------------------------------

    fn take_connection_events(&mut self, reactor: &mut Reactor) {
        loop {
            match self.channel.next() {
                Ok(Some(event)) => self.on_connection_event(reactor, event),
                Ok(None) => return,
                Err(error) => return tracing::error!(%error, "events of connections are lost"),
            }
        }
    }

    fn on_connection_event(&mut self, reactor: &mut Reactor, event: CmEvent) {
        tracing::trace!(?event, "event of a connection");
        if let Some(index) = listener::listener_of(event.context).filter(|_| event.context != u64::MAX) {
            if event.kind == CmEventKind::Request {
                self.on_request(index, event);
            }
            return;
        }
        let key = Key { index: event.context as u32, generation: (event.context >> 32) as u32 };
        let Some(phase) = self.connections.get(key).map(|connection| connection.phase) else { return };
        match (event.kind, phase) {
            (CmEventKind::AddressResolved, Phase::Resolving) => {
                let Some(connection) = self.connections.get(key) else { return };
                if let Err(error) = connection.cm.resolve_route(RESOLVE_TRY) {
                    self.finish_soon(key, End::Failed(ConnectError::Connect(error)));
                }
            }
            (CmEventKind::Unresolved, Phase::Resolving) if event.status == -libc::ETIMEDOUT => {
                // Our own timer says when it is enough.
                let Some(connection) = self.connections.get(key) else { return };
                if let Err(error) = connection.cm.resolve_address(connection.addresses.1, RESOLVE_TRY) {
                    self.finish_soon(key, End::Failed(ConnectError::Connect(error)));
                }
            }
            (CmEventKind::RouteResolved, Phase::Resolving) => {
                let asked = self.put_on_device(reactor, key).and_then(|()| self.ask(key));
                if let Err(error) = asked {
                    self.finish_soon(key, End::Failed(ConnectError::Connect(error)));
                }
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
            (CmEventKind::DeviceRemoved, _) => {
                let why = "the RDMA device was removed".to_owned();
                self.finish_soon(key, End::Disconnected(DisconnectReason::Broken(why)));
            }
            _ => {}
        }
    }

    fn on_request(&mut self, index: u32, event: CmEvent) {
        let Some(cm) = event.request else { return };
        let listener = self.listeners.keys().into_iter().find(|key| key.index == index);
        let Some(listener) = listener.and_then(|key| self.listeners.get(key)) else { return };
        let Some((local, peer)) = cm.addresses() else { return };
        let local = if local.ip().is_unspecified() { listener.address } else { local };
        let initiator_depth = event.initiator_depth;
        self.events.push_back(Event::ConnectRequest(ConnectRequest {
            listener: ListenerId::Verbs(index),
            local,
            peer,
            private_data: event.private_data,
            initiator_depth_max: Some(u16::from(initiator_depth)),
            pending: Box::new(Pending::Verbs(PendingAccept { cm, initiator_depth })),
        }));
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
        self.events.push_back(Event::Established { queue_pair, private_data });
    }

    // --- the life of a queue pair ----------------------------------------------------------------------------------

    fn insert(
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

    /// Makes the queue pair on the device that the identifier is bound to, with its receives.
    fn put_on_device(&mut self, reactor: &mut Reactor, key: Key) -> io::Result<()> {
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
        connection.send_entries = send_entries;
        connection.limits = limits;
        connection.domain = Some(domain_index);
        connection.receives = receives;
        domain.queue_pairs += 1;
        domain.promise(receives, attributes.receive_depth, limits.iwarp)?;
        connection.credits = attributes.receive_depth;
        let limits = QueuePairLimits {
            send_requests: send_entries,
            inline_bytes: crate::rdma::Inline::BYTES_MAX as u32,
        };
        let queue = domain.receive_queue(receives);
        let made = connection.cm.create_queue_pair(domain.raw(), &adapter.completions, queue, &limits);
        let queue_pair = match made {
            // Some devices take nothing inline, and say so only in this way.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => connection.cm.create_queue_pair(
                domain.raw(),
                &adapter.completions,
                queue,
                &QueuePairLimits { inline_bytes: 0, ..limits },
            )?,
            made => made?,
        };
        self.by_number.insert((adapter_index, queue_pair.number), key);
        connection.queue_pair = Some(queue_pair);
        connection.make_heads(domain)?;
        domain.fill();
        Ok(())
    }

    fn adapter_for(
        &mut self,
        reactor: &Reactor,
        context: sys::Context,
        local: SocketAddr,
    ) -> io::Result<usize> {
        if let Some(index) = self.adapters.iter().position(|adapter| adapter.context == context) {
            return Ok(index);
        }
        self.adapters.push(Adapter::new(context, local, &self.channel, reactor.waker())?);
        Ok(self.adapters.len() - 1)
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

    fn on_timer(&mut self, reactor: &Reactor, token: Token) {
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
            _ => End::Disconnected(DisconnectReason::Local),
        };
        self.finish_soon(key, end);
    }

    /// Ends a queue pair before the turn is over. The first reason counts.
    fn finish_soon(&mut self, key: Key, end: End) {
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

    fn finish_due(&mut self, reactor: &mut Reactor) {
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
        connection.flush_all(&mut self.events);
        let queue_pair = connection.id();
        self.events.push_back(match end {
            End::Disconnected(reason) => Event::Disconnected { queue_pair, reason },
            End::Rejected(private_data) => Event::Rejected { queue_pair, private_data },
            End::Failed(error) => Event::ConnectFailed { queue_pair, error },
        });
    }

    /// Ends a queue pair of which the caller has not heard yet.
    fn forget(&mut self, reactor: &mut Reactor, key: Key) {
        drop(self.release(reactor, key));
    }

    /// Takes a queue pair off its device and out of the tables.
    fn release(&mut self, reactor: &mut Reactor, key: Key) -> Option<Box<Connection>> {
        let mut connection = self.connections.remove(key)?;
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
            domain.unpromise(connection.receives, connection.credits);
            self.adapters[domain.adapter].release(connection.reserved);
        }
        Some(connection)
    }
}

/// A receive has completed. Returns why its queue pair must end, if it must.
fn received(
    domain: &mut Domain,
    connection: Option<&mut Box<Connection>>,
    receive: ReceiveId,
    completion: &WorkCompletion,
    exposures: &mut Exposures,
    events: &mut VecDeque<Event>,
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
    domain.unpromise(queue, 1);
    let (head, data) = domain.received(queue, receive.number, completion.bytes as usize);
    let queue_pair = connection.id();
    if connection.phase == Phase::Accepting {
        // The peer's confirmation is still on its way; that it speaks says as much.
        connection.phase = Phase::Established;
        let private_data = std::mem::take(&mut connection.private_data);
        events.push_back(Event::Established { queue_pair, private_data });
    }
    if let Some(key) = completion.invalidated {
        exposures.invalidated(connection.key, key);
    }
    events.push_back(Event::Received { queue_pair, head, data, invalidated: completion.invalidated });
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

fn adapter_of(domains: &[Option<Domain>], connection: &Connection) -> usize {
    let domain = connection.domain.and_then(|index| domains[index].as_ref());
    domain.expect("the queue pair is on a device").adapter
}

fn no_window(error: &io::Error) {
    tracing::warn!(%error, "memory cannot be exposed");
}

fn full() -> io::Error {
    io::Error::new(io::ErrorKind::QuotaExceeded, "the table of queue pairs is full")
}

/// What we know of our own address before the connection is made.
fn unspecified(peer: SocketAddr) -> SocketAddr {
    let any = match peer {
        SocketAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    SocketAddr::new(any, 0)
}
