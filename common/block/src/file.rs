//! A regular file or a block device, through the core's ring.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ringfab_base::{SlotId, Slots};
use ringfab_reactor::{Allocate, Completion, FileId, FileInfo, FileOptions, Payload, Reactor};

use crate::device::BlockDevice;
use crate::operation::{DiskProperties, Finished, Operation, Started, Tag};
use crate::zeroes::Zeroes;
use crate::{BlockError, DiskTokens, OpenError};

/// A file or block device that was opened for a core.
#[derive(Clone, Debug)]
pub struct OpenedFile {
    /// Its descriptor.
    pub file: Arc<File>,
    /// What [`ringfab_reactor::inspect_file`] said of it.
    pub info: FileInfo,
    /// Whether it was opened for reading only.
    pub read_only: bool,
}

/// One core's handle of a file.
#[derive(Debug)]
pub(crate) struct FileDisk {
    file: FileId,
    info: FileInfo,
    read_only: bool,
    tokens: DiskTokens,
    zeroes: Zeroes,
    in_flight: Slots<InFlight>,
    /// How this core opens it anew, when it has opened it itself.
    source: Option<(PathBuf, FileOptions)>,
}

/// An operation in flight.
#[derive(Debug)]
struct InFlight {
    tag: Tag,
    stage: Stage,
}

/// What of an operation is in flight.
#[derive(Debug)]
enum Stage {
    /// All of it.
    Whole,
    /// The file is asked whether it still reaches where the operation ends: one that was cut off and then written to at its
    /// end would look whole, with zeroes that nobody wrote.
    CheckEnd(Operation),
    /// A step of several.
    Step(Composite),
}

/// An operation of several steps, of which one is in flight.
#[derive(Clone, Copy, Debug)]
struct Composite {
    step: Step,
    /// What is still to be zeroed by writing, when the file cannot do it by itself.
    position: u64,
    end: u64,
    discard: bool,
    durable: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Asking the file system or the device to zero or free the range.
    Allocate,
    /// Writing zeroes, piece by piece, because it cannot.
    WriteZeroes,
    /// Making it durable.
    Sync,
}

/// Reactor operations need no kinds of their own: the slot says what they are.
const KIND: u8 = 0;

impl FileDisk {
    pub(crate) fn open(
        path: &Path,
        options: FileOptions,
        reactor: &mut Reactor,
        zeroes: &Zeroes,
        tokens: DiskTokens,
    ) -> Result<Self, OpenError> {
        let (file, info) = open(path, options, reactor)?;
        let disk = Self::new(file, info, options.read_only, zeroes, tokens);
        Ok(Self { source: Some((path.to_owned(), options)), ..disk })
    }

    pub(crate) fn adopt(
        opened: &OpenedFile,
        reactor: &mut Reactor,
        zeroes: &Zeroes,
        tokens: DiskTokens,
    ) -> io::Result<Self> {
        let file = reactor.adopt_file(Arc::clone(&opened.file), &opened.info)?;
        Ok(Self::new(file, opened.info, opened.read_only, zeroes, tokens))
    }

    fn new(file: FileId, info: FileInfo, read_only: bool, zeroes: &Zeroes, tokens: DiskTokens) -> Self {
        let (in_flight, source) = (Slots::new(), None);
        Self { file, info, read_only, tokens, zeroes: zeroes.clone(), in_flight, source }
    }

    /// Operations of several steps go on with the new file.
    fn exchange(&mut self, file: FileId, info: FileInfo, reactor: &mut Reactor) {
        let old = std::mem::replace(&mut self.file, file);
        self.info = info;
        reactor.retire_file(old);
    }

    /// Whether it would put the end of a file that was cut off back to where it was.
    fn reaches_end(&self, operation: &Operation) -> bool {
        !self.info.block_device
            && operation.writes()
            && operation.range().is_some_and(|(offset, length)| offset + length == self.info.bytes)
    }

    /// Starts the operation of a slot. One of several steps replaces the slot's stage.
    fn submit(&mut self, reactor: &mut Reactor, id: SlotId, operation: Operation) {
        let token = self.tokens.token(KIND, id);
        match operation {
            Operation::Read { offset, buffer, .. } => {
                let length = buffer.len();
                reactor.read_file(self.file, offset, buffer, 0, length, token);
            }
            Operation::Write { offset, source, at, length, durable } => {
                reactor.write_file(self.file, offset, source, at as usize, length as usize, durable, token);
            }
            Operation::Flush => reactor.sync_file(self.file, token),
            Operation::WriteZeroes { offset, length, deallocate, durable } => {
                let what = if deallocate { Allocate::PunchHole } else { Allocate::ZeroRange };
                self.start_composite(reactor, id, what, (offset, length), false, durable);
            }
            Operation::Discard { offset, length } => {
                self.start_composite(reactor, id, Allocate::PunchHole, (offset, length), true, false);
            }
        }
    }

    /// The whole operation has ended.
    #[inline]
    fn finish(&self, tag: Tag, completion: Completion) -> Finished {
        let errno = errno_of(&completion);
        let (result, buffer, source) = match completion.payload {
            Payload::Buffer(buffer) => {
                let short = if self.info.block_device { BlockError::Read } else { BlockError::Shrunk };
                (read_result(completion.result, buffer.len(), short), Some(buffer), None)
            }
            Payload::Lease(source) => (write_result(completion.result), None, Some(source)),
            _ => (write_result(completion.result), None, None),
        };
        Finished { tag, result, errno, buffer, source }
    }

    /// The file has said how long it is.
    fn end_checked(&mut self, reactor: &mut Reactor, id: SlotId, completion: Completion) -> Option<Finished> {
        let in_flight = self.in_flight.get_mut(id)?;
        let Stage::CheckEnd(operation) = std::mem::replace(&mut in_flight.stage, Stage::Whole) else {
            return None;
        };
        let errno = errno_of(&completion);
        let error = match (completion.result, completion.payload) {
            (Ok(_), Payload::FileBytes(bytes)) if bytes >= self.info.bytes => {
                self.submit(reactor, id, operation);
                return None;
            }
            (Ok(_), _) => BlockError::Shrunk,
            (Err(error), _) => map_error(&error, BlockError::Write),
        };
        let InFlight { tag, .. } = self.in_flight.remove(id)?;
        Some(Finished { errno, ..operation.finish(tag, Err(error)) })
    }

    fn start_composite(
        &mut self,
        reactor: &mut Reactor,
        id: SlotId,
        what: Allocate,
        (offset, length): (u64, u64),
        discard: bool,
        durable: bool,
    ) {
        let Some(in_flight) = self.in_flight.get_mut(id) else { return };
        let end = offset + length;
        in_flight.stage =
            Stage::Step(Composite { step: Step::Allocate, position: offset, end, discard, durable });
        reactor.allocate_file(self.file, what, offset, length, self.tokens.token(KIND, id));
    }

    /// One step of a composite has ended: starts the next, or finishes it.
    fn advance(&mut self, reactor: &mut Reactor, id: SlotId, completion: &Completion) -> Option<Finished> {
        let block_device = self.info.block_device;
        let in_flight = self.in_flight.get_mut(id)?;
        let tag = in_flight.tag;
        let Stage::Step(composite) = &mut in_flight.stage else { return None };
        let next = match (composite.step, &completion.result) {
            (Step::Allocate, Ok(_)) if composite.durable => Ok(Some(Step::Sync)),
            (Step::Allocate | Step::Sync, Ok(_)) => Ok(None),
            (Step::Allocate, Err(error)) if unsupported(error) => {
                // A block device that cannot unmap may ignore a discard; everything else must become zeroes.
                Ok((!(composite.discard && block_device)).then_some(Step::WriteZeroes))
            }
            (Step::WriteZeroes, Ok(written)) => {
                composite.position += u64::from(*written);
                let done = composite.position >= composite.end;
                Ok(if !done { Some(Step::WriteZeroes) } else { composite.durable.then_some(Step::Sync) })
            }
            // Whatever a sync fails with, what was written before it may be lost.
            (Step::Sync, Err(error)) if error.raw_os_error() != Some(libc::ECANCELED) => {
                Err(BlockError::Write)
            }
            (_, Err(error)) => Err(map_error(error, BlockError::Write)),
        };
        let result = match next {
            Ok(Some(step)) => {
                composite.step = step;
                let composite = *composite;
                self.run_step(reactor, id, composite);
                return None;
            }
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        self.in_flight.remove(id);
        let errno = result.err().and_then(|_| errno_of(completion));
        Some(Finished { tag, result, errno, buffer: None, source: None })
    }

    fn run_step(&self, reactor: &mut Reactor, id: SlotId, composite: Composite) {
        let Composite { step, position, end, .. } = composite;
        let token = self.tokens.token(KIND, id);
        if step == Step::Sync {
            reactor.sync_file(self.file, token);
            return;
        }
        let length = self.zeroes.0.len().min(usize::try_from(end - position).unwrap_or(usize::MAX));
        reactor.write_file(self.file, position, self.zeroes.0.clone(), 0, length, false, token);
    }
}

impl BlockDevice for FileDisk {
    fn properties(&self) -> DiskProperties {
        DiskProperties {
            bytes: self.info.bytes,
            offset_align: self.info.offset_align,
            memory_align: self.info.memory_align,
            volatile_cache: true,
            read_only: self.read_only,
            // A block device may refuse to unmap, and then a discard does nothing.
            discard_zeroes: !self.info.block_device,
        }
    }

    fn start(&mut self, reactor: &mut Reactor, operation: Operation, tag: Tag) -> Started {
        if self.in_flight.len() >= DiskTokens::SLOTS as usize {
            return Started::Finished(operation.finish(tag, Err(BlockError::Busy)));
        }
        if self.reaches_end(&operation) {
            let id = self.in_flight.insert(InFlight { tag, stage: Stage::CheckEnd(operation) });
            reactor.file_bytes(self.file, self.tokens.token(KIND, id));
        } else {
            let id = self.in_flight.insert(InFlight { tag, stage: Stage::Whole });
            self.submit(reactor, id, operation);
        }
        Started::Pending
    }

    fn on_completion(&mut self, reactor: &mut Reactor, completion: Completion) -> Option<Finished> {
        let (slot, generation) = DiskTokens::slot_of(completion.token);
        let id = self.in_flight.find(slot, generation)?;
        match self.in_flight.get(id)? {
            InFlight { tag, stage: Stage::Whole } => {
                let finished = self.finish(*tag, completion);
                self.in_flight.remove(id);
                Some(finished)
            }
            InFlight { stage: Stage::CheckEnd(_), .. } => self.end_checked(reactor, id, completion),
            InFlight { stage: Stage::Step(_), .. } => self.advance(reactor, id, &completion),
        }
    }

    fn close(&mut self, reactor: &mut Reactor) {
        reactor.close_file(self.file);
    }

    fn resize(&mut self, bytes: u64) {
        self.info.bytes = bytes;
    }

    fn replace(&mut self, opened: &OpenedFile, reactor: &mut Reactor) -> io::Result<()> {
        let file = reactor.adopt_file(Arc::clone(&opened.file), &opened.info)?;
        self.exchange(file, opened.info, reactor);
        Ok(())
    }

    fn reopen(&mut self, reactor: &mut Reactor) -> Result<(), OpenError> {
        let Some((path, options)) = &self.source else { return Ok(()) };
        let (file, info) = open(path, *options, reactor)?;
        self.exchange(file, info, reactor);
        Ok(())
    }
}

/// Opens a file through the core itself.
fn open(path: &Path, options: FileOptions, reactor: &mut Reactor) -> Result<(FileId, FileInfo), OpenError> {
    let opened = reactor.open_file(path, options);
    let (file, info) = opened.map_err(|source| OpenError::Open { path: path.to_owned(), source })?;
    if info.bytes == 0 {
        reactor.close_file(file);
        let reason = "is empty: give it a size first, for instance with truncate".to_owned();
        return Err(OpenError::Unsuitable { path: path.to_owned(), reason });
    }
    Ok((file, info))
}

/// The reactor goes on after a short read until the end of the file, so fewer bytes than were asked for mean
/// that the file was cut off under us: an error, never a short read that passes for a whole one.
fn read_result(result: io::Result<u32>, expected: usize, short: BlockError) -> Result<(), BlockError> {
    match result {
        Ok(read) if read as usize == expected => Ok(()),
        Ok(_) => Err(short),
        Err(error) => Err(map_error(&error, BlockError::Read)),
    }
}

fn errno_of(completion: &Completion) -> Option<i32> {
    completion.result.as_ref().err().and_then(io::Error::raw_os_error)
}

fn write_result(result: io::Result<u32>) -> Result<(), BlockError> {
    result.map(drop).map_err(|error| map_error(&error, BlockError::Write))
}

fn unsupported(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOTTY))
}

/// The one place where the system's errors become ours.
fn map_error(error: &io::Error, otherwise: BlockError) -> BlockError {
    match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG) => BlockError::NoSpace,
        Some(libc::EINVAL) => BlockError::Misaligned,
        Some(libc::EROFS | libc::EPERM | libc::EBADF) => BlockError::ReadOnly,
        Some(libc::EOPNOTSUPP | libc::ENOSYS) => BlockError::NotSupported,
        Some(libc::ENODEV | libc::ENXIO) => BlockError::Gone,
        Some(libc::ECANCELED) => BlockError::Cancelled,
        _ => otherwise,
    }
}
