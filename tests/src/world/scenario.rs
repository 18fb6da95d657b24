//! What a seed makes of a world: its sizes, its manners, and how bad it gets.

use std::ops::Range;
use std::time::Duration;

use ringfab_auth::Group;
use ringfab_initiator::ReconnectPolicy;
use ringfab_memory::ClassLayout;
use ringfab_reactor::sim::{DiskFaults, LinkFaults};

use super::content::{Random, SECTOR_BYTES};

/// The parameters of one world.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Where they come from.
    pub seed: u64,
    /// Hosts, each with sectors of its own.
    pub clients: u64,
    /// Who takes part beside these hosts, and what hosts and targets are made of.
    pub machines: Machines,
    /// Bytes of a logical block.
    pub block_bytes: u32,
    /// Sectors of each host.
    pub sectors: u64,
    /// Commands that each host submits.
    pub commands: u64,
    /// Commands that each host has in flight.
    pub in_flight: usize,
    /// I/O queues and their depth.
    pub queues: u16,
    /// Commands outstanding on each queue.
    pub depth: u16,
    /// The links while nothing is wrong with them.
    pub link: LinkFaults,
    /// The disk while nothing is wrong with it.
    pub disk: DiskFaults,
    /// The target's buffers.
    pub target_pool: Vec<ClassLayout>,
    /// How hosts come back.
    pub reconnect: ReconnectPolicy,
    /// What goes wrong.
    pub incidents: Incidents,
    /// The mean time between two incidents.
    pub calm: Duration,
    /// NVMe/TCP instead of NVMe/RDMA.
    pub tcp: bool,
    /// Header and data digests, over TCP.
    pub digests: [bool; 2],
    /// The group with which hosts and the target authenticate each other, if they do.
    pub authentication: Option<Group>,
    /// Whether connections are over TLS, and by which key. Over TCP.
    pub tls: Tls,
    /// What is switched on.
    pub protections: Protections,
}

/// The targets, cores and engines of a world, and the rivals.
#[derive(Clone, Copy, Debug)]
pub struct Machines {
    /// Targets, which have the same disk. Each host uses one of them.
    pub targets: u64,
    /// Cores of each target.
    pub cores: usize,
    /// Engines of each host, which share a controller.
    pub engines: u16,
    /// Addresses of each target, each with a link of its own. Hosts use all of them.
    pub ways: usize,
    /// Hosts that change the same blocks by Compare and Write, in clear text.
    pub rivals: u64,
    /// The longest that a message from one core or engine to another is on its way.
    pub mailbox_delay: Duration,
}

impl Machines {
    /// One target of one core and one address, hosts with one engine each, and no rivals.
    pub const FEW: Self =
        Self { targets: 1, cores: 1, engines: 1, ways: 1, rivals: 0, mailbox_delay: Duration::ZERO };
}

/// What protects data when paths are lost: each may be switched off, and then something has to go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protections {
    /// Hosts hold what changes blocks until the lost controller is over.
    pub holding: bool,
    /// A target that is asked to reset a controller ends its connections.
    pub ending_connections: bool,
    /// It says that a controller is over when no disk works for it any more.
    pub waiting_for_disks: bool,
}

impl Protections {
    /// All of them.
    pub const ALL: Self = Self { holding: true, ending_connections: true, waiting_for_disks: true };
}

/// By which key connections are over TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tls {
    /// They are in clear text.
    Off,
    /// By one that both ends are configured with.
    Configured,
    /// By one that authentication makes, in a group.
    Generated,
}

/// What goes wrong in a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incidents {
    /// Everything.
    All,
    /// Connections are cut, and nothing else.
    Cuts,
    /// Connections are cut, and the target's keys of hosts are exchanged for a while.
    CutsAndKeys,
    /// Ways are cut, or lost for a while, in both directions or in one, and paths are removed and added.
    Ways,
    /// The disk is that of an NBD server, which is killed and loses power; so does the target, and each loses the
    /// other.
    Export,
}

impl Scenario {
    /// The scenario of a seed.
    pub fn new(seed: u64) -> Self {
        let (mut random, mut cores) = (Random::new(seed, 1), Random::new(seed, 3));
        let block_bytes = random.pick(&[512, 512, 4096]);
        let disk = disk(&mut random, block_bytes);
        let link = link(&mut random, &mut cores);
        // Long enough for a large command to come through between two incidents.
        let calm_min = (disk.delay_max * 4).max(link.delay_max * 100);
        let scenario = Self {
            seed,
            clients: 1 + random.below(2),
            machines: Machines {
                targets: cores.pick(&[1, 1, 2]),
                cores: cores.pick(&[1, 2, 2, 3]),
                engines: cores.pick(&[1, 1, 2, 3]),
                ways: cores.pick(&[1, 1, 2, 3]),
                rivals: 0,
                mailbox_delay: Duration::from_micros(cores.pick(&[0, 20, 500, 20_000])),
            },
            block_bytes,
            sectors: random.pick(&[64, 256, 1024]),
            commands: 150 + random.below(250),
            in_flight: random.pick(&[1, 4, 8, 16]),
            queues: 1 + random.below(2) as u16 + cores.below(2) as u16,
            depth: random.pick(&[1, 4, 16]),
            target_pool: target_pool(&mut random),
            reconnect: reconnect(&mut random),
            incidents: Incidents::All,
            calm: Duration::from_millis(random.pick(&[100, 500, 3000])).max(calm_min),
            tcp: random.one_in(2),
            digests: [random.one_in(2), random.one_in(2)],
            authentication: random.pick(&[None, None, Some(Group::Null), Some(Group::Ffdhe2048)]),
            tls: Tls::Off,
            protections: Protections::ALL,
            disk,
            link,
        };
        let tls = match scenario.authentication {
            _ if !scenario.tcp => Tls::Off,
            Some(Group::Ffdhe2048) => random.pick(&[Tls::Off, Tls::Configured, Tls::Generated]),
            _ => random.pick(&[Tls::Off, Tls::Configured]),
        };
        let rivals = if tls == Tls::Off { cores.pick(&[0, 2, 3]) } else { 0 };
        Self { tls, machines: Machines { rivals, ..scenario.machines }, ..scenario }
    }

    /// The sectors that rivals share: each is one register. They are behind those of the hosts.
    pub fn registers(&self) -> Vec<Range<u64>> {
        let block = u64::from(self.block_bytes) / SECTOR_BYTES as u64;
        let first = self.clients * self.sectors;
        if self.machines.rivals == 0 {
            Vec::new()
        } else {
            vec![first..first + block, first + block..first + 9 * block]
        }
    }

    /// Sectors of the disk.
    pub fn disk_sectors(&self) -> u64 {
        self.registers().last().map_or(self.clients * self.sectors, |last| last.end)
    }
}

fn disk(random: &mut Random, block_bytes: u32) -> DiskFaults {
    let delay_max = Duration::from_micros(random.pick(&[50, 2000, 30_000, 400_000]));
    let error_probability = random.pick(&[0.0, 0.0, 0.005, 0.03]);
    DiskFaults {
        delay_min: Duration::from_micros(20),
        delay_max,
        error_probability,
        full_probability: if random.one_in(4) { 0.01 } else { 0.0 },
        torn_writes: !random.one_in(4),
        alignment: random.pick(&[512, block_bytes]),
    }
}

fn link(random: &mut Random, late: &mut Random) -> LinkFaults {
    let (delay_max_us, buffers): (_, &[usize]) =
        random.pick(&[(5, &[4096, 65_536]), (200, &[4096, 65_536]), (5000, &[65_536]), (40_000, &[1 << 20])]);
    LinkFaults {
        delay_min: Duration::from_micros(5),
        delay_max: Duration::from_micros(delay_max_us),
        chunk_max: random.pick(&[usize::MAX, 100_000, 9000, 1400]),
        cut_probability: random.pick(&[0.0, 0.0, 0.00002, 0.0002]),
        refuse_probability: random.pick(&[0.0, 0.0, 0.05]),
        buffer_bytes: random.pick(buffers),
        late_max: Duration::from_millis(late.pick(&[0, 0, 50, 3000])),
        late_data: late.one_in(2),
        // It has no datagrams.
        ..LinkFaults::default()
    }
}

/// Plenty of buffers, or so few that commands wait for them.
fn target_pool(random: &mut Random) -> Vec<ClassLayout> {
    let (small, large) = random.pick(&[(512, 64), (40, 20), (24, 17)]);
    vec![
        ClassLayout { buffer_bytes: 8192, count: small },
        ClassLayout { buffer_bytes: 131_072, count: large },
    ]
}

fn reconnect(random: &mut Random) -> ReconnectPolicy {
    let mut policy = ReconnectPolicy::DEFAULT;
    policy.delay = Duration::from_millis(random.pick(&[1, 20, 200]));
    policy.delay_max = Duration::from_millis(500);
    policy.controller_loss_timeout = None;
    policy.fast_io_fail_timeout = random.one_in(4).then_some(Duration::from_millis(300));
    policy
}
