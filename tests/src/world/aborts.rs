//! Commands that wait on one core are aborted from another.

use std::time::Duration;

use ringfab_target::config::{NamespaceLimits, RateLimits};

use super::rival::Rival;
use super::scenario::Scenario;
use super::server::NQN;
use super::{CALM_MAX, Simulation};

/// Writes of each queue, of which the limit lets one pass in a second, of all queues.
const WRITES: usize = 4;

/// How long their aborts may take: far less than the limit makes them wait.
const SOON: Duration = Duration::from_millis(500);

/// Runs a world in which nothing goes wrong, while a limit makes nearly every command wait. Hosts have all of them
/// aborted by their admin queues, each of which is on one core.
///
/// # Panics
/// When commands of a queue are not aborted, on whichever core it is, or something is left of them.
pub fn run_aborts(scenario: Scenario) {
    let mut this = Simulation::new(scenario, false);
    this.stop_chaos();
    this.run_until(CALM_MAX, "attaching", |this| this.rivals.iter().all(Rival::is_connected));
    this.limit(Some(1));
    let Simulation { rivals, registers, trace, .. } = &mut this;
    rivals.iter_mut().for_each(|rival| rival.write_on_each(WRITES, registers, trace));
    this.pass(Duration::from_millis(100));
    let Simulation { rivals, trace, .. } = &mut this;
    rivals.iter_mut().for_each(|rival| rival.abort_all(trace));
    this.pass(SOON);
    for rival in &this.rivals {
        let queues = rival.queues_with_aborted();
        assert_eq!(queues, rival.io_queues(), "commands of each queue are aborted");
    }
    this.limit(None);
    this.run_until(CALM_MAX, "the end of all commands", |this| this.rivals.iter().all(Rival::is_idle));
    this.check_registers();
    this.leave();
}

impl Simulation {
    /// So many writes pass in a second, or all.
    fn limit(&mut self, write_iops: Option<u64>) {
        let all = RateLimits { write_iops, ..RateLimits::default() };
        let limits = NamespaceLimits { all, ..NamespaceLimits::default() };
        let changed = self.change(|_, draft| draft.limit_namespace(NQN, 1, &limits).expect("it is there"));
        assert_eq!(changed, Ok(()));
    }
}
