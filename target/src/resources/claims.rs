//! Claims to blocks, for fused operations: while one is granted, no other command reads or changes them, on any core.
//!
//! A core that wants to claim blocks asks the one core that orders the claims of that disk. Overlapping claims wait for
//! each other there. For each other claim, the ordering core asks every core to hold the blocks. A core holds them once
//! its own disk no longer works on them. From then on, new commands for these blocks wait, and hold nothing that a
//! claim could need. When all cores have confirmed, the claim is granted. No lock is taken, and a command without a
//! claim in its way pays one comparison.

use std::collections::VecDeque;

use super::messages::QueueMessage;
use super::{RequestId, Resources};
use crate::nvm::{Action, Extent};

/// A claim, unique as long as the target runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClaimId {
    /// The core that asked.
    core: usize,
    serial: u64,
    disk: usize,
}

impl ClaimId {
    /// The core that orders the claims of its disk.
    fn orderer(self, cores: usize) -> usize {
        self.disk % cores
    }
}

/// What cores tell each other about a claim, in the order of its life.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ClaimMessage {
    /// To the core that orders: these blocks are asked for.
    Request { extent: Extent, asker: RequestId },
    /// To every core: hold them.
    Hold(Extent),
    /// To the core that orders: this core holds them.
    Held,
    /// To the core that asked: they are the asker's.
    Granted(RequestId),
    /// To the core that orders: they are not needed any more.
    Released,
    /// To every core: do not hold them any more.
    Unhold,
}

/// The claims that a core has to do with.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    /// Blocks that this core holds, or is about to hold.
    holds: Vec<Hold>,
    /// Requests that wait for held blocks.
    delayed: VecDeque<RequestId>,
    /// Claims that this core orders, oldest first.
    ordered: Vec<Claim>,
    serial: u64,
}

#[derive(Clone, Copy, Debug)]
struct Hold {
    id: ClaimId,
    extent: Extent,
    /// Whether its orderer knows that this core holds the blocks.
    reported: bool,
}

#[derive(Debug)]
struct Claim {
    id: ClaimId,
    extent: Extent,
    asker: RequestId,
    /// How many cores do not hold it yet, once they were asked.
    missing: Option<usize>,
}

impl Claims {
    /// Whether some of the blocks that a command is about are held.
    #[inline]
    pub(crate) fn concern(&self, action: &Action) -> bool {
        !self.holds.is_empty() && self.are_held(action)
    }

    /// A command waits until blocks are free.
    pub(crate) fn delay(&mut self, request: RequestId) {
        self.delayed.push_back(request);
    }

    /// Commands for these blocks wait from now on.
    pub(crate) fn hold(&mut self, id: ClaimId, extent: Extent) {
        self.holds.push(Hold { id, extent, reported: false });
    }

    /// Commands for the blocks of a claim need not wait any more. Returns how many have waited for any blocks.
    pub(crate) fn unhold(&mut self, id: ClaimId) -> usize {
        self.holds.retain(|hold| hold.id != id);
        self.delayed.len()
    }

    /// The command that has waited longest.
    pub(crate) fn next_delayed(&mut self) -> Option<RequestId> {
        self.delayed.pop_front()
    }

    fn are_held(&self, action: &Action) -> bool {
        action.extent().is_some_and(|extent| self.holds.iter().any(|hold| hold.extent.overlaps(&extent)))
    }

    /// The oldest claim that can begin: no older one overlaps it.
    fn next(&mut self) -> Option<&mut Claim> {
        let index = (0..self.ordered.len()).find(|index| {
            let claim = &self.ordered[*index];
            let older = &self.ordered[..*index];
            claim.missing.is_none() && !older.iter().any(|older| older.extent.overlaps(&claim.extent))
        })?;
        Some(&mut self.ordered[index])
    }
}

impl Resources {
    /// Asks for blocks; the answer comes as [`ClaimMessage::Granted`].
    pub(crate) fn claim(&mut self, extent: Extent, asker: RequestId) -> ClaimId {
        self.claims.serial += 1;
        let id = ClaimId { core: self.core, serial: self.claims.serial, disk: extent.disk };
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

    fn begin_claims(&mut self) {
        let count = self.cores.len();
        while let Some(claim) = self.claims.next() {
            claim.missing = Some(count);
            let (id, extent) = (claim.id, claim.extent);
            for core in &self.cores {
                core.send(QueueMessage::Claim(id, ClaimMessage::Hold(extent)));
            }
        }
    }

    /// This core orders the claims of a disk: one more is asked for.
    pub(crate) fn order_claim(&mut self, id: ClaimId, extent: Extent, asker: RequestId) {
        self.claims.ordered.push(Claim { id, extent, asker, missing: None });
        self.begin_claims();
    }

    /// A core holds the blocks of a claim that this one orders; with the last, it is granted.
    pub(crate) fn count_held(&mut self, id: ClaimId) {
        let claim = self.claims.ordered.iter_mut().find(|claim| claim.id == id);
        let Some(Claim { missing: Some(missing), asker, .. }) = claim else { return };
        *missing -= 1;
        if *missing == 0 {
            let granted = ClaimMessage::Granted(*asker);
            self.cores[id.core].send(QueueMessage::Claim(id, granted));
        }
    }

    /// A claim that this core orders is not needed any more; others that waited for it begin.
    pub(crate) fn end_claim(&mut self, id: ClaimId) {
        self.claims.ordered.retain(|claim| claim.id != id);
        for core in &self.cores {
            core.send(QueueMessage::Claim(id, ClaimMessage::Unhold));
        }
        self.begin_claims();
    }

    /// Reports the blocks that no disk of this core works on any more; `is_busy` says whether one does.
    pub(crate) fn report_held(&mut self, is_busy: impl Fn(&Extent) -> bool) {
        for index in 0..self.claims.holds.len() {
            let Hold { id, extent, reported } = self.claims.holds[index];
            if !reported && !is_busy(&extent) {
                self.claims.holds[index].reported = true;
                self.to_orderer(id, ClaimMessage::Held);
            }
        }
    }
}
