//! The configuration. A TOML file is parsed with positions and checked once. The result has these types, which are
//! always valid.

mod access_groups;
mod authentication;
mod backing;
mod check;
mod confinement;
mod difference;
mod doubts;
pub(crate) mod edit;
mod error;
mod hosts;
mod load;
pub(crate) mod places;
pub(crate) mod ports;
mod rate_limits;
mod reader;
mod resolved;
mod until;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ringfab_base::shown_size;
use ringfab_block::DriverHandle;
use ringfab_fabric::ZonedIp;
use ringfab_memory::ClassLayout;
use ringfab_process::log::Format;
use ringfab_rbd::ClusterConfig;
use uuid::Uuid;

pub(crate) use access_groups::set_state;
pub use access_groups::{
    ANA_GROUP_MAX, ANA_STATES, AccessGroup, AccessGroups, DEFAULT_ANA_GROUP, OnLostDisk, state_word,
};
pub(crate) use authentication::age;
pub use authentication::{ConfiguredKey, Demands, HostAuthentication, HostTls, OldKeys};
pub use backing::{NbdBacking, RbdBacking};
pub(crate) use backing::{used_twice, without_cluster};
pub use confinement::{ConfinementConfig, USUAL_PORTS};
pub use difference::{Change, ChangeLine, difference};
pub use doubts::Doubt;
pub(crate) use doubts::doubts;
use error::Credentials;
pub use error::{ConfigError, ConfigErrors};
use load::Input;
use places::Seen;
pub use rate_limits::{DEFAULT_SHARES, HostConfig, NamespaceLimits, RateLimits};
pub use ringfab_auth::KeySource;
pub use until::Until;

/// Everything that a target is told.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The process.
    pub target: TargetConfig,
    /// Buffers.
    pub memory: MemoryConfig,
    /// How it is managed while it runs; none when the configuration says nothing of it.
    pub control: Option<ControlConfig>,
    /// Where its metrics are; none when the configuration says nothing of them.
    pub metrics: Option<MetricsConfig>,
    /// What the process gives up once it has started.
    pub confinement: ConfinementConfig,
    /// Where hosts connect; at least one.
    pub listeners: Vec<ListenerConfig>,
    /// What they find; at least one.
    pub subsystems: Vec<SubsystemConfig>,
    /// Hosts of which something is said, each once.
    pub hosts: Vec<HostConfig>,
    /// How they find it.
    pub discovery: DiscoveryConfig,
    /// Ceph clusters with images, each once.
    pub ceph: Vec<ClusterConfig>,
}

/// The process.
#[derive(Clone, Debug, PartialEq)]
pub struct TargetConfig {
    /// The processors to run on, each at most once; at least one.
    pub cores: Vec<usize>,
    /// Where the identity of this installation is kept.
    pub state_dir: PathBuf,
    /// The longest that a shutdown waits for hosts and disks.
    pub drain_timeout: Duration,
    /// How long a core spins after its last event before it sleeps.
    pub spin: Duration,
    /// Filter of the log, as `tracing` has it: `info`, or `info,ringfab_target=debug`.
    pub log: String,
    /// How the log is written.
    pub log_format: Format,
}

/// Buffers of each core.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryConfig {
    /// How many small buffers each core has: commands with their in-capsule data, and small transfers.
    pub small_buffers: usize,
    /// Bytes of a small buffer.
    pub small_buffer_bytes: usize,
    /// How many large buffers each core has.
    pub large_buffers: usize,
    /// Bytes of a large buffer.
    pub large_buffer_bytes: usize,
}

impl MemoryConfig {
    /// Bytes of a core's pool.
    pub fn bytes(&self) -> u64 {
        self.classes().iter().map(|class| (class.buffer_bytes * class.count) as u64).sum()
    }

    /// The classes of a core's pool, smallest first.
    pub fn classes(&self) -> [ClassLayout; 2] {
        [
            ClassLayout { buffer_bytes: self.small_buffer_bytes, count: self.small_buffers },
            ClassLayout { buffer_bytes: self.large_buffer_bytes, count: self.large_buffers },
        ]
    }
}

/// Where the control socket is when the configuration names no other place.
pub const CONTROL_SOCKET: &str = "/run/ringfab/control.sock";

/// How the target is managed while it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlConfig {
    /// Whether there is a socket.
    pub enabled: bool,
    /// Where it is.
    pub socket: PathBuf,
    /// Who may connect: permission bits of the socket.
    pub mode: u32,
    /// The group of the socket; that of the process when none.
    pub group: Option<String>,
}

impl ControlConfig {
    /// Whether every user of the machine may connect: that takes the right to write.
    pub(crate) const fn is_for_everybody(&self) -> bool {
        self.mode & 0o002 != 0
    }
}

impl Default for ControlConfig {
    fn default() -> Self {
        Self { enabled: true, socket: PathBuf::from(CONTROL_SOCKET), mode: 0o600, group: None }
    }
}

/// Where metrics are: an address, a file, or both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricsConfig {
    /// The address of the metrics and of the page for people.
    pub address: Option<SocketAddr>,
    /// The file for node_exporter's textfile collector.
    pub file: Option<PathBuf>,
    /// How often the file is written.
    pub file_interval: Duration,
    /// Whether each queue has metrics of its own.
    pub queues: bool,
}

/// Who does RDMA for a listener.
pub use ringfab_fabric::rdma::ProviderChoice as Provider;

/// How capsules and data travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// NVMe/RDMA.
    #[default]
    Rdma,
    /// NVMe/TCP.
    Tcp,
}

impl Transport {
    /// The word for it in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rdma => "rdma",
            Self::Tcp => "tcp",
        }
    }
}

/// Whether the connections of a listener are over TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ListenerTls {
    /// None is.
    #[default]
    Off,
    /// Those whose host begins with TLS; others are in clear text.
    Allowed,
    /// All are.
    Required,
}

impl ListenerTls {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Off, Self::Allowed, Self::Required];

    /// The word for it in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Allowed => "allowed",
            Self::Required => "required",
        }
    }
}

/// Where hosts connect.
#[derive(Clone, Debug, PartialEq)]
pub struct ListenerConfig {
    /// The address; a link-local one with its interface.
    pub address: ZonedIp,
    /// The port; zero picks a free one.
    pub port: u16,
    /// How hosts talk to it.
    pub transport: Transport,
    /// Who does RDMA.
    pub provider: Provider,
    /// Whether we ask for MPA CRCs; they are used if either side asks.
    pub crc: bool,
    /// Highest MPA revision to speak, 1 or 2.
    pub mpa_revision: u8,
    /// TCP congestion control algorithm; the system's default when none.
    pub congestion: Option<String>,
    /// Differentiated Services Code Point of what is sent.
    pub dscp: Option<u8>,
    /// How long what was sent may stay unacknowledged before the connection is given up (`TCP_USER_TIMEOUT`).
    pub user_timeout: Option<Duration>,
    /// How long a connection is idle before TCP looks whether the peer is still there.
    pub keep_alive: Option<Duration>,
    /// Data that a command capsule may carry, in bytes; a multiple of 16.
    pub in_capsule_bytes: u32,
    /// The largest queue, in entries.
    pub queue_depth_max: u32,
    /// The most I/O queues of a controller.
    pub io_queues_max: u16,
    /// Whether hosts find here what there is, and connect for it elsewhere.
    pub discovery_only: bool,
    /// Whether its connections are over TLS; only NVMe/TCP has that.
    pub tls: ListenerTls,
}

impl ListenerConfig {
    /// Address and port, as people write it.
    pub fn place(&self) -> String {
        self.address.with_port(self.port)
    }
}

/// The discovery subsystem.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiscoveryConfig {
    /// A name of its own, beside the one that all discovery subsystems have.
    pub nqn: Option<String>,
    /// Whether hosts without a key for authentication are refused.
    pub requires_authentication: bool,
    /// Other discovery subsystems that hosts are told of.
    pub referrals: Vec<Referral>,
    /// Whether the network is told by mDNS where it is.
    pub mdns: bool,
}

/// Another discovery subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Referral {
    /// How hosts talk to it.
    pub transport: Transport,
    /// Where it is.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
    /// Its own name, if it has one.
    pub nqn: Option<String>,
}

impl Referral {
    /// Its address as people write it, with the transport.
    pub fn place(&self) -> String {
        format!("{} {}", self.transport.name(), SocketAddr::new(self.address, self.port))
    }
}

/// A subsystem.
#[derive(Clone, Debug, PartialEq)]
pub struct SubsystemConfig {
    /// NVMe Qualified Name.
    pub nqn: String,
    /// Serial number, at most 20 characters.
    pub serial: String,
    /// Model number, at most 40 characters.
    pub model: String,
    /// Which hosts may connect.
    pub access: Access,
    /// What hosts have to do.
    pub demands: Demands,
    /// The first and the last identifier of its controllers, where other processes serve it, too.
    pub controller_ids: Option<(u16, u16)>,
    /// The listeners that discovery names for it; all where there is none.
    pub discovery_listeners: Vec<SocketAddr>,
    /// The access groups of which something is said.
    pub ana_groups: AccessGroups,
    /// By ascending identifier.
    pub namespaces: Vec<NamespaceConfig>,
}

impl SubsystemConfig {
    /// The namespace with an identifier.
    pub fn namespace(&self, nsid: u32) -> Option<&NamespaceConfig> {
        self.namespaces.iter().find(|one| one.nsid == nsid)
    }
}

/// Which hosts a subsystem lets in, or which of these see a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// Every host: of a subsystem, said explicitly in the configuration.
    AnyHost,
    /// These host NQNs.
    Hosts(BTreeSet<String>),
}

/// A namespace.
#[derive(Clone, Debug, PartialEq)]
pub struct NamespaceConfig {
    /// Namespace identifier.
    pub nsid: u32,
    /// What stands behind it.
    pub source: Source,
    /// Bytes of a logical block, 512 or 4096.
    pub block_bytes: u32,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether others may use the same disk.
    pub shared: bool,
    /// Overrides the derived UUID; not zero.
    pub uuid: Option<Uuid>,
    /// Overrides the derived NGUID; not zero.
    pub nguid: Option<[u8; 16]>,
    /// Its access group.
    pub ana_group: u32,
    /// Which of the subsystem's hosts see it.
    pub hosts: Access,
    /// How much hosts may do with it in a second.
    pub limits: NamespaceLimits,
}

/// What stands behind a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A regular file or a block device.
    File {
        /// Where it is.
        path: PathBuf,
        /// Bypass the page cache.
        direct: bool,
    },
    /// Memory of the process, in bytes, lost when it ends.
    Memory(u64),
    /// Nothing, of a size in bytes: reads give zeroes and writes are forgotten.
    Null(u64),
    /// An export of an NBD server.
    Nbd(Box<NbdBacking>),
    /// An image of a Ceph cluster.
    Rbd(Box<RbdBacking>),
    /// A device of a program that embeds the target; no file names one.
    Device(DriverHandle),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, .. } => path.to_string_lossy().fmt(f),
            Self::Memory(bytes) => write!(f, "{} of memory", shown_size(*bytes)),
            Self::Null(bytes) => write!(f, "{} of zeroes", shown_size(*bytes)),
            Self::Nbd(backing) => backing.address.fmt(f),
            Self::Rbd(backing) => backing.fmt(f),
            Self::Device(driver) => f.write_str(&driver.name()),
        }
    }
}

impl Config {
    /// The subsystem with a name.
    pub fn subsystem(&self, nqn: &str) -> Option<&SubsystemConfig> {
        self.subsystems.iter().find(|one| one.nqn == nqn)
    }

    /// What is said of a host; the defaults when nothing is.
    pub fn host(&self, nqn: &str) -> HostConfig {
        let found = self.hosts.iter().find(|one| one.nqn == nqn);
        found.cloned().unwrap_or_else(|| HostConfig::new(nqn.to_owned()))
    }

    /// Reads and checks a file. Nothing that it names is opened, but it is looked at, to find disks with two names.
    ///
    /// # Errors
    /// All mistakes at once.
    pub fn load(path: &Path) -> Result<Self, ConfigErrors> {
        load::load(path, Credentials::Needed, Input::Any)
    }

    /// Reads and checks a file again, as [`Config::load`] does, in a process that serves meanwhile. So it must be a
    /// regular file: nobody may write to a FIFO any more.
    ///
    /// # Errors
    /// All mistakes at once.
    pub(crate) fn load_again(path: &Path) -> Result<Self, ConfigErrors> {
        load::load(path, Credentials::Needed, Input::RegularFile)
    }

    /// The text of a file that a process reads again.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub(crate) fn text_again(path: &Path) -> Result<String, ConfigErrors> {
        load::text(path, Input::RegularFile)
    }

    /// Reads and checks a file as [`Config::load`] does, for a process that does not serve it. A key that is a
    /// credential of the service need not be there: then the configuration has another one in its place.
    ///
    /// # Errors
    /// All mistakes at once.
    pub(crate) fn look_at(path: &Path) -> Result<Self, ConfigErrors> {
        load::load(path, Credentials::MayBeUnseen, Input::Any)
    }

    /// Checks the text of a configuration; `file` is its name in messages.
    ///
    /// # Errors
    /// All mistakes at once.
    pub fn parse(text: &str, file: &str) -> Result<Self, ConfigErrors> {
        Self::parse_with(text, file, Credentials::Needed)
    }

    /// Checks a text as [`Config::parse`] does, for a process that does not serve it: see [`Config::look_at`].
    ///
    /// # Errors
    /// All mistakes at once.
    pub(crate) fn look_at_text(text: &str, file: &str) -> Result<Self, ConfigErrors> {
        Self::parse_with(text, file, Credentials::MayBeUnseen)
    }

    fn parse_with(text: &str, file: &str, credentials: Credentials) -> Result<Self, ConfigErrors> {
        check::check(text, None, &Seen::unseen, credentials)
            .map_err(|errors| ConfigErrors::Invalid { file: file.to_owned(), errors })
    }

    /// Checks the table of one more namespace, as it would stand in `[[subsystem.namespace]]`.
    ///
    /// # Errors
    /// All mistakes at once.
    pub(crate) fn parse_namespace(text: &str) -> Result<NamespaceConfig, Vec<ConfigError>> {
        check::check_namespace(text)
    }

    /// Checks the table of one more subsystem, as it would stand in `[[subsystem]]`.
    ///
    /// # Errors
    /// All mistakes at once.
    pub(crate) fn parse_subsystem(text: &str) -> Result<SubsystemConfig, Vec<ConfigError>> {
        check::check_subsystem(text)
    }

    /// Checks the table of one more listener, as it would stand in `[[listener]]`.
    ///
    /// # Errors
    /// All mistakes at once.
    pub(crate) fn parse_listener(text: &str) -> Result<ListenerConfig, Vec<ConfigError>> {
        check::check_listener(text)
    }

    /// Checks the table of one host, as it would stand in `[[host]]`.
    ///
    /// # Errors
    /// All mistakes at once.
    pub(crate) fn parse_host(text: &str) -> Result<HostConfig, Vec<ConfigError>> {
        check::check_host(text)
    }

    /// Checks a table `limits`.
    ///
    /// # Errors
    /// All mistakes at once.
    pub(crate) fn parse_limits(text: &str) -> Result<RateLimits, Vec<ConfigError>> {
        check::check_limits(text)
    }

    /// This configuration as TOML, with every default written out; it parses to the same configuration.
    pub fn to_toml(&self) -> String {
        resolved::to_toml(self)
    }
}

/// The processors that this process may run on.
pub(crate) fn available_cores() -> Vec<usize> {
    let Ok(set) = nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(0)) else { return vec![0] };
    let cores: BTreeSet<usize> =
        (0..nix::sched::CpuSet::count()).filter(|core| set.is_set(*core).unwrap_or(false)).collect();
    cores.into_iter().collect()
}
