//! What stands behind a disk, and one core's handle of it.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use ringfab_memory::{BorrowedPages, Pool, SharedBuffer};
use ringfab_reactor::{Completion, FileOptions, Reactor};

use crate::device::{BlockDevice, DriverHandle, OpenedFile};
use crate::faults::{Faults, FaultyDevice};
use crate::file::FileDisk;
use crate::memory::{Memory, MemoryDisk};
use crate::null::NullDisk;
use crate::operation::{DiskProperties, Finished, Operation, Started, Tag};
use crate::pace::{Pace, PacedDevice};
use crate::zeroes::Zeroes;
use crate::{BlockError, DiskTokens, OpenError};

/// What stands behind a disk. The same backing is opened once per core.
#[derive(Clone, Debug)]
pub enum Backing {
    /// A regular file or a block device.
    File {
        /// Where it is.
        path: PathBuf,
        /// Bypass the page cache.
        direct: bool,
        /// Refuse writes.
        read_only: bool,
    },
    /// Memory of this process; all cores share it.
    Memory(Memory),
    /// Reads give zeroes and writes are forgotten.
    Null {
        /// Size in bytes.
        bytes: u64,
    },
    /// A device that this crate does not know.
    Device(DriverHandle),
    /// Another backing that fails now and then, to test what stands above it.
    Faulty {
        /// What works.
        inner: Box<Backing>,
        /// How often it does not.
        faults: Faults,
    },
    /// Another backing that is slow, to test what stands above it.
    Paced {
        /// What is fast.
        inner: Box<Backing>,
        /// How slow it is.
        pace: Pace,
    },
}

impl Backing {
    /// The driver of a device, also behind wrappers.
    pub fn driver(&self) -> Option<&DriverHandle> {
        match self {
            Self::Device(driver) => Some(driver),
            Self::Faulty { inner, .. } | Self::Paced { inner, .. } => inner.driver(),
            Self::File { .. } | Self::Memory(_) | Self::Null { .. } => None,
        }
    }
}

/// What all disks of a core share.
#[derive(Clone, Debug)]
pub struct Shared {
    /// What a null disk shows and what zeroing writes where it must.
    pub(crate) zeroes: Zeroes,
    pub(crate) borrowed: BorrowedPages,
}

impl Shared {
    /// With zeroes from a pool: its largest buffer, but no more than 128 KiB. `None` when none is left.
    pub fn new(pool: &Pool) -> Option<Self> {
        Some(Self { zeroes: Zeroes::new(pool)?, borrowed: BorrowedPages::default() })
    }

    /// What disks in memory have lent. It is to be settled before the core waits for anything.
    pub fn borrowed_pages(&self) -> &BorrowedPages {
        &self.borrowed
    }
}

/// One core's handle of a disk. It holds every operation to the [contract](BlockDevice) before the device sees it.
#[derive(Debug)]
pub struct Disk {
    kind: Kind,
}

/// The devices of this crate are known by name, so that no call of theirs is an indirect one. The tag is a byte of
/// its own, since it is read for every command.
#[derive(Debug)]
#[repr(u8)]
enum Kind {
    File(FileDisk),
    Memory(MemoryDisk),
    Null(NullDisk),
    Other(Box<dyn BlockDevice>),
}

/// Calls the same method of whichever device there is.
macro_rules! dispatch {
    ($self:ident.$method:ident($($argument:expr),*)) => {
        match &$self.kind {
            Kind::File(device) => device.$method($($argument),*),
            Kind::Memory(device) => device.$method($($argument),*),
            Kind::Null(device) => device.$method($($argument),*),
            Kind::Other(device) => device.$method($($argument),*),
        }
    };
    (mut $self:ident.$method:ident($($argument:expr),*)) => {
        match &mut $self.kind {
            Kind::File(device) => device.$method($($argument),*),
            Kind::Memory(device) => device.$method($($argument),*),
            Kind::Null(device) => device.$method($($argument),*),
            Kind::Other(device) => device.$method($($argument),*),
        }
    };
}

impl Kind {
    fn open(
        backing: &Backing,
        reactor: &mut Reactor,
        shared: &Shared,
        tokens: DiskTokens,
    ) -> Result<Self, OpenError> {
        Ok(match backing {
            Backing::File { path, direct, read_only } => {
                let options = FileOptions { direct: *direct, read_only: *read_only };
                Self::File(FileDisk::open(path, options, reactor, &shared.zeroes, tokens)?)
            }
            Backing::Memory(memory) => Self::Memory(MemoryDisk::new(Arc::clone(memory), &shared.borrowed)),
            Backing::Null { bytes } => Self::Null(NullDisk::new(*bytes, &shared.zeroes)),
            Backing::Device(driver) => Self::Other(driver.open(reactor, tokens)?),
            Backing::Faulty { inner, faults } => {
                let inner = Disk::open(inner, reactor, shared, tokens)?;
                Self::Other(Box::new(FaultyDevice::new(Box::new(inner), *faults)))
            }
            Backing::Paced { inner, pace } => {
                let inner = Disk::open(inner, reactor, shared, tokens.inner())?;
                Self::Other(Box::new(PacedDevice::new(Box::new(inner), tokens, *pace)))
            }
        })
    }
}

impl Disk {
    /// Opens `backing` on the core of `reactor`. The reactor operations of the disk bear `tokens`; their completions
    /// go to [`Disk::on_completion`].
    ///
    /// # Errors
    /// [`OpenError`] says what could not be opened and why.
    pub fn open(
        backing: &Backing,
        reactor: &mut Reactor,
        shared: &Shared,
        tokens: DiskTokens,
    ) -> Result<Self, OpenError> {
        Ok(Self { kind: Kind::open(backing, reactor, shared, tokens)? })
    }

    /// Serves a file or device that was opened elsewhere, because opening it may take as long as its server likes.
    /// The file is given up when the disk is closed; who else has it decides when its descriptor is.
    ///
    /// # Errors
    /// When the core has no room for it.
    pub fn adopt(
        opened: &OpenedFile,
        reactor: &mut Reactor,
        shared: &Shared,
        tokens: DiskTokens,
    ) -> io::Result<Self> {
        let disk = FileDisk::adopt(opened, reactor, &shared.zeroes, tokens)?;
        Ok(Self { kind: Kind::File(disk) })
    }

    /// Continues with the same file opened anew. What is in flight ends on the old one.
    ///
    /// # Errors
    /// When the core has no room for it; the disk is as before then.
    pub fn replace(&mut self, opened: &OpenedFile, reactor: &mut Reactor) -> io::Result<()> {
        dispatch!(mut self.replace(opened, reactor))
    }

    /// The same for a disk whose backing this core opens itself.
    ///
    /// # Errors
    /// As [`Disk::open`]; the disk is as before then.
    pub fn reopen(&mut self, reactor: &mut Reactor) -> Result<(), OpenError> {
        dispatch!(mut self.reopen(reactor))
    }

    /// What it can do.
    pub fn properties(&self) -> DiskProperties {
        dispatch!(self.properties())
    }

    /// Bytes copied between buffers and a disk that is memory. Files have none: the kernel moves their bytes.
    pub fn copied_bytes(&self) -> u64 {
        dispatch!(self.copied_bytes())
    }

    /// The bytes of a range without any I/O, when the disk can hand them out (a null disk's zeroes).
    pub fn peek(&self, offset: u64, length: u32) -> Option<SharedBuffer> {
        match &self.kind {
            Kind::Null(disk) => disk.peek(offset, length),
            Kind::File(_) | Kind::Memory(_) | Kind::Other(_) => None,
        }
    }

    /// Has the processor fetch what an operation will touch first, where the disk is memory. Returns whether it does,
    /// which takes as long as one or two commands: who starts the operation a little later does not wait for it.
    #[inline]
    pub fn prefetch(&self, operation: &Operation) -> bool {
        match &self.kind {
            Kind::Memory(disk) => self.check(operation).is_ok() && disk.prefetch(operation),
            Kind::File(_) | Kind::Null(_) | Kind::Other(_) => false,
        }
    }

    /// Starts an operation. What cannot be done (out of range, misaligned, read only) is finished at once with
    /// its error.
    pub fn start(&mut self, reactor: &mut Reactor, operation: Operation, tag: Tag) -> Started {
        if let Err(error) = self.check(&operation) {
            return Started::Finished(operation.finish(tag, Err(error)));
        }
        dispatch!(mut self.start(reactor, operation, tag))
    }

    /// Takes a completion of the reactor with one of the disk's tokens. Returns an operation that has finished, if
    /// any has; [`Disk::next_finished`] has the others.
    pub fn on_completion(&mut self, reactor: &mut Reactor, completion: Completion) -> Option<Finished> {
        dispatch!(mut self.on_completion(reactor, completion))
    }

    /// Whether a completion can finish several operations, so that [`Disk::next_finished`] has to be asked.
    #[inline]
    pub fn finishes_several(&self) -> bool {
        matches!(self.kind, Kind::Other(_))
    }

    /// The next operation that the last completion has finished. Call it until there is none.
    #[inline]
    pub fn next_finished(&mut self, reactor: &mut Reactor) -> Option<Finished> {
        match &mut self.kind {
            Kind::File(_) | Kind::Memory(_) | Kind::Null(_) => None,
            Kind::Other(device) => device.next_finished(reactor),
        }
    }

    /// The file has grown or shrunk to `bytes`, as whoever manages it has found. Memory and null have a fixed size.
    pub fn resize(&mut self, bytes: u64) {
        dispatch!(mut self.resize(bytes));
    }

    /// Closes it. Operations in flight end first, with [`BlockError::Cancelled`] or their result, and nobody hears of
    /// them.
    pub fn close(mut self, reactor: &mut Reactor) {
        BlockDevice::close(&mut self, reactor);
    }

    fn check(&self, operation: &Operation) -> Result<(), BlockError> {
        let properties = match &self.kind {
            Kind::File(disk) => disk.properties(),
            Kind::Memory(disk) => disk.properties(),
            Kind::Null(disk) => disk.properties(),
            Kind::Other(device) => return check_other(&**device, operation),
        };
        check(&properties, operation)
    }
}

/// What of the contract can be checked before the device sees the operation.
#[inline(always)]
fn check(properties: &DiskProperties, operation: &Operation) -> Result<(), BlockError> {
    if operation.writes() && properties.read_only {
        return Err(BlockError::ReadOnly);
    }
    let (offset, length) = match operation {
        Operation::CompareAndWrite { length, .. } if *length > properties.compare_and_write_max => {
            return Err(BlockError::NotSupported);
        }
        _ => match operation.range() {
            Some(range) => range,
            None => return Ok(()),
        },
    };
    if offset.checked_add(length).is_none_or(|end| end > properties.bytes) {
        return Err(BlockError::OutOfRange);
    }
    let align = u64::from(properties.offset_align);
    if !offset.is_multiple_of(align) || !length.is_multiple_of(align) {
        return Err(BlockError::Misaligned);
    }
    Ok(())
}

/// Apart, because an answer that comes through memory would make all other disks read theirs from there.
#[inline(never)]
fn check_other(device: &dyn BlockDevice, operation: &Operation) -> Result<(), BlockError> {
    check(&device.properties(), operation)
}

/// Inside of a wrapper.
impl BlockDevice for Disk {
    fn properties(&self) -> DiskProperties {
        self.properties()
    }

    fn start(&mut self, reactor: &mut Reactor, operation: Operation, tag: Tag) -> Started {
        self.start(reactor, operation, tag)
    }

    fn on_completion(&mut self, reactor: &mut Reactor, completion: Completion) -> Option<Finished> {
        self.on_completion(reactor, completion)
    }

    fn next_finished(&mut self, reactor: &mut Reactor) -> Option<Finished> {
        self.next_finished(reactor)
    }

    fn close(&mut self, reactor: &mut Reactor) {
        dispatch!(mut self.close(reactor));
    }

    fn resize(&mut self, bytes: u64) {
        self.resize(bytes);
    }

    fn replace(&mut self, opened: &OpenedFile, reactor: &mut Reactor) -> io::Result<()> {
        self.replace(opened, reactor)
    }

    fn reopen(&mut self, reactor: &mut Reactor) -> Result<(), OpenError> {
        self.reopen(reactor)
    }

    fn copied_bytes(&self) -> u64 {
        self.copied_bytes()
    }
}
