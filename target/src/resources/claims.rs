//! Claims to blocks, for fused operations: while one is granted, no other command reads or changes them, on any core.
//!
//! A core that wants to claim blocks asks the one core that orders the claims of that disk. Overlapping claims wait for
//! each other there. For each other claim, the ordering core asks every core to hold the blocks. A core holds them once
//! its own disk no longer works on them. From then on, new commands for these blocks wait, and hold nothing that a
//! claim could need. When all cores have confirmed, the claim is granted. No lock is taken, and a command without a
//! claim in its way pays one comparison.

use std::collections::VecDeque;

use super::RequestId;
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
    /// The core that asked.
    pub(super) fn core(self) -> usize {
        self.core
    }

    /// The core that orders the claims of its disk.
    pub(super) fn orderer(self, cores: usize) -> usize {
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
        self.any_held() && self.are_held(action)
    }

    /// Whether this core holds blocks, or is about to.
    #[inline]
    pub(crate) fn any_held(&self) -> bool {
        !self.holds.is_empty()
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

    /// A new claim of a core to blocks.
    pub(super) fn make(&mut self, core: usize, extent: &Extent) -> ClaimId {
        self.serial += 1;
        ClaimId { core, serial: self.serial, disk: extent.disk }
    }

    /// A claim to a disk whose claims this core orders.
    pub(super) fn order(&mut self, id: ClaimId, extent: Extent, asker: RequestId) {
        self.ordered.push(Claim { id, extent, asker, missing: None });
    }

    /// Begins the oldest claim that can begin: no older one overlaps it. So many cores are to hold its blocks.
    pub(super) fn begin_next(&mut self, cores: usize) -> Option<(ClaimId, Extent)> {
        let index = (0..self.ordered.len()).find(|index| {
            let claim = &self.ordered[*index];
            let older = &self.ordered[..*index];
            claim.missing.is_none() && !older.iter().any(|older| older.extent.overlaps(&claim.extent))
        })?;
        let claim = &mut self.ordered[index];
        claim.missing = Some(cores);
        Some((claim.id, claim.extent))
    }

    /// One more core holds the blocks of a claim. With the last, it is granted to whom is returned.
    pub(super) fn count_held(&mut self, id: ClaimId) -> Option<RequestId> {
        let claim = self.ordered.iter_mut().find(|claim| claim.id == id)?;
        let missing = claim.missing.as_mut()?;
        *missing -= 1;
        (*missing == 0).then_some(claim.asker)
    }

    /// A claim is not needed any more.
    pub(super) fn end(&mut self, id: ClaimId) {
        self.ordered.retain(|claim| claim.id != id);
    }

    /// A claim whose blocks no disk of this core works on any more, once; `is_busy` says whether one does.
    pub(super) fn next_held(&mut self, is_busy: impl Fn(&Extent) -> bool) -> Option<ClaimId> {
        let hold = self.holds.iter_mut().find(|hold| !hold.reported && !is_busy(&hold.extent))?;
        hold.reported = true;
        Some(hold.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvm::DiskBytes;

    fn extent(offset: u64) -> Extent {
        Extent { disk: 0, offset, length: DiskBytes(4096) }
    }

    fn request(slot: u16) -> RequestId {
        RequestId { queue: 1, slot, generation: 0 }
    }

    #[test]
    fn claims_that_overlap_begin_one_after_the_other_and_others_at_once() {
        let mut claims = Claims::default();
        let [first, second, apart] = [0, 0, 8192].map(|offset| {
            let extent = extent(offset);
            let id = claims.make(2, &extent);
            claims.order(id, extent, request(offset as u16));
            id
        });
        assert_eq!(claims.begin_next(2), Some((first, extent(0))));
        assert_eq!(claims.begin_next(2), Some((apart, extent(8192))));
        assert_eq!(claims.begin_next(2), None, "the second waits for the first");
        claims.end(first);
        assert_eq!(claims.begin_next(2), Some((second, extent(0))));
        assert_eq!(second.core(), 2);
    }

    #[test]
    fn a_claim_is_granted_when_every_core_holds_its_blocks() {
        let mut claims = Claims::default();
        let id = claims.make(0, &extent(0));
        claims.order(id, extent(0), request(7));
        assert_eq!(claims.count_held(id), None, "nobody was asked yet");
        assert!(claims.begin_next(2).is_some());
        assert_eq!(claims.count_held(id), None);
        assert_eq!(claims.count_held(id), Some(request(7)));
    }

    #[test]
    fn held_blocks_are_reported_once_when_the_disk_has_finished_with_them() {
        let mut claims = Claims::default();
        let (busy, idle) = (claims.make(0, &extent(0)), claims.make(0, &extent(8192)));
        claims.hold(busy, extent(0));
        claims.hold(idle, extent(8192));
        let is_busy = |one: &Extent| *one == extent(0);
        assert_eq!(claims.next_held(is_busy), Some(idle));
        assert_eq!(claims.next_held(is_busy), None);
        assert_eq!(claims.next_held(|_| false), Some(busy));
        assert!(claims.concern(&Action::Read(extent(0))));
        claims.delay(request(1));
        assert_eq!(claims.unhold(busy), 1);
        assert!(!claims.concern(&Action::Read(extent(0))) && claims.concern(&Action::Read(extent(8192))));
        assert_eq!((claims.next_delayed(), claims.next_delayed()), (Some(request(1)), None));
    }
}
