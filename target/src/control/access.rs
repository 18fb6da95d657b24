//! The states of access groups, as `status` and `ana show` show them: a row for each group and way.

use std::net::SocketAddr;

use serde::Serialize;

use crate::config::state_word;
use crate::model::{Served, ServedSubsystem};

/// An access group by one way.
#[derive(Clone, Debug, Serialize)]
pub struct AccessGroupState {
    /// NQN of the subsystem.
    pub subsystem: String,
    /// Its identifier.
    pub group: u32,
    /// The way: the address of a listener, or a local address of one on all addresses of which something is said.
    pub listener: SocketAddr,
    /// `optimized`, `non-optimized`, `inaccessible`, `persistent-loss` or `change`.
    pub state: &'static str,
    /// The configured state, which is another one while its disks are gone.
    pub configured: &'static str,
    /// Whether the way is being drained: hosts that can go elsewhere find every group inaccessible.
    pub draining: bool,
    /// What becomes of the group when its disks are gone: `error`, `inaccessible` or `persistent-loss`.
    pub on_lost_disk: &'static str,
    /// Its namespaces.
    pub namespaces: Vec<u32>,
}

/// All groups of all subsystems.
pub(super) fn states(served: &Served) -> Vec<AccessGroupState> {
    served.subsystems().iter().flat_map(|one| of_subsystem(served, one)).collect()
}

fn of_subsystem(served: &Served, subsystem: &ServedSubsystem) -> Vec<AccessGroupState> {
    let groups = subsystem.groups();
    let mut all = Vec::new();
    for group in groups.ids() {
        let own = subsystem.namespaces().map(|one| one.nsid()).filter(|nsid| groups.of(*nsid) == group);
        let namespaces: Vec<u32> = own.collect();
        for way in served.listeners().iter().flat_map(|one| subsystem.ways(one, group)) {
            all.push(AccessGroupState {
                subsystem: subsystem.nqn().to_owned(),
                group,
                listener: way.local,
                state: state_word(subsystem.access_state(group, &way)),
                configured: state_word(groups.state(group, &way)),
                draining: served.is_closing(&way.listener),
                on_lost_disk: groups.on_lost_disk(group).name(),
                namespaces: namespaces.clone(),
            });
        }
    }
    all
}
