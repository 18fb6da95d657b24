//! What requests ask of the disks.

use std::sync::Arc;

use ringfab_block::{BlockError, Disk, Finished, Operation, Started, Tag};
use ringfab_spec::FromBytes;
use ringfab_spec::Status;
use ringfab_spec::sqe::DsmRange;

use super::life::pieces;
use super::parse::{self, Extent, NamespaceView, Transfer, Work};
use super::request::Held;
use super::{Phase, Queue, Slot, State};
use crate::core::Env;
use crate::failure::Failure;
use crate::namespace::Namespace;
use crate::subsystem::NSID_MAX;

/// Flushes of one command that run at once: as many as the kinds of a tag.
const FLUSHES_PER_ROUND: u32 = 1 << u8::BITS;

impl Queue {
    /// Bytes of the disk that a request needs beside the host's, to compare the two.
    pub(super) fn bytes_to_compare(&self, slot: Slot) -> u32 {
        match self.requests[slot].work {
            Work::Compare(extent) => extent.length as u32,
            _ => 0,
        }
    }

    /// Whether the host's data is needed.
    pub(super) fn takes_data(&self, slot: Slot) -> bool {
        matches!(self.requests[slot].transfer, Transfer::ToController(1..))
    }

    /// Whether data goes to the host with a reply.
    pub(super) fn sends_data(&self, slot: Slot) -> bool {
        let request = &self.requests[slot];
        matches!(request.transfer, Transfer::ToHost(1..)) && request.status.is_success()
    }

    /// A disk that can hand out its bytes without I/O answers a read at once.
    pub(super) fn peek(&mut self, env: &mut Env, slot: Slot) -> bool {
        let Work::Read(extent) = self.requests[slot].work else { return false };
        let Some(disk) = env.disks.get(extent.disk).and_then(Option::as_ref) else { return false };
        let request = &mut self.requests[slot];
        for (offset, length) in pieces(request.length, env.chunk_bytes) {
            let Some(lease) = disk.peek(extent.offset + u64::from(offset), length) else {
                request.held.clear();
                return false;
            };
            request.held.push(Held::Lease(lease));
        }
        self.requests.enter(slot, State::DataIn);
        self.requests.enter(slot, State::Execute);
        self.reply(env, slot);
        true
    }

    /// `Execute`: starts the operations of an I/O command.
    pub(super) fn run_disk(&mut self, env: &mut Env, slot: Slot) {
        match self.requests[slot].work {
            Work::Read(extent) => self.start_reads(env, slot, extent, 0),
            Work::Compare(extent) => {
                let host_pieces = pieces(extent.length as u32, env.chunk_bytes).count();
                self.start_reads(env, slot, extent, host_pieces);
            }
            Work::Write { extent, durable } => self.start_writes(env, slot, extent, durable),
            Work::WriteZeroes { extent, deallocate, durable } => {
                let Extent { offset, length, .. } = extent;
                let operation = Operation::WriteZeroes { offset, length, deallocate, durable };
                self.start(env, slot, extent.disk, 0, operation);
            }
            Work::Flush { disk } => self.start(env, slot, disk, 0, Operation::Flush),
            Work::FlushAll { .. } => self.flush_rounds(env, slot),
            Work::Discard { disk, .. } => self.discard_next(env, slot, disk),
            Work::Controller | Work::Nothing => unreachable!("not the disks' work"),
        }
        self.reply_when_done(env, slot);
    }

    /// A disk has finished one operation of a request.
    pub(super) fn disk_finished(&mut self, env: &mut Env, slot: Slot, finished: Finished) {
        self.settle(slot, finished);
        if self.phase == Phase::Gone {
            if self.requests[slot].pending == 0 {
                self.requests.release(slot);
            }
            return;
        }
        match self.requests[slot].work {
            Work::Discard { disk, .. } => self.discard_next(env, slot, disk),
            Work::FlushAll { .. } => self.flush_rounds(env, slot),
            _ => {}
        }
        self.reply_when_done(env, slot);
    }

    /// Which disk the operation `kind` of a request runs on.
    pub(super) fn request_disk(&self, slot: Slot, kind: u8) -> Option<usize> {
        match self.requests[slot].work {
            Work::Read(extent) | Work::Compare(extent) => Some(extent.disk),
            Work::Write { extent, .. } | Work::WriteZeroes { extent, .. } => Some(extent.disk),
            Work::Flush { disk } | Work::Discard { disk, .. } => Some(disk),
            Work::FlushAll { rounds } => self.namespace_of_round(rounds, kind).map(|one| one.index()),
            Work::Controller | Work::Nothing => None,
        }
    }

    fn start_reads(&mut self, env: &mut Env, slot: Slot, extent: Extent, first_piece: usize) {
        for (index, (offset, _)) in pieces(extent.length as u32, env.chunk_bytes).enumerate() {
            let piece = first_piece + index;
            let Held::Buffer(buffer) = self.requests[slot].held[piece].take() else {
                unreachable!("a read has a buffer for every piece")
            };
            let operation = Operation::Read { offset: extent.offset + u64::from(offset), buffer };
            self.start(env, slot, extent.disk, piece as u8, operation);
        }
    }

    fn start_writes(&mut self, env: &mut Env, slot: Slot, extent: Extent, durable: bool) {
        for (index, (offset, length)) in pieces(extent.length as u32, env.chunk_bytes).enumerate() {
            let source = self.requests[slot].held[index].take_lease().expect("a write holds all its data");
            let offset = extent.offset + u64::from(offset);
            let operation = Operation::Write { offset, source, at: 0, length, durable };
            self.start(env, slot, extent.disk, index as u8, operation);
        }
    }

    /// Flushes every disk of the subsystem, as many at a time as a tag can tell apart. One that fails does not keep the
    /// others from being flushed.
    fn flush_rounds(&mut self, env: &mut Env, slot: Slot) {
        while self.requests[slot].pending == 0 {
            let Work::FlushAll { rounds } = &mut self.requests[slot].work else { return };
            if u32::from(*rounds) * FLUSHES_PER_ROUND >= NSID_MAX {
                return;
            }
            *rounds += 1;
            let round = *rounds;
            for kind in 0..=u8::MAX {
                let namespace = self.namespace_of_round(round, kind).filter(|one| one.is_ready());
                if let Some(disk) = namespace.map(|one| one.index()) {
                    self.start(env, slot, disk, kind, Operation::Flush);
                }
            }
        }
    }

    /// The namespace that the operation `kind` of a round (counted from one) flushes. It depends on the identifier alone
    /// and not on which namespaces are ready, since that may change before the completion comes.
    fn namespace_of_round(&self, round: u8, kind: u8) -> Option<&Arc<Namespace>> {
        let before = u32::from(round).checked_sub(1)? * FLUSHES_PER_ROUND;
        self.controller()?.namespace(before + u32::from(kind) + 1)
    }

    /// One range of a Dataset Management command after the other.
    fn discard_next(&mut self, env: &mut Env, slot: Slot, disk: usize) {
        while self.requests[slot].pending == 0 && self.requests[slot].status.is_success() {
            let Work::Discard { ranges, next, .. } = &mut self.requests[slot].work else { return };
            if *next == *ranges {
                return;
            }
            let index = usize::from(*next);
            *next += 1;
            match self.discard_range(slot, index) {
                Ok(Extent { length: 0, .. }) => {}
                Ok(Extent { offset, length, .. }) => {
                    self.start(env, slot, disk, 0, Operation::Discard { offset, length });
                }
                Err(failure) => self.requests[slot].fail(failure),
            }
        }
    }

    fn discard_range(&self, slot: Slot, index: usize) -> Result<Extent, Failure> {
        let request = &self.requests[slot];
        let Some(Held::Buffer(data)) = request.held.first() else {
            unreachable!("the ranges stay in their buffer until the command completes")
        };
        let bytes = &data[index * size_of::<DsmRange>()..][..size_of::<DsmRange>()];
        let range = DsmRange::read_from_bytes(bytes).expect("as long as a range");
        let nsid = request.command.nsid.get();
        let namespace = self.controller().and_then(|controller| controller.namespace(nsid));
        let view = namespace.map(|namespace| NamespaceView::of(namespace));
        let view = view.ok_or(Failure::new(Status::INVALID_NAMESPACE))?;
        parse::discard_extent(&view, range.slba.get(), range.nlb.get())
    }

    fn start(&mut self, env: &mut Env, slot: Slot, disk: usize, kind: u8, operation: Operation) {
        let Some(disk) = env.disks.get_mut(disk).and_then(Option::as_mut) else {
            return self.requests[slot].fail(Failure::transient(Status::NAMESPACE_NOT_READY));
        };
        let request = &mut self.requests[slot];
        let index = u32::from(self.number) << 16 | u32::from(slot.number());
        let tag = Tag { kind, generation: request.generation, index };
        request.pending += 1;
        let started = Disk::start(disk, &mut env.reactor, operation, tag);
        if let Started::Finished(finished) = started {
            self.settle(slot, finished);
        }
    }

    /// Takes back what an operation held and keeps its outcome.
    fn settle(&mut self, slot: Slot, finished: Finished) {
        let request = &mut self.requests[slot];
        request.pending -= 1;
        let piece = usize::from(finished.tag.kind);
        if let Some(buffer) = finished.buffer {
            request.held[piece] = Held::Buffer(buffer);
        }
        if let Err(error) = finished.result {
            request.fail(Failure::transient(status_of(error)));
        }
    }

    fn reply_when_done(&mut self, env: &mut Env, slot: Slot) {
        if self.requests[slot].pending != 0 {
            return;
        }
        if matches!(self.requests[slot].work, Work::Compare(_)) {
            self.compare(env, slot);
        }
        self.shutdown_flushed(slot);
        self.reply(env, slot);
    }

    fn compare(&mut self, env: &Env, slot: Slot) {
        let request = &mut self.requests[slot];
        let count = pieces(request.length, env.chunk_bytes).count();
        let (host, disk) = request.held.split_at(count);
        let same = |(host, disk): (&Held, &Held)| match (host, disk) {
            (Held::Buffer(host), Held::Buffer(disk)) => **host == **disk,
            _ => false,
        };
        if request.status.is_success() && !host.iter().zip(disk).all(same) {
            request.fail(Failure::new(Status::COMPARE_FAILURE));
        }
    }
}

/// The one place where a disk's error becomes a status.
fn status_of(error: BlockError) -> Status {
    match error {
        BlockError::OutOfRange => Status::LBA_OUT_OF_RANGE.with_dnr(),
        BlockError::Misaligned => Status::INVALID_FIELD.with_dnr(),
        BlockError::ReadOnly => Status::NAMESPACE_WRITE_PROTECTED.with_dnr(),
        BlockError::NoSpace => Status::CAPACITY_EXCEEDED.with_dnr(),
        BlockError::NotSupported => Status::INVALID_OPCODE.with_dnr(),
        BlockError::Gone => Status::NAMESPACE_NOT_READY,
        BlockError::Read => Status::UNRECOVERED_READ_ERROR.with_dnr(),
        BlockError::Write => Status::WRITE_FAULT.with_dnr(),
        BlockError::Cancelled => Status::COMMAND_INTERRUPTED,
    }
}
