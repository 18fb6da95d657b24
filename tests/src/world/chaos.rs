//! Incidents: what goes wrong, and when.

use std::time::Duration;

use ringfab_reactor::Time;
use ringfab_reactor::sim::{HostId, LinkFaults, World};

use super::content::Random;
use super::export::{Export, REPLAY_DELAY};
use super::scenario::{Incidents, Scenario};
use super::server::{Change, DISK, Server};

/// The most incidents of a world, so that every workload comes to its end.
const INCIDENTS_MAX: u32 = 80;

/// Makes incidents happen until it is told to stop.
#[derive(Debug)]
pub struct Chaos {
    random: Random,
    next: Time,
    /// Partitions and slow disks that come to an end.
    repairs: Vec<(Time, Repair)>,
    incidents: u32,
}

#[derive(Clone, Copy, Debug)]
enum Repair {
    Partition(HostId, HostId),
    /// From one to the other only.
    OneWay(HostId, HostId),
    /// The disk that this host has.
    Disk(HostId),
    /// The keys of the host with this number.
    Keys(u64),
}

/// What is to be done about an incident.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incident {
    /// The target's disk has lost its volatile cache.
    PowerLost,
    /// What the target had in flight on its disk may have happened in any part.
    Torn,
    /// The server that has the disk has lost its volatile cache. The target may find out.
    ExportLost,
    /// An administrator changes what is served.
    Change(Change),
    /// A host gets a path, or loses one, by order of its administrator. The number says which.
    Path(u64),
    /// An administrator has the disk of the target with this number opened anew: it has lost something.
    Reopen(usize),
    /// Nothing that changes what the disk holds.
    Other,
}

impl Chaos {
    /// The incidents of a scenario.
    pub fn new(scenario: &Scenario, now: Time) -> Self {
        let mut this =
            Self { random: Random::new(scenario.seed, 2), next: now, repairs: Vec::new(), incidents: 0 };
        this.next = now + this.pause(scenario.calm);
        this
    }

    /// How many there were.
    pub fn incidents(&self) -> u32 {
        self.incidents
    }

    /// When something is to happen next.
    pub fn due(&self) -> Time {
        self.repairs.iter().map(|(at, _)| *at).min().unwrap_or(Time::MAX).min(self.next)
    }

    /// Lets what is due happen; says what it was.
    pub fn act(
        &mut self,
        world: &World,
        scenario: &Scenario,
        servers: &mut [Server],
        export: Option<&mut Export>,
        hosts: &[HostId],
    ) -> Option<(String, Incident)> {
        let now = world.now();
        if let Some(index) = self.repairs.iter().position(|(at, _)| *at <= now) {
            let (_, repair) = self.repairs.swap_remove(index);
            let incident = repair.end(world, scenario);
            return Some((format!("{repair:?} ends"), incident));
        }
        if now < self.next {
            return None;
        }
        self.next = now + self.pause(scenario.calm);
        if let Some(number) = servers.iter().position(|server| server.lost_disk().is_some()) {
            return Some(("the disk is to be opened anew".to_owned(), Incident::Reopen(number)));
        }
        let server = match servers {
            [only] => only,
            several => &mut several[self.random.below(scenario.machines.targets) as usize],
        };
        if !server.is_running() || export.as_ref().is_some_and(|export| !export.is_running()) {
            return None;
        }
        self.incidents += 1;
        if self.incidents == INCIDENTS_MAX {
            self.next = Time::MAX;
        }
        Some(match export {
            Some(export) => self.strike_export(world, scenario, server, export, hosts),
            None => self.strike(world, scenario, server, hosts),
        })
    }

    /// Ends everything that is wrong, as far as no administrator has to. Returns what these are to do.
    pub fn stop(
        &mut self,
        world: &World,
        scenario: &Scenario,
        servers: &[Server],
        hosts: &[HostId],
    ) -> Vec<Incident> {
        self.next = Time::MAX;
        let repairs = std::mem::take(&mut self.repairs).into_iter();
        let incidents = repairs.map(|(_, repair)| repair.end(world, scenario)).collect();
        let calm = |faults| LinkFaults {
            cut_probability: 0.0,
            refuse_probability: 0.0,
            late_max: Duration::ZERO,
            ..faults
        };
        for way in servers.iter().flat_map(Server::ways) {
            hosts.iter().for_each(|host| world.set_link(*host, *way, calm(scenario.link.clone())));
        }
        for server in servers.iter().filter(|server| server.disk_host != server.host) {
            world.set_link(server.host, server.disk_host, calm(scenario.link.clone()));
        }
        let mut disk = scenario.disk.clone();
        (disk.error_probability, disk.full_probability) = (0.0, 0.0);
        world.set_disk_faults(servers[0].disk_host, DISK, disk);
        incidents
    }

    fn strike(
        &mut self,
        world: &World,
        scenario: &Scenario,
        server: &mut Server,
        hosts: &[HostId],
    ) -> (String, Incident) {
        let (host, way) = (self.random.pick(hosts), self.any_way(server));
        let until = world.now() + self.pause(Duration::from_millis(1500));
        let kinds = match scenario.incidents {
            Incidents::All => 14,
            Incidents::Cuts | Incidents::Export => 1,
            Incidents::Ways => return self.strike_way(world, host, way, until),
            Incidents::CutsAndKeys if self.random.one_in(3) => {
                return self.exchange_keys(until, scenario.clients);
            }
            Incidents::CutsAndKeys => 1,
        };
        match self.random.below(kinds) {
            0..=2 => {
                world.cut_links(host, way);
                (
                    format!("links of {} to {} cut", world.host_name(host), world.host_name(way)),
                    Incident::Other,
                )
            }
            3 => self.part(world, host, way, until),
            11..=13 => self.strike_way(world, host, way, until),
            4 => self.slow_down(world, scenario, server.disk_host, until),
            5 if server.is_running() => {
                let pause = Duration::from_secs(1) + self.pause(Duration::from_millis(500));
                server.kill(pause);
                (format!("{} is killed, for {pause:?}", world.host_name(server.host)), Incident::Other)
            }
            6 | 7 => {
                let pause = self.pause(Duration::from_millis(300));
                server.lose_power(pause);
                // A disk that several targets have keeps its own.
                let lost = if scenario.machines.targets == 1 { Incident::PowerLost } else { Incident::Torn };
                (format!("{} loses power, for {pause:?}", world.host_name(server.host)), lost)
            }
            8..=10 if server.is_running() => self.change(scenario),
            _ => ("nothing goes wrong".to_owned(), Incident::Other),
        }
    }

    fn slow_down(
        &mut self,
        world: &World,
        scenario: &Scenario,
        host: HostId,
        until: Time,
    ) -> (String, Incident) {
        let mut slow = scenario.disk.clone();
        slow.delay_max = (slow.delay_max * 10).min(Duration::from_millis(800));
        world.set_disk_faults(host, DISK, slow);
        self.repairs.push((until, Repair::Disk(host)));
        ("the disk is slow".to_owned(), Incident::Other)
    }

    /// Something happens to the server that has the disk, or between it and the target, or to the target.
    fn strike_export(
        &mut self,
        world: &World,
        scenario: &Scenario,
        server: &mut Server,
        export: &mut Export,
        hosts: &[HostId],
    ) -> (String, Incident) {
        let until = world.now() + self.pause(Duration::from_millis(1500));
        let (target, disk) = (server.host, export.host);
        // While nothing comes through between the two, nothing of a target that has gone does, but it would later.
        let is_parted = self.repairs.iter().any(|(_, repair)| repair.is_between(target, disk));
        let down = Duration::from_secs(1) + self.pause(Duration::from_millis(500));
        let other = |what: String| (what, Incident::Other);
        match self.random.below(14) {
            0..=2 => {
                export.kill(down);
                other(format!("the server is killed, for {down:?}"))
            }
            3 | 4 => {
                export.lose_power(down);
                (format!("the server loses power, for {down:?}"), Incident::ExportLost)
            }
            5 => self.part(world, target, disk, until),
            6 => self.part_one_way(world, target, disk, until),
            7 => self.part_one_way(world, disk, target, until),
            8 | 9 if !is_parted => {
                world.time_out_links(target, disk);
                other("the target gives its connections to the server up".to_owned())
            }
            10 => self.slow_down(world, scenario, disk, until),
            11 if !is_parted => {
                server.kill(REPLAY_DELAY + down);
                other(format!("{} is killed", world.host_name(target)))
            }
            12 if !is_parted => {
                server.lose_power(REPLAY_DELAY + down);
                other(format!("{} loses power", world.host_name(target)))
            }
            13 => {
                let (host, way) = (self.random.pick(hosts), self.any_way(server));
                world.cut_links(host, way);
                other(format!("links of {} to {} cut", world.host_name(host), world.host_name(way)))
            }
            _ => other("nothing goes wrong".to_owned()),
        }
    }

    /// An administrator is to change what is served.
    fn change(&mut self, scenario: &Scenario) -> (String, Incident) {
        if self.random.below(3) > 0 {
            let change = Change::Others(self.random.below(1 << 20));
            return ("something else is to be served".to_owned(), Incident::Change(change));
        }
        let cores = self.random.below(scenario.machines.cores as u64) as u32;
        let what = "something is to be served that a core cannot open";
        (what.to_owned(), Incident::Change(Change::Unservable { cores }))
    }

    /// Something happens to a way, or to the path that a host has by it.
    fn strike_way(&mut self, world: &World, host: HostId, way: HostId, until: Time) -> (String, Incident) {
        match self.random.below(5) {
            0 => self.part(world, host, way, until),
            1 => self.part_one_way(world, host, way, until),
            2 => self.part_one_way(world, way, host, until),
            3 => {
                let choice = self.random.below(1 << 20);
                ("paths of a host are to change".to_owned(), Incident::Path(choice))
            }
            _ => {
                world.cut_links(host, way);
                (
                    format!("links of {} to {} cut", world.host_name(host), world.host_name(way)),
                    Incident::Other,
                )
            }
        }
    }

    fn part(&mut self, world: &World, host: HostId, way: HostId, until: Time) -> (String, Incident) {
        world.partition(host, way, true);
        self.repairs.push((until, Repair::Partition(host, way)));
        (format!("{} cannot reach {}", world.host_name(host), world.host_name(way)), Incident::Other)
    }

    fn part_one_way(&mut self, world: &World, from: HostId, to: HostId, until: Time) -> (String, Incident) {
        world.partition_one_way(from, to, true);
        self.repairs.push((until, Repair::OneWay(from, to)));
        let what = format!("what {} sends does not reach {}", world.host_name(from), world.host_name(to));
        (what, Incident::Other)
    }

    fn any_way(&mut self, server: &Server) -> HostId {
        match server.ways() {
            [only] => *only,
            several => self.random.pick(several),
        }
    }

    /// A host has other keys at the target for a while.
    fn exchange_keys(&mut self, until: Time, hosts: u64) -> (String, Incident) {
        let host = self.random.below(hosts);
        self.repairs.push((until, Repair::Keys(host)));
        ("keys are to be exchanged".to_owned(), Incident::Change(Change::Keys { host, own: false }))
    }

    /// Up to twice the mean.
    fn pause(&mut self, mean: Duration) -> Duration {
        let nanos = u64::try_from(mean.as_nanos()).unwrap_or(u64::MAX / 4);
        Duration::from_nanos(self.random.below(nanos * 2 + 1))
    }
}

impl Repair {
    /// Whether it lets come through again what two hosts send each other.
    fn is_between(self, one: HostId, other: HostId) -> bool {
        match self {
            Self::Partition(a, b) | Self::OneWay(a, b) => (a, b) == (one, other) || (b, a) == (one, other),
            Self::Disk(_) | Self::Keys(_) => false,
        }
    }

    /// Ends what is wrong, or says what an administrator has to do.
    fn end(self, world: &World, scenario: &Scenario) -> Incident {
        match self {
            Self::Partition(host, target) => world.partition(host, target, false),
            Self::OneWay(from, to) => world.partition_one_way(from, to, false),
            Self::Disk(target) => world.set_disk_faults(target, DISK, scenario.disk.clone()),
            Self::Keys(host) => return Incident::Change(Change::Keys { host, own: true }),
        }
        Incident::Other
    }
}
