//! A queue pair and its phases.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use ringfab_reactor::{Reactor, Time, TimerId, Token};

use super::domain::Domain;
use super::exposure::Exposures;
use super::kind;
use super::numbers::queue_pair_id;
use super::posted::Outstanding;
use super::send_queue::SendQueue;
use super::sys::{Chain, CmId, DeviceLimits, QueuePair};
use crate::rdma::{
    ConnectError, DisconnectReason, PostError, QueuePairAttributes, QueuePairId, SendRequest, Work,
};
use crate::table::Key;

/// A queue pair of a core. What is dropped first comes first: the queue pair with its identifier, then the memory that
/// the device may still have been using.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) key: Key,
    pub(super) cm: CmId,
    pub(super) queue_pair: Option<QueuePair>,
    pub(super) phase: Phase,
    pub(super) attributes: QueuePairAttributes,
    pub(super) addresses: (SocketAddr, SocketAddr),
    /// Private data that we said, or were told, until it is passed on.
    pub(super) private_data: Bytes,
    /// For the whole way to a connection.
    pub(super) timeout: Duration,
    /// Its place among the core's domains, once it is on a device.
    pub(super) domain: Option<usize>,
    /// Which of the domain's receives it takes from.
    pub(super) receives: usize,
    /// Messages that the peer may still send.
    pub(super) credits: u32,
    /// READs that the peer lets us have outstanding.
    pub(super) initiator_depth: u8,
    /// What the device can do.
    pub(super) limits: DeviceLimits,
    /// Room in the completion queue that was reserved for it.
    pub(super) reserved: u32,
    /// Whether it is in the list of those with something to post.
    pub(super) dirty: bool,
    /// Why it ends, from the moment that this is known.
    pub(super) end: Option<End>,
    /// Everything of the peer has been taken: it can end.
    pub(super) finish_due: bool,
    /// What is posted to it.
    pub(super) sends: SendQueue,
    timer: Option<(TimerId, Time)>,
}

/// Where a queue pair is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The device and the way to the address are looked for.
    Resolving,
    /// The peer has been asked.
    Connecting,
    /// The peer was accepted and has not confirmed yet.
    Accepting,
    Established,
    /// We end it: what was posted before is still sent.
    Draining,
    /// The peer has been told, or has told us.
    Closing,
}

/// The last event of a queue pair.
#[derive(Debug)]
pub(super) enum End {
    Disconnected(DisconnectReason),
    Rejected(Bytes),
    Failed(ConnectError),
}

impl Connection {
    pub(super) fn new(
        key: Key,
        cm: CmId,
        phase: Phase,
        attributes: QueuePairAttributes,
        addresses: (SocketAddr, SocketAddr),
    ) -> Self {
        Self {
            key,
            cm,
            queue_pair: None,
            phase,
            attributes,
            addresses,
            private_data: Bytes::new(),
            timeout: Duration::ZERO,
            domain: None,
            receives: 0,
            credits: 0,
            initiator_depth: 0,
            limits: DeviceLimits::default(),
            reserved: 0,
            dirty: false,
            end: None,
            finish_due: false,
            sends: SendQueue::new(key),
            timer: None,
        }
    }

    pub(super) fn id(&self) -> QueuePairId {
        queue_pair_id(self.key)
    }

    /// What its events bear.
    pub(super) fn context(key: Key) -> u64 {
        u64::from(key.generation) << 32 | u64::from(key.index)
    }

    // --- timers ----------------------------------------------------------------------------------------------------

    pub(super) fn set_timer(&mut self, owner: u8, reactor: &mut Reactor, after: Duration) {
        self.stop_timer(reactor);
        let at = reactor.now() + after;
        let token = Token::new(owner, kind::TIMER, self.key.generation_low(), self.key.index);
        self.timer = Some((reactor.set_timer(at, token), at));
    }

    pub(super) fn stop_timer(&mut self, reactor: &mut Reactor) {
        if let Some((timer, _)) = self.timer.take() {
            reactor.cancel_timer(timer);
        }
    }

    /// Whether the timer that fired is the one that counts.
    pub(super) fn is_overdue(&self, now: Time) -> bool {
        self.timer.is_some_and(|(_, at)| now >= at)
    }

    // --- posting ---------------------------------------------------------------------------------------------------

    /// Whether an exposure and the message that tells of it can be posted now.
    pub(super) fn can_expose(&self) -> bool {
        self.phase == Phase::Established && self.sends.room() >= 2
    }

    /// Appends a request of the caller. Returns what it will report.
    pub(super) fn post(&mut self, domain: &Domain, request: SendRequest) -> Result<Outstanding, PostError> {
        if self.phase != Phase::Established {
            return Err(PostError::Ended(Box::new(request)));
        }
        if matches!(request.work, Work::Read { .. }) && self.initiator_depth == 0 {
            return Err(PostError::NoReads(Box::new(request)));
        }
        let inline_bytes = self.queue_pair.as_ref().map_or(0, |pair| pair.inline_bytes);
        self.sends.post(domain, request, &self.limits, inline_bytes)
    }

    /// Rings the doorbell.
    pub(super) fn ring(
        &mut self,
        scratch: &mut Chain,
        domain: &Domain,
        exposures: &Exposures,
    ) -> std::io::Result<()> {
        let requests = self.sends.take_chain(domain, exposures);
        let Some(queue_pair) = &self.queue_pair else { return Ok(()) };
        // SAFETY: `sends` holds the memory of every request until its completion, or the queue pair's end; heads lie
        // in memory of this queue pair, each in the place of its own entry. Windows and regions live in the exposures
        // and in the domain.
        unsafe { queue_pair.post(scratch, requests) }
    }
}
