//! One core's RNIC.

use std::io;
use std::net::SocketAddr;

use ringfab_memory::{Pool, SharedBuffer};
use ringfab_reactor::{Completion, Reactor, Wait};

use super::provider::Providers;
use super::{
    Access, Capsule, ConnectParameters, ConnectRequest, LinkProtocol, ListenParameters, ListenerId,
    PostError, ProtectionDomain, QueuePairAttributes, QueuePairId, RegionId, RemoteBuffer, RnicConfig,
    RnicCounters, RnicEvent, Scope, SendRequest,
};
use crate::Events;

/// One core's RNIC: a set of queue pairs and the memory exposed to their peers. Each listener and each connection
/// has its provider; the handles say which.
#[derive(Debug)]
pub struct Rnic {
    providers: Providers,
}

impl Rnic {
    /// An RNIC on the core of `reactor`.
    ///
    /// # Errors
    /// When the capture file cannot be made.
    pub fn new(config: RnicConfig) -> io::Result<Self> {
        Ok(Self { providers: Providers::new(config)? })
    }

    /// A new protection domain.
    pub fn allocate_domain(&mut self) -> ProtectionDomain {
        self.providers.iwarp.allocate_domain()
    }

    /// Ends a protection domain; everything exposed in it is revoked.
    pub fn deallocate_domain(&mut self, domain: ProtectionDomain) {
        self.providers.deallocate_domain(domain);
    }

    /// Lets peers reach `length` bytes of `shared_buffer` at `offset`. `None` when a table is full, or the send queue
    /// on which the exposure has to be posted. What of it a peer may write to, but has not written yet, may hold
    /// anything from now on: large messages are received further than their segments are known.
    #[inline]
    pub fn expose(
        &mut self,
        scope: impl Into<Scope>,
        shared_buffer: SharedBuffer,
        offset: u32,
        length: u32,
        access: Access,
    ) -> Option<RemoteBuffer> {
        self.providers.expose(scope.into(), shared_buffer, offset, length, access)
    }

    /// Ends an exposure and gives the shared buffer back: at once for the peer, though a send of its bytes that is in
    /// flight still holds another shared buffer. After an invalidation by the peer this is how its owner takes the
    /// shared buffer. `None` for one that has ended.
    pub fn revoke(&mut self, region: RegionId) -> Option<SharedBuffer> {
        self.providers.revoke(region)
    }

    /// Listens for connections.
    ///
    /// # Errors
    /// The system's refusal to bind, or that there is no such provider here.
    pub fn listen(
        &mut self,
        reactor: &mut Reactor,
        parameters: &ListenParameters,
    ) -> io::Result<(ListenerId, SocketAddr)> {
        self.providers.listen(reactor, parameters)
    }

    /// What a listener speaks; `None` when that depends on the address by which a peer comes.
    pub fn link_protocol(&self, listener: ListenerId) -> Option<LinkProtocol> {
        self.providers.link_protocol(listener)
    }

    /// Stops listening; requests that wait are unaffected.
    pub fn close_listener(&mut self, reactor: &mut Reactor, listener: ListenerId) {
        self.providers.close_listener(reactor, listener);
    }

    /// Starts a connection. [`RnicEvent::Established`], [`RnicEvent::Rejected`] or [`RnicEvent::ConnectFailed`]
    /// follows.
    ///
    /// # Errors
    /// When the table of queue pairs is full, no socket could be made, or there is no such provider here.
    pub fn connect(
        &mut self,
        reactor: &mut Reactor,
        parameters: &ConnectParameters<'_>,
    ) -> io::Result<QueuePairId> {
        self.providers.connect(reactor, parameters)
    }

    /// Accepts a request of any core's listener. [`RnicEvent::Established`] follows when the queue pair may be used.
    ///
    /// # Errors
    /// When the table of queue pairs is full, or the device cannot have another one.
    pub fn accept(
        &mut self,
        reactor: &mut Reactor,
        request: ConnectRequest,
        attributes: &QueuePairAttributes,
        private_data: &[u8],
    ) -> io::Result<QueuePairId> {
        self.providers.accept(reactor, request, attributes, private_data)
    }

    /// Refuses a request and tells the peer why.
    pub fn reject(&mut self, reactor: &mut Reactor, request: ConnectRequest, private_data: &[u8]) {
        self.providers.reject(reactor, request, private_data);
    }

    /// Ends a connection: what was posted before is still sent, for a bounded time; then [`RnicEvent::Disconnected`]
    /// follows.
    pub fn disconnect(&mut self, reactor: &mut Reactor, queue_pair: QueuePairId) {
        self.providers.disconnect(reactor, queue_pair);
    }

    /// Ends a connection at once: what was posted and not yet sent never is, and the peer is reset. Then
    /// [`RnicEvent::Disconnected`] follows.
    pub fn abort(&mut self, reactor: &mut Reactor, queue_pair: QueuePairId) {
        self.providers.abort(reactor, queue_pair);
    }

    /// Appends a work request to the send queue. It starts with the next [`Rnic::flush`].
    ///
    /// # Errors
    /// Gives the request back when the queue is full or has ended.
    #[inline(always)]
    pub fn post_send(&mut self, queue_pair: QueuePairId, request: SendRequest) -> Result<(), PostError> {
        self.providers.post_send(queue_pair, request)
    }

    /// The same for a capsule.
    ///
    /// # Errors
    /// As for [`Rnic::post_send`].
    #[inline(always)]
    pub fn post_capsule(&mut self, queue_pair: QueuePairId, capsule: Capsule<'_>) -> Result<(), PostError> {
        self.providers.post_capsule(queue_pair, capsule)
    }

    /// Gives the peer `count` more receive credits.
    #[inline]
    pub fn post_receive(&mut self, queue_pair: QueuePairId, count: u32) {
        self.providers.post_receive(queue_pair, count);
    }

    /// Has what a queue pair receives go into another share of its pool. A device has memory of its own for that.
    pub(crate) fn set_receive_pool(&mut self, queue_pair: QueuePairId, pool: &Pool) {
        self.providers.set_receive_pool(queue_pair, pool);
    }

    /// Rings the doorbell: starts everything posted since the last flush, on all queue pairs, with as few sends as
    /// possible.
    pub fn flush(&mut self, reactor: &mut Reactor) {
        self.providers.flush(reactor);
    }

    /// Takes a completion of the reactor that bears this RNIC's owner.
    pub fn on_completion(&mut self, reactor: &mut Reactor, completion: Completion) {
        self.providers.on_completion(reactor, completion);
    }

    /// Once per turn, after whatever may have freed buffers: takes what devices have completed and resumes what
    /// waited for buffers. Returns whether something did.
    pub fn poll(&mut self, reactor: &mut Reactor) -> bool {
        self.providers.poll(reactor)
    }

    /// Once in a while: gives back memory that has not been used for some time.
    pub fn trim(&mut self) {
        self.providers.trim();
    }

    /// One turn of a loop that has nothing else to do than what this RNIC started; events are there then.
    ///
    /// # Errors
    /// Those of [`Reactor::turn`].
    pub fn turn(&mut self, reactor: &mut Reactor, wait: Wait) -> io::Result<()> {
        self.flush(reactor);
        let wait = if self.may_sleep(reactor) { wait } else { Wait::No };
        reactor.turn(wait)?;
        while let Some(completion) = reactor.next_completion() {
            self.on_completion(reactor, completion);
        }
        self.poll(reactor);
        Ok(())
    }

    /// Whether the core may sleep in its ring: whatever happens next on a device will wake it. While a device is busy
    /// it may not, and the turn must not wait.
    pub fn may_sleep(&mut self, reactor: &mut Reactor) -> bool {
        self.providers.may_sleep(reactor)
    }

    /// The next event, in the order of each queue pair.
    #[inline]
    pub fn next_event(&mut self) -> Option<RnicEvent> {
        self.providers.next_event()
    }

    /// The same for many, which are looked at where they lie: [`Events::exchange`] with the events that wait. What
    /// was taken before is done with; slots of queue pairs that have ended are used again when nothing waits.
    #[inline]
    pub fn exchange_events(&mut self, taken: &mut Events<RnicEvent>) -> bool {
        self.providers.exchange_events(taken)
    }

    /// The two ends of a connection (local, peer).
    pub fn addresses(&self, queue_pair: QueuePairId) -> Option<(SocketAddr, SocketAddr)> {
        self.providers.addresses(queue_pair)
    }

    /// What it has done.
    pub fn counters(&self) -> RnicCounters {
        self.providers.counters()
    }
}
