//! What a core does about claims of fused operations to blocks; see [`crate::resources::claims`].

use super::Core;
use crate::resources::claims::{ClaimId, ClaimMessage};

impl Core {
    pub(super) fn on_claim(&mut self, id: ClaimId, message: ClaimMessage) {
        match message {
            ClaimMessage::Request { extent, asker } => self.resources.order_claim(id, extent, asker),
            ClaimMessage::Hold(extent) => {
                self.resources.claims.hold(id, extent);
                self.report_held();
            }
            ClaimMessage::Held => self.resources.count_held(id),
            ClaimMessage::Granted(asker) => {
                let queue = self.queues.get_mut(usize::from(asker.queue)).and_then(Option::as_mut);
                let taken = queue.is_some_and(|queue| queue.claimed(&mut self.resources, id));
                if !taken {
                    self.resources.release(id);
                }
            }
            ClaimMessage::Released => self.resources.end_claim(id),
            ClaimMessage::Unhold => self.resume_delayed(id),
        }
    }

    /// Reports the blocks that no disk of this core works on any more. Called in every turn while there are others.
    pub(super) fn report_held(&mut self) {
        let Self { resources, queues, .. } = self;
        resources.report_held(|extent| queues.iter().flatten().any(|queue| queue.is_working_on(extent)));
    }

    /// Blocks are free again: who waited tries again, in order.
    fn resume_delayed(&mut self, id: ClaimId) {
        for _ in 0..self.resources.claims.unhold(id) {
            let Some(request) = self.resources.claims.next_delayed() else { break };
            if let Some(queue) = self.queues.get_mut(usize::from(request.queue)).and_then(Option::as_mut) {
                queue.blocks_released(&mut self.resources, request);
            }
        }
    }
}
