//! The Discovery log page (NVM Express Base 2.0, section 5.16.1.23): which subsystems there are for this host, and
//! where.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ringfab_fabric::rdma::LinkProtocol;
use ringfab_fabric::zone_index;
use ringfab_spec::log::{
    AddressFamily, DiscoveryCntlid, DiscoveryLogEntry, DiscoveryLogHeader, EntryFlags, RdmaProviderType,
    RdmaTsas, SecureChannel, SubsystemType, TcpSecurityType, TcpTsas, TransportRequirements,
};
use ringfab_spec::nqn::DISCOVERY_NQN;
use ringfab_spec::{Nqn, NqnField};

use super::ascii;
use super::page::Page;
use crate::config::{ListenerTls, Referral, Transport};
use crate::controller::Controller;
use crate::model::{Listener, Served};

/// The largest admin queue that a host should ask for, in entries.
const ADMIN_QUEUE_ENTRIES_MAX: u32 = 128;

/// The largest admin queue that every controller allows, in entries.
const ADMIN_QUEUE_ENTRIES_MIN: u16 = 32;

/// Entries that are made at once. Each takes about a microsecond.
const ENTRIES_AT_ONCE: usize = 32;

/// What the page is made from.
#[derive(Clone, Debug)]
pub(super) struct Discovery {
    served: Arc<Served>,
    /// The discovery subsystem's own name.
    nqn: String,
    host_nqn: String,
    /// The address at which the host has reached us.
    local: SocketAddr,
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
        let local = controller.way().local;
        let (nqn, host_nqn) = (controller.subsystem().nqn().to_owned(), controller.host().nqn.clone());
        Self { served: Arc::clone(served), nqn, host_nqn, local }
    }

    /// Whether there may be more entries than a core has time for.
    pub(super) fn is_large(&self) -> bool {
        self.served.subsystems().len() * self.served.listeners().len() > ENTRIES_AT_ONCE
    }

    /// An entry of this discovery subsystem for each listener that the host can reach, one of each subsystem that it
    /// may use for each listener where it finds it, and the referrals.
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
        let reached = |listener| reachable(listener, self.local).map(|address| (listener, address));
        let listeners = self.served.listeners().iter().map(Arc::as_ref).filter_map(reached);
        let listeners: Vec<(&Listener, SocketAddr)> = listeners.collect();
        let mut entries: Vec<_> = listeners.iter().map(|(one, address)| self.own(one, *address)).collect();
        for subsystem in self.served.subsystems().iter().filter(|one| one.allows(&self.host_nqn)) {
            let tls = subsystem.demands().tls;
            let serves = |listener: &Listener| {
                !listener.limits().discovery_only && (!tls || listener.config().tls != ListenerTls::Off)
            };
            let named = |one: &&(&Listener, SocketAddr)| subsystem.is_discovered_at(one.0, one.1);
            let serving = listeners.iter().filter(named).filter(|(listener, _)| serves(listener));
            entries
                .extend(serving.map(|(listener, address)| self.at(listener, *address, subsystem.nqn(), tls)));
        }
        entries.extend(self.served.referrals().iter().map(referral));
        entries
    }

    /// This discovery subsystem, at a listener. Hosts may stay connected, and are told what changes.
    fn own(&self, listener: &Listener, address: SocketAddr) -> DiscoveryLogEntry {
        // At a listener on all addresses, a host is told of the one by which it came.
        let fixed =
            |one: &Arc<Listener>| !one.address().ip().is_unspecified() && zone_index(one.address()) == 0;
        let same_everywhere = self.served.listeners().iter().all(fixed);
        let flags = EntryFlags::default().with_epcsd(true).with_dupretinfo(same_everywhere);
        let mut entry = self.at(listener, address, &self.nqn, false);
        (entry.subtype, entry.eflags) = (SubsystemType::CURRENT_DISCOVERY, flags);
        entry
    }

    /// A subsystem for I/O, at a listener; `requires_tls` says whether it is only reached over TLS.
    fn at(
        &self,
        listener: &Listener,
        address: SocketAddr,
        nqn: &str,
        requires_tls: bool,
    ) -> DiscoveryLogEntry {
        let mut entry = entry(listener.transport(), provider_type(listener.link_protocol()), address, nqn);
        entry.subtype = SubsystemType::NVM;
        entry.portid.set(listener.port_id());
        let admin_entries = listener.limits().queue_entries_max.min(ADMIN_QUEUE_ENTRIES_MAX);
        entry.asqsz.set(u16::try_from(admin_entries).expect("bounded above"));
        if let Some(channel) = self.secure_channel(listener.config().tls, requires_tls) {
            entry.treq = entry.treq.with_secure_channel(channel);
            entry.set_tcp(TcpTsas::new(TcpSecurityType::TLS_1_3));
        }
        entry
    }

    /// Whether the host needs a secure channel at a listener for NVMe/TCP, if it can have one. Without a key it cannot
    /// where it need not, and is told of none: Linux's tools ask for TLS wherever it is said to be there.
    fn secure_channel(&self, listener: ListenerTls, requires_tls: bool) -> Option<SecureChannel> {
        match listener {
            ListenerTls::Off => None,
            ListenerTls::Required => Some(SecureChannel::REQUIRED),
            ListenerTls::Allowed if requires_tls => Some(SecureChannel::REQUIRED),
            ListenerTls::Allowed => self.served.tls_of(&self.host_nqn).map(|_| SecureChannel::NOT_REQUIRED),
        }
    }
}

/// Another discovery subsystem, whose ports are not ours. Nothing is known of its transport's requirements.
fn referral(referral: &Referral) -> DiscoveryLogEntry {
    let nqn = referral.nqn.as_deref().unwrap_or(DISCOVERY_NQN);
    let address = SocketAddr::new(referral.address, referral.port);
    let mut entry = entry(referral.transport, RdmaProviderType::NOT_SPECIFIED, address, nqn);
    entry.subtype = SubsystemType::REFERRAL;
    entry.asqsz.set(ADMIN_QUEUE_ENTRIES_MIN);
    entry.treq = TransportRequirements::default();
    entry
}

/// What serves a listener for NVMe/RDMA.
fn provider_type(protocol: Option<LinkProtocol>) -> RdmaProviderType {
    match protocol {
        Some(LinkProtocol::Iwarp) => RdmaProviderType::IWARP,
        Some(LinkProtocol::RoceV2) => RdmaProviderType::ROCE_V2,
        Some(LinkProtocol::RoceV1) => RdmaProviderType::ROCE_V1,
        Some(LinkProtocol::InfiniBand) => RdmaProviderType::INFINIBAND,
        None => RdmaProviderType::NOT_SPECIFIED,
    }
}

/// What all kinds of entry have.
fn entry(
    transport: Transport,
    provider: RdmaProviderType,
    address: SocketAddr,
    nqn: &str,
) -> DiscoveryLogEntry {
    let mut entry = DiscoveryLogEntry::zeroed();
    entry.adrfam = if address.is_ipv4() { AddressFamily::IPV4 } else { AddressFamily::IPV6 };
    entry.cntlid.set(DiscoveryCntlid::DYNAMIC);
    entry.trsvcid = ascii(&address.port().to_string());
    entry.traddr = ascii(&address.ip().to_string());
    entry.subnqn = NqnField::new(Nqn::new(nqn).expect("the configuration was checked"));
    let requirements = TransportRequirements::default();
    match transport {
        Transport::Rdma => {
            entry.treq = requirements.with_secure_channel(SecureChannel::NOT_REQUIRED);
            entry.set_rdma(RdmaTsas::new(provider));
        }
        Transport::Tcp => {
            entry.treq = requirements.with_sq_flow_control_disable(true);
            entry.set_tcp(TcpTsas::zeroed());
        }
    }
    entry
}

/// The address of a listener for a host that reached us at `local`. A listener on all addresses is reached where the
/// host is already; one on all IPv4 addresses is not reached from IPv6, and one on a link not from another.
fn reachable(listener: &Listener, local: SocketAddr) -> Option<SocketAddr> {
    let address = listener.address();
    if !address.ip().is_unspecified() {
        // A link-local address means this machine only on its own link, and the host has to know which that is.
        let of_host = zone_index(local);
        return (zone_index(address) == 0 || zone_index(address) == of_host).then_some(address);
    }
    let ip = local.ip().to_canonical();
    match (address.ip(), ip) {
        (IpAddr::V4(_), IpAddr::V6(_)) => None,
        _ => Some(SocketAddr::new(ip, address.port())),
    }
}
