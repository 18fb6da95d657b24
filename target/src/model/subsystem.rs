//! A subsystem: its name, who may use it, and its namespaces.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use ringfab_spec::nqn::DISCOVERY_NQN;

use super::Namespace;
use super::queue_record::{QueueCounters, QueueRecord};
use crate::config::Access;

/// A subsystem, as the control side knows it. The cores have tables of their own of its namespaces.
#[derive(Debug)]
pub struct Subsystem {
    index: usize,
    nqn: String,
    serial: String,
    model: String,
    access: Access,
    discovery: bool,
    namespaces: RwLock<BTreeMap<u32, Arc<Namespace>>>,
    queues: Mutex<Queues>,
    /// Errors of the disks of namespaces that were removed.
    media_errors_before: AtomicU64,
}

/// The queues of a subsystem's controllers: those that run, and the sum of those that have ended.
#[derive(Debug, Default)]
struct Queues {
    live: Vec<Arc<QueueRecord>>,
    ended: QueueCounters,
}

impl Subsystem {
    /// A subsystem for I/O; `index` is its position in [`crate::Target::subsystems`].
    pub fn new(
        index: usize,
        nqn: String,
        serial: String,
        model: String,
        access: Access,
        namespaces: &[Arc<Namespace>],
    ) -> Self {
        let namespaces = namespaces.iter().map(|one| (one.nsid(), Arc::clone(one))).collect();
        Self {
            index,
            nqn,
            serial,
            model,
            access,
            discovery: false,
            namespaces: RwLock::new(namespaces),
            queues: Mutex::default(),
            media_errors_before: AtomicU64::new(0),
        }
    }

    /// The discovery subsystem, open to every host.
    pub fn discovery() -> Self {
        Self {
            index: usize::MAX,
            nqn: DISCOVERY_NQN.to_owned(),
            serial: "discovery".to_owned(),
            model: "Ringfab".to_owned(),
            access: Access::AnyHost,
            discovery: true,
            namespaces: RwLock::default(),
            queues: Mutex::default(),
            media_errors_before: AtomicU64::new(0),
        }
    }

    /// Position in [`crate::Target::subsystems`], for tables with one entry per subsystem; the discovery subsystem has
    /// none.
    pub fn index(&self) -> usize {
        self.index
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
    pub fn namespace(&self, nsid: u32) -> Option<Arc<Namespace>> {
        self.namespaces.read().unwrap_or_else(PoisonError::into_inner).get(&nsid).cloned()
    }

    /// All active namespaces, by ascending identifier.
    pub fn namespaces(&self) -> Vec<Arc<Namespace>> {
        self.namespaces.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// A namespace is active from now on: every core serves it already.
    pub(crate) fn add(&self, namespace: &Arc<Namespace>) {
        let mut namespaces = self.namespaces.write().unwrap_or_else(PoisonError::into_inner);
        namespaces.insert(namespace.nsid(), Arc::clone(namespace));
    }

    /// A namespace is not active any more.
    pub(crate) fn remove(&self, nsid: u32) {
        let removed = self.namespaces.write().unwrap_or_else(PoisonError::into_inner).remove(&nsid);
        let errors = removed.map_or(0, |namespace| namespace.media_errors());
        self.media_errors_before.fetch_add(errors, Ordering::Relaxed);
    }

    /// Errors of its disks since the start, also of those that are gone.
    pub fn media_errors(&self) -> u64 {
        let now: u64 = self.namespaces().iter().map(|namespace| namespace.media_errors()).sum();
        self.media_errors_before.load(Ordering::Relaxed) + now
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

    /// The same for the commands that one disk works on, by its position.
    pub(crate) fn has_left_on(&self, host_id: &[u8; 16], disk: usize) -> bool {
        self.queues().live.iter().any(|queue| queue.is_left_on(host_id, disk))
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
