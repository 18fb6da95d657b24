//! The end of queues whose connections are gone, and what idle ones give back.

use std::sync::Arc;
use std::time::Duration;

use ringfab_memory::trim_heap;

use super::Core;
use crate::controller::Controller;
use crate::queue::Owner;
use crate::resources::messages::QueueMessage;
use crate::worker::Task;

/// How often memory is given back after the last queue has ended, and after how many queues the heap is trimmed.
const TRIMS_AFTER: u32 = 8;
const ENDED_MANY: usize = 64;

/// How long the trimming of the heap takes at most before it is shown as hanging.
const TRIM_LIMIT: Duration = Duration::from_secs(60);

/// Queues that let go of their slots at once. Each takes some microseconds, which nobody should notice.
const RESTS_MAX: usize = 32;

impl Core {
    /// Gives back memory that has not been used for some time.
    pub(super) fn trim(&mut self) {
        self.resources.transports.trim(&mut self.resources.reactor);
        let rested = self.rest_queues();
        self.ended += rested;
        self.rests = if rested > 0 { TRIMS_AFTER } else { self.rests.saturating_sub(1) };
        // The last of many that left together have left a while ago.
        if self.rests == 0 && self.ended >= ENDED_MANY {
            // It may take milliseconds.
            let task = Task::new("trimming", "the heap", TRIM_LIMIT);
            if let Err(error) = self.resources.workers.submit(task, trim_heap, |_| ()) {
                tracing::debug!(%error, "the heap is not trimmed");
            }
        }
        if self.rests == 0 {
            self.ended = 0;
        }
    }

    /// Asks each queue once at most, until so many have let go of slots. The next time it goes on behind the last one,
    /// so that queues that are busy now and then do not keep others from it.
    fn rest_queues(&mut self) -> usize {
        let mut rested = 0;
        for _ in 0..self.queues.len() {
            let number = self.rests_from % self.queues.len();
            self.rests_from = number + 1;
            rested += usize::from(self.queues[number].as_mut().is_some_and(|queue| queue.trim()));
            if rested == RESTS_MAX {
                break;
            }
        }
        rested
    }

    #[cold]
    pub(super) fn reap_closed(&mut self, number: u16) {
        let entry = &mut self.queues[usize::from(number)];
        let Some(queue) = entry else { return };
        let (id, left) = (queue.id(), queue.leave(self.resources.reactor.now()));
        if left.is_some() && !queue.is_finished() {
            // What the disks hold for it may stay with them.
            self.resources.hosts.exempt_held(queue.owner().host);
        }
        if queue.is_finished()
            && let Some(queue) = entry.take()
        {
            let Owner { address, host, is_opening } = queue.owner();
            self.resources.hosts.leave(address, host, is_opening);
            if !self.resources.hosts.is_here(host) {
                self.resources.turns.leave(host);
                self.resources.limited.leave(host);
            }
            self.ended += 1;
            self.rests = TRIMS_AFTER;
            let none_left = self.queues.iter().all(Option::is_none);
            debug_assert!(
                !none_left || !self.resources.disk_operations.any(),
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
            self.resources.target.admin_ended(controller);
            // Without its admin queue an association is over (NVMe over Fabrics: section 3.3.2.2 of Base 2.0).
            self.resources.end_queues(controller, false);
        } else if let Some(core) = controller.core_of_queue(0) {
            self.resources.cores[core].send(QueueMessage::CheckControllers);
        }
    }
}
