//! What is known of one queue outside the core that serves it.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use ringfab_fabric::tcp::ProtectedBy;
use ringfab_spec::log::ControllerInstance;

use super::io_record::IoRecord;

/// A connected queue. The data path counts in it without a lock; the control plane reads.
#[derive(Debug)]
pub struct QueueRecord {
    id: u16,
    entries: u32,
    flow_control: bool,
    core: usize,
    listener: SocketAddr,
    peer: SocketAddr,
    host_id: [u8; 16],
    protected_by: Option<ProtectedBy>,
    traffic: AtomicBool,
    unfinished: AtomicBool,
    /// Of its controller, once it has joined that.
    instance: OnceLock<ControllerInstance>,
    /// Positions of the disks that still work for it, once its connection has ended.
    left_on: Mutex<Option<BTreeSet<usize>>>,
    io: IoRecord,
}

/// The values of a [`QueueRecord`] that do not change.
#[derive(Clone, Copy, Debug)]
pub struct QueueParameters {
    /// Queue identifier; zero is the admin queue.
    pub id: u16,
    /// Size in entries.
    pub entries: u32,
    /// Whether the host wants SQHD; without it completions carry FFFFh.
    pub flow_control: bool,
    /// The core that serves it.
    pub core: usize,
    /// The address on which the host reached us.
    pub listener: SocketAddr,
    /// The host's address.
    pub peer: SocketAddr,
    /// The host's identifier.
    pub host_id: [u8; 16],
    /// Who protects it, if it is over TLS.
    pub protected_by: Option<ProtectedBy>,
}

impl QueueRecord {
    /// A record with all counters at zero.
    pub fn new(parameters: QueueParameters) -> Self {
        let QueueParameters { id, entries, flow_control, core, listener, peer, host_id, protected_by } =
            parameters;
        Self {
            id,
            entries,
            flow_control,
            core,
            listener,
            peer,
            host_id,
            protected_by,
            traffic: AtomicBool::new(false),
            unfinished: AtomicBool::new(false),
            instance: OnceLock::new(),
            left_on: Mutex::default(),
            io: IoRecord::default(),
        }
    }

    /// Queue identifier; zero is the admin queue.
    pub fn id(&self) -> u16 {
        self.id
    }

    /// Size in entries.
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// Whether completions carry the submission queue head; when not, SQHD is FFFFh.
    pub fn flow_control(&self) -> bool {
        self.flow_control
    }

    /// The core that serves it.
    pub fn core(&self) -> usize {
        self.core
    }

    /// The address on which the host reached us.
    pub fn listener(&self) -> SocketAddr {
        self.listener
    }

    /// The host's address.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Who protects it, if it is over TLS.
    pub fn protected_by(&self) -> Option<ProtectedBy> {
        self.protected_by
    }

    /// What it has done.
    #[inline(always)]
    pub fn io(&self) -> &IoRecord {
        &self.io
    }

    /// A command arrived: enough to keep the controller alive (traffic based keep-alive).
    pub fn note_traffic(&self) {
        // Only the first command after a look stores, so that the line stays shared while a queue is busy.
        if !self.traffic.load(Ordering::Relaxed) {
            self.traffic.store(true, Ordering::Relaxed);
        }
    }

    /// It belongs to this instance of its controller.
    pub(crate) fn join(&self, instance: ControllerInstance) {
        self.instance.get_or_init(|| instance);
    }

    /// Whether it belongs to this instance of a controller.
    pub(crate) fn is_of(&self, instance: ControllerInstance) -> bool {
        self.instance.get() == Some(&instance)
    }

    /// Whether it takes no more commands while some of them still run: they may change the disk, and their host
    /// may not know of it.
    pub(crate) fn set_unfinished(&self, unfinished: bool) {
        self.unfinished.store(unfinished, Ordering::Release);
    }

    /// Whether that is so.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.unfinished.load(Ordering::Acquire)
    }

    /// Whether it is what a host with this identifier has left behind, with commands that still run.
    pub(crate) fn is_orphan_of(&self, host_id: &[u8; 16]) -> bool {
        self.is_unfinished() && self.host_id == *host_id
    }

    /// Its connection has ended, and these disks still work for it.
    pub(crate) fn set_orphaned_on(&self, disks: BTreeSet<usize>) {
        *self.left_on.lock().unwrap_or_else(PoisonError::into_inner) = Some(disks);
    }

    /// Whether a host with this identifier has left it behind with commands that a disk still works on. While its
    /// connection is ending, it may be any disk.
    pub(crate) fn is_orphaned_on(&self, host_id: &[u8; 16], disk: usize) -> bool {
        let left_on = || self.left_on.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_orphan_of(host_id) && left_on().as_ref().is_none_or(|disks| disks.contains(&disk))
    }

    /// Whether a command came since the last look.
    pub(crate) fn take_traffic(&self) -> bool {
        self.traffic.swap(false, Ordering::Relaxed)
    }
}
