//! The listeners of a core.

use std::io;
use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ringfab_fabric::rdma;
use ringfab_fabric::tcp;
use ringfab_reactor::SocketOptions;

use super::psk_store::listener_tls;
use crate::config::{ListenerConfig, Transport};
use crate::confinement;
use crate::model::{ControllerLimits, Listener};
use crate::resources::Resources;
use crate::transport::{self, IncomingConnection, ListenerId};

/// How long an address that is in use is tried again, and how often.
const BIND_PATIENCE: Duration = Duration::from_secs(5);
const BIND_RETRY: Duration = Duration::from_millis(50);

/// A listener that is bound on this core.
#[derive(Clone, Debug)]
pub(super) struct BoundListener {
    id: ListenerId,
    /// Which one it is. Its number alone does not say that: another listener may have it next.
    listener: Arc<Listener>,
}

impl BoundListener {
    /// Which one it is.
    pub(super) fn listener(&self) -> &Arc<Listener> {
        &self.listener
    }

    /// What its controllers may use.
    pub(super) fn limits(&self) -> ControllerLimits {
        self.listener.limits()
    }

    /// The most entries of a queue.
    pub(super) fn entries_max(&self) -> u16 {
        u16::try_from(self.limits().queue_entries_max).unwrap_or(u16::MAX)
    }
}

/// The listeners that are bound on a core.
#[derive(Debug)]
pub(super) struct Listeners {
    bound: Vec<BoundListener>,
    /// The most connections of each that may be in handshake.
    half_open: u32,
}

impl Listeners {
    /// None yet.
    pub(super) fn new(half_open: u32) -> Self {
        Self { bound: Vec::new(), half_open }
    }

    /// The most connections of each that may be in handshake.
    pub(super) fn half_open(&self) -> usize {
        self.half_open as usize
    }

    /// The one on which a connection came.
    pub(super) fn of(&self, connection: &IncomingConnection) -> Option<BoundListener> {
        self.bound.iter().find(|listener| connection.is_on(listener.id)).cloned()
    }

    /// Binds the listeners of a core that does not serve yet. Returns their addresses.
    pub(super) fn bind_all(
        &mut self,
        resources: &mut Resources,
        listeners: &[Arc<Listener>],
    ) -> io::Result<Vec<SocketAddr>> {
        listeners.iter().map(|listener| self.bind_patiently(resources, listener)).collect()
    }

    /// Takes no more connections on these. Those that came there go on.
    pub(super) fn close(&mut self, resources: &mut Resources, listeners: &[Arc<Listener>]) {
        let goes =
            |one: &BoundListener| listeners.iter().any(|listener| Arc::ptr_eq(listener, &one.listener));
        for BoundListener { id, .. } in self.bound.extract_if(.., |one| goes(one)) {
            transport::close_listener(&mut resources.transports, &mut resources.reactor, id);
        }
    }

    /// Takes no more connections at all.
    pub(super) fn close_all(&mut self, resources: &mut Resources) {
        for BoundListener { id, .. } in self.bound.drain(..) {
            transport::close_listener(&mut resources.transports, &mut resources.reactor, id);
        }
    }

    /// The kernel lets go of a killed process's sockets some time after the process is gone, because its ring still
    /// holds them. Whoever restarts a target at once must not find its own address taken.
    fn bind_patiently(
        &mut self,
        resources: &mut Resources,
        listener: &Arc<Listener>,
    ) -> io::Result<SocketAddr> {
        let deadline = Instant::now() + BIND_PATIENCE;
        let mut told = false;
        loop {
            match self.bind(resources, listener) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < deadline => {
                    if !mem::replace(&mut told, true) {
                        let (address, seconds) = (listener.config().place(), BIND_PATIENCE.as_secs());
                        tracing::warn!("{address} is in use; tried again for {seconds} s");
                    }
                    thread::sleep(BIND_RETRY);
                }
                outcome => return outcome,
            }
        }
    }

    /// Binds a listener, whose address is known from then on. One that is bound stays as it is.
    pub(super) fn bind(
        &mut self,
        resources: &mut Resources,
        listener: &Arc<Listener>,
    ) -> io::Result<SocketAddr> {
        if self.bound.iter().any(|one| Arc::ptr_eq(&one.listener, listener)) {
            return Ok(listener.address());
        }
        let config = listener.config();
        let bound = self.bind_at(resources, config);
        let (id, address) = bound.map_err(|error| {
            let confined = (error.kind() == io::ErrorKind::PermissionDenied)
                .then(|| confinement::refused_port(config.port))
                .flatten();
            let why = confined.map(|why| format!(": {why}")).unwrap_or_default();
            io::Error::new(error.kind(), format!("cannot listen on {}: {error}{why}", config.place()))
        })?;
        listener.set_bound(address);
        if let ListenerId::Rdma(id) = id
            && let Some(protocol) = resources.transports.rnic.link_protocol(id)
        {
            listener.set_link_protocol(protocol);
        }
        self.bound.push(BoundListener { id, listener: Arc::clone(listener) });
        Ok(address)
    }

    fn bind_at(
        &self,
        resources: &mut Resources,
        config: &ListenerConfig,
    ) -> io::Result<(ListenerId, SocketAddr)> {
        let address = config.address.socket_address(config.port)?;
        let half_open_max = self.half_open;
        let Resources { transports, reactor, target, .. } = resources;
        let socket = SocketOptions {
            congestion: config.congestion.clone(),
            dscp: config.dscp,
            user_timeout: config.user_timeout,
            keep_alive: config.keep_alive,
            ..SocketOptions::default()
        };
        match config.transport {
            Transport::Rdma => {
                let parameters = rdma::ListenParameters {
                    provider: config.provider,
                    crc: config.crc,
                    mpa_revision: config.mpa_revision,
                    half_open_max,
                    socket,
                    ..rdma::ListenParameters::new(address)
                };
                let (id, address) = transports.rnic.listen(reactor, &parameters)?;
                Ok((ListenerId::Rdma(id), address))
            }
            Transport::Tcp => {
                let new = tcp::ListenParameters::new(address);
                let tls = listener_tls(config.tls, target);
                let parameters = tcp::ListenParameters { half_open_max, socket, tls, ..new };
                let (id, address) = transports.tcp.listen(reactor, &parameters)?;
                Ok((ListenerId::Tcp(id), address))
            }
        }
    }
}
