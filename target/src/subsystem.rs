//! A subsystem: its name, who may use it, and its namespaces.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::namespace::Namespace;
use crate::queue_record::{QueueCounters, QueueRecord};

/// The largest namespace identifier; small enough for a table that needs no search on the data path.
pub const NSID_MAX: u32 = 1024;

pub use ringfab_spec::nqn::DISCOVERY_NQN;

/// The value of a namespace identifier that means all of them.
pub const NSID_BROADCAST: u32 = u32::MAX;

/// Which hosts a subsystem lets in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// Every host, said explicitly in the configuration.
    AnyHost,
    /// These host NQNs.
    Hosts(BTreeSet<String>),
}

/// A subsystem.
#[derive(Debug)]
pub struct Subsystem {
    nqn: String,
    serial: String,
    model: String,
    access: Access,
    discovery: bool,
    /// By identifier minus one.
    namespaces: Vec<Option<Arc<Namespace>>>,
    queues: Mutex<Queues>,
}

/// The queues of a subsystem's controllers: those that run, and the sum of those that have ended.
#[derive(Debug, Default)]
struct Queues {
    live: Vec<Arc<QueueRecord>>,
    ended: QueueCounters,
}

impl Subsystem {
    /// A subsystem for I/O.
    pub fn new(
        nqn: String,
        serial: String,
        model: String,
        access: Access,
        namespaces: &[Arc<Namespace>],
    ) -> Self {
        Self {
            nqn,
            serial,
            model,
            access,
            discovery: false,
            namespaces: table(namespaces),
            queues: Mutex::default(),
        }
    }

    /// The discovery subsystem, open to every host.
    pub fn discovery() -> Self {
        Self {
            nqn: DISCOVERY_NQN.to_owned(),
            serial: "discovery".to_owned(),
            model: "Ringfab".to_owned(),
            access: Access::AnyHost,
            discovery: true,
            namespaces: Vec::new(),
            queues: Mutex::default(),
        }
    }

    /// NVMe Qualified Name.
    pub fn nqn(&self) -> &str {
        &self.nqn
    }

    /// Serial number, at most 20 characters.
    pub fn serial(&self) -> &str {
        &self.serial
    }

    /// Model number, at most 40 characters.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// Whether it is the discovery subsystem.
    pub fn is_discovery(&self) -> bool {
        self.discovery
    }

    /// Whether a host may connect to it and see it by discovery.
    pub fn allows(&self, host_nqn: &str) -> bool {
        match &self.access {
            Access::AnyHost => true,
            Access::Hosts(hosts) => hosts.contains(host_nqn),
        }
    }

    /// The namespace with an identifier, if it is active.
    #[inline]
    pub fn namespace(&self, nsid: u32) -> Option<&Arc<Namespace>> {
        let index = usize::try_from(nsid.checked_sub(1)?).ok()?;
        self.namespaces.get(index)?.as_ref()
    }

    /// All active namespaces, by ascending identifier.
    pub fn namespaces(&self) -> impl Iterator<Item = &Arc<Namespace>> {
        self.namespaces.iter().flatten()
    }

    /// What all queues of all its controllers have done since the start.
    pub fn counters(&self) -> QueueCounters {
        let queues = self.queues();
        let mut sum = queues.ended;
        for queue in &queues.live {
            sum += queue.counters();
        }
        sum
    }

    pub(crate) fn queue_connected(&self, queue: Arc<QueueRecord>) {
        self.queues().live.push(queue);
    }

    /// Whether a host has left a queue behind, of any of its controllers, with commands that still run.
    pub(crate) fn has_left_behind(&self, host_id: &[u8; 16]) -> bool {
        self.queues().live.iter().any(|queue| queue.is_left_by(host_id))
    }

    pub(crate) fn queue_ended(&self, queue: &Arc<QueueRecord>) {
        let mut queues = self.queues();
        if let Some(index) = queues.live.iter().position(|live| Arc::ptr_eq(live, queue)) {
            queues.live.swap_remove(index);
            queues.ended += queue.counters();
        }
    }

    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn table(namespaces: &[Arc<Namespace>]) -> Vec<Option<Arc<Namespace>>> {
    let mut table = Vec::new();
    for namespace in namespaces {
        assert!(namespace.nsid() <= NSID_MAX, "the configuration bounds the identifiers");
        let index = namespace.nsid() as usize - 1;
        if table.len() <= index {
            table.resize(index + 1, None);
        }
        table[index] = Some(Arc::clone(namespace));
    }
    table
}
