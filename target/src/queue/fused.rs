//! The fused operation Compare and Write (NVM Express Base 2.0, section 3.4.2).
//!
//! The two commands follow each other on one queue. Other commands may come between them, because some hosts send them
//! so, but only for a limited time: a half that stays alone is aborted. Until both have arrived, neither has a buffer.
//! Then both take their buffers, fetch their data, claim the blocks on all cores (see [`crate::resources::claims`]),
//! and run one after the other. A disk that others write to, past this target, may compare and write in one operation:
//! there both halves run as that one, which is the Compare's.

use std::time::Duration;

use ringfab_reactor::Time;
use ringfab_spec::{Status, SubmissionEntry};

use super::automaton::{Event, Step, next};
use super::commands::Commands;
use super::connection::Connection;
use super::request::{Request, Requests, Slot};
use crate::command::dword_offset;
use crate::failure::Failure;
use crate::nvm::{self, Action, DiskBytes};
use crate::resources::states::State;
use crate::resources::{ClaimId, Resources};

/// How long a first half waits for its second.
const SECOND_HALF_TIMEOUT: Duration = Duration::from_secs(1);

const MISSING: Failure = Failure::new(Status::ABORTED_MISSING_FUSED);
const PARTNER_FAILED: Failure = Failure::new(Status::ABORTED_FAILED_FUSED);

/// The first half of a fused operation whose second has not come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum FirstHalf {
    /// There is none.
    #[default]
    None,
    /// It waits, since then.
    Waits { slot: Slot, since: Time },
    /// It was answered with a failure, which its second half is to be told of.
    Failed,
}

/// Two commands that are done as one. A half is missing when its connection ended before the other half did.
#[derive(Clone, Copy, Debug)]
struct Pair {
    compare: Option<Slot>,
    write: Option<Slot>,
    /// The claim to its blocks, once it was asked for.
    claim: Option<ClaimId>,
}

/// What is to be done about both halves of a pair because of what one has come to.
#[derive(Clone, Copy, Debug)]
pub(super) enum PairEvent {
    /// The second half has the buffers of both.
    HasBuffers(Slot),
    /// A half has its data and waits for the other.
    HasData(Slot),
    /// The disk has finished with a half.
    DiskDone(Slot),
    /// The other half of this one was answered with a failure.
    PartnerFailed(Slot),
}

/// The fused operations of a queue.
#[derive(Debug, Default)]
pub(super) struct FusedPairs {
    first_half: FirstHalf,
    pairs: Vec<Pair>,
}

impl FusedPairs {
    fn position(&self, slot: Slot) -> Option<usize> {
        self.pairs.iter().position(|pair| pair.compare == Some(slot) || pair.write == Some(slot))
    }

    /// The Compare and the Write that a half belongs to.
    fn halves(&self, slot: Slot) -> Option<(Slot, Slot)> {
        let pair = self.pairs[self.position(slot)?];
        Some((pair.compare?, pair.write?))
    }

    fn join(&mut self, compare: Slot, write: Slot) {
        self.pairs.push(Pair { compare: Some(compare), write: Some(write), claim: None });
    }

    /// Takes a first half that waits, if there is one; what follows finds none.
    fn take_waiting(&mut self) -> Option<Slot> {
        match std::mem::take(&mut self.first_half) {
            FirstHalf::Waits { slot, .. } => Some(slot),
            FirstHalf::None | FirstHalf::Failed => None,
        }
    }

    fn set_claim(&mut self, slot: Slot, claim: ClaimId) {
        if let Some(position) = self.position(slot) {
            self.pairs[position].claim = Some(claim);
        }
    }

    fn take_claim(&mut self, slot: Slot) -> Option<ClaimId> {
        let position = self.position(slot)?;
        self.pairs[position].claim.take()
    }

    /// The Compare whose pair has asked for a claim.
    fn compare_of(&self, claim: ClaimId) -> Option<Slot> {
        self.pairs.iter().find(|pair| pair.claim == Some(claim))?.compare
    }

    /// A half is about to be answered: there is no pair any more. Returns the other half, and a claim that is still
    /// held.
    fn part(&mut self, slot: Slot) -> (Option<Slot>, Option<ClaimId>) {
        if matches!(self.first_half, FirstHalf::Waits { slot: waits, .. } if waits == slot) {
            self.first_half = FirstHalf::Failed;
        }
        let Some(position) = self.position(slot) else { return (None, None) };
        let Pair { compare, write, claim } = self.pairs.swap_remove(position);
        let other = if compare == Some(slot) { write } else { compare };
        (other, claim)
    }

    /// A half ends without an answer. Returns the claim of its pair if that was the last half of it.
    pub(super) fn forget(&mut self, slot: Slot) -> Option<ClaimId> {
        if matches!(self.first_half, FirstHalf::Waits { slot: waits, .. } if waits == slot) {
            self.first_half = FirstHalf::None;
        }
        let position = self.position(slot)?;
        let pair = &mut self.pairs[position];
        pair.compare = pair.compare.filter(|half| *half != slot);
        pair.write = pair.write.filter(|half| *half != slot);
        if pair.compare.is_some() || pair.write.is_some() {
            return None;
        }
        self.pairs.swap_remove(position).claim
    }
}

/// The most bytes that a disk compares and writes at once, as far as a pair has them in one piece.
fn compare_and_write_max(resources: &Resources, disk: usize) -> DiskBytes {
    let open = resources.disks.get(disk);
    let most = open.map_or(0, |open| open.disk.properties().compare_and_write_max);
    DiskBytes(u64::from(most.min(resources.chunk_bytes)))
}

/// Whether a disk that compares and writes at once can do so with a pair. Whoever else uses it relies on that, so that
/// nothing is done in two steps there.
fn check_compare_and_write(resources: &Resources, compare: Action) -> Result<(), Failure> {
    let Action::Compare(extent) = compare else { return Ok(()) };
    match compare_and_write_max(resources, extent.disk) {
        DiskBytes(0) => Ok(()),
        most if extent.length <= most => Ok(()),
        _ => Err(Failure::at(Status::ATOMIC_WRITE_UNIT_EXCEEDED, dword_offset(12))),
    }
}

/// Where the disk compares and writes at once, the Compare does both: it gets the data of the Write.
fn merge(table: &mut Requests, resources: &Resources, compare: Slot, write: Slot) {
    let (Action::Compare(extent), Action::Write { durable, .. }) =
        (table[compare].action, table[write].action)
    else {
        return;
    };
    if extent.length > compare_and_write_max(resources, extent.disk) {
        return;
    }
    let source = table[write].pieces.take_shared(0);
    let request = &mut table[compare];
    request.pieces.put_shared(1, source);
    request.action = Action::CompareAndWrite { extent, durable };
}

/// A Compare is no more than that again, for whoever counts it. Returns whether it has done the work of both halves.
fn unmerge(compare: &mut Request) -> bool {
    let Action::CompareAndWrite { extent, .. } = compare.action else { return false };
    compare.action = Action::Compare(extent);
    true
}

impl Commands {
    /// Half of a fused operation has come; it may have failed already. A first half waits for its second. A second half
    /// goes on, for both of a pair, or to be answered with its failure.
    #[cold]
    pub(super) fn begin_half(&mut self, connection: &mut Connection, resources: &mut Resources, slot: Slot) {
        let request = &self.table[slot];
        let (fuse, failed) = (request.command.fuse(), request.has_failed());
        if connection.id != 0 && !request.command.is_fabrics() {
            match fuse {
                SubmissionEntry::FUSE_FIRST => {
                    self.end_half(connection, resources);
                    if !failed {
                        return self.wait_for_second_half(resources, slot);
                    }
                    self.fused.first_half = FirstHalf::Failed;
                }
                SubmissionEntry::FUSE_SECOND => self.pair_up(connection, resources, slot),
                // The reserved value is no half; whoever waits goes on waiting.
                _ => {}
            }
        }
        self.advance(connection, resources, slot, next(State::Free, Event::Arrived));
    }

    fn wait_for_second_half(&mut self, resources: &mut Resources, slot: Slot) {
        self.fused.first_half = FirstHalf::Waits { slot, since: resources.states.now() };
        let request = &mut self.table[slot];
        request.is_fused = true;
        request.enter(&mut resources.states, State::AwaitFused);
    }

    /// A second half is here. If the two do not fit each other, both fail.
    fn pair_up(&mut self, connection: &mut Connection, resources: &mut Resources, second: Slot) {
        let first = match std::mem::take(&mut self.fused.first_half) {
            FirstHalf::Waits { slot, .. } => slot,
            FirstHalf::Failed => return self.table[second].fail(PARTNER_FAILED),
            FirstHalf::None => return self.table[second].fail(MISSING),
        };
        let outcome = if self.table[second].has_failed() {
            Err(PARTNER_FAILED)
        } else {
            let (compare, write) = (self.table[first].action, self.table[second].action);
            nvm::check_pair(compare, write).and_then(|()| check_compare_and_write(resources, compare))
        };
        match outcome {
            Ok(()) => {
                self.fused.join(first, second);
                self.table[second].is_fused = true;
            }
            Err(failure) => {
                self.table[first].fail(failure);
                self.on_event(connection, resources, first, Event::PartnerFailed);
                self.table[second].fail(PARTNER_FAILED);
            }
        }
    }

    /// Whether a disk works on the other half of a request. Where it compares and writes at once, that is on both.
    pub(super) fn partner_is_at_disk(&self, slot: Slot) -> bool {
        let halves = self.fused.halves(slot);
        halves
            .is_some_and(|(compare, write)| [compare, write].iter().any(|one| self.table[*one].pending != 0))
    }

    /// The second half may not have come in time.
    pub(super) fn expire_half(&mut self, connection: &mut Connection, resources: &mut Resources, now: Time) {
        if let FirstHalf::Waits { since, .. } = self.fused.first_half
            && now >= since + SECOND_HALF_TIMEOUT
        {
            self.end_half(connection, resources);
        }
    }

    /// No second half will come.
    pub(super) fn end_half(&mut self, connection: &mut Connection, resources: &mut Resources) {
        if let Some(slot) = self.fused.take_waiting()
            && !connection.is_closed()
        {
            self.table[slot].fail(MISSING);
            self.on_event(connection, resources, slot, Event::TimedOut);
        }
    }

    /// All the buffers of both halves, or none.
    #[cold]
    pub(super) fn take_pair_buffers(
        &mut self,
        connection: &Connection,
        resources: &Resources,
        second: Slot,
    ) -> bool {
        let (first, _) = self.fused.halves(second).expect("a pair");
        let before = self.table[first].pieces.len();
        if !self.table[first].take_buffers(connection, resources) {
            return false;
        }
        if !self.table[second].take_buffers(connection, resources) {
            self.table[first].pieces.truncate(before);
            return false;
        }
        true
    }

    /// Goes on with a pair after what one half has come to.
    #[cold]
    pub(super) fn advance_pair(
        &mut self,
        connection: &mut Connection,
        resources: &mut Resources,
        turn: PairEvent,
    ) {
        match turn {
            PairEvent::HasBuffers(second) => {
                let (first, _) = self.fused.halves(second).expect("a pair");
                self.on_event(connection, resources, first, Event::PairHasBuffers);
                // If the first could not even begin, the second has been answered with it.
                if self.table[second].is_fused {
                    self.on_event(connection, resources, second, Event::PairHasBuffers);
                }
            }
            PairEvent::HasData(half) => {
                let (compare, write) = self.fused.halves(half).expect("a pair");
                let waits = |half: Slot| self.table[half].state() == State::AwaitPartner;
                if waits(compare) && waits(write) {
                    self.on_event(connection, resources, compare, Event::PairHasData);
                }
            }
            PairEvent::DiskDone(half) => self.half_done(connection, resources, half),
            PairEvent::PartnerFailed(half) => {
                self.table[half].fail(PARTNER_FAILED);
                self.on_event(connection, resources, half, Event::PartnerFailed);
            }
        }
    }

    /// Both halves have their data: the pair claims its blocks.
    #[cold]
    pub(super) fn claim_blocks(&mut self, resources: &mut Resources, compare: Slot) {
        let request = &mut self.table[compare];
        let extent = request.action.extent().expect("a Compare has blocks");
        let claim = resources.claim(extent, request.id());
        request.enter(&mut resources.states, State::AwaitClaim);
        self.fused.set_claim(compare, claim);
    }

    /// The blocks are the pair's alone. False when the pair that asked is not there any more.
    pub(super) fn claimed(
        &mut self,
        connection: &mut Connection,
        resources: &mut Resources,
        claim: ClaimId,
    ) -> bool {
        let Some(compare) = self.fused.compare_of(claim) else { return false };
        if let Some((compare, write)) = self.fused.halves(compare) {
            merge(&mut self.table, resources, compare, write);
        }
        self.on_event(connection, resources, compare, Event::ClaimGranted);
        true
    }

    /// The disk has finished with one half.
    fn half_done(&mut self, connection: &mut Connection, resources: &mut Resources, half: Slot) {
        let (compare, write) = self.fused.halves(half).expect("a pair");
        let was_both = half == compare && unmerge(&mut self.table[compare]);
        if was_both && !self.table[compare].has_failed() {
            self.part(resources, write);
            self.advance(connection, resources, compare, Step::Answer);
            self.on_event(connection, resources, write, Event::WriteDone);
            return;
        }
        if half == compare && !self.table[compare].has_failed() {
            self.table[compare].enter(&mut resources.states, State::AwaitPartner);
            self.on_event(connection, resources, write, Event::CompareSucceeded);
            return;
        }
        if let Some(claim) = self.fused.take_claim(half) {
            resources.release(claim);
        }
        if half == write {
            self.part(resources, write);
            self.on_event(connection, resources, compare, Event::WriteDone);
        }
        self.advance(connection, resources, half, Step::Answer);
    }

    /// Parts a request from its other half, because it is about to be answered. Returns the other half.
    #[cold]
    pub(super) fn part(&mut self, resources: &Resources, slot: Slot) -> Option<Slot> {
        let (partner, claim) = self.fused.part(slot);
        if let Some(claim) = claim {
            resources.release(claim);
        }
        self.table[slot].is_fused = false;
        if let Some(partner) = partner {
            self.table[partner].is_fused = false;
        }
        partner
    }
}
