//! Claims on their way between cores; see [`claims`](super::claims).

use super::claims::{ClaimId, ClaimMessage};
use super::messages::QueueMessage;
use super::{RequestId, Resources};
use crate::nvm::Extent;

impl Resources {
    /// Asks for blocks; the answer comes as [`ClaimMessage::Granted`].
    pub(crate) fn claim(&mut self, extent: Extent, asker: RequestId) -> ClaimId {
        let id = self.claims.make(self.core, &extent);
        self.to_orderer(id, ClaimMessage::Request { extent, asker });
        id
    }

    /// Gives claimed blocks back.
    pub(crate) fn release(&self, id: ClaimId) {
        self.to_orderer(id, ClaimMessage::Released);
    }

    fn to_orderer(&self, id: ClaimId, message: ClaimMessage) {
        self.cores[id.orderer(self.cores.len())].send(QueueMessage::Claim(id, message));
    }

    fn to_every_core(&self, id: ClaimId, message: ClaimMessage) {
        self.cores.iter().for_each(|core| core.send(QueueMessage::Claim(id, message)));
    }

    fn begin_claims(&mut self) {
        while let Some((id, extent)) = self.claims.begin_next(self.cores.len()) {
            self.to_every_core(id, ClaimMessage::Hold(extent));
        }
    }

    /// This core orders the claims of a disk: one more is asked for.
    pub(crate) fn order_claim(&mut self, id: ClaimId, extent: Extent, asker: RequestId) {
        self.claims.order(id, extent, asker);
        self.begin_claims();
    }

    /// A core holds the blocks of a claim that this one orders; with the last, it is granted.
    pub(crate) fn count_held(&mut self, id: ClaimId) {
        if let Some(asker) = self.claims.count_held(id) {
            self.cores[id.core()].send(QueueMessage::Claim(id, ClaimMessage::Granted(asker)));
        }
    }

    /// A claim that this core orders is not needed any more; others that waited for it begin.
    pub(crate) fn end_claim(&mut self, id: ClaimId) {
        self.claims.end(id);
        self.to_every_core(id, ClaimMessage::Unhold);
        self.begin_claims();
    }

    /// Reports the blocks that no disk of this core works on any more; `is_busy` says whether one does.
    #[inline]
    pub(crate) fn report_held(&mut self, is_busy: impl Fn(&Extent) -> bool) {
        while let Some(id) = self.claims.next_held(&is_busy) {
            self.to_orderer(id, ClaimMessage::Held);
        }
    }
}
