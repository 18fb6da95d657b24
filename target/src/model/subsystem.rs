//! A subsystem: its name, and the queues that use it. Who may use it and its namespaces change: see
//! [`ServedSubsystem`](super::ServedSubsystem).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringfab_reactor::Time;
use ringfab_spec::log::ControllerInstance;
use ringfab_spec::nqn::DISCOVERY_NQN;

use super::host_account::{HostAccounts, HostUsage};
use super::io_record::{IoCounters, IoSum};
use super::namespace::Index;
use super::protections::{Protections, Switches};
use super::queue_record::QueueRecord;

/// What stays the same of a subsystem as long as it is served.
#[derive(Debug)]
pub struct Subsystem {
    /// None of the discovery subsystem.
    index: Option<Index>,
    nqn: String,
    serial: String,
    model: String,
    queues: Mutex<Queues>,
    /// Errors of the disks of namespaces that were removed.
    media_errors_before: AtomicU64,
    protections: Switches,
}

/// The queues of a subsystem's controllers: those that run, and the sum of those that have ended.
#[derive(Debug, Default)]
struct Queues {
    live: Vec<LiveQueue>,
    ended: IoCounters,
    hosts: HostAccounts,
}

/// A queue, and under which name it is counted.
#[derive(Debug)]
struct LiveQueue {
    record: Arc<QueueRecord>,
    host: Option<String>,
}

impl LiveQueue {
    fn done(&self) -> IoSum {
        let mut sum = IoSum::default();
        sum.add(self.record.io());
        sum
    }
}

impl Subsystem {
    /// A subsystem for I/O; `index` is its position in the cores' tables.
    pub fn new(index: Index, nqn: String, serial: String, model: String) -> Self {
        Self {
            index: Some(index),
            nqn,
            serial,
            model,
            queues: Mutex::default(),
            media_errors_before: AtomicU64::new(0),
            protections: Switches::default(),
        }
    }

    /// The discovery subsystem, open to every host, with a name of its own or the one that all have.
    pub fn discovery(nqn: Option<String>) -> Self {
        Self {
            index: None,
            nqn: nqn.unwrap_or_else(|| DISCOVERY_NQN.to_owned()),
            serial: "discovery".to_owned(),
            model: "Ringfab".to_owned(),
            queues: Mutex::default(),
            media_errors_before: AtomicU64::new(0),
            protections: Switches::default(),
        }
    }

    /// Position in the cores' tables; that of the discovery subsystem is in none of them.
    pub fn index(&self) -> usize {
        self.index.as_ref().map_or(usize::MAX, Index::value)
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
        self.index.is_none()
    }

    /// Errors of the disks of namespaces that it had and has no more.
    pub fn media_errors_before(&self) -> u64 {
        self.media_errors_before.load(Ordering::Relaxed)
    }

    /// A namespace with so many errors of its disk was removed.
    pub(crate) fn keep_media_errors(&self, errors: u64) {
        self.media_errors_before.fetch_add(errors, Ordering::Relaxed);
    }

    /// What all queues of all its controllers have done since the start.
    pub fn counters(&self) -> IoCounters {
        let queues = self.queues();
        let mut sum = queues.ended;
        for queue in &queues.live {
            sum += queue.record.io().counters();
        }
        sum
    }

    /// What each host has done since the start, as far as its name is remembered.
    pub fn hosts(&self) -> Vec<HostUsage> {
        let queues = self.queues();
        queues.hosts.usage(queues.live.iter().map(|queue| (queue.host.as_deref(), queue.done())))
    }

    /// A queue of a host has connected.
    pub(crate) fn queue_connected(&self, record: Arc<QueueRecord>, host: &str, now: Time) {
        let mut queues = self.queues();
        let host = queues.hosts.joined(host, now);
        queues.live.push(LiveQueue { record, host });
    }

    /// Whether a host has left a queue behind, of any of its controllers, with commands that still run.
    pub(crate) fn has_orphans(&self, host_id: &[u8; 16]) -> bool {
        let waits = self.protections().waits_for_disks;
        waits && self.queues().live.iter().any(|queue| queue.record.is_orphan_of(host_id))
    }

    /// The same for the commands that one disk works on, by its position.
    pub(crate) fn has_orphans_on(&self, host_id: &[u8; 16], disk: usize) -> bool {
        self.queues().live.iter().any(|queue| queue.record.is_orphaned_on(host_id, disk))
    }

    /// Whether an instance of a controller has a queue: one that is connected, or for which a disk still works.
    pub(crate) fn has_queues_of(&self, instance: ControllerInstance) -> bool {
        let waits = self.protections().waits_for_disks;
        let counts = |record: &QueueRecord| waits || !record.is_unfinished();
        self.queues().live.iter().any(|queue| queue.record.is_of(instance) && counts(&queue.record))
    }

    /// What protects data when a host loses a path: all of it, but in tests.
    pub(crate) fn protections(&self) -> Protections {
        self.protections.get()
    }

    /// Switches protections off, for a test of what they prevent.
    #[doc(hidden)]
    pub fn set_protections(&self, protections: Protections) {
        self.protections.set(protections);
    }

    /// Nothing of a queue is left: its connection is gone, and no disk works for it.
    pub(crate) fn queue_ended(&self, queue: &Arc<QueueRecord>) {
        let mut queues = self.queues();
        if let Some(index) = queues.live.iter().position(|live| Arc::ptr_eq(&live.record, queue)) {
            let ended = queues.live.swap_remove(index);
            let done = ended.done();
            queues.ended += done.counters;
            queues.hosts.left(ended.host.as_deref(), &done);
        }
    }

    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
