//! What the end of a connection means for others of its host.

use super::commands::Commands;
use super::connection::Connection;
use super::log;
use crate::resources::Resources;
use crate::target::Instances;

/// A host that leaves ends its I/O queues first, and these are idle then. One that ends with commands outstanding was
/// lost, and so is its controller: nobody may rely on what the others are still sent.
pub(super) fn end_lost_controller(connection: &Connection, resources: &Resources) {
    let joined = connection.controller().filter(|_| connection.id != 0 && connection.has_joined());
    if let Some(controller) = joined.filter(|one| !one.has_ended() && !one.state().registers.is_left()) {
        log::io_queue_lost(controller, connection.id);
        resources.lose(controller);
    }
}

/// Disks work on what it has left behind: the host's other controllers wait for these.
pub(super) fn fence_others(connection: &Connection, commands: &Commands, resources: &Resources) {
    if let Some(controller) = connection.controller()
        && connection.id != 0
        && !commands.table.is_idle()
    {
        Instances(&resources.target).fence_others(controller);
    }
}
