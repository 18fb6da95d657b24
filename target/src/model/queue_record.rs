//! What is known of one queue outside the core that serves it.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

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
    traffic: AtomicBool,
    unfinished: AtomicBool,
    /// Positions of the disks that still work for it after its connection has ended.
    left_on: Mutex<BTreeSet<usize>>,
    commands_read: AtomicU64,
    commands_write: AtomicU64,
    commands_other: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
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
}

/// What a queue has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounters {
    /// Read commands that completed, Compare and Verify included.
    pub commands_read: u64,
    /// Write commands that completed.
    pub commands_write: u64,
    /// All other commands.
    pub commands_other: u64,
    /// Bytes that went to the host.
    pub bytes_read: u64,
    /// Bytes that came from the host.
    pub bytes_written: u64,
}

impl QueueRecord {
    /// A record with all counters at zero.
    pub fn new(parameters: QueueParameters) -> Self {
        let QueueParameters { id, entries, flow_control, core, listener, peer, host_id } = parameters;
        Self {
            id,
            entries,
            flow_control,
            core,
            listener,
            peer,
            host_id,
            traffic: AtomicBool::new(false),
            unfinished: AtomicBool::new(false),
            left_on: Mutex::default(),
            commands_read: AtomicU64::new(0),
            commands_write: AtomicU64::new(0),
            commands_other: AtomicU64::new(0),
            bytes_read: AtomicU64::new(0),
            bytes_written: AtomicU64::new(0),
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

    /// A read (or Compare, or Verify) of `bytes` completed.
    pub fn note_read(&self, bytes: u64) {
        add(&self.commands_read, 1);
        add(&self.bytes_read, bytes);
        self.note_traffic();
    }

    /// A write of `bytes` completed.
    pub fn note_write(&self, bytes: u64) {
        add(&self.commands_write, 1);
        add(&self.bytes_written, bytes);
        self.note_traffic();
    }

    /// Any other command completed.
    pub fn note_other(&self) {
        add(&self.commands_other, 1);
        self.note_traffic();
    }

    /// A command arrived: enough to keep the controller alive (traffic based keep-alive).
    pub fn note_traffic(&self) {
        // Only the first command after a look stores, so that the line stays shared while a queue is busy.
        if !self.traffic.load(Ordering::Relaxed) {
            self.traffic.store(true, Ordering::Relaxed);
        }
    }

    /// What it has done.
    pub fn counters(&self) -> QueueCounters {
        QueueCounters {
            commands_read: self.commands_read.load(Ordering::Relaxed),
            commands_write: self.commands_write.load(Ordering::Relaxed),
            commands_other: self.commands_other.load(Ordering::Relaxed),
            bytes_read: self.bytes_read.load(Ordering::Relaxed),
            bytes_written: self.bytes_written.load(Ordering::Relaxed),
        }
    }

    /// Whether it takes no more commands while some of them still run: they may change the disk, and their host
    /// may not know of it.
    pub(crate) fn set_unfinished(&self, unfinished: bool) {
        self.unfinished.store(unfinished, Ordering::Release);
    }

    /// Whether it is what a host with this identifier has left behind, with commands that still run.
    pub(crate) fn is_orphan_of(&self, host_id: &[u8; 16]) -> bool {
        self.unfinished.load(Ordering::Acquire) && self.host_id == *host_id
    }

    /// Its connection has ended, and these disks still work for it.
    pub(crate) fn set_orphaned_on(&self, disks: BTreeSet<usize>) {
        *self.left_on.lock().unwrap_or_else(PoisonError::into_inner) = disks;
    }

    /// Whether a host with this identifier has left it behind with commands that a disk still works on.
    pub(crate) fn is_orphaned_on(&self, host_id: &[u8; 16], disk: usize) -> bool {
        self.is_orphan_of(host_id)
            && self.left_on.lock().unwrap_or_else(PoisonError::into_inner).contains(&disk)
    }

    /// Whether a command came since the last look.
    pub(crate) fn take_traffic(&self) -> bool {
        self.traffic.swap(false, Ordering::Relaxed)
    }
}

/// One core writes a counter, so that a load and a store are enough and cheaper than an atomic addition.
fn add(counter: &AtomicU64, value: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(value), Ordering::Relaxed);
}

impl std::ops::AddAssign for QueueCounters {
    fn add_assign(&mut self, other: Self) {
        self.commands_read += other.commands_read;
        self.commands_write += other.commands_write;
        self.commands_other += other.commands_other;
        self.bytes_read += other.bytes_read;
        self.bytes_written += other.bytes_written;
    }
}
