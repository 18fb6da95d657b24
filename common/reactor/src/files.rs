//! The files and block devices of a reactor.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use ringfab_memory::{Buffer, SharedBuffer};

use crate::backend::{Backend, dispatch};
use crate::{Allocate, FileId, FileInfo, FileOptions, FileRange, OnClose, Token};

/// What a reactor does with files and block devices; see [`Reactor::files`](crate::Reactor::files).
#[derive(Debug)]
pub struct Files<'a>(pub(crate) &'a mut Backend);

impl Files<'_> {
    /// Opens a file or block device. This may block; it belongs to the start and to the control plane.
    ///
    /// # Errors
    /// The kernel's refusal; `EINVAL` for direct I/O that the file system does not do.
    pub fn open(&mut self, path: &Path, options: FileOptions) -> io::Result<(FileId, FileInfo)> {
        dispatch!(self.0, part files, open(path, options))
    }

    /// Adopts a file or block device that was opened elsewhere, with what [`inspect_file`](crate::inspect_file) said
    /// of it. The reactor lets go of it when it is closed; who else has it decides when the descriptor itself is
    /// closed.
    ///
    /// # Errors
    /// When the descriptor table is full, or in a simulation.
    pub fn adopt(&mut self, file: Arc<File>, info: &FileInfo) -> io::Result<FileId> {
        match self.0 {
            Backend::Ring(ring) => ring.files().adopt(file, info),
            Backend::Simulated(_) => Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)),
        }
    }

    /// Takes no more operations on a file, and closes it after those in flight.
    pub fn close(&mut self, file: FileId, in_flight: OnClose) {
        dispatch!(self.0, part files, close(file, in_flight));
    }

    /// Asks for the size of a file; completes with [`Payload::FileBytes`](crate::Payload::FileBytes).
    pub fn bytes(&mut self, file: FileId, token: Token) {
        dispatch!(self.0, part files, bytes(file, token));
    }

    /// Reads a range of the file into `buffer`; completes with the buffer. Fewer bytes than asked for mean the end of
    /// the file.
    #[inline]
    pub fn read(&mut self, file: FileId, range: FileRange, buffer: Buffer, token: Token) {
        dispatch!(self.0, part files, read(file, range, buffer, token));
    }

    /// Writes a range of the file from `source`; completes with the shared buffer. `durable` makes this write reach
    /// stable storage before it completes.
    #[inline]
    pub fn write(
        &mut self,
        file: FileId,
        range: FileRange,
        source: SharedBuffer,
        durable: bool,
        token: Token,
    ) {
        dispatch!(self.0, part files, write(file, range, source, durable, token));
    }

    /// Makes every write that completed before reach stable storage.
    pub fn sync(&mut self, file: FileId, token: Token) {
        dispatch!(self.0, part files, sync(file, token));
    }

    /// Deallocates or zeroes a range of the file.
    pub fn allocate(&mut self, file: FileId, what: Allocate, offset: u64, length: u64, token: Token) {
        dispatch!(self.0, part files, allocate(file, what, offset, length, token));
    }
}
