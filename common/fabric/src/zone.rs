//! IP addresses with the zone that a link-local one needs: `fe80::1%eth0` (RFC 4007, section 11).

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::str::FromStr;

use nix::net::if_::if_nametoindex;

/// An IP address and, if it is link-local, the interface on whose link it is meant.
///
/// Every link has its own `fe80::/64`, so that the address alone names nobody. The interface is kept by name and
/// looked up whenever it is used: another one may have the name by then, or the same one another index.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ZonedIp {
    ip: IpAddr,
    zone: Option<String>,
}

/// What is wrong with a text that should be an IP address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ZoneError {
    /// It is no address.
    #[error("is not an IP address")]
    Address,
    /// A link-local address alone says nothing.
    #[error("is link-local, so that it needs the name of an interface, as in fe80::1%eth0")]
    Missing,
    /// Any other address means the same on every link.
    #[error("names an interface, which only a link-local IPv6 address can")]
    NotLocal,
    /// The kernel has no such names.
    #[error("has no valid name of an interface behind `%`")]
    Name,
}

/// The longest name of an interface (`IFNAMSIZ` less its NUL).
const NAME_MAX: usize = 15;

/// Whether an address is one of `fe80::/10`, and means something on one link only.
pub fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

impl ZonedIp {
    /// An address in a zone: the name of an interface, or its index as a number.
    ///
    /// # Errors
    /// A link-local address without zone, any other one with a zone, and a zone that is not a name.
    pub fn new(ip: IpAddr, zone: Option<&str>) -> Result<Self, ZoneError> {
        match (is_link_local(ip), zone) {
            (true, None) => return Err(ZoneError::Missing),
            (false, Some(_)) => return Err(ZoneError::NotLocal),
            _ => {}
        }
        let valid = |zone: &str| {
            let visible = zone.bytes().all(|byte| byte.is_ascii_graphic() && !b"/%[]?#".contains(&byte));
            visible && (1..=NAME_MAX).contains(&zone.len())
        };
        if zone.is_some_and(|zone| !valid(zone)) {
            return Err(ZoneError::Name);
        }
        Ok(Self { ip, zone: zone.map(str::to_owned) })
    }

    /// Reads an address with its port, IPv6 in brackets, and looks its interface up.
    ///
    /// # Errors
    /// What is wrong, as a sentence.
    pub fn parse_with_port(text: &str) -> Result<SocketAddr, String> {
        let (host, port) = text.rsplit_once(':').ok_or("has no port: write ADDRESS:PORT")?;
        let port = port.parse().map_err(|_| format!("`{port}` is not a port"))?;
        let bracketed = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let address: Self = bracketed.unwrap_or(host).parse().map_err(|why| format!("`{host}` {why}"))?;
        if address.ip.is_ipv6() && bracketed.is_none() {
            return Err(format!("an IPv6 address stands in brackets: [{host}]:{port}"));
        }
        address.socket_address(port).map_err(|error| error.to_string())
    }

    /// The address.
    pub fn ip(&self) -> IpAddr {
        self.ip
    }

    /// The interface of a link-local address.
    pub fn zone(&self) -> Option<&str> {
        self.zone.as_deref()
    }

    /// The address with a port, as sockets take it.
    ///
    /// # Errors
    /// `NotFound` when this machine has no such interface.
    pub fn socket_address(&self, port: u16) -> io::Result<SocketAddr> {
        match (self.ip, &self.zone) {
            (IpAddr::V6(ip), Some(zone)) => Ok(SocketAddrV6::new(ip, port, 0, index_of(zone)?).into()),
            (ip, _) => Ok(SocketAddr::new(ip, port)),
        }
    }

    /// The address with a port, as people write it; IPv6 is in brackets.
    pub fn with_port(&self, port: u16) -> String {
        if self.ip.is_ipv6() { format!("[{self}]:{port}") } else { format!("{self}:{port}") }
    }
}

/// The index of an interface by its name. A number that is not a name is an index already.
fn index_of(zone: &str) -> io::Result<u32> {
    let index = if_nametoindex(zone).ok().or_else(|| zone.parse().ok().filter(|index| *index != 0));
    index.ok_or_else(|| {
        io::Error::new(io::ErrorKind::NotFound, format!("this machine has no network interface {zone}"))
    })
}

impl FromStr for ZonedIp {
    type Err = ZoneError;

    fn from_str(text: &str) -> Result<Self, ZoneError> {
        let (ip, zone) = match text.split_once('%') {
            Some((ip, zone)) => (ip.parse::<Ipv6Addr>().map(IpAddr::V6), Some(zone)),
            None => (text.parse(), None),
        };
        Self::new(ip.map_err(|_| ZoneError::Address)?, zone)
    }
}

impl fmt::Display for ZonedIp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.ip)?;
        self.zone.iter().try_for_each(|zone| write!(f, "%{zone}"))
    }
}

/// The same address with another port: an address rebuilt from its IP alone would lose its zone.
#[cfg(any(test, feature = "verbs"))]
pub(crate) fn at_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

/// The interface on whose link an address is meant, by index; zero for none.
pub fn zone_index(address: SocketAddr) -> u32 {
    match address {
        SocketAddr::V6(address) => address.scope_id(),
        SocketAddr::V4(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_link_local_addresses_have_a_zone_and_they_need_one() {
        let parse = |text: &str| text.parse::<ZonedIp>();
        for text in ["127.0.0.1", "fd00::1", "::", "fe80::1%eth0", "fe80::1%2", "febf::1%br-lan.7"] {
            assert_eq!(parse(text).expect("an address").to_string(), text);
        }
        for (text, wrong) in [
            ("fe80::1", ZoneError::Missing),
            ("fd00::1%eth0", ZoneError::NotLocal),
            ("::1%lo", ZoneError::NotLocal),
            ("127.0.0.1%lo", ZoneError::Address),
            ("fe80::1%", ZoneError::Name),
            ("fe80::1%a%b", ZoneError::Name),
            ("fe80::1%eth 0", ZoneError::Name),
            ("fe80::1%sixteen-letters-", ZoneError::Name),
            ("disk.example", ZoneError::Address),
        ] {
            assert_eq!(parse(text), Err(wrong), "{text}");
        }
    }

    #[test]
    fn an_interface_is_looked_up_by_name_or_taken_by_index() {
        let at = |text: &str| text.parse::<ZonedIp>().expect("an address").socket_address(4420);
        let lo = if_nametoindex("lo").expect("every machine has it");
        assert_eq!(zone_index(at("fe80::1%lo").expect("found")), lo);
        assert_eq!(zone_index(at("fe80::1%7").expect("a number")), 7);
        assert_eq!(at("fe80::1%no-such").expect_err("no interface").kind(), io::ErrorKind::NotFound);
        assert_eq!(at("fd00::1").expect("no zone"), "[fd00::1]:4420".parse().expect("an address"));
        let parsed = ZonedIp::parse_with_port("[fe80::1%lo]:1").expect("an address");
        assert_eq!((zone_index(parsed), parsed.port()), (lo, 1));
        assert!(ZonedIp::parse_with_port("127.0.0.1:10809").is_ok());
        for wrong in ["127.0.0.1", "::1:1", "fe80::1%lo:1", "[fe80::1]:1", "[::1]:x"] {
            assert!(ZonedIp::parse_with_port(wrong).is_err(), "{wrong}");
        }
        let address = at("fe80::1%7").expect("a number");
        assert_eq!(zone_index(at_port(address, 1)), 7);
    }
}
