//! A whole world from one seed: hosts with the initiator's engine, the target's core, links that delay, cut and stall,
//! a disk that fails, tears and forgets, and a model that knows what each sector may hold.
//!
//! | part | what it is |
//! | --- | --- |
//! | [`scenario`] | what a seed decides |
//! | [`server`] | the target: boots, loses power, is killed |
//! | [`client`] | a host: attaches, submits, is told |
//! | [`workload`] | the commands of a host |
//! | [`checker`] | what each sector may hold |
//! | [`chaos`] | what goes wrong |
//! | `changes` | what is served changes |
//! | [`content`] | what a sector looks like |
//! | [`trace`] | the story, for whoever has to understand a failure |

mod changes;
pub mod chaos;
pub mod checker;
#[cfg(test)]
mod checker_tests;
pub mod client;
pub mod content;
pub mod scenario;
pub mod server;
pub mod trace;
pub mod workload;

use std::time::Duration;

use ringfab_reactor::Time;
use ringfab_reactor::sim::{HostId, World};
use ringfab_target::core::CoreUsage;

pub use changes::run_changes;

use chaos::{Chaos, Incident};
use client::Client;
use content::SECTOR_BYTES;
use scenario::Scenario;
use server::{DISK, Server};
use trace::Trace;

/// The longest that a workload takes in simulated time, with everything that goes wrong.
const WORKLOAD_MAX: Duration = Duration::from_secs(3600);

/// The longest that anything takes once nothing is wrong any more: reconnects with their delays, the keep-alive of
/// connections that a partition has hidden, an orderly detach.
const CALM_MAX: Duration = Duration::from_secs(60);

/// After this long both ends know which connections have not survived: more than the keep-alive.
const CALM_MIN: Duration = Duration::from_secs(10);

/// Flushes of each host in a world without faults: enough that some are sampled.
const FLUSHES: usize = 200;

/// What became of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// A hash over everything that happened, in the world and at the hosts.
    pub trace_hash: u64,
    /// What went wrong, by intention.
    pub incidents: u32,
    /// Commands that failed.
    pub failures: u64,
    /// How often hosts have authenticated again on a connection.
    pub authenticated_again: u64,
    /// How often hosts were refused for their keys, as far as they told.
    pub refusals: u64,
    /// How long it took in simulated time.
    pub took: Duration,
}

/// The world of a seed while it runs.
struct Simulation {
    world: World,
    scenario: Scenario,
    server: Server,
    clients: Vec<Client>,
    hosts: Vec<HostId>,
    chaos: Chaos,
    trace: Trace,
}

/// Runs the world of a seed to its end. `print` tells its story as it goes.
///
/// # Panics
/// When something is lost, leaked, never answered or against the protocol; the seed is shown.
pub fn run(scenario: Scenario, print: bool) -> Outcome {
    let mut simulation = Simulation::new(scenario, print);
    simulation.work();
    simulation.calm_down();
    simulation.check_everything();
    simulation.leave();
    simulation.outcome()
}

/// Runs a world in which nothing goes wrong but that the disk's write-back fails once, of which the disk tells once.
///
/// # Panics
/// When a flush succeeds after that, before the disk was opened anew; or when it fails after that.
pub fn run_loss(scenario: Scenario) {
    let mut simulation = Simulation::new(scenario, false);
    simulation.chaos.stop(&simulation.world, &simulation.scenario, &mut simulation.server, &simulation.hosts);
    simulation.run_until(CALM_MAX, "attaching", |this| this.clients.iter().all(Client::is_connected));
    assert_eq!(simulation.flush_all(), 0, "the disk is well");
    simulation.world.fail_write_back(simulation.server.host, DISK);
    let clients = simulation.clients.len() as u64;
    for _ in 0..3 {
        assert_eq!(simulation.flush_all(), clients, "the disk has said once that something was lost");
    }
    assert!(simulation.server.reopen_when_lost());
    assert_eq!(simulation.flush_all(), 0, "the disk was opened anew");
}

/// Runs a world in which nothing goes wrong, with a disk that takes exactly so long for everything. Returns what the
/// core says while every host waits for the disk, beside its Asynchronous Event Request, and once all have been
/// answered many times.
///
/// # Panics
/// When a flush fails or is not answered.
pub fn run_exact(scenario: Scenario) -> [CoreUsage; 2] {
    let mut simulation = Simulation::new(scenario, false);
    simulation.chaos.stop(&simulation.world, &simulation.scenario, &mut simulation.server, &simulation.hosts);
    simulation.run_until(CALM_MAX, "attaching", |this| this.clients.iter().all(Client::is_connected));
    simulation.submit_flushes();
    let parked = simulation.clients.len();
    simulation.run_until(CALM_MAX, "the beginning of flushes", |this| {
        this.server.usage().commands == parked + this.clients.len()
    });
    let during = simulation.server.usage();
    simulation.settle("flushes");
    for _ in 0..FLUSHES {
        assert_eq!(simulation.flush_all(), 0, "the disk is well");
    }
    [during, simulation.server.usage()]
}

impl Simulation {
    fn submit_flushes(&mut self) {
        for client in &mut self.clients {
            client.flush(&mut self.trace);
        }
    }

    /// Every client flushes: how many were told that it failed.
    fn flush_all(&mut self) -> u64 {
        let failures = |this: &Self| this.clients.iter().map(Client::failures).sum::<u64>();
        let before = failures(self);
        self.submit_flushes();
        self.settle("flushes");
        failures(self) - before
    }

    fn new(scenario: Scenario, print: bool) -> Self {
        let world = World::new(scenario.seed);
        let target = world.add_host("target");
        let bytes = scenario.clients * scenario.sectors * SECTOR_BYTES as u64;
        world.add_disk(target, DISK, bytes, scenario.disk.clone());
        let server = Server::new(&world, target, &scenario);
        let clients: Vec<Client> =
            (0..scenario.clients).map(|number| Client::new(&world, &server, &scenario, number)).collect();
        let hosts = clients.iter().map(|client| client.host).collect();
        let chaos = Chaos::new(&scenario, world.now());
        let mut trace = Trace::new(scenario.seed, print);
        trace.tell(world.now(), &format!("{scenario:?}"));
        Self { world, scenario, server, clients, hosts, chaos, trace }
    }

    /// The workload, while things go wrong.
    fn work(&mut self) {
        self.run_until(WORKLOAD_MAX, "the workload", |this| this.clients.iter().all(Client::is_finished));
    }

    /// Nothing goes wrong any more: everybody comes back.
    fn calm_down(&mut self) {
        self.chaos.stop(&self.world, &self.scenario, &mut self.server, &self.hosts);
        let quiet = self.world.now() + CALM_MIN;
        self.run_until(CALM_MAX, "the return to calm", |this| {
            let back = |client: &Client| client.is_connected() && client.is_idle();
            this.world.now() >= quiet && this.server.is_running() && this.clients.iter().all(back)
        });
        // Until here a flush may have failed; from now on none does.
        self.server.reopen_when_lost();
        self.clients.iter_mut().for_each(Client::set_strict);
    }

    /// A flush, a read of everything, and a look at the disk itself.
    fn check_everything(&mut self) {
        self.submit_flushes();
        self.settle("the last flush");
        for index in 0..self.clients.len() {
            let mut rest = self.clients[index].checker().range();
            while !rest.is_empty() {
                rest = self.clients[index].read_first_of(rest, &mut self.trace);
                self.settle("the last reads");
            }
        }
        for client in &self.clients {
            let range = client.checker().range();
            let length = (range.end - range.start) as usize * SECTOR_BYTES;
            let (visible, stable) = self.server.disk(range.start * SECTOR_BYTES as u64, length);
            let checked = client.checker().check_disk(&visible, &stable);
            assert_eq!(checked, Ok(()), "the disk after the last flush");
        }
    }

    /// Everybody detaches, and nothing is left of anybody.
    fn leave(&mut self) {
        self.clients.iter_mut().for_each(Client::detach);
        self.run_until(CALM_MAX, "leaving", |this| this.clients.iter().all(Client::is_gone));
        for client in &self.clients {
            assert_eq!(client.leftovers(), None);
        }
        self.run_until(CALM_MAX, "the target to forget", |this| this.server.leftovers().is_none());
        assert_eq!(self.server.violations(), 0, "both ends are ours");
    }

    fn outcome(&self) -> Outcome {
        Outcome {
            trace_hash: self.trace.hash() ^ self.world.trace_hash(),
            incidents: self.chaos.incidents(),
            failures: self.clients.iter().map(Client::failures).sum(),
            authenticated_again: self.clients.iter().map(|one| one.proofs().0).sum(),
            refusals: self.clients.iter().map(|one| one.proofs().1).sum(),
            took: self.world.now().since(Time::ZERO),
        }
    }

    fn settle(&mut self, what: &str) {
        self.run_until(CALM_MAX, what, |this| this.clients.iter().all(Client::is_idle));
    }

    /// Lets time pass until something is so.
    fn run_until(&mut self, limit: Duration, what: &str, done: impl Fn(&Self) -> bool) {
        let deadline = self.world.now() + limit;
        self.trace.tell(self.world.now(), what);
        loop {
            self.turn_all();
            if done(self) {
                return;
            }
            if self.world.now() >= deadline {
                let left = self.server.leftovers();
                panic!("{what} did not come to an end within {limit:?}; the target holds {left:?}");
            }
            self.world.advance_until(self.next_action().min(deadline));
        }
    }

    /// Turns everybody until nobody has anything to do at this point in time.
    fn turn_all(&mut self) {
        // What a turn of an engine has brought about is sent by its next one.
        let mut quiet = 0;
        while quiet < 2 {
            if self.server.boot_when_due() {
                self.trace.tell(self.world.now(), "the target boots");
            }
            let happened = self.chaos.act(&self.world, &self.scenario, &mut self.server, &self.hosts);
            if let Some((what, incident)) = happened {
                self.trace.tell(self.world.now(), &what);
                if incident == Incident::PowerLost {
                    self.clients.iter_mut().for_each(Client::power_lost);
                }
            }
            self.server.turn();
            let mut active = false;
            for client in &mut self.clients {
                active |= client.turn(&mut self.trace);
            }
            quiet = if active || self.world.has_ready() { 0 } else { quiet + 1 };
        }
    }

    /// When something happens that the world does not know of.
    fn next_action(&self) -> Time {
        let clients = self.clients.iter().map(Client::due).min().unwrap_or(Time::MAX);
        self.chaos.due().min(clients).min(self.server.boots_at().unwrap_or(Time::MAX))
    }
}
