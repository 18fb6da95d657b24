//! What the devices of this machine are and can do.

use std::fmt;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;

use super::sys::{Context, DeviceLimits, DeviceList, OpenDevice};
use crate::rdma::LinkProtocol;

/// A device.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// As the kernel calls it.
    pub name: String,
    /// READs that a peer may have outstanding at us, per queue pair.
    pub responder_resources: u8,
    /// READs that we may have outstanding, per queue pair.
    pub initiator_depth: u8,
    /// The most work requests of a send queue.
    pub send_requests: u32,
    /// Whether a peer can be kept to the buffers of commands in flight (memory windows of type 2).
    pub memory_windows: bool,
    /// Receives of a shared queue; zero when there is none.
    pub shared_receives: u32,
    /// Its ports.
    pub ports: Vec<PortInfo>,
    /// Why it cannot be used, if so.
    pub trouble: Option<String>,
}

/// A port of a device.
#[derive(Clone, Debug)]
pub struct PortInfo {
    /// From one.
    pub number: u8,
    /// What it speaks.
    pub link: LinkLayer,
    /// Whether it is up.
    pub active: bool,
    /// Bytes of payload of a packet.
    pub mtu: u32,
    /// Its addresses.
    pub addresses: Vec<Address>,
}

/// What is below RDMA.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkLayer {
    /// InfiniBand.
    InfiniBand,
    /// RDMA over Converged Ethernet.
    Roce,
    /// RDMA over TCP.
    Iwarp,
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InfiniBand => "InfiniBand",
            Self::Roce => "RoCE",
            Self::Iwarp => "iWARP",
        })
    }
}

/// An entry of a port's GID table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Place in the table.
    pub index: u32,
    /// The GID.
    pub gid: Ipv6Addr,
    /// How packets with it look, as the kernel says: `IB/RoCE v1` or `RoCE v2`.
    pub kind: Option<String>,
    /// The network interface that it belongs to.
    pub interface: Option<String>,
}

impl Address {
    /// The IP address, where the GID holds one.
    pub fn ip(&self) -> Option<IpAddr> {
        self.gid.to_ipv4_mapped().map(IpAddr::from)
    }
}

/// Entries of a GID table that are looked at.
const GIDS_MAX: i32 = 64;

/// All devices.
///
/// # Errors
/// When the kernel has no RDMA at all, or its list cannot be read.
pub fn list() -> io::Result<Vec<DeviceInfo>> {
    let list = DeviceList::new()?;
    Ok(list.iter().map(|(name, opened)| look(name, opened)).collect())
}

fn look(name: String, opened: io::Result<OpenDevice<'_>>) -> DeviceInfo {
    let seen = opened.and_then(|device| Ok((device.limits()?, ports(&name, &device)?)));
    match seen {
        Ok((limits, ports)) => {
            let trouble = trouble(&limits, &ports);
            DeviceInfo {
                responder_resources: limits.responder_resources,
                initiator_depth: limits.initiator_depth,
                send_requests: limits.send_requests,
                memory_windows: limits.windows,
                shared_receives: limits.shared_receives,
                name,
                ports,
                trouble,
            }
        }
        Err(error) => DeviceInfo {
            name,
            responder_resources: 0,
            initiator_depth: 0,
            send_requests: 0,
            memory_windows: false,
            shared_receives: 0,
            ports: Vec::new(),
            trouble: Some(format!("cannot be opened: {error}")),
        },
    }
}

fn trouble(limits: &DeviceLimits, ports: &[PortInfo]) -> Option<String> {
    if limits.shared_receives == 0 {
        return Some("it has no shared receive queues".to_owned());
    }
    if !ports.iter().any(|port| port.active) {
        return Some("no port is up".to_owned());
    }
    None
}

fn ports(name: &str, device: &OpenDevice<'_>) -> io::Result<Vec<PortInfo>> {
    let iwarp = device.limits()?.iwarp;
    (1..=device.ports()?)
        .map(|number| {
            let port = device.port(number)?;
            let link = match (iwarp, port.ethernet) {
                (true, _) => LinkLayer::Iwarp,
                (false, true) => LinkLayer::Roce,
                (false, false) => LinkLayer::InfiniBand,
            };
            let gids =
                (0..port.gids.min(GIDS_MAX)).filter_map(|index| Some((index, device.gid(number, index)?)));
            let addresses = gids.map(|(index, gid)| address(name, number, index as u32, gid)).collect();
            Ok(PortInfo { number, link, active: port.active, mtu: port.mtu, addresses })
        })
        .collect()
}

/// What a port of an open device speaks, as far as it says so. With both versions of RoCE, connections use the second.
pub(super) fn link_protocol(device: Context, port: u8) -> Option<LinkProtocol> {
    match (device.limits().ok()?.iwarp, device.port(port).ok()?.ethernet) {
        (true, _) => Some(LinkProtocol::Iwarp),
        (false, false) => Some(LinkProtocol::InfiniBand),
        (false, true) => {
            let types = format!("/sys/class/infiniband/{}/ports/{port}/gid_attrs/types", device.name());
            let entries = fs::read_dir(types).ok()?.flatten();
            // An entry without an address cannot be read.
            let mut types = entries.filter_map(|entry| fs::read_to_string(entry.path()).ok());
            let second = types.any(|text| text.trim() == "RoCE v2");
            Some(if second { LinkProtocol::RoceV2 } else { LinkProtocol::RoceV1 })
        }
    }
}

/// What the kernel's file system says of a GID beyond its bytes.
fn address(name: &str, port: u8, index: u32, gid: [u8; 16]) -> Address {
    let attributes = format!("/sys/class/infiniband/{name}/ports/{port}/gid_attrs");
    let read = |what: &str| {
        let text = fs::read_to_string(Path::new(&attributes).join(what).join(index.to_string())).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    };
    Address { index, gid: Ipv6Addr::from(gid), kind: read("types"), interface: read("ndevs") }
}
