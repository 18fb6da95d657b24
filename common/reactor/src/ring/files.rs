//! Reading, writing, synchronising and allocating.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use ringfab_memory::{Buffer, SharedBuffer};

use super::Ring;
use super::buffers::Buffers;
use super::descriptors::{Kind, Role};
use super::in_flight::InFlight;
use super::open::open;
use super::operations::{OperationKind, Transfer};
use crate::{Allocate, FileId, FileInfo, FileOptions, FileRange, OnClose, Payload, Token};

/// The part of a ring that is about files.
pub(crate) struct RingFiles<'a> {
    in_flight: &'a mut InFlight,
    buffers: &'a Buffers,
}

impl Ring {
    #[inline]
    pub(crate) fn files(&mut self) -> RingFiles<'_> {
        RingFiles { in_flight: &mut self.in_flight, buffers: &self.buffers }
    }
}

impl RingFiles<'_> {
    pub(crate) fn open(&mut self, path: &Path, options: FileOptions) -> io::Result<(FileId, FileInfo)> {
        let (file, info) = open(path, options)?;
        let id = self.in_flight.add_descriptor(OwnedFd::from(file), disk(&info))?;
        Ok((FileId(id), info))
    }

    pub(crate) fn adopt(&mut self, file: Arc<File>, info: &FileInfo) -> io::Result<FileId> {
        Ok(FileId(self.in_flight.add_descriptor(file, disk(info))?))
    }

    pub(crate) fn close(&mut self, file: FileId, in_flight: OnClose) {
        let Some(index) = self.in_flight.find_file(file) else { return };
        match in_flight {
            OnClose::Cancel => self.in_flight.close(index),
            // The last operation lets go of the file.
            OnClose::Finish => _ = self.in_flight.descriptors.close(self.in_flight.queues.submitter(), index),
        }
    }

    pub(crate) fn bytes(&mut self, file: FileId, token: Token) {
        let found = self.in_flight.find_file(file);
        match found.and_then(|index| Some((index, self.in_flight.descriptors.fd(index)?.as_raw_fd()))) {
            Some((index, fd)) => self.in_flight.start(token, index, OperationKind::size(fd)),
            None => self.in_flight.refuse(token, libc::ECANCELED, Payload::None),
        }
    }

    #[inline]
    pub(crate) fn read(&mut self, file: FileId, range: FileRange, buffer: Buffer, token: Token) {
        let FileRange { offset, at, length } = range;
        let pointer = buffer.io_pointer(at, length);
        let Some(index) = self.in_flight.find_file(file) else {
            return self.in_flight.refuse(token, libc::ECANCELED, Payload::Buffer(buffer));
        };
        let registration = self.buffers.slot(buffer.registration(), pointer, length);
        let threaded = self.in_flight.is_remote(index);
        let held = OperationKind::Read(Transfer {
            memory: buffer,
            offset,
            at,
            length: length_u32(length),
            done: 0,
            registration,
            threaded,
        });
        self.in_flight.start(token, index, held);
    }

    #[inline]
    pub(crate) fn write(
        &mut self,
        file: FileId,
        range: FileRange,
        source: SharedBuffer,
        durable: bool,
        token: Token,
    ) {
        let FileRange { offset, at, length } = range;
        let pointer = source.io_pointer(at, length);
        let Some(index) = self.in_flight.find_file(file) else {
            return self.in_flight.refuse(token, libc::ECANCELED, Payload::SharedBuffer(source));
        };
        let registration = self.buffers.slot(source.registration(), pointer, length);
        let threaded = self.in_flight.is_remote(index);
        let transfer = Transfer {
            memory: source,
            offset,
            at,
            length: length_u32(length),
            done: 0,
            registration,
            threaded,
        };
        self.in_flight.start(token, index, OperationKind::Write { transfer, durable });
    }

    pub(crate) fn sync(&mut self, file: FileId, token: Token) {
        match self.in_flight.find_file(file) {
            Some(index) => self.in_flight.start(token, index, OperationKind::Sync),
            None => self.in_flight.refuse(token, libc::ECANCELED, Payload::None),
        }
    }

    pub(crate) fn allocate(&mut self, file: FileId, what: Allocate, offset: u64, length: u64, token: Token) {
        let mode = libc::FALLOC_FL_KEEP_SIZE
            | match what {
                Allocate::PunchHole => libc::FALLOC_FL_PUNCH_HOLE,
                Allocate::ZeroRange => libc::FALLOC_FL_ZERO_RANGE,
            };
        match self.in_flight.find_file(file) {
            Some(index) => {
                self.in_flight.start(token, index, OperationKind::Allocate { mode, offset, length });
            }
            None => self.in_flight.refuse(token, libc::ECANCELED, Payload::None),
        }
    }
}

impl InFlight {
    /// Whether a thread of the kernel is to read or write a file.
    #[inline]
    fn is_remote(&mut self, index: u32) -> bool {
        matches!(self.descriptors.role_mut(index), Some(Role::File { remote: true, .. }))
    }

    #[inline]
    fn find_file(&self, file: FileId) -> Option<u32> {
        self.descriptors.find(Kind::File, file.0)
    }
}

fn length_u32(length: usize) -> u32 {
    u32::try_from(length).expect("a buffer is smaller than 4 GiB")
}

/// The role of a file or block device.
fn disk(info: &FileInfo) -> Role {
    Role::File { offset_align: info.offset_align, remote: info.remote }
}
