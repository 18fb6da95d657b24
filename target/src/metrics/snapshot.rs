//! What a target is doing, at one moment.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use ringfab_process::limits;
use ringfab_spec::log::AnaState;

use crate::confinement;
use crate::controller::Controller;
use crate::core::{CoreUsage, Cores};
use crate::model::host_account::HostUsage;
use crate::model::namespace::Health;
use crate::model::{IoSum, Namespace, Served, ServedSubsystem, Subsystem};
use crate::target::Target;
use crate::worker;

/// For how long a snapshot is good enough for whoever asks next, so that asking often costs the cores nothing.
const FRESH: Duration = Duration::from_millis(500);

/// How far apart two snapshots are at least from which rates are taken.
const RATE_INTERVAL: Duration = Duration::from_secs(2);

/// How long a core may take to answer. What is known without it is shown then.
const CORE_LIMIT: Duration = Duration::from_secs(1);

/// What a target is doing.
#[derive(Debug)]
pub struct Snapshot {
    /// When it was taken.
    pub at: Instant,
    /// When the process started.
    pub started: SystemTime,
    /// How often what is served has changed.
    pub generation: u64,
    /// Files and sockets that the process has open, if the system tells.
    pub open_files: Option<usize>,
    /// The parts of the confinement that do not wholly hold, in words.
    pub unconfined: Vec<String>,
    /// Calls to files that do not return.
    pub hanging: usize,
    /// What each core has in use; none of a core that does not answer.
    pub cores: Vec<Option<CoreUsage>>,
    /// What is served, and who uses it.
    pub subsystems: Vec<SubsystemSeen>,
}

/// A subsystem.
#[derive(Debug)]
pub struct SubsystemSeen {
    /// NVMe Qualified Name.
    pub nqn: String,
    /// Controllers that are connected.
    pub controllers: usize,
    /// Others, whose hosts have yet to prove who they are.
    pub controllers_authenticating: usize,
    /// Those that are connected over TLS.
    pub controllers_over_tls: usize,
    /// Those of them whose host has proved who it is.
    pub controllers_authenticated: usize,
    /// Its access groups, by each way.
    pub access_groups: Vec<AccessGroupSeen>,
    /// Its namespaces.
    pub namespaces: Vec<NamespaceSeen>,
    /// Its hosts, those among them that were connected.
    pub hosts: Vec<HostUsage>,
    /// I/O queues that are connected.
    pub queues: Vec<QueueSeen>,
}

/// An access group by one way.
#[derive(Debug)]
pub struct AccessGroupSeen {
    /// Its identifier.
    pub group: u32,
    /// The address of the way.
    pub way: SocketAddr,
    /// Its state.
    pub state: AnaState,
}

/// A namespace.
#[derive(Debug)]
pub struct NamespaceSeen {
    /// Namespace identifier.
    pub nsid: u32,
    /// What stands behind it.
    pub source: String,
    /// Universally unique identifier.
    pub uuid: String,
    /// How it is doing.
    pub health: Health,
    /// Whether it can be read and written.
    pub ready: bool,
    /// Size in bytes, whole blocks only.
    pub bytes: u64,
    /// Errors of its disk.
    pub media_errors: u64,
    /// What was done with it.
    pub io: IoSum,
}

/// An I/O queue.
#[derive(Debug)]
pub struct QueueSeen {
    /// NQN of its host.
    pub host: String,
    /// Identifier of its controller.
    pub controller: u16,
    /// Queue identifier.
    pub id: u16,
    /// The core that serves it.
    pub core: usize,
    /// The host's address.
    pub peer: String,
    /// How it is protected, and what its host has proved; empty when nothing is.
    pub security: String,
    /// What it has done.
    pub io: IoSum,
}

impl AccessGroupSeen {
    fn all_of(served: &Served, subsystem: &ServedSubsystem) -> Vec<Self> {
        let by = |group| {
            let ways = served.listeners().iter().flat_map(move |one| subsystem.ways(one, group));
            ways.map(move |way| Self { group, way: way.local, state: subsystem.access_state(group, &way) })
        };
        subsystem.groups().ids().into_iter().flat_map(by).collect()
    }
}

impl NamespaceSeen {
    fn of(namespace: &Namespace) -> Self {
        Self {
            nsid: namespace.nsid(),
            source: namespace.source(),
            uuid: namespace.uuid().to_string(),
            health: namespace.health(),
            ready: namespace.is_ready(),
            bytes: namespace.blocks() << namespace.block_shift(),
            media_errors: namespace.media_errors(),
            io: namespace.io(),
        }
    }
}

impl QueueSeen {
    fn all_of(controller: &Controller) -> Vec<Self> {
        let security = security(controller);
        let seen = |queue: Arc<crate::model::QueueRecord>| {
            let mut io = IoSum::default();
            io.add(queue.io());
            Self {
                host: controller.host().nqn.clone(),
                controller: controller.id(),
                id: queue.id(),
                core: queue.core(),
                peer: queue.peer().to_string(),
                security: security.clone(),
                io,
            }
        };
        controller.queues().into_iter().filter(|queue| queue.id() != 0).map(seen).collect()
    }
}

fn security(controller: &Controller) -> String {
    let tls = controller.host().tls.as_ref().map(|tls| tls.suite().to_string());
    let authenticated = controller.state().authenticated.as_ref().map(|one| one.controller_too);
    let authenticated = authenticated.map(|both| if both { "both ends" } else { "host" });
    let authenticated = authenticated.map(|who| format!("{who} authenticated"));
    tls.into_iter().chain(authenticated).collect::<Vec<_>>().join(", ")
}

impl Snapshot {
    fn take(target: &Target, cores: &Cores, started: SystemTime) -> Self {
        let served = target.served();
        let (authenticating, controllers): (Vec<_>, Vec<_>) =
            target.controllers().into_iter().partition(|one| one.state().awaits_proof);
        let subsystems = served.subsystems().iter().map(|one| {
            let subsystem: &Arc<Subsystem> = one.subsystem();
            let is_own = |one: &&Arc<Controller>| Arc::ptr_eq(one.subsystem(), subsystem);
            let own = controllers.iter().filter(is_own);
            SubsystemSeen {
                nqn: subsystem.nqn().to_owned(),
                controllers: own.clone().count(),
                controllers_authenticating: authenticating.iter().filter(is_own).count(),
                controllers_over_tls: own.clone().filter(|one| one.host().tls.is_some()).count(),
                controllers_authenticated: own
                    .clone()
                    .filter(|one| one.state().authenticated.is_some())
                    .count(),
                access_groups: AccessGroupSeen::all_of(&served, one),
                namespaces: one.namespaces().map(|namespace| NamespaceSeen::of(namespace)).collect(),
                hosts: subsystem.hosts(),
                queues: own.flat_map(|controller| QueueSeen::all_of(controller)).collect(),
            }
        });
        let subsystems = subsystems.collect();
        Self {
            at: Instant::now(),
            started,
            generation: served.generation(),
            open_files: limits::open_descriptors(),
            unconfined: confinement::incomplete(),
            hanging: worker::hanging().len(),
            cores: cores.usage_within(CORE_LIMIT),
            subsystems,
        }
    }

    /// The namespace with this name.
    pub fn namespace(&self, subsystem: &str, nsid: u32) -> Option<&NamespaceSeen> {
        self.subsystem(subsystem)?.namespaces.iter().find(|one| one.nsid == nsid)
    }

    /// The subsystem with this name.
    pub fn subsystem(&self, nqn: &str) -> Option<&SubsystemSeen> {
        self.subsystems.iter().find(|one| one.nqn == nqn)
    }
}

/// The newest snapshot, and one before it for rates.
#[derive(Clone, Debug)]
pub struct Pair {
    /// The newest.
    pub now: Arc<Snapshot>,
    /// An earlier one, if there is one.
    pub before: Option<Arc<Snapshot>>,
}

/// Takes snapshots for all who ask.
#[derive(Debug)]
pub struct Snapshots {
    target: Arc<Target>,
    cores: Cores,
    started: SystemTime,
    /// The newest is the last. The first is the newest of those that are old enough for rates, if there is one.
    taken: Mutex<VecDeque<Arc<Snapshot>>>,
}

impl Snapshots {
    /// Of a target that has just started.
    pub fn new(target: Arc<Target>, cores: Cores) -> Self {
        Self { target, cores, started: SystemTime::now(), taken: Mutex::default() }
    }

    /// What the target is doing now, or was a moment ago.
    pub fn get(&self) -> Pair {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = taken.back().filter(|last| last.at.elapsed() < FRESH).cloned();
        let now = fresh.unwrap_or_else(|| {
            let now = Arc::new(Snapshot::take(&self.target, &self.cores, self.started));
            taken.push_back(Arc::clone(&now));
            now
        });
        let old_enough = |one: &Arc<Snapshot>| now.at.duration_since(one.at) >= RATE_INTERVAL;
        while taken.get(1).is_some_and(old_enough) {
            taken.pop_front();
        }
        let before = taken.front().filter(|first| old_enough(first)).cloned();
        Pair { now, before }
    }
}
