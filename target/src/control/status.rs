//! The state of the target as `status` and `namespace list` show it. Reading it does not wait for a change.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use ringfab_block::Detail;
use ringfab_process::confine::Layer;
use ringfab_process::{limits, log};
use ringfab_reactor::{Time, clock};
use serde::Serialize;

use uuid::Uuid;

use super::access::{self, AccessGroupState};
use super::activity::{self, LatencyState, Rates, Samples, Work};
use super::configured::{Configured, Current};
use super::limits::{HostState, NamespaceLimitsState};
use crate::config::{Access, Change, ChangeLine, DEFAULT_ANA_GROUP};
use crate::confinement;
use crate::controller::{Access as ControllerAccess, Controller};
use crate::core::{CoreUsage, Cores};
use crate::model::namespace::{Health, Namespace};
use crate::model::{Listener, Served, ServedSubsystem, Subsystem, TlsChannel};
use crate::target::{Target, tls_key_age};
use crate::worker::{self, Hanging};

/// A namespace.
#[derive(Clone, Debug, Serialize)]
pub struct NamespaceState {
    /// NQN of its subsystem.
    pub subsystem: String,
    /// Its identifier.
    pub nsid: u32,
    /// `ready`; `not ready`; `needs reopen` when an administrator has to have its disk opened anew; `detached` when it
    /// is served, but its name is gone or leads elsewhere; `unreachable` while commands wait for a server that is gone;
    /// `closing` while commands still run after its removal.
    pub state: &'static str,
    /// Why it is not simply ready.
    pub reason: Option<String>,
    /// Bytes of its disk behind the last whole block, which are not used.
    pub unused_bytes: u64,
    /// How often its disk has failed.
    pub media_errors: u64,
    /// Size in bytes, whole blocks only.
    pub bytes: u64,
    /// Bytes of a logical block.
    pub block_bytes: u32,
    /// Its access group.
    pub ana_group: u32,
    /// Whether writes are refused.
    pub read_only: bool,
    /// The file or device, `memory` or `null`.
    pub source: String,
    /// Namespace Globally Unique Identifier, as the configuration takes it.
    pub nguid: String,
    /// Universally unique identifier.
    pub uuid: String,
    /// The hosts of the subsystem that see it; none if all do.
    pub hosts: Option<Vec<String>>,
    /// More of what stands behind it, where that is on another machine: names and texts for people.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub details: Vec<DetailState>,
}

/// Something that is to be known of what stands behind a namespace.
#[derive(Clone, Debug, Serialize)]
pub struct DetailState {
    /// What it is: a word or two.
    pub name: &'static str,
    /// A text for people, on one line.
    pub text: String,
}

impl NamespaceState {
    pub(super) fn of(subsystem: &str, namespace: &Namespace, served: Option<&ServedSubsystem>) -> Self {
        let Health { state, reason, unused_bytes } = namespace.health();
        let state = if served.is_none() { "closing" } else { state };
        let hosts = match served.map_or(Access::AnyHost, |one| one.shown_to(namespace.nsid())) {
            Access::AnyHost => None,
            Access::Hosts(hosts) => Some(hosts.into_iter().collect()),
        };
        let details = namespace.backing().driver().map_or_else(Vec::new, |driver| driver.details());
        Self {
            subsystem: subsystem.to_owned(),
            nsid: namespace.nsid(),
            details: details.into_iter().map(|Detail { name, text }| DetailState { name, text }).collect(),
            state,
            reason,
            unused_bytes,
            media_errors: namespace.media_errors(),
            bytes: namespace.blocks() << namespace.block_shift(),
            block_bytes: namespace.block_bytes(),
            ana_group: served.map_or(DEFAULT_ANA_GROUP, |one| one.groups().of(namespace.nsid())),
            read_only: namespace.read_only(),
            source: namespace.source(),
            nguid: Uuid::from_bytes(*namespace.nguid()).simple().to_string(),
            uuid: namespace.uuid().to_string(),
            hosts,
        }
    }
}

/// A namespace with who uses it.
#[derive(Clone, Debug, Serialize)]
pub struct ServedNamespaceState {
    /// The namespace.
    #[serde(flatten)]
    pub namespace: NamespaceState,
    /// Controllers of its subsystem whose hosts see it.
    pub controllers: usize,
    /// What hosts have done with it.
    pub total: Work,
    /// What they do each second.
    pub per_second: Work,
    /// How many commands have ended with an error.
    pub errors: u64,
    /// How long its commands take.
    pub latency: LatencyState,
    /// How much hosts may do with it.
    #[serde(flatten)]
    pub limits: NamespaceLimitsState,
}

/// A listener.
#[derive(Clone, Debug, Serialize)]
pub struct ListenerState {
    /// Its number in discovery.
    pub port_id: u16,
    /// Where it is bound.
    pub address: SocketAddr,
    /// `rdma` or `tcp`.
    pub transport: &'static str,
    /// Who does RDMA: `auto`, `iwarp` or `verbs`.
    pub provider: &'static str,
    /// Whether its connections are over TLS: `off`, `allowed` or `required`.
    pub tls: &'static str,
    /// Controllers whose hosts came there.
    pub controllers: usize,
    /// The same of hosts that have yet to prove who they are.
    pub authenticating: usize,
}

/// A subsystem.
#[derive(Clone, Debug, Serialize)]
pub struct SubsystemState {
    /// Its NQN.
    pub nqn: String,
    /// Its serial number.
    pub serial: String,
    /// Its model number.
    pub model: String,
    /// Whether every host may use it.
    pub allow_any_host: bool,
    /// The hosts that may, if not every host.
    pub allowed_hosts: Vec<String>,
    /// Whether hosts without a key for authentication are refused.
    pub authentication_required: bool,
    /// Whether connections in clear text are refused.
    pub tls_required: bool,
    /// Its namespaces.
    pub namespaces: usize,
    /// Its controllers.
    pub controllers: usize,
    /// Controllers whose hosts have yet to prove who they are.
    pub authenticating: usize,
}

/// A connected queue.
#[derive(Clone, Debug, Serialize)]
pub struct QueueState {
    /// Its identifier; zero is the admin queue.
    pub id: u16,
    /// The core that serves it.
    pub core: usize,
    /// Size in entries.
    pub entries: u32,
    /// The host's address.
    pub peer: String,
    /// Who protects it, if it is over TLS: the `kernel`, or the `process`.
    pub tls: Option<String>,
    /// What it has done.
    pub total: Work,
}

/// The last command of a controller that ended with an error.
#[derive(Clone, Debug, Serialize)]
pub struct LastError {
    /// How it ended.
    pub status: String,
    /// Its queue; zero is the admin queue.
    pub queue: u16,
    /// Its namespace, or zero.
    pub nsid: u32,
    /// Its first logical block, or zero.
    pub lba: u64,
    /// How many seconds ago it ended.
    pub seconds_ago: u64,
}

/// A controller, which is a host that is connected.
#[derive(Clone, Debug, Serialize)]
pub struct ControllerState {
    /// Its identifier.
    pub id: u16,
    /// `connected`; `leaving`: the host is asked to go elsewhere; or `authenticating`: the host has yet to prove who it
    /// is, and could be anybody.
    pub state: &'static str,
    /// NQN of its subsystem.
    pub subsystem: String,
    /// NQN of its host.
    pub host: String,
    /// Identifier of its host.
    pub host_id: String,
    /// Address of its host.
    pub address: IpAddr,
    /// `rdma` or `tcp`.
    pub transport: &'static str,
    /// For how many seconds it has been connected.
    pub connected_seconds: u64,
    /// What its connected queues have done.
    pub total: Work,
    /// What they do each second.
    pub per_second: Work,
    /// How many commands have ended with an error.
    pub errors: u64,
    /// The last of these.
    pub last_error: Option<LastError>,
    /// How long its commands take.
    pub latency: LatencyState,
    /// How it has proved who it is; none when it did not have to.
    pub authentication: Option<AuthenticationState>,
    /// The TLS of its connections; none when they are in clear text.
    pub tls: Option<TlsState>,
    /// Its queues.
    pub queues: Vec<QueueState>,
}

/// How a host has proved who it is.
#[derive(Clone, Debug, Serialize)]
pub struct AuthenticationState {
    /// The hash function.
    pub hash: String,
    /// The group of the key exchange.
    pub group: String,
    /// Whether the host has authenticated the controller as well.
    pub both_ways: bool,
    /// The fingerprint of the key that the host has shown.
    pub fingerprint: String,
    /// `new`, `old`, or `replaced`: it counts no more when the host authenticates again.
    pub key: &'static str,
}

/// The TLS of a controller's connections.
#[derive(Clone, Debug, Serialize)]
pub struct TlsState {
    /// The cipher suite.
    pub suite: String,
    /// Version of the identity by which both ends know the key: 0 or 1.
    pub identity_version: u8,
    /// `generated` by secure channel concatenation, or else which of the configured ones it is: `new`, `old`, or
    /// `replaced`, which counts no more in another connection.
    pub key: &'static str,
}

impl TlsState {
    fn of(channel: &TlsChannel, served: &Served) -> Self {
        Self {
            suite: channel.suite().to_string(),
            identity_version: channel.version(),
            key: if channel.is_generated() { "generated" } else { tls_key_age(channel, served) },
        }
    }
}

/// Where the configuration comes from, and what of it is in no file.
#[derive(Clone, Debug, Serialize)]
pub struct ConfigurationState {
    /// The file.
    pub file: Option<PathBuf>,
    /// When the last change was applied, in seconds since 1970.
    pub applied_at: u64,
    /// How many changes there have been of what is served.
    pub generation: u64,
    /// What was changed by command and is not in the file.
    pub unsaved: Vec<ChangeLine>,
    /// What is logged, if there is a log.
    pub log: Option<LogState>,
}

/// What is logged.
#[derive(Clone, Debug, Serialize)]
pub struct LogState {
    /// The filter that is in force.
    pub filter: String,
    /// Where it comes from: the `configuration`, the environment (`RUST_LOG`) or a `request`.
    pub from: &'static str,
}

/// What a target is doing.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// Version of the program.
    pub version: &'static str,
    /// For how many seconds it has been running.
    pub uptime_seconds: u64,
    /// Where the configuration comes from.
    pub configuration: ConfigurationState,
    /// What the process has given up, by parts.
    pub confinement: Vec<Layer>,
    /// Files and sockets that the process has open, if the system tells.
    pub open_files: Option<usize>,
    /// What each core has in use.
    pub cores: Vec<CoreUsage>,
    /// Where hosts connect.
    pub listeners: Vec<ListenerState>,
    /// What they connect to.
    pub subsystems: Vec<SubsystemState>,
    /// Hosts with shares or limits, connected or not.
    pub hosts: Vec<HostState>,
    /// Who is connected.
    pub controllers: Vec<ControllerState>,
    /// What is served.
    pub namespaces: Vec<ServedNamespaceState>,
    /// In which states access groups are, by each way.
    pub access_groups: Vec<AccessGroupState>,
    /// Calls to files that have not returned for a while: what they are on does not answer.
    pub hanging: Vec<Hanging>,
}

/// The names that there are, for whoever gave none of them.
fn nqns(all: &[Arc<ServedSubsystem>]) -> String {
    all.iter().map(|one| one.nqn().to_string()).collect::<Vec<_>>().join(", ")
}

fn nsids(served: &ServedSubsystem) -> String {
    let all: Vec<String> = served.namespaces().map(|one| one.nsid().to_string()).collect();
    if all.is_empty() { "it has none".to_owned() } else { format!("there are: {}", all.join(", ")) }
}

/// What there is to see of a target that runs.
#[derive(Clone, Debug)]
pub struct View {
    target: Arc<Target>,
    cores: Cores,
    configured: Current,
    started: Time,
    samples: Samples,
}

impl View {
    pub(super) fn new(target: Arc<Target>, cores: Cores, configured: Current) -> Self {
        Self { target, cores, configured, started: clock(), samples: Samples::default() }
    }

    /// Looks at what hosts have done, for the rates of the next [`View::status`].
    pub(super) fn sample(&self) {
        self.samples.take(&self.target.controllers(), &self.target.namespaces());
    }

    /// What is configured now.
    pub fn configured(&self) -> Arc<Configured> {
        self.configured.get()
    }

    pub(super) fn set_configured(&self, configured: Configured) {
        self.configured.set(configured);
    }

    pub(super) fn target(&self) -> &Target {
        &self.target
    }

    pub(super) fn cores(&self) -> &Cores {
        &self.cores
    }

    /// The subsystem with a name, or the only one.
    pub(super) fn subsystem(&self, nqn: Option<&str>) -> Result<Arc<ServedSubsystem>, String> {
        let served = self.target.served();
        match (nqn, served.subsystems()) {
            (None, [only]) => Ok(Arc::clone(only)),
            (None, []) => Err("there is no subsystem".to_owned()),
            (None, all) => {
                Err(format!("there are several subsystems: name one with --subsystem: {}", nqns(all)))
            }
            (Some(nqn), all) => {
                let found = served.find(nqn).cloned();
                found.ok_or_else(|| format!("there is no subsystem {nqn}; there are: {}", nqns(all)))
            }
        }
    }

    /// A namespace with its subsystem.
    pub(super) fn namespace(
        &self,
        nqn: Option<&str>,
        nsid: u32,
    ) -> Result<(Arc<Subsystem>, Arc<Namespace>), String> {
        let served = self.subsystem(nqn)?;
        let namespace = served.namespace(nsid);
        let namespace = namespace
            .ok_or_else(|| format!("there is no namespace {nsid} in {}; {}", served.nqn(), nsids(&served)))?;
        Ok((Arc::clone(served.subsystem()), Arc::clone(namespace)))
    }

    fn configuration(&self) -> ConfigurationState {
        let configured = self.configured();
        let since_1970 = configured.since.duration_since(UNIX_EPOCH).unwrap_or_default();
        ConfigurationState {
            file: configured.file.clone(),
            applied_at: since_1970.as_secs(),
            generation: self.target.served().generation(),
            unsaved: configured.unsaved().iter().map(Change::line).collect(),
            log: log::in_force().map(|now| LogState { filter: now.filter, from: now.from.name() }),
        }
    }

    /// In which states access groups are, by each way.
    pub fn access_groups(&self) -> Vec<AccessGroupState> {
        access::states(&self.target.served())
    }

    /// All namespaces, also those that were removed and are not closed yet.
    pub fn list(&self) -> Vec<NamespaceState> {
        let state =
            |one: Seen| NamespaceState::of(one.subsystem.nqn(), &one.namespace, one.served.as_deref());
        self.all().map(state).collect()
    }

    fn all(&self) -> impl Iterator<Item = Seen> {
        let served = self.target.served();
        let seen = |(served, namespace): (&Arc<ServedSubsystem>, &Arc<Namespace>)| Seen {
            subsystem: Arc::clone(served.subsystem()),
            namespace: Arc::clone(namespace),
            served: Some(Arc::clone(served)),
        };
        let served: Vec<Seen> = served.namespaces().map(seen).collect();
        let removed = self.cores.disk_handles().removed().into_iter();
        let removed = removed.map(|(subsystem, namespace)| Seen { subsystem, namespace, served: None });
        served.into_iter().chain(removed)
    }

    /// What the target is doing now.
    ///
    /// # Errors
    /// When a core does not answer.
    pub fn status(&self) -> Result<Status, String> {
        let cores = self.cores.usage()?;
        let controllers = self.target.controllers();
        let (authenticating, connected) =
            controllers.iter().cloned().partition::<Vec<_>, _>(|one| one.state().awaits_proof);
        let of = [&connected[..], &authenticating[..]];
        let served = self.target.served();
        let rates = self.samples.rates();
        Ok(Status {
            version: env!("CARGO_PKG_VERSION"),
            uptime_seconds: rates.now().since(self.started).as_secs(),
            configuration: self.configuration(),
            confinement: confinement::layers(),
            open_files: limits::open_descriptors(),
            cores,
            listeners: served.listeners().iter().map(|one| listener(one, of)).collect(),
            subsystems: served.subsystems().iter().map(|one| subsystem(one, of)).collect(),
            hosts: served.limited_hosts().map(HostState::from).collect(),
            controllers: controllers.iter().map(|one| controller(one, &served, &rates)).collect(),
            namespaces: self.all().map(|one| one.state(&connected, &rates)).collect(),
            access_groups: access::states(&served),
            hanging: worker::hanging(),
        })
    }
}

/// Who is connected to a listener or subsystem, and who has yet to prove who it is.
type OfBoth<'a> = [&'a [Arc<Controller>]; 2];

fn listener(listener: &Arc<Listener>, of: OfBoth<'_>) -> ListenerState {
    let came_here =
        |one: &&Arc<Controller>| !one.queues().is_empty() && Arc::ptr_eq(&one.way().listener, listener);
    let [controllers, authenticating] = of.map(|all| all.iter().filter(came_here).count());
    ListenerState {
        port_id: listener.port_id(),
        address: listener.address(),
        transport: listener.transport().name(),
        provider: listener.config().provider.name(),
        tls: listener.config().tls.name(),
        controllers,
        authenticating,
    }
}

fn subsystem(served: &ServedSubsystem, of: OfBoth<'_>) -> SubsystemState {
    let subsystem = served.subsystem();
    let [controllers, authenticating] = of.map(|all| users_of(subsystem.nqn(), all));
    let allowed_hosts = match served.access() {
        Access::AnyHost => None,
        Access::Hosts(hosts) => Some(hosts.iter().cloned().collect()),
    };
    SubsystemState {
        nqn: subsystem.nqn().to_owned(),
        serial: subsystem.serial().to_owned(),
        model: subsystem.model().to_owned(),
        allow_any_host: allowed_hosts.is_none(),
        allowed_hosts: allowed_hosts.unwrap_or_default(),
        authentication_required: served.demands().authentication,
        tls_required: served.demands().tls,
        namespaces: served.namespaces().len(),
        controllers,
        authenticating,
    }
}

fn users_of(nqn: &str, controllers: &[Arc<Controller>]) -> usize {
    controllers.iter().filter(|one| one.subsystem().nqn() == nqn).count()
}

/// A namespace that there is.
struct Seen {
    subsystem: Arc<Subsystem>,
    namespace: Arc<Namespace>,
    /// The subsystem as it is served, unless the namespace was removed and is not closed yet.
    served: Option<Arc<ServedSubsystem>>,
}

impl Seen {
    /// Controllers whose hosts see it.
    fn users(&self, controllers: &[Arc<Controller>]) -> usize {
        let Some(served) = &self.served else { return 0 };
        let of_subsystem = controllers.iter().filter(|one| Arc::ptr_eq(one.subsystem(), &self.subsystem));
        of_subsystem.filter(|one| served.shows(self.namespace.nsid(), &one.host().nqn)).count()
    }

    fn state(&self, controllers: &[Arc<Controller>], rates: &Rates) -> ServedNamespaceState {
        let done = self.namespace.io();
        let work = Work::from(done.counters);
        ServedNamespaceState {
            namespace: NamespaceState::of(self.subsystem.nqn(), &self.namespace, self.served.as_deref()),
            controllers: self.users(controllers),
            total: work,
            per_second: rates.of_namespace(&self.namespace, work),
            errors: done.counters.commands_failed,
            latency: LatencyState::of(done.latency.as_deref()),
            limits: NamespaceLimitsState::of(self.served.as_deref(), self.namespace.nsid()),
        }
    }
}

/// The state of a controller in a word.
fn controller_state(awaits_proof: bool, leaving: bool) -> &'static str {
    match (awaits_proof, leaving) {
        (true, _) => "authenticating",
        (false, true) => "leaving",
        (false, false) => "connected",
    }
}

fn controller(controller: &Controller, served: &Served, rates: &Rates) -> ControllerState {
    let queues = controller.queues();
    let queues = queues.iter().map(|queue| QueueState {
        id: queue.id(),
        core: queue.core(),
        entries: queue.entries(),
        peer: queue.peer().to_string(),
        tls: queue.protected_by().map(|by| by.to_string()),
        total: queue.io().counters().into(),
    });
    let done = activity::of_controller(controller);
    let work = Work::from(done.counters);
    let state = controller.state();
    let last_error = state.errors.entries().next().map(|(_, error)| LastError {
        status: error.status.to_string(),
        queue: error.queue_id,
        nsid: error.nsid,
        lba: error.lba,
        seconds_ago: rates.now().since(error.at).as_secs(),
    });
    let errors = state.errors.count();
    let authentication = state.authenticated.as_ref().map(|one| AuthenticationState {
        hash: one.hash.to_string(),
        group: one.group.to_string(),
        both_ways: one.controller_too,
        fingerprint: one.key.to_string(),
        key: served.authentication_of(&controller.host().nqn).map_or("replaced", |keys| keys.age_of(one.key)),
    });
    let state_name = controller_state(state.awaits_proof, ControllerAccess(controller).is_leaving());
    drop(state);
    ControllerState {
        id: controller.id(),
        state: state_name,
        subsystem: controller.subsystem().nqn().to_owned(),
        host: controller.host().nqn.clone(),
        host_id: Uuid::from_bytes(controller.host().id).to_string(),
        address: controller.address(),
        transport: controller.limits().transport.name(),
        connected_seconds: rates.now().since(controller.created()).as_secs(),
        total: work,
        per_second: rates.of_controller(controller, work),
        errors,
        last_error,
        latency: LatencyState::of(done.latency.as_deref()),
        authentication,
        tls: controller.host().tls.as_ref().map(|channel| TlsState::of(channel, served)),
        queues: queues.collect(),
    }
}
