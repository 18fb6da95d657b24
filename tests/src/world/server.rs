//! The simulated target: one core over a disk that outlives it.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ringfab_memory::ClassLayout;
use ringfab_reactor::sim::{HostId, World};
use ringfab_reactor::{Reactor, Time, Wait};
use ringfab_target::core::{Core, CoreParts, CoreUsage, build};
use ringfab_target::{Config, Identity, Target};

use super::scenario::Scenario;

/// The path of the disk on the target's host.
pub const DISK: &str = "/disk";

/// The subsystem that is served.
pub const NQN: &str = "nqn.2026-11.org.ringfab:world";

/// A target that can lose its power or its process, and is started again.
#[derive(Debug)]
pub struct Server {
    world: World,
    /// Its host.
    pub host: HostId,
    config: Config,
    classes: Vec<ClassLayout>,
    running: Option<Instance>,
    boots: u64,
    boot_at: Time,
}

/// One life of its process.
#[derive(Debug)]
struct Instance {
    core: Core,
    target: Arc<Target>,
    /// Buffers that the core keeps all its life, for its disks.
    kept: [usize; 2],
}

impl Server {
    /// A target on a host of the world that serves [`DISK`] there; it is not running yet.
    pub fn new(world: &World, host: HostId, scenario: &Scenario) -> Self {
        let (address, block_bytes) = (world.address(host), scenario.block_bytes);
        let transport = if scenario.tcp { "tcp" } else { "rdma" };
        let text = format!(
            "[target]\nstate_dir = \"/state\"\ncores = 1\n[[listener]]\naddress = \"{address}\"\nport = 4420\n\
             transport = \"{transport}\"\n[[subsystem]]\nnqn = {NQN:?}\nallow_any_host = true\n\
             [[subsystem.namespace]]\npath = {DISK:?}\nblock_bytes = {block_bytes}\n"
        );
        let config = Config::parse(&text, "world").expect("a valid configuration");
        let (running, boots, boot_at) = (None, 0, Time::ZERO);
        let classes = scenario.target_pool.clone();
        Self { world: world.clone(), host, config, classes, running, boots, boot_at }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.world.socket_address(self.host, 4420)
    }

    /// Whether it is running.
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Starts it when its time has come.
    pub fn boot_when_due(&mut self) -> bool {
        if self.running.is_some() || self.world.now() < self.boot_at {
            return false;
        }
        self.boots += 1;
        let mut seed = [7; 32];
        seed[..8].copy_from_slice(&self.boots.to_le_bytes());
        let identity = Identity::from_seed([7; 32]);
        let target = Target::new(&self.config, &identity).expect("a target");
        let parts = CoreParts {
            reactor: Reactor::simulated(&self.world, self.host),
            target: Arc::clone(&target),
            classes: self.classes.clone(),
            seed,
        };
        let (core, _) = build(parts, &self.config.listeners).expect("a core");
        assert!(target.namespaces()[0].is_ready(), "the disk is there");
        let kept = core.pool_usage().map(|usage| usage.taken);
        self.running = Some(Instance { core, target, kept });
        true
    }

    /// When it is to be started, if it is not running.
    pub fn boots_at(&self) -> Option<Time> {
        self.running.is_none().then_some(self.boot_at)
    }

    /// The power of its host goes, and comes back later.
    pub fn lose_power(&mut self, pause: Duration) {
        self.world.crash(self.host);
        self.running = None;
        self.boot_at = self.world.now() + pause;
    }

    /// Its process is killed: its sockets close, and what it gave to the disk is still written. As under Linux, the
    /// kernel lets go of the process after that, so that the pause has to be longer than the disk takes.
    pub fn kill(&mut self, pause: Duration) {
        self.running = None;
        self.boot_at = self.world.now() + pause;
    }

    /// One turn of its loop.
    pub fn turn(&mut self) {
        if let Some(instance) = &mut self.running {
            instance.core.turn(Wait::No).expect("a turn of the target");
        }
    }

    /// What an administrator does about a disk that has lost something: has it opened anew. Returns whether that was
    /// needed.
    pub fn reopen_when_lost(&mut self) -> bool {
        let Some(Instance { core, target, .. }) = &mut self.running else { return false };
        let namespace = &target.namespaces()[0];
        let lost = namespace.is_lost();
        if lost {
            core.reopen(namespace).expect("the disk is there");
        }
        lost
    }

    /// What it still holds for hosts, in words; none when all have left.
    pub fn leftovers(&self) -> Option<String> {
        let Instance { core, target, kept } = self.running.as_ref()?;
        let counters = core.rnic_counters();
        let usage = core.pool_usage().map(|usage| usage.taken);
        let (controllers, commands) = (target.controllers().len(), core.usage().commands);
        let clean = counters.queue_pairs == 0 && counters.regions == 0 && usage == *kept;
        (!clean || controllers != 0 || commands != 0).then(|| {
            format!(
                "{controllers} controllers, {commands} commands, buffers {usage:?} instead of {kept:?}, {counters:?}"
            )
        })
    }

    /// What its core has in use.
    ///
    /// # Panics
    /// When it is not running.
    pub fn usage(&self) -> CoreUsage {
        self.running.as_ref().expect("it runs").core.usage()
    }

    /// Protocol violations that it has seen.
    pub fn violations(&self) -> u64 {
        self.running.as_ref().map_or(0, |instance| instance.core.rnic_counters().violations)
    }

    /// What its disk holds in a range of bytes: as it reads, and as a loss of power would leave it.
    pub fn disk(&self, offset: u64, length: usize) -> (Vec<u8>, Vec<u8>) {
        let path = Path::new(DISK);
        let visible = self.world.read_disk(self.host, path, offset, length);
        (visible, self.world.read_stable(self.host, path, offset, length))
    }
}
