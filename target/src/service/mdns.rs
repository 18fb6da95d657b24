//! Tells the network by mDNS where this discovery subsystem is (TP8009), on request.
//!
//! `_nvme-disc._tcp` is for NVMe/TCP and iWARP, `_nvme-disc._udp` for RoCE. The TXT record has the transport (`p`) and
//! the name of the discovery subsystem (`nqn`).

use std::fs;
use std::net::IpAddr;
use std::time::Duration;

use mdns_sd::{IfKind, ServiceDaemon, ServiceInfo};
use ringfab_fabric::rdma::LinkProtocol;
use ringfab_spec::nqn::DISCOVERY_NQN;

use crate::config::Transport;
use crate::model::{Listener, Served};

/// How long the end waits until the network was told.
const GOODBYE: Duration = Duration::from_millis(300);
/// The longest part of this machine's name that a service's name has; all of it has 63 bytes at most.
const HOST_BYTES_MAX: usize = 32;

/// What the network is told.
#[derive(Default)]
pub(super) struct Advertiser {
    daemon: Option<ServiceDaemon>,
    told: Vec<Service>,
    /// What was looked at last: whether it is wanted, and the generation of what is served.
    seen: (bool, u64),
}

/// One listener, as the network is told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Service {
    kind: &'static str,
    name: String,
    host: String,
    /// The address; for a listener on all of them, whether also those of IPv6.
    place: Result<IpAddr, bool>,
    port: u16,
    protocol: &'static str,
    nqn: String,
}

impl Advertiser {
    /// Tells what is different since it was called last.
    pub(super) fn update(&mut self, wanted: bool, served: &Served, nqn: Option<&str>) {
        if self.seen == (wanted, served.generation()) {
            return;
        }
        self.seen = (wanted, served.generation());
        if !wanted {
            return self.stop();
        }
        if self.daemon.is_none() {
            match ServiceDaemon::new() {
                Ok(daemon) => self.daemon = Some(daemon),
                Err(error) => return tracing::error!(%error, "no mDNS"),
            }
        }
        let listeners = served.listeners().iter().map(AsRef::as_ref);
        let services = services(listeners, nqn.unwrap_or(DISCOVERY_NQN), &host_name());
        let Some(daemon) = &self.daemon else { return };
        for gone in self.told.extract_if(.., |one| !services.contains(one)) {
            unregister(daemon, &gone);
        }
        for new in services {
            if self.told.contains(&new) {
                continue;
            }
            match new.info().and_then(|info| daemon.register(info)) {
                Ok(()) => {
                    tracing::info!(service = new.kind, name = new.name, "told by mDNS");
                    self.told.push(new);
                }
                Err(error) => tracing::error!(%error, name = new.name, "not told by mDNS"),
            }
        }
    }

    /// Says that all of it goes.
    pub(super) fn stop(&mut self) {
        let Some(daemon) = self.daemon.take() else { return };
        self.told.drain(..).for_each(|service| unregister(&daemon, &service));
        if let Err(error) = daemon.shutdown() {
            tracing::debug!(%error, "mDNS does not end");
        }
    }
}

impl Drop for Advertiser {
    fn drop(&mut self) {
        self.stop();
    }
}

fn unregister(daemon: &ServiceDaemon, service: &Service) {
    let told = service.info().and_then(|info| daemon.unregister(info.get_fullname()));
    let told = told.map(|status| status.recv_timeout(GOODBYE));
    tracing::debug!(?told, name = service.name, "no longer told by mDNS");
}

impl Service {
    fn info(&self) -> mdns_sd::Result<ServiceInfo> {
        let properties = [("p", self.protocol), ("nqn", self.nqn.as_str())];
        let new = |address: &str| {
            ServiceInfo::new(self.kind, &self.name, &self.host, address, self.port, &properties[..])
        };
        match self.place {
            Ok(address) => {
                let mut info = new(&address.to_string())?;
                info.set_interfaces(vec![IfKind::Addr(address)]);
                Ok(info)
            }
            Err(v6) => {
                let mut info = new("")?.enable_addr_auto();
                info.set_interfaces(vec![if v6 { IfKind::All } else { IfKind::IPv4 }]);
                Ok(info)
            }
        }
    }
}

/// The listeners that hosts of the network can reach: those for discovery only, where there are some.
fn services<'a>(listeners: impl Iterator<Item = &'a Listener>, nqn: &str, machine: &str) -> Vec<Service> {
    let reached: Vec<_> = listeners.filter(|one| !one.address().ip().is_loopback()).collect();
    let only = reached.iter().any(|one| one.limits().discovery_only);
    let meant = reached.into_iter().filter(|one| !only || one.limits().discovery_only);
    meant.filter_map(|listener| service(listener, nqn, machine)).collect()
}

fn service(listener: &Listener, nqn: &str, machine: &str) -> Option<Service> {
    let (protocol, kind) = match (listener.transport(), listener.link_protocol()) {
        (Transport::Tcp, _) => ("tcp", "_nvme-disc._tcp.local."),
        (Transport::Rdma, Some(LinkProtocol::Iwarp)) => ("iwarp", "_nvme-disc._tcp.local."),
        (Transport::Rdma, Some(LinkProtocol::RoceV1 | LinkProtocol::RoceV2)) => {
            ("roce", "_nvme-disc._udp.local.")
        }
        (Transport::Rdma, other) => {
            let address = listener.address();
            tracing::warn!(%address, ?other, "not told by mDNS, which has no name for what serves this listener");
            return None;
        }
    };
    let address = listener.address();
    let (ip, port) = (address.ip(), address.port());
    let (name, host, place) = if ip.is_unspecified() {
        let family = if ip.is_ipv6() { " IPv6" } else { "" };
        let name = format!("Ringfab {machine} {protocol} {port}{family}");
        (name, format!("ringfab-{machine}.local."), Err(ip.is_ipv6()))
    } else {
        let label: String =
            ip.to_string().chars().map(|one| if one.is_alphanumeric() { one } else { '-' }).collect();
        (format!("Ringfab {protocol} {ip} {port}"), format!("ringfab-{label}.local."), Ok(ip))
    };
    Some(Service { kind, name, host, place, port, protocol, nqn: nqn.to_owned() })
}

/// This machine's name, as far as it can be a part of a host's name.
fn host_name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let first = name.trim().split('.').next().unwrap_or_default();
    let mut name: String =
        first.chars().filter(|one| one.is_ascii_alphanumeric() || *one == '-').take(HOST_BYTES_MAX).collect();
    if name.is_empty() {
        name.push_str("host");
    }
    name
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::config::Config;
    use crate::identity::Identity;
    use crate::target::Target;

    fn told(listeners: &str, protocol: Option<LinkProtocol>) -> Vec<String> {
        let text = format!(
            "{listeners}[[subsystem]]\nnqn = \"nqn.2026-01.org.example:a\"\nallow_any_host = true\n\
             [[subsystem.namespace]]\nnull = \"1MiB\"\n"
        );
        let target =
            Target::new(&Config::parse(&text, "told").unwrap(), &Identity::from_seed([7; 32])).unwrap();
        let served = target.served();
        if let Some(protocol) = protocol {
            served.listeners().iter().for_each(|one| one.set_link_protocol(protocol));
        }
        let services = services(served.listeners().iter().map(Arc::as_ref), "nqn.x", "box");
        assert!(services.iter().all(|one| one.info().is_ok() && one.name.len() < 64), "{services:?}");
        services.iter().map(|one| format!("{} {}: p={}", one.name, one.kind, one.protocol)).collect()
    }

    fn listener(address: &str, more: &str) -> String {
        format!("[[listener]]\naddress = \"{address}\"\n{more}\n")
    }

    #[test]
    fn a_listener_is_told_of_by_what_serves_it() {
        let tcp = listener("192.0.2.1", "transport = \"tcp\"\nport = 8009");
        assert_eq!(told(&tcp, None), ["Ringfab tcp 192.0.2.1 8009 _nvme-disc._tcp.local.: p=tcp"]);
        let rdma = listener("0.0.0.0", "");
        let at = "Ringfab box";
        assert_eq!(
            told(&rdma, Some(LinkProtocol::Iwarp)),
            [format!("{at} iwarp 4420 _nvme-disc._tcp.local.: p=iwarp")]
        );
        assert_eq!(
            told(&rdma, Some(LinkProtocol::RoceV2)),
            [format!("{at} roce 4420 _nvme-disc._udp.local.: p=roce")]
        );
        assert!(told(&rdma, Some(LinkProtocol::InfiniBand)).is_empty() && told(&rdma, None).is_empty());
        let long = listener("2001:db8:1111:2222:3333:4444:5555:6666", "transport = \"tcp\"");
        assert_eq!(told(&long, None).len(), 1);
    }

    #[test]
    fn others_are_told_of_no_loopback_and_where_there_are_listeners_for_discovery_of_these_alone() {
        let local = listener("127.0.0.1", "transport = \"tcp\"");
        assert!(told(&local, None).is_empty());
        let both = listener("192.0.2.1", "transport = \"tcp\"")
            + &listener("::", "transport = \"tcp\"\nport = 8009\ndiscovery_only = true");
        assert_eq!(told(&both, None), ["Ringfab box tcp 8009 IPv6 _nvme-disc._tcp.local.: p=tcp"]);
    }
}
