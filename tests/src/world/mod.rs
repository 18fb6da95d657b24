//! A whole world from one seed: hosts with the initiator's engines, targets with their cores, links that delay, cut and
//! stall, a disk that fails, tears and forgets, and a model that knows what each sector may hold. Everything takes its
//! turns in one thread, in an order that the seed decides. Messages between cores are on their way for a while.
//!
//! | part | what it is |
//! | --- | --- |
//! | [`scenario`] | what a seed decides |
//! | [`server`] | the target: boots, loses power, is killed |
//! | [`client`] | a host: attaches, submits, is told |
//! | `engines` | its engines, which share a controller |
//! | [`workload`] | the commands of a host |
//! | [`checker`] | what each sector may hold |
//! | [`rival`] | a host that changes blocks by Compare and Write which it shares with others |
//! | [`register`] | what these blocks may show |
//! | [`export`] | an NBD server that has the disk |
//! | [`chaos`] | what goes wrong |
//! | `administrator` | what is served is changed, on all cores while they run |
//! | `changes` | what is served changes |
//! | `aborts` | commands that wait on one core are aborted from another |
//! | `rest` | the control side brings a disk to rest |
//! | [`content`] | what a sector looks like |
//! | [`trace`] | the story, for whoever has to understand a failure |

mod aborts;
mod administrator;
mod changes;
pub mod chaos;
pub mod checker;
#[cfg(test)]
mod checker_tests;
pub mod client;
pub mod content;
mod engines;
pub mod export;
pub mod register;
mod rest;
pub mod rival;
pub mod scenario;
pub mod server;
pub mod trace;
pub mod workload;

use std::collections::VecDeque;
use std::time::Duration;

use ringfab_reactor::Time;
use ringfab_reactor::sim::{DiskFaults, HostId, LinkFaults, World};
use ringfab_target::core::CoreUsage;

pub use aborts::run_aborts;
pub use changes::{run_all_or_none, run_changes};
pub use rest::run_rests;

use chaos::{Chaos, Incident};
use client::Client;
use content::{Random, SECTOR_BYTES};
use export::Export;
use register::Register;
use rival::{Counts, Rival};
use scenario::{Incidents, Scenario};
use server::{Change, DISK, SPARE, Server};
use trace::Trace;

/// The longest that a workload takes in simulated time, with everything that goes wrong.
const WORKLOAD_MAX: Duration = Duration::from_secs(3600);

/// The longest that anything takes once nothing is wrong any more: reconnects with their delays, the keep-alive of
/// connections that a partition has hidden, an orderly detach.
const CALM_MAX: Duration = Duration::from_secs(60);

/// After this long both ends know which connections have not survived: more than the keep-alive.
const CALM_MIN: Duration = Duration::from_secs(10);

/// Bytes of the disk that mostly nobody uses.
const SPARE_BYTES: u64 = 1 << 20;

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
    /// What rivals have done.
    pub rivals: Counts,
    /// How long it took in simulated time.
    pub took: Duration,
}

/// The world of a seed while it runs.
struct Simulation {
    world: World,
    scenario: Scenario,
    /// The targets. All serve the same disk.
    servers: Vec<Server>,
    /// Who has the disk, if they do not have it themselves.
    export: Option<Export>,
    clients: Vec<Client>,
    rivals: Vec<Rival>,
    /// The blocks that rivals share.
    registers: Vec<Register>,
    hosts: Vec<HostId>,
    chaos: Chaos,
    /// Decides in which order all have their turns.
    random: Random,
    /// Changes that wait for the one that is under way, if there is one.
    changes: VecDeque<Change>,
    is_changing: bool,
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
    simulation.stop_chaos();
    simulation.run_until(CALM_MAX, "attaching", |this| this.clients.iter().all(Client::is_connected));
    assert_eq!(simulation.flush_all(), 0, "the disk is well");
    simulation.world.fail_write_back(simulation.servers[0].host, DISK);
    let clients = simulation.clients.len() as u64;
    for _ in 0..3 {
        assert_eq!(simulation.flush_all(), clients, "the disk has said once that something was lost");
    }
    assert!(simulation.reopen_when_lost(0));
    assert_eq!(simulation.flush_all(), 0, "the disk was opened anew");
}

/// Runs a world in which nothing goes wrong, with a disk that takes exactly so long for everything. Returns what the
/// first core says while every host waits for the disk, beside its Asynchronous Event Request, and once all have been
/// answered many times.
///
/// # Panics
/// When a flush fails or is not answered.
pub fn run_exact(scenario: Scenario) -> [CoreUsage; 2] {
    let mut simulation = Simulation::new(scenario, false);
    simulation.stop_chaos();
    simulation.run_until(CALM_MAX, "attaching", |this| this.clients.iter().all(Client::is_connected));
    simulation.submit_flushes();
    let parked = simulation.clients.len();
    simulation.run_until(CALM_MAX, "the beginning of flushes", |this| {
        this.servers[0].usage()[0].commands == parked + this.clients.len()
    });
    let during = simulation.servers[0].usage()[0].clone();
    simulation.settle("flushes");
    for _ in 0..FLUSHES {
        assert_eq!(simulation.flush_all(), 0, "the disk is well");
    }
    [during, simulation.servers[0].usage()[0].clone()]
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
        let targets: Vec<HostId> =
            (0..scenario.machines.targets).map(|number| world.add_host(&format!("target{number}"))).collect();
        let target = targets[0];
        let export = (scenario.incidents == Incidents::Export).then(|| Export::new(&world, &scenario));
        let bytes = scenario.disk_sectors() * SECTOR_BYTES as u64;
        let disk_host = export.as_ref().map_or(target, |export| export.host);
        if export.is_some() {
            // A network that resets connections by itself is one in which nobody can know what a server still does.
            world.set_link(target, disk_host, LinkFaults { cut_probability: 0.0, ..scenario.link.clone() });
        }
        world.add_disk(disk_host, DISK, bytes, scenario.disk.clone());
        world.add_disk(target, SPARE, SPARE_BYTES, DiskFaults::default());
        for other in targets[1..].iter().filter(|_| export.is_none()) {
            world.share_disk((target, DISK.as_ref()), (*other, DISK.as_ref()));
        }
        let serve = |host| Server::new(&world, host, &scenario, export.as_ref());
        let servers: Vec<Server> = targets.into_iter().map(serve).collect();
        let server_of = |number: u64| &servers[number as usize % servers.len()];
        let clients: Vec<Client> = (0..scenario.clients)
            .map(|number| Client::new(&world, server_of(number), &scenario, number))
            .collect();
        let rivals: Vec<Rival> = (0..scenario.machines.rivals)
            .map(|number| Rival::new(&world, &servers[0], &scenario, number))
            .collect();
        let may_be_torn = scenario.disk.error_probability > 0.0 || scenario.disk.full_probability > 0.0;
        let registers =
            scenario.registers().into_iter().map(|range| Register::new(range, may_be_torn)).collect();
        let hosts = clients.iter().map(|one| one.host).chain(rivals.iter().map(|one| one.host)).collect();
        let chaos = Chaos::new(&scenario, world.now());
        let mut trace = Trace::new(scenario.seed, print);
        trace.tell(world.now(), &format!("{scenario:?}"));
        let random = Random::new(scenario.seed, 5);
        let (changes, is_changing) = (VecDeque::new(), false);
        Self {
            world,
            scenario,
            servers,
            export,
            clients,
            rivals,
            registers,
            hosts,
            chaos,
            random,
            changes,
            is_changing,
            trace,
        }
    }

    /// The workload, while things go wrong.
    fn work(&mut self) {
        self.run_until(WORKLOAD_MAX, "the workload", |this| {
            this.clients.iter().all(Client::is_finished) && this.rivals.iter().all(Rival::is_finished)
        });
    }

    /// Nothing goes wrong any more: everybody comes back.
    fn calm_down(&mut self) {
        self.stop_chaos();
        for engines in self.clients.iter_mut().map(|client| &mut client.engines) {
            while engines.removed_paths() > 0 && engines.change_paths(0).is_some() {}
        }
        let quiet = self.world.now() + CALM_MIN;
        self.run_until(CALM_MAX, "the return to calm", |this| {
            let back = |client: &Client| client.is_connected() && client.is_idle();
            let rivals_are_back = this.rivals.iter().all(Rival::is_connected);
            let all_are_back = this.clients.iter().all(back) && rivals_are_back;
            let servers_are_back =
                this.servers.iter().all(Server::is_running) && this.export.iter().all(Export::is_running);
            this.world.now() >= quiet && servers_are_back && all_are_back
        });
        if self.export.is_some() {
            // Only a flush shows that something was lost beneath.
            self.flush_all();
        }
        // Until here a flush may have failed; from now on none does.
        for number in 0..self.servers.len() {
            self.reopen_when_lost(number);
        }
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
            let (visible, stable) = self.servers[0].disk(range.start * SECTOR_BYTES as u64, length);
            let checked = client.checker().check_disk(&visible, &stable);
            assert_eq!(checked, Ok(()), "the disk after the last flush");
        }
        self.check_registers();
    }

    /// A look at what rivals share, on the disk itself.
    fn check_registers(&mut self) {
        for register in &mut self.registers {
            let range = register.range();
            let length = (range.end - range.start) as usize * SECTOR_BYTES;
            let (visible, _) = self.servers[0].disk(range.start * SECTOR_BYTES as u64, length);
            assert_eq!(register.check_disk(&visible), Ok(()), "what rivals have left");
        }
    }

    /// Everybody detaches, and nothing is left of anybody.
    fn leave(&mut self) {
        self.clients.iter_mut().for_each(Client::detach);
        self.rivals.iter_mut().for_each(Rival::leave);
        self.run_until(CALM_MAX, "leaving", |this| {
            this.clients.iter().all(Client::is_gone) && this.rivals.iter().all(Rival::is_gone)
        });
        for client in &self.clients {
            assert_eq!(client.leftovers(), None);
        }
        self.run_until(CALM_MAX, "targets to forget", |this| this.leftovers().is_empty());
        assert!(self.servers.iter().all(|one| one.violations() == 0), "both ends are ours");
    }

    fn outcome(&self) -> Outcome {
        Outcome {
            trace_hash: self.trace.hash() ^ self.world.trace_hash(),
            incidents: self.chaos.incidents(),
            failures: self.clients.iter().map(Client::failures).sum(),
            authenticated_again: self.clients.iter().map(|one| one.proofs().0).sum(),
            refusals: self.clients.iter().map(|one| one.proofs().1).sum(),
            rivals: self.rivals.iter().map(Rival::counts).sum(),
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
        self.turn_all();
        while !done(self) {
            self.pass_on(what, deadline);
        }
    }

    /// Lets time pass until something happens, which all act on.
    fn pass_on(&mut self, what: &str, deadline: Time) {
        if self.world.now() >= deadline {
            let left = self.leftovers();
            panic!("{what} did not come to an end in time; the targets hold {left:?}");
        }
        self.world.advance_until(self.next_action().min(deadline));
        self.turn_all();
    }

    /// Turns everybody until nobody has anything to do at this point in time.
    fn turn_all(&mut self) {
        // What a turn of an engine has brought about is sent by its next one.
        let mut quiet = 0;
        while quiet < 2 {
            self.boot_all();
            let Self { world, scenario, servers, export, hosts, chaos, .. } = &mut *self;
            let happened = chaos.act(world, scenario, servers, export.as_mut(), hosts);
            if let Some((what, incident)) = happened {
                self.trace.tell(self.world.now(), &what);
                self.act_on(incident);
            }
            self.make_changes();
            let active = self.turn_each();
            quiet = if active || self.world.has_ready() { 0 } else { quiet + 1 };
        }
    }

    /// Starts who is to be started now.
    fn boot_all(&mut self) {
        if let Some(host) = self.export.as_mut().and_then(Export::booted_when_due) {
            self.trace.tell(self.world.now(), &format!("{} boots", self.world.host_name(host)));
        }
        let booted: Vec<HostId> = self.servers.iter_mut().filter_map(Server::booted_when_due).collect();
        for server in booted {
            self.trace.tell(self.world.now(), &format!("{} boots", self.world.host_name(server)));
            self.export.iter_mut().for_each(Export::target_boots);
            self.tell_of_loss();
        }
    }

    /// Hosts know from now on that the disk may have lost something.
    fn tell_of_loss(&mut self) {
        self.clients.iter_mut().for_each(|client| client.checker.told_of_loss());
    }

    /// What targets still hold for hosts, in words.
    fn leftovers(&self) -> Vec<String> {
        self.servers.iter().filter_map(Server::leftovers).collect()
    }

    /// What is to be done about an incident.
    fn act_on(&mut self, incident: Incident) {
        match incident {
            Incident::PowerLost => {
                self.clients.iter_mut().for_each(Client::power_lost);
                self.registers.iter_mut().for_each(Register::power_lost);
            }
            Incident::ExportLost => {
                self.clients.iter_mut().for_each(|client| client.checker.lost_silently());
                // What is lost before a target has spoken with the server, it cannot know. Hosts know that a target has
                // gone.
                if !self.export.as_ref().is_some_and(Export::was_asked) {
                    self.tell_of_loss();
                }
                self.registers.iter_mut().for_each(Register::power_lost);
            }
            Incident::Torn => self.registers.iter_mut().for_each(Register::tear),
            Incident::Change(change) => self.changes.push_back(change),
            Incident::Path(choice) => {
                let (clients, now) = (self.clients.len() as u64, self.world.now());
                let client = &mut self.clients[(choice % clients) as usize];
                if let Some(what) = client.engines.change_paths(choice / clients) {
                    self.trace.tell(now, &format!("{}: {what}", self.world.host_name(client.host)));
                }
            }
            Incident::Reopen(number) => {
                self.reopen_when_lost(number);
            }
            Incident::Other => {}
        }
    }

    /// A turn for everybody, in any order. Whether a host did anything.
    fn turn_each(&mut self) -> bool {
        let Self { servers, export, clients, rivals, registers, random, trace, .. } = self;
        let (first_rival, targets) = (servers.len() + clients.len(), servers.len());
        export.iter_mut().for_each(Export::turn);
        let mut left: Vec<usize> = (0..first_rival + rivals.len()).collect();
        let mut active = false;
        while !left.is_empty() {
            match left.swap_remove(random.below(left.len() as u64) as usize) {
                number if number < targets => servers[number].turn(),
                number if number < first_rival => active |= clients[number - targets].turn(trace),
                number => active |= rivals[number - first_rival].turn(registers, trace),
            }
        }
        active
    }

    /// Ends everything that is wrong.
    fn stop_chaos(&mut self) {
        let Self { world, scenario, servers, hosts, chaos, .. } = self;
        for incident in chaos.stop(world, scenario, servers, hosts) {
            self.act_on(incident);
        }
    }

    /// When something happens that the world does not know of.
    fn next_action(&self) -> Time {
        let clients = self.clients.iter().map(Client::due).min().unwrap_or(Time::MAX);
        let boots = self.servers.iter().filter_map(Server::boots_at).min().unwrap_or(Time::MAX);
        let rivals = self.rivals.iter().map(Rival::due).min().unwrap_or(Time::MAX);
        let export = self.export.as_ref().and_then(Export::boots_at).unwrap_or(Time::MAX);
        self.chaos.due().min(clients).min(rivals).min(boots).min(export)
    }
}
