//! One core's provider over verbs.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ringfab_memory::SharedBuffer;
use ringfab_reactor::{Completion, Reactor, Spin, Time, TimerId, Token};

use super::connection::{End, Phase};
use super::listener::{Listeners, PendingAccept};
use super::numbers::key_of;
use super::queue_pairs::{QueuePairs, RESOLVE_TRY, full};
use super::sys::{self, CmId, EventChannel};
use super::{devices, kind};
use crate::events::Events;
use crate::rdma::{
    Access, ConnectParameters, DisconnectReason, LinkProtocol, ListenParameters, ListenerId, PostError,
    ProtectionDomain, QueuePairAttributes, QueuePairId, RemoteBuffer, RnicConfig, RnicCounters, RnicEvent,
    SendRequest,
};
use crate::zone::at_port;

/// How long a core sleeps at most over completions that nobody is notified of.
const REAP_AFTER: Duration = Duration::from_millis(5);

/// A core's provider over verbs. The fields are dropped in this order: queue pairs before the channel of their events.
#[derive(Debug)]
pub(crate) struct Device {
    pub(super) queue_pairs: QueuePairs,
    pub(super) listeners: Listeners,
    /// When something was last found to do.
    active: Time,
    /// How long the core looks for more.
    spin: Spin,
    /// Ends a sleep over completions that nobody is notified of.
    reap: Option<TimerId>,
    channel_watched: bool,
    pub(super) channel: Arc<EventChannel>,
}

impl Device {
    /// # Errors
    /// When this machine has no RDMA devices, or their drivers no connection manager.
    pub(crate) fn new(config: RnicConfig) -> io::Result<Self> {
        let channel = EventChannel::new()?;
        Ok(Self {
            listeners: Listeners::new(config.owner),
            active: Time::default(),
            spin: Spin::new(config.spin),
            reap: None,
            channel_watched: false,
            queue_pairs: QueuePairs::new(config, Arc::clone(&channel)),
            channel,
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

    // --- connections -----------------------------------------------------------------------------------------------

    pub(crate) fn listen(
        &mut self,
        reactor: &mut Reactor,
        parameters: &ListenParameters,
    ) -> io::Result<(ListenerId, SocketAddr)> {
        let (index, address) = self.listeners.listen(&self.channel, parameters)?;
        self.watch_channel(reactor);
        Ok((ListenerId::Verbs(index), address))
    }

    pub(crate) fn close_listener(&mut self, listener: u32) {
        self.listeners.close(listener);
    }

    /// What a listener speaks; `None` for one that is bound to no device.
    pub(crate) fn link_protocol(&self, listener: u32) -> Option<LinkProtocol> {
        let cm = self.listeners.get(listener)?.cm.as_ref()?;
        devices::link_protocol(cm.context()?, cm.port())
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
        let key = self.queue_pairs.insert(cm, Phase::Resolving, &parameters.attributes, addresses)?;
        let owner = self.queue_pairs.config.owner;
        let Some(connection) = self.queue_pairs.connections.get_mut(key) else { return Err(full()) };
        connection.private_data = Bytes::copy_from_slice(parameters.private_data);
        connection.timeout = parameters.timeout;
        if let Err(error) = connection.cm.resolve_address(parameters.address, RESOLVE_TRY) {
            self.queue_pairs.connections.remove(key);
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
        let key = self.queue_pairs.insert(cm, Phase::Accepting, attributes, addresses)?;
        let owner = self.queue_pairs.config.owner;
        let timeout = self.queue_pairs.config.handshake_timeout;
        match self
            .queue_pairs
            .put_on_device(reactor, key)
            .and_then(|()| self.queue_pairs.answer(key, initiator_depth, private_data))
        {
            Ok(()) => {
                let Some(connection) = self.queue_pairs.connections.get_mut(key) else { return Err(full()) };
                connection.private_data = said;
                connection.timeout = timeout;
                connection.set_timer(owner, reactor, timeout);
                Ok(connection.id())
            }
            Err(error) => {
                self.queue_pairs.forget(reactor, key);
                Err(error)
            }
        }
    }

    pub(crate) fn disconnect(&mut self, reactor: &mut Reactor, queue_pair: QueuePairId) {
        let key = key_of(queue_pair);
        let timeout = self.queue_pairs.config.close_timeout;
        let Some(connection) = self.queue_pairs.connections.get_mut(key) else { return };
        match connection.phase {
            Phase::Established => {
                connection.phase = Phase::Draining;
                connection.end = Some(End::Disconnected(DisconnectReason::Local));
                connection.set_timer(self.queue_pairs.config.owner, reactor, timeout);
                self.queue_pairs.mark_dirty(key);
            }
            Phase::Draining | Phase::Closing => {}
            Phase::Resolving | Phase::Connecting | Phase::Accepting => {
                self.queue_pairs.finish_soon(key, End::Disconnected(DisconnectReason::Local));
            }
        }
    }

    pub(crate) fn abort(&mut self, queue_pair: QueuePairId) {
        self.queue_pairs.finish_soon(key_of(queue_pair), End::Disconnected(DisconnectReason::Local));
    }

    // --- work ------------------------------------------------------------------------------------------------------

    pub(crate) fn post_send(
        &mut self,
        queue_pair: QueuePairId,
        request: SendRequest,
    ) -> Result<(), PostError> {
        self.queue_pairs.post_send(queue_pair, request)
    }

    pub(crate) fn post_receive(&mut self, queue_pair: QueuePairId, count: u32) {
        self.queue_pairs.post_receive(queue_pair, count);
    }

    pub(crate) fn expose(
        &mut self,
        queue_pair: QueuePairId,
        shared_buffer: SharedBuffer,
        offset: u32,
        length: u32,
        access: Access,
    ) -> Option<RemoteBuffer> {
        self.queue_pairs.expose(queue_pair, shared_buffer, offset, length, access)
    }

    pub(crate) fn revoke(&mut self, index: u32, generation: u16) -> Option<SharedBuffer> {
        self.queue_pairs.revoke(index, generation)
    }

    pub(crate) fn deallocate_domain(&mut self, domain: ProtectionDomain) {
        self.queue_pairs.deallocate_domain(domain);
    }

    pub(crate) fn flush(&mut self, reactor: &mut Reactor) {
        self.queue_pairs.flush(reactor);
    }

    pub(crate) fn count(&self, counters: &mut RnicCounters) {
        self.queue_pairs.count(counters);
    }

    /// Looks for completions; whether there was anything.
    pub(crate) fn poll(&mut self, reactor: &mut Reactor) -> bool {
        let mut found = self.queue_pairs.take_completions(reactor);
        self.take_device_events(reactor);
        found |= !self.queue_pairs.finishing.is_empty();
        self.queue_pairs.finish_due(reactor);
        if found {
            let now = reactor.now();
            self.spin.waited(now - self.active);
            self.active = now;
        }
        found
    }

    /// Whether the core may sleep: nothing has happened for a while, and whatever happens next wakes it.
    pub(crate) fn may_sleep(&mut self, reactor: &mut Reactor) -> bool {
        if self.queue_pairs.adapters.is_empty() {
            return self.queue_pairs.events.is_empty();
        }
        if !self.queue_pairs.events.is_empty() || reactor.clock() < self.active + self.spin.time() {
            return false;
        }
        let (mut armed, mut later) = (false, false);
        for (index, adapter) in self.queue_pairs.adapters.iter_mut().filter(|(_, adapter)| !adapter.lost) {
            armed |= adapter.arm();
            later |= !adapter.outstanding.is_nothing();
            if !adapter.watched {
                let token = Token::new(self.queue_pairs.config.owner, kind::COMPLETIONS, 0, index as u32);
                reactor.poll_readable(adapter.descriptor(), token);
                adapter.watched = true;
            }
        }
        if later && self.reap.is_none() {
            let token = Token::new(self.queue_pairs.config.owner, kind::REAP, 0, 0);
            self.reap = Some(reactor.set_timer(reactor.clock() + REAP_AFTER, token));
        }
        // What came before the queue was armed notifies nobody.
        !(armed && self.poll(reactor)) && self.queue_pairs.events.is_empty()
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
                if let Some(adapter) = self.queue_pairs.adapters.get_mut(index) {
                    adapter.notified();
                    if adapter.lost {
                        self.close_lost(reactor, index);
                    }
                }
            }
            // It has made the core poll.
            kind::REAP => self.reap = None,
            kind::RETURN => self.listeners.listen_again(reactor, &self.channel),
            kind::TIMER => self.queue_pairs.on_timer(reactor, completion.token),
            _ => {}
        }
    }

    /// Whether there are events to take. When there are none, slots of queue pairs that are gone can be used again.
    #[inline]
    pub(crate) fn exchange_events(&mut self, taken: &mut Events<RnicEvent>) -> bool {
        let any = self.queue_pairs.events.exchange(taken);
        if !any {
            self.queue_pairs.connections.reuse();
        }
        any
    }

    pub(crate) fn has_events(&mut self) -> bool {
        let none = self.queue_pairs.events.rewind();
        if none {
            self.queue_pairs.connections.reuse();
        }
        !none
    }

    #[inline]
    pub(crate) fn next_event(&mut self) -> Option<RnicEvent> {
        self.queue_pairs.events.take()
    }

    pub(crate) fn addresses(&self, queue_pair: QueuePairId) -> Option<(SocketAddr, SocketAddr)> {
        self.queue_pairs.connections.get(key_of(queue_pair)).map(|connection| connection.addresses)
    }

    fn watch_channel(&mut self, reactor: &mut Reactor) {
        if !self.channel_watched {
            let token = Token::new(self.queue_pairs.config.owner, kind::CONNECTIONS, 0, 0);
            reactor.poll_readable(self.channel.descriptor(), token);
            self.channel_watched = true;
        }
    }
}

/// What we know of our own address before the connection is made.
fn unspecified(peer: SocketAddr) -> SocketAddr {
    let any = match peer {
        SocketAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    SocketAddr::new(any, 0)
}
