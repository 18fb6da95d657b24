//! One core's software RNIC.

use std::io;
use std::net::SocketAddr;

use bytes::Bytes;
use ringfab_memory::{Pool, SharedBuffer};
use ringfab_proto::iwarp::mpa::MpaConfig;
use ringfab_reactor::{Completion, ListenerId, Reactor};

use super::half_open::{HalfOpen, PendingAccept};
use super::message::Message;
use super::opening::{Accept, Opening, revision};
use super::queue_pair::{Core, QueuePair, queue_pair_id};
use crate::events::Events;
use crate::rdma::{
    Access, Capsule, ConnectParameters, ListenParameters, PostError, ProtectionDomain, QueuePairAttributes,
    QueuePairId, RemoteBuffer, RnicConfig, RnicCounters, RnicEvent, Scope, SendRequest,
};
use crate::stream::{self, Adopted, Connect, Listen, ListenerTls, StreamConfig, Streams};
use crate::table::Key;

/// The tables of a core's software RNIC.
#[derive(Debug)]
pub(crate) struct Device {
    queue_pairs: Streams<QueuePair>,
    /// What listeners accepted, until the MPA request is complete; and those that still have a rejection to deliver.
    half_open: Streams<HalfOpen>,
}

impl Device {
    pub(crate) fn new(config: RnicConfig) -> io::Result<Self> {
        let streams = StreamConfig {
            owner: config.owner,
            streams_max: config.queue_pairs_max,
            handshake_timeout: config.handshake_timeout,
            close_timeout: config.close_timeout,
            tls: None,
        };
        let queue_pairs = Streams::new(streams, Core::new(config)?);
        Ok(Self { queue_pairs, half_open: Streams::new(streams, ()) })
    }

    pub(crate) fn allocate_domain(&mut self) -> ProtectionDomain {
        self.core().regions.allocate_domain()
    }

    pub(crate) fn deallocate_domain(&mut self, domain: ProtectionDomain) {
        self.core().regions.deallocate_domain(domain);
    }

    #[inline]
    pub(crate) fn expose(
        &mut self,
        scope: Scope,
        shared_buffer: SharedBuffer,
        offset: u32,
        length: u32,
        access: Access,
    ) -> Option<RemoteBuffer> {
        let domain = match scope {
            Scope::Domain(domain) => domain,
            Scope::QueuePair(queue_pair) => self.queue_pairs.get(key(queue_pair))?.protocol.attributes.domain,
        };
        self.core().regions.expose(domain, shared_buffer, offset, length, access)
    }

    pub(crate) fn revoke(&mut self, key: u32) -> Option<SharedBuffer> {
        self.core().regions.revoke(key)
    }

    pub(crate) fn listen(
        &mut self,
        reactor: &mut Reactor,
        parameters: &ListenParameters,
    ) -> io::Result<(ListenerId, SocketAddr)> {
        let ListenParameters { address, half_open_max, crc, mpa_revision, ref socket, .. } = *parameters;
        // Nobody knows the limits of the queue pair that will answer.
        let terms = MpaConfig { revision: revision(mpa_revision), crc, ..MpaConfig::default() };
        let tls = ListenerTls::Off;
        self.half_open.listen(reactor, Listen { address, options: socket, half_open_max, tls, terms })
    }

    pub(crate) fn close_listener(&mut self, reactor: &mut Reactor, listener: ListenerId) {
        self.half_open.close_listener(reactor, listener);
    }

    pub(crate) fn connect(
        &mut self,
        reactor: &mut Reactor,
        parameters: &ConnectParameters<'_>,
    ) -> io::Result<QueuePairId> {
        let ConnectParameters { address, attributes, private_data, timeout, socket, .. } = parameters;
        check(attributes)?;
        let config = &self.queue_pairs.shared.core.config;
        let opening = Opening::connect(config, attributes, private_data)?;
        let make = |key| QueuePair::new(key, *address, attributes.clone(), opening);
        let to = Connect { address: *address, options: socket, limit: *timeout, tls: None };
        let made = self.queue_pairs.connect(reactor, to, make);
        made.map(queue_pair_id)
    }

    pub(crate) fn accept(
        &mut self,
        reactor: &mut Reactor,
        pending: PendingAccept,
        said: Bytes,
        attributes: &QueuePairAttributes,
        private_data: &[u8],
    ) -> io::Result<QueuePairId> {
        check(attributes)?;
        let PendingAccept { socket, addresses, mut responder, request } = pending;
        responder.set_depths(attributes.responder_resources, attributes.initiator_depth);
        let invalid = |error| io::Error::new(io::ErrorKind::InvalidInput, error);
        let (negotiated, reply) = responder.accept(private_data).map_err(invalid)?;
        let opening = Opening::accept(Accept { negotiated, said, request }, reply);
        let adopted = Adopted { socket, addresses, unread: &[], tls: None };
        let make = |key| QueuePair::new(key, addresses.1, attributes.clone(), opening);
        self.queue_pairs.adopt(reactor, adopted, make).map(queue_pair_id)
    }

    pub(crate) fn reject(&mut self, reactor: &mut Reactor, pending: PendingAccept, private_data: &[u8]) {
        let PendingAccept { socket, addresses, responder, .. } = pending;
        let (peer, adopted) = (addresses.1, Adopted { socket, addresses, unread: &[], tls: None });
        let frame = responder.reject(private_data).map_err(io::Error::other);
        let made = frame
            .and_then(|frame| self.half_open.adopt(reactor, adopted, |_| HalfOpen::Rejection(Some(frame))));
        match made {
            Ok(key) => self.half_open.disconnect(reactor, key),
            Err(error) => tracing::warn!(%peer, %error, "a rejection could not be sent"),
        }
    }

    pub(crate) fn disconnect(&mut self, reactor: &mut Reactor, queue_pair: QueuePairId) {
        self.queue_pairs.disconnect(reactor, key(queue_pair));
    }

    pub(crate) fn abort(&mut self, reactor: &mut Reactor, queue_pair: QueuePairId) {
        self.queue_pairs.abort(reactor, key(queue_pair));
    }

    #[inline(always)]
    pub(crate) fn post_send(
        &mut self,
        queue_pair: QueuePairId,
        request: SendRequest,
    ) -> Result<(), PostError> {
        match self.queue_pairs.get_to_send(key(queue_pair)) {
            Some((queue_pair, mut gather)) => queue_pair.post(&mut gather, request),
            None => Err(PostError::Ended(Box::new(request))),
        }
    }

    #[inline(always)]
    pub(crate) fn post_capsule(
        &mut self,
        queue_pair: QueuePairId,
        capsule: Capsule<'_>,
    ) -> Result<(), PostError> {
        match self.queue_pairs.get_to_send(key(queue_pair)) {
            Some((queue_pair, mut gather)) => queue_pair.post_capsule(&mut gather, capsule),
            None => Err(PostError::Ended(Box::new(capsule.into()))),
        }
    }

    #[inline]
    pub(crate) fn post_receive(&mut self, queue_pair: QueuePairId, count: u32) {
        if let Some(stream) = self.queue_pairs.get_mut(key(queue_pair)) {
            stream.protocol.post_receive(count);
        }
    }

    pub(crate) fn set_receive_pool(&mut self, queue_pair: QueuePairId, pool: &Pool) {
        if let Some(stream) = self.queue_pairs.get_mut(key(queue_pair)) {
            stream.protocol.set_receive_pool(pool);
        }
    }

    pub(crate) fn flush(&mut self, reactor: &mut Reactor) {
        self.queue_pairs.flush(reactor);
        self.half_open.flush(reactor);
    }

    pub(crate) fn on_completion(&mut self, reactor: &mut Reactor, completion: Completion) {
        if completion.token.kind < stream::KINDS {
            self.queue_pairs.on_completion(reactor, completion);
        } else {
            self.half_open.on_completion(reactor, completion);
        }
    }

    pub(crate) fn poll(&mut self, reactor: &mut Reactor) -> bool {
        self.queue_pairs.poll(reactor)
    }

    pub(crate) fn trim(&mut self) {
        self.queue_pairs.trim();
        self.half_open.trim();
    }

    pub(crate) fn may_sleep(&self) -> bool {
        !self.queue_pairs.is_busy()
    }

    #[inline]
    pub(crate) fn next_event(&mut self) -> Option<RnicEvent> {
        self.queue_pairs.next_event().or_else(|| self.half_open.next_event())
    }

    #[inline]
    pub(crate) fn exchange_events(&mut self, taken: &mut Events<RnicEvent>) -> bool {
        if self.queue_pairs.exchange_events(taken) {
            return true;
        }
        while let Some(event) = self.half_open.next_event() {
            taken.push_with(|| event);
        }
        !taken.is_empty()
    }

    pub(crate) fn addresses(&self, queue_pair: QueuePairId) -> Option<(SocketAddr, SocketAddr)> {
        self.queue_pairs.get(key(queue_pair)).map(|stream| stream.addresses)
    }

    pub(crate) fn counters(&self) -> RnicCounters {
        let (core, counters) = (&self.queue_pairs.shared.core, self.queue_pairs.counters());
        let mut counters = RnicCounters {
            queue_pairs: self.queue_pairs.len() as u64,
            regions: core.regions.len() as u64,
            received_fpdus: core.fpdus.received,
            sent_fpdus: core.fpdus.emitted,
            received_direct_bytes: counters.received_direct_bytes,
            copied_bytes: counters.copied(),
            violations: counters.violations,
        };
        for stream in self.queue_pairs.iter() {
            let counts = stream.protocol.fpdu_counts();
            counters.received_fpdus += counts.received;
            counters.sent_fpdus += counts.emitted;
        }
        counters
    }

    fn core(&mut self) -> &mut Core {
        &mut self.queue_pairs.shared.core
    }
}

fn key(queue_pair: QueuePairId) -> Key {
    Key { index: queue_pair.index >> 1, generation: queue_pair.generation }
}

/// A message that no buffer could ever hold would wait for ever.
fn check(attributes: &QueuePairAttributes) -> io::Result<()> {
    if Message::data_bytes_max(attributes.receive_bytes_max) > attributes.pool.buffer_bytes_max() {
        let what = "the largest message does not fit a buffer of the pool";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    Ok(())
}
