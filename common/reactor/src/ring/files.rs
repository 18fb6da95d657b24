//! Reading, writing, synchronising and allocating.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use ringfab_memory::{Buffer, SharedBuffer};

use super::descriptors::{Kind, Owner, Role};
use super::open::open;
use super::operations::{OperationKind, STREAM, Transfer};
use super::{Progress, Ring};
use crate::{Allocate, FileId, FileInfo, FileOptions, Payload, Token};

impl Ring {
    pub(crate) fn open_file(&mut self, path: &Path, options: FileOptions) -> io::Result<(FileId, FileInfo)> {
        let (file, info) = open(path, options)?;
        let id = self.insert_file(OwnedFd::from(file), disk(&info))?;
        Ok((id, info))
    }

    pub(crate) fn adopt_file(&mut self, file: Arc<File>, info: &FileInfo) -> io::Result<FileId> {
        self.insert_file(file, disk(info))
    }

    pub(crate) fn attach_file(&mut self, file: File) -> io::Result<FileId> {
        self.insert_file(OwnedFd::from(file), Role::File { offset_align: 1, stream: true, remote: false })
    }

    fn insert_file(&mut self, file: impl Into<Owner>, role: Role) -> io::Result<FileId> {
        let id = self.descriptors.insert(self.queues.submitter(), file, role)?;
        Ok(FileId(id))
    }

    pub(crate) fn close_file(&mut self, file: FileId) {
        if let Some(index) = self.find_file(file) {
            self.close(index);
        }
    }

    pub(crate) fn retire_file(&mut self, file: FileId) {
        if let Some(index) = self.find_file(file) {
            // What is in flight ends by itself, and the last of it lets go of the file.
            let _in_flight = self.descriptors.close(self.queues.submitter(), index);
        }
    }

    pub(crate) fn file_bytes(&mut self, file: FileId, token: Token) {
        let found = self.find_file(file);
        match found.and_then(|index| Some((index, self.descriptors.fd(index)?.as_raw_fd()))) {
            Some((index, fd)) => self.start(token, index, OperationKind::size(fd)),
            None => self.refuse(token, libc::ECANCELED, Payload::None),
        }
    }

    pub(crate) fn read_file(
        &mut self,
        file: FileId,
        offset: u64,
        buffer: Buffer,
        at: usize,
        length: usize,
        token: Token,
    ) {
        let pointer = buffer.io_pointer(at, length);
        let Some(index) = self.find_file(file) else {
            return self.refuse(token, libc::ECANCELED, Payload::Buffer(buffer));
        };
        let registration = self.buffer_slot(buffer.registration(), pointer, length);
        let (offset, threaded) = self.manner(index, offset);
        let held = OperationKind::Read(Transfer {
            memory: buffer,
            offset,
            at,
            length: length_u32(length),
            done: 0,
            registration,
            threaded,
            polling: false,
        });
        self.start(token, index, held);
    }

    #[expect(clippy::too_many_arguments, reason = "a write has this many parts")]
    pub(crate) fn write_file(
        &mut self,
        file: FileId,
        offset: u64,
        source: SharedBuffer,
        at: usize,
        length: usize,
        durable: bool,
        token: Token,
    ) {
        let pointer = source.io_pointer(at, length);
        let Some(index) = self.find_file(file) else {
            return self.refuse(token, libc::ECANCELED, Payload::SharedBuffer(source));
        };
        let registration = self.buffer_slot(source.registration(), pointer, length);
        let (offset, threaded) = self.manner(index, offset);
        let transfer = Transfer {
            memory: source,
            offset,
            at,
            length: length_u32(length),
            done: 0,
            registration,
            threaded,
            polling: false,
        };
        self.start(token, index, OperationKind::Write { transfer, durable });
    }

    pub(crate) fn sync_file(&mut self, file: FileId, token: Token) {
        match self.find_file(file) {
            Some(index) => self.start(token, index, OperationKind::Sync),
            None => self.refuse(token, libc::ECANCELED, Payload::None),
        }
    }

    pub(crate) fn allocate_file(
        &mut self,
        file: FileId,
        what: Allocate,
        offset: u64,
        length: u64,
        token: Token,
    ) {
        let mode = libc::FALLOC_FL_KEEP_SIZE
            | match what {
                Allocate::PunchHole => libc::FALLOC_FL_PUNCH_HOLE,
                Allocate::ZeroRange => libc::FALLOC_FL_ZERO_RANGE,
            };
        match self.find_file(file) {
            Some(index) => self.start(token, index, OperationKind::Allocate { mode, offset, length }),
            None => self.refuse(token, libc::ECANCELED, Payload::None),
        }
    }

    /// At which offset to read or write a file, and whether a thread of the kernel is to do it. An adopted pipe or
    /// device has no offsets, whatever the caller says.
    #[inline]
    fn manner(&mut self, index: u32, offset: u64) -> (u64, bool) {
        match self.descriptors.role_mut(index) {
            Some(Role::File { stream: true, .. }) => (STREAM, false),
            Some(Role::File { remote, .. }) => (offset, *remote),
            _ => (offset, false),
        }
    }

    #[inline]
    fn find_file(&self, file: FileId) -> Option<u32> {
        self.descriptors.find(Kind::File, file.0)
    }
}

fn length_u32(length: usize) -> u32 {
    u32::try_from(length).expect("a buffer is smaller than 4 GiB")
}

/// A read goes on until the range is full or the file ends. A stream gives what it has.
pub(super) fn read_progress(
    transfer: &mut Transfer<Buffer>,
    result: Result<u32, i32>,
    ending: bool,
    offset_align: impl Fn() -> u32,
) -> Progress {
    let taken = match poll_or_transfer(transfer, result, ending) {
        Ok(taken) => taken,
        Err(progress) => return progress,
    };
    transfer.done += taken;
    // Direct I/O can only stop between blocks where the file ends, and could not go on from there either.
    let at_end = taken == 0 || transfer.offset == STREAM || !transfer.done.is_multiple_of(offset_align());
    if transfer.done == transfer.length || at_end {
        return Progress::Done(Ok(transfer.done));
    }
    if ending { Progress::Done(Err(libc::ECANCELED)) } else { Progress::Continue }
}

/// A write goes on until everything was written; one that makes no progress is an error.
pub(super) fn write_progress(
    transfer: &mut Transfer<SharedBuffer>,
    result: Result<u32, i32>,
    ending: bool,
) -> Progress {
    let taken = match poll_or_transfer(transfer, result, ending) {
        Ok(taken) => taken,
        Err(progress) => return progress,
    };
    transfer.done += taken;
    if transfer.done == transfer.length {
        return Progress::Done(Ok(transfer.done));
    }
    match taken {
        0 => Progress::Done(Err(libc::EIO)),
        _ if ending => Progress::Done(Err(libc::ECANCELED)),
        _ => Progress::Continue,
    }
}

/// Bytes that were transferred now, or what else the result means: a descriptor that would block is polled first,
/// and when it is ready the transfer is tried again.
fn poll_or_transfer<M>(
    transfer: &mut Transfer<M>,
    result: Result<u32, i32>,
    ending: bool,
) -> Result<u32, Progress> {
    let polled = std::mem::take(&mut transfer.polling);
    match result {
        Err(libc::EAGAIN) if !ending => {
            transfer.polling = transfer.offset == STREAM;
            Err(Progress::Continue)
        }
        Err(errno) => Err(Progress::Done(Err(errno))),
        Ok(_) if polled && !ending => Err(Progress::Continue),
        Ok(_) if polled => Err(Progress::Done(Err(libc::ECANCELED))),
        Ok(taken) => Ok(taken),
    }
}

/// The role of a file or block device.
fn disk(info: &FileInfo) -> Role {
    Role::File { offset_align: info.offset_align, stream: false, remote: info.remote }
}
