//! Discovery controllers that say by mDNS where they are (TP8009): `_nvme-disc._tcp` for NVMe/TCP and iWARP,
//! `_nvme-disc._udp` for RoCE, with the transport in the key `p` of the TXT record.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context as _, Result};
use mdns_sd::{ResolvedService, ScopedIp, ServiceDaemon, ServiceEvent};
use ringfab_fabric::{ZonedIp, is_link_local};
use ringfab_initiator::{Transport, Url};

const SERVICES: [&str; 2] = ["_nvme-disc._tcp.local.", "_nvme-disc._udp.local."];

/// How long to wait for answers where not everybody is waited for.
pub const PATIENCE: Duration = Duration::from_secs(3);

/// What is heard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// A discovery controller is there.
    Came(Url),
    /// It has said that it goes, or has said nothing for long.
    Went(Url),
}

/// Listens until it is dropped.
pub struct Browser(ServiceDaemon);

impl Browser {
    /// Asks all networks of this machine. `hear` is called from other threads.
    ///
    /// # Errors
    /// The system lets us have no socket or thread for it.
    pub fn start(hear: impl Fn(Heard) + Clone + Send + 'static) -> Result<Self> {
        let daemon = ServiceDaemon::new().context("mDNS")?;
        let this = Self(daemon);
        for service in SERVICES {
            let events = this.0.browse(service).with_context(|| format!("mDNS, {service}"))?;
            let hear = hear.clone();
            let listen = move || {
                let mut known: Vec<(String, Url)> = Vec::new();
                while let Ok(event) = events.recv() {
                    heard(event, &mut known).into_iter().for_each(&hear);
                }
            };
            std::thread::Builder::new().name("mdns".to_owned()).spawn(listen)?;
        }
        Ok(this)
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Its threads end with the daemon's.
        if let Err(error) = self.0.shutdown() {
            tracing::debug!(%error, "mDNS does not end");
        }
    }
}

/// The most controllers of a service that are remembered.
const KNOWN_MAX: usize = 64;

/// What an event says that was not known.
fn heard(event: ServiceEvent, known: &mut Vec<(String, Url)>) -> Vec<Heard> {
    match event {
        ServiceEvent::ServiceResolved(service) => {
            let name = service.get_fullname().to_owned();
            let Some(url) = url_of(&service) else {
                tracing::warn!(name, "a discovery controller of an unknown transport, or without an address");
                return Vec::new();
            };
            let before = known.iter().position(|(one, _)| *one == name);
            if before.is_some_and(|index| known[index].1 == url)
                || before.is_none() && known.len() == KNOWN_MAX
            {
                return Vec::new();
            }
            let went = before.map(|index| Heard::Went(known.swap_remove(index).1));
            known.push((name, url.clone()));
            went.into_iter().chain([Heard::Came(url)]).collect()
        }
        ServiceEvent::ServiceRemoved(_, name) => {
            known.extract_if(.., |(one, _)| *one == name).map(|(_, url)| Heard::Went(url)).collect()
        }
        _ => Vec::new(),
    }
}

/// The address of a discovery controller; of several that it has, an IPv4 address and the lowest.
fn url_of(service: &ResolvedService) -> Option<Url> {
    let transport = match service.get_property_val_str("p")?.to_ascii_lowercase().as_str() {
        "tcp" => Transport::Tcp,
        "roce" | "iwarp" | "rdma" => Transport::Rdma,
        _ => return None,
    };
    let port = Some(service.get_port()).filter(|port| *port != 0)?;
    let address =
        service.get_addresses().iter().filter_map(zoned).min_by_key(|(ip, _)| (ip.is_ipv6(), *ip))?;
    Some(Url::new(address.1.into(), port, None).with_transport(transport))
}

/// An address, with the interface on which a link-local one was heard of.
fn zoned(address: &ScopedIp) -> Option<(IpAddr, ZonedIp)> {
    let ip = address.to_ip_addr();
    let zone = match address {
        ScopedIp::V6(v6) if is_link_local(ip) => Some(v6.scope_id().name.as_str()),
        _ => None,
    };
    Some((ip, ZonedIp::new(ip, zone).ok()?))
}

#[cfg(test)]
mod tests {
    use mdns_sd::ServiceInfo;

    use super::*;

    fn service(properties: &[(&str, &str)], addresses: &str, port: u16) -> ResolvedService {
        let service = ServiceInfo::new(SERVICES[0], "one", "host.local.", addresses, port, properties);
        service.expect("a service").as_resolved_service()
    }

    #[test]
    fn the_transport_is_what_the_text_record_says() {
        for (p, text) in [
            ("tcp", Some("nvme+tcp://192.0.2.1:8009/")),
            ("TCP", Some("nvme+tcp://192.0.2.1:8009/")),
            ("roce", Some("nvme+rdma://192.0.2.1:8009/")),
            ("iwarp", Some("nvme+rdma://192.0.2.1:8009/")),
            ("fc", None),
        ] {
            let url = url_of(&service(&[("p", p), ("nqn", "nqn.2026-01.org.example:d")], "192.0.2.1", 8009));
            assert_eq!(url.map(|url| url.to_string()).as_deref(), text);
        }
        assert_eq!(url_of(&service(&[], "192.0.2.1", 8009)), None);
        assert_eq!(url_of(&service(&[("p", "tcp")], "192.0.2.1", 0)), None);
        assert_eq!(url_of(&service(&[("p", "tcp")], "", 8009)), None);
        let both = url_of(&service(&[("P", "tcp")], "2001:db8::1,192.0.2.9,192.0.2.3", 4420));
        assert_eq!(both.expect("an address").to_string(), "nvme+tcp://192.0.2.3:4420/");
    }

    #[test]
    fn only_news_are_told() {
        let mut known = Vec::new();
        let came = |address: &str| Box::new(service(&[("p", "tcp")], address, 8009));
        let url = |address: &str| format!("nvme+tcp://{address}:8009").parse::<Url>().expect("an address");
        let event = ServiceEvent::ServiceResolved;
        assert_eq!(heard(event(came("192.0.2.1")), &mut known), [Heard::Came(url("192.0.2.1"))]);
        assert_eq!(heard(event(came("192.0.2.1")), &mut known), []);
        let moved = [Heard::Went(url("192.0.2.1")), Heard::Came(url("192.0.2.2"))];
        assert_eq!(heard(event(came("192.0.2.2")), &mut known), moved);
        let removed = ServiceEvent::ServiceRemoved(SERVICES[0].to_owned(), format!("one.{}", SERVICES[0]));
        assert_eq!(heard(removed.clone(), &mut known), [Heard::Went(url("192.0.2.2"))]);
        assert_eq!(heard(removed, &mut known), []);
    }
}
