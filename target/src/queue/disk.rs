//! What requests ask of the disks, and what comes back from them.

use std::num::NonZeroI32;

use ringfab_block::{BlockError, Finished, Operation, Started, Tag};
use ringfab_spec::Status;

use super::commands::piece_ranges;
use super::connection::Connection;
use super::request::Request;
use super::steps::disk_of_round;
use crate::failure::Failure;
use crate::model::disk_failure::{DiskAction, DiskFailure};
use crate::nvm::{Access, Action, Extent, Place};
use crate::resources::operations::DeferredOperation;
use crate::resources::scope::Scope;
use crate::resources::states::State;
use crate::resources::{OpenDisk, Resources};

impl Request {
    /// A disk that can hand out its bytes without I/O answers a read at once.
    #[inline(always)]
    pub(super) fn peek(&mut self, resources: &Resources) -> bool {
        let Action::Read(extent) = self.action else { return false };
        let Some(open) = resources.disks.get(extent.disk) else { return false };
        for (offset, length) in piece_ranges(self.length, resources.chunk_bytes) {
            let Some(shared_buffer) = open.disk.peek(extent.offset + u64::from(offset), length) else {
                self.pieces.clear();
                return false;
            };
            self.pieces.push_shared(shared_buffer);
        }
        true
    }

    /// Starts the operations of an I/O command, or the first of them.
    #[inline(always)]
    pub(super) fn start_at_disk(&mut self, connection: &Connection, resources: &mut Resources) {
        match self.action {
            Action::Read(extent) => {
                self.start_reads(resources, extent, 0, connection.link.sends_from_anywhere());
            }
            Action::Write { extent, durable } => self.start_writes(resources, extent, durable),
            _ => self.start_rest(connection, resources),
        }
    }

    #[inline(never)]
    fn start_rest(&mut self, connection: &Connection, resources: &mut Resources) {
        match self.action {
            Action::Compare(extent) => {
                let host_pieces = piece_ranges(extent.length.checked_data(), resources.chunk_bytes).count();
                self.start_reads(resources, extent, host_pieces, false);
            }
            Action::CompareAndWrite { extent, durable } => {
                let [expected, source] = [0, 1].map(|piece| self.pieces.take_shared(piece));
                let (offset, length) = (extent.offset, extent.length.checked_data().0);
                let operation = Operation::CompareAndWrite { offset, expected, source, length, durable };
                self.start(resources, extent.disk, 0, operation);
            }
            Action::WriteZeroes { extent, deallocate, durable } => {
                let Extent { offset, length, .. } = extent;
                let operation = Operation::WriteZeroes { offset, length: length.0, deallocate, durable };
                self.start(resources, extent.disk, 0, operation);
            }
            Action::Flush { disk } => self.start(resources, disk, 0, Operation::Flush),
            Action::FlushAll { .. } | Action::Discard { .. } | Action::Verify { .. } | Action::Copy(_) => {
                self.first_step(connection, resources);
            }
            Action::Hints { .. } => {}
            Action::Read(_) | Action::Write { .. } => unreachable!("they were started"),
            Action::Controller | Action::Nothing => unreachable!("not the disks' work"),
        }
    }

    /// Whether it works, or is going to work, on a disk.
    pub(super) fn uses_disk(&self, disk: usize) -> bool {
        match self.action.place() {
            Place::AllDisks { .. } => self.pending != 0,
            Place::Blocks(Extent { disk: own, .. }) | Place::Disk(own) => own == disk,
            Place::Nowhere => false,
        }
    }

    /// Whether a disk works on it.
    pub(super) fn is_at_disk(&self, disk: usize) -> bool {
        self.state() == State::AtDisk && self.action.disk() == Some(disk)
    }

    /// Whether a disk works in this scope for it, and for its host.
    pub(super) fn is_working_in(&self, scope: &Scope, host: &[u8; 16]) -> bool {
        self.state() == State::AtDisk && scope.covers(&self.action, host)
    }

    #[inline(always)]
    fn start_reads(
        &mut self,
        resources: &mut Resources,
        extent: Extent,
        first_piece: usize,
        may_borrow: bool,
    ) {
        for (index, (offset, _)) in
            piece_ranges(extent.length.checked_data(), resources.chunk_bytes).enumerate()
        {
            let piece = first_piece + index;
            let buffer = self.pieces.take_buffer(piece);
            let operation = Operation::Read { offset: extent.offset + u64::from(offset), buffer, may_borrow };
            self.start(resources, extent.disk, piece as u8, operation);
        }
    }

    #[inline(always)]
    fn start_writes(&mut self, resources: &mut Resources, extent: Extent, durable: bool) {
        for (index, (offset, length)) in
            piece_ranges(extent.length.checked_data(), resources.chunk_bytes).enumerate()
        {
            let source = self.pieces.take_shared(index);
            let offset = extent.offset + u64::from(offset);
            let operation = Operation::Write { offset, source, at: 0, length, durable };
            self.start(resources, extent.disk, index as u8, operation);
        }
    }

    /// Starts an operation; `kind` tells it apart from the others of the request.
    pub(super) fn start(&mut self, resources: &mut Resources, disk: usize, kind: u8, operation: Operation) {
        let Some(open) = resources.disks.get_mut(disk) else {
            return self.fail(Failure::transient(Status::NAMESPACE_NOT_READY));
        };
        let id = self.id();
        let index = u32::from(id.queue) << 16 | u32::from(id.slot);
        let tag = Tag { kind, generation: id.generation, index };
        self.pending += 1;
        if open.disk.prefetch(&operation) {
            return resources.disk_operations.defer(DeferredOperation { disk, operation, tag });
        }
        match open.disk.start(&mut resources.reactor, operation, tag) {
            Started::Finished(finished) => self.take_back(resources, finished),
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
    pub(super) fn take_back(&mut self, resources: &mut Resources, finished: Finished) {
        self.pending -= 1;
        let piece = usize::from(finished.tag.kind);
        if let Some(buffer) = finished.buffer {
            self.pieces.put(piece, buffer);
        }
        if let (Action::Copy(_) | Action::Read(_), Some(source)) = (self.action, finished.source) {
            self.pieces.put_shared(piece, source);
        }
        let Finished { tag, errno, value, .. } = finished;
        match finished.result {
            Ok(()) if self.action.ends_plainly() => {}
            Ok(()) => DiskAnswer { request: self, resources, kind: tag.kind, value }.succeeded(),
            Err(error) => {
                let errno = errno.map(NonZeroI32::get);
                DiskAnswer { request: self, resources, kind: tag.kind, value }.failed(error, errno);
            }
        }
    }

    /// The blocks of a Compare are here: whether they are the host's.
    pub(super) fn compare(&mut self, chunk_bytes: u32) {
        let count = piece_ranges(self.length, chunk_bytes).count();
        if !self.has_failed() && !self.pieces.are_equal(count) {
            self.fail(Failure::new(Status::COMPARE_FAILURE));
        }
    }
}

/// What a disk has answered to an operation of a request, beside whether it is done.
struct DiskAnswer<'a> {
    request: &'a mut Request,
    resources: &'a Resources,
    /// Which of the request's operations it was.
    kind: u8,
    value: u64,
}

impl DiskAnswer<'_> {
    /// What is to be said to be safe is not, if an earlier loss was reported: the system reports each only once.
    #[inline(never)]
    fn succeeded(self) {
        let Self { request, resources, kind, value } = self;
        if request.action.has_value() {
            request.result = value;
        }
        if !request.action.is_promise() {
            return;
        }
        let disk = disk_of_operation(request.action, kind).and_then(|disk| resources.disks.get(disk));
        if disk.is_some_and(OpenDisk::is_lost) {
            request.fail(LOST);
        }
    }

    #[cold]
    fn failed(self, error: BlockError, errno: Option<i32>) {
        let Self { request, resources, kind, value } = self;
        let disk = disk_of_operation(request.action, kind).and_then(|disk| resources.disks.get(disk));
        let mut status = status_of(request.action, error);
        if let Some(open) = disk {
            let failure = DiskFailure { what: disk_action(request.action, error), error, errno };
            open.note_failure(resources.reactor.now(), failure);
            if let Some(gone) = open.status_when_gone(&resources.served, error) {
                status = gone;
            }
        }
        if !request.has_failed() {
            request.fail(Failure::transient(status));
            request.result = value;
        }
    }
}

/// Which disk the operation `kind` of a request runs on.
fn disk_of_operation(action: Action, kind: u8) -> Option<usize> {
    match action.place() {
        Place::AllDisks { rounds } => Some(disk_of_round(rounds, kind)),
        Place::Blocks(Extent { disk, .. }) | Place::Disk(disk) => Some(disk),
        Place::Nowhere => None,
    }
}

/// What was written may be lost, and nothing can be said to be safe.
pub(super) const LOST: Failure = Failure::new(Status::WRITE_FAULT);

/// What a disk was doing for a request.
fn disk_action(action: Action, error: BlockError) -> DiskAction {
    match action.kind().at_disk {
        DiskAction::Flush => DiskAction::Flush,
        _ if error == BlockError::Read => DiskAction::Read,
        _ if action.is_promise() => DiskAction::DurableWrite,
        at_disk => at_disk,
    }
}

/// The one place where a disk's error becomes a status.
fn status_of(action: Action, error: BlockError) -> Status {
    if action.access() == Access::Flushes && !is_told_of_flush(error) {
        return Status::WRITE_FAULT.with_dnr();
    }
    match error {
        BlockError::Drive(status) => status_of_drive(Status::from_bits(status.bits())),
        BlockError::Miscompare => Status::COMPARE_FAILURE.with_dnr(),
        BlockError::OutOfRange => Status::LBA_OUT_OF_RANGE.with_dnr(),
        BlockError::Misaligned => Status::INVALID_FIELD.with_dnr(),
        BlockError::ReadOnly => Status::NAMESPACE_WRITE_PROTECTED.with_dnr(),
        BlockError::NoSpace => Status::CAPACITY_EXCEEDED.with_dnr(),
        BlockError::NotSupported => Status::INVALID_OPCODE.with_dnr(),
        BlockError::Removed | BlockError::Shrunk => Status::NAMESPACE_NOT_READY,
        BlockError::Read => Status::UNRECOVERED_READ_ERROR.with_dnr(),
        BlockError::Write => Status::WRITE_FAULT.with_dnr(),
        BlockError::Busy | BlockError::Cancelled => Status::COMMAND_INTERRUPTED,
    }
}

/// Whether a host may be told this of a Flush. One that reads that there is no Flush, or that it was asked wrongly,
/// takes its data to be safe without.
fn is_told_of_flush(error: BlockError) -> bool {
    match error {
        BlockError::Busy | BlockError::Cancelled => true,
        BlockError::Drive(status) => {
            let code = Status::from_bits(status.bits()).code();
            ![Status::INVALID_OPCODE, Status::INVALID_FIELD, Status::INVALID_NAMESPACE].contains(&code)
        }
        _ => false,
    }
}

/// What a drive has answered, without what only its own controller knows: its delays of retries, and what its log says.
fn status_of_drive(status: Status) -> Status {
    match status.code() {
        code if code.is_success() => Status::INTERNAL_ERROR.with_dnr(),
        code if status.dnr() => code.with_dnr(),
        code => code,
    }
}

#[cfg(test)]
mod tests {
    use ringfab_block::DriveStatus;

    use super::*;

    #[test]
    fn what_a_drive_answers_is_what_the_host_reads_but_for_what_its_own_controller_means() {
        let of = |action, status: Status| {
            status_of(action, BlockError::Drive(DriveStatus::from_bits(status.bits())))
        };
        let (flush, other) =
            (Action::Flush { disk: 0 }, Action::Verify { extent: Extent::all_of(0), begun: 0 });
        for action in [flush, other] {
            for code in [Status::ACCESS_DENIED, Status::new(7, 0xc1), Status::NAMESPACE_NOT_READY] {
                assert_eq!(of(action, code), code);
                assert_eq!(of(action, code.with_dnr().with_more()), code.with_dnr());
            }
        }
        assert_eq!(of(other, Status::INVALID_OPCODE.with_dnr()), Status::INVALID_OPCODE.with_dnr());
        assert_eq!(of(flush, Status::INVALID_OPCODE.with_dnr()), Status::WRITE_FAULT.with_dnr());
        assert!(!of(other, Status::SUCCESS).is_success(), "what has failed does not pass for done");
    }
}
