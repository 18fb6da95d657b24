//! The engines of a simulated host, which share a controller: each is a reactor of its own, as on a thread of its own.

use std::collections::BTreeMap;

use ringfab_fabric::rdma::RnicConfig;
use ringfab_initiator::{ConnectOptions, ControllerId, Host, HostConfig, PathId, SharedController, Url};
use ringfab_memory::{ClassLayout, Pool};
use ringfab_reactor::sim::{HostId, World};
use ringfab_reactor::{Reactor, Time};

use super::content::Random;
use super::scenario::Scenario;

/// All engines of a host. The first one leads.
pub(super) struct Engines {
    pub(super) list: Vec<Engine>,
    /// Which of them gets the next command.
    next: usize,
    /// Decides which one is next.
    random: Random,
    /// Addresses whose paths were removed by order.
    removed: Vec<Url>,
}

/// An engine, as on a thread of its own.
pub(super) struct Engine {
    pub(super) host: Host,
    pub(super) phase: Phase,
    /// Paths that it knows, and since when each is away that is not there.
    pub(super) paths: BTreeMap<PathId, Option<Time>>,
}

/// What it is at.
#[derive(Debug)]
pub(super) enum Phase {
    /// It has no controller.
    Away,
    /// Another engine attaches, and this one is to take part.
    Invited(SharedController),
    /// The controller is not ready yet.
    Attaching(ControllerId),
    /// It takes I/O, or makes it wait.
    Ready(ControllerId),
    /// It is being detached.
    Detaching,
    /// It was.
    Gone,
}

impl Engines {
    /// The engines of the host with a number.
    pub(super) fn new(world: &World, host: HostId, scenario: &Scenario, number: u64) -> Self {
        let engine = |engine| Engine::new(world, host, scenario, number, engine);
        let list = (0..scenario.machines.engines).map(engine).collect();
        Self { list, next: 0, random: Random::new(scenario.seed, 50 + number), removed: Vec::new() }
    }

    /// Whether none has a controller.
    pub(super) fn are_away(&self) -> bool {
        self.list.iter().all(|engine| matches!(engine.phase, Phase::Away))
    }

    /// How many paths are removed.
    pub(super) fn removed_paths(&self) -> usize {
        self.removed.len()
    }

    /// A path goes, or one that has gone comes back, as an administrator wants it. Says which, unless the engine that
    /// leads refuses.
    pub(super) fn change_paths(&mut self, choice: u64) -> Option<String> {
        let Engine { host, phase, .. } = self.list.first_mut()?;
        let &mut Phase::Ready(controller) = phase else { return None };
        if let Some(url) = self.removed.last() {
            host.add_path(controller, url.clone()).ok()?;
            return self.removed.pop().map(|url| format!("the path {url} comes back"));
        }
        let paths = host.paths(controller);
        let path = paths.get(choice as usize % paths.len().max(1))?;
        host.remove_path(controller, path.id).ok()?;
        self.removed.push(path.url.clone());
        Some(format!("the path {} goes", path.url))
    }

    /// Attaches a controller for all of them.
    pub(super) fn attach(&mut self, options: &ConnectOptions) {
        self.removed.clear();
        let others = self.list.len() as u16 - 1;
        let Some((leader, followers)) = self.list.split_first_mut() else { return };
        let (controller, shared) = leader.host.attach_shared(options.clone(), others);
        leader.phase = Phase::Attaching(controller);
        for (follower, shared) in followers.iter_mut().zip(shared) {
            follower.phase = Phase::Invited(shared);
        }
    }

    /// Detaches the controller, which all have ready, on one of them.
    pub(super) fn detach(&mut self) {
        let asked = self.random.below(self.list.len() as u64) as usize;
        for (number, engine) in self.list.iter_mut().enumerate() {
            let Phase::Ready(controller) = engine.phase else { unreachable!("they are all ready") };
            engine.phase = Phase::Detaching;
            if number == asked {
                engine.host.detach(controller);
            }
        }
    }

    /// Those that have a turn now, in their order; some may be busy elsewhere.
    pub(super) fn those_that_turn(&mut self) -> Vec<usize> {
        let mut left: Vec<usize> = (0..self.list.len()).collect();
        let mut turning = Vec::new();
        while !left.is_empty() {
            let number = left.swap_remove(self.random.below(left.len() as u64) as usize);
            if self.list.len() == 1 || !self.random.one_in(4) {
                turning.push(number);
            }
        }
        turning
    }

    /// Chooses the one that gets the next command among those that are ready.
    pub(super) fn choose(&mut self) {
        let ready: Vec<usize> = (0..self.list.len()).filter(|one| self.list[*one].is_ready()).collect();
        self.next = match ready[..] {
            [only] => only,
            _ => self.random.pick(&ready),
        };
    }

    /// The one that gets the next command.
    pub(super) fn next(&mut self) -> &mut Engine {
        &mut self.list[self.next]
    }

    /// The buffers of that one.
    pub(super) fn pool(&self) -> &Pool {
        self.list[self.next].host.pool()
    }
}

impl Engine {
    /// The engine of a host with a number.
    fn new(world: &World, host: HostId, scenario: &Scenario, client: u64, number: u16) -> Self {
        let seed = scenario.seed ^ (client + 1) << 32 ^ u64::from(number) << 48;
        let rnic = RnicConfig::new(0, [(client as u8 + 100) ^ (number as u8) << 4; 32]);
        let config = HostConfig::new(pool(), rnic, seed);
        let mut host = Host::new(Reactor::simulated(world, host), config).expect("an engine");
        host.set_single_threaded();
        Self { host, phase: Phase::Away, paths: BTreeMap::new() }
    }

    /// Whether it takes commands.
    pub(super) fn is_ready(&self) -> bool {
        matches!(self.phase, Phase::Ready(_))
    }

    /// Whether so many paths are there, and none is missing.
    pub(super) fn has_paths(&self, count: usize) -> bool {
        self.paths.len() == count && self.paths.values().all(Option::is_none)
    }

    /// It has no controller any more.
    pub(super) fn leave(&mut self) {
        (self.phase, self.paths) = (Phase::Away, BTreeMap::new());
    }

    /// Whether no path is there.
    pub(super) fn is_cut_off(&self) -> bool {
        self.paths.values().all(Option::is_some)
    }

    /// Since when the paths are away that are.
    pub(super) fn away_since(&self) -> impl Iterator<Item = Time> {
        self.paths.values().copied().flatten()
    }

    /// Takes part in what the first engine attaches, once it has its turn.
    pub(super) fn join_when_invited(&mut self) -> bool {
        if !matches!(self.phase, Phase::Invited(_)) {
            return false;
        }
        let Phase::Invited(shared) = std::mem::replace(&mut self.phase, Phase::Away) else { return false };
        self.phase = Phase::Attaching(self.host.join(shared));
        true
    }
}

fn pool() -> Vec<ClassLayout> {
    vec![
        ClassLayout { buffer_bytes: 8192, count: 64 },
        ClassLayout { buffer_bytes: 65_536, count: 32 },
        ClassLayout { buffer_bytes: 262_144 + 4096, count: 24 },
    ]
}
