//! Other controllers of a host: by Cross-Controller Reset an admin queue has one ended, and waits for that; and it
//! tells of those that have lost the host.

use std::sync::Arc;

use ringfab_spec::log::{ControllerInstance, CrossControllerResetResult};

use super::automaton::Event;
use super::commands::Commands;
use super::connection::Connection;
use super::log;
use crate::controller::{Controller, Event as AsyncEvent, ResetAnswer};
use crate::resources::Resources;
use crate::resources::states::State;
use crate::target::Instances;

/// Ends an instance of a controller at once, on all cores. An instance that is none any more may still have queues,
/// which are ending.
pub(super) fn begin(resources: &Resources, asker: &Arc<Controller>, impacted: ControllerInstance) {
    resources.target.end_watch.add(asker);
    if let Some(controller) = Instances(&resources.target).find(impacted)
        && asker.subsystem().protections().ends_connections
    {
        log::reset_by_another(&controller, asker);
        resources.fence(&controller);
    }
    // It may be over already.
    asker.events().wake();
}

/// Answers the commands whose resets are over, or have taken long enough, and tells the host of others.
pub(super) fn report(commands: &mut Commands, connection: &mut Connection, resources: &mut Resources) {
    let Some(controller) = connection.controller().cloned() else { return };
    if !controller.state().awaits_others() {
        return;
    }
    Instances(&resources.target).look_at_lost(&controller);
    let news = Instances(&resources.target).look_at_resets(&controller, resources.reactor.now());
    for impacted in &news.completed {
        log::reset_is_over(&controller, *impacted);
    }
    if !news.completed.is_empty() {
        controller.events().post(AsyncEvent::CrossControllerResetCompleted);
    }
    for ResetAnswer { command_id, is_over } in news.answers {
        let slot = commands.table.find_cid(command_id);
        let Some(slot) = slot.filter(|slot| commands.table[*slot].state() == State::Resetting) else {
            continue;
        };
        let result = CrossControllerResetResult::default().with_immediate(is_over);
        commands.table[slot].result = u64::from(result.bits());
        commands.on_event(connection, resources, slot, Event::HostNotified);
    }
}
