//! A configuration written out as TOML, defaults included.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use ringfab_base::format_size;
use ringfab_base::is_visible;
use ringfab_rbd::ClusterConfig;
use ringfab_spec::log::AnaState;
use serde::Serialize;
use toml_edit::DocumentMut;
use toml_edit::visit_mut::{self, VisitMut};
use uuid::Uuid;

use super::check::{DERIVATIONS, words_of};
use super::{
    Access, AccessGroup, Config, ConfiguredKey, ConfinementConfig, Demands, DiscoveryConfig, HostConfig,
    ListenerConfig, ListenerTls, NamespaceConfig, NamespaceLimits, RateLimits, Referral, Source,
    SubsystemConfig, Transport, Until, state_word,
};

/// The text; it parses to the same configuration.
pub(super) fn to_toml(config: &Config) -> String {
    visible_toml(toml::to_string(&document(config)).expect("plain values always serialize"))
}

/// The same as a table.
pub(super) fn to_table(config: &Config) -> toml::Table {
    table(&document(config))
}

fn document(config: &Config) -> Document<'_> {
    let (target, memory, control) = (target(config), memory(config), control(config));
    let metrics = metrics(config);
    let confinement = confinement(&config.confinement);
    Document {
        target,
        memory,
        control,
        metrics,
        confinement,
        listener: config.listeners.iter().map(listener).collect(),
        subsystem: config.subsystems.iter().map(subsystem).collect(),
        host: config.hosts.iter().map(host).collect(),
        discovery: discovery(config),
        ceph: config.ceph.iter().map(cluster).collect(),
    }
}

fn cluster(config: &ClusterConfig) -> Cluster<'_> {
    let ClusterConfig { name, conf, user, keyring } = config;
    Cluster { name, conf: conf.as_deref(), user: user.as_deref(), keyring: keyring.as_deref() }
}

/// The text with TOML's escapes for what nobody sees in it. Each string is in one line: a name with a newline is no
/// two lines of the file.
fn visible_toml(text: String) -> String {
    let is_shown = |one: char| is_visible(one) || one == '\n';
    if text.chars().all(is_shown) && !["\"\"\"", "'''"].iter().any(|quotes| text.contains(quotes)) {
        return text;
    }
    let mut document: DocumentMut = text.parse().expect("what was written is read again");
    InOneLine.visit_document_mut(&mut document);
    document.to_string()
}

/// Writes strings with escapes.
struct InOneLine;

impl VisitMut for InOneLine {
    fn visit_value_mut(&mut self, value: &mut toml_edit::Value) {
        if let Some(text) = value.as_str().filter(|text| !text.chars().all(is_visible)) {
            let escaped: String = text.chars().map(escaped).collect();
            let mut written: toml_edit::Value = format!("\"{escaped}\"").parse().expect("a string");
            *written.decor_mut() = value.decor().clone();
            *value = written;
        }
        visit_mut::visit_value_mut(self, value);
    }
}

fn escaped(one: char) -> String {
    match one {
        '"' | '\\' => format!("\\{one}"),
        one if is_visible(one) => one.to_string(),
        one => format!("\\U{:08X}", u32::from(one)),
    }
}

/// The keys of the tables that describe the process, with the names of their tables: `memory.large_buffers`.
pub(super) fn process_keys(config: &Config) -> toml::Table {
    let tables = [
        ("target", table(&target(config))),
        ("memory", table(&memory(config))),
        ("control", control(config).map(|control| table(&control)).unwrap_or_default()),
        ("metrics", metrics(config).map(|metrics| table(&metrics)).unwrap_or_default()),
        ("confinement", table(&confinement(&config.confinement))),
        ("discovery", discovery_keys(config)),
        ("ceph", config.ceph.iter().map(|one| (one.name.clone(), table(&cluster(one)).into())).collect()),
    ];
    let keys = |(name, table): (&'static str, toml::Table)| {
        table.into_iter().map(move |(key, value)| (format!("{name}.{key}"), value))
    };
    tables.into_iter().flat_map(keys).collect()
}

/// The keys of the discovery subsystem itself. Referrals are told apart one by one, and what it demands by itself.
fn discovery_keys(config: &Config) -> toml::Table {
    let mut keys = discovery(config).map(|discovery| table(&discovery)).unwrap_or_default();
    keys.remove("referral");
    keys.remove("authentication");
    keys.insert("mdns".to_owned(), config.discovery.mdns.into());
    keys
}

/// The keys of a listener, as they are written.
pub(super) fn listener_keys(config: &ListenerConfig) -> toml::Table {
    table(&listener(config))
}

/// What is said of a host, as it is written.
pub(super) fn host_keys(config: &HostConfig) -> toml::Table {
    let mut keys = table(&host(config));
    keys.remove("nqn");
    keys
}

/// How it is written whether something is demanded of hosts.
pub(super) fn demand_word(required: bool) -> &'static str {
    if required { "required" } else { "optional" }
}

/// What a subsystem demands of its hosts, as it is written, also where it is the default.
pub(super) fn demand_keys(demands: Demands) -> toml::Table {
    let word = |required: bool| toml::Value::from(demand_word(required));
    let concatenation = toml::Value::from(if demands.concatenation { "allowed" } else { "refused" });
    let keys = [
        ("authentication", word(demands.authentication)),
        ("tls", word(demands.tls)),
        ("concatenation", concatenation),
    ];
    keys.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// The limits of a namespace, as they are written.
pub(super) fn limit_keys(config: &NamespaceLimits) -> toml::Table {
    table(&NamespaceLimitsTable::of(config))
}

/// The keys of a namespace, as they are written.
pub(super) fn namespace_keys(config: &NamespaceConfig) -> toml::Table {
    table(&namespace(config))
}

/// By way of a text: a table that is made of the value itself has no times, but tables in their place.
fn table(value: &impl Serialize) -> toml::Table {
    let text = toml::to_string(value).expect("plain values always serialize");
    text.parse().expect("what is serialized can be parsed")
}

fn target(config: &Config) -> Target<'_> {
    Target {
        cores: &config.target.cores,
        state_dir: &config.target.state_dir,
        drain_timeout_s: config.target.drain_timeout.as_secs(),
        spin_us: config.target.spin.as_micros() as u64,
        log: &config.target.log,
        log_format: config.target.log_format.name(),
    }
}

fn memory(config: &Config) -> Memory {
    Memory {
        small_buffers: config.memory.small_buffers,
        small_buffer_bytes: format_size(config.memory.small_buffer_bytes as u64),
        large_buffers: config.memory.large_buffers,
        large_buffer_bytes: format_size(config.memory.large_buffer_bytes as u64),
    }
}

fn control(config: &Config) -> Option<Control<'_>> {
    config.control.as_ref().map(|control| Control {
        enabled: control.enabled,
        socket: &control.socket,
        mode: format!("{:04o}", control.mode),
        group: control.group.as_deref(),
    })
}

fn metrics(config: &Config) -> Option<Metrics<'_>> {
    config.metrics.as_ref().map(|metrics| Metrics {
        address: metrics.address.map(|address| address.to_string()),
        file: metrics.file.as_deref(),
        file_interval_s: metrics.file_interval.as_secs(),
        queues: metrics.queues,
    })
}

fn confinement(config: &ConfinementConfig) -> Confinement<'_> {
    Confinement {
        capabilities: config.capabilities,
        files: config.files,
        network: config.network,
        processes: config.processes,
        system_calls: config.system_calls,
        paths: config.paths.as_deref().map(|paths| paths.iter().map(PathBuf::as_path).collect()),
        ports: &config.ports,
        connect_ports: &config.connect_ports,
    }
}

/// Nothing where all is as by default.
fn discovery(config: &Config) -> Option<Discovery<'_>> {
    let discovery = &config.discovery;
    (*discovery != DiscoveryConfig::default()).then(|| Discovery {
        nqn: discovery.nqn.as_deref(),
        authentication: discovery.requires_authentication.then_some("required"),
        mdns: discovery.mdns,
        referral: discovery.referrals.iter().map(referral).collect(),
    })
}

fn referral(referral: &Referral) -> ReferralTable<'_> {
    ReferralTable {
        transport: referral.transport.name(),
        address: referral.address.to_string(),
        port: referral.port,
        nqn: referral.nqn.as_deref(),
    }
}

#[derive(Serialize)]
struct Document<'a> {
    target: Target<'a>,
    memory: Memory,
    #[serde(skip_serializing_if = "Option::is_none")]
    control: Option<Control<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metrics: Option<Metrics<'a>>,
    confinement: Confinement<'a>,
    listener: Vec<Listener<'a>>,
    subsystem: Vec<Subsystem<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    host: Vec<Host<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    discovery: Option<Discovery<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ceph: Vec<Cluster<'a>>,
}

#[derive(Serialize)]
struct Cluster<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    conf: Option<&'a Path>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    keyring: Option<&'a Path>,
}

#[derive(Serialize)]
struct Confinement<'a> {
    capabilities: bool,
    files: bool,
    network: bool,
    processes: bool,
    system_calls: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    paths: Option<Vec<&'a Path>>,
    #[serde(skip_serializing_if = "<[u16]>::is_empty")]
    ports: &'a [u16],
    #[serde(skip_serializing_if = "<[u16]>::is_empty")]
    connect_ports: &'a [u16],
}

#[derive(Serialize)]
struct Discovery<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    nqn: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    authentication: Option<&'static str>,
    mdns: bool,
    referral: Vec<ReferralTable<'a>>,
}

#[derive(Serialize)]
struct ReferralTable<'a> {
    transport: &'static str,
    address: String,
    port: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    nqn: Option<&'a str>,
}

#[derive(Serialize)]
struct Target<'a> {
    cores: &'a [usize],
    state_dir: &'a Path,
    drain_timeout_s: u64,
    spin_us: u64,
    log: &'a str,
    log_format: &'static str,
}

#[derive(Serialize)]
struct Memory {
    small_buffers: usize,
    small_buffer_bytes: String,
    large_buffers: usize,
    large_buffer_bytes: String,
}

#[derive(Serialize)]
struct Control<'a> {
    enabled: bool,
    socket: &'a Path,
    mode: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<&'a str>,
}

#[derive(Serialize)]
struct Metrics<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'a Path>,
    file_interval_s: u64,
    queues: bool,
}

#[derive(Serialize)]
struct Listener<'a> {
    address: String,
    port: u16,
    transport: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    provider: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    crc: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mpa_revision: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    congestion: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dscp: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user_timeout_s: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    keep_alive_s: Option<u64>,
    in_capsule_bytes: u32,
    queue_depth_max: u32,
    io_queues_max: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    discovery_only: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tls: Option<&'static str>,
}

#[derive(Serialize)]
struct Subsystem<'a> {
    nqn: &'a str,
    serial: &'a str,
    model: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    allow_any_host: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    allowed_hosts: Option<Vec<&'a str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    authentication: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tls: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    concatenation: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    controller_ids: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    discovery_listeners: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ana: Vec<AnaGroup>,
    namespace: Vec<Namespace<'a>>,
}

#[derive(Serialize)]
struct AnaGroup {
    group: u32,
    state: &'static str,
    on_lost_disk: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    way: Vec<AnaWay>,
}

#[derive(Serialize)]
struct AnaWay {
    listener: String,
    state: &'static str,
}

#[derive(Default, Serialize)]
struct Namespace<'a> {
    nsid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<&'a Path>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nbd: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    write_through: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reconnect_delay_s: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    replay_delay_s: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rbd: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    null: Option<String>,
    block_bytes: u32,
    read_only: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    direct: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    allow_page_cache: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shared: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    uuid: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nguid: Option<String>,
    ana_group: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    hosts: Option<Vec<&'a str>>,
    #[serde(flatten)]
    limits: NamespaceLimitsTable<'a>,
}

#[derive(Default, Serialize)]
struct NamespaceLimitsTable<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    limits: Option<Limits>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    host_limits: Vec<OneHostLimits<'a>>,
}

#[derive(Serialize)]
struct OneHostLimits<'a> {
    host: &'a str,
    #[serde(flatten)]
    limits: Limits,
}

#[derive(Serialize)]
struct Limits {
    #[serde(skip_serializing_if = "Option::is_none")]
    read_iops: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    write_iops: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    read_bytes_per_s: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    write_bytes_per_s: Option<String>,
    burst_ms: u64,
}

#[derive(Serialize)]
struct Host<'a> {
    nqn: &'a str,
    shares: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    limits: Option<Limits>,
    #[serde(flatten)]
    authentication: Option<Authentication>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tls_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tls_keys: Option<[String; 2]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tls_derivation: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    old_keys_until: Option<Until>,
}

#[derive(Serialize)]
struct Authentication {
    #[serde(skip_serializing_if = "Option::is_none")]
    dhchap_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dhchap_keys: Option<[String; 2]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dhchap_controller_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dhchap_controller_keys: Option<[String; 2]>,
    dhchap_hashes: Vec<&'static str>,
    dhchap_groups: Vec<&'static str>,
}

impl Limits {
    fn of(config: &RateLimits) -> Self {
        Self {
            read_iops: config.read_iops,
            write_iops: config.write_iops,
            read_bytes_per_s: config.read_bytes_per_s.map(format_size),
            write_bytes_per_s: config.write_bytes_per_s.map(format_size),
            burst_ms: config.burst.as_millis() as u64,
        }
    }

    /// Nothing where nothing is limited.
    fn any_of(config: &RateLimits) -> Option<Self> {
        (!config.is_unlimited()).then(|| Self::of(config))
    }
}

impl<'a> NamespaceLimitsTable<'a> {
    fn of(config: &'a NamespaceLimits) -> Self {
        let one =
            |(host, limits): (&'a String, &RateLimits)| OneHostLimits { host, limits: Limits::of(limits) };
        Self { limits: Limits::any_of(&config.all), host_limits: config.hosts.iter().map(one).collect() }
    }
}

fn host(config: &HostConfig) -> Host<'_> {
    let authentication = config.authentication.as_ref().map(|one| {
        let (dhchap_hashes, dhchap_groups) = words_of(one);
        let (old, new) = (one.old.as_ref(), one.controller_key.as_ref());
        let (dhchap_key, dhchap_keys) = sources(Some(&one.key), old.map(|old| &old.key));
        let old = old.and_then(|old| old.controller_key.as_ref()).filter(|old| Some(*old) != new);
        let (dhchap_controller_key, dhchap_controller_keys) = sources(new, old);
        Authentication {
            dhchap_key,
            dhchap_keys,
            dhchap_controller_key,
            dhchap_controller_keys,
            dhchap_hashes,
            dhchap_groups,
        }
    });
    let tls = config.tls.as_ref();
    let (tls_key, tls_keys) = sources(tls.map(|tls| &tls.key), tls.and_then(|tls| tls.old.as_ref()));
    let derivation = |wanted| DERIVATIONS.iter().find(|(_, one)| *one == wanted).map(|(word, _)| *word);
    Host {
        nqn: &config.nqn,
        shares: config.shares,
        limits: Limits::any_of(&config.limits),
        authentication,
        tls_key,
        tls_keys,
        tls_derivation: tls.and_then(|tls| derivation(tls.derivation)),
        old_keys_until: config.old_keys_until,
    }
}

/// Where a key is, or the list of a key and the one before.
fn sources<K>(
    key: Option<&ConfiguredKey<K>>,
    old: Option<&ConfiguredKey<K>>,
) -> (Option<String>, Option<[String; 2]>) {
    let text = |key: &ConfiguredKey<K>| key.source.to_string();
    match (key, old) {
        (Some(key), Some(old)) => (None, Some([text(key), text(old)])),
        (key, _) => (key.map(text), None),
    }
}

fn listener(config: &ListenerConfig) -> Listener<'_> {
    let rdma = config.transport == Transport::Rdma;
    Listener {
        address: config.address.to_string(),
        port: config.port,
        transport: config.transport.name(),
        provider: rdma.then(|| config.provider.name()),
        crc: rdma.then_some(config.crc),
        mpa_revision: rdma.then_some(config.mpa_revision),
        congestion: config.congestion.as_deref(),
        dscp: config.dscp,
        user_timeout_s: config.user_timeout.map(|time| time.as_secs()),
        keep_alive_s: config.keep_alive.map(|time| time.as_secs()),
        in_capsule_bytes: config.in_capsule_bytes,
        queue_depth_max: config.queue_depth_max,
        io_queues_max: config.io_queues_max,
        discovery_only: config.discovery_only.then_some(true),
        tls: (config.tls != ListenerTls::Off).then(|| config.tls.name()),
    }
}

fn subsystem(config: &SubsystemConfig) -> Subsystem<'_> {
    let allowed_hosts = names(&config.access);
    let allow_any_host = allowed_hosts.is_none().then_some(true);
    Subsystem {
        nqn: &config.nqn,
        serial: &config.serial,
        model: &config.model,
        allow_any_host,
        allowed_hosts,
        authentication: config.demands.authentication.then_some("required"),
        tls: config.demands.tls.then_some("required"),
        concatenation: (!config.demands.concatenation).then_some("refused"),
        controller_ids: config.controller_ids.map(|(first, last)| format!("{first}-{last}")),
        discovery_listeners: config.discovery_listeners.iter().map(ToString::to_string).collect(),
        ana: config.ana_groups.iter().map(|(group, config)| ana_group(*group, config)).collect(),
        namespace: config.namespaces.iter().map(namespace).collect(),
    }
}

fn ana_group(group: u32, config: &AccessGroup) -> AnaGroup {
    let way = |(address, state): (&SocketAddr, &AnaState)| AnaWay {
        listener: address.to_string(),
        state: state_word(*state),
    };
    AnaGroup {
        group,
        state: state_word(config.state),
        on_lost_disk: config.on_lost_disk.name(),
        way: config.ways.iter().map(way).collect(),
    }
}

/// What is said of an access group, as it is written.
pub(super) fn ana_group_keys(group: u32, config: &AccessGroup) -> toml::Table {
    let mut keys = table(&ana_group(group, config));
    keys.remove("group");
    keys
}

/// The names of hosts, unless all are meant.
fn names(access: &Access) -> Option<Vec<&str>> {
    match access {
        Access::AnyHost => None,
        Access::Hosts(hosts) => Some(hosts.iter().map(String::as_str).collect()),
    }
}

fn namespace(config: &NamespaceConfig) -> Namespace<'_> {
    let common = Namespace {
        nsid: config.nsid,
        block_bytes: config.block_bytes,
        read_only: config.read_only,
        uuid: config.uuid.map(|uuid| uuid.to_string()),
        nguid: config.nguid.map(|nguid| Uuid::from_bytes(nguid).simple().to_string()),
        ana_group: config.ana_group,
        hosts: names(&config.hosts),
        limits: NamespaceLimitsTable::of(&config.limits),
        ..Namespace::default()
    };
    match &config.source {
        Source::File { path, direct } => Namespace {
            path: Some(path),
            direct: Some(*direct),
            allow_page_cache: (!direct).then_some(true),
            shared: config.shared.then_some(true),
            ..common
        },
        Source::Memory(bytes) => Namespace { memory: Some(format_size(*bytes)), ..common },
        Source::Null(bytes) => Namespace { null: Some(format_size(*bytes)), ..common },
        Source::Nbd(backing) => Namespace {
            nbd: Some(backing.address.to_string()),
            write_through: Some(backing.write_through),
            reconnect_delay_s: Some(backing.reconnect_delay.as_secs()),
            replay_delay_s: Some(backing.replay_delay.as_secs()),
            shared: config.shared.then_some(true),
            ..common
        },
        Source::Rbd(backing) => Namespace {
            rbd: Some(backing.image.to_string()),
            cluster: Some(&backing.cluster),
            shared: config.shared.then_some(true),
            ..common
        },
        Source::Device(_) => common,
    }
}
