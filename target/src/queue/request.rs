//! The table of a queue's requests, and the states of their one life.

use ringfab_memory::{Buffer, Lease};
use ringfab_spec::{Status, SubmissionEntry};

use super::identifiers::Identifiers;
use super::parse::{HostMemory, Transfer, Work};
use crate::core::ClaimId;
use crate::failure::{ErrorLocation, Failure};

/// Where a request is in its life. Every transport walks the same states, some of them in no time:
/// `Free -> (NeedBuffer) -> DataIn -> Execute -> DataOut -> Complete -> Free`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The slot serves no command.
    Free,
    /// The command was parsed and waits, in order, for buffers of the core's pool.
    NeedBuffer,
    /// Data moves from the host into our buffers.
    DataIn,
    /// The disk or the controller works on it.
    Execute,
    /// Data and response are ready and wait for room in the send queue.
    DataOut,
    /// The response was handed to the transport; the slot is about to be free.
    Complete,
}

impl State {
    /// How many states there are.
    pub const COUNT: usize = 6;

    /// Every state, in the order of a request's life.
    pub const ALL: [State; State::COUNT] =
        [Self::Free, Self::NeedBuffer, Self::DataIn, Self::Execute, Self::DataOut, Self::Complete];

    /// The states that may follow. A request whose queue has ended goes to `Free` from anywhere, and a command
    /// that fails goes to `DataOut` with its status.
    pub const fn followers(self) -> &'static [State] {
        match self {
            Self::Free => &[Self::NeedBuffer],
            Self::NeedBuffer => &[Self::DataIn, Self::DataOut, Self::Free],
            Self::DataIn => &[Self::Execute, Self::DataOut, Self::Free],
            Self::Execute => &[Self::DataOut, Self::Free],
            Self::DataOut => &[Self::Complete, Self::Free],
            Self::Complete => &[Self::Free],
        }
    }
}

/// One piece of a request's data.
#[derive(Debug)]
pub(crate) enum Held {
    /// It is with the disk or the RNIC.
    Away,
    /// Ours alone.
    Buffer(Buffer),
    /// Shared with a send or a write.
    Lease(Lease),
}

impl Held {
    /// Takes it, leaving `Away`.
    pub(crate) fn take(&mut self) -> Held {
        std::mem::replace(self, Held::Away)
    }

    /// Takes it as a lease; `None` when it is away.
    pub(crate) fn take_lease(&mut self) -> Option<Lease> {
        match self.take() {
            Held::Away => None,
            Held::Buffer(buffer) => Some(buffer.share()),
            Held::Lease(lease) => Some(lease),
        }
    }
}

/// A command between its capsule and its response.
#[derive(Debug)]
pub(crate) struct Request {
    state: State,
    /// Counts the lives of the slot, so that a late completion of an earlier one is recognised.
    pub(crate) generation: u16,
    pub(crate) command: SubmissionEntry,
    pub(crate) work: Work,
    pub(crate) host: HostMemory,
    /// Which way its data goes, as it was decided when the command came: what decided may change since.
    pub(crate) transfer: Transfer,
    /// Bytes that move between the host and us.
    pub(crate) length: u32,
    /// Our pieces of the data, each of the core's chunk size but the last. Keeps its capacity from life to life.
    pub(crate) held: Vec<Held>,
    /// Operations of the disk or the RNIC that have not ended.
    pub(crate) pending: u16,
    pub(crate) status: Status,
    pub(crate) location: Option<ErrorLocation>,
    /// Dwords 0 and 1 of the completion.
    pub(crate) result: u64,
    /// The other half of a fused operation, until one of the two is answered.
    pub(crate) partner: Option<Slot>,
    /// The claim of a fused operation to its blocks, kept by its Write.
    pub(crate) claim: Option<ClaimId>,
    /// Whether it waits for the release of blocks that a fused operation has claimed.
    pub(crate) delayed: bool,
}

impl Request {
    /// A free slot with room for so many pieces.
    fn new(pieces: usize) -> Self {
        Self {
            state: State::Free,
            generation: 0,
            command: SubmissionEntry::zeroed(),
            work: Work::Nothing,
            host: HostMemory::None,
            transfer: Transfer::None,
            length: 0,
            held: Vec::with_capacity(pieces),
            pending: 0,
            status: Status::SUCCESS,
            location: None,
            result: 0,
            partner: None,
            claim: None,
            delayed: false,
        }
    }

    /// Adds a piece, which is made in its place: moved there, it would be read before it is written.
    #[inline(always)]
    pub(crate) fn hold(&mut self, piece: impl FnOnce() -> Held) {
        self.held.extend(std::iter::once_with(piece));
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
}

/// The requests of one queue: as many as the queue has entries once it is connected, and a few before. A queue that is
/// connected and hardly used has a few slots; with the first command beyond [`FEW`], outstanding or not, all are made, so
/// that nothing is allocated for later ones.
#[derive(Debug)]
pub(crate) struct Requests {
    slots: Vec<Request>,
    free: Vec<u16>,
    /// As many slots as there may be.
    entries: u16,
    /// Commands that have begun, as far as they are counted.
    begun: u16,
    /// Pieces that every slot has room for.
    pieces: usize,
    /// Which command identifiers are in use.
    cids: Identifiers,
    counts: [u32; State::COUNT],
}

/// Slots of a queue that is hardly used.
const FEW: u16 = 16;

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
}

impl Requests {
    /// A table of a few free slots, which may grow.
    pub(crate) fn new(entries: u16) -> Self {
        let mut counts = [0; State::COUNT];
        counts[State::Free as usize] = u32::from(entries);
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            entries,
            begun: 0,
            pieces: 0,
            cids: Identifiers::few(usize::from(FEW)),
            counts,
        }
    }

    /// Lets the table have `entries` slots in all; those that it has stay what they are.
    pub(crate) fn grow(&mut self, entries: u16) {
        self.counts[State::Free as usize] += u32::from(entries.saturating_sub(self.entries));
        self.entries = self.entries.max(entries);
    }

    /// Makes room for so many pieces in every slot, so that no command of that size allocates. For a queue that has
    /// connected: one that may never do so gets no more memory than it needs.
    pub(crate) fn reserve_pieces(&mut self, count: usize) {
        self.pieces = count;
        for request in &mut self.slots {
            request.held.reserve(count);
        }
    }

    /// A free slot. As long as a few commands have begun, a few slots are enough.
    fn take_free(&mut self) -> Option<u16> {
        self.begun = self.begun.saturating_add(1);
        let enough = if self.begun > FEW { self.entries } else { self.entries.min(FEW) };
        if self.slots.len() < usize::from(enough) {
            self.make_slots(enough);
        }
        self.free.pop()
    }

    /// Makes slots until there are so many.
    #[cold]
    fn make_slots(&mut self, end: u16) {
        let first = self.slots.len() as u16;
        self.slots.reserve_exact(usize::from(end - first));
        self.slots.extend((first..end).map(|_| Request::new(self.pieces)));
        self.free.reserve_exact(self.slots.len() - self.free.len());
        self.free.extend((first..end).rev());
        if end > FEW {
            self.cids.expect_many();
        }
    }

    /// Starts the life of a command.
    pub(crate) fn allocate(&mut self, command: &SubmissionEntry) -> Result<Slot, NoSlot> {
        let cid = command.cid.get();
        if self.cids.contains(cid) {
            return Err(NoSlot::IdentifierInUse);
        }
        let index = self.take_free().ok_or(NoSlot::Full)?;
        self.cids.insert(cid);
        let request = &mut self.slots[usize::from(index)];
        request.command = *command;
        (request.status, request.location, request.result) = (Status::SUCCESS, None, 0);
        self.enter(Slot(index), State::NeedBuffer);
        Ok(Slot(index))
    }

    /// Ends a life: what the request still holds goes back to its pool.
    pub(crate) fn release(&mut self, slot: Slot) {
        let request = &mut self.slots[usize::from(slot.0)];
        assert_eq!(request.pending, 0, "operations are still in flight");
        request.generation = request.generation.wrapping_add(1);
        request.held.clear();
        request.work = Work::Nothing;
        request.host = HostMemory::None;
        request.transfer = Transfer::None;
        request.length = 0;
        (request.partner, request.claim, request.delayed) = (None, None, false);
        self.cids.remove(request.command.cid.get());
        self.enter(slot, State::Free);
        self.free.push(slot.0);
    }

    /// Moves a request on in its life.
    pub(crate) fn enter(&mut self, slot: Slot, state: State) {
        let request = &mut self.slots[usize::from(slot.0)];
        debug_assert!(request.state.followers().contains(&state), "{:?} -> {state:?}", request.state);
        self.counts[request.state as usize] -= 1;
        self.counts[state as usize] += 1;
        request.state = state;
    }

    /// The slot that a tag names, if that life has not ended.
    pub(crate) fn find(&self, number: u16, generation: u16) -> Option<Slot> {
        let request = self.slots.get(usize::from(number))?;
        (request.generation == generation && request.state != State::Free).then_some(Slot(number))
    }

    /// The outstanding command with an identifier.
    pub(crate) fn find_cid(&self, cid: u16) -> Option<Slot> {
        self.outstanding().find(|slot| self.slots[usize::from(slot.0)].cid() == cid)
    }

    /// All slots that serve a command.
    pub(crate) fn outstanding(&self) -> impl Iterator<Item = Slot> {
        let used = |(index, request): (usize, &Request)| {
            (request.state != State::Free).then_some(Slot(index as u16))
        };
        self.slots.iter().enumerate().filter_map(used)
    }

    /// How many requests are in each state, in the order of [`State::ALL`].
    pub(crate) fn counts(&self) -> [u32; State::COUNT] {
        self.counts
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
mod tests {
    use super::*;

    fn command(cid: u16) -> SubmissionEntry {
        let mut command = SubmissionEntry::zeroed();
        command.cid.set(cid);
        command
    }

    #[test]
    fn the_automaton_of_a_request_is_the_documented_one() {
        let lines: Vec<String> =
            State::ALL.iter().map(|state| format!("{state:?} -> {:?}", state.followers())).collect();
        assert_eq!(
            lines,
            [
                "Free -> [NeedBuffer]",
                "NeedBuffer -> [DataIn, DataOut, Free]",
                "DataIn -> [Execute, DataOut, Free]",
                "Execute -> [DataOut, Free]",
                "DataOut -> [Complete, Free]",
                "Complete -> [Free]",
            ]
        );
    }

    #[test]
    fn a_table_takes_as_many_commands_as_it_has_entries_and_not_one_more() {
        let mut requests = Requests::new(2);
        let first = requests.allocate(&command(7)).expect("first");
        requests.allocate(&command(8)).expect("second");
        assert_eq!(requests.allocate(&command(9)), Err(NoSlot::Full));
        requests.release(first);
        assert!(requests.allocate(&command(9)).is_ok());
    }

    #[test]
    fn a_table_that_grows_keeps_its_commands_and_takes_as_many_as_it_has_entries_then() {
        let mut requests = Requests::new(2);
        let first = requests.allocate(&command(7)).expect("first");
        requests.grow(5);
        assert_eq!(requests[first].cid(), 7);
        assert_eq!(requests.counts()[State::Free as usize], 4);
        assert_eq!(requests.allocate(&command(7)), Err(NoSlot::IdentifierInUse));
        let more: Vec<Slot> =
            (10..14).map(|cid| requests.allocate(&command(cid)).expect("room for four more")).collect();
        assert!(!more.contains(&first));
        assert_eq!(requests.allocate(&command(14)), Err(NoSlot::Full));
        requests.release(first);
        assert!(requests.allocate(&command(7)).is_ok());
    }

    #[test]
    fn a_table_is_made_whole_with_the_command_after_a_few() {
        let mut requests = Requests::new(128);
        for cid in 0..FEW {
            let slot = requests.allocate(&command(cid)).expect("a slot");
            requests.release(slot);
        }
        assert_eq!(requests.slots.len(), usize::from(FEW));
        requests.allocate(&command(0)).expect("a slot");
        assert_eq!(requests.slots.len(), 128);
        assert!(requests.slots.capacity() == 128 && requests.free.capacity() == 128);
    }

    #[test]
    fn an_identifier_in_use_is_refused_until_its_command_has_completed() {
        let mut requests = Requests::new(4);
        let first = requests.allocate(&command(7)).expect("first");
        assert_eq!(requests.allocate(&command(7)), Err(NoSlot::IdentifierInUse));
        requests.release(first);
        assert!(requests.allocate(&command(7)).is_ok());
    }

    #[test]
    fn a_late_completion_of_an_earlier_life_finds_no_slot() {
        let mut requests = Requests::new(1);
        let slot = requests.allocate(&command(1)).expect("slot");
        let generation = requests[slot].generation;
        assert_eq!(requests.find(slot.number(), generation), Some(slot));
        requests.release(slot);
        assert_eq!(requests.find(slot.number(), generation), None);
        requests.allocate(&command(1)).expect("the same slot");
        assert_eq!(requests.find(slot.number(), generation), None);
        assert_eq!(requests.find(9, 0), None);
    }

    #[test]
    fn the_first_failure_of_a_request_is_the_one_reported() {
        let mut request = Request::new(0);
        request.fail(Failure::invalid_field(40));
        request.fail(Failure::new(Status::INTERNAL_ERROR));
        assert_eq!(request.status.code(), Status::INVALID_FIELD);
        assert_eq!(request.location, Some(ErrorLocation::byte(40)));
    }
}
