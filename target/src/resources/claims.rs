//! Claims: while one is granted, nothing that is in its [`Scope`] runs, on any core. A fused pair claims its blocks.
//! The control side claims whatever has to be at rest, or to be over, before it can go on.
//!
//! Whoever claims asks the one core that orders the claims of that disk. Claims that overlap wait for each other there.
//! For each other claim, the ordering core asks every core to hold it. From then on, new commands in its scope wait
//! there, without buffers. Those that have their buffers already go on, and once the core's own disk no longer works on
//! any of them, the core holds the claim. When all cores have confirmed, it is granted. No lock is taken, and a command
//! without a claim in its way pays one comparison.

use std::collections::VecDeque;
use std::sync::mpsc;

use super::RequestId;
use super::scope::Scope;
use crate::nvm::Action;

/// A claim, unique as long as the target runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClaimId {
    /// The core that asked; the control side is nobody's.
    core: Option<usize>,
    serial: u64,
    disk: usize,
}

impl ClaimId {
    /// A claim of the control side, the so many-th.
    pub(crate) fn of_control(serial: u64, scope: &Scope) -> Self {
        Self { core: None, serial, disk: scope.disk() }
    }

    /// The core that orders the claims of its disk.
    pub(crate) fn orderer(self, cores: usize) -> usize {
        self.disk % cores
    }
}

/// Who asks for a claim.
#[derive(Clone, Debug)]
pub(crate) enum Asker {
    /// The first half of a fused pair, on this core.
    Pair { core: usize, compare: RequestId },
    /// The control side, which waits here.
    Control(mpsc::Sender<()>),
}

/// What cores tell each other about a claim, in the order of its life.
#[derive(Clone, Debug)]
pub(crate) enum ClaimMessage {
    /// To the core that orders: this is asked for.
    Request { scope: Scope, asker: Asker },
    /// To every core: hold it.
    Hold(Scope),
    /// To the core that orders: this core holds it.
    Held,
    /// To the core of the pair that asked: its blocks are its own.
    Granted { compare: RequestId },
    /// To the core that orders: it is not needed any more, whether it was granted or not.
    Released,
    /// To every core: do not hold it any more.
    Unhold,
}

/// The claims that a core has to do with.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    /// What this core holds, or is about to hold.
    holds: Vec<Hold>,
    /// Requests that wait, with their buffers, for what is held.
    delayed: VecDeque<RequestId>,
    /// Claims that this core orders, oldest first.
    ordered: Vec<Claim>,
    serial: u64,
}

#[derive(Clone, Copy, Debug)]
struct Hold {
    id: ClaimId,
    scope: Scope,
    /// Whether its orderer knows that this core holds it.
    reported: bool,
}

#[derive(Debug)]
struct Claim {
    id: ClaimId,
    scope: Scope,
    asker: Asker,
    /// How many cores do not hold it yet, once they were asked.
    missing: Option<usize>,
}

impl Claims {
    /// Whether a new command of a host has to wait: it is in what this core holds, or is about to hold.
    #[inline]
    pub(crate) fn concern(&self, action: &Action, host: &[u8; 16]) -> bool {
        self.holds.iter().any(|hold| hold.scope.covers(action, host))
    }

    /// Whether a command that has its buffers has to wait: somebody may have been granted what it is in.
    pub(crate) fn forbid(&self, action: &Action, host: &[u8; 16]) -> bool {
        self.holds.iter().any(|hold| hold.reported && hold.scope.covers(action, host))
    }

    /// Whether this core holds anything, or is about to.
    #[inline]
    pub(crate) fn any_held(&self) -> bool {
        !self.holds.is_empty()
    }

    /// A command that has its buffers waits until it may run.
    pub(crate) fn delay(&mut self, request: RequestId) {
        self.delayed.push_back(request);
    }

    /// New commands in the scope of a claim wait from now on.
    pub(crate) fn hold(&mut self, id: ClaimId, scope: Scope) {
        self.holds.push(Hold { id, scope, reported: false });
    }

    /// Commands in the scope of a claim need not wait for it any more. Returns how many have waited for any.
    pub(crate) fn unhold(&mut self, id: ClaimId) -> usize {
        self.holds.retain(|hold| hold.id != id);
        self.delayed.len()
    }

    /// The command that has waited longest.
    pub(crate) fn next_delayed(&mut self) -> Option<RequestId> {
        self.delayed.pop_front()
    }

    /// A new claim of a core.
    pub(super) fn make(&mut self, core: usize, scope: &Scope) -> ClaimId {
        self.serial += 1;
        ClaimId { core: Some(core), serial: self.serial, disk: scope.disk() }
    }

    /// A claim to a disk whose claims this core orders.
    pub(super) fn order(&mut self, id: ClaimId, scope: Scope, asker: Asker) {
        self.ordered.push(Claim { id, scope, asker, missing: None });
    }

    /// Begins the oldest claim that can begin: no older one overlaps it. So many cores are to hold it.
    pub(super) fn begin_next(&mut self, cores: usize) -> Option<(ClaimId, Scope)> {
        let index = (0..self.ordered.len()).find(|index| {
            let claim = &self.ordered[*index];
            let older = &self.ordered[..*index];
            claim.missing.is_none() && !older.iter().any(|older| older.scope.overlaps(&claim.scope))
        })?;
        let claim = &mut self.ordered[index];
        claim.missing = Some(cores);
        Some((claim.id, claim.scope))
    }

    /// One more core holds a claim. With the last, it is granted to whom is returned.
    pub(super) fn count_held(&mut self, id: ClaimId) -> Option<Asker> {
        let claim = self.ordered.iter_mut().find(|claim| claim.id == id)?;
        let missing = claim.missing.as_mut()?;
        *missing -= 1;
        (*missing == 0).then(|| claim.asker.clone())
    }

    /// A claim is not needed any more.
    pub(super) fn end(&mut self, id: ClaimId) {
        self.ordered.retain(|claim| claim.id != id);
    }

    /// A claim in whose scope no disk of this core works any more, once; `is_busy` says whether one does.
    pub(super) fn next_held(&mut self, is_busy: impl Fn(&Scope) -> bool) -> Option<ClaimId> {
        let hold = self.holds.iter_mut().find(|hold| !hold.reported && !is_busy(&hold.scope))?;
        hold.reported = true;
        Some(hold.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvm::{DiskBytes, Extent};

    const HOST: [u8; 16] = [1; 16];

    fn scope(offset: u64) -> Scope {
        Scope::Blocks(Extent { disk: 0, offset, length: DiskBytes(4096) })
    }

    fn read(offset: u64) -> Action {
        Action::Read(Extent { disk: 0, offset, length: DiskBytes(4096) })
    }

    fn request(slot: u16) -> RequestId {
        RequestId { queue: 1, slot, generation: 0 }
    }

    fn pair(slot: u16) -> Asker {
        Asker::Pair { core: 0, compare: request(slot) }
    }

    #[test]
    fn claims_that_overlap_begin_one_after_the_other_and_others_at_once() {
        let mut claims = Claims::default();
        let [first, second, apart] = [0, 0, 8192].map(|offset| {
            let scope = scope(offset);
            let id = claims.make(2, &scope);
            claims.order(id, scope, pair(offset as u16));
            id
        });
        assert_eq!(claims.begin_next(2), Some((first, scope(0))));
        assert_eq!(claims.begin_next(2), Some((apart, scope(8192))));
        assert_eq!(claims.begin_next(2), None, "the second waits for the first");
        claims.end(first);
        assert_eq!(claims.begin_next(2), Some((second, scope(0))));
    }

    #[test]
    fn a_claim_is_granted_when_every_core_holds_it_whoever_asked() {
        let mut claims = Claims::default();
        let (control, waits) = mpsc::channel();
        let of_control = ClaimId::of_control(1, &scope(8192));
        let of_pair = claims.make(1, &scope(0));
        assert_ne!(of_control, claims.make(1, &scope(8192)), "each has its own numbers");
        claims.order(of_pair, scope(0), pair(7));
        claims.order(of_control, scope(8192), Asker::Control(control));
        assert!(claims.count_held(of_pair).is_none(), "nobody was asked yet");
        assert!(claims.begin_next(2).is_some() && claims.begin_next(2).is_some());
        for id in [of_pair, of_control] {
            assert!(claims.count_held(id).is_none());
        }
        let Some(Asker::Pair { compare, .. }) = claims.count_held(of_pair) else { panic!("the pair asked") };
        assert_eq!(compare, request(7));
        let Some(Asker::Control(reply)) = claims.count_held(of_control) else { panic!("the control side") };
        assert!(reply.send(()).is_ok() && waits.try_recv().is_ok());
    }

    #[test]
    fn what_is_held_is_reported_once_when_the_disk_has_finished_with_it() {
        let mut claims = Claims::default();
        let (busy, idle) = (claims.make(0, &scope(0)), claims.make(0, &scope(8192)));
        claims.hold(busy, scope(0));
        claims.hold(idle, scope(8192));
        let is_busy = |one: &Scope| *one == scope(0);
        assert_eq!(claims.next_held(is_busy), Some(idle));
        assert_eq!(claims.next_held(is_busy), None);
        assert!(claims.concern(&read(0), &HOST), "a new command waits from the start");
        assert!(!claims.forbid(&read(0), &HOST), "one that has its buffers ends what is waited for");
        assert!(claims.forbid(&read(8192), &HOST));
        assert_eq!(claims.next_held(|_| false), Some(busy));
        assert!(claims.forbid(&read(0), &HOST));
        claims.delay(request(1));
        assert_eq!(claims.unhold(busy), 1);
        assert!(!claims.concern(&read(0), &HOST) && claims.concern(&read(8192), &HOST));
        assert_eq!((claims.next_delayed(), claims.next_delayed()), (Some(request(1)), None));
    }
}
