//! Addresses of controllers, as one URL: `nvme+rdma://HOST[:PORT]/[NQN][?OPTION=VALUE&...]`, or `nvme+tcp://` for
//! NVMe/TCP.
//!
//! | option | meaning |
//! | --- | --- |
//! | `ns` | the namespace to use, instead of all |
//! | `provider` | `iwarp`, the software RNIC; `verbs`, an RDMA device; `auto`, the device that reaches the host, if there is one, else `iwarp` |
//! | `hostnqn`, `hostid` | who we are, for this connection |
//! | `keys` | where the file with all keys of this host is, and its name: `/path`, `file:/path`, `credential:NAME` or `keyring:DESCRIPTION` |
//! | `dhchap_key`, `dhchap_controller_key` | where the keys for authentication are: `file:/path`, `credential:NAME` or `keyring:DESCRIPTION` |
//! | `queues`, `depth` | I/O queues, and commands outstanding in each |
//! | `keepalive` | keep-alive timeout in seconds, 0 for off |
//! | `replaydelay` | how long writes wait after a loss where no Cross-Controller Reset says that older ones are over, in milliseconds |
//! | `crc` | `on` or `off`: whether we ask for MPA CRCs |
//! | `hdgst`, `ddgst` | `on` or `off`: header and data digests, over TCP |
//! | `tls` | `on` or `off`: whether connections are over TLS, over TCP; without it they are if there is a key |
//! | `tls_key` | where the key for TLS is: `file:/path`, `credential:NAME` or `keyring:DESCRIPTION` |
//! | `concat` | `on` or `off`: whether authentication makes the key for TLS (secure channel concatenation), over TCP |
//! | `congestion` | the congestion control of the kernel's TCP |
//! | `dscp` | the class of service of what is sent, 0 to 63 |
//! | `usertimeout` | how long what was sent may stay unacknowledged before the connection is given up, in seconds |
//! | `tcpkeepalive` | how long a connection is idle before TCP looks whether the other end is there, in seconds |
//!
//! The last four are for the kernel's TCP: over NVMe/TCP, and under the software RNIC. An RDMA device has nothing of
//! them.
//!
//! The scheme may be in upper case, and slashes at the end of the path are no part of the NQN.
//!
//! An IPv6 address is in brackets, a link-local one with its interface: `[fe80::1%25eth0]`, or as most write it,
//! `[fe80::1%eth0]`.

mod encoding;
mod host;

use std::fmt;
use std::str::FromStr;

use ringfab_auth::KeySource;
use ringfab_base::{meant, visible};
use ringfab_fabric::ZoneError;
use ringfab_spec::Nqn;
use ringfab_spec::nqn::NqnError;
use uuid::Uuid;

use encoding::{decode, encode};
pub use host::HostName;
use host::parse_authority;

/// The address of a controller. Parsing and displaying are inverse.
///
/// ```
/// use ringfab_initiator::{Transport, Url};
///
/// # fn main() -> Result<(), ringfab_initiator::UrlError> {
/// let url: Url = "nvme+tcp://[2001:db8::1]/nqn.2026-01.org.example:disk?ns=1&queues=4".parse()?;
/// assert_eq!((url.transport, url.port), (Transport::Tcp, Url::PORT));
/// assert_eq!((url.namespace, url.queues), (Some(1), Some(4)));
/// assert!("nvme+tcp://192.0.2.1".parse::<Url>()?.is_discovery());
/// # Ok(())
/// # }
/// ```
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
    /// How capsules and data travel.
    pub transport: Transport,
    /// Host NQN for this connection.
    pub host_nqn: Option<String>,
    /// Host identifier for this connection.
    pub host_id: Option<Uuid>,
    /// Where the file is that has the name and all keys of this host. Another place of one of them goes before it.
    pub keys: Option<KeySource>,
    /// Where the key of the host is.
    pub dhchap_key: Option<KeySource>,
    /// Where the key of the controller is.
    pub dhchap_controller_key: Option<KeySource>,
    /// I/O queues to ask for, 1 to 128.
    pub queues: Option<u16>,
    /// Commands outstanding per I/O queue, 1 to 1024.
    pub depth: Option<u16>,
    /// Keep-alive timeout in seconds; zero turns it off.
    pub keep_alive_s: Option<u32>,
    /// How long commands that change blocks wait after a loss where nothing else says that what was sent before is
    /// over, in milliseconds.
    pub replay_delay_ms: Option<u32>,
    /// Whether connections are over TLS; if it is not said, they are when there is a key. Only NVMe/TCP has TLS.
    pub tls: Option<bool>,
    /// Where the key for TLS is.
    pub tls_key: Option<KeySource>,
    /// Whether authentication makes the key for TLS (secure channel concatenation).
    pub concatenation: Option<bool>,
    /// What only NVMe/RDMA has.
    pub rdma: RdmaOptions,
    /// What only NVMe/TCP has.
    pub digests: DigestOptions,
    /// What the kernel's TCP is asked for.
    pub tcp: TcpOptions,
}

/// How capsules and data travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// NVMe/RDMA.
    Rdma,
    /// NVMe/TCP.
    Tcp,
}

impl Transport {
    fn other(self) -> Self {
        match self {
            Transport::Rdma => Transport::Tcp,
            Transport::Tcp => Transport::Rdma,
        }
    }

    /// The options that only its addresses have.
    fn own_options(self) -> &'static [&'static str] {
        match self {
            Transport::Rdma => &["provider", "crc"],
            Transport::Tcp => &["hdgst", "ddgst", "tls", "tls_key", "concat"],
        }
    }

    fn scheme(self) -> &'static str {
        match self {
            Transport::Rdma => "nvme+rdma://",
            Transport::Tcp => "nvme+tcp://",
        }
    }
}

/// The digests of NVMe/TCP: what only its addresses can say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DigestOptions {
    /// Header digests.
    pub header: bool,
    /// Data digests.
    pub data: bool,
}

/// What is asked of the kernel's TCP, below NVMe/TCP or the software RNIC.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TcpOptions {
    /// Congestion control by name; the system's default when none.
    pub congestion: Option<String>,
    /// Differentiated Services Code Point of what is sent.
    pub dscp: Option<u8>,
    /// How long what was sent may stay unacknowledged, in seconds (`TCP_USER_TIMEOUT`); as long as the system likes
    /// when none.
    pub user_timeout_s: Option<u16>,
    /// Idle time before TCP's own keep-alive probes, in seconds; no probes when none.
    pub keep_alive_s: Option<u16>,
}

/// What only NVMe/RDMA has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RdmaOptions {
    /// Which RNIC.
    pub provider: Provider,
    /// Whether we ask for MPA CRCs.
    pub crc: Option<bool>,
}

impl Default for RdmaOptions {
    fn default() -> Self {
        Self { provider: Provider::Auto, crc: None }
    }
}

/// Which RNIC moves the bytes.
pub use ringfab_fabric::rdma::ProviderChoice as Provider;

/// What is wrong with a text that should be an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UrlError {
    /// It begins with neither scheme.
    #[error(
        "an address begins with nvme+rdma:// or nvme+tcp://, this one with `{0}`; write for instance \
         nvme+tcp://192.0.2.5/nqn.2026-11.com.example:a"
    )]
    Scheme(String),
    /// No or no valid host.
    #[error("`{0}` is neither a host name, nor an IPv4 address, nor an IPv6 address in brackets")]
    Host(String),
    /// A link-local address without interface, or an interface where none belongs.
    #[error("`{text}` {why}")]
    Zone {
        /// The text.
        text: String,
        /// Why not.
        why: ZoneError,
    },
    /// The port is none.
    #[error("`{0}` is not a port number from 1 to 65535")]
    Port(String),
    /// The NQN is none.
    #[error("`{}` is not a subsystem: {why}", visible(text))]
    Nqn {
        /// The text.
        text: String,
        /// Why not.
        why: NqnError,
    },
    /// The NQN of the host is none.
    #[error("option hostnqn: `{}` is not the name of a host: {why}", visible(text))]
    HostNqn {
        /// The text.
        text: String,
        /// Why not.
        why: NqnError,
    },
    /// A percent sign without two hexadecimal digits, or bytes that are no UTF-8.
    #[error("`{0}` is not percent-encoded text")]
    Encoding(String),
    /// An option that does not exist.
    #[error("there is no option `{name}`{}", instead(name, *transport))]
    Option {
        /// The option.
        name: String,
        /// The transport of the address, which may have others.
        transport: Transport,
    },
    /// An option given twice.
    #[error("option `{0}` is given twice")]
    Twice(String),
    /// `concat=on` beside an option that contradicts it.
    #[error("option concat: `on` does not go with {0}, because authentication makes the key for TLS then")]
    Concatenation(&'static str),
    /// An option names no place of a key. What it says may be a key, and is not shown.
    #[error("option {name} {why}")]
    Key {
        /// The option.
        name: &'static str,
        /// Why not.
        why: String,
    },
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
    /// The port of NVMe/RDMA and NVMe/TCP (IANA).
    pub const PORT: u16 = 4420;
    /// The NQN of discovery (Base 2.0, section 3.1.3.3).
    pub const DISCOVERY_NQN: &'static str = "nqn.2014-08.org.nvmexpress.discovery";
    /// The options that addresses of every transport have.
    const OPTIONS: [&'static str; 14] = [
        "ns",
        "hostnqn",
        "hostid",
        "keys",
        "dhchap_key",
        "dhchap_controller_key",
        "queues",
        "depth",
        "keepalive",
        "replaydelay",
        "congestion",
        "dscp",
        "usertimeout",
        "tcpkeepalive",
    ];

    /// An address without options.
    pub fn new(host: HostName, port: u16, subsystem: Option<String>) -> Self {
        Self {
            host,
            port,
            subsystem,
            namespace: None,
            transport: Transport::Rdma,
            host_nqn: None,
            host_id: None,
            keys: None,
            dhchap_key: None,
            dhchap_controller_key: None,
            queues: None,
            depth: None,
            keep_alive_s: None,
            replay_delay_ms: None,
            rdma: RdmaOptions::default(),
            tls: None,
            tls_key: None,
            concatenation: None,
            digests: DigestOptions::default(),
            tcp: TcpOptions::default(),
        }
    }

    /// The same address over a transport; what only another transport has is left out.
    #[must_use]
    pub fn with_transport(&self, transport: Transport) -> Self {
        let same = self.transport == transport;
        let other = Self::new(self.host.clone(), self.port, None);
        Self {
            transport,
            rdma: if same { self.rdma } else { other.rdma },
            tls: self.tls.filter(|_| same),
            tls_key: self.tls_key.clone().filter(|_| same),
            concatenation: self.concatenation.filter(|_| same),
            digests: if same { self.digests } else { other.digests },
            ..self.clone()
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

    /// The names of the options that addresses of a transport have.
    pub fn option_names(transport: Transport) -> impl Iterator<Item = &'static str> {
        Self::OPTIONS.iter().chain(transport.own_options()).copied()
    }

    /// What it says for an option, as it stands there. What is the default is not said.
    pub fn option(&self, name: &str) -> Option<String> {
        self.options().into_iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// Host, port and subsystem, for people.
    pub fn peer(&self) -> String {
        let nqn = self.subsystem.as_deref().unwrap_or("discovery");
        format!("{nqn} at {}:{}", self.host, self.port)
    }

    fn no_option(&self, name: &str) -> UrlError {
        UrlError::Option { name: name.to_owned(), transport: self.transport }
    }

    #[expect(clippy::too_many_lines, reason = "an arm for each option")]
    fn set_option(&mut self, name: &str, value: String) -> Result<(), UrlError> {
        const SWITCH: [(&str, bool); 2] = [("on", true), ("off", false)];
        const ON_OR_OFF: &str = "`on` or `off`";
        match name {
            // What only the other transport has is no option here.
            _ if self.transport.other().own_options().contains(&name) => Err(self.no_option(name)),
            "ns" => set(&mut self.namespace, "ns", parse_namespace(value)?),
            "provider" => {
                let words =
                    [Provider::Auto, Provider::Iwarp, Provider::Verbs].map(|choice| (choice.name(), choice));
                self.rdma.provider = choose("provider", value, "`auto`, `iwarp` or `verbs`", &words)?;
                Ok(())
            }
            "hostnqn" => set(&mut self.host_nqn, "hostnqn", check_host_nqn(value)?),
            "hostid" => {
                let uuid = Uuid::parse_str(&value);
                set(&mut self.host_id, "hostid", uuid.map_err(|_| wrong("hostid", value, "a UUID"))?)
            }
            "keys" => {
                let keys =
                    KeySource::parse_keys(&value).map_err(|why| UrlError::Key { name: "keys", why })?;
                set(&mut self.keys, "keys", keys)
            }
            "dhchap_key" => set(&mut self.dhchap_key, "dhchap_key", key("dhchap_key", &value)?),
            "dhchap_controller_key" => {
                let name = "dhchap_controller_key";
                set(&mut self.dhchap_controller_key, name, key(name, &value)?)
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
            "replaydelay" => {
                let expected = "a number of milliseconds from 0 to 3600000";
                let delay = number("replaydelay", value, 0, 3_600_000, expected)?;
                set(&mut self.replay_delay_ms, "replaydelay", delay)
            }
            "crc" => {
                let crc = choose("crc", value, ON_OR_OFF, &SWITCH)?;
                set(&mut self.rdma.crc, "crc", crc)
            }
            "tls" => {
                let tls = choose("tls", value, ON_OR_OFF, &SWITCH)?;
                set(&mut self.tls, "tls", tls)
            }
            "tls_key" => set(&mut self.tls_key, "tls_key", key("tls_key", &value)?),
            "concat" => {
                let concatenation = choose("concat", value, ON_OR_OFF, &SWITCH)?;
                set(&mut self.concatenation, "concat", concatenation)
            }
            "hdgst" => {
                self.digests.header = choose("hdgst", value, ON_OR_OFF, &SWITCH)?;
                Ok(())
            }
            "ddgst" => {
                self.digests.data = choose("ddgst", value, ON_OR_OFF, &SWITCH)?;
                Ok(())
            }
            "dscp" => {
                let expected = "a number from 0 to 63";
                set(&mut self.tcp.dscp, "dscp", number("dscp", value, 0, 63, expected)? as u8)
            }
            "usertimeout" => set(&mut self.tcp.user_timeout_s, "usertimeout", seconds("usertimeout", value)?),
            "tcpkeepalive" => {
                set(&mut self.tcp.keep_alive_s, "tcpkeepalive", seconds("tcpkeepalive", value)?)
            }
            "congestion" => set(&mut self.tcp.congestion, "congestion", check_congestion(value)?),
            _ => Err(self.no_option(name)),
        }
    }

    fn options(&self) -> Vec<(&'static str, String)> {
        let mut options = Vec::new();
        let mut push = |name, value: Option<String>| options.extend(value.map(|value| (name, value)));
        push("ns", self.namespace.map(|nsid| nsid.to_string()));
        let provider = Some(self.rdma.provider).filter(|provider| *provider != Provider::Auto);
        push("provider", provider.map(|provider| provider.to_string()));
        push("hostnqn", self.host_nqn.clone());
        push("hostid", self.host_id.map(|id| id.to_string()));
        push("keys", self.keys.as_ref().map(ToString::to_string));
        push("dhchap_key", self.dhchap_key.as_ref().map(ToString::to_string));
        push("dhchap_controller_key", self.dhchap_controller_key.as_ref().map(ToString::to_string));
        push("queues", self.queues.map(|queues| queues.to_string()));
        push("depth", self.depth.map(|depth| depth.to_string()));
        push("keepalive", self.keep_alive_s.map(|seconds| seconds.to_string()));
        push("replaydelay", self.replay_delay_ms.map(|ms| ms.to_string()));
        push("crc", self.rdma.crc.map(|crc| if crc { "on" } else { "off" }.to_owned()));
        push("tls", self.tls.map(|tls| if tls { "on" } else { "off" }.to_owned()));
        push("tls_key", self.tls_key.as_ref().map(ToString::to_string));
        push("concat", self.concatenation.map(|concat| if concat { "on" } else { "off" }.to_owned()));
        push("hdgst", self.digests.header.then(|| "on".to_owned()));
        push("ddgst", self.digests.data.then(|| "on".to_owned()));
        push("congestion", self.tcp.congestion.clone());
        push("dscp", self.tcp.dscp.map(|dscp| dscp.to_string()));
        push("usertimeout", self.tcp.user_timeout_s.map(|seconds| seconds.to_string()));
        push("tcpkeepalive", self.tcp.keep_alive_s.map(|seconds| seconds.to_string()));
        options
    }
}

impl FromStr for Url {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let found = [Transport::Rdma, Transport::Tcp]
            .into_iter()
            .find_map(|transport| Some((transport, without_scheme(text, transport.scheme())?)));
        let (transport, rest) = found.ok_or_else(|| UrlError::Scheme(scheme_of(text)))?;
        let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (host, port) = parse_authority(authority)?;
        // A slash that a person adds at the end belongs to no name. One that does is `%2F`.
        let path = decode(path.trim_end_matches('/'))?;
        let subsystem = if path.is_empty() { None } else { Some(check_nqn(path)?) };
        let mut url = Self { transport, ..Self::new(host, port, subsystem) };
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
        match (url.concatenation, url.tls, &url.tls_key) {
            (Some(true), Some(false), _) => Err(UrlError::Concatenation("tls=off")),
            (Some(true), _, Some(_)) => Err(UrlError::Concatenation("tls_key")),
            _ => Ok(url),
        }
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = self.transport.scheme();
        write!(f, "{scheme}{}:{}/", self.host.encoded(), self.port)?;
        f.write_str(&encode(self.subsystem.as_deref().unwrap_or("")))?;
        for (index, (name, value)) in self.options().into_iter().enumerate() {
            let separator = if index == 0 { '?' } else { '&' };
            write!(f, "{separator}{name}={}", encode(&value))?;
        }
        Ok(())
    }
}

/// The kernel knows algorithms by names of up to 15 characters; whether it has this one is found when connecting.
fn check_congestion(name: String) -> Result<String, UrlError> {
    let plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-');
    if name.is_empty() || name.len() > 15 || !plain {
        return Err(wrong("congestion", name, "the name of a congestion control algorithm"));
    }
    Ok(name)
}

/// Checks an NQN.
pub(crate) fn check_nqn(text: String) -> Result<String, UrlError> {
    match Nqn::new(&text) {
        Ok(_) => Ok(text),
        Err(why) => Err(UrlError::Nqn { text, why }),
    }
}

/// Checks the NQN of a host.
fn check_host_nqn(text: String) -> Result<String, UrlError> {
    match Nqn::with_form(&text) {
        Ok(_) => Ok(text),
        Err(why) => Err(UrlError::HostNqn { text, why }),
    }
}

/// What follows a scheme, which may be in upper case (RFC 3986, section 3.1).
fn without_scheme<'a>(text: &'a str, scheme: &str) -> Option<&'a str> {
    let (begin, rest) = text.split_at_checked(scheme.len())?;
    begin.eq_ignore_ascii_case(scheme).then_some(rest)
}

/// Where a key is.
fn key(name: &'static str, value: &str) -> Result<KeySource, UrlError> {
    KeySource::parse(value).map_err(|why| UrlError::Key { name, why })
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

/// As long as a listener takes, too.
fn seconds(name: &'static str, value: String) -> Result<u16, UrlError> {
    number(name, value, 1, 3600, "a number of seconds from 1 to 3600").map(|seconds| seconds as u16)
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

/// What somebody may do who has named an option that an address does not have.
fn instead(name: &str, transport: Transport) -> String {
    let other = transport.other();
    if other.own_options().contains(&name) {
        return format!(" for {}, only for {}", transport.scheme(), other.scheme());
    }
    let known: Vec<&str> = Url::option_names(transport).collect();
    match meant(name, known.iter().copied()) {
        Some(like) => format!("; did you mean {like}?"),
        None => format!("; there are {}", known.join(", ")),
    }
}

fn wrong(name: &'static str, value: String, expected: &'static str) -> UrlError {
    UrlError::Value { name, value, expected }
}

fn scheme_of(text: &str) -> String {
    let end = text.find("://").map_or(text.len(), |at| at + 3);
    text[..end].chars().take(40).collect()
}

#[cfg(test)]
mod tests;
