//! What a disk is asked to do, and what comes of it.

use std::num::NonZeroI32;

use ringfab_memory::{Buffer, SharedBuffer};
use ringfab_reactor::PreferredSizes;

use crate::BlockError;

/// What a range reads as after it was discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discarded {
    /// Zeroes.
    Zeroes,
    /// Zeroes, or as before where the disk has freed nothing.
    ZeroesOrBefore,
    /// Whatever the disk likes.
    Anything,
}

/// What a disk can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
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
    /// What a range reads as after [`Operation::Discard`].
    pub discarded: Discarded,
    /// Whether [`Operation::WriteZeroes`] frees the space of a range where it may.
    pub write_zeroes_deallocates: bool,
    /// Whether its space comes from what others use, too, when it is first written to, and goes back there when it is
    /// freed: a thin volume. Writes may find no space.
    pub thin: bool,
    /// What it likes best.
    pub preferred: PreferredSizes,
    /// The most bytes of one [`Operation::CompareAndWrite`]; 0 where there is none.
    pub compare_and_write_max: u32,
}

impl DiskProperties {
    /// A disk of so many bytes that asks nothing of its users: any offsets, any memory, writes that are safe when they
    /// have completed. It can do no more than every disk, and nothing else is known of it.
    pub const fn new(bytes: u64) -> Self {
        Self {
            bytes,
            offset_align: 1,
            memory_align: 1,
            volatile_cache: false,
            read_only: false,
            discarded: Discarded::Anything,
            write_zeroes_deallocates: false,
            thin: false,
            preferred: PreferredSizes { write: 0, discard: 0, optimal_write: 0 },
            compare_and_write_max: 0,
        }
    }

    /// Offsets and lengths are multiples of so many bytes.
    pub const fn with_offset_align(self, bytes: u32) -> Self {
        Self { offset_align: bytes, ..self }
    }

    /// Memory begins at multiples of so many bytes.
    pub const fn with_memory_align(self, bytes: u32) -> Self {
        Self { memory_align: bytes, ..self }
    }

    /// Completed writes may be lost in a crash until a flush.
    pub const fn with_volatile_cache(self, volatile_cache: bool) -> Self {
        Self { volatile_cache, ..self }
    }

    /// Writes are refused.
    pub const fn with_read_only(self, read_only: bool) -> Self {
        Self { read_only, ..self }
    }

    /// A discarded range reads so.
    pub const fn with_discarded(self, discarded: Discarded) -> Self {
        Self { discarded, ..self }
    }

    /// Writing zeroes frees space where it may.
    pub const fn with_write_zeroes_deallocates(self, deallocates: bool) -> Self {
        Self { write_zeroes_deallocates: deallocates, ..self }
    }

    /// It is a thin volume.
    pub const fn with_thin(self, thin: bool) -> Self {
        Self { thin, ..self }
    }

    /// It likes these sizes best.
    pub const fn with_preferred(self, preferred: PreferredSizes) -> Self {
        Self { preferred, ..self }
    }

    /// It compares and writes so many bytes as one step.
    pub const fn with_compare_and_write(self, bytes_max: u32) -> Self {
        Self { compare_and_write_max: bytes_max, ..self }
    }
}

/// Which request of the caller an operation belongs to. The disk does not look at it; it comes back with the result.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tag {
    /// The caller's own.
    pub kind: u8,
    /// Generation of the caller's slot.
    pub generation: u16,
    /// The caller's slot.
    pub index: u32,
}

/// What to do. Offsets and lengths are in bytes. A device ends what it does not know with
/// [`BlockError::NotSupported`].
#[derive(Debug)]
#[non_exhaustive]
pub enum Operation {
    /// Read at `offset` of the disk until `buffer` is full.
    Read {
        /// Position on the disk.
        offset: u64,
        /// Where the bytes go; given back.
        buffer: Buffer,
        /// Whether it may become a shared buffer of bytes that a disk in memory [lends](BorrowedPages). Other disks
        /// fill it.
        may_borrow: bool,
    },
    /// Write `length` bytes of `source` at `at` to `offset` of the disk.
    Write {
        /// Position on the disk.
        offset: u64,
        /// The bytes; given back.
        source: SharedBuffer,
        /// First byte in the shared buffer.
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
    /// The range is not needed any more: see [`DiskProperties::discarded`].
    Discard {
        /// Position on the disk.
        offset: u64,
        /// How many bytes.
        length: u64,
    },
    /// Write `source` to a range if `expected` is there, and else end with [`BlockError::Miscompare`]: one step for
    /// everybody who uses the disk, also past this target. See [`DiskProperties::compare_and_write_max`].
    CompareAndWrite {
        /// Position on the disk.
        offset: u64,
        /// The bytes to compare with, from the first byte of the shared buffer on; dropped when it has finished.
        expected: SharedBuffer,
        /// The bytes to write, from the first byte of the shared buffer on; given back.
        source: SharedBuffer,
        /// How many.
        length: u32,
        /// Reach stable storage before completing (force unit access).
        durable: bool,
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
            Self::Write { offset, length, .. } | Self::CompareAndWrite { offset, length, .. } => {
                Some((*offset, u64::from(*length)))
            }
            Self::WriteZeroes { offset, length, .. } | Self::Discard { offset, length } => {
                Some((*offset, *length))
            }
            Self::Flush => None,
        }
    }

    /// Ends it, giving back what it holds.
    pub fn finish(self, tag: Tag, result: Result<(), BlockError>) -> Finished {
        let (buffer, source) = match self {
            Self::Read { buffer, .. } => (Some(buffer), None),
            Self::Write { source, .. } | Self::CompareAndWrite { source, .. } => (None, Some(source)),
            _ => (None, None),
        };
        Finished { tag, result, errno: None, value: 0, buffer, source }
    }
}

/// An operation that has ended: [`Operation::finish`] makes it.
#[derive(Debug)]
#[non_exhaustive]
pub struct Finished {
    /// The caller's request.
    pub tag: Tag,
    /// How it went.
    pub result: Result<(), BlockError>,
    /// The system's own word for what went wrong, if it said any.
    pub errno: Option<NonZeroI32>,
    /// What a drive says beside its status, as its completion has it in dwords 0 (the low half) and 1; else 0.
    pub value: u64,
    /// The buffer of a read, also when it failed, unless bytes were lent to it.
    pub buffer: Option<Buffer>,
    /// The source of a write, also of one that compares, or what was lent to a read.
    pub source: Option<SharedBuffer>,
}

// It is moved for every command.
const _: () = assert!(size_of::<Finished>() == 56);

impl Finished {
    /// The same with the system's own word, if there is one.
    pub fn with_errno(self, errno: Option<i32>) -> Self {
        Self { errno: errno.and_then(NonZeroI32::new), ..self }
    }

    /// The same with what a drive says beside its status.
    pub fn with_value(self, value: u64) -> Self {
        Self { value, ..self }
    }
}

/// What became of an operation at its start.
#[derive(Debug)]
pub enum Started {
    /// It is in flight; the disk says later that it has finished.
    Pending,
    /// It has finished already.
    Finished(Finished),
}
