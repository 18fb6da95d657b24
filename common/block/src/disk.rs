//! One core's handle of a disk.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use ringfab_memory::{Buffer, Lease, Loans, Pool, SharedMemory};
use ringfab_reactor::{Completion, FileInfo, Reactor, Token};

use crate::faults::{FaultInjector, Faults};
use crate::file::FileDisk;
use crate::memory::MemoryDisk;
use crate::null::{NullDisk, Zeroes};
use crate::{BlockError, OpenError};

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
    /// Another backing that fails now and then, to test what stands above it.
    Faulty {
        /// What works.
        inner: Box<Backing>,
        /// How often it does not.
        faults: Faults,
    },
}

/// The bytes of a memory disk.
pub type Memory = Arc<SharedMemory>;

/// What a disk can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskProperties {
    /// Size in bytes.
    pub bytes: u64,
    /// Granularity in bytes of offsets and lengths.
    pub offset_align: u32,
    /// Alignment in bytes of memory.
    pub memory_align: u32,
    /// Whether completed writes may be lost in a crash until a flush.
    pub volatile_cache: bool,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether a range reads as zeroes after [`Operation::Discard`]; else it may also read as before.
    pub discard_zeroes: bool,
}

/// Which request of the caller an operation belongs to; it comes back with the result.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tag {
    /// The caller's own.
    pub kind: u8,
    /// Generation of the caller's slot.
    pub generation: u16,
    /// The caller's slot.
    pub index: u32,
}

impl Tag {
    pub(crate) fn token(self, owner: u8) -> Token {
        Token::new(owner, self.kind, self.generation, self.index)
    }

    pub(crate) fn of(token: Token) -> Self {
        Self { kind: token.kind, generation: token.generation, index: token.index }
    }
}

/// What to do. Offsets and lengths are in bytes.
#[derive(Debug)]
pub enum Operation {
    /// Read at `offset` of the disk until `buffer` is full.
    Read {
        /// Position on the disk.
        offset: u64,
        /// Where the bytes go; given back.
        buffer: Buffer,
        /// Whether it may become a lease of bytes that a disk in memory [lends](Loans). Other disks fill it.
        lend: bool,
    },
    /// Write `length` bytes of `source` at `at` to `offset` of the disk.
    Write {
        /// Position on the disk.
        offset: u64,
        /// The bytes; given back.
        source: Lease,
        /// First byte in the lease.
        at: u32,
        /// How many.
        length: u32,
        /// Reach stable storage before completing (force unit access).
        durable: bool,
    },
    /// Make every write that completed before reach stable storage.
    Flush,
    /// Make a range read as zeroes.
    WriteZeroes {
        /// Position on the disk.
        offset: u64,
        /// How many bytes.
        length: u64,
        /// Whether the space may be freed.
        deallocate: bool,
        /// Reach stable storage before completing.
        durable: bool,
    },
    /// The range is not needed any more: see [`DiskProperties::discard_zeroes`].
    Discard {
        /// Position on the disk.
        offset: u64,
        /// How many bytes.
        length: u64,
    },
}

impl Operation {
    /// Whether it changes the disk.
    pub fn writes(&self) -> bool {
        !matches!(self, Self::Read { .. } | Self::Flush)
    }

    /// The range of the disk that it concerns: offset and length in bytes. A flush has none.
    pub fn range(&self) -> Option<(u64, u64)> {
        match self {
            Self::Read { offset, buffer, .. } => Some((*offset, buffer.len() as u64)),
            Self::Write { offset, length, .. } => Some((*offset, u64::from(*length))),
            Self::WriteZeroes { offset, length, .. } | Self::Discard { offset, length } => {
                Some((*offset, *length))
            }
            Self::Flush => None,
        }
    }

    /// Ends it here, giving back what it holds.
    pub(crate) fn finish(self, tag: Tag, result: Result<(), BlockError>) -> Finished {
        let (buffer, source) = match self {
            Self::Read { buffer, .. } => (Some(buffer), None),
            Self::Write { source, .. } => (None, Some(source)),
            _ => (None, None),
        };
        Finished { tag, result, errno: None, buffer, source }
    }
}

/// An operation that has ended.
#[derive(Debug)]
pub struct Finished {
    /// The caller's request.
    pub tag: Tag,
    /// How it went.
    pub result: Result<(), BlockError>,
    /// The system's own word for what went wrong, if it said any.
    pub errno: Option<i32>,
    /// The buffer of a read, also when it failed, unless bytes were lent to it.
    pub buffer: Option<Buffer>,
    /// The source of a write, or what was lent to a read.
    pub source: Option<Lease>,
}

/// What became of an operation at its start.
#[derive(Debug)]
pub enum Started {
    /// It is on its way; the reactor will complete it.
    Pending,
    /// It is done already.
    Finished(Finished),
}

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

/// What all disks of a core share.
#[derive(Clone, Debug)]
pub struct Shared {
    /// What a null disk shows and what zeroing writes where it must.
    pub(crate) zeroes: Zeroes,
    pub(crate) loans: Loans,
}

impl Shared {
    /// With zeroes from a pool: its largest buffer, but no more than 128 KiB. `None` when none is left.
    pub fn new(pool: &Pool) -> Option<Self> {
        Some(Self { zeroes: Zeroes::new(pool)?, loans: Loans::default() })
    }

    /// What disks in memory have lent. It is to be settled before the core waits for anything.
    pub fn loans(&self) -> &Loans {
        &self.loans
    }
}

/// One core's handle of a disk.
#[derive(Debug)]
pub struct Disk {
    kind: Kind,
    faults: Option<FaultInjector>,
}

#[derive(Debug)]
enum Kind {
    File(FileDisk),
    Memory(MemoryDisk),
    Null(NullDisk),
}

impl Disk {
    /// Opens `backing` on the core of `reactor`. The tokens of its reactor operations are `owner` and the three
    /// parts of the caller's [`Tag`], so that the caller finds the disk of a completion through its own request.
    ///
    /// # Errors
    /// [`OpenError`] says which file and why.
    pub fn open(
        backing: &Backing,
        reactor: &mut Reactor,
        shared: &Shared,
        owner: u8,
    ) -> Result<Self, OpenError> {
        let kind = match backing {
            Backing::File { path, direct, read_only } => {
                Kind::File(FileDisk::open(path, *direct, *read_only, reactor, &shared.zeroes, owner)?)
            }
            Backing::Memory(memory) => Kind::Memory(MemoryDisk::new(Arc::clone(memory), &shared.loans)),
            Backing::Null { bytes } => Kind::Null(NullDisk::new(*bytes, &shared.zeroes)),
            Backing::Faulty { inner, faults } => {
                let disk = Self::open(inner, reactor, shared, owner)?;
                return Ok(Self { kind: disk.kind, faults: Some(FaultInjector::new(*faults)) });
            }
        };
        Ok(Self { kind, faults: None })
    }

    /// Serves a file or device that was opened elsewhere, because opening it may take as long as its server likes. The file is
    /// given up when the disk is closed; who else has it decides when its descriptor is.
    ///
    /// # Errors
    /// When the core has no room for it.
    pub fn adopt(opened: &OpenedFile, reactor: &mut Reactor, shared: &Shared, owner: u8) -> io::Result<Self> {
        let disk = FileDisk::adopt(opened, reactor, &shared.zeroes, owner)?;
        Ok(Self { kind: Kind::File(disk), faults: None })
    }

    /// Goes on with the same file opened anew. What is in flight ends on the old one.
    ///
    /// # Errors
    /// When the core has no room for it; the disk is as before then.
    pub fn replace(&mut self, opened: &OpenedFile, reactor: &mut Reactor) -> io::Result<()> {
        match &mut self.kind {
            Kind::File(disk) => disk.replace(opened, reactor),
            Kind::Memory(_) | Kind::Null(_) => Ok(()),
        }
    }

    /// The same for a backing whose files this core opens itself.
    ///
    /// # Errors
    /// As [`Disk::open`].
    pub fn reopen(&mut self, backing: &Backing, reactor: &mut Reactor) -> Result<(), OpenError> {
        match (&mut self.kind, backing) {
            (Kind::File(disk), Backing::File { path, direct, read_only }) => {
                disk.reopen(path, *direct, *read_only, reactor)
            }
            _ => Ok(()),
        }
    }

    /// What it can do.
    pub fn properties(&self) -> DiskProperties {
        match &self.kind {
            Kind::File(disk) => disk.properties(),
            Kind::Memory(disk) => disk.properties(),
            Kind::Null(disk) => disk.properties(),
        }
    }

    /// Bytes copied between buffers and a disk that is memory. Files have none: the kernel moves their bytes.
    pub fn copied_bytes(&self) -> u64 {
        match &self.kind {
            Kind::Memory(disk) => disk.copied_bytes(),
            Kind::File(_) | Kind::Null(_) => 0,
        }
    }

    /// The bytes of a range without any I/O, when the disk can hand them out (a null disk's zeroes).
    pub fn peek(&self, offset: u64, length: u32) -> Option<Lease> {
        match &self.kind {
            Kind::Null(disk) if self.faults.is_none() => disk.peek(offset, length),
            _ => None,
        }
    }

    /// Has the processor fetch what an operation will touch first, where the disk is memory. Returns whether it does, which
    /// takes as long as one or two commands: who starts the operation a little later does not wait for it.
    #[inline]
    pub fn prefetch(&self, operation: &Operation) -> bool {
        match &self.kind {
            Kind::Memory(disk) => {
                self.faults.is_none() && self.check(operation).is_ok() && disk.prefetch(operation)
            }
            Kind::File(_) | Kind::Null(_) => false,
        }
    }

    /// Starts an operation. What cannot be done (out of range, misaligned, read only) is finished at once with
    /// its error.
    pub fn start(&mut self, reactor: &mut Reactor, operation: Operation, tag: Tag) -> Started {
        let fault = self.faults.as_mut().and_then(|faults| faults.strike(&operation));
        if let Err(error) = fault.map_or_else(|| self.check(&operation), Err) {
            return Started::Finished(operation.finish(tag, Err(error)));
        }
        match &mut self.kind {
            Kind::File(disk) => disk.start(reactor, operation, tag),
            Kind::Memory(disk) => Started::Finished(match operation {
                Operation::Read { offset, buffer, lend: true } => disk.lend(offset, buffer, tag),
                operation => disk.run(operation, tag),
            }),
            Kind::Null(_) => Started::Finished(NullDisk::run(operation, tag)),
        }
    }

    /// Takes a completion of the reactor that belongs to this disk. `None` when the operation has a further step.
    pub fn on_completion(&mut self, reactor: &mut Reactor, completion: Completion) -> Option<Finished> {
        match &mut self.kind {
            Kind::File(disk) => disk.on_completion(reactor, completion),
            Kind::Memory(_) | Kind::Null(_) => None,
        }
    }

    /// The file has grown or shrunk to `bytes`, as whoever manages it has found. Memory and null have a fixed size.
    pub fn resize(&mut self, bytes: u64) {
        if let Kind::File(disk) = &mut self.kind {
            disk.resize(bytes);
        }
    }

    /// Closes it. Operations in flight finish first, with [`BlockError::Cancelled`] or their result.
    pub fn close(self, reactor: &mut Reactor) {
        if let Kind::File(disk) = self.kind {
            disk.close(reactor);
        }
    }

    fn check(&self, operation: &Operation) -> Result<(), BlockError> {
        let properties = self.properties();
        if operation.writes() && properties.read_only {
            return Err(BlockError::ReadOnly);
        }
        let Some((offset, length)) = operation.range() else { return Ok(()) };
        if offset.checked_add(length).is_none_or(|end| end > properties.bytes) {
            return Err(BlockError::OutOfRange);
        }
        let align = u64::from(properties.offset_align);
        if !offset.is_multiple_of(align) || !length.is_multiple_of(align) {
            return Err(BlockError::Misaligned);
        }
        Ok(())
    }
}
