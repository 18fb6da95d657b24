//! Where an export is: the NBD URI specification (doc/uri.md), as far as there is no TLS.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use std::str::FromStr;

use percent_encoding::percent_decode_str;

/// The port of NBD.
const PORT: u16 = 10809;

/// Where an export is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdAddress {
    /// As it was written.
    text: String,
    pub(crate) server: Server,
    /// Its name; empty for the server's default one.
    pub(crate) export: String,
}

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Server {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

/// Why a text is no address of an export.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Something else.
    #[error("an NBD address is nbd://HOST[:PORT]/EXPORT or nbd+unix:///EXPORT?socket=PATH")]
    Scheme,
    /// A kind that is not supported.
    #[error("NBD over TLS or vsock is not supported for a backing")]
    NotSupported,
    /// The host is missing or cannot be one.
    #[error("the address has no host, or its port is no number from 1 to 65535")]
    Host,
    /// The path is missing.
    #[error("the address of a Unix socket needs ?socket=PATH with an absolute path")]
    Socket,
    /// The name of the export cannot be one.
    #[error("the name of the export is longer than 4096 bytes, or not UTF-8")]
    Export,
}

impl FromStr for NbdAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let (scheme, rest) = text.split_once("://").ok_or(AddressError::Scheme)?;
        let (place, query) = rest.split_once('?').map_or((rest, None), |(place, query)| (place, Some(query)));
        let (authority, export) = place.split_once('/').unwrap_or((place, ""));
        let server = match scheme {
            "nbd" => tcp(authority)?,
            "nbd+unix" if authority.is_empty() => unix(query.unwrap_or_default())?,
            "nbd+unix" => return Err(AddressError::Socket),
            "nbds" | "nbds+unix" | "nbd+vsock" | "nbds+vsock" => return Err(AddressError::NotSupported),
            _ => return Err(AddressError::Scheme),
        };
        let export = percent_decode_str(export).decode_utf8().map_err(|_| AddressError::Export)?;
        if export.len() > EXPORT_BYTES_MAX {
            return Err(AddressError::Export);
        }
        Ok(Self { text: text.to_owned(), server, export: export.into_owned() })
    }
}

/// The longest string of the protocol.
const EXPORT_BYTES_MAX: usize = 4096;

fn tcp(authority: &str) -> Result<Server, AddressError> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or(AddressError::Host)?;
            (host, rest.strip_prefix(':').or_else(|| rest.is_empty().then_some("")))
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, Some("")),
        },
    };
    let port = match port.ok_or(AddressError::Host)? {
        "" => PORT,
        text => text.parse().ok().filter(|port| *port != 0).ok_or(AddressError::Host)?,
    };
    let host = percent_decode_str(host).decode_utf8().map_err(|_| AddressError::Host)?;
    if host.is_empty() || host.contains('@') {
        return Err(AddressError::Host);
    }
    Ok(Server::Tcp { host: host.into_owned(), port })
}

fn unix(query: &str) -> Result<Server, AddressError> {
    let socket = query.split('&').find_map(|parameter| parameter.strip_prefix("socket="));
    let bytes: Vec<u8> = percent_decode_str(socket.ok_or(AddressError::Socket)?).collect();
    let path = PathBuf::from(OsString::from_vec(bytes));
    if path.is_absolute() { Ok(Server::Unix(path)) } else { Err(AddressError::Socket) }
}

impl NbdAddress {
    /// The name of the export; empty for the server's default one.
    pub fn export(&self) -> &str {
        &self.export
    }

    /// The port of its server, if it is reached over TCP.
    pub const fn port(&self) -> Option<u16> {
        match &self.server {
            Server::Tcp { port, .. } => Some(*port),
            Server::Unix(_) => None,
        }
    }

    /// The path of its Unix socket, if it has one.
    pub fn socket(&self) -> Option<&std::path::Path> {
        match &self.server {
            Server::Unix(path) => Some(path),
            Server::Tcp { .. } => None,
        }
    }
}

/// As it was written.
impl fmt::Display for NbdAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_specified() {
        let tcp = |host: &str, port| Server::Tcp { host: host.to_owned(), port };
        for (text, server, export) in [
            ("nbd://storage", tcp("storage", 10809), ""),
            ("nbd://storage/", tcp("storage", 10809), ""),
            ("nbd://192.0.2.1:10810/disk%201", tcp("192.0.2.1", 10810), "disk 1"),
            ("nbd://[2001:db8::1]:7/a/b", tcp("2001:db8::1", 7), "a/b"),
            ("nbd://[2001:db8::1]/a", tcp("2001:db8::1", 10809), "a"),
            ("nbd+unix:///?socket=/run/a%20b", Server::Unix("/run/a b".into()), ""),
            ("nbd+unix:///x?a=b&socket=/s", Server::Unix("/s".into()), "x"),
        ] {
            let address: NbdAddress = text.parse().expect(text);
            assert_eq!((&address.server, address.export.as_str()), (&server, export), "{text}");
            assert_eq!(address.to_string(), text);
        }
    }

    #[test]
    fn what_is_no_address_is_refused_with_a_reason() {
        for (text, error) in [
            ("storage", AddressError::Scheme),
            ("http://storage/", AddressError::Scheme),
            ("nbds://storage/", AddressError::NotSupported),
            ("nbd:///export", AddressError::Host),
            ("nbd://storage:0/", AddressError::Host),
            ("nbd://storage:70000/", AddressError::Host),
            ("nbd://[::1/", AddressError::Host),
            ("nbd://[::1]x/", AddressError::Host),
            ("nbd://user@storage/", AddressError::Host),
            ("nbd+unix:///export", AddressError::Socket),
            ("nbd+unix:///?socket=relative", AddressError::Socket),
            ("nbd+unix://host/?socket=/x", AddressError::Socket),
            ("nbd://storage/%ff", AddressError::Export),
        ] {
            assert_eq!(text.parse::<NbdAddress>(), Err(error), "{text}");
        }
        let long = format!("nbd://storage/{}", "x".repeat(4097));
        assert_eq!(long.parse::<NbdAddress>(), Err(AddressError::Export));
    }
}
