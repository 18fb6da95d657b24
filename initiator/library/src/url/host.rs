//! The machine of an address, and its port.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use ringfab_fabric::ZonedIp;

use super::{Url, UrlError};

/// A machine, by address or by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostName {
    /// An IPv4 or IPv6 address; a link-local one with its interface.
    Address(ZonedIp),
    /// A name to resolve.
    Name(String),
}

impl HostName {
    /// As a URL has it: the percent sign before an interface is encoded (RFC 6874, section 2).
    pub(super) fn encoded(&self) -> String {
        self.to_string().replace('%', "%25")
    }
}

impl From<ZonedIp> for HostName {
    fn from(address: ZonedIp) -> Self {
        HostName::Address(address)
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostName::Address(address) if address.ip().is_ipv6() => write!(f, "[{address}]"),
            HostName::Address(address) => write!(f, "{address}"),
            HostName::Name(name) => f.write_str(name),
        }
    }
}

/// `HOST`, `HOST:PORT`, `[IPV6]` or `[IPV6]:PORT`.
pub(super) fn parse_authority(authority: &str) -> Result<(HostName, u16), UrlError> {
    let wrong_host = || UrlError::Host(authority.to_owned());
    if let Some(rest) = authority.strip_prefix('[') {
        let (address, port) = rest.split_once(']').ok_or_else(wrong_host)?;
        let address = parse_ipv6(address)?;
        let port = match port {
            "" => Url::PORT,
            _ => parse_port(port.strip_prefix(':').ok_or_else(wrong_host)?)?,
        };
        return Ok((address.into(), port));
    }
    let (host, port) = match authority.split_once(':') {
        Some((host, port)) => (host, parse_port(port)?),
        None => (authority, Url::PORT),
    };
    if let Some(address) = host.parse::<Ipv4Addr>().ok().and_then(|ip| ZonedIp::new(ip.into(), None).ok()) {
        return Ok((address.into(), port));
    }
    // A name of digits and dots would be looked up as a malformed address.
    let numeric = host.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    if host.is_empty() || host.len() > 253 || numeric || !host.bytes().all(allowed) {
        return Err(UrlError::Host(host.to_owned()));
    }
    Ok((HostName::Name(host.to_owned()), port))
}

/// What stands in brackets. The percent sign before an interface should be encoded as `%25` (RFC 6874), and is mostly
/// written as it is (RFC 9844); both are taken. `%25` alone is the interface with index 25.
fn parse_ipv6(text: &str) -> Result<ZonedIp, UrlError> {
    let (ip, zone) = text.split_once('%').map_or((text, None), |(ip, zone)| (ip, Some(zone)));
    let ip: Ipv6Addr = ip.parse().map_err(|_| UrlError::Host(format!("[{text}]")))?;
    let zone = zone.map(|zone| zone.strip_prefix("25").filter(|rest| !rest.is_empty()).unwrap_or(zone));
    ZonedIp::new(ip.into(), zone).map_err(|why| UrlError::Zone { text: text.to_owned(), why })
}

fn parse_port(text: &str) -> Result<u16, UrlError> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let port = text.parse().ok().filter(|port| digits && *port != 0);
    port.ok_or_else(|| UrlError::Port(text.to_owned()))
}
