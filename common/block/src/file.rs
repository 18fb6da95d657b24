//! A regular file or a block device, through the core's ring.

use std::io;
use std::num::NonZeroI32;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ringfab_base::{SlotId, Slots};
use ringfab_memory::Buffer;
use ringfab_reactor::{
    Allocate, Completion, FileId, FileInfo, FileOptions, FileRange, OnClose, Payload, Reactor,
};

use crate::device::{BlockDevice, OpenedFile};
use crate::operation::{Discarded, DiskProperties, Finished, Operation, Started, Tag};
use crate::zeroes::Zeroes;
use crate::{BlockError, DiskTokens, OpenError};

/// One core's handle of a file.
#[derive(Debug)]
pub(crate) struct FileDisk {
    file: FileId,
    info: FileInfo,
    read_only: bool,
    tokens: DiskTokens,
    zeroes: Zeroes,
    in_flight: Slots<InFlight>,
    rare: Box<RareOperations>,
    /// How this core opens it anew, when it has opened it itself.
    source: Option<(PathBuf, FileOptions)>,
}

/// What [`Stage`] names: of these operations there are few at once.
#[derive(Debug, Default)]
struct RareOperations {
    unchecked: Slots<Operation>,
    composites: Slots<Composite>,
}

/// An operation in flight.
#[derive(Clone, Copy, Debug)]
struct InFlight {
    tag: Tag,
    stage: Stage,
}

/// What of an operation is in flight.
#[derive(Clone, Copy, Debug)]
enum Stage {
    /// All of it.
    Whole,
    /// The file is asked whether it still reaches where the operation ends: one that was cut off and then written to
    /// at its end would look whole, with zeroes that nobody wrote.
    CheckEnd(SlotId),
    /// A step of several.
    Step(SlotId),
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

impl Composite {
    /// Begins with the whole range: `length` bytes from `offset` on.
    fn new(offset: u64, length: u64, discard: bool, durable: bool) -> Self {
        Self { step: Step::Allocate, position: offset, end: offset + length, discard, durable }
    }

    /// The step that follows one that has ended so; none when that was the last.
    fn next(&mut self, result: &io::Result<u32>, block_device: bool) -> Result<Option<Step>, BlockError> {
        let sync = self.durable.then_some(Step::Sync);
        match (self.step, result) {
            (Step::Allocate, Ok(_)) => Ok(sync),
            (Step::Sync, Ok(_)) => Ok(None),
            // A block device that cannot unmap may ignore a discard; everything else must become zeroes.
            (Step::Allocate, Err(error)) if unsupported(error) => {
                Ok((!(self.discard && block_device)).then_some(Step::WriteZeroes))
            }
            (Step::WriteZeroes, Ok(written)) => {
                self.position += u64::from(*written);
                Ok(if self.position < self.end { Some(Step::WriteZeroes) } else { sync })
            }
            // Whatever a sync fails with, what was written before it may be lost.
            (Step::Sync, Err(error)) if error.raw_os_error() != Some(libc::ECANCELED) => {
                Err(BlockError::Write)
            }
            (_, Err(error)) => Err(map_error(error, BlockError::Write)),
        }
    }
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
        let file = reactor.files().adopt(Arc::clone(&opened.file), &opened.info)?;
        Ok(Self::new(file, opened.info, opened.read_only, zeroes, tokens))
    }

    fn new(file: FileId, info: FileInfo, read_only: bool, zeroes: &Zeroes, tokens: DiskTokens) -> Self {
        Self {
            file,
            info,
            read_only,
            tokens,
            zeroes: zeroes.clone(),
            in_flight: Slots::new(),
            rare: Box::default(),
            source: None,
        }
    }

    /// Operations of several steps go on with the new file.
    fn exchange(&mut self, file: FileId, info: FileInfo, reactor: &mut Reactor) {
        let old = std::mem::replace(&mut self.file, file);
        self.info = info;
        reactor.files().close(old, OnClose::Finish);
    }

    /// Whether a change would put the end of a file that was cut off back to where it was.
    fn reaches_end(&self, operation: &Operation) -> bool {
        !self.info.block_device
            && operation.range().is_some_and(|(offset, length)| offset + length == self.info.bytes)
    }

    #[inline]
    fn read(&mut self, reactor: &mut Reactor, id: SlotId, offset: u64, buffer: Buffer) {
        let length = buffer.len();
        reactor.files().read(
            self.file,
            FileRange { offset, at: 0, length },
            buffer,
            self.tokens.token(KIND, id),
        );
    }

    /// Starts the operation of a slot, which is no read. One of several steps replaces the slot's stage.
    #[inline(always)]
    fn submit(&mut self, reactor: &mut Reactor, id: SlotId, operation: Operation) {
        let token = self.tokens.token(KIND, id);
        match operation {
            Operation::Read { .. } => unreachable!("reads are started by themselves"),
            Operation::CompareAndWrite { .. } => unreachable!("a file cannot do that, and says so"),
            Operation::Write { offset, source, at, length, durable } => {
                reactor.files().write(
                    self.file,
                    FileRange { offset, at: at as usize, length: length as usize },
                    source,
                    durable,
                    token,
                );
            }
            Operation::Flush => reactor.files().sync(self.file, token),
            Operation::WriteZeroes { offset, length, deallocate, durable } => {
                let what = if deallocate { Allocate::PunchHole } else { Allocate::ZeroRange };
                self.start_composite(reactor, id, what, Composite::new(offset, length, false, durable));
            }
            Operation::Discard { offset, length } => {
                let composite = Composite::new(offset, length, true, false);
                self.start_composite(reactor, id, Allocate::PunchHole, composite);
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
            Payload::SharedBuffer(source) => (write_result(completion.result), None, Some(source)),
            _ => (write_result(completion.result), None, None),
        };
        Finished { tag, result, errno, value: 0, buffer, source }
    }

    /// Asks the file how long it is, before an operation that ends there.
    #[cold]
    fn check_end(&mut self, reactor: &mut Reactor, id: SlotId, operation: Operation) {
        let unchecked = self.rare.unchecked.insert(operation);
        self.set_stage(id, Stage::CheckEnd(unchecked));
        reactor.files().bytes(self.file, self.tokens.token(KIND, id));
    }

    /// The file has said how long it is.
    #[cold]
    fn end_checked(
        &mut self,
        reactor: &mut Reactor,
        id: SlotId,
        operation: SlotId,
        completion: Completion,
    ) -> Option<Finished> {
        let operation = self.rare.unchecked.remove(operation)?;
        let errno = errno_of(&completion);
        // What it had when it was asked: the disk may have grown since then.
        let reaches = |bytes| operation.range().is_some_and(|(offset, length)| bytes >= offset + length);
        let error = match (completion.result, completion.payload) {
            (Ok(_), Payload::FileBytes(bytes)) if reaches(bytes) => {
                self.set_stage(id, Stage::Whole);
                self.submit_checked(reactor, id, operation);
                return None;
            }
            (Ok(_), _) => BlockError::Shrunk,
            (Err(error), _) => map_error(&error, BlockError::Write),
        };
        let InFlight { tag, .. } = self.in_flight.remove(id)?;
        Some(Finished { errno, ..operation.finish(tag, Err(error)) })
    }

    /// Apart, so that the only other place that submits has the code of it.
    #[inline(never)]
    fn submit_checked(&mut self, reactor: &mut Reactor, id: SlotId, operation: Operation) {
        self.submit(reactor, id, operation);
    }

    fn set_stage(&mut self, id: SlotId, stage: Stage) {
        if let Some(in_flight) = self.in_flight.get_mut(id) {
            in_flight.stage = stage;
        }
    }

    #[cold]
    fn start_composite(&mut self, reactor: &mut Reactor, id: SlotId, what: Allocate, composite: Composite) {
        let Composite { position, end, .. } = composite;
        let composite = self.rare.composites.insert(composite);
        self.set_stage(id, Stage::Step(composite));
        let token = self.tokens.token(KIND, id);
        reactor.files().allocate(self.file, what, position, end - position, token);
    }

    /// One step of a composite has ended: starts the next, or finishes it.
    #[cold]
    fn advance(
        &mut self,
        reactor: &mut Reactor,
        id: SlotId,
        step: SlotId,
        completion: &Completion,
    ) -> Option<Finished> {
        let block_device = self.info.block_device;
        let composite = self.rare.composites.get_mut(step)?;
        let next = composite.next(&completion.result, block_device);
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
        self.rare.composites.remove(step);
        let InFlight { tag, .. } = self.in_flight.remove(id)?;
        let errno = result.err().and_then(|_| errno_of(completion));
        Some(Finished { tag, result, errno, value: 0, buffer: None, source: None })
    }

    fn run_step(&self, reactor: &mut Reactor, id: SlotId, composite: Composite) {
        let Composite { step, position, end, .. } = composite;
        let token = self.tokens.token(KIND, id);
        if step == Step::Sync {
            reactor.files().sync(self.file, token);
            return;
        }
        let length = self.zeroes.0.len().min(usize::try_from(end - position).unwrap_or(usize::MAX));
        reactor.files().write(
            self.file,
            FileRange { offset: position, at: 0, length },
            self.zeroes.0.clone(),
            false,
            token,
        );
    }
}

impl BlockDevice for FileDisk {
    fn properties(&self) -> DiskProperties {
        DiskProperties {
            offset_align: self.info.offset_align,
            memory_align: self.info.memory_align,
            volatile_cache: true,
            read_only: self.read_only,
            // A block device may refuse to unmap, and then a discard does nothing.
            discarded: if self.info.block_device { Discarded::ZeroesOrBefore } else { Discarded::Zeroes },
            write_zeroes_deallocates: true,
            preferred: self.info.preferred,
            ..DiskProperties::new(self.info.bytes)
        }
    }

    #[inline]
    fn start(&mut self, reactor: &mut Reactor, operation: Operation, tag: Tag) -> Started {
        let in_flight = InFlight { tag, stage: Stage::Whole };
        let Ok(id) = self.in_flight.try_insert(in_flight, DiskTokens::SLOTS) else {
            return Started::Finished(operation.finish(tag, Err(BlockError::Busy)));
        };
        match operation {
            Operation::Read { offset, buffer, .. } => self.read(reactor, id, offset, buffer),
            operation if self.reaches_end(&operation) => self.check_end(reactor, id, operation),
            operation => self.submit(reactor, id, operation),
        }
        Started::Pending
    }

    #[inline]
    fn on_completion(&mut self, reactor: &mut Reactor, completion: Completion) -> Option<Finished> {
        let (slot, generation) = DiskTokens::slot_of(completion.token);
        let (id, &InFlight { tag, stage }) = self.in_flight.find(slot, generation)?;
        match stage {
            Stage::Whole => {
                self.in_flight.remove(id);
                Some(self.finish(tag, completion))
            }
            Stage::CheckEnd(operation) => self.end_checked(reactor, id, operation, completion),
            Stage::Step(step) => self.advance(reactor, id, step, &completion),
        }
    }

    fn close(&mut self, reactor: &mut Reactor) {
        reactor.files().close(self.file, OnClose::Cancel);
    }

    fn resize(&mut self, bytes: u64) {
        self.info.bytes = bytes;
    }

    fn replace(&mut self, opened: &OpenedFile, reactor: &mut Reactor) -> io::Result<()> {
        let file = reactor.files().adopt(Arc::clone(&opened.file), &opened.info)?;
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
    let opened = reactor.files().open(path, options);
    let (file, info) = opened.map_err(|source| OpenError::Open { path: path.to_owned(), source })?;
    if info.bytes == 0 {
        reactor.files().close(file, OnClose::Cancel);
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

fn errno_of(completion: &Completion) -> Option<NonZeroI32> {
    completion.result.as_ref().err().and_then(io::Error::raw_os_error).and_then(NonZeroI32::new)
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
        Some(libc::ENODEV | libc::ENXIO) => BlockError::Removed,
        Some(libc::ECANCELED) => BlockError::Cancelled,
        _ => otherwise,
    }
}
