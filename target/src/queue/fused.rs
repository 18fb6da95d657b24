//! The fused operation Compare and Write (NVM Express Base 2.0, section 3.4.2).
//!
//! The two commands follow each other on one queue. Other commands may come between them, since there are hosts that
//! send them so, though not forever: a half that stays alone is aborted. Until both are here, neither has a buffer;
//! then both take theirs and fetch their data, claim the blocks on all cores (see [crate::resources::claims]), and run
//! one after the other.

use std::time::Duration;

use ringfab_reactor::Time;
use ringfab_spec::{Status, SubmissionEntry};

use super::{Phase, Queue, Slot, State};
use crate::failure::Failure;
use crate::nvm;
use crate::resources::{ClaimId, RequestId, Resources};

/// How long a first half waits for its second.
const SECOND_HALF_TIMEOUT: Duration = Duration::from_secs(1);

/// The first half of a fused operation whose second has not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FirstHalf {
    /// There is none.
    None,
    /// It waits, since then.
    Waits { slot: Slot, since: Time },
    /// It was answered with a failure, which its second half is to be told of.
    Failed,
}

const MISSING: Failure = Failure::new(Status::ABORTED_MISSING_FUSED);
const PARTNER_FAILED: Failure = Failure::new(Status::ABORTED_FAILED_FUSED);

impl Queue {
    /// A half has come, which may have failed already. False while it waits for its second half; otherwise the request
    /// goes on: the second of a pair for both, or one that is to be answered with its failure.
    pub(super) fn pair_up(&mut self, resources: &mut Resources, slot: Slot) -> bool {
        if self.id == 0 || self.requests[slot].command.is_fabrics() {
            return true;
        }
        let failed = !self.requests[slot].status.is_success();
        let before = std::mem::replace(&mut self.first_half, FirstHalf::None);
        match (self.requests[slot].command.fuse(), before) {
            (SubmissionEntry::FUSE_FIRST, before) => {
                if let FirstHalf::Waits { slot: alone, .. } = before {
                    self.requests[alone].fail(MISSING);
                    self.reply(resources, alone);
                }
                let since = resources.reactor.now();
                self.first_half = if failed { FirstHalf::Failed } else { FirstHalf::Waits { slot, since } };
                failed
            }
            (SubmissionEntry::FUSE_SECOND, FirstHalf::Waits { slot: first, .. }) => {
                self.join(resources, first, slot);
                true
            }
            (SubmissionEntry::FUSE_SECOND, FirstHalf::Failed) => {
                self.requests[slot].fail(PARTNER_FAILED);
                true
            }
            (SubmissionEntry::FUSE_SECOND, FirstHalf::None) => {
                self.requests[slot].fail(MISSING);
                true
            }
            // The reserved value is no half; whoever waits goes on waiting.
            (_, before) => {
                self.first_half = before;
                true
            }
        }
    }

    /// Both halves are here. If they do not fit each other, both fail.
    fn join(&mut self, resources: &mut Resources, first: Slot, second: Slot) {
        let outcome = if self.requests[second].status.is_success() {
            nvm::check_pair(self.requests[first].action, self.requests[second].action)
        } else {
            Err(PARTNER_FAILED)
        };
        match outcome {
            Ok(()) => {
                self.requests[first].partner = Some(second);
                self.requests[second].partner = Some(first);
            }
            Err(failure) => {
                self.requests[first].fail(failure);
                self.reply(resources, first);
                self.requests[second].fail(PARTNER_FAILED);
            }
        }
    }

    /// The second half has not come in time.
    pub(super) fn expire_half(&mut self, resources: &mut Resources, now: Time) {
        if let FirstHalf::Waits { since, .. } = self.first_half
            && now >= since + SECOND_HALF_TIMEOUT
        {
            self.end_half(resources);
        }
    }

    /// No second half will come.
    pub(super) fn end_half(&mut self, resources: &mut Resources) {
        if let FirstHalf::Waits { slot, .. } = std::mem::replace(&mut self.first_half, FirstHalf::None)
            && self.phase != Phase::Gone
        {
            self.requests[slot].fail(MISSING);
            self.reply(resources, slot);
        }
    }

    /// `NeedBuffer -> DataIn` of both halves, with all the buffers of both, or not at all.
    pub(super) fn take_pair_buffers(&mut self, resources: &mut Resources, second: Slot) -> bool {
        let first = self.requests[second].partner.expect("a pair");
        let before = self.requests[first].held.len();
        if !self.take_own_buffers(resources, first) {
            return false;
        }
        if !self.take_own_buffers(resources, second) {
            self.requests[first].held.truncate(before);
            return false;
        }
        self.requests.enter(first, State::DataIn);
        self.requests.enter(second, State::DataIn);
        self.fetch(resources, first);
        // If the first could not even begin, the second has been answered with it.
        if self.requests[second].state() == State::DataIn {
            self.fetch(resources, second);
        }
        true
    }

    /// `Execute` of a half: once the other one is there too, the pair claims its blocks.
    pub(super) fn run_pair_when_complete(&mut self, resources: &mut Resources, slot: Slot) {
        let partner = self.requests[slot].partner.expect("a half of a pair");
        if self.requests[partner].state() != State::Execute {
            return;
        }
        let (_, write) = self.in_order(slot, partner);
        let request = &mut self.requests[write];
        let extent = request.action.extent().expect("a Write has blocks");
        let asker = RequestId { queue: self.number, slot: write.number(), generation: request.generation };
        request.claim = Some(resources.claim(extent, asker));
    }

    /// The blocks are the pair's alone. False when the pair that asked is not there any more.
    pub(crate) fn claimed(
        &mut self,
        resources: &mut Resources,
        number: u16,
        generation: u16,
        id: ClaimId,
    ) -> bool {
        let Some(write) = self.requests.find(number, generation) else { return false };
        let request = &self.requests[write];
        let Some(compare) = request.partner.filter(|_| request.claim == Some(id)) else { return false };
        self.run_disk(resources, compare);
        true
    }

    /// The disk has finished with one half.
    pub(super) fn half_done(&mut self, resources: &mut Resources, slot: Slot) {
        let partner = self.requests[slot].partner.expect("a half of a pair");
        let (compare, write) = self.in_order(slot, partner);
        if slot == compare && self.requests[compare].status.is_success() {
            return self.run_disk(resources, write);
        }
        self.release_claim(resources, write);
        if slot == write {
            self.forget_partner(write);
            self.reply(resources, compare);
        }
        self.reply(resources, slot);
    }

    /// Parts a request from its other half, because it is about to be answered.
    pub(super) fn forget_partner(&mut self, slot: Slot) -> Option<Slot> {
        if matches!(self.first_half, FirstHalf::Waits { slot: waits, .. } if waits == slot) {
            self.first_half = FirstHalf::Failed;
        }
        let partner = self.requests[slot].partner.take()?;
        self.requests[partner].partner = None;
        Some(partner)
    }

    /// The other half was answered with a failure. While data is on its way, this one waits for that.
    pub(super) fn fail_partner(&mut self, resources: &mut Resources, slot: Slot) {
        self.requests[slot].fail(PARTNER_FAILED);
        if self.requests[slot].pending == 0 && !self.blocked.contains(&slot) {
            self.reply(resources, slot);
        }
    }

    /// Gives back the blocks that a request has claimed, if it has.
    pub(super) fn release_claim(&mut self, resources: &mut Resources, slot: Slot) {
        if let Some(claim) = self.requests[slot].claim.take() {
            resources.release(claim);
        }
    }

    /// The connection is gone. A claim that a Compare still needs goes to it, because its Write is forgotten now.
    pub(super) fn keep_claims(&mut self) {
        let claims: Vec<Slot> =
            self.requests.outstanding().filter(|slot| self.requests[*slot].claim.is_some()).collect();
        for write in claims {
            if let Some(compare) = self.requests[write].partner
                && self.requests[compare].pending != 0
            {
                self.requests[compare].claim = self.requests[write].claim.take();
            }
        }
    }

    /// The Compare and the Write of a pair.
    fn in_order(&self, one: Slot, other: Slot) -> (Slot, Slot) {
        let is_first = self.requests[one].command.fuse() == SubmissionEntry::FUSE_FIRST;
        if is_first { (one, other) } else { (other, one) }
    }
}
