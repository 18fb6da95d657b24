//! Commands that take several steps at the disks: each step begins when the one before has ended.

use std::sync::Arc;

use ringfab_block::Operation;
use ringfab_spec::Status;
use ringfab_spec::sqe::{CopyRange, DsmRange};

use super::connection::Connection;
use super::disk::LOST;
use super::request::Request;
use crate::failure::Failure;
use crate::limits::COPY_PIECE_BYTES;
use crate::model::Direction;
use crate::nvm::{self, Action, Blocks, Copying, DiskBytes, Extent, Lba, NamespaceView};
use crate::resources::limited::FlowKey;
use crate::resources::{OpenDisk, Resources};

/// What a disk deallocates at once. A file system locks a file meanwhile, so that a long range goes in pieces.
const DISCARD_PIECE_BYTES: u64 = 1 << 30;

/// Flushes of one command that run at once: as many as the kinds of a tag.
const FLUSHES_PER_ROUND: usize = 1 << u8::BITS;

/// The disk that the operation `kind` of a round (counted from one) flushes. It does not depend on which namespaces
/// there are, since that may change before the completion comes.
pub(super) fn disk_of_round(round: u16, kind: u8) -> usize {
    usize::from(round).saturating_sub(1) * FLUSHES_PER_ROUND + usize::from(kind)
}

impl Request {
    /// Starts the first step of a command, once what its ranges say has been checked.
    pub(super) fn first_step(&mut self, connection: &Connection, resources: &mut Resources) {
        if let Action::Copy(copying) = self.action {
            match (Steps { request: self, connection, resources }).check_copy(&copying) {
                Ok(DiskBytes(bytes)) => {
                    let namespace = copying.disk;
                    let flow = FlowKey { host: connection.host, namespace, direction: Direction::Write };
                    resources.charge(flow, bytes);
                }
                Err(failure) => return self.fail(failure),
            }
        }
        self.next_step(connection, resources);
    }

    /// Goes on with a command when no operation of it is in flight; one that is done in one step stays as it is.
    #[inline(always)]
    pub(super) fn next_step(&mut self, connection: &Connection, resources: &mut Resources) {
        if !matches!(self.action, Action::Read(_) | Action::Write { .. }) {
            Steps { request: self, connection, resources }.next();
        }
    }

    /// Of a Copy that failed on the way, dword 0 has the number of the first range that is not copied.
    pub(super) fn note_copied(&mut self, copying: Copying) {
        let began = copying.done != 0 || copying.read != 0 || copying.range != 0;
        if self.has_failed() && began {
            self.result = u64::from(copying.range);
        }
    }
}

/// A request of which a disk does one step after the other.
struct Steps<'a> {
    request: &'a mut Request,
    connection: &'a Connection,
    resources: &'a mut Resources,
}

impl Steps<'_> {
    fn next(&mut self) {
        match self.request.action {
            Action::Discard { disk, .. } => self.discard_next(disk),
            Action::FlushAll { .. } => self.flush_next(),
            Action::Verify { extent, .. } => self.verify_next(extent),
            Action::Copy(_) => self.copy_next(),
            // They are done in one step.
            Action::Read(_) | Action::Write { .. } | Action::Compare(_) | Action::WriteZeroes { .. } => {}
            Action::CompareAndWrite { .. } | Action::Flush { .. } => {}
            Action::Hints { .. } | Action::Nothing | Action::Controller => {}
        }
    }

    /// Whether the next step can begin.
    fn is_between_steps(&self) -> bool {
        self.request.pending == 0 && !self.request.has_failed()
    }

    /// Starts a step, if the command may still run.
    fn start(&mut self, disk: usize, kind: u8, operation: Operation) {
        if self.request.judge_again(self.connection, self.resources).is_ok() {
            self.request.start(self.resources, disk, kind, operation);
        }
    }

    /// Reads one piece after the other into the same buffer.
    fn verify_next(&mut self, extent: Extent) {
        while self.is_between_steps() {
            let Action::Verify { begun, .. } = &mut self.request.action else { return };
            if *begun == extent.length.0 {
                return;
            }
            let offset = extent.offset + *begun;
            let mut buffer = self.request.pieces.take_buffer(0);
            let length = u64::from(self.resources.chunk_bytes).min(extent.length.0 - *begun);
            *begun += length;
            buffer.set_len(length as usize);
            self.start(extent.disk, 0, Operation::Read { offset, buffer, may_borrow: false });
        }
    }

    /// Reads a piece and writes it, one after the other: those of a range in order, and the ranges in order.
    fn copy_next(&mut self) {
        while self.is_between_steps() {
            let Action::Copy(mut copying) = self.request.action else { return };
            if copying.range == copying.ranges {
                return;
            }
            let outcome = match copying.read {
                0 => self.copy_read(&mut copying),
                _ => Ok(self.copy_write(&mut copying)),
            };
            self.request.action = Action::Copy(copying);
            match outcome {
                Ok(Some(operation)) => {
                    let piece = self.copy_piece();
                    self.start(copying.disk, piece as u8, operation);
                }
                Ok(None) => {}
                Err(failure) => self.request.fail(failure),
            }
        }
    }

    /// The next piece of the range, or none when it is done and the next range is to begin.
    fn copy_read(&mut self, copying: &mut Copying) -> Result<Option<Operation>, Failure> {
        let view = self.view_of()?;
        let extent = nvm::copy_extent(&view, &self.request.pieces.record(usize::from(copying.range)))?;
        let length = extent.length.0.saturating_sub(copying.done).min(u64::from(COPY_PIECE_BYTES));
        if length == 0 {
            (copying.range, copying.done) = (copying.range + 1, 0);
            return Ok(None);
        }
        let piece = self.copy_piece();
        let mut buffer = self.request.pieces.take_buffer(piece);
        copying.read = length as u32;
        buffer.set_len(length as usize);
        Ok(Some(Operation::Read { offset: extent.offset + copying.done, buffer, may_borrow: false }))
    }

    fn copy_write(&mut self, copying: &mut Copying) -> Option<Operation> {
        let piece = self.copy_piece();
        let source = self.request.pieces.take_shared(piece);
        let (offset, length, durable) = (copying.to, copying.read, copying.durable);
        copying.to += u64::from(length);
        copying.done += u64::from(length);
        copying.read = 0;
        Some(Operation::Write { offset, source, at: 0, length, durable })
    }

    /// Where the buffer of a Copy is: behind its list of ranges.
    fn copy_piece(&self) -> usize {
        self.request.pieces.len() - 1
    }

    fn check_copy(&self, copying: &Copying) -> Result<DiskBytes, Failure> {
        let view = self.view_of()?;
        nvm::check_copy(&view, copying, |index| self.request.pieces.record::<CopyRange>(usize::from(index)))
    }

    /// Flushes every disk of the subsystem whose namespace the host sees, as many at a time as a tag can tell apart.
    /// One that fails does not keep the others from being flushed.
    fn flush_next(&mut self) {
        let Some(controller) = self.connection.controller() else { return };
        let (subsystem, host) = (controller.subsystem(), &controller.host().nqn);
        let served = Arc::clone(&self.resources.served);
        let is_own = |open: &&OpenDisk| {
            Arc::ptr_eq(&open.subsystem, subsystem) && !served.hides(subsystem, &open.namespace, host)
        };
        while self.request.pending == 0 {
            let Action::FlushAll { rounds } = &mut self.request.action else { return };
            if usize::from(*rounds) * FLUSHES_PER_ROUND >= self.resources.disks.end() {
                return;
            }
            *rounds += 1;
            let round = *rounds;
            for kind in 0..=u8::MAX {
                let disk = disk_of_round(round, kind);
                let open = self.resources.disks.get(disk);
                let Some(open) = open.filter(is_own) else { continue };
                // One that was lost and cannot even be flushed is none that is safe.
                if open.is_ready() {
                    self.request.start(self.resources, disk, kind, Operation::Flush);
                } else if open.is_lost() {
                    self.request.fail(LOST);
                }
            }
        }
    }

    /// One range of a Dataset Management command after the other, and of a long one one piece after the other.
    fn discard_next(&mut self, disk: usize) {
        while self.is_between_steps() {
            let Action::Discard { ranges, next, begun, .. } = self.request.action else { return };
            if next == ranges {
                return;
            }
            let Extent { offset, length: DiskBytes(length), .. } = match self.discard_range(usize::from(next))
            {
                Ok(extent) => extent,
                Err(failure) => return self.request.fail(failure),
            };
            let piece = length.saturating_sub(begun).min(DISCARD_PIECE_BYTES);
            let done = begun + piece >= length;
            let (next, after) = if done { (next + 1, 0) } else { (next, begun + piece) };
            self.request.action = Action::Discard { disk, ranges, next, begun: after };
            if piece != 0 {
                self.start(disk, 0, Operation::Discard { offset: offset + begun, length: piece });
            }
        }
    }

    fn discard_range(&self, index: usize) -> Result<Extent, Failure> {
        let range: DsmRange = self.request.pieces.record(index);
        nvm::discard_extent(&self.view_of()?, Lba(range.slba.get()), Blocks(range.nlb.get().into()))
    }

    /// The namespace of a request, as it is now; it may have been removed since the request came.
    fn view_of(&self) -> Result<NamespaceView, Failure> {
        let disk = self.request.action.disk();
        let open = disk.and_then(|disk| self.resources.disks.get(disk));
        open.map(OpenDisk::view).ok_or(Failure::transient(Status::NAMESPACE_NOT_READY))
    }
}
