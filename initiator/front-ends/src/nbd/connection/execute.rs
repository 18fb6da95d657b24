//! From requests to commands, and back.

use ringfab_initiator::{BlockRange, DiscardRanges, IoDone, IoError, IoOperation, IoRequest, Namespace};

use super::super::export::Export;
use super::super::wire::{Command, flag};
use super::requests::WINDOW;
use super::{COMMANDS_MAX, Connection, Phase, Ready, SMALL_BUFFERS, SMALL_BYTES, Shared, part_bytes_max};

/// Whether a request could issue a command.
enum Issue {
    /// It has more to issue.
    More,
    /// It has issued everything.
    Last,
    /// It has to wait for a buffer or for an earlier part.
    Wait,
}

/// A command's name: the connection and its generation, the slot of the request, and the part of a read or, for
/// others, whether a large buffer is out.
pub(crate) fn tag(index: u16, generation: u16, slot: u16, mark: u16) -> u64 {
    u64::from(index) << 48 | u64::from(generation) << 32 | u64::from(slot) << 16 | u64::from(mark)
}

/// Connection and generation of a tag.
pub(crate) fn connection_of(tag: u64) -> (u16, u16) {
    ((tag >> 48) as u16, (tag >> 32) as u16)
}

impl Connection {
    /// Issues commands of the requests that wait, in order. The first one that has to wait holds the others up, so that
    /// no two requests wait for each other's buffers.
    pub(super) fn pump_commands(&mut self, shared: &mut Shared<'_>) {
        while let Some(&slot) = self.pending.front() {
            if self.commands >= COMMANDS_MAX {
                return;
            }
            match self.issue(slot, shared) {
                Issue::More => {}
                Issue::Wait => return,
                Issue::Last => {
                    self.pending.pop_front();
                    self.finish_if_done(slot);
                }
            }
        }
    }

    /// Takes the end of a command.
    pub(crate) fn on_done(&mut self, done: IoDone, shared: &mut Shared<'_>) {
        let (slot, mark) = ((done.tag >> 16) as u16, done.tag as u16);
        self.commands -= 1;
        let entry = self.requests.get(slot);
        entry.in_flight -= 1;
        let command = entry.request.command;
        if let Err(error) = done.result {
            entry.fail(error.into());
        }
        match command {
            Command::Read => self.read_done(slot, u32::from(mark), done.buffer, shared),
            Command::Write | Command::Trim if done.source.is_some() => {
                drop(done.source);
                self.returned(if mark == 0 { SMALL_BYTES } else { SMALL_BYTES + 1 });
            }
            _ => {}
        }
        if matches!(self.phase, Phase::Closed) {
            return;
        }
        self.finish_if_done(slot);
    }

    /// Submits a command of a request. One that is refused ends at once.
    pub(super) fn submit(&mut self, slot: u16, mark: u16, operation: IoOperation, shared: &mut Shared<'_>) {
        let Some(Namespace { nsid, identity, .. }) = self.export(shared).map(|export| &export.namespace)
        else {
            return;
        };
        let tag = tag(self.index, self.generation, slot, mark);
        self.commands += 1;
        self.requests.get(slot).in_flight += 1;
        let request = IoRequest { nsid: *nsid, tag, operation };
        // Its number may be another disk's by now.
        if let Err(refused) = shared.host.submit_to(shared.controller, identity, request) {
            let error = IoError::from(refused.reason);
            let (buffer, source) = match refused.request.operation {
                IoOperation::Read { buffer, .. } => (Some(buffer), None),
                IoOperation::Write { source, .. } => (None, Some(source)),
                IoOperation::Discard { .. } => {
                    self.returned(SMALL_BYTES);
                    (None, None)
                }
                _ => (None, None),
            };
            let controller = shared.controller;
            self.on_done(IoDone { controller, tag, result: Err(error), buffer, source }, shared);
        }
    }

    /// Tells the end of a request when nothing of it is left to do. A read that succeeded ends with its last part.
    fn finish_if_done(&mut self, slot: u16) {
        let entry = self.requests.get(slot);
        let read = entry.request.command == Command::Read;
        if entry.in_flight > 0 || !entry.complete || (read && entry.failure.is_none()) {
            return;
        }
        // A command that was refused ends while its request is still being issued.
        if self.pending.contains(&slot) {
            return;
        }
        if read && self.is_ordered(slot) {
            self.forget_parts(slot);
        }
        self.ready.push_back(Ready::End { slot });
    }

    /// Drops the parts of a read that failed and is answered as a whole.
    fn forget_parts(&mut self, slot: u16) {
        for index in 0..WINDOW {
            if let Some(shared_buffer) = self.requests.get(slot).parts[index].take() {
                let bytes = shared_buffer.len() as u32;
                drop(shared_buffer);
                self.returned(bytes);
            }
        }
    }

    fn issue(&mut self, slot: u16, shared: &mut Shared<'_>) -> Issue {
        let Some(export) = self.export(shared) else { return Issue::Wait };
        let entry = self.requests.get(slot);
        let request = entry.request;
        // After a failure the rest is not worth doing.
        if entry.failure.is_some() {
            entry.complete = true;
            return Issue::Last;
        }
        if request.command != Command::Read && entry.in_flight as usize >= WINDOW {
            return Issue::Wait;
        }
        match request.command {
            Command::Read => self.issue_read(slot, export, shared),
            Command::Flush => self.issue_flush(slot, shared),
            Command::Trim => self.issue_trim(slot, export, shared),
            _ => self.issue_zeroes(slot, export, shared),
        }
    }

    fn issue_read(&mut self, slot: u16, export: &Export, shared: &mut Shared<'_>) -> Issue {
        let most = part_bytes_max(export);
        let entry = self.requests.get(slot);
        let (request, part) = (entry.request, entry.issued / most);
        let place = 1_u8 << (part as usize % WINDOW);
        if entry.busy & place != 0 {
            return Issue::Wait;
        }
        let bytes = entry.part_bytes(part, most);
        let offset = request.offset + u64::from(entry.issued);
        let Some(buffer) = self.take_buffer(bytes, true, shared) else { return Issue::Wait };
        let entry = self.requests.get(slot);
        entry.busy |= place;
        entry.issued += bytes;
        let last = entry.issued == request.length;
        entry.complete = last;
        let block = export.namespace.block_bytes;
        let operation = IoOperation::Read { lba: offset / u64::from(block), nlb: bytes / block, buffer };
        self.submit(slot, part as u16, operation, shared);
        if last { Issue::Last } else { Issue::More }
    }

    fn issue_flush(&mut self, slot: u16, shared: &mut Shared<'_>) -> Issue {
        self.requests.get(slot).complete = true;
        self.submit(slot, 0, IoOperation::Flush, shared);
        Issue::Last
    }

    fn issue_trim(&mut self, slot: u16, export: &Export, shared: &mut Shared<'_>) -> Issue {
        let entry = self.requests.get(slot);
        if entry.issued == entry.request.length {
            // The flush that makes it durable comes after all of it.
            return if entry.in_flight > 0 { Issue::Wait } else { self.issue_flush(slot, shared) };
        }
        let namespace = &export.namespace;
        let range = next_range(
            entry.request.offset,
            entry.issued,
            entry.request.length,
            namespace.discard_blocks_max,
            namespace.block_bytes,
        );
        if self.small_out >= SMALL_BUFFERS {
            return Issue::Wait;
        }
        let Some(ranges) = DiscardRanges::new(shared.host.pool(), &[range]) else { return Issue::Wait };
        self.small_out += 1;
        let entry = self.requests.get(slot);
        entry.issued += range.nlb * namespace.block_bytes;
        let last = entry.issued == entry.request.length;
        let flush_due = entry.flush_due;
        entry.complete = last && !flush_due;
        self.submit(slot, 0, IoOperation::Discard { ranges }, shared);
        if last && !flush_due { Issue::Last } else { Issue::More }
    }

    fn issue_zeroes(&mut self, slot: u16, export: &Export, shared: &mut Shared<'_>) -> Issue {
        let entry = self.requests.get(slot);
        let (request, namespace) = (entry.request, &export.namespace);
        let range = next_range(
            request.offset,
            entry.issued,
            request.length,
            namespace.write_zeroes_blocks_max,
            namespace.block_bytes,
        );
        entry.issued += range.nlb * namespace.block_bytes;
        let last = entry.issued == request.length;
        entry.complete = last;
        let operation = IoOperation::WriteZeroes {
            lba: range.lba,
            nlb: range.nlb,
            deallocate: request.flags & flag::NO_HOLE == 0,
            fua: request.flags & flag::FUA != 0,
        };
        self.submit(slot, 0, operation, shared);
        if last { Issue::Last } else { Issue::More }
    }

    fn read_done(
        &mut self,
        slot: u16,
        part: u32,
        buffer: Option<ringfab_memory::Buffer>,
        shared: &mut Shared<'_>,
    ) {
        let Some(buffer) = buffer else { return };
        let bytes = buffer.len() as u32;
        let (ordered, closed) = (self.is_ordered(slot), matches!(self.phase, Phase::Closed));
        let entry = self.requests.get(slot);
        if closed || entry.failure.is_some() {
            drop(buffer);
            self.returned(bytes);
            if !closed && ordered && self.requests.get(slot).begun {
                // The reply promised success; the specification leaves only this.
                tracing::warn!(connection = self.index, "closed: a read failed after its reply had begun");
                self.close(shared);
            }
            return;
        }
        entry.parts[part as usize % WINDOW] = Some(buffer.share());
        if ordered {
            self.hand_over_in_order(slot, shared);
        } else {
            self.ready.push_back(Ready::Part { slot, part });
        }
    }

    /// Whether a read is answered by one reply with all its bytes in order.
    pub(super) fn is_ordered(&mut self, slot: u16) -> bool {
        !self.structured || self.requests.get(slot).request.flags & flag::DF != 0
    }

    /// Hands parts to the reply as far as they follow each other. A reply begins only when as much is there as can be
    /// at once, so that the error of a read that is not extremely long can be told.
    fn hand_over_in_order(&mut self, slot: u16, shared: &Shared<'_>) {
        let Some(most) = self.export(shared).map(part_bytes_max) else { return };
        let entry = self.requests.get(slot);
        let parts = entry.request.length.div_ceil(most);
        if !entry.begun {
            let first = (parts as usize).min(WINDOW);
            entry.begun = entry.parts[..first].iter().all(Option::is_some);
        }
        if !entry.begun {
            return;
        }
        let issued = entry.issued.div_ceil(most);
        while entry.ordered_next < issued && entry.parts[entry.ordered_next as usize % WINDOW].is_some() {
            self.ready.push_back(Ready::Part { slot, part: entry.ordered_next });
            entry.ordered_next += 1;
        }
    }
}

/// The next blocks of a request that is carried out in ranges of limited length.
fn next_range(offset: u64, done: u32, length: u32, blocks_max: u32, block_bytes: u32) -> BlockRange {
    let nlb = ((length - done) / block_bytes).min(blocks_max);
    BlockRange { lba: (offset + u64::from(done)) / u64::from(block_bytes), nlb }
}
