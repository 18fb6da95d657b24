//! What a core has in use, as `status` shows it.

use ringfab_fabric::CopiedBytes;
use ringfab_memory::PoolUsage;
use serde::Serialize;

use super::watch::SilentDisk;
use crate::resources::Resources;
use crate::resources::hosts::PoolKind;
use crate::resources::states::{LatencySplit, State, StateUsage};

/// Buffers of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Buffers {
    /// In use now.
    pub taken: usize,
    /// The most that were ever in use at once.
    pub taken_max: usize,
    /// All.
    pub total: usize,
}

/// Bytes that a core has copied from one place of its memory to another since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Copied {
    /// What came from hosts, out of staging memory.
    pub received: u64,
    /// Into what is sent to hosts: headers and small data.
    pub sent: u64,
    /// From and to the memory namespaces that it has now.
    pub disks: u64,
}

/// What a core has in use now. Without hosts it has its disks, and a buffer of zeroes for them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CoreUsage {
    /// Queues, also those whose Connect has not come and those that are ending.
    pub queues: usize,
    /// Commands outstanding, Asynchronous Event Requests included.
    pub commands: usize,
    /// In which states they are, and how long sampled ones have been there.
    pub states: Vec<StateUsage>,
    /// Where the time of sampled commands went.
    pub latency: LatencySplit,
    /// RDMA queue pairs.
    pub queue_pairs: u64,
    /// Connections of NVMe/TCP, those in handshake included.
    pub tcp_connections: u64,
    /// Memory regions that hosts may reach.
    pub regions: u64,
    /// Disks that are open.
    pub disks: usize,
    /// Those of them that have not answered for a while, with what waits for them.
    pub silent_disks: Vec<SilentDisk>,
    /// Buffers of I/O commands.
    pub io_buffers: Buffers,
    /// Buffers of admin commands.
    pub admin_buffers: Buffers,
    /// Buffers of what compares or copies with data from its capsule, and of fused pairs.
    pub compare_buffers: Buffers,
    /// What it has copied so far, in bytes.
    pub copied_bytes: Copied,
}

impl CoreUsage {
    /// What it has in use now.
    pub(super) fn of(resources: &Resources) -> Self {
        let rnic = resources.transports.rnic.counters();
        let buffers = |line| resources.hosts.usage(line).into();
        Self {
            queues: resources.hosts.queues(),
            commands: resources.states.outstanding() as usize,
            states: resources.states.usage(),
            latency: resources.states.split(),
            queue_pairs: rnic.queue_pairs,
            tcp_connections: resources.transports.tcp.counters().connections,
            regions: rnic.regions,
            disks: resources.disks.iter().count(),
            silent_disks: SilentDisk::all(&resources.disks, resources.reactor.now()),
            io_buffers: buffers(PoolKind::Io),
            admin_buffers: buffers(PoolKind::Admin),
            compare_buffers: buffers(PoolKind::Compare),
            copied_bytes: Copied::of(resources),
        }
    }

    /// How many commands are in a state.
    pub fn commands_in(&self, state: State) -> u64 {
        self.states.iter().filter(|usage| usage.state == state).map(|usage| u64::from(usage.commands)).sum()
    }
}

impl Copied {
    fn of(resources: &Resources) -> Self {
        let CopiedBytes { received, sent } = resources.transports.copied_bytes();
        let disks: u64 = resources.disks.iter().map(|open| open.disk.copied_bytes()).sum();
        Self { received, sent, disks: disks + resources.shared.borrowed_pages().copied_bytes() }
    }
}

impl From<PoolUsage> for Buffers {
    fn from(PoolUsage { taken, taken_max, total }: PoolUsage) -> Self {
        Self { taken, taken_max, total }
    }
}
