//! The RDMA devices of this machine, for people.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

pub use super::verbs::devices::{Address, DeviceInfo, LinkLayer, PortInfo, list};

/// Whether the kernel has any device. Asking it first keeps the libraries quiet on machines without.
///
/// # Errors
/// When it has none.
pub(super) fn any() -> io::Result<()> {
    match std::fs::read_dir("/sys/class/infiniband").map(|mut devices| devices.next().is_some()) {
        Ok(true) => Ok(()),
        _ => Err(io::Error::new(io::ErrorKind::NotFound, "the kernel knows no RDMA device")),
    }
}

/// The first device that could serve.
///
/// # Errors
/// When there is none.
pub(super) fn first_usable() -> io::Result<String> {
    let none = || io::Error::new(io::ErrorKind::NotFound, "this machine has no RDMA device that is up");
    any()?;
    list()?.into_iter().find(|device| device.trouble.is_none()).map(|device| device.name).ok_or_else(none)
}

/// The address that the kernel would send from. Nothing is sent: connecting a datagram socket only looks at routes.
///
/// # Errors
/// When no route leads there.
pub(super) fn local_address_towards(address: SocketAddr) -> io::Result<SocketAddr> {
    let any: IpAddr =
        if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(address)?;
    socket.local_addr()
}
