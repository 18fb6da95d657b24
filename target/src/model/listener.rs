//! A listener: where hosts connect, and what the controllers that come there may use.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use ringfab_fabric::rdma::LinkProtocol;
use ringfab_fabric::zone_index;

use crate::config::{ListenerConfig, Transport};

/// What a controller may use, by the listener on which its host came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControllerLimits {
    /// How its host reaches it.
    pub transport: Transport,
    /// The largest queue, in entries.
    pub queue_entries_max: u32,
    /// The most I/O queues; zero for a discovery controller.
    pub io_queues_max: u16,
    /// Data that a command capsule may carry, in bytes.
    pub in_capsule_bytes: u32,
    /// Whether there are only discovery controllers.
    pub discovery_only: bool,
}

/// A listener, for as long as it is served.
#[derive(Debug)]
pub struct Listener {
    config: ListenerConfig,
    port_id: u16,
    /// The address that the system gave it: with a port, and with the interface of a link-local address.
    bound: OnceLock<SocketAddr>,
    /// What it speaks below NVMe/RDMA, if that is one thing.
    link_protocol: OnceLock<LinkProtocol>,
}

/// The way by which a host came. A listener on all addresses is several ways: one for each address of the machine.
#[derive(Clone, Debug)]
pub struct Way {
    /// The address on which the host reached us.
    pub local: SocketAddr,
    /// The listener that took its connection.
    pub listener: Arc<Listener>,
}

impl Listener {
    /// A listener that is not bound yet.
    pub(super) fn new(config: ListenerConfig, port_id: u16) -> Self {
        Self { config, port_id, bound: OnceLock::new(), link_protocol: OnceLock::new() }
    }

    /// What it is made from.
    pub fn config(&self) -> &ListenerConfig {
        &self.config
    }

    /// Its number in discovery (PORTID). No other listener has it while this one is served.
    pub fn port_id(&self) -> u16 {
        self.port_id
    }

    /// How hosts talk to it.
    pub fn transport(&self) -> Transport {
        self.config.transport
    }

    /// The bound address, or the configured one before it is bound.
    pub fn address(&self) -> SocketAddr {
        let configured = || SocketAddr::new(self.config.address.ip(), self.config.port);
        self.bound.get().copied().unwrap_or_else(configured)
    }

    /// It is bound, once: discovery shows this address from now on.
    pub fn set_bound(&self, address: SocketAddr) {
        let _already = self.bound.set(address);
    }

    /// What serves it below NVMe/RDMA is known now.
    pub fn set_link_protocol(&self, protocol: LinkProtocol) {
        let _already = self.link_protocol.set(protocol);
    }

    /// What it speaks below NVMe/RDMA; `None` when that depends on the address by which a host comes.
    pub fn link_protocol(&self) -> Option<LinkProtocol> {
        self.link_protocol.get().copied()
    }

    /// What its controllers may use.
    pub fn limits(&self) -> ControllerLimits {
        ControllerLimits {
            transport: self.config.transport,
            queue_entries_max: self.config.queue_depth_max,
            io_queues_max: self.config.io_queues_max,
            in_capsule_bytes: self.config.in_capsule_bytes,
            discovery_only: self.config.discovery_only,
        }
    }

    /// Whether a connection with this local address came in here.
    pub fn covers(&self, local: SocketAddr) -> bool {
        let address = self.address();
        let any = address.ip().is_unspecified();
        let same = address.ip() == local.ip() && zone_index(address) == zone_index(local);
        address.port() == local.port() && (any || same)
    }
}

#[cfg(test)]
impl Way {
    /// By a listener on an address, which is not served.
    pub(crate) fn at(local: &str) -> Self {
        let local: SocketAddr = local.parse().unwrap();
        let text = format!(
            "[[listener]]\naddress = \"{}\"\nport = {}\n[[subsystem]]\nnqn = \"nqn.2026-01.org.example:a\"\n\
             allow_any_host = true\n[[subsystem.namespace]]\nnull = \"1MiB\"\n",
            local.ip(),
            local.port(),
        );
        let config = crate::config::Config::parse(&text, "test").unwrap().listeners.remove(0);
        Self { local, listener: Arc::new(Listener::new(config, 1)) }
    }
}
