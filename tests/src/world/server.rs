//! The simulated target: one core over a disk that outlives it.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ringfab_auth::{ConfiguredPsk, Derivation, DhchapKey, Group, Hash, KeySource, Secret};
use ringfab_memory::ClassLayout;
use ringfab_reactor::sim::{HostId, World};
use ringfab_reactor::{Reactor, Time, Wait};
use ringfab_target::config::{
    Access, ConfiguredKey, Demands, HostAuthentication, HostConfig, HostTls, ListenerTls, NamespaceLimits,
    RateLimits,
};
use ringfab_target::control::change_alone;
use ringfab_target::core::{Core, CoreParts, CoreUsage, build};
use ringfab_target::model::Draft;
use ringfab_target::worker::{Steps, Workers};
use ringfab_target::{Config, Identity, Target};

use super::scenario::{Scenario, Tls};

/// The path of the disk on the target's host.
pub const DISK: &str = "/disk";

/// The subsystem that is served.
pub const NQN: &str = "nqn.2026-11.org.ringfab:world";

/// A subsystem that comes and goes: no host of the world uses it.
const OTHER_NQN: &str = "nqn.2026-11.org.ringfab:other";

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
    /// What it has asked workers for.
    steps: Steps,
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
        let mut config = Config::parse(&text, "world").expect("a valid configuration");
        config.hosts = (0..scenario.clients).map(|number| host_config(number, scenario)).collect();
        if scenario.tls != Tls::Off {
            let required = scenario.tls == Tls::Configured;
            config.listeners[0].tls = if required { ListenerTls::Required } else { ListenerTls::Allowed };
            config.subsystems[0].demands = Demands { tls: true, ..Demands::default() };
        }
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
        let (workers, steps) = Workers::stepped();
        let parts = CoreParts {
            reactor: Reactor::simulated(&self.world, self.host),
            target: Arc::clone(&target),
            classes: self.classes.clone(),
            workers,
            seed,
        };
        let (core, _) = build(parts).expect("a core");
        assert!(target.namespaces()[0].is_ready(), "the disk is there");
        let kept = core.pool_usage().map(|usage| usage.taken);
        self.running = Some(Instance { core, target, steps, kept });
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
            // Slow work takes until the next turn.
            while instance.steps.run_one() {}
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

    /// What an administrator does who changes other things than the hosts of the world use: a subsystem, its hosts, a
    /// namespace beside [`DISK`], a listener. Which one is next depends on what there is; `choice` decides among them.
    ///
    /// # Panics
    /// When the target refuses.
    pub fn change_others(&mut self, choice: u64) -> String {
        let address = SocketAddr::new(self.address().ip(), 4421);
        let identity = Identity::from_seed([7; 32]);
        let other = self.others();
        let mut said = String::new();
        let changed = self.change(|target, draft| {
            let served = target.served();
            let beside = served.find(NQN).and_then(|one| one.namespace(2));
            let listener = served.listeners().iter().find(|one| one.config().port == 4421);
            match (choice % 5, served.find(OTHER_NQN)) {
                (0, None) => {
                    said = "a subsystem comes".to_owned();
                    target.add_subsystem(draft, &other.subsystems[0], &identity).expect("memory");
                }
                (0, Some(_)) => {
                    said = "a subsystem goes".to_owned();
                    draft.remove_subsystem(OTHER_NQN).expect("it is there");
                }
                (1, Some(_)) => {
                    said = "other hosts may use a subsystem".to_owned();
                    let hosts = Access::Hosts([format!("nqn.2026-11.org.ringfab:{choice}")].into());
                    draft.set_access(OTHER_NQN, hosts).expect("it is there");
                }
                (2, _) if listener.is_none() => {
                    said = format!("a listener comes: {address}");
                    draft.add_listener(other.listeners[0].clone());
                }
                (2, _) => {
                    said = format!("a listener goes: {address}");
                    draft.remove_listener(listener.expect("it is there").port_id()).expect("it is there");
                }
                (4, _) if beside.is_some() => {
                    let hosts = hosts_of(choice);
                    said = format!("a namespace is shown to {hosts:?}");
                    draft.show_namespace(NQN, 2, &hosts).expect("it is there");
                }
                _ if beside.is_none() => {
                    said = "a namespace comes".to_owned();
                    let config = &other.subsystems[0].namespaces[1];
                    let namespace = target.make_namespace(NQN, config, &identity).expect("memory");
                    draft.add_namespace(NQN, namespace).expect("there is none");
                }
                _ => {
                    said = "a namespace goes".to_owned();
                    draft.remove_namespace(NQN, 2).expect("it is there");
                }
            }
        });
        assert_eq!(changed, Ok(()), "{said}");
        said
    }

    /// The disk of the hosts gets other limits. Returns which.
    ///
    /// # Panics
    /// When the target refuses.
    pub fn change_limits(&mut self, choice: u64) -> String {
        let limits = limits_of(choice);
        let changed = self.change(|_, draft| draft.limit_namespace(NQN, 1, &limits).expect("it is there"));
        assert_eq!(changed, Ok(()), "{limits:?}");
        format!("the disk has the limits {limits:?}")
    }

    /// An administrator exchanges the keys of a host for others, or gives it back its own. Returns what was done.
    ///
    /// # Panics
    /// When the target refuses, or the host has no key.
    pub fn change_keys(&mut self, number: u64, own: bool) -> String {
        let mut host = self.config.hosts[number as usize].clone();
        if !own {
            host.tls.iter_mut().for_each(|tls| tls.key.key = tls_key(3));
            host.authentication.iter_mut().for_each(|one| one.key.key = key(3));
        }
        let changed = self.change(|_, draft| draft.set_host(&host));
        assert_eq!(changed, Ok(()), "the keys of {}", host.nqn);
        format!("the target has {} keys of host{number}", if own { "the" } else { "other" })
    }

    /// Changes what is served by the target that runs.
    ///
    /// # Errors
    /// Why that cannot be served.
    ///
    /// # Panics
    /// When it does not run.
    pub fn change(&mut self, edit: impl FnOnce(&Target, &mut Draft)) -> Result<(), String> {
        let Instance { core, target, .. } = self.running.as_mut().expect("it runs");
        let mut draft = target.served().draft();
        edit(target, &mut draft);
        change_alone(core, target, draft)
    }

    /// What is served at the start.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What [`Server::change_others`] changes.
    fn others(&self) -> Config {
        let text = format!(
            "[target]\nstate_dir = \"/state\"\ncores = 1\n[[listener]]\naddress = \"{}\"\nport = 4421\n\
             transport = \"tcp\"\n[[subsystem]]\nnqn = {OTHER_NQN:?}\nallow_any_host = true\n\
             [[subsystem.namespace]]\nmemory = \"1MiB\"\n[[subsystem.namespace]]\nnull = \"1MiB\"\n",
            self.address().ip()
        );
        Config::parse(&text, "others").expect("a valid configuration")
    }

    /// What it still holds for hosts, in words; none when all have left.
    pub fn leftovers(&self) -> Option<String> {
        let Instance { core, target, kept, .. } = self.running.as_ref()?;
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

/// The NQN of a host of the world.
pub fn host_nqn(number: u64) -> String {
    format!("nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-{number:012}")
}

/// A key of both ends.
///
/// # Panics
/// Never: the length is one that keys have.
pub fn key(number: u8) -> DhchapKey {
    DhchapKey::new(Secret::copy_of(&[number; 32]), None).expect("a length of keys")
}

/// A key of both ends for TLS.
///
/// # Panics
/// Never: the length is one that keys have.
pub fn tls_key(number: u8) -> ConfiguredPsk {
    ConfiguredPsk::new(Secret::copy_of(&[number; 32]), None).expect("a length of keys")
}

/// What the target knows of a host.
fn host_config(number: u64, scenario: &Scenario) -> HostConfig {
    let source = || KeySource::File("/key".into());
    let known = |number| ConfiguredKey { source: source(), key: key(number) };
    let authentication = |group: Group| HostAuthentication {
        key: known(1),
        controller_key: Some(known(2)),
        old: None,
        hashes: vec![Hash::Sha256],
        groups: vec![group],
    };
    let tls = (scenario.tls == Tls::Configured).then(|| HostTls {
        key: ConfiguredKey { source: source(), key: tls_key(1) },
        old: None,
        derivation: Derivation::Specified,
    });
    HostConfig {
        authentication: scenario.authentication.map(authentication),
        tls,
        ..HostConfig::new(host_nqn(number))
    }
}

/// Limits that the hosts of the world reach, or none.
fn limits_of(choice: u64) -> NamespaceLimits {
    let all = match choice % 4 {
        0 => RateLimits::default(),
        1 => RateLimits { read_iops: Some(2000), ..RateLimits::default() },
        2 => RateLimits { read_iops: Some(2000), write_iops: Some(1000), ..RateLimits::default() },
        _ => RateLimits { write_bytes_per_s: Some(20 << 20), ..RateLimits::default() },
    };
    NamespaceLimits { all, ..NamespaceLimits::default() }
}

/// All hosts, or one that does not exist.
fn hosts_of(choice: u64) -> Access {
    match choice % 3 {
        0 => Access::AnyHost,
        some => Access::Hosts([format!("nqn.2026-11.org.ringfab:{some}")].into()),
    }
}
