//! The Discovery log page (NVM Express Base 2.0, section 5.16.1.23): which subsystems there are for this host, and
//! where.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ringfab_fabric::zone_index;
use ringfab_spec::log::{
    AddressFamily, DiscoveryCntlid, DiscoveryLogEntry, DiscoveryLogHeader, RdmaProviderType, RdmaTsas,
    SecureChannel, SubsystemType, TcpTsas, TransportRequirements,
};
use ringfab_spec::{Nqn, NqnField};

use super::ascii;
use super::page::Page;
use crate::config::Transport;
use crate::controller::Controller;
use crate::model::{Listener, Served, ServedSubsystem};

/// The largest admin queue that a host should ask for, in entries.
const ADMIN_QUEUE_ENTRIES_MAX: u32 = 128;

/// Entries that are made at once. Each takes about a microsecond.
const ENTRIES_AT_ONCE: usize = 32;

/// What the page is made from.
#[derive(Clone, Debug)]
pub(super) struct Discovery {
    served: Arc<Served>,
    host_nqn: String,
    /// The address at which the host has reached us.
    local: Option<SocketAddr>,
}

impl PartialEq for Discovery {
    fn eq(&self, other: &Self) -> bool {
        let same = Arc::ptr_eq(&self.served, &other.served);
        same && self.host_nqn == other.host_nqn && self.local == other.local
    }
}

impl Eq for Discovery {}

impl Discovery {
    /// What the host of a controller may see now.
    pub(super) fn new(controller: &Controller, served: &Arc<Served>) -> Self {
        let local = controller.queues().first().map(|admin| admin.listener());
        Self { served: Arc::clone(served), host_nqn: controller.host().nqn.clone(), local }
    }

    /// Whether there may be more entries than a core has time for.
    pub(super) fn is_large(&self) -> bool {
        self.served.subsystems().len() * self.served.listeners().len() > ENTRIES_AT_ONCE
    }

    /// One entry per listener that this host can reach and subsystem that it may see.
    pub(super) fn page(&self) -> Page {
        let mut header = DiscoveryLogHeader::zeroed();
        let entries = self.entries();
        header.genctr.set(self.served.discovery_generation());
        header.numrec.set(entries.len() as u64);
        let mut page = Page::of(&header);
        entries.iter().for_each(|entry| page.push(entry));
        page
    }

    fn entries(&self) -> Vec<DiscoveryLogEntry> {
        let mut entries = Vec::new();
        for subsystem in self.served.subsystems().iter().filter(|one| one.allows(&self.host_nqn)) {
            for listener in self.served.listeners() {
                let address = reachable(listener, self.local);
                entries.extend(address.map(|address| entry(subsystem, listener, address)));
            }
        }
        entries
    }
}

fn entry(subsystem: &ServedSubsystem, listener: &Listener, address: SocketAddr) -> DiscoveryLogEntry {
    let mut entry = DiscoveryLogEntry::zeroed();
    entry.adrfam = if address.is_ipv4() { AddressFamily::IPV4 } else { AddressFamily::IPV6 };
    entry.subtype = SubsystemType::NVM;
    entry.portid.set(listener.port_id());
    entry.cntlid.set(DiscoveryCntlid::DYNAMIC);
    let admin_entries = listener.limits().queue_entries_max.min(ADMIN_QUEUE_ENTRIES_MAX);
    entry.asqsz.set(u16::try_from(admin_entries).expect("bounded above"));
    entry.trsvcid = ascii(&address.port().to_string());
    entry.traddr = ascii(&address.ip().to_string());
    entry.subnqn = NqnField::new(Nqn::new(subsystem.nqn()).expect("the configuration was checked"));
    let requirements = TransportRequirements::default();
    match listener.transport() {
        Transport::Rdma => {
            entry.treq = requirements.with_secure_channel(SecureChannel::NOT_REQUIRED);
            entry.set_rdma(RdmaTsas::new(RdmaProviderType::IWARP));
        }
        // Where a secure channel is said to be not required, there is one: Linux's tools ask for TLS then.
        Transport::Tcp => {
            entry.treq = requirements.with_sq_flow_control_disable(true);
            entry.set_tcp(TcpTsas::zeroed());
        }
    }
    entry
}

/// The address of a listener for a host that reached us at `local`. A listener on all addresses is reached where the
/// host is already; one on all IPv4 addresses is not reached from IPv6, and one on a link not from another.
fn reachable(listener: &Listener, local: Option<SocketAddr>) -> Option<SocketAddr> {
    let address = listener.address();
    if !address.ip().is_unspecified() {
        // A link-local address means this machine only on its own link, and the host has to know which that is.
        let of_host = local.map_or(0, zone_index);
        return (zone_index(address) == 0 || zone_index(address) == of_host).then_some(address);
    }
    let ip = local?.ip().to_canonical();
    match (address.ip(), ip) {
        (IpAddr::V4(_), IpAddr::V6(_)) => None,
        _ => Some(SocketAddr::new(ip, address.port())),
    }
}
