//! From requests to commands, and back.

use ringfab_initiator::bytes::part_bytes;
use ringfab_initiator::{DiscardRanges, IoDone, IoError, IoOperation, IoRequest, Namespace};
use ringfab_proto::nbd::{Command, Errno, Extent, Request, flag};

use super::super::export::{Export, Refusal};
use super::requests::{Failure, WINDOW};
use super::{
    COMMANDS_MAX, Chore, Connection, Phase, Reply, SMALL_BYTES, ServerContext, Work, part_bytes_max,
};
use crate::failures;

/// Whether a request could issue a command.
enum Issue {
    /// It has more to issue.
    More,
    /// It has issued everything.
    Last,
    /// It has to wait for a buffer or for an earlier part.
    Wait,
}

impl Connection {
    /// Issues commands of the requests that wait, in order. The first one that has to wait holds the others up, so that
    /// no two requests wait for each other's buffers.
    pub(super) fn pump_commands(&mut self, context: &mut ServerContext<'_>) {
        while let Some(&slot) = self.transmission.pending.front() {
            if self.transmission.commands >= COMMANDS_MAX {
                return;
            }
            match self.issue(slot, context) {
                Issue::More => {}
                Issue::Wait => return,
                Issue::Last => {
                    self.transmission.pending.pop_front();
                    self.transmission.finish_if_done(slot);
                }
            }
        }
    }

    /// Takes the end of a command.
    pub(crate) fn on_done(&mut self, done: &mut IoDone, context: &mut ServerContext<'_>) {
        let (slot, part) = ((done.tag >> 16) as u16, done.tag as u16);
        let entry = self.transmission.end_command(slot);
        let command = entry.request.command;
        if let Err(error) = done.result {
            entry.fail(Failure::of(command, error));
        }
        match command {
            Command::Read => self.read_done(slot, u32::from(part), done.buffer.take(), context),
            Command::Write | Command::Trim if done.source.is_some() => {
                drop(done.source.take());
                self.transmission.buffers.put_back(if part == 0 { SMALL_BYTES } else { SMALL_BYTES + 1 });
            }
            _ => {}
        }
        if matches!(self.phase, Phase::Closed) {
            return;
        }
        self.transmission.finish_if_done(slot);
    }

    /// Has another thread do what takes several commands, or an admin command.
    pub(super) fn start_chore(&mut self, slot: u16, work: Work, context: &mut ServerContext<'_>) {
        let Some(namespace) = self.export(context).map(|export| export.namespace.clone()) else { return };
        self.transmission.begin_command(slot).chores += 1;
        let chore = Chore { connection: self.id, slot, namespace, work };
        if let Err(error) = context.chores.start(chore) {
            failures::note_reason(&format_args!("there is no thread for it: {error}"));
            self.transmission.end_chore(slot);
            self.transmission
                .requests
                .get(slot)
                .fail(Refusal::new(Errno::Io, "the server has no thread for it").into());
            self.transmission.finish_if_done(slot);
        }
    }

    /// Takes what has come of that.
    pub(crate) fn on_chore_done(&mut self, slot: u16, result: Result<Vec<Extent>, IoError>) {
        self.transmission.end_chore(slot);
        let entry = self.transmission.requests.get(slot);
        match result {
            Ok(extents) if entry.request.command == Command::BlockStatus => entry.extents = extents,
            Ok(_) => {}
            Err(error) => entry.fail(Failure::of(entry.request.command, error)),
        }
        if !matches!(self.phase, Phase::Closed) {
            self.transmission.finish_if_done(slot);
        }
    }

    /// Submits a command of a request. One that is refused ends at once.
    pub(super) fn submit(
        &mut self,
        slot: u16,
        part: u16,
        operation: IoOperation,
        context: &mut ServerContext<'_>,
    ) {
        let Some(Namespace { nsid, identity, .. }) = self.export(context).map(|export| &export.namespace)
        else {
            return;
        };
        let tag = self.id.tag(slot, part);
        self.transmission.begin_command(slot);
        let request = IoRequest { nsid: *nsid, tag, operation };
        // Its number may be another disk's by now.
        if let Err(refused) = context.host.submit_to(context.controller, identity, request) {
            let error = IoError::from(refused.reason);
            let (buffer, source) = match refused.request.operation {
                IoOperation::Read { buffer, .. } => (Some(buffer), None),
                IoOperation::Write { source, .. } => (None, Some(source)),
                IoOperation::Discard { .. } => {
                    self.transmission.buffers.put_back(SMALL_BYTES);
                    (None, None)
                }
                _ => (None, None),
            };
            let controller = context.controller;
            self.on_done(&mut IoDone { controller, tag, result: Err(error), buffer, source }, context);
        }
    }

    fn issue(&mut self, slot: u16, context: &mut ServerContext<'_>) -> Issue {
        let Some(export) = self.export(context) else { return Issue::Wait };
        let entry = self.transmission.requests.get(slot);
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
            Command::Read => self.issue_read(slot, export, context),
            Command::Flush => self.issue_flush(slot, context),
            Command::Trim => self.issue_trim(slot, export, context),
            Command::BlockStatus => self.issue_status(slot, context),
            _ => self.issue_zeroes(slot, export, context),
        }
    }

    fn issue_read(&mut self, slot: u16, export: &Export, context: &mut ServerContext<'_>) -> Issue {
        let most = part_bytes_max(export);
        let entry = self.transmission.requests.get(slot);
        let (request, part) = (entry.request, entry.issued / most);
        let bit = 1_u8 << (part as usize % WINDOW);
        if entry.busy & bit != 0 {
            return Issue::Wait;
        }
        let block = export.namespace.block_bytes;
        let bytes = entry.part_bytes(part, most, block);
        let lba = request.offset / u64::from(block) + u64::from(entry.issued / block);
        let Some(buffer) = self.transmission.buffers.take(bytes, true, context.host.pool()) else {
            return Issue::Wait;
        };
        let entry = self.transmission.requests.get(slot);
        entry.busy |= bit;
        entry.issued += bytes;
        let last = entry.issued == entry.covered(block);
        entry.complete = last;
        let operation = IoOperation::Read { lba, nlb: bytes / block, buffer };
        self.submit(slot, part as u16, operation, context);
        if last { Issue::Last } else { Issue::More }
    }

    fn issue_flush(&mut self, slot: u16, context: &mut ServerContext<'_>) -> Issue {
        self.transmission.requests.get(slot).complete = true;
        self.submit(slot, 0, IoOperation::Flush, context);
        Issue::Last
    }

    fn issue_status(&mut self, slot: u16, context: &mut ServerContext<'_>) -> Issue {
        let entry = self.transmission.requests.get(slot);
        entry.complete = true;
        let Request { flags, offset, length, .. } = entry.request;
        let one = flags & flag::REQ_ONE != 0;
        self.start_chore(slot, Work::Status { offset, length, one }, context);
        Issue::Last
    }

    fn issue_trim(&mut self, slot: u16, export: &Export, context: &mut ServerContext<'_>) -> Issue {
        let namespace = &export.namespace;
        let entry = self.transmission.requests.get(slot);
        // What is only a part of a block stays as it is.
        entry.skip_parts(namespace.block_bytes);
        if entry.issued == entry.request.length {
            if !entry.flush_due {
                entry.complete = true;
                return Issue::Last;
            }
            // The flush that makes it durable comes after all of it.
            return if entry.in_flight > 0 { Issue::Wait } else { self.issue_flush(slot, context) };
        }
        let range = entry.next_blocks(namespace.block_bytes, namespace.discard_blocks_max);
        if context.writer.must_wait(namespace.nsid, &range.blocks()) {
            return Issue::Wait;
        }
        let pool = context.host.pool();
        let ranges = self.transmission.buffers.take_small(|| DiscardRanges::new(pool, &[range]));
        let Some(ranges) = ranges else { return Issue::Wait };
        let entry = self.transmission.requests.get(slot);
        entry.issued += range.nlb * namespace.block_bytes;
        entry.skip_parts(namespace.block_bytes);
        let last = entry.issued == entry.request.length;
        let flush_due = entry.flush_due;
        entry.complete = last && !flush_due;
        self.submit(slot, 0, IoOperation::Discard { ranges }, context);
        if last && !flush_due { Issue::Last } else { Issue::More }
    }

    fn issue_zeroes(&mut self, slot: u16, export: &Export, context: &mut ServerContext<'_>) -> Issue {
        let entry = self.transmission.requests.get(slot);
        let (request, namespace) = (entry.request, &export.namespace);
        let fua = request.flags & flag::FUA != 0;
        let part = part_bytes(&entry.rest(), namespace.block_bytes);
        if part > 0 {
            let offset = entry.rest().start;
            entry.issued += part;
            let last = entry.issued == request.length;
            entry.complete = last;
            let bytes = vec![0; part as usize];
            self.start_chore(slot, Work::Write { offset, bytes, fua }, context);
            return if last { Issue::Last } else { Issue::More };
        }
        let range = entry.next_blocks(namespace.block_bytes, namespace.write_zeroes_blocks_max);
        if context.writer.must_wait(namespace.nsid, &range.blocks()) {
            return Issue::Wait;
        }
        entry.issued += range.nlb * namespace.block_bytes;
        let last = entry.issued == request.length;
        entry.complete = last;
        let operation = IoOperation::WriteZeroes {
            lba: range.lba,
            nlb: range.nlb,
            deallocate: request.flags & flag::NO_HOLE == 0,
            fua,
        };
        self.submit(slot, 0, operation, context);
        if last { Issue::Last } else { Issue::More }
    }

    fn read_done(
        &mut self,
        slot: u16,
        part: u32,
        buffer: Option<ringfab_memory::Buffer>,
        context: &mut ServerContext<'_>,
    ) {
        let Some(buffer) = buffer else { return };
        let bytes = buffer.len() as u32;
        let closed = matches!(self.phase, Phase::Closed);
        let entry = self.transmission.requests.get(slot);
        let ordered = entry.is_ordered(self.transmission.structured);
        if closed || entry.failure.is_some() {
            drop(buffer);
            self.transmission.buffers.put_back(bytes);
            if !closed && ordered && self.transmission.requests.get(slot).begun {
                // The reply promised success; the specification leaves only this.
                tracing::warn!(connection = self.id.index, "closed: a read failed after its reply had begun");
                self.close(context);
            }
            return;
        }
        entry.parts[part as usize % WINDOW] = Some(buffer.share());
        if ordered {
            let Some(export) = self.export(context) else { return };
            self.transmission.hand_over_in_order(slot, part_bytes_max(export), export.namespace.block_bytes);
        } else {
            self.transmission.replies.push_back(Reply::Data { slot, part });
        }
    }
}
