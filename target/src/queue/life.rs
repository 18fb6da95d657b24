//! The steps of a request's life that all commands share.

use ringfab_memory::Buffer;
use ringfab_spec::{CompletionEntry, Status, SubmissionEntry};

use super::request::{Held, NoSlot};
use super::{Phase, Queue, Slot, State};
use crate::controller::IoAccess;
use crate::failure::Failure;
use crate::nvm::{self, Action, HostMemory, NamespaceView, Transfer};
use crate::resources::hosts::PoolKind;
use crate::resources::{RequestId, Resources};
use crate::transport::{Piece, Refused, Transfer as LinkTransfer};

impl Queue {
    /// `Free -> NeedBuffer`: gives the command a slot and finds out what it wants.
    pub(super) fn begin(
        &mut self,
        resources: &mut Resources,
        command: &SubmissionEntry,
        data: Option<Buffer>,
        intact: bool,
    ) {
        let slot = loop {
            match self.requests.allocate(command) {
                Ok(slot) => break slot,
                Err(why) if self.makes_room(resources, command, why) => {}
                Err(_) => return,
            }
        };
        let capsule_bytes = data.as_ref().map_or(0, |data| data.len() as u32);
        let planned = match self.plan(resources, slot, capsule_bytes) {
            Ok(()) if !intact => Err(DAMAGED),
            planned => planned,
        };
        if let Err(failure) = planned {
            self.requests[slot].fail(failure);
        } else if let HostMemory::Capsule { offset } = self.requests[slot].host {
            self.keep_capsule_data(slot, offset as usize, data);
        }
        if command.fuse() != 0 && !self.pair_up(resources, slot) {
            return;
        }
        if !self.requests[slot].status.is_success() {
            return self.reply(resources, slot);
        }
        if self.peek(resources, slot) {
            return;
        }
        if self.waits_for_disk(resources, slot) {
            let waiter = self.request_id(slot);
            return resources.held_back.push(waiter, resources.reactor.now());
        }
        self.queue_for_buffers(resources, slot);
    }

    /// A command for which there was no slot may take the place of a parked request, or is answered without one.
    #[cold]
    fn makes_room(&mut self, resources: &mut Resources, command: &SubmissionEntry, why: NoSlot) -> bool {
        match why {
            NoSlot::Full => self.violation(resources, "more commands than the queue has entries"),
            NoSlot::NoMemory => self.evict(resources, "the process may have no more memory"),
            NoSlot::IdentifierInUse if self.drop_parked_request(resources, command.cid.get()) => return true,
            NoSlot::IdentifierInUse => self.refuse_identifier(resources, command),
        }
        false
    }

    /// Takes the buffers of a request, or has it wait for them in order.
    #[inline(always)]
    fn queue_for_buffers(&mut self, resources: &mut Resources, slot: Slot) {
        let line = self.pool_kind_of(slot);
        // Behind a request that waits already, one that needs buffers waits too, so that those go to the first in order.
        let pair = self.requests[slot].partner.is_some();
        let behind = resources.hosts.first_waiting(self.host, line).is_some()
            && (pair || self.bytes_to_take(slot, resources.chunk_bytes) != [0, 0]);
        if behind || !self.take_buffers(resources, slot) {
            let waiter = self.request_id(slot);
            resources.hosts.wait(self.host, line, waiter);
        }
    }

    /// The name of a request among those of all queues of the core.
    pub(super) fn request_id(&self, slot: Slot) -> RequestId {
        RequestId { queue: self.number, slot: slot.number(), generation: self.requests[slot].generation }
    }

    /// Whether a request has to wait, without buffers, because its disk is hung, or still works on what the host has left
    /// behind.
    #[inline(always)]
    fn waits_for_disk(&self, resources: &Resources, slot: Slot) -> bool {
        let Some(attached) = self.attached.as_ref().filter(|_| self.id != 0) else { return false };
        let fenced = attached.controller.io_access() == IoAccess::Fenced;
        (fenced || resources.held_back.any_disk_hung()) && self.is_held_back(resources, slot, fenced)
    }

    #[cold]
    fn is_held_back(&self, resources: &Resources, slot: Slot, fenced: bool) -> bool {
        self.requests[slot].action.disk().is_some_and(|disk| {
            let hung = resources
                .disks
                .get(disk)
                .and_then(Option::as_ref)
                .is_some_and(|open| open.progress.is_hung());
            let behind = |attached: &super::Attachment| fenced && attached.controller.is_fenced(disk);
            hung || self.attached.as_ref().is_some_and(behind)
        })
    }

    /// Looks again at a request that waits for its disk; `late` says that it has waited long enough. Returns whether it waits
    /// on.
    pub(crate) fn resume_held_back(
        &mut self,
        resources: &mut Resources,
        number: u16,
        generation: u16,
        late: bool,
    ) -> bool {
        let Some(slot) = self.requests.find(number, generation) else { return false };
        if self.requests[slot].state() != State::NeedBuffer {
            return false;
        }
        if !self.waits_for_disk(resources, slot) {
            self.queue_for_buffers(resources, slot);
            return false;
        }
        if late {
            self.requests[slot].fail(Failure::transient(Status::NAMESPACE_NOT_READY));
            self.reply(resources, slot);
        }
        !late
    }

    /// Parses the command into work, size and place of its data.
    fn plan(&mut self, resources: &Resources, slot: Slot, capsule_bytes: u32) -> Result<(), Failure> {
        let command = self.requests[slot].command;
        let (action, transfer) = self.action_of_command(resources, &command)?;
        let host = nvm::host_memory(&command, (action, transfer), capsule_bytes)?;
        if !self.link.reaches(&host) {
            return Err(nvm::SGL_OF_ANOTHER_TRANSPORT);
        }
        let request = &mut self.requests[slot];
        (request.action, request.host, request.transfer) = (action, host, transfer);
        request.length = transfer.length();
        Ok(())
    }

    fn action_of_command(
        &self,
        resources: &Resources,
        command: &SubmissionEntry,
    ) -> Result<(Action, Transfer), Failure> {
        let Some(attached) = &self.attached else { return super::control::before_connect(command) };
        let controller = &attached.controller;
        if self.id == 0 || command.is_fabrics() {
            return super::control::transfer_of(controller, command, self.id);
        }
        if controller.io_access() == IoAccess::Refused {
            return Err(Failure::new(Status::COMMAND_SEQUENCE_ERROR));
        }
        let namespace = |nsid| {
            let found = resources.namespaces.find(controller.subsystem(), nsid);
            found.map(|namespace| NamespaceView::of(namespace))
        };
        let (action, transfer) = nvm::parse(command, namespace)?;
        Ok((if controller.write_cache_enabled() { action } else { action.durable() }, transfer))
    }

    /// `NeedBuffer -> DataIn`, with all the buffers that the request will ever need, or not at all.
    pub(super) fn take_buffers(&mut self, resources: &mut Resources, slot: Slot) -> bool {
        if self.requests[slot].partner.is_some() {
            return self.take_pair_buffers(resources, slot);
        }
        if !self.take_own_buffers(resources, slot) {
            return false;
        }
        self.requests.enter(slot, State::DataIn);
        self.fetch(resources, slot);
        true
    }

    /// All the buffers of one request, or none.
    pub(super) fn take_own_buffers(&mut self, resources: &Resources, slot: Slot) -> bool {
        let pool = resources.hosts.pool(self.host, self.pool_kind_of(slot));
        let wanted = self.bytes_to_take(slot, resources.chunk_bytes);
        let held = &mut self.requests[slot].held;
        let here = held.len();
        for bytes in wanted {
            for (_, piece) in pieces(bytes, resources.chunk_bytes) {
                let Some(mut buffer) = pool.take(piece as usize) else {
                    held.truncate(here);
                    return false;
                };
                buffer.set_len(piece as usize);
                held.push(Held::Buffer(buffer));
            }
        }
        true
    }

    /// Bytes that the request needs buffers for: the host's data, and what the disk holds in its place. Data that came in
    /// the capsule is in a buffer.
    fn bytes_to_take(&self, slot: Slot, chunk_bytes: u32) -> [u32; 2] {
        let request = &self.requests[slot];
        let in_capsule = matches!(request.host, HostMemory::Capsule { .. });
        [if in_capsule { 0 } else { request.length }, self.bytes_of_disk(slot, chunk_bytes)]
    }

    /// Where the request waits for buffers.
    fn pool_kind_of(&self, slot: Slot) -> PoolKind {
        match self.requests[slot].host {
            _ if self.id == 0 => PoolKind::Admin,
            _ if self.requests[slot].partner.is_some() => PoolKind::Compare,
            HostMemory::Capsule { .. } => PoolKind::Compare,
            _ => PoolKind::Io,
        }
    }

    /// Data that came in the capsule needs no buffer and no transfer.
    fn keep_capsule_data(&mut self, slot: Slot, offset: usize, data: Option<Buffer>) {
        let request = &mut self.requests[slot];
        let length = request.length as usize;
        let Some(mut data) = data else { unreachable!("the offset was checked against the capsule") };
        // Disks want aligned memory, which only the first byte of the buffer is sure to be.
        if offset != 0 {
            data.copy_within(offset..offset + length, 0);
        }
        data.set_len(length);
        request.held.push(Held::Buffer(data));
    }

    /// `DataIn`: has the host's data moved into our buffers, unless there is none to move.
    pub(super) fn fetch(&mut self, resources: &mut Resources, slot: Slot) {
        let in_capsule = matches!(self.requests[slot].host, HostMemory::Capsule { .. });
        if in_capsule || !self.takes_data(slot) {
            return self.execute(resources, slot);
        }
        let count = pieces(self.requests[slot].length, resources.chunk_bytes).count();
        if !self.link.has_room(count) {
            return self.blocked.push_back(slot);
        }
        let transfer = self.link_transfer(slot);
        let request = &mut self.requests[slot];
        let cut = pieces(request.length, resources.chunk_bytes).enumerate();
        let sinks = cut.zip(&mut request.held).map(|((index, (offset, length)), held)| {
            let Held::Buffer(memory) = held.take() else {
                unreachable!("a request that fetches holds a buffer for every piece")
            };
            Piece { index: index as u8, offset, length, memory }
        });
        let (posted, outcome) = self.link.fetch(&mut resources.transports, &transfer, sinks);
        request.pending += posted;
        if outcome.is_err() {
            request.fail(Failure::transient(Status::DATA_TRANSFER_ERROR));
        }
        if request.pending == 0 {
            self.reply(resources, slot);
        }
    }

    /// The request's data in the words of the link.
    fn link_transfer(&self, slot: Slot) -> LinkTransfer {
        let request = &self.requests[slot];
        LinkTransfer {
            slot: slot.number(),
            generation: request.generation,
            cid: request.cid(),
            memory: request.host,
            length: request.length,
        }
    }

    /// A piece of the host's data is here.
    pub(super) fn data_arrived(
        &mut self,
        resources: &mut Resources,
        slot: Slot,
        piece: usize,
        sink: Option<Buffer>,
        intact: bool,
    ) {
        let request = &mut self.requests[slot];
        request.pending -= 1;
        match sink {
            Some(sink) => request.held[piece] = Held::Buffer(sink),
            None => request.fail(Failure::transient(Status::DATA_TRANSFER_ERROR)),
        }
        if !intact {
            request.fail(DAMAGED);
        }
        if request.pending != 0 {
            return;
        }
        if self.phase == Phase::Gone {
            self.requests.release(slot);
        } else if request.status.is_success() {
            self.execute(resources, slot);
        } else {
            self.reply(resources, slot);
        }
    }

    /// `DataIn -> Execute`.
    fn execute(&mut self, resources: &mut Resources, slot: Slot) {
        self.requests.enter(slot, State::Execute);
        if self.requests[slot].action == Action::Controller {
            self.run_controller(resources, slot);
        } else if self.requests[slot].partner.is_some() {
            self.run_pair_when_complete(resources, slot);
        } else if !self.requests[slot].status.is_success() {
            self.reply(resources, slot);
        } else {
            self.run_io(resources, slot);
        }
    }

    /// `Execute` of an I/O command, unless a fused operation has claimed some of its blocks: then it waits for their
    /// release.
    pub(super) fn run_io(&mut self, resources: &mut Resources, slot: Slot) {
        let request = &mut self.requests[slot];
        request.delayed = resources.claims.concern(&request.action);
        if request.delayed {
            let generation = request.generation;
            return resources.claims.delay(RequestId { queue: self.number, slot: slot.number(), generation });
        }
        self.run_disk(resources, slot);
    }

    /// `-> DataOut`: the outcome is known. Buffers with nothing for the host are given back at once, since it may take its
    /// time with the response.
    pub(super) fn reply(&mut self, resources: &mut Resources, slot: Slot) {
        let partner = self.forget_partner(slot);
        let failed = !self.requests[slot].status.is_success();
        self.requests.enter(slot, State::DataOut);
        if !self.sends_data(slot) {
            self.requests[slot].held.clear();
        }
        self.note_outcome(slot);
        // Behind a request that waits already, this one waits too, so that room goes to the first in order.
        if !self.blocked.is_empty() || !self.send_reply(resources, slot) {
            self.blocked.push_back(slot);
        }
        if let Some(partner) = partner.filter(|_| failed) {
            self.fail_partner(resources, partner);
        }
    }

    /// `DataOut -> Complete -> Free`, when the send queue has room for data and response.
    fn send_reply(&mut self, resources: &mut Resources, slot: Slot) -> bool {
        let sends_data = self.sends_data(slot);
        let request = &self.requests[slot];
        let count = if sends_data { pieces(request.length, resources.chunk_bytes).count() } else { 0 };
        if !self.link.has_room(count + 1) {
            return false;
        }
        if self.phase == Phase::Gone {
            self.requests.release(slot);
            return true;
        }
        self.send(resources, slot, count);
        self.requests.enter(slot, State::Complete);
        self.requests.release(slot);
        true
    }

    /// Sends `count` pieces of data, and the response.
    fn send(&mut self, resources: &mut Resources, slot: Slot, count: usize) {
        let head = self.next_submission_head();
        let transfer = self.link_transfer(slot);
        let request = &mut self.requests[slot];
        let entry = CompletionEntry::new(request.cid(), head, request.status).with_result(request.result);
        let cut = pieces(request.length, resources.chunk_bytes).take(count).enumerate();
        let data = cut.zip(&mut request.held).map(|((index, (offset, length)), held)| {
            let memory = held.take_lease().expect("every piece is here when the reply is ready");
            Piece { index: index as u8, offset, length, memory }
        });
        let answered = self.link.answer(&mut resources.transports, &transfer, (count, data), &entry);
        self.link.replenish(&mut resources.transports);
        if answered == Err(Refused::Unusable) {
            // What was posted before cannot be taken back, so no status could be true.
            self.violation(resources, "memory that cannot be written to");
        }
    }

    /// SQHD of the next completion: a command frees its entry when it completes, so that a host that keeps to the
    /// queue's size never has more commands outstanding than there are slots.
    pub(super) fn next_submission_head(&mut self) -> u16 {
        let head = self.submission_head + 1;
        self.submission_head = if head < self.entries { head } else { 0 };
        match &self.attached {
            Some(attached) if !attached.record.flow_control() => u16::MAX,
            _ => self.submission_head,
        }
    }

    /// Room has come in the send queue: goes on with what waited, in order.
    pub(super) fn unblock(&mut self, resources: &mut Resources) {
        while let Some(slot) = self.blocked.front().copied() {
            match self.requests[slot].state() {
                State::DataOut if self.send_reply(resources, slot) => {
                    self.blocked.pop_front();
                }
                State::DataIn if self.link.has_room(self.requests[slot].held.len()) => {
                    self.blocked.pop_front();
                    self.fetch(resources, slot);
                }
                _ => return,
            }
        }
    }

    /// A command whose identifier is in use gets its status at once; it never had a slot.
    fn refuse_identifier(&mut self, resources: &mut Resources, command: &SubmissionEntry) {
        if !self.link.has_room(1) {
            return self.violation(resources, "identifiers in use, again and again");
        }
        let head = self.next_submission_head();
        let status = Status::COMMAND_ID_CONFLICT.with_dnr();
        self.note_refused(command, status);
        let entry = CompletionEntry::new(command.cid.get(), head, status);
        let (slot, generation, cid) = (u16::MAX, 0, command.cid.get());
        let transfer = LinkTransfer { slot, generation, cid, memory: HostMemory::None, length: 0 };
        let _ended = self.link.answer(&mut resources.transports, &transfer, (0, std::iter::empty()), &entry);
        self.link.replenish(&mut resources.transports);
    }
}

/// Data that are not what the host sent: it may send them again.
const DAMAGED: Failure = Failure::transient(Status::TRANSIENT_TRANSPORT_ERROR);

/// The pieces of `length` bytes: offset and length of each.
pub(super) fn pieces(length: u32, chunk_bytes: u32) -> impl Iterator<Item = (u32, u32)> {
    (0..length).step_by(chunk_bytes as usize).map(move |offset| (offset, chunk_bytes.min(length - offset)))
}

#[cfg(test)]
mod tests {
    use super::pieces;

    #[test]
    fn pieces_cover_every_byte_once() {
        let all = |length| pieces(length, 100).collect::<Vec<_>>();
        assert_eq!(all(0), []);
        assert_eq!(all(100), [(0, 100)]);
        assert_eq!(all(101), [(0, 100), (100, 1)]);
        assert_eq!(all(200), [(0, 100), (100, 100)]);
    }
}
