//! Addresses of controllers, as one URL: `nvme+rdma://HOST[:PORT]/[NQN][?OPTION=VALUE&...]`.
//!
//! | option | meaning |
//! | --- | --- |
//! | `ns` | the namespace to use, instead of all |
//! | `provider` | `iwarp`, the software RNIC; `verbs`, an RDMA device; `auto`, the device that reaches the host, if there is one, else `iwarp` |
//! | `hostnqn`, `hostid` | who we are, for this connection |
//! | `queues`, `depth` | I/O queues, and commands outstanding in each |
//! | `keepalive` | keep-alive timeout in seconds, 0 for off |
//! | `crc` | `on` or `off`: whether we ask for MPA CRCs |

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ringfab_spec::Nqn;
use ringfab_spec::nqn::NqnError;
use uuid::Uuid;

/// The address of a controller. Parsing and displaying are inverse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// The machine.
    pub host: HostName,
    /// The port; 4420 when the text does not say.
    pub port: u16,
    /// The subsystem; `None` stands for discovery.
    pub subsystem: Option<String>,
    /// The namespace to use; `None` for all.
    pub namespace: Option<u32>,
    /// Which RNIC.
    pub provider: Provider,
    /// Host NQN for this connection.
    pub host_nqn: Option<String>,
    /// Host identifier for this connection.
    pub host_id: Option<Uuid>,
    /// I/O queues to ask for.
    pub queues: Option<u16>,
    /// Commands outstanding per I/O queue.
    pub depth: Option<u16>,
    /// Keep-alive timeout in seconds; zero turns it off.
    pub keep_alive_s: Option<u32>,
    /// Whether we ask for MPA CRCs.
    pub crc: Option<bool>,
}

/// A machine, by address or by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostName {
    /// An IPv4 or IPv6 address.
    Address(IpAddr),
    /// A name to resolve.
    Name(String),
}

/// Which RNIC moves the bytes.
pub use ringfab_fabric::rdma::ProviderChoice as Provider;

/// What is wrong with a text that should be an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// It does not begin with `nvme+rdma://`.
    #[error("an address begins with nvme+rdma://, this one with `{0}`")]
    Scheme(String),
    /// No or no valid host.
    #[error("`{0}` is neither a host name, nor an IPv4 address, nor an IPv6 address in brackets")]
    Host(String),
    /// The port is none.
    #[error("`{0}` is not a port number from 1 to 65535")]
    Port(String),
    /// The NQN is none.
    #[error("`{text}` is not a subsystem: {why}")]
    Nqn {
        /// The text.
        text: String,
        /// Why not.
        why: NqnError,
    },
    /// A percent sign without two hexadecimal digits, or bytes that are no UTF-8.
    #[error("`{0}` is not percent-encoded text")]
    Encoding(String),
    /// An option that does not exist.
    #[error(
        "there is no option `{0}`; there are ns, provider, hostnqn, hostid, queues, depth, keepalive and crc"
    )]
    Option(String),
    /// An option given twice.
    #[error("option `{0}` is given twice")]
    Twice(String),
    /// An option's value is not valid.
    #[error("option {name}: `{value}` is not {expected}")]
    Value {
        /// The option.
        name: &'static str,
        /// Its value.
        value: String,
        /// What it should be.
        expected: &'static str,
    },
}

impl Url {
    /// The port of NVMe/RDMA (IANA).
    pub const PORT: u16 = 4420;
    /// The NQN of discovery (Base 2.0, section 3.1.3.3).
    pub const DISCOVERY_NQN: &'static str = "nqn.2014-08.org.nvmexpress.discovery";
    const SCHEME: &'static str = "nvme+rdma://";

    /// An address without options.
    pub fn new(host: HostName, port: u16, subsystem: Option<String>) -> Self {
        Self {
            host,
            port,
            subsystem,
            namespace: None,
            provider: Provider::Auto,
            host_nqn: None,
            host_id: None,
            queues: None,
            depth: None,
            keep_alive_s: None,
            crc: None,
        }
    }

    /// The subsystem's NQN, or that of discovery.
    pub fn subsystem_nqn(&self) -> &str {
        self.subsystem.as_deref().unwrap_or(Self::DISCOVERY_NQN)
    }

    /// Whether this is the address of a discovery controller.
    pub fn is_discovery(&self) -> bool {
        self.subsystem_nqn() == Self::DISCOVERY_NQN
    }

    /// Host, port and subsystem, for people.
    pub fn peer(&self) -> String {
        let nqn = self.subsystem.as_deref().unwrap_or("discovery");
        format!("{nqn} at {}:{}", self.host, self.port)
    }

    fn set_option(&mut self, name: &str, value: String) -> Result<(), UrlError> {
        match name {
            "ns" => set(&mut self.namespace, "ns", parse_namespace(value)?),
            "provider" => {
                let words =
                    [Provider::Auto, Provider::Iwarp, Provider::Verbs].map(|choice| (choice.name(), choice));
                self.provider = choose("provider", value, "`auto`, `iwarp` or `verbs`", &words)?;
                Ok(())
            }
            "hostnqn" => set(&mut self.host_nqn, "hostnqn", check_nqn(value)?),
            "hostid" => {
                let uuid = Uuid::parse_str(&value);
                set(&mut self.host_id, "hostid", uuid.map_err(|_| wrong("hostid", value, "a UUID"))?)
            }
            "queues" => {
                let expected = "a number from 1 to 128";
                set(&mut self.queues, "queues", number("queues", value, 1, 128, expected)? as u16)
            }
            "depth" => {
                let expected = "a number from 1 to 1024";
                set(&mut self.depth, "depth", number("depth", value, 1, 1024, expected)? as u16)
            }
            "keepalive" => {
                let expected = "a number of seconds from 0 to 86400";
                set(&mut self.keep_alive_s, "keepalive", number("keepalive", value, 0, 86_400, expected)?)
            }
            "crc" => {
                let crc = choose("crc", value, "`on` or `off`", &[("on", true), ("off", false)])?;
                set(&mut self.crc, "crc", crc)
            }
            _ => Err(UrlError::Option(name.to_owned())),
        }
    }

    fn options(&self) -> Vec<(&'static str, String)> {
        let mut options = Vec::new();
        let mut push = |name, value: Option<String>| options.extend(value.map(|value| (name, value)));
        push("ns", self.namespace.map(|nsid| nsid.to_string()));
        let provider = Some(self.provider).filter(|provider| *provider != Provider::Auto);
        push("provider", provider.map(|provider| provider.to_string()));
        push("hostnqn", self.host_nqn.clone());
        push("hostid", self.host_id.map(|id| id.to_string()));
        push("queues", self.queues.map(|queues| queues.to_string()));
        push("depth", self.depth.map(|depth| depth.to_string()));
        push("keepalive", self.keep_alive_s.map(|seconds| seconds.to_string()));
        push("crc", self.crc.map(|crc| if crc { "on" } else { "off" }.to_owned()));
        options
    }
}

impl FromStr for Url {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let rest = text.strip_prefix(Self::SCHEME).ok_or_else(|| UrlError::Scheme(scheme_of(text)))?;
        let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (host, port) = parse_authority(authority)?;
        let path = decode(path)?;
        let subsystem = if path.is_empty() { None } else { Some(check_nqn(path)?) };
        let mut url = Self::new(host, port, subsystem);
        let mut seen = Vec::new();
        for option in query.into_iter().flat_map(|query| query.split('&')).filter(|option| !option.is_empty())
        {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            if seen.contains(&name) {
                return Err(UrlError::Twice(name.to_owned()));
            }
            seen.push(name);
            url.set_option(name, decode(value)?)?;
        }
        Ok(url)
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}:{}/", Self::SCHEME, self.host, self.port)?;
        f.write_str(&encode(self.subsystem.as_deref().unwrap_or("")))?;
        for (index, (name, value)) in self.options().into_iter().enumerate() {
            let separator = if index == 0 { '?' } else { '&' };
            write!(f, "{separator}{name}={}", encode(&value))?;
        }
        Ok(())
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostName::Address(IpAddr::V4(address)) => write!(f, "{address}"),
            HostName::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
            HostName::Name(name) => f.write_str(name),
        }
    }
}

/// Checks an NQN.
pub(crate) fn check_nqn(text: String) -> Result<String, UrlError> {
    match Nqn::new(&text) {
        Ok(_) => Ok(text),
        Err(why) => Err(UrlError::Nqn { text, why }),
    }
}

fn parse_authority(authority: &str) -> Result<(HostName, u16), UrlError> {
    let wrong_host = || UrlError::Host(authority.to_owned());
    if let Some(rest) = authority.strip_prefix('[') {
        let (address, port) = rest.split_once(']').ok_or_else(wrong_host)?;
        let address: Ipv6Addr = address.parse().map_err(|_| wrong_host())?;
        let port = match port {
            "" => Url::PORT,
            _ => parse_port(port.strip_prefix(':').ok_or_else(wrong_host)?)?,
        };
        return Ok((HostName::Address(address.into()), port));
    }
    let (host, port) = match authority.split_once(':') {
        Some((host, port)) => (host, parse_port(port)?),
        None => (authority, Url::PORT),
    };
    if let Ok(address) = host.parse::<Ipv4Addr>() {
        return Ok((HostName::Address(address.into()), port));
    }
    // A name of digits and dots would be looked up as a malformed address.
    let numeric = host.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    if host.is_empty() || host.len() > 253 || numeric || !host.bytes().all(allowed) {
        return Err(UrlError::Host(host.to_owned()));
    }
    Ok((HostName::Name(host.to_owned()), port))
}

fn parse_port(text: &str) -> Result<u16, UrlError> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let port = text.parse().ok().filter(|port| digits && *port != 0);
    port.ok_or_else(|| UrlError::Port(text.to_owned()))
}

fn parse_namespace(value: String) -> Result<u32, UrlError> {
    number("ns", value, 1, 0xffff_fffe, "a namespace identifier from 1 to 4294967294")
}

fn number(
    name: &'static str,
    value: String,
    least: u32,
    most: u32,
    expected: &'static str,
) -> Result<u32, UrlError> {
    let digits = value.bytes().all(|byte| byte.is_ascii_digit());
    let number = value.parse().ok().filter(|number| digits && (least..=most).contains(number));
    number.ok_or_else(|| wrong(name, value, expected))
}

fn choose<T: Copy>(
    name: &'static str,
    value: String,
    expected: &'static str,
    choices: &[(&str, T)],
) -> Result<T, UrlError> {
    let choice = choices.iter().find(|(text, _)| *text == value);
    choice.map(|(_, choice)| *choice).ok_or_else(|| wrong(name, value, expected))
}

fn set<T>(field: &mut Option<T>, name: &'static str, value: T) -> Result<(), UrlError> {
    match field.replace(value) {
        None => Ok(()),
        Some(_) => Err(UrlError::Twice(name.to_owned())),
    }
}

fn wrong(name: &'static str, value: String, expected: &'static str) -> UrlError {
    UrlError::Value { name, value, expected }
}

fn scheme_of(text: &str) -> String {
    let end = text.find("://").map_or(text.len(), |at| at + 3);
    text[..end].chars().take(40).collect()
}

fn decode(text: &str) -> Result<String, UrlError> {
    let error = || UrlError::Encoding(text.to_owned());
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|byte| char::from(byte).to_digit(16)).ok_or_else(error);
        let (high, low) = (digit()?, digit()?);
        bytes.push((high << 4 | low) as u8);
    }
    String::from_utf8(bytes).map_err(|_| error())
}

fn encode(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b':' | b'~');
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Url, UrlError> {
        text.parse()
    }

    #[test]
    fn every_part_of_an_address_is_read() {
        let text = "nvme+rdma://disks.example:4421/nqn.2026-01.org.example:a%2Fb?ns=7&provider=iwarp\
                    &hostnqn=nqn.2026-01.org.example:me&hostid=01234567-89ab-cdef-0123-456789abcdef\
                    &queues=4&depth=64&keepalive=0&crc=off";
        let url = parse(text).expect("a valid address");
        assert_eq!(url.host, HostName::Name("disks.example".into()));
        assert_eq!(url.port, 4421);
        assert_eq!(url.subsystem.as_deref(), Some("nqn.2026-01.org.example:a/b"));
        assert_eq!(url.namespace, Some(7));
        assert_eq!(
            (url.queues, url.depth, url.keep_alive_s, url.crc),
            (Some(4), Some(64), Some(0), Some(false))
        );
        assert_eq!(url.host_nqn.as_deref(), Some("nqn.2026-01.org.example:me"));
        assert_eq!(parse(&url.to_string()), Ok(url));
    }

    #[test]
    fn a_short_address_stands_for_discovery_at_the_usual_port() {
        for text in ["nvme+rdma://10.0.0.1", "nvme+rdma://10.0.0.1/", "nvme+rdma://10.0.0.1:4420/?"] {
            let url = parse(text).expect("a valid address");
            assert_eq!(url.to_string(), "nvme+rdma://10.0.0.1:4420/");
            assert!(url.is_discovery());
        }
    }

    #[test]
    fn an_ipv6_address_stands_in_brackets_with_or_without_a_port() {
        assert_eq!(parse("nvme+rdma://[::1]").expect("valid").port, 4420);
        let url = parse("nvme+rdma://[fe80::1]:1/nqn.2026-01.org.example:a").expect("valid");
        assert_eq!(url.to_string(), "nvme+rdma://[fe80::1]:1/nqn.2026-01.org.example:a");
        assert_eq!(parse("nvme+rdma://[::1]4420"), Err(UrlError::Host("[::1]4420".into())));
    }

    #[test]
    fn a_subsystem_may_have_a_name_without_the_usual_form() {
        let url = parse("nvme+rdma://a/testnqn?hostnqn=testhost").expect("what Linux serves and takes");
        assert_eq!((url.subsystem_nqn(), url.host_nqn.as_deref()), ("testnqn", Some("testhost")));
    }

    #[test]
    fn each_mistake_has_its_own_sentence() {
        let nqn = "nqn.2026-01.org.example:a";
        for (text, sentence) in [
            ("http://x/", "an address begins with nvme+rdma://, this one with `http://`"),
            (
                "nvme+rdma:///",
                "`` is neither a host name, nor an IPv4 address, nor an IPv6 address in brackets",
            ),
            ("nvme+rdma://10.0.0.256/", "`10.0.0.256` is neither"),
            ("nvme+rdma://a:0/", "`0` is not a port number"),
            ("nvme+rdma://a:65536/", "`65536` is not a port number"),
            ("nvme+rdma://a:+1/", "`+1` is not a port number"),
            (
                "nvme+rdma://a/di%0Ask",
                "`di\nsk` is not a subsystem: the NQN holds a control character at byte 2",
            ),
            ("nvme+rdma://a/nqn.%zz", "`nqn.%zz` is not percent-encoded text"),
            ("nvme+rdma://a/nqn.%f", "`nqn.%f` is not percent-encoded text"),
            ("nvme+rdma://a/?speed=9", "there is no option `speed`"),
            ("nvme+rdma://a/?ns=1&ns=2", "option `ns` is given twice"),
            ("nvme+rdma://a/?ns=0", "option ns: `0` is not a namespace identifier"),
            ("nvme+rdma://a/?depth=1025", "option depth: `1025` is not a number from 1 to 1024"),
            ("nvme+rdma://a/?provider=rxe", "option provider: `rxe` is not `auto`, `iwarp` or `verbs`"),
            ("nvme+rdma://a/?hostid=7", "option hostid: `7` is not a UUID"),
        ] {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.starts_with(sentence), "{text}: {error}");
        }
        let long = format!("nvme+rdma://a/{nqn}{}", "x".repeat(223 - nqn.len()));
        assert!(parse(&long).is_ok());
        assert!(parse(&format!("{long}x")).is_err());
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_an_address_that_is_written_as_it_is_read_or_is_refused(
            text in ".{0,60}",
            tail in "[a-z0-9.:%/?&=+\\[\\]-]{0,60}",
        ) {
            for text in [text, format!("nvme+rdma://{tail}"), format!("nvme+rdma://[::1]:4420/{tail}")] {
                if let Ok(url) = parse(&text) {
                    proptest::prop_assert_eq!(parse(&url.to_string()), Ok(url));
                }
            }
        }
    }
}
