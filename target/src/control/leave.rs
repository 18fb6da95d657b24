//! Asks hosts to go elsewhere before the way by which they came ends.
//!
//! Every access group becomes inaccessible to a host that can go: it has asked for events of access groups, and has
//! another controller in the subsystem by a way that stays, or other processes serve the subsystem, too. All others
//! keep what they have: a host with one way would only wait.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ringfab_process::log::NEVER_FOLDED;

use super::change::{OpenedDisks, apply};
use crate::controller::{Access, Controller};
use crate::core::Cores;
use crate::model::ServedError;
use crate::target::Target;

/// How long hosts have at most.
pub(crate) const LEAVE_LIMIT: Duration = Duration::from_secs(5);

/// How often something is looked at that is waited for.
const PAUSE: Duration = Duration::from_millis(2);

/// How often a change is made anew when another one came in between.
const TRIES: usize = 10;

/// Asks the hosts that came by these listeners to go elsewhere, and waits until they know it and nothing of theirs runs
/// there any more: for so long at most, and until `is_over`.
pub(crate) fn leave(
    target: &Target,
    cores: &Cores,
    ports: &BTreeSet<u16>,
    limit: Duration,
    mut is_over: impl FnMut() -> bool,
) {
    let deadline = Instant::now() + limit;
    let leaving = target.who_can_leave(&target.served(), ports);
    if leaving.is_empty() {
        return;
    }
    let hosts: BTreeSet<&str> = leaving.iter().map(|one| one.host().nqn.as_str()).collect();
    tracing::info!(
        name: NEVER_FOLDED,
        controllers = leaving.len(),
        hosts = hosts.len(),
        "hosts are asked to go elsewhere"
    );
    if let Err(error) = close_ways(target, cores, ports) {
        return tracing::warn!(error, "hosts could not be asked to go elsewhere");
    }
    let mut waited_for = still_here(target, &leaving);
    while !waited_for.is_empty() && Instant::now() < deadline && !is_over() {
        thread::sleep(PAUSE);
        waited_for = still_here(target, &leaving);
    }
    for controller in waited_for {
        let (host, id) = (controller.host().nqn.as_str(), controller.id());
        tracing::warn!(host, controller = id, "a host has not read that it is to go elsewhere");
    }
}

/// Serves the same, with these listeners closed to hosts that can go elsewhere.
fn close_ways(target: &Target, cores: &Cores, ports: &BTreeSet<u16>) -> Result<(), String> {
    let mut outcome = Ok(());
    for _ in 0..TRIES {
        let mut draft = target.served().draft();
        draft.close_ways(ports);
        let next = draft.check().map_err(|error| error.to_string())?;
        outcome = apply(target, cores, cores.disk_handles(), next, OpenedDisks::default());
        if outcome != Err(ServedError::Outdated.to_string()) {
            break;
        }
    }
    outcome
}

/// Those that are still connected and have not read the log page since.
fn still_here(target: &Target, leaving: &[Arc<Controller>]) -> Vec<Arc<Controller>> {
    let connected = target.controllers();
    let is_here = |one: &&Arc<Controller>| connected.iter().any(|other| Arc::ptr_eq(one, other));
    leaving.iter().filter(is_here).filter(|one| !Access(one).has_read_log()).cloned().collect()
}
