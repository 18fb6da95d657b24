//! A request, and the table of a queue's requests.

use std::collections::TryReserveError;

use ringfab_memory::has_headroom;
use ringfab_spec::{Status, SubmissionEntry};

use super::identifiers::CommandIds;
use super::pieces::Pieces;
use crate::failure::{ErrorLocation, Failure};
use crate::nvm::{Action, DataBytes, HostMemory, Transfer};
use crate::resources::RequestId;
use crate::resources::states::{RequestStates, Sample, State};

/// A command between its capsule and its response.
#[derive(Debug)]
pub(crate) struct Request {
    /// Its queue and its slot, and which life of the slot: a late completion of an earlier one is recognised by that.
    id: RequestId,
    state: State,
    /// In which it was judged last: see [`judge_again`](Self::judge_again).
    pub(super) epoch: u32,
    /// What is timed of it, if it is one of those that are.
    sample: Option<Sample>,
    pub(crate) command: SubmissionEntry,
    pub(crate) action: Action,
    pub(crate) host: HostMemory,
    /// Which way its data goes, as it was decided when the command came: what decided may change since.
    pub(crate) transfer: Transfer,
    /// Bytes that move between the host and us.
    pub(crate) length: DataBytes,
    /// Our pieces of the data, each of the core's chunk size but the last. Keeps its capacity from life to life.
    pub(crate) pieces: Pieces,
    /// Operations of the disk or the transport that have not ended.
    pub(crate) pending: u16,
    /// Whether it is half of a fused operation, and neither half is answered.
    pub(crate) is_fused: bool,
    pub(crate) status: Status,
    pub(crate) location: Option<ErrorLocation>,
    /// Dwords 0 and 1 of the completion.
    pub(crate) result: u64,
}

impl Request {
    /// A free slot, whose pieces need memory of their own.
    fn new(id: RequestId, pieces: Pieces) -> Self {
        Self {
            id,
            state: State::Free,
            epoch: 0,
            sample: None,
            command: SubmissionEntry::zeroed(),
            action: Action::Nothing,
            host: HostMemory::None,
            transfer: Transfer::None,
            length: DataBytes(0),
            pieces,
            pending: 0,
            is_fused: false,
            status: Status::SUCCESS,
            location: None,
            result: 0,
        }
    }

    /// Its name among the requests of the core.
    pub(crate) fn id(&self) -> RequestId {
        self.id
    }

    /// Where it is in its life.
    pub(crate) fn state(&self) -> State {
        self.state
    }

    /// The command's identifier.
    pub(crate) fn cid(&self) -> u16 {
        self.command.cid.get()
    }

    /// Keeps the first failure; the ones that follow from it say less.
    pub(crate) fn fail(&mut self, failure: Failure) {
        if self.status.is_success() {
            self.status = failure.status;
            self.location = failure.location;
            self.result = u64::from(failure.dw0);
        }
    }

    /// Whether it is to be answered with a failure.
    #[inline(always)]
    pub(crate) fn has_failed(&self) -> bool {
        !self.status.is_success()
    }

    /// What was timed of it, once it has been answered.
    #[inline(always)]
    pub(crate) fn take_sample(&mut self, states: &mut RequestStates) -> Option<Sample> {
        // Asked first: to take what is not there would copy all of its place.
        if self.sample.is_some() { end_sample(&mut self.sample, self.state, states) } else { None }
    }

    /// Moves on in its life.
    #[inline(always)]
    pub(crate) fn enter(&mut self, states: &mut RequestStates, state: State) {
        if let Some(sample) = &mut self.sample {
            states.timed(self.state, sample);
        }
        states.moved(self.state, state);
        self.state = state;
    }
}

#[cold]
fn end_sample(sample: &mut Option<Sample>, state: State, states: &mut RequestStates) -> Option<Sample> {
    let mut sample = sample.take()?;
    states.timed(state, &mut sample);
    Some(sample)
}

/// The requests of one queue: as many as the queue has entries once it is connected, and a few before. A queue that is
/// connected and hardly used has a few slots; with the first command beyond [`FEW`], outstanding or not, all are made,
/// so that nothing is allocated for later ones. Once it has been idle for a while it has a few again.
///
/// It is no `Slots` of `common/base`: a slot keeps its request, and with it the room for the pieces, from life to
/// life.
#[derive(Debug)]
pub(crate) struct Requests {
    /// Position of the queue in the core's table.
    queue: u16,
    slots: Vec<Request>,
    free: Vec<u16>,
    /// As many slots as there may be.
    entries: u16,
    /// Commands that have begun, as far as they are counted. With all slots made, those since the last look.
    begun: u16,
    /// Looks that have found a table with all its slots idle.
    idle_checks: u8,
    /// Where lives of new slots begin: none has the generation of a slot that was there before it.
    generation: u16,
    /// Pieces that every slot has room for.
    pieces: usize,
    /// Which command identifiers are in use.
    cids: CommandIds,
}

/// Slots of a queue that is hardly used.
const FEW: u16 = 16;

/// Looks that a table may be idle with all its slots.
const IDLE_CHECKS: u8 = 8;

/// What must be left for the process when slots are made, which take far less: whatever else is allocated meanwhile
/// must not fail.
const ROOM_BYTES: usize = 16 << 20;

/// A slot of [`Requests`], made only by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot(u16);

impl Slot {
    /// Its number, for tags and wire-independent bookkeeping.
    pub(crate) fn number(self) -> u16 {
        self.0
    }
}

/// Why a command got no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoSlot {
    /// The host has more commands outstanding than the queue has entries: a violation of flow control.
    Full,
    /// Its identifier belongs to a command that has not completed.
    IdentifierInUse,
    /// There is no memory for more slots.
    NoMemory,
}

/// There is no memory.
#[derive(Clone, Copy, Debug)]
struct OutOfMemory;

impl From<TryReserveError> for OutOfMemory {
    fn from(_: TryReserveError) -> Self {
        Self
    }
}

impl Requests {
    /// A table of a few free slots, which may grow.
    pub(crate) fn new(queue: u16, entries: u16) -> Self {
        Self {
            queue,
            slots: Vec::new(),
            free: Vec::new(),
            entries,
            begun: 0,
            idle_checks: 0,
            generation: 0,
            pieces: 0,
            cids: CommandIds::few(usize::from(FEW)),
        }
    }

    /// Lets the table have `entries` slots in all; those that it has stay what they are.
    pub(crate) fn grow(&mut self, entries: u16) {
        self.entries = self.entries.max(entries);
    }

    /// Makes room for so many pieces in every slot, so that no command of that size allocates. For a queue that has
    /// connected: one that may never do so gets no more memory than it needs.
    pub(crate) fn reserve_pieces(&mut self, count: usize) {
        self.pieces = count;
        for request in &mut self.slots {
            request.pieces.reserve(count);
        }
    }

    /// A free slot. As long as a few commands have begun, a few slots are enough.
    fn take_free(&mut self) -> Result<u16, NoSlot> {
        self.begun = self.begun.saturating_add(1);
        let enough = if self.begun > FEW { self.entries } else { self.entries.min(FEW) };
        if self.slots.len() < usize::from(enough) {
            self.make_slots(enough).map_err(|_| NoSlot::NoMemory)?;
        }
        self.free.pop().ok_or(NoSlot::Full)
    }

    /// Makes slots until there are so many, or none.
    #[cold]
    fn make_slots(&mut self, end: u16) -> Result<(), OutOfMemory> {
        let first = self.slots.len() as u16;
        let count = usize::from(end - first);
        if !has_headroom(ROOM_BYTES) {
            return Err(OutOfMemory);
        }
        self.slots.try_reserve_exact(count)?;
        self.free.try_reserve_exact(count)?;
        for number in first..end {
            let pieces = Pieces::try_with_capacity(self.pieces)?;
            let id = RequestId { queue: self.queue, slot: number, generation: self.generation };
            self.slots.push(Request::new(id, pieces));
        }
        self.free.extend((first..end).rev());
        if end > FEW {
            self.cids.expect_many();
        }
        Ok(())
    }

    /// Once in a while: a table that has been idle with all its slots keeps a few. Returns whether it let go of any.
    pub(crate) fn trim(&mut self) -> bool {
        if self.slots.len() <= usize::from(FEW) {
            return false;
        }
        let idle = self.begun == FEW + 1 && self.is_idle();
        self.begun = FEW + 1;
        self.idle_checks = if idle { self.idle_checks + 1 } else { 0 };
        if self.idle_checks < IDLE_CHECKS {
            return false;
        }
        let lives = self.slots.iter().map(|slot| slot.id.generation.wrapping_sub(self.generation)).max();
        self.generation = self.generation.wrapping_add(lives.unwrap_or(0)).wrapping_add(1);
        (self.slots, self.free) = (Vec::new(), Vec::new());
        self.cids = CommandIds::few(usize::from(FEW));
        (self.begun, self.idle_checks) = (0, 0);
        true
    }

    /// Starts the life of a command. Until it waits for something, it is in no state.
    pub(crate) fn allocate(
        &mut self,
        states: &mut RequestStates,
        command: &SubmissionEntry,
    ) -> Result<Slot, NoSlot> {
        let cid = command.cid.get();
        if self.cids.contains(cid) {
            return Err(NoSlot::IdentifierInUse);
        }
        let index = self.take_free()?;
        self.cids.insert(cid);
        let request = &mut self.slots[usize::from(index)];
        request.command = *command;
        (request.status, request.location, request.result) = (Status::SUCCESS, None, 0);
        states.sample_next(&mut request.sample);
        Ok(Slot(index))
    }

    /// Ends a life: what the request still holds goes back to its pool.
    pub(crate) fn release(&mut self, states: &mut RequestStates, slot: Slot) {
        let request = &mut self.slots[usize::from(slot.0)];
        assert_eq!(request.pending, 0, "operations are still in flight");
        if request.state != State::Free {
            request.enter(states, State::Free);
        }
        request.sample = None;
        request.id.generation = request.id.generation.wrapping_add(1);
        request.pieces.clear();
        request.action = Action::Nothing;
        request.host = HostMemory::None;
        request.transfer = Transfer::None;
        request.length = DataBytes(0);
        request.is_fused = false;
        self.cids.remove(request.command.cid.get());
        self.free.push(slot.0);
    }

    /// The slot that a tag names, if that life has not ended.
    pub(crate) fn find(&self, number: u16, generation: u16) -> Option<Slot> {
        let request = self.slots.get(usize::from(number))?;
        (request.id.generation == generation && request.state != State::Free).then_some(Slot(number))
    }

    /// The outstanding command with an identifier.
    pub(crate) fn find_cid(&self, cid: u16) -> Option<Slot> {
        self.waiting().find(|slot| self.slots[usize::from(slot.0)].cid() == cid)
    }

    /// All slots whose command waits for something.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = Slot> {
        let used = |(index, request): (usize, &Request)| {
            (request.state != State::Free).then_some(Slot(index as u16))
        };
        self.slots.iter().enumerate().filter_map(used)
    }

    /// Whether all commands that are outstanding are in this state.
    pub(crate) fn are_all(&self, state: State) -> bool {
        self.waiting().all(|slot| self[slot].state() == state)
    }

    /// In which states its requests are, and how many in each.
    pub(crate) fn counts(&self) -> Vec<(State, usize)> {
        let count = |state| self.slots.iter().filter(|request| request.state == state).count();
        let used = State::ALL.into_iter().filter(|state| *state != State::Free);
        used.map(|state| (state, count(state))).filter(|(_, count)| *count != 0).collect()
    }

    /// Whether no command is outstanding.
    pub(crate) fn is_idle(&self) -> bool {
        self.free.len() == self.slots.len()
    }
}

impl std::ops::Index<Slot> for Requests {
    type Output = Request;

    fn index(&self, slot: Slot) -> &Request {
        &self.slots[usize::from(slot.0)]
    }
}

impl std::ops::IndexMut<Slot> for Requests {
    fn index_mut(&mut self, slot: Slot) -> &mut Request {
        &mut self.slots[usize::from(slot.0)]
    }
}

#[cfg(test)]
mod tests;
