//! The control side brings a disk to rest while everybody uses it, or what one host does there.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use ringfab_target::Target;
use ringfab_target::control::claim_in_turns;
use ringfab_target::core::{ControlClaim, Cores, State};

use super::client::Client;
use super::content::SECTOR_BYTES;
use super::rival::Rival;
use super::scenario::Scenario;
use super::{CALM_MAX, Simulation, WORKLOAD_MAX};

/// How often the disk, or one host on it, comes to rest; how long that lasts, and how long all go on between two.
const RESTS: usize = 30;
const REST: Duration = Duration::from_millis(30);
const BETWEEN: Duration = Duration::from_millis(10);

/// Runs a world in which nothing goes wrong, while the control side brings the disk to rest again and again: now all of
/// it, now what the first host does there.
///
/// # Panics
/// When blocks change that are at rest, a disk works on them, or a command is not done in the end.
pub fn run_rests(scenario: Scenario) {
    let mut this = Simulation::new(scenario, false);
    this.stop_chaos();
    this.run_until(CALM_MAX, "attaching", |this| {
        this.clients.iter().all(Client::is_connected) && this.rivals.iter().all(Rival::is_connected)
    });
    let everything = 0..this.scenario.disk_sectors();
    let (mut last, mut news) = (Vec::new(), 0);
    for round in 0..RESTS {
        let of_first_host = round % 3 == 2;
        let range = if of_first_host { this.clients[0].checker().range() } else { everything.clone() };
        let claim = this.bring_to_rest(of_first_host);
        let before = this.sectors(&range);
        if !of_first_host {
            assert_eq!(this.commands_at_disk(), 0, "every core has let go of the disk");
        }
        this.pass(REST);
        assert!(this.sectors(&range) == before, "sectors {range:?} have changed while they were at rest");
        drop(claim);
        this.pass(BETWEEN);
        let now = this.sectors(&everything);
        news += usize::from(now != last);
        last = now;
    }
    assert!(news > RESTS / 4, "the seed is worth its time: {news}");
    this.run_until(WORKLOAD_MAX, "the workload", |this| {
        this.clients.iter().all(Client::is_finished) && this.rivals.iter().all(Rival::is_finished)
    });
    assert!(this.clients.iter().all(|client| client.failures() == 0), "commands wait, and do not fail");
    this.check_everything();
    this.leave();
}

impl Simulation {
    fn bring_to_rest(&mut self, first_host: bool) -> ControlClaim {
        let (target, cores): (Arc<Target>, Cores) = self.servers[0].serving().expect("it runs");
        let namespace = Arc::clone(&target.namespaces()[0]);
        let nqn = self.clients[0].host_nqn();
        let controllers = target.controllers();
        let of_host = controllers.iter().find(|controller| controller.host().nqn == nqn);
        let host = first_host.then(|| of_host.expect("it is connected").host().id);
        let deadline = self.world.now() + CALM_MAX;
        let mut turn = || self.pass_on("a disk's coming to rest", deadline);
        claim_in_turns(&cores, &namespace, host, &mut turn).expect("it runs")
    }

    /// What the disk holds there, as it reads.
    fn sectors(&self, range: &Range<u64>) -> Vec<u8> {
        let length = (range.end - range.start) as usize * SECTOR_BYTES;
        self.servers[0].disk(range.start * SECTOR_BYTES as u64, length).0
    }

    fn commands_at_disk(&self) -> u32 {
        let usage = self.servers[0].usage();
        let states = usage.iter().flat_map(|core| &core.states);
        states.filter(|one| one.state == State::AtDisk).map(|one| one.commands).sum()
    }
}
