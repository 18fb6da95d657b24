//! One core's provider over verbs.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ringfab_reactor::{Completion, Reactor, Spin, Time, TimerId, Token};

use super::adapters::Adapters;
use super::connection::{Connection, End, Phase};
use super::domain::Domain;
use super::exposure::Exposures;
use super::kind;
use super::listener::{self, Listener, PendingAccept};
use super::numbers::NumberHasher;
use super::sys::{self, Chain, CmId, EventChannel};
use crate::events::Events;
use crate::rdma::{
    ConnectParameters, DisconnectReason, ListenParameters, ListenerId, PostError, ProtectionDomain,
    QueuePairAttributes, QueuePairId, RnicConfig, RnicCounters, RnicEvent, SendRequest,
};
use crate::table::{Key, Table};
use crate::zone::at_port;

/// How long the kernel waits for a neighbour's answer before it is asked again.
pub(super) const RESOLVE_TRY: Duration = Duration::from_millis(500);
/// How long a core sleeps at most over completions that nobody is notified of.
const REAP_AFTER: Duration = Duration::from_millis(5);
/// The most listeners.
const LISTENERS_MAX: u32 = 1024;

/// A core's queue pairs over verbs. The fields are dropped in this order: what uses a thing before the thing, and
/// windows before the queue pairs to which they are bound.
#[derive(Debug)]
pub(crate) struct Device {
    pub(super) exposures: Exposures,
    pub(super) connections: Table<Box<Connection>>,
    pub(super) domains: Vec<Option<Domain>>,
    pub(super) adapters: Adapters,
    pub(super) listeners: Table<Listener>,
    pub(super) config: RnicConfig,
    pub(super) events: Events<RnicEvent>,
    /// Queue pairs with something to post.
    pub(super) dirty: Vec<Key>,
    /// Queue pairs that have come to their end.
    pub(super) finishing: Vec<Key>,
    /// By adapter and number.
    pub(super) by_number: HashMap<(usize, u32), Key, BuildHasherDefault<NumberHasher>>,
    pub(super) scratch: Chain,
    /// When something was last found to do.
    pub(super) active: Time,
    /// How long the core looks for more.
    pub(super) spin: Spin,
    /// Ends a sleep over completions that nobody is notified of.
    pub(super) reap: Option<TimerId>,
    /// Until listeners look for their device again.
    pub(super) returning: Option<TimerId>,
    /// How many times more the library is told to close devices that are gone.
    pub(super) to_close: u32,
    pub(super) channel_watched: bool,
    pub(super) violations: u64,
    pub(super) channel: Arc<EventChannel>,
}

/// The queue pair that a key names, told from those of the other provider by being odd.
pub(super) fn queue_pair_id(key: Key) -> QueuePairId {
    QueuePairId { index: key.index << 1 | 1, generation: key.generation }
}

pub(super) fn key_of(queue_pair: QueuePairId) -> Key {
    Key { index: queue_pair.index >> 1, generation: queue_pair.generation }
}

impl Device {
    /// # Errors
    /// When this machine has no RDMA devices, or their drivers no connection manager.
    pub(crate) fn new(config: RnicConfig) -> io::Result<Self> {
        Ok(Self {
            exposures: Exposures::new(config.regions_max),
            connections: Table::new(config.queue_pairs_max),
            domains: Vec::new(),
            adapters: Adapters::default(),
            listeners: Table::new(LISTENERS_MAX),
            events: Events::with_capacity(256),
            dirty: Vec::new(),
            finishing: Vec::new(),
            by_number: HashMap::default(),
            scratch: Chain::default(),
            active: Time::default(),
            spin: Spin::new(config.spin),
            reap: None,
            returning: None,
            to_close: 0,
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
    pub(crate) fn device_at(&self, address: SocketAddr) -> io::Result<String> {
        let probe = CmId::new(&self.channel)?;
        probe.bind(at_port(address, 0))?;
        let none = || io::Error::new(io::ErrorKind::AddrNotAvailable, "no RDMA device owns the address");
        probe.context().map(sys::Context::name).ok_or_else(none)
    }

    // --- domains ---------------------------------------------------------------------------------------------------

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

    // --- connections -----------------------------------------------------------------------------------------------

    pub(crate) fn listen(
        &mut self,
        reactor: &mut Reactor,
        parameters: &ListenParameters,
    ) -> io::Result<(ListenerId, SocketAddr)> {
        let backlog = parameters.half_open_max;
        let mut cm = listener::listen(&self.channel, parameters.address, backlog)?;
        let address = cm.local_address().unwrap_or(parameters.address);
        self.watch_channel(reactor);
        let make = |key: Key| {
            cm.set_context(listener::context(key.index));
            Listener { cm: Some(cm), address, backlog }
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
        let outstanding = connection.post(domain, request)?;
        self.adapters[domain.adapter].outstanding.add(outstanding);
        if !std::mem::replace(&mut connection.dirty, true) {
            self.dirty.push(key);
        }
        Ok(())
    }

    pub(crate) fn post_receive(&mut self, queue_pair: QueuePairId, count: u32) {
        let Some(connection) = self.connections.get_mut(key_of(queue_pair)) else { return };
        let Some(domain) = connection.domain.and_then(|index| self.domains[index].as_mut()) else { return };
        connection.credits += count;
        // What a message used was taken back when it came, so this cannot exceed what was promised at first.
        let _promised = domain.reserve_receives(connection.receives, count, false);
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

    // Once a turn for a queue pair. `make kernel-instructions` knows it by its name.
    #[inline(never)]
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
        self.disconnect_when_drained(reactor, key);
    }

    /// Looks for completions; whether there was anything.
    pub(crate) fn poll(&mut self, reactor: &mut Reactor) -> bool {
        let mut found = self.take_completions(reactor);
        self.take_device_events(reactor);
        found |= !self.finishing.is_empty();
        self.finish_due(reactor);
        if found {
            let now = reactor.now();
            self.spin.waited(now - self.active);
            self.active = now;
        }
        found
    }

    /// Whether the core may sleep: nothing has happened for a while, and whatever happens next wakes it.
    pub(crate) fn may_sleep(&mut self, reactor: &mut Reactor) -> bool {
        if self.adapters.is_empty() {
            return self.events.is_empty();
        }
        if !self.events.is_empty() || reactor.clock() < self.active + self.spin.time() {
            return false;
        }
        let (mut armed, mut later) = (false, false);
        for (index, adapter) in self.adapters.iter_mut().filter(|(_, adapter)| !adapter.lost) {
            armed |= adapter.arm();
            later |= !adapter.outstanding.is_nothing();
            if !adapter.watched {
                let token = Token::new(self.config.owner, kind::COMPLETIONS, 0, index as u32);
                reactor.poll_readable(adapter.descriptor(), token);
                adapter.watched = true;
            }
        }
        if later && self.reap.is_none() {
            let token = Token::new(self.config.owner, kind::REAP, 0, 0);
            self.reap = Some(reactor.set_timer(reactor.clock() + REAP_AFTER, token));
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
                let index = completion.token.index as usize;
                if let Some(adapter) = self.adapters.get_mut(index) {
                    adapter.notified();
                    if adapter.lost {
                        self.close_lost(reactor, index);
                    }
                }
            }
            // It has made the core poll.
            kind::REAP => self.reap = None,
            kind::RETURN => self.listen_again(reactor),
            kind::TIMER => self.on_timer(reactor, completion.token),
            _ => {}
        }
    }

    /// Whether there are events to take. When there are none, slots of queue pairs that are gone can be used again.
    #[inline]
    pub(crate) fn exchange_events(&mut self, taken: &mut Events<RnicEvent>) -> bool {
        let any = self.events.exchange(taken);
        if !any {
            self.connections.reuse();
        }
        any
    }

    pub(crate) fn has_events(&mut self) -> bool {
        let none = self.events.rewind();
        if none {
            self.connections.reuse();
        }
        !none
    }

    #[inline]
    pub(crate) fn next_event(&mut self) -> Option<RnicEvent> {
        self.events.take()
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

    pub(super) fn mark_dirty(&mut self, key: Key) {
        if let Some(connection) = self.connections.get_mut(key)
            && !std::mem::replace(&mut connection.dirty, true)
        {
            self.dirty.push(key);
        }
    }
}

pub(super) fn adapter_of(domains: &[Option<Domain>], connection: &Connection) -> usize {
    let domain = connection.domain.and_then(|index| domains[index].as_ref());
    domain.expect("the queue pair is on a device").adapter
}

pub(super) fn full() -> io::Error {
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
