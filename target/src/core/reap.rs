//! The end of queues whose connections are gone.

use std::sync::Arc;

use super::{Core, CoreMessage, RESTS_AFTER};
use crate::controller::Controller;

impl Core {
    #[cold]
    pub(super) fn reap_gone(&mut self, number: u16) {
        let entry = &mut self.queues[usize::from(number)];
        let Some(queue) = entry else { return };
        let (id, left) = (queue.id(), queue.leave(self.env.reactor.now()));
        if left.is_some() && !queue.is_finished() {
            // What the disks hold for it may stay with them.
            self.env.hosts.forgive(queue.host());
        }
        if queue.is_finished()
            && let Some(queue) = entry.take()
        {
            self.env.hosts.leave(queue.host(), queue.controller().is_none());
            self.ended += 1;
            self.rests = RESTS_AFTER;
            let none_left = self.queues.iter().all(Option::is_none);
            debug_assert!(
                !none_left || !self.env.disk_operations.any(),
                "each operation of a disk ends once"
            );
            queue.finish();
        }
        if let Some(controller) = left {
            self.queue_left(id, &controller);
        }
    }

    /// A queue has left its controller.
    fn queue_left(&mut self, id: u16, controller: &Arc<Controller>) {
        if id == 0 {
            // Without its admin queue an association is over (NVMe over Fabrics: section 3.3.2.2 of Base 2.0).
            self.env.end_queues(controller, false);
        } else if let Some(core) = controller.core_of_queue(0) {
            self.env.cores[core].send(CoreMessage::Look);
        }
    }
}
