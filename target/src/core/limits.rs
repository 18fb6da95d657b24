//! Commands that waited because a limit had been reached.

use ringfab_reactor::Token;

use super::{Core, LIMIT_KIND, owner};
use crate::queue::Gate;
use crate::resources::Resources;
use crate::resources::operations::DEFERRED_MAX;

/// Commands begin that their limits let pass.
pub(super) fn serve(core: &mut Core) {
    let now = core.resources.states.now();
    while let Some(request) = core.resources.limited.next(now) {
        if let Some(queue) = core.queues[usize::from(request.queue)].as_mut() {
            queue.pass(&mut core.resources, request, Gate::Limits);
        }
        core.start_deferred(DEFERRED_MAX);
    }
    core.start_deferred(0);
}

/// The core looks again when the first of those that wait can begin.
pub(super) fn set_timer(resources: &mut Resources) {
    let Some((at, before)) = resources.limited.timer_needed() else { return };
    if let Some(timer) = before {
        resources.reactor.cancel_timer(timer);
    }
    let timer = resources.reactor.set_timer(at, Token::new(owner::CORE, LIMIT_KIND, 0, 0));
    resources.limited.set_timer(at, timer);
}
