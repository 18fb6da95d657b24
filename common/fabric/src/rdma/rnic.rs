//! One core's RNIC.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use ringfab_memory::{Lease, Pool};
use ringfab_reactor::{Completion, Reactor, SPIN_DEFAULT, SocketOptions, Wait};

use super::provider::Providers;
use super::{
    Access, Capsule, ConnectRequest, Event, ListenerId, PostError, ProtectionDomain, ProviderChoice,
    QueuePairId, RegionId, RemoteBuffer, Scope, SendRequest,
};
use crate::{CopiedBytes, Events};

/// How an RNIC is built.
#[derive(Clone, Debug)]
pub struct RnicConfig {
    /// The `owner` of the tokens of its reactor operations; completions that bear it go to [`Rnic::on_completion`].
    pub owner: u8,
    /// Seed of the generator that makes keys; from the operating system, or from a simulation's seed.
    pub seed: [u8; 32],
    /// Whether we ask for MPA CRCs when we connect. They are used if either side asks.
    pub crc: bool,
    /// Highest MPA revision to speak when we connect, 1 or 2.
    pub mpa_revision: u8,
    /// The largest FPDU to send, in bytes.
    pub fpdu_bytes_max: u32,
    /// The longest that an MPA exchange may take.
    pub handshake_timeout: Duration,
    /// How long a disconnect may take: for what was posted to be sent, and for the peer to close.
    pub close_timeout: Duration,
    /// The most queue pairs at once, and the most accepted sockets in handshake.
    pub queue_pairs_max: u32,
    /// The most exposures at once.
    pub regions_max: u32,
    /// The longest that the completion queues of a verbs device are polled after the last completion before the core may
    /// sleep, see [`Spin`](ringfab_reactor::Spin).
    pub spin: Duration,
    /// Writes a capture of the software RNIC's own traffic here, as if it had been seen on a network.
    pub capture: Option<PathBuf>,
}

impl RnicConfig {
    /// The defaults: CRC on, MPA revision 2, FPDUs as large as the format allows, 5 s for a handshake.
    pub fn new(owner: u8, seed: [u8; 32]) -> Self {
        Self {
            owner,
            seed,
            crc: true,
            mpa_revision: 2,
            fpdu_bytes_max: 65_536,
            handshake_timeout: Duration::from_secs(5),
            close_timeout: Duration::from_secs(2),
            queue_pairs_max: 4096,
            regions_max: 8192,
            spin: SPIN_DEFAULT,
            capture: None,
        }
    }
}

/// What a queue pair needs.
#[derive(Clone, Debug)]
pub struct QueuePairAttributes {
    /// Memory that the peer may reach.
    pub domain: ProtectionDomain,
    /// The most outstanding send-queue work requests.
    pub send_depth: u32,
    /// Receive credits at the start: SENDs that the peer may have outstanding. More are given by [`Rnic::post_receive`].
    pub receive_depth: u32,
    /// The largest message to receive, head included.
    pub receive_bytes_max: u32,
    /// Where the part of a message after its first 64 bytes goes. While it is empty, receiving pauses.
    pub pool: Pool,
    /// The most RDMA READs that we will have outstanding (ORD).
    pub initiator_depth: u16,
    /// The most RDMA READs that the peer may have outstanding (IRD).
    pub responder_resources: u16,
}

/// A connection to make.
#[derive(Clone, Debug)]
pub struct ConnectParameters<'a> {
    /// To whom.
    pub address: SocketAddr,
    /// Through which provider.
    pub provider: ProviderChoice,
    /// The queue pair's needs.
    pub attributes: QueuePairAttributes,
    /// What to say to the peer; 512 bytes at most.
    pub private_data: &'a [u8],
    /// Bound on the whole, TCP connection and MPA exchange.
    pub timeout: Duration,
    /// Options of the software RNIC's socket. Devices have none.
    pub socket: SocketOptions,
}

/// A listener to open.
#[derive(Clone, Debug)]
pub struct ListenParameters {
    /// Port zero picks a free one.
    pub address: SocketAddr,
    /// Through which provider.
    pub provider: ProviderChoice,
    /// The most connections in handshake at once; a good many more wait their turn.
    pub half_open_max: u32,
    /// Whether we ask for MPA CRCs. They are used if either side asks.
    pub crc: bool,
    /// Highest MPA revision to speak, 1 or 2.
    pub mpa_revision: u8,
    /// Socket options of every accepted connection.
    pub socket: SocketOptions,
}

impl ListenParameters {
    /// The defaults at an address: the software RNIC, 1,024 connections in handshake, CRC on, MPA revision 2.
    pub fn new(address: SocketAddr) -> Self {
        let (provider, socket) = (ProviderChoice::Iwarp, SocketOptions::default());
        Self { address, provider, half_open_max: 1024, crc: true, mpa_revision: 2, socket }
    }
}

/// What an RNIC has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RnicCounters {
    /// Queue pairs that exist now.
    pub queue_pairs: u64,
    /// Regions exposed now.
    pub regions: u64,
    /// FPDUs received.
    pub received_fpdus: u64,
    /// FPDUs sent.
    pub sent_fpdus: u64,
    /// Payload bytes received straight into their final place.
    pub received_direct_bytes: u64,
    /// What was copied. With a device that does RDMA itself only the heads of messages are, which is not counted.
    pub copied_bytes: CopiedBytes,
    /// Connections ended by a violation of the peer.
    pub violations: u64,
}

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

    /// Lets peers reach `length` bytes of `lease` at `offset`. `None` when a table is full, or the send queue on which the
    /// exposure has to be posted. What of it a peer may write to, but has not written yet, may hold anything from now on: large
    /// messages are received further than their segments are known.
    #[inline]
    pub fn expose(
        &mut self,
        scope: impl Into<Scope>,
        lease: Lease,
        offset: u32,
        length: u32,
        access: Access,
    ) -> Option<RemoteBuffer> {
        self.providers.expose(scope.into(), lease, offset, length, access)
    }

    /// Ends an exposure and gives the lease back: at once for the peer, though a send of its bytes that is in flight still
    /// holds another lease. After an invalidation by the peer this is how its owner takes the lease. `None` for one that has
    /// ended.
    pub fn revoke(&mut self, region: RegionId) -> Option<Lease> {
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

    /// Stops listening; requests that wait are unaffected.
    pub fn close_listener(&mut self, reactor: &mut Reactor, listener: ListenerId) {
        self.providers.close_listener(reactor, listener);
    }

    /// Starts a connection. [`Event::Established`], [`Event::Rejected`] or [`Event::ConnectFailed`] follows.
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

    /// Accepts a request of any core's listener. [`Event::Established`] follows when the queue pair may be used.
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

    /// Ends a connection: what was posted before is still sent, for a bounded time; then [`Event::Disconnected`] follows.
    pub fn disconnect(&mut self, reactor: &mut Reactor, queue_pair: QueuePairId) {
        self.providers.disconnect(reactor, queue_pair);
    }

    /// Ends a connection at once: what was posted and not yet sent never is, and the peer is reset. Then
    /// [`Event::Disconnected`] follows.
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

    /// Rings the doorbell: starts everything posted since the last flush, on all queue pairs, with as few sends as possible.
    pub fn flush(&mut self, reactor: &mut Reactor) {
        self.providers.flush(reactor);
    }

    /// Takes a completion of the reactor that bears this RNIC's owner.
    pub fn on_completion(&mut self, reactor: &mut Reactor, completion: Completion) {
        self.providers.on_completion(reactor, completion);
    }

    /// Once per turn, after whatever may have freed buffers: takes what devices have completed and resumes what waited for
    /// buffers. Returns whether something did.
    pub fn poll(&mut self, reactor: &mut Reactor) -> bool {
        self.providers.poll(reactor)
    }

    /// Once in a while: gives back memory that has not been used for some time.
    pub fn rest(&mut self) {
        self.providers.rest();
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

    /// Whether the core may sleep in its ring: whatever happens next on a device will wake it. While a device is busy it may
    /// not, and the turn must not wait.
    pub fn may_sleep(&mut self, reactor: &mut Reactor) -> bool {
        self.providers.may_sleep(reactor)
    }

    /// The next event, in the order of each queue pair.
    #[inline]
    pub fn next_event(&mut self) -> Option<Event> {
        self.providers.next_event()
    }

    /// The same for many, which are looked at where they lie: [`Events::exchange`] with the events that wait. What was taken
    /// before is done with; slots of queue pairs that have ended are used again when nothing waits.
    #[inline]
    pub fn exchange_events(&mut self, taken: &mut Events<Event>) -> bool {
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
