//! The commands of a queue, from their arrival to their answer. [`Commands::live`] is the life of a request, from top
//! to bottom. [`Commands::run`] sends the answer.

use std::collections::VecDeque;

use ringfab_block::Finished;
use ringfab_memory::Buffer;
use ringfab_spec::{CompletionEntry, Status, SubmissionEntry};

use super::aborts::WaitingCommands;
use super::admin::{Executed, Execution};
use super::automaton::{Event, Step, next};
use super::connection::Connection;
use super::fused::{FusedPairs, PairEvent};
use super::log;
use super::request::{NoSlot, Requests, Slot};
use super::samples::Samples;
use crate::failure::Failure;
use crate::limits::TRANSFER_BYTES_MAX;
use crate::nvm::{Action, DataBytes, HostMemory};
use crate::resources::Resources;
use crate::resources::states::State;
use crate::transport::{CommandData, LinkError, Piece};

/// Commands that a queue can hold before its Connect is done, so that a peer which never sends one costs little. An
/// ordinary host sends nothing else before it has the answer.
const HALF_OPEN_ENTRIES: u16 = 4;

/// Data that are not what the host sent: it may send them again.
const DAMAGED: Failure = Failure::transient(Status::TRANSIENT_TRANSPORT_ERROR);

/// The commands of a queue.
#[derive(Debug)]
pub(super) struct Commands {
    pub(super) table: Requests,
    pub(super) fused: FusedPairs,
    /// Requests that wait for room in the send queue, in order.
    pub(super) wait_for_room: VecDeque<Slot>,
    pub(super) samples: Samples,
}

/// What became of a request, when it is not on its own.
pub(super) type Turn = Option<PairEvent>;

/// Why a request goes no further for now.
pub(super) enum Stop {
    /// It waits.
    Wait(State),
    /// Its outcome is known.
    Answer,
    /// It is half of a fused pair, whose halves go on together.
    Pair(PairEvent),
}

impl Commands {
    /// No command yet, for the queue at a position of the core's table.
    pub(super) fn new(queue: u16, entries: u16) -> Self {
        Self {
            table: Requests::new(queue, entries.min(HALF_OPEN_ENTRIES)),
            fused: FusedPairs::default(),
            wait_for_room: VecDeque::new(),
            samples: Samples::default(),
        }
    }

    /// A command has arrived: gives it a slot, and finds out what it asks for.
    pub(super) fn begin(
        &mut self,
        connection: &mut Connection,
        resources: &mut Resources,
        command: &SubmissionEntry,
        data: Option<Buffer>,
        intact: bool,
    ) {
        let slot = loop {
            match self.table.allocate(&mut resources.states, command) {
                Ok(slot) => break slot,
                Err(why) if self.makes_room(connection, resources, command, why) => {}
                Err(_) => return,
            }
        };
        let request = &mut self.table[slot];
        let capsule_bytes = data.as_ref().map_or(0, |data| data.len() as u32);
        match request.plan(connection, resources, capsule_bytes) {
            Ok(()) if !intact => request.fail(DAMAGED),
            Ok(()) => {
                if let HostMemory::Capsule { offset } = request.host {
                    request.keep_capsule_data(offset as usize, data);
                }
            }
            Err(failure) => request.fail(failure),
        }
        if command.fuse() != 0 {
            return self.begin_half(connection, resources, slot);
        }
        self.advance(connection, resources, slot, next(State::Free, Event::Arrived));
    }

    /// Something has happened to a request. Returns what it came to.
    #[inline(always)]
    pub(super) fn on_event(
        &mut self,
        connection: &mut Connection,
        resources: &mut Resources,
        slot: Slot,
        event: Event,
    ) -> Step {
        let step = next(self.table[slot].state(), event);
        match step {
            Step::Ignore => {}
            Step::Release => self.release(resources, slot),
            Step::Claim => self.claim_blocks(resources, slot),
            Step::Never => unreachable!("{event:?} of a request in {:?}", self.table[slot].state()),
            _ => self.advance(connection, resources, slot, step),
        }
        step
    }

    /// Takes a request from a step of its life to the next state in which it waits, or to its end.
    #[inline(always)]
    pub(super) fn advance(
        &mut self,
        connection: &mut Connection,
        resources: &mut Resources,
        slot: Slot,
        step: Step,
    ) {
        if let Some(turn) = self.run(connection, resources, slot, step) {
            self.advance_pair(connection, resources, turn);
        }
    }

    /// Goes on from a step until the request waits, or has been answered.
    fn run(
        &mut self,
        connection: &mut Connection,
        resources: &mut Resources,
        slot: Slot,
        from: Step,
    ) -> Turn {
        if from.leads_to(Step::GoOnAtDisk) {
            match self.live(connection, resources, slot, from) {
                Ok(()) | Err(Stop::Answer) => {}
                Err(Stop::Wait(state)) => {
                    self.table[slot].enter(&mut resources.states, state);
                    return None;
                }
                Err(Stop::Pair(turn)) => return Some(turn),
            }
        }
        let mut failed_partner = None;
        if from != Step::Send {
            failed_partner = self.settle(connection, resources, slot);
            // Behind a request that waits already, this one waits too, so that room goes to the first in order.
            if !self.wait_for_room.is_empty()
                || !connection.link.has_room(self.table[slot].room_to_answer(resources.chunk_bytes))
            {
                self.wait_for_room.push_back(slot);
                self.table[slot].enter(&mut resources.states, State::DataOut);
                return failed_partner;
            }
        }
        self.send(connection, resources, slot);
        self.table.release(&mut resources.states, slot);
        failed_partner
    }

    /// The life of a request until its outcome is known. It goes from top to bottom, and enters at any step.
    #[inline(always)]
    fn live(
        &mut self,
        connection: &mut Connection,
        resources: &mut Resources,
        slot: Slot,
        from: Step,
    ) -> Result<(), Stop> {
        // What a disk has done already is not judged.
        if from != Step::Begin && from != Step::GoOnAtDisk {
            self.table[slot].judge_again(connection, resources)?;
        }
        if from.leads_to(Step::TakeTurn) && !resources.turns.is_free(connection.host) {
            self.table[slot].await_begin(connection, resources, from)?;
        }
        if from.leads_to(Step::Admit) {
            self.table[slot].admit(connection, resources)?;
        }
        if from.leads_to(Step::TakeBuffers) {
            self.get_buffers(connection, resources, slot, from == Step::TakeBuffers)?;
        }
        if from.leads_to(Step::Fetch) {
            self.fetch(connection, resources, slot)?;
        }
        if from.leads_to(Step::Execute) {
            self.execute(connection, resources, slot)?;
        }
        if from.leads_to(Step::StartDisk) {
            self.table[slot].check_claims(connection, resources)?;
        }
        if from.leads_to(Step::StartClaimed) {
            self.table[slot].start_at_disk(connection, resources);
        } else {
            self.table[slot].next_step(connection, resources);
        }
        self.conclude(connection, resources, slot)
    }

    /// Takes all buffers, or has the request wait for them in order; `in_turn` says that it is the first that waits.
    #[inline(always)]
    fn get_buffers(
        &mut self,
        connection: &Connection,
        resources: &mut Resources,
        slot: Slot,
        in_turn: bool,
    ) -> Result<(), Stop> {
        let behind = !in_turn && self.table[slot].is_behind_others(connection, resources);
        if behind || !self.take_buffers(connection, resources, slot) {
            let request = &self.table[slot];
            if !in_turn {
                resources.hosts.wait(connection.host, request.pool_kind(connection.id), request.id());
            }
            return Err(Stop::Wait(State::NeedBuffer));
        }
        let request = &mut self.table[slot];
        if request.is_fused {
            request.enter(&mut resources.states, State::AwaitFused);
            return Err(Stop::Pair(PairEvent::HasBuffers(slot)));
        }
        Ok(())
    }

    /// Does what an admin or Fabrics command asks for. A half of a fused pair waits for the other.
    #[inline(always)]
    fn execute(
        &mut self,
        connection: &mut Connection,
        resources: &mut Resources,
        slot: Slot,
    ) -> Result<(), Stop> {
        let request = &mut self.table[slot];
        if request.has_failed() {
            return Err(Stop::Answer);
        }
        if request.is_fused {
            request.enter(&mut resources.states, State::AwaitPartner);
            return Err(Stop::Pair(PairEvent::HasData(slot)));
        }
        if request.action == Action::Controller {
            return self.ask_controller(connection, resources, slot);
        }
        Ok(())
    }

    /// Waits for operations on disks that are in flight, or sees what all of them came to.
    #[inline(always)]
    fn conclude(&mut self, connection: &Connection, resources: &Resources, slot: Slot) -> Result<(), Stop> {
        let request = &mut self.table[slot];
        if request.pending != 0 {
            return Err(Stop::Wait(State::AtDisk));
        }
        match request.action {
            Action::Compare(_) => request.compare(resources.chunk_bytes),
            Action::Copy(copying) => request.note_copied(copying),
            Action::FlushAll { .. } if connection.id == 0 => self.shutdown_flushed(connection, slot),
            // Whether they have failed is all that there is to know.
            Action::Read(_) | Action::Write { .. } | Action::WriteZeroes { .. } | Action::Verify { .. } => {}
            Action::Flush { .. } | Action::FlushAll { .. } | Action::Discard { .. } => {}
            Action::CompareAndWrite { .. } => {}
            Action::Hints { .. } | Action::Nothing | Action::Controller => {}
        }
        if self.table[slot].is_fused {
            return Err(Stop::Pair(PairEvent::DiskDone(slot)));
        }
        Ok(())
    }

    /// A command for which there was no slot may take the place of a parked request, or is answered without one.
    #[cold]
    fn makes_room(
        &mut self,
        connection: &mut Connection,
        resources: &mut Resources,
        command: &SubmissionEntry,
        why: NoSlot,
    ) -> bool {
        let unfinished = !self.table.is_idle();
        match why {
            NoSlot::Full => {
                connection.violation(resources, "more commands than the queue has entries", unfinished);
            }
            NoSlot::NoMemory => {
                connection.evict(resources, "the process may have no more memory", unfinished);
            }
            NoSlot::IdentifierInUse => {
                let mut waiting = WaitingCommands { commands: self, connection, resources };
                if waiting.forget_parked(command.cid.get()) {
                    return true;
                }
                connection.refuse_identifier(resources, command);
            }
        }
        false
    }

    /// All the buffers that a request will ever need, or none.
    #[inline(always)]
    fn take_buffers(&mut self, connection: &Connection, resources: &Resources, slot: Slot) -> bool {
        if self.table[slot].is_fused {
            return self.take_pair_buffers(connection, resources, slot);
        }
        self.table[slot].take_buffers(connection, resources)
    }

    /// Has the host's data moved into our buffers, unless there is none to move.
    #[inline(always)]
    fn fetch(
        &mut self,
        connection: &mut Connection,
        resources: &mut Resources,
        slot: Slot,
    ) -> Result<(), Stop> {
        let request = &mut self.table[slot];
        if !request.fetches_data() || request.has_failed() {
            return Ok(());
        }
        let count = piece_ranges(request.length, resources.chunk_bytes).count();
        if !connection.link.has_room(count) {
            self.wait_for_room.push_back(slot);
            return Err(Stop::Wait(State::FetchRoom));
        }
        let transfer = link_transfer(slot, request);
        let sinks = piece_ranges(request.length, resources.chunk_bytes)
            .enumerate()
            .zip(request.pieces.take_buffers());
        let sinks = sinks.map(|((index, (offset, length)), memory)| Piece {
            index: index as u8,
            offset,
            length,
            memory,
        });
        let (posted, outcome) = connection.link.fetch(&mut resources.transports, &transfer, sinks);
        request.pending += posted;
        if outcome.is_err() {
            request.fail(Failure::transient(Status::DATA_TRANSFER_ERROR));
        }
        if request.pending == 0 { Ok(()) } else { Err(Stop::Wait(State::DataIn)) }
    }

    /// A piece of the host's data is here, or is lost with the connection.
    #[inline(always)]
    pub(super) fn data_arrived(
        &mut self,
        connection: &mut Connection,
        resources: &mut Resources,
        slot: Slot,
        piece: usize,
        sink: Option<Buffer>,
        intact: bool,
    ) {
        let request = &mut self.table[slot];
        request.pending -= 1;
        match sink {
            Some(sink) => request.pieces.put(piece, sink),
            None => request.fail(Failure::transient(Status::DATA_TRANSFER_ERROR)),
        }
        if !intact {
            request.fail(DAMAGED);
        }
        if request.pending == 0 {
            self.on_event(connection, resources, slot, Event::DataArrived);
        }
    }

    /// A disk has finished an operation of a request. Returns whether that was the end of a request whose connection is
    /// gone.
    #[inline(always)]
    pub(super) fn disk_finished(
        &mut self,
        connection: &mut Connection,
        resources: &mut Resources,
        slot: Slot,
        finished: Finished,
    ) -> bool {
        let request = &mut self.table[slot];
        request.take_back(resources, finished);
        if request.pending != 0 {
            return false;
        }
        let gone = connection.is_closed();
        let event = if gone { Event::Disconnected } else { Event::DiskDone };
        self.on_event(connection, resources, slot, event);
        gone
    }

    /// Has the controller execute an admin or Fabrics command.
    #[inline(never)]
    fn ask_controller(
        &mut self,
        connection: &mut Connection,
        resources: &mut Resources,
        slot: Slot,
    ) -> Result<(), Stop> {
        let request = &mut self.table[slot];
        let executed = Execution { connection, resources, request }.run();
        match executed {
            Err(failure) => request.fail(failure),
            Ok(Executed::Done(result)) => request.result = result,
            Ok(Executed::LetIn(result)) => {
                request.result = result;
                self.grow(connection, resources);
            }
            Ok(Executed::Reset) => {
                WaitingCommands { commands: self, connection, resources }.forget_all_parked();
            }
            Ok(Executed::Cancel) => {
                let canceled = WaitingCommands { commands: self, connection, resources }.cancel(slot);
                let request = &mut self.table[slot];
                match canceled {
                    Ok(result) => request.result = u64::from(result.bits()),
                    Err(failure) => request.fail(failure),
                }
            }
            Ok(Executed::Flush) => {
                request.action = Action::FlushAll { rounds: 0 };
                return Ok(());
            }
            Ok(Executed::Waits(state)) => return Err(Stop::Wait(state)),
        }
        Err(Stop::Answer)
    }

    /// Its host is let in: the queue may have as many commands as it has entries, of any size.
    pub(super) fn grow(&mut self, connection: &Connection, resources: &Resources) {
        self.table.grow(connection.entries);
        self.wait_for_room.reserve(usize::from(connection.entries));
        if connection.id != 0 {
            self.table.reserve_pieces(TRANSFER_BYTES_MAX.div_ceil(resources.chunk_bytes) as usize);
        }
    }

    /// The flush that a shutdown asked for has ended. The host learns that from CSTS.SHST, and from CSTS.CFS if a disk
    /// failed.
    #[cold]
    fn shutdown_flushed(&mut self, connection: &Connection, slot: Slot) {
        let request = &mut self.table[slot];
        let flushed = !request.has_failed();
        (request.status, request.location) = (Status::SUCCESS, None);
        // A reset may have come between this shutdown and another one.
        let flushes = |other: Slot| matches!(self.table[other].action, Action::FlushAll { .. });
        let last = !self.table.waiting().any(|other| other != slot && flushes(other));
        match connection.controller().filter(|_| last) {
            Some(controller) if flushed => controller.state().registers.shutdown_done(),
            Some(controller) => {
                log::shutdown_failed(controller);
                controller.state().registers.shutdown_failed();
            }
            None => {}
        }
    }

    /// The outcome of a request is known. Buffers with nothing for the host are given back at once, since it may take
    /// its time with the response. Returns the other half of a fused pair, if that has failed with this one.
    #[inline(always)]
    fn settle(&mut self, connection: &Connection, resources: &Resources, slot: Slot) -> Turn {
        let partner = if self.table[slot].is_fused { self.part(resources, slot) } else { None };
        let request = &mut self.table[slot];
        if !request.sends_data() {
            request.pieces.clear();
        }
        if request.has_failed() {
            connection.log_failed(&request.command, request.status);
        }
        if let Some(attached) = &connection.attached {
            attached.note_outcome(resources, connection.id, request);
            // Until then it is somebody else's controller, perhaps.
            if request.has_failed() && connection.has_joined() {
                attached.note_failure(resources, connection.id, request);
            }
        }
        partner.filter(|_| request.has_failed()).map(PairEvent::PartnerFailed)
    }

    /// Sends the data of a request, if the host gets any, and the response.
    #[inline(always)]
    fn send(&mut self, connection: &mut Connection, resources: &mut Resources, slot: Slot) {
        let count = self.table[slot].room_to_answer(resources.chunk_bytes) - 1;
        let head = connection.next_submission_head();
        let request = &mut self.table[slot];
        let transfer = link_transfer(slot, request);
        let entry = CompletionEntry::new(request.cid(), head, request.status).with_result(request.result);
        let data = piece_ranges(request.length, resources.chunk_bytes).take(count).enumerate();
        let data = data.zip(request.pieces.take_all_shared());
        let data = data.map(|((index, (offset, length)), memory)| Piece {
            index: index as u8,
            offset,
            length,
            memory,
        });
        let answered = connection.link.answer(&mut resources.transports, &transfer, count, data, &entry);
        connection.link.replenish(&mut resources.transports);
        if answered == Err(LinkError::Unreachable) {
            // What was posted before cannot be taken back, so no status could be true.
            connection.violation(resources, "memory that cannot be written to", true);
        }
        let request = &mut self.table[slot];
        if let Some(sample) = request.take_sample(&mut resources.states) {
            self.samples.answered(connection, resources, request.action, sample);
        }
    }

    /// Room has come in the send queue: goes on with what waited, in order.
    #[inline(always)]
    pub(super) fn room_freed(&mut self, connection: &mut Connection, resources: &mut Resources) {
        if !self.wait_for_room.is_empty() {
            self.serve_waiting_for_room(connection, resources);
        }
    }

    fn serve_waiting_for_room(&mut self, connection: &mut Connection, resources: &mut Resources) {
        while let Some(slot) = self.wait_for_room.front().copied() {
            let room = match self.table[slot].state() {
                State::FetchRoom => piece_ranges(self.table[slot].length, resources.chunk_bytes).count(),
                _ => self.table[slot].room_to_answer(resources.chunk_bytes),
            };
            if !connection.link.has_room(room) {
                return;
            }
            self.wait_for_room.pop_front();
            self.on_event(connection, resources, slot, Event::RoomFree);
        }
    }

    /// Ends a request without an answer.
    #[cold]
    pub(super) fn release(&mut self, resources: &mut Resources, slot: Slot) {
        if self.table[slot].is_fused
            && let Some(claim) = self.fused.forget(slot)
        {
            resources.release(claim);
        }
        self.table.release(&mut resources.states, slot);
    }

    /// Sends an event to every request of which nothing is in flight.
    pub(super) fn on_event_of_all(
        &mut self,
        connection: &mut Connection,
        resources: &mut Resources,
        event: Event,
    ) {
        let idle = |slot: &Slot| self.table[*slot].pending == 0;
        let slots: Vec<Slot> = self.table.waiting().filter(idle).collect();
        for slot in slots {
            self.on_event(connection, resources, slot, event);
        }
    }

    /// Its connection is gone: only what disks hold stays.
    pub(super) fn disconnected(&mut self, connection: &mut Connection, resources: &mut Resources) {
        self.wait_for_room.clear();
        self.on_event_of_all(connection, resources, Event::Disconnected);
    }
}

/// A request's data in the words of the link.
#[inline(always)]
fn link_transfer(slot: Slot, request: &super::request::Request) -> CommandData {
    CommandData {
        slot: slot.number(),
        generation: request.id().generation,
        cid: request.cid(),
        memory: request.host,
        length: request.length,
    }
}

/// The pieces of `length` bytes: offset and length of each.
#[inline(always)]
pub(super) fn piece_ranges(
    DataBytes(length): DataBytes,
    chunk_bytes: u32,
) -> impl Iterator<Item = (u32, u32)> {
    (0..length).step_by(chunk_bytes as usize).map(move |offset| (offset, chunk_bytes.min(length - offset)))
}

#[cfg(test)]
mod tests {
    use super::{DataBytes, piece_ranges};

    #[test]
    fn pieces_cover_every_byte_once() {
        let all = |length| piece_ranges(DataBytes(length), 100).collect::<Vec<_>>();
        assert_eq!(all(0), []);
        assert_eq!(all(100), [(0, 100)]);
        assert_eq!(all(101), [(0, 100), (100, 1)]);
        assert_eq!(all(200), [(0, 100), (100, 100)]);
    }
}
