//! What requests ask of the disks.

use ringfab_block::{BlockError, Finished, Operation, Started, Tag};
use ringfab_spec::Status;

use super::life::pieces;
use super::request::Held;
use super::steps::disk_of_round;
use super::{Phase, Queue, Slot, State};
use crate::failure::Failure;
use crate::limits::COPY_PIECE_BYTES;
use crate::model::disk_failures::{DiskAction, DiskFailure};
use crate::nvm::{Action, Extent, Transfer};
use crate::resources::operations::DeferredOperation;
use crate::resources::{OpenDisk, Resources};

impl Queue {
    /// Bytes of the disk that a request needs buffers for beside the host's: to compare the two, or to pass on.
    pub(super) fn bytes_of_disk(&self, slot: Slot, chunk_bytes: u32) -> u32 {
        match self.requests[slot].action {
            Action::Compare(extent) => extent.length as u32,
            Action::Verify { extent, .. } => chunk_bytes.min(extent.length as u32),
            Action::Copy(_) => COPY_PIECE_BYTES,
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
    pub(super) fn peek(&mut self, resources: &mut Resources, slot: Slot) -> bool {
        let Action::Read(extent) = self.requests[slot].action else { return false };
        let Some(open) = resources.disks.get(extent.disk).and_then(Option::as_ref) else { return false };
        let request = &mut self.requests[slot];
        for (offset, length) in pieces(request.length, resources.chunk_bytes) {
            let Some(lease) = open.disk.peek(extent.offset + u64::from(offset), length) else {
                request.held.clear();
                return false;
            };
            request.hold(move || Held::Lease(lease));
        }
        self.requests.enter(slot, State::DataIn);
        self.requests.enter(slot, State::Execute);
        self.reply(resources, slot);
        true
    }

    /// `Execute`: starts the operations of an I/O command.
    pub(super) fn run_disk(&mut self, resources: &mut Resources, slot: Slot) {
        match self.requests[slot].action {
            Action::Read(extent) => {
                let lend = self.link.sends_from_anywhere();
                self.start_reads(resources, slot, extent, 0, lend);
            }
            Action::Compare(extent) => {
                let host_pieces = pieces(extent.length as u32, resources.chunk_bytes).count();
                self.start_reads(resources, slot, extent, host_pieces, false);
            }
            Action::Write { extent, durable } => self.start_writes(resources, slot, extent, durable),
            Action::WriteZeroes { extent, deallocate, durable } => {
                let Extent { offset, length, .. } = extent;
                let operation = Operation::WriteZeroes { offset, length, deallocate, durable };
                self.start(resources, slot, extent.disk, 0, operation);
            }
            Action::Flush { disk } => self.start(resources, slot, disk, 0, Operation::Flush),
            Action::FlushAll { .. } => self.next_step(resources, slot),
            Action::Discard { .. } | Action::Verify { .. } | Action::Copy(_) => {
                self.first_step(resources, slot);
            }
            Action::Controller | Action::Nothing => unreachable!("not the disks' work"),
        }
        self.reply_when_done(resources, slot);
    }

    /// A disk has finished one operation of a request.
    pub(super) fn disk_finished(&mut self, resources: &mut Resources, slot: Slot, finished: Finished) {
        self.settle(resources, slot, finished);
        if self.phase == Phase::Gone {
            if self.requests[slot].pending == 0 {
                self.release_claim(resources, slot);
                self.requests.release(slot);
                self.note_unfinished();
            }
            return;
        }
        self.next_step(resources, slot);
        self.reply_when_done(resources, slot);
    }

    /// Which disk the operation `kind` of a request runs on.
    pub(super) fn request_disk(&self, slot: Slot, kind: u8) -> Option<usize> {
        match self.requests[slot].action {
            Action::FlushAll { rounds } => Some(disk_of_round(rounds, kind)),
            action => action.disk(),
        }
    }

    fn start_reads(
        &mut self,
        resources: &mut Resources,
        slot: Slot,
        extent: Extent,
        first_piece: usize,
        lend: bool,
    ) {
        for (index, (offset, _)) in pieces(extent.length as u32, resources.chunk_bytes).enumerate() {
            let piece = first_piece + index;
            let Held::Buffer(buffer) = self.requests[slot].held[piece].take() else {
                unreachable!("a read has a buffer for every piece")
            };
            let operation = Operation::Read { offset: extent.offset + u64::from(offset), buffer, lend };
            self.start(resources, slot, extent.disk, piece as u8, operation);
        }
    }

    fn start_writes(&mut self, resources: &mut Resources, slot: Slot, extent: Extent, durable: bool) {
        for (index, (offset, length)) in pieces(extent.length as u32, resources.chunk_bytes).enumerate() {
            let source = self.requests[slot].held[index].take_lease().expect("a write holds all its data");
            let offset = extent.offset + u64::from(offset);
            let operation = Operation::Write { offset, source, at: 0, length, durable };
            self.start(resources, slot, extent.disk, index as u8, operation);
        }
    }

    pub(super) fn start(
        &mut self,
        resources: &mut Resources,
        slot: Slot,
        disk: usize,
        kind: u8,
        operation: Operation,
    ) {
        let Some(open) = resources.disks.get_mut(disk).and_then(Option::as_mut) else {
            return self.requests[slot].fail(Failure::transient(Status::NAMESPACE_NOT_READY));
        };
        let request = &mut self.requests[slot];
        let index = u32::from(self.number) << 16 | u32::from(slot.number());
        let tag = Tag { kind, generation: request.generation, index };
        request.pending += 1;
        if open.disk.prefetch(&operation) {
            return resources.deferred.push_back(DeferredOperation { disk, operation, tag });
        }
        match open.disk.start(&mut resources.reactor, operation, tag) {
            Started::Finished(finished) => self.settle(resources, slot, finished),
            Started::Pending => {
                open.progress.begin();
                if resources.disk_operations.start() {
                    resources.reactor.submit_now();
                    resources.disk_operations.submitted();
                }
            }
        }
    }

    /// Takes back what an operation held and keeps its outcome.
    fn settle(&mut self, resources: &mut Resources, slot: Slot, finished: Finished) {
        let request = &mut self.requests[slot];
        request.pending -= 1;
        let piece = usize::from(finished.tag.kind);
        if let Some(buffer) = finished.buffer {
            request.held[piece] = Held::Buffer(buffer);
        }
        if let (Action::Copy(_) | Action::Read(_), Some(source)) = (request.action, finished.source) {
            request.held[piece] = Held::Lease(source);
        }
        match finished.result {
            Ok(()) if !request.action.is_promise() => {}
            Ok(()) => self.check_promise(resources, slot, finished.tag.kind),
            Err(error) => self.disk_failed(resources, slot, finished.tag.kind, (error, finished.errno)),
        }
    }

    /// What is to be said to be safe is not, if an earlier loss was told of: the system tells of each only once.
    fn check_promise(&mut self, resources: &Resources, slot: Slot, kind: u8) {
        let disk = self.request_disk(slot, kind).and_then(|disk| resources.disks.get(disk));
        if disk.and_then(Option::as_ref).is_some_and(OpenDisk::is_lost) {
            self.requests[slot].fail(LOST);
        }
    }

    #[cold]
    fn disk_failed(
        &mut self,
        resources: &Resources,
        slot: Slot,
        kind: u8,
        (error, errno): (BlockError, Option<i32>),
    ) {
        let disk = self.request_disk(slot, kind).and_then(|disk| resources.disks.get(disk));
        let request = &mut self.requests[slot];
        if let Some(open) = disk.and_then(Option::as_ref) {
            let failure = DiskFailure { what: action_of(request.action, error), error, errno };
            open.note_failure(&resources.target, resources.reactor.now(), failure);
        }
        request.fail(Failure::transient(status_of(request.action, error)));
    }

    fn reply_when_done(&mut self, resources: &mut Resources, slot: Slot) {
        if self.requests[slot].pending != 0 {
            return;
        }
        match self.requests[slot].action {
            Action::Compare(_) => self.compare(resources, slot),
            Action::Copy(copying) => self.note_copied(slot, copying),
            _ => {}
        }
        self.shutdown_flushed(slot);
        if self.requests[slot].partner.is_some() {
            return self.half_done(resources, slot);
        }
        self.reply(resources, slot);
    }

    fn compare(&mut self, resources: &Resources, slot: Slot) {
        let request = &mut self.requests[slot];
        let count = pieces(request.length, resources.chunk_bytes).count();
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

/// What was written may be lost, and nothing can be said to be safe.
pub(super) const LOST: Failure = Failure::new(Status::WRITE_FAULT);

/// What a disk was doing for a request.
fn action_of(action: Action, error: BlockError) -> DiskAction {
    match action {
        _ if matches!(action, Action::Flush { .. } | Action::FlushAll { .. }) => DiskAction::Flush,
        _ if error == BlockError::Read => DiskAction::Read,
        _ if action.is_promise() => DiskAction::DurableWrite,
        Action::Write { .. } | Action::Copy(_) => DiskAction::Write,
        Action::WriteZeroes { .. } => DiskAction::WriteZeroes,
        Action::Discard { .. } => DiskAction::Deallocate,
        _ => DiskAction::Read,
    }
}

/// The one place where a disk's error becomes a status.
fn status_of(action: Action, error: BlockError) -> Status {
    // A host that reads that there is no Flush, or that it was asked wrongly, takes its data to be safe without.
    let flush = matches!(action, Action::Flush { .. } | Action::FlushAll { .. });
    match error {
        _ if flush && !matches!(error, BlockError::Busy | BlockError::Cancelled) => {
            Status::WRITE_FAULT.with_dnr()
        }
        BlockError::OutOfRange => Status::LBA_OUT_OF_RANGE.with_dnr(),
        BlockError::Misaligned => Status::INVALID_FIELD.with_dnr(),
        BlockError::ReadOnly => Status::NAMESPACE_WRITE_PROTECTED.with_dnr(),
        BlockError::NoSpace => Status::CAPACITY_EXCEEDED.with_dnr(),
        BlockError::NotSupported => Status::INVALID_OPCODE.with_dnr(),
        BlockError::Gone | BlockError::Shrunk => Status::NAMESPACE_NOT_READY,
        BlockError::Read => Status::UNRECOVERED_READ_ERROR.with_dnr(),
        BlockError::Write => Status::WRITE_FAULT.with_dnr(),
        BlockError::Busy | BlockError::Cancelled => Status::COMMAND_INTERRUPTED,
    }
}
