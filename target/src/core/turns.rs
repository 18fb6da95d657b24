//! Commands that waited for the turn of their host.

use super::Core;
use crate::queue::Gate;
use crate::resources::Resources;
use crate::resources::operations::DEFERRED_MAX;

/// Commands begin whose hosts have their turn. Behind one that waits for buffers, those that need some have none, so
/// that buffers that are given back bring about one command at a time. Answers that are ready leave first.
pub(super) fn serve(core: &mut Core) {
    if core.resources.turns.take_at_once() {
        core.start_deferred(0);
        core.resources.transports.flush(&mut core.resources.reactor);
        core.resources.end_borrows();
    }
    loop {
        let Resources { turns, hosts, .. } = &mut core.resources;
        let blocked = |host, kind| hosts.first_waiting(host, kind).is_some();
        let Some(request) = turns.next(blocked) else { return core.start_deferred(0) };
        if let Some(queue) = core.queues[usize::from(request.queue)].as_mut() {
            queue.pass(&mut core.resources, request, Gate::Turn);
        }
        core.start_deferred(DEFERRED_MAX);
    }
}
