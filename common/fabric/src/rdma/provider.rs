//! Which provider serves what.

use std::io;
use std::net::SocketAddr;

use ringfab_memory::{Pool, SharedBuffer};
use ringfab_reactor::{Completion, Reactor};

#[cfg(feature = "verbs")]
use super::verbs;
use super::{
    Access, Capsule, ConnectParameters, ConnectRequest, LinkProtocol, ListenParameters, ListenerId,
    PostError, ProtectionDomain, ProviderChoice, QueuePairAttributes, QueuePairId, RegionId, RemoteBuffer,
    RnicConfig, RnicCounters, RnicEvent, Scope, SendRequest, iwarp,
};
use crate::Events;

/// The providers of a core.
#[derive(Debug)]
pub(super) struct Providers {
    pub(super) iwarp: Box<iwarp::Device>,
    #[cfg(feature = "verbs")]
    verbs: Option<Box<verbs::Device>>,
    /// What was said of a choice last: whoever tries again and again says it once.
    #[cfg(feature = "verbs")]
    told: Option<(SocketAddr, String)>,
    #[cfg(feature = "verbs")]
    config: RnicConfig,
}

/// Which of the two was chosen.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Chosen {
    Iwarp,
    #[cfg(feature = "verbs")]
    Verbs,
}

impl Providers {
    pub(super) fn new(config: RnicConfig) -> io::Result<Self> {
        Ok(Self {
            #[cfg(feature = "verbs")]
            verbs: None,
            #[cfg(feature = "verbs")]
            told: None,
            #[cfg(feature = "verbs")]
            config: config.clone(),
            iwarp: Box::new(iwarp::Device::new(config)?),
        })
    }

    pub(super) fn deallocate_domain(&mut self, domain: ProtectionDomain) {
        self.iwarp.deallocate_domain(domain);
        #[cfg(feature = "verbs")]
        if let Some(verbs) = &mut self.verbs {
            verbs.deallocate_domain(domain);
        }
    }

    #[inline(always)]
    pub(super) fn expose(
        &mut self,
        scope: Scope,
        shared_buffer: SharedBuffer,
        offset: u32,
        length: u32,
        access: Access,
    ) -> Option<RemoteBuffer> {
        #[cfg(feature = "verbs")]
        if let Scope::QueuePair(queue_pair) = scope
            && queue_pair.is_of_device()
        {
            return self.verbs.as_mut()?.expose(queue_pair, shared_buffer, offset, length, access);
        }
        self.iwarp.expose(scope, shared_buffer, offset, length, access)
    }

    pub(super) fn revoke(&mut self, region: RegionId) -> Option<SharedBuffer> {
        match region {
            RegionId::Iwarp(key) => self.iwarp.revoke(key),
            #[cfg(feature = "verbs")]
            RegionId::Verbs { index, generation } => self.verbs.as_mut()?.revoke(index, generation),
            #[cfg(not(feature = "verbs"))]
            RegionId::Verbs { .. } => None,
        }
    }

    pub(super) fn listen(
        &mut self,
        reactor: &mut Reactor,
        parameters: &ListenParameters,
    ) -> io::Result<(ListenerId, SocketAddr)> {
        match self.choose(reactor, parameters.provider, parameters.address, true)? {
            Chosen::Iwarp => {
                let (listener, address) = self.iwarp.listen(reactor, parameters)?;
                Ok((ListenerId::Iwarp(listener), address))
            }
            #[cfg(feature = "verbs")]
            Chosen::Verbs => self.verbs()?.listen(reactor, parameters),
        }
    }

    pub(super) fn link_protocol(&self, listener: ListenerId) -> Option<LinkProtocol> {
        match listener {
            ListenerId::Iwarp(_) => Some(LinkProtocol::Iwarp),
            #[cfg(feature = "verbs")]
            ListenerId::Verbs(index) => self.verbs.as_ref()?.link_protocol(index),
            #[cfg(not(feature = "verbs"))]
            ListenerId::Verbs(_) => None,
        }
    }

    pub(super) fn close_listener(&mut self, reactor: &mut Reactor, listener: ListenerId) {
        match listener {
            ListenerId::Iwarp(listener) => self.iwarp.close_listener(reactor, listener),
            ListenerId::Verbs(_listener) =>
            {
                #[cfg(feature = "verbs")]
                if let Some(verbs) = &mut self.verbs {
                    verbs.close_listener(_listener);
                }
            }
        }
    }

    pub(super) fn connect(
        &mut self,
        reactor: &mut Reactor,
        parameters: &ConnectParameters<'_>,
    ) -> io::Result<QueuePairId> {
        match self.choose(reactor, parameters.provider, parameters.address, false)? {
            Chosen::Iwarp => self.iwarp.connect(reactor, parameters),
            #[cfg(feature = "verbs")]
            Chosen::Verbs => self.verbs()?.connect(reactor, parameters),
        }
    }

    pub(super) fn accept(
        &mut self,
        reactor: &mut Reactor,
        request: ConnectRequest,
        attributes: &QueuePairAttributes,
        private_data: &[u8],
    ) -> io::Result<QueuePairId> {
        let ConnectRequest { private_data: said, pending, .. } = request;
        let pending = match pending.downcast::<iwarp::PendingAccept>() {
            Ok(pending) => return self.iwarp.accept(reactor, *pending, said, attributes, private_data),
            Err(other) => other,
        };
        #[cfg(feature = "verbs")]
        if let Ok(pending) = pending.downcast::<verbs::PendingAccept>() {
            return self.verbs()?.accept(reactor, *pending, said, attributes, private_data);
        }
        #[cfg(not(feature = "verbs"))]
        drop(pending);
        Err(io::Error::new(io::ErrorKind::InvalidInput, "a connection request of another provider"))
    }

    pub(super) fn reject(&mut self, reactor: &mut Reactor, request: ConnectRequest, private_data: &[u8]) {
        let pending = match request.pending.downcast::<iwarp::PendingAccept>() {
            Ok(pending) => return self.iwarp.reject(reactor, *pending, private_data),
            Err(other) => other,
        };
        #[cfg(feature = "verbs")]
        if let Ok(pending) = pending.downcast::<verbs::PendingAccept>() {
            pending.reject(private_data);
        }
        #[cfg(not(feature = "verbs"))]
        drop(pending);
    }

    pub(super) fn disconnect(&mut self, reactor: &mut Reactor, queue_pair: QueuePairId) {
        #[cfg(feature = "verbs")]
        if let Some(verbs) = self.verbs_of(queue_pair) {
            return verbs.disconnect(reactor, queue_pair);
        }
        self.iwarp.disconnect(reactor, queue_pair);
    }

    pub(super) fn abort(&mut self, reactor: &mut Reactor, queue_pair: QueuePairId) {
        #[cfg(feature = "verbs")]
        if let Some(verbs) = self.verbs_of(queue_pair) {
            return verbs.abort(queue_pair);
        }
        self.iwarp.abort(reactor, queue_pair);
    }

    #[inline(always)]
    pub(super) fn post_send(
        &mut self,
        queue_pair: QueuePairId,
        request: SendRequest,
    ) -> Result<(), PostError> {
        #[cfg(feature = "verbs")]
        if let Some(verbs) = self.verbs_of(queue_pair) {
            return verbs.post_send(queue_pair, request);
        }
        self.iwarp.post_send(queue_pair, request)
    }

    #[inline(always)]
    pub(super) fn post_capsule(
        &mut self,
        queue_pair: QueuePairId,
        capsule: Capsule<'_>,
    ) -> Result<(), PostError> {
        #[cfg(feature = "verbs")]
        if let Some(verbs) = self.verbs_of(queue_pair) {
            return verbs.post_send(queue_pair, capsule.into());
        }
        self.iwarp.post_capsule(queue_pair, capsule)
    }

    #[inline]
    pub(super) fn post_receive(&mut self, queue_pair: QueuePairId, count: u32) {
        #[cfg(feature = "verbs")]
        if let Some(verbs) = self.verbs_of(queue_pair) {
            return verbs.post_receive(queue_pair, count);
        }
        self.iwarp.post_receive(queue_pair, count);
    }

    pub(super) fn set_receive_pool(&mut self, queue_pair: QueuePairId, pool: &Pool) {
        if !queue_pair.is_of_device() {
            self.iwarp.set_receive_pool(queue_pair, pool);
        }
    }

    pub(super) fn flush(&mut self, reactor: &mut Reactor) {
        self.iwarp.flush(reactor);
        #[cfg(feature = "verbs")]
        if let Some(verbs) = &mut self.verbs {
            verbs.flush(reactor);
        }
    }

    pub(super) fn on_completion(&mut self, reactor: &mut Reactor, completion: Completion) {
        #[cfg(feature = "verbs")]
        if completion.token.kind >= verbs::kind::FIRST {
            if let Some(verbs) = &mut self.verbs {
                verbs.on_completion(reactor, &completion);
            }
            return;
        }
        self.iwarp.on_completion(reactor, completion);
    }

    pub(super) fn poll(&mut self, reactor: &mut Reactor) -> bool {
        #[cfg(feature = "verbs")]
        let found = self.verbs.as_mut().is_some_and(|verbs| verbs.poll(reactor));
        #[cfg(not(feature = "verbs"))]
        let found = false;
        self.iwarp.poll(reactor) | found
    }

    /// Devices place what comes into buffers of pools, and keep no memory of their own for it.
    pub(super) fn trim(&mut self) {
        self.iwarp.trim();
    }

    pub(super) fn may_sleep(&mut self, _reactor: &mut Reactor) -> bool {
        #[cfg(feature = "verbs")]
        if let Some(verbs) = &mut self.verbs {
            return verbs.may_sleep(_reactor) && self.iwarp.may_sleep();
        }
        self.iwarp.may_sleep()
    }

    #[inline]
    pub(super) fn next_event(&mut self) -> Option<RnicEvent> {
        // Asked before it is taken: an event is large, and moved once for each place that it passes through.
        #[cfg(feature = "verbs")]
        if let Some(verbs) = &mut self.verbs
            && verbs.has_events()
        {
            return verbs.next_event();
        }
        self.iwarp.next_event()
    }

    #[inline]
    pub(super) fn exchange_events(&mut self, taken: &mut Events<RnicEvent>) -> bool {
        #[cfg(feature = "verbs")]
        if let Some(verbs) = &mut self.verbs
            && verbs.exchange_events(taken)
        {
            return true;
        }
        self.iwarp.exchange_events(taken)
    }

    pub(super) fn addresses(&self, queue_pair: QueuePairId) -> Option<(SocketAddr, SocketAddr)> {
        #[cfg(feature = "verbs")]
        if queue_pair.is_of_device() {
            return self.verbs.as_ref()?.addresses(queue_pair);
        }
        self.iwarp.addresses(queue_pair)
    }

    pub(super) fn counters(&self) -> RnicCounters {
        #[cfg_attr(not(feature = "verbs"), expect(unused_mut, reason = "verbs adds to it"))]
        let mut counters = self.iwarp.counters();
        #[cfg(feature = "verbs")]
        if let Some(verbs) = &self.verbs {
            verbs.count(&mut counters);
        }
        counters
    }
}

#[cfg(not(feature = "verbs"))]
impl Providers {
    #[expect(clippy::unused_self, reason = "with the feature it looks at the devices")]
    fn choose(
        &self,
        _reactor: &Reactor,
        choice: ProviderChoice,
        _address: SocketAddr,
        _listens: bool,
    ) -> io::Result<Chosen> {
        match choice {
            ProviderChoice::Auto | ProviderChoice::Iwarp => Ok(Chosen::Iwarp),
            ProviderChoice::Verbs => {
                Err(io::Error::new(io::ErrorKind::Unsupported, "this program was built without verbs"))
            }
        }
    }
}

#[cfg(feature = "verbs")]
impl Providers {
    fn verbs_of(&mut self, queue_pair: QueuePairId) -> Option<&mut verbs::Device> {
        self.verbs.as_deref_mut().filter(|_| queue_pair.is_of_device())
    }

    /// The provider over verbs, which is made when it is first wanted.
    fn verbs(&mut self) -> io::Result<&mut verbs::Device> {
        let device = match self.verbs.take() {
            Some(device) => device,
            None => {
                super::devices::any()?;
                Box::new(verbs::Device::new(self.config.clone())?)
            }
        };
        Ok(self.verbs.insert(device))
    }

    /// Decides for a listener at an address or a connection to it, and says why.
    fn choose(
        &mut self,
        reactor: &Reactor,
        choice: ProviderChoice,
        address: SocketAddr,
        listens: bool,
    ) -> io::Result<Chosen> {
        let (chosen, reason) = match choice {
            ProviderChoice::Iwarp => return Ok(Chosen::Iwarp),
            _ if reactor.is_simulated() => return Ok(Chosen::Iwarp),
            ProviderChoice::Verbs => {
                self.verbs().map_err(|error| {
                    io::Error::new(error.kind(), format!("no RDMA devices can be used here: {error}"))
                })?;
                return Ok(Chosen::Verbs);
            }
            ProviderChoice::Auto => match self.device_for(address, listens) {
                Ok(device) => (Chosen::Verbs, format!("the RDMA device {device} owns the local address")),
                Err(error) => (Chosen::Iwarp, error.to_string()),
            },
        };
        let provider = if chosen == Chosen::Verbs { ProviderChoice::Verbs } else { ProviderChoice::Iwarp };
        let choice = (address, reason);
        if self.told.as_ref() != Some(&choice) {
            tracing::info!(%address, %provider, reason = choice.1, "provider chosen");
            self.told = Some(choice);
        }
        Ok(chosen)
    }

    /// The verbs device that would carry a connection to an address, or serve a listener there.
    fn device_for(&mut self, address: SocketAddr, listens: bool) -> io::Result<String> {
        let local = if listens { address } else { super::devices::local_address_towards(address)? };
        let ip = local.ip();
        if ip.is_unspecified() {
            return super::devices::first_usable();
        }
        let verbs = self.verbs().map_err(|error| {
            io::Error::new(error.kind(), format!("this machine has no RDMA devices ({error})"))
        })?;
        verbs.device_at(local).map_err(|error| {
            io::Error::new(error.kind(), format!("no RDMA device has the local address {ip} ({error})"))
        })
    }
}
