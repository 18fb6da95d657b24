//! Claims on their way between cores; see [`claims`](super::claims).

use super::claims::{Asker, ClaimId, ClaimMessage};
use super::messages::QueueMessage;
use super::scope::Scope;
use super::{RequestId, Resources};
use crate::nvm::Extent;

impl Resources {
    /// Asks for the blocks of a fused pair; the answer comes as [`ClaimMessage::Granted`].
    pub(crate) fn claim(&mut self, extent: Extent, compare: RequestId) -> ClaimId {
        let scope = Scope::Blocks(extent);
        let id = self.claims.make(self.core, &scope);
        let asker = Asker::Pair { core: self.core, compare };
        self.to_orderer(id, ClaimMessage::Request { scope, asker });
        id
    }

    /// Gives up what was claimed.
    pub(crate) fn release(&self, id: ClaimId) {
        self.to_orderer(id, ClaimMessage::Released);
    }

    fn to_orderer(&self, id: ClaimId, message: ClaimMessage) {
        self.cores[id.orderer(self.cores.len())].send(QueueMessage::Claim(id, message));
    }

    fn to_every_core(&self, id: ClaimId, message: &ClaimMessage) {
        self.cores.iter().for_each(|core| core.send(QueueMessage::Claim(id, message.clone())));
    }

    fn begin_claims(&mut self) {
        while let Some((id, scope)) = self.claims.begin_next(self.cores.len()) {
            self.to_every_core(id, &ClaimMessage::Hold(scope));
        }
    }

    /// This core orders the claims of a disk: one more is asked for.
    pub(crate) fn order_claim(&mut self, id: ClaimId, scope: Scope, asker: Asker) {
        self.claims.order(id, scope, asker);
        self.begin_claims();
    }

    /// A core holds a claim that this one orders; with the last, it is granted.
    pub(crate) fn count_held(&mut self, id: ClaimId) {
        let Some(asker) = self.claims.count_held(id) else { return };
        let is_awaited = match asker {
            Asker::Pair { core, compare } => {
                self.cores[core].send(QueueMessage::Claim(id, ClaimMessage::Granted { compare }));
                true
            }
            Asker::Control(reply) => reply.send(()).is_ok(),
        };
        if !is_awaited {
            self.end_claim(id);
        }
    }

    /// A claim that this core orders is not needed any more; others that waited for it begin.
    pub(crate) fn end_claim(&mut self, id: ClaimId) {
        self.claims.end(id);
        self.to_every_core(id, &ClaimMessage::Unhold);
        self.begin_claims();
    }

    /// Reports the claims in whose scope no disk of this core works any more; `is_busy` says whether one does.
    #[inline]
    pub(crate) fn report_held(&mut self, is_busy: impl Fn(&Scope) -> bool) {
        while let Some(id) = self.claims.next_held(&is_busy) {
            self.to_orderer(id, ClaimMessage::Held);
        }
    }
}
