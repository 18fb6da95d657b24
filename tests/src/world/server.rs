//! The simulated target: its cores, each with a disk of its own on what outlives them.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ringfab_auth::{ConfiguredPsk, Derivation, DhchapKey, Group, Hash, KeySource, Secret};
use ringfab_memory::ClassLayout;
use ringfab_reactor::sim::{HostId, World};
use ringfab_reactor::{Reactor, Time, Wait};
use ringfab_target::config::{
    Access, ConfiguredKey, Demands, HostAuthentication, HostConfig, HostTls, ListenerTls, NamespaceConfig,
    NamespaceLimits, RateLimits, Source,
};
use ringfab_target::core::{Core, CoreParts, CoreUsage, Cores, build_all};
use ringfab_target::model::protections as model;
use ringfab_target::model::{Draft, Namespace};
use ringfab_target::worker::{Steps, Workers};
use ringfab_target::{Config, Identity, Target};

use super::content::Random;
use super::export::{Export, Exported};
use super::scenario::{Protections, Scenario, Tls};

/// The path of the disk on the target's host.
pub const DISK: &str = "/disk";

/// Where it listens for rivals.
const PLAIN_PORT: u16 = 4430;

/// The path of another disk there, which mostly nobody uses.
pub const SPARE: &str = "/spare";

/// The namespace on it.
pub const SPARE_NSID: u32 = 3;

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
    /// The host that has the disk.
    pub disk_host: HostId,
    /// What stands behind the namespace, if that is not a disk of its own.
    exported: Option<Exported>,
    /// Its addresses, with the first one of the host.
    ways: Vec<HostId>,
    protections: Protections,
    config: Config,
    classes: Vec<ClassLayout>,
    /// The namespace that comes with [`Change::Spare`].
    spare: NamespaceConfig,
    /// Decides in which order cores have their turns.
    random: Random,
    cores: usize,
    running: Option<Instance>,
    boots: u64,
    boot_at: Time,
}

/// One life of its process.
#[derive(Debug)]
struct Instance {
    cores: Vec<Core>,
    target: Arc<Target>,
    /// What they have asked workers for.
    steps: Steps,
    /// Buffers that each core keeps all its life, for its disks.
    kept: Vec<[usize; 2]>,
}

/// What an administrator does to what is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Something changes that no host of the world uses: a subsystem, its hosts, a namespace beside [`DISK`], a
    /// listener. Which one is next depends on what there is; the number decides among them.
    Others(u64),
    /// The disk of the hosts gets other limits.
    Limits(u64),
    /// The keys of a host are exchanged for others, or it gets back its own.
    Keys {
        /// Number of the host.
        host: u64,
        /// Its own.
        own: bool,
    },
    /// A namespace on [`SPARE`] comes, which so many cores can open and the next one cannot: it does not come.
    Unservable {
        /// How many can.
        cores: u32,
    },
    /// It comes, or goes.
    Spare,
}

impl Server {
    /// A target on a host of the world that serves [`DISK`] there, or what another host exports; it is not running yet.
    pub fn new(world: &World, host: HostId, scenario: &Scenario, export: Option<&Export>) -> Self {
        let (address, block_bytes, cores) =
            (world.address(host), scenario.block_bytes, scenario.machines.cores);
        let transport = if scenario.tcp { "tcp" } else { "rdma" };
        let ways: Vec<HostId> = (1..scenario.machines.ways)
            .map(|number| world.add_way(host, &format!("{}.{number}", world.host_name(host))))
            .collect();
        let ways: Vec<HostId> = std::iter::once(host).chain(ways).collect();
        let listener = |address: IpAddr, port: u16, transport: &str| {
            format!("[[listener]]\naddress = \"{address}\"\nport = {port}\ntransport = \"{transport}\"\n")
        };
        let plain =
            if scenario.machines.rivals > 0 { listener(address, PLAIN_PORT, "tcp") } else { String::new() };
        // How many cores there are is not the configuration's here.
        let text = format!(
            "[target]\nstate_dir = \"/state\"\ncores = 1\n{}{plain}\
             [[subsystem]]\nnqn = {NQN:?}\nallow_any_host = true\n\
             [[subsystem.namespace]]\npath = {DISK:?}\nblock_bytes = {block_bytes}\n\
             [[subsystem.namespace]]\nnsid = {SPARE_NSID}\npath = {SPARE:?}\nblock_bytes = {block_bytes}\n",
            ways.iter().map(|way| listener(world.address(*way), 4420, transport)).collect::<String>()
        );
        let mut config = Config::parse(&text, "world").expect("a valid configuration");
        let spare = config.subsystems[0].namespaces.pop().expect("two are there");
        config.hosts = (0..scenario.clients).map(|number| host_config(number, scenario)).collect();
        if scenario.tls != Tls::Off {
            let required = scenario.tls == Tls::Configured;
            let tls = if required { ListenerTls::Required } else { ListenerTls::Allowed };
            config.listeners.iter_mut().for_each(|listener| listener.tls = tls);
            config.subsystems[0].demands = Demands { tls: true, ..Demands::default() };
        }
        let (running, boots, boot_at) = (None, 0, Time::ZERO);
        let (classes, random) = (scenario.target_pool.clone(), Random::new(scenario.seed, 4));
        world.set_mailbox_delay(host, Duration::ZERO, scenario.machines.mailbox_delay);
        let (world, protections) = (world.clone(), scenario.protections);
        let disk_host = export.map_or(host, |export| export.host);
        Self {
            world,
            host,
            disk_host,
            exported: export.map(Export::exported),
            ways,
            protections,
            config,
            spare,
            classes,
            random,
            cores,
            running,
            boots,
            boot_at,
        }
    }

    /// Its addresses, as links know them.
    pub fn ways(&self) -> &[HostId] {
        &self.ways
    }

    /// Where it listens, on each of them.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.ways.iter().map(|way| self.world.socket_address(*way, 4420)).collect()
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.world.socket_address(self.host, 4420)
    }

    /// Where it listens for NVMe/TCP in clear text, if there are rivals.
    pub fn plain_address(&self) -> SocketAddr {
        self.world.socket_address(self.host, PLAIN_PORT)
    }

    /// Whether it is running.
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Starts it when its time has come. Returns its host if it has just begun.
    pub fn booted_when_due(&mut self) -> Option<HostId> {
        if self.running.is_some() || self.world.now() < self.boot_at {
            return None;
        }
        self.boots += 1;
        let identity = Identity::from_seed([7; 32]);
        if let Some(exported) = &self.exported {
            self.config.subsystems[0].namespaces[0].source = Source::Device(exported.driver());
        }
        let target = Target::new(&self.config, &identity).expect("a target");
        if self.protections != Protections::ALL {
            let Protections { ending_connections, waiting_for_disks, .. } = self.protections;
            let served = target.served();
            served.find(NQN).expect("it is served").subsystem().set_protections(model::Protections {
                ends_connections: ending_connections,
                waits_for_disks: waiting_for_disks,
            });
        }
        let (workers, steps) = Workers::stepped();
        let parts = |number| CoreParts {
            reactor: Reactor::simulated(&self.world, self.host),
            target: Arc::clone(&target),
            classes: self.classes.clone(),
            workers: workers.clone(),
            seed: self.seed(number),
        };
        let (cores, _) = build_all((0..self.cores).map(parts).collect()).expect("cores");
        assert!(self.exported.is_some() || target.namespaces()[0].is_ready(), "the disk is there");
        let kept = cores.iter().map(taken).collect();
        self.running = Some(Instance { cores, target, steps, kept });
        Some(self.host)
    }

    /// Of what a core draws by itself, in this life of the process.
    fn seed(&self, core: usize) -> [u8; 32] {
        let mut seed = [7; 32];
        seed[..8].copy_from_slice(&self.boots.to_le_bytes());
        seed[8] += core as u8;
        seed
    }

    /// How often it was started.
    pub fn boots(&self) -> u64 {
        self.boots
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

    /// A turn for each of its cores, in any order; some may be busy elsewhere, and miss it.
    pub fn turn(&mut self) {
        let Some(Instance { cores, steps, .. }) = &mut self.running else { return };
        // Slow work takes until the next turn.
        while steps.run_one() {}
        let alone = cores.len() == 1;
        let mut left: Vec<&mut Core> = cores.iter_mut().collect();
        while !left.is_empty() {
            let core = left.swap_remove(self.random.below(left.len() as u64) as usize);
            if alone || !self.random.one_in(4) {
                core.turn(Wait::No).expect("a turn of the target");
            }
        }
    }

    /// The disk that the hosts use, if something of it is lost.
    pub fn lost_disk(&self) -> Option<Arc<Namespace>> {
        let Instance { target, .. } = self.running.as_ref()?;
        target.namespaces().into_iter().find(|namespace| namespace.is_lost())
    }

    /// What it serves, and the way to its cores, while it runs.
    pub fn serving(&self) -> Option<(Arc<Target>, Cores)> {
        let Instance { cores, target, .. } = self.running.as_ref()?;
        Some((Arc::clone(target), cores[0].cores()))
    }

    /// Makes a change to what is to be served. Returns it in words.
    ///
    /// # Panics
    /// When the target refuses.
    pub fn edit(&self, change: Change, target: &Target, draft: &mut Draft) -> String {
        match change {
            Change::Others(choice) => self.edit_others(choice, target, draft),
            Change::Limits(choice) => {
                let limits = limits_of(choice);
                draft.limit_namespace(NQN, 1, &limits).expect("it is there");
                format!("the disk has the limits {limits:?}")
            }
            Change::Unservable { cores } => {
                self.world.set_opens_left(self.host, SPARE, Some(cores));
                self.add_spare(target, draft);
                format!("a namespace is to come that {cores} cores can open")
            }
            Change::Spare
                if target.served().find(NQN).is_some_and(|one| one.namespace(SPARE_NSID).is_some()) =>
            {
                draft.remove_namespace(NQN, SPARE_NSID).expect("it is there");
                "a namespace with a disk goes".to_owned()
            }
            Change::Spare => {
                self.add_spare(target, draft);
                "a namespace with a disk comes".to_owned()
            }
            Change::Keys { host, own } => {
                let mut config = self.config.hosts[host as usize].clone();
                if !own {
                    config.tls.iter_mut().for_each(|tls| tls.key.key = tls_key(3));
                    config.authentication.iter_mut().for_each(|one| one.key.key = key(3));
                }
                draft.set_host(&config);
                format!("the target has {} keys of host{host}", if own { "the" } else { "other" })
            }
        }
    }

    fn add_spare(&self, target: &Target, draft: &mut Draft) {
        let namespace =
            target.make_namespace(NQN, &self.spare, &Identity::from_seed([7; 32])).expect("memory");
        draft.add_namespace(NQN, namespace).expect("there is none");
    }

    fn edit_others(&self, choice: u64, target: &Target, draft: &mut Draft) -> String {
        let address = SocketAddr::new(self.address().ip(), 4421);
        let (identity, other, served) = (Identity::from_seed([7; 32]), self.others(), target.served());
        let beside = served.find(NQN).and_then(|one| one.namespace(2));
        let listener = served.listeners().iter().find(|one| one.config().port == 4421);
        match (choice % 5, served.find(OTHER_NQN)) {
            (0, None) => {
                target.add_subsystem(draft, &other.subsystems[0], &identity).expect("memory");
                "a subsystem comes".to_owned()
            }
            (0, Some(_)) => {
                draft.remove_subsystem(OTHER_NQN).expect("it is there");
                "a subsystem goes".to_owned()
            }
            (1, Some(_)) => {
                let hosts = Access::Hosts([format!("nqn.2026-11.org.ringfab:{choice}")].into());
                draft.set_access(OTHER_NQN, hosts).expect("it is there");
                "other hosts may use a subsystem".to_owned()
            }
            (2, _) if listener.is_none() => {
                draft.add_listener(other.listeners[0].clone());
                format!("a listener comes: {address}")
            }
            (2, _) => {
                draft.remove_listener(listener.expect("it is there").port_id()).expect("it is there");
                format!("a listener goes: {address}")
            }
            (4, _) if beside.is_some() => {
                let hosts = hosts_of(choice);
                draft.show_namespace(NQN, 2, &hosts).expect("it is there");
                format!("a namespace is shown to {hosts:?}")
            }
            _ if beside.is_none() => {
                let config = &other.subsystems[0].namespaces[1];
                let namespace = target.make_namespace(NQN, config, &identity).expect("memory");
                draft.add_namespace(NQN, namespace).expect("there is none");
                "a namespace comes".to_owned()
            }
            _ => {
                draft.remove_namespace(NQN, 2).expect("it is there");
                "a namespace goes".to_owned()
            }
        }
    }

    /// What is served at the start.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What [`Change::Others`] changes.
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
        let Instance { cores, target, kept, .. } = self.running.as_ref()?;
        let controllers = target.controllers().len();
        let held = cores.iter().zip(kept).filter_map(|(core, kept)| {
            let (counters, usage, commands) = (core.rnic_counters(), taken(core), core.usage().commands);
            let clean = counters.queue_pairs == 0 && counters.regions == 0 && usage == *kept && commands == 0;
            let text = || format!("{commands} commands, buffers {usage:?} instead of {kept:?}, {counters:?}");
            (!clean).then(text)
        });
        let held: Vec<String> = held.collect();
        (!held.is_empty() || controllers != 0).then(|| format!("{controllers} controllers, {held:?}"))
    }

    /// What each core has in use.
    ///
    /// # Panics
    /// When it is not running.
    pub fn usage(&self) -> Vec<CoreUsage> {
        self.running.as_ref().expect("it runs").cores.iter().map(Core::usage).collect()
    }

    /// Protocol violations that it has seen.
    pub fn violations(&self) -> u64 {
        let cores = self.running.iter().flat_map(|instance| &instance.cores);
        cores.map(|core| core.rnic_counters().violations).sum()
    }

    /// What its disk holds in a range of bytes: as it reads, and as a loss of power would leave it.
    pub fn disk(&self, offset: u64, length: usize) -> (Vec<u8>, Vec<u8>) {
        let path = Path::new(DISK);
        let visible = self.world.read_disk(self.disk_host, path, offset, length);
        (visible, self.world.read_stable(self.disk_host, path, offset, length))
    }
}

/// Buffers of a core in use, for I/O and for admin commands.
fn taken(core: &Core) -> [usize; 2] {
    core.pool_usage().map(|usage| usage.taken)
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
