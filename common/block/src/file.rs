//! A regular file or a block device, through the core's ring.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::Arc;

use ringfab_reactor::{Allocate, Completion, FileId, FileInfo, FileOptions, Payload, Reactor};

use crate::disk::{DiskProperties, Finished, OpenedFile, Operation, Started, Tag};
use crate::null::Zeroes;
use crate::{BlockError, OpenError};

/// One core's handle of a file.
#[derive(Debug)]
pub(crate) struct FileDisk {
    file: FileId,
    info: FileInfo,
    read_only: bool,
    owner: u8,
    zeroes: Zeroes,
    /// Operations of more than one step. They are rare, and there are few at once.
    composites: VecDeque<Composite>,
    /// Writes up to the very end, while the file is asked whether it still reaches there: one that was cut off and then written
    /// to at its end would look whole, with zeroes that nobody wrote.
    at_end: Vec<(Tag, Operation)>,
}

/// An operation of several steps, of which one is in flight.
#[derive(Debug)]
struct Composite {
    tag: Tag,
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

impl FileDisk {
    pub(crate) fn open(
        path: &Path,
        direct: bool,
        read_only: bool,
        reactor: &mut Reactor,
        zeroes: &Zeroes,
        owner: u8,
    ) -> Result<Self, OpenError> {
        let (file, info) = open(path, FileOptions { direct, read_only }, reactor)?;
        Ok(Self::new(file, info, read_only, owner, zeroes))
    }

    pub(crate) fn adopt(
        opened: &OpenedFile,
        reactor: &mut Reactor,
        zeroes: &Zeroes,
        owner: u8,
    ) -> io::Result<Self> {
        let file = reactor.adopt_file(Arc::clone(&opened.file), &opened.info)?;
        Ok(Self::new(file, opened.info, opened.read_only, owner, zeroes))
    }

    fn new(file: FileId, info: FileInfo, read_only: bool, owner: u8, zeroes: &Zeroes) -> Self {
        let (composites, at_end) = (VecDeque::new(), Vec::new());
        Self { file, info, read_only, owner, zeroes: zeroes.clone(), composites, at_end }
    }

    pub(crate) fn replace(&mut self, opened: &OpenedFile, reactor: &mut Reactor) -> io::Result<()> {
        let file = reactor.adopt_file(Arc::clone(&opened.file), &opened.info)?;
        self.exchange(file, opened.info, reactor);
        Ok(())
    }

    pub(crate) fn reopen(
        &mut self,
        path: &Path,
        direct: bool,
        read_only: bool,
        reactor: &mut Reactor,
    ) -> Result<(), OpenError> {
        let (file, info) = open(path, FileOptions { direct, read_only }, reactor)?;
        self.exchange(file, info, reactor);
        Ok(())
    }

    /// Operations of several steps go on with the new file.
    fn exchange(&mut self, file: FileId, info: FileInfo, reactor: &mut Reactor) {
        let old = std::mem::replace(&mut self.file, file);
        self.info = info;
        reactor.retire_file(old);
    }

    pub(crate) fn properties(&self) -> DiskProperties {
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

    /// Starts an operation whose range and rights were checked.
    pub(crate) fn start(&mut self, reactor: &mut Reactor, operation: Operation, tag: Tag) -> Started {
        if self.reaches_end(&operation) {
            self.at_end.push((tag, operation));
            reactor.file_bytes(self.file, tag.token(self.owner));
            return Started::Pending;
        }
        self.go(reactor, operation, tag);
        Started::Pending
    }

    /// Whether it would put the end of a file that was cut off back to where it was.
    fn reaches_end(&self, operation: &Operation) -> bool {
        !self.info.block_device
            && operation.writes()
            && operation.range().is_some_and(|(offset, length)| offset + length == self.info.bytes)
    }

    fn go(&mut self, reactor: &mut Reactor, operation: Operation, tag: Tag) {
        let token = tag.token(self.owner);
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
                self.start_composite(reactor, tag, what, (offset, length), false, durable);
            }
            Operation::Discard { offset, length } => {
                self.start_composite(reactor, tag, Allocate::PunchHole, (offset, length), true, false);
            }
        }
    }

    pub(crate) fn on_completion(
        &mut self,
        reactor: &mut Reactor,
        completion: Completion,
    ) -> Option<Finished> {
        let tag = Tag::of(completion.token);
        if let Some(index) = self.composites.iter().position(|composite| composite.tag == tag) {
            return self.advance(reactor, index, completion);
        }
        if let Some(index) = self.at_end.iter().position(|(waiting, _)| *waiting == tag) {
            let (_, operation) = self.at_end.swap_remove(index);
            return self.looked(reactor, operation, tag, completion);
        }
        let errno = completion.result.as_ref().err().and_then(io::Error::raw_os_error);
        let (result, buffer, source) = match completion.payload {
            Payload::Buffer(buffer) => {
                let short = if self.info.block_device { BlockError::Read } else { BlockError::Shrunk };
                (read_result(completion.result, buffer.len(), short), Some(buffer), None)
            }
            Payload::Lease(source) => (write_result(completion.result), None, Some(source)),
            _ => (write_result(completion.result), None, None),
        };
        Some(Finished { tag, result, errno, buffer, source })
    }

    /// The file has said how long it is.
    fn looked(
        &mut self,
        reactor: &mut Reactor,
        operation: Operation,
        tag: Tag,
        completion: Completion,
    ) -> Option<Finished> {
        let errno = completion.result.as_ref().err().and_then(io::Error::raw_os_error);
        let error = match (completion.result, completion.payload) {
            (Ok(_), Payload::FileBytes(bytes)) if bytes >= self.info.bytes => {
                self.go(reactor, operation, tag);
                return None;
            }
            (Ok(_), _) => BlockError::Shrunk,
            (Err(error), _) => map_error(&error, BlockError::Write),
        };
        Some(Finished { errno, ..operation.finish(tag, Err(error)) })
    }

    pub(crate) fn resize(&mut self, bytes: u64) {
        self.info.bytes = bytes;
    }

    pub(crate) fn close(self, reactor: &mut Reactor) {
        reactor.close_file(self.file);
    }

    fn start_composite(
        &mut self,
        reactor: &mut Reactor,
        tag: Tag,
        what: Allocate,
        (offset, length): (u64, u64),
        discard: bool,
        durable: bool,
    ) {
        let end = offset + length;
        let composite = Composite { tag, step: Step::Allocate, position: offset, end, discard, durable };
        self.composites.push_back(composite);
        reactor.allocate_file(self.file, what, offset, length, tag.token(self.owner));
    }

    /// One step of a composite has ended: starts the next, or finishes it.
    fn advance(&mut self, reactor: &mut Reactor, index: usize, completion: Completion) -> Option<Finished> {
        let block_device = self.info.block_device;
        let composite = &mut self.composites[index];
        let next = match (composite.step, completion.result) {
            (Step::Allocate, Ok(_)) if composite.durable => Ok(Some(Step::Sync)),
            (Step::Allocate | Step::Sync, Ok(_)) => Ok(None),
            (Step::Allocate, Err(error)) if unsupported(&error) => {
                // A block device that cannot unmap may ignore a discard; everything else must become zeroes.
                Ok((!(composite.discard && block_device)).then_some(Step::WriteZeroes))
            }
            (Step::WriteZeroes, Ok(written)) => {
                composite.position += u64::from(written);
                let done = composite.position >= composite.end;
                Ok(if !done { Some(Step::WriteZeroes) } else { composite.durable.then_some(Step::Sync) })
            }
            // Whatever a sync fails with, what was written before it may be lost.
            (Step::Sync, Err(error)) if error.raw_os_error() != Some(libc::ECANCELED) => {
                Err((BlockError::Write, error.raw_os_error()))
            }
            (_, Err(error)) => Err((map_error(&error, BlockError::Write), error.raw_os_error())),
        };
        match next {
            Ok(Some(step)) => {
                composite.step = step;
                self.run_step(reactor, index);
                None
            }
            Ok(None) => Some(self.end_composite(index, Ok(()), None)),
            Err((error, errno)) => Some(self.end_composite(index, Err(error), errno)),
        }
    }

    fn run_step(&mut self, reactor: &mut Reactor, index: usize) {
        let Composite { tag, step, position, end, .. } = self.composites[index];
        let token = tag.token(self.owner);
        if step == Step::Sync {
            reactor.sync_file(self.file, token);
            return;
        }
        let length = self.zeroes.0.len().min(usize::try_from(end - position).unwrap_or(usize::MAX));
        reactor.write_file(self.file, position, self.zeroes.0.clone(), 0, length, false, token);
    }

    fn end_composite(
        &mut self,
        index: usize,
        result: Result<(), BlockError>,
        errno: Option<i32>,
    ) -> Finished {
        let tag = self.composites[index].tag;
        self.composites.swap_remove_back(index);
        Finished { tag, result, errno, buffer: None, source: None }
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
