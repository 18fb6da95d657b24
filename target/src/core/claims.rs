//! Claims to blocks, for fused operations: while one is granted, no other command reads or changes them, on any core.
//!
//! A core that wants some asks the one core that orders the claims of their disk. That one lets claims that overlap
//! wait for each other; for the others it has every core hold the blocks. A core holds them once no disk of its own
//! works on them any more; commands that come for them wait, and hold nothing that a claim could need. When all cores
//! have said so, the claim is granted. No lock is taken, and a command that meets no claim pays for one comparison.

use std::collections::VecDeque;

use super::{Core, CoreMessage, Env, Waiter};
use crate::io_command::{Extent, Work};

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
    /// To the core that orders: these blocks are wanted.
    Wanted { extent: Extent, asker: Waiter },
    /// To every core: hold them.
    Hold(Extent),
    /// To the core that orders: this core holds them.
    Held,
    /// To the core that asked: they are the asker's.
    Granted(Waiter),
    /// To the core that orders: they are not needed any more.
    Released,
    /// To every core: do not hold them any more.
    Free,
}

/// The claims that a core has to do with.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    /// Blocks that this core holds, or is about to hold.
    holds: Vec<Hold>,
    /// Requests that wait for held blocks.
    delayed: VecDeque<Waiter>,
    /// Claims that this core orders, oldest first.
    ordered: Vec<Claim>,
    serial: u64,
}

#[derive(Debug)]
struct Hold {
    id: ClaimId,
    extent: Extent,
    /// Whether its orderer was told.
    told: bool,
}

#[derive(Debug)]
struct Claim {
    id: ClaimId,
    extent: Extent,
    asker: Waiter,
    /// How many cores do not hold it yet, once they were asked.
    missing: Option<usize>,
}

impl Claims {
    /// Whether some of the blocks that a command is about are held.
    #[inline]
    pub(crate) fn concern(&self, work: &Work) -> bool {
        !self.holds.is_empty() && self.hold(work)
    }

    /// A command waits until blocks are free.
    pub(crate) fn delay(&mut self, waiter: Waiter) {
        self.delayed.push_back(waiter);
    }

    fn hold(&self, work: &Work) -> bool {
        work.extent().is_some_and(|extent| self.holds.iter().any(|hold| hold.extent.overlaps(&extent)))
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

impl Env {
    /// Asks for blocks; the answer comes as [`ClaimMessage::Granted`].
    pub(crate) fn claim(&mut self, extent: Extent, asker: Waiter) -> ClaimId {
        self.claims.serial += 1;
        let id = ClaimId { core: self.core, serial: self.claims.serial, disk: extent.disk };
        self.to_orderer(id, ClaimMessage::Wanted { extent, asker });
        id
    }

    /// Gives claimed blocks back.
    pub(crate) fn release(&self, id: ClaimId) {
        self.to_orderer(id, ClaimMessage::Released);
    }

    fn to_orderer(&self, id: ClaimId, message: ClaimMessage) {
        self.cores[id.orderer(self.cores.len())].send(CoreMessage::Claim(id, message));
    }

    fn begin_claims(&mut self) {
        let count = self.cores.len();
        while let Some(claim) = self.claims.next() {
            claim.missing = Some(count);
            let (id, extent) = (claim.id, claim.extent);
            for core in &self.cores {
                core.send(CoreMessage::Claim(id, ClaimMessage::Hold(extent)));
            }
        }
    }
}

impl Core {
    pub(super) fn on_claim(&mut self, id: ClaimId, message: ClaimMessage) {
        match message {
            ClaimMessage::Wanted { extent, asker } => {
                self.env.claims.ordered.push(Claim { id, extent, asker, missing: None });
                self.env.begin_claims();
            }
            ClaimMessage::Hold(extent) => {
                self.env.claims.holds.push(Hold { id, extent, told: false });
                self.tell_held();
            }
            ClaimMessage::Held => self.count_held(id),
            ClaimMessage::Granted(asker) => {
                let queue = self.queues.get_mut(usize::from(asker.queue)).and_then(Option::as_mut);
                let taken =
                    queue.is_some_and(|queue| queue.claimed(&mut self.env, asker.slot, asker.generation, id));
                if !taken {
                    self.env.release(id);
                }
            }
            ClaimMessage::Released => {
                self.env.claims.ordered.retain(|claim| claim.id != id);
                for core in &self.env.cores {
                    core.send(CoreMessage::Claim(id, ClaimMessage::Free));
                }
                self.env.begin_claims();
            }
            ClaimMessage::Free => self.free(id),
        }
    }

    /// Tells of the blocks that no disk of this core works on any more. Called in every turn while there are others.
    pub(super) fn tell_held(&mut self) {
        let Self { env, queues, .. } = self;
        for index in 0..env.claims.holds.len() {
            let Hold { id, extent, told } = env.claims.holds[index];
            let busy = |queue: &crate::queue::Queue| queue.is_working_on(&extent);
            if !told && !queues.iter().flatten().any(|queue| busy(queue)) {
                env.claims.holds[index].told = true;
                env.to_orderer(id, ClaimMessage::Held);
            }
        }
    }

    /// A core holds the blocks of a claim; with the last, it is granted.
    fn count_held(&mut self, id: ClaimId) {
        let claim = self.env.claims.ordered.iter_mut().find(|claim| claim.id == id);
        let Some(Claim { missing: Some(missing), asker, .. }) = claim else { return };
        *missing -= 1;
        if *missing == 0 {
            let granted = ClaimMessage::Granted(*asker);
            self.env.cores[id.core].send(CoreMessage::Claim(id, granted));
        }
    }

    /// Blocks are free again: who waited tries again, in order.
    fn free(&mut self, id: ClaimId) {
        self.env.claims.holds.retain(|hold| hold.id != id);
        for _ in 0..self.env.claims.delayed.len() {
            let Some(waiter) = self.env.claims.delayed.pop_front() else { break };
            if let Some(queue) = self.queues.get_mut(usize::from(waiter.queue)).and_then(Option::as_mut) {
                queue.resume(&mut self.env, waiter.slot, waiter.generation);
            }
        }
    }
}
