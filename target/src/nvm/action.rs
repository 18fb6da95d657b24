//! What a request does between its data's arrival and its response, and all that others have to know of that.
//!
//! Whoever counts, limits, orders, delays or reports commands asks here. No question has an answer for whatever is not
//! named, so that a new action cannot be overlooked.

use super::DataBytes;
use super::DiskBytes;
use crate::limits::COPY_PIECE_BYTES;
use crate::model::disk_failure::DiskAction;

/// A range of a namespace, checked against its size when it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Which disk of the core.
    pub(crate) disk: usize,
    /// First byte on the disk.
    pub(crate) offset: u64,
    pub(crate) length: DiskBytes,
}

/// What a request does between its data's arrival and its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Nothing more: it has failed already.
    Nothing,
    /// Read the range and send it to the host.
    Read(Extent),
    /// Write the host's data to the range.
    Write { extent: Extent, durable: bool },
    /// Read the range and compare it with the host's data.
    Compare(Extent),
    /// Compare the range with the host's data, and write that of the other half of the fused pair there: what the
    /// Compare of a pair becomes at a disk that does both at once.
    CompareAndWrite { extent: Extent, durable: bool },
    /// Make the range zeroes.
    WriteZeroes { extent: Extent, deallocate: bool, durable: bool },
    /// Make what was written to a disk durable.
    Flush { disk: usize },
    /// The same for every disk of the subsystem, in rounds; so many have begun.
    FlushAll { rounds: u16 },
    /// Deallocate the ranges that the host's data lists, in pieces: `next` is the first range that is not all begun,
    /// and so many bytes of it are.
    Discard { disk: usize, ranges: u16, next: u16, begun: u64 },
    /// Nothing: what the host's data lists are hints about later access.
    Hints { disk: usize },
    /// Read the range, of which so many bytes were begun, and forget it.
    Verify { extent: Extent, begun: u64 },
    /// Copy the ranges that the host's data lists.
    Copy(Copying),
    /// An admin or Fabrics command, for the controller.
    Controller,
}

/// How far a Copy is: it moves one piece at a time, of one range after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Copying {
    pub(crate) disk: usize,
    /// Source ranges that the host's data lists.
    pub(crate) ranges: u16,
    /// The range that is being copied, and bytes of it that are copied.
    pub(crate) range: u16,
    pub(crate) done: u64,
    /// Where on the disk the next piece goes.
    pub(crate) to: u64,
    /// Bytes of the piece that was read and not yet written.
    pub(crate) read: u32,
    pub(crate) durable: bool,
}

/// How an action uses its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Not at all.
    None,
    /// It reads blocks.
    Reads,
    /// It writes the host's data to blocks.
    Writes,
    /// It changes blocks, and brings no data for them.
    Changes,
    /// It makes durable what was written.
    Flushes,
}

/// What all actions of a kind have in common.
#[derive(Debug)]
pub(crate) struct Kind {
    /// The command, for people.
    pub(crate) name: &'static str,
    /// What a disk is asked to do, where that is no promise.
    pub(crate) at_disk: DiskAction,
    /// Whether it moves blocks of a bounded size: a disk that works ends it soon.
    pub(crate) is_bounded: bool,
    /// Whether the host's data are a list of ranges.
    pub(crate) has_list: bool,
}

impl Kind {
    const READ: Self = Self::of_blocks("Read", DiskAction::Read);
    const WRITE: Self = Self::of_blocks("Write", DiskAction::Write);
    const COMPARE: Self = Self::of_blocks("Compare", DiskAction::Read);
    const COMPARE_AND_WRITE: Self = Self::of_blocks("Compare and Write", DiskAction::Write);
    const VERIFY: Self = Self::of_blocks("Verify", DiskAction::Read);
    const WRITE_ZEROES: Self =
        Self { name: "Write Zeroes", at_disk: DiskAction::WriteZeroes, is_bounded: false, has_list: false };
    const FLUSH: Self =
        Self { name: "Flush", at_disk: DiskAction::Flush, is_bounded: false, has_list: false };
    const DISCARD: Self = Self {
        name: "Dataset Management",
        at_disk: DiskAction::Deallocate,
        is_bounded: false,
        has_list: true,
    };
    const COPY: Self = Self { name: "Copy", at_disk: DiskAction::Write, is_bounded: true, has_list: true };
    const NO_IO: Self =
        Self { name: "an admin command", at_disk: DiskAction::Read, is_bounded: false, has_list: false };

    /// Of blocks that the command names, as many as a transfer may have.
    const fn of_blocks(name: &'static str, at_disk: DiskAction) -> Self {
        Self { name, at_disk, is_bounded: true, has_list: false }
    }
}

/// Where an action works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// On no disk.
    Nowhere,
    /// On these blocks.
    Blocks(Extent),
    /// On a disk, on none of its blocks.
    Disk(usize),
    /// On every disk of the subsystem that its host sees, one round of them after the other.
    AllDisks { rounds: u16 },
}

impl Extent {
    /// All of a disk.
    pub(crate) const fn all_of(disk: usize) -> Self {
        Self { disk, offset: 0, length: DiskBytes(u64::MAX) }
    }

    /// Whether the two have bytes in common.
    pub(crate) fn overlaps(&self, other: &Extent) -> bool {
        let before = |one: &Extent, two: &Extent| one.offset.saturating_add(one.length.0) <= two.offset;
        self.disk == other.disk && !before(self, other) && !before(other, self)
    }
}

impl Action {
    /// What it has in common with others.
    #[inline(always)]
    pub(crate) const fn kind(&self) -> &'static Kind {
        match self {
            Self::Nothing | Self::Controller => &Kind::NO_IO,
            Self::Read(_) => &Kind::READ,
            Self::Write { .. } => &Kind::WRITE,
            Self::Compare(_) => &Kind::COMPARE,
            Self::CompareAndWrite { .. } => &Kind::COMPARE_AND_WRITE,
            Self::WriteZeroes { .. } => &Kind::WRITE_ZEROES,
            Self::Flush { .. } | Self::FlushAll { .. } => &Kind::FLUSH,
            Self::Discard { .. } | Self::Hints { .. } => &Kind::DISCARD,
            Self::Verify { .. } => &Kind::VERIFY,
            Self::Copy(_) => &Kind::COPY,
        }
    }

    /// How it uses its disk.
    #[inline(always)]
    pub(crate) const fn access(&self) -> Access {
        match self {
            Self::Read(_) | Self::Compare(_) | Self::Verify { .. } => Access::Reads,
            Self::Write { .. } | Self::CompareAndWrite { .. } => Access::Writes,
            Self::WriteZeroes { .. } | Self::Discard { .. } | Self::Copy(_) => Access::Changes,
            Self::Flush { .. } | Self::FlushAll { .. } => Access::Flushes,
            Self::Nothing | Self::Controller | Self::Hints { .. } => Access::None,
        }
    }

    /// Where it works. Of lists of ranges that is all of the disk, since nobody has looked into them.
    #[inline(always)]
    pub(crate) const fn place(&self) -> Place {
        match *self {
            Self::Nothing | Self::Controller => Place::Nowhere,
            Self::Read(extent) | Self::Compare(extent) => Place::Blocks(extent),
            Self::Write { extent, .. } | Self::WriteZeroes { extent, .. } => Place::Blocks(extent),
            Self::Verify { extent, .. } | Self::CompareAndWrite { extent, .. } => Place::Blocks(extent),
            Self::Discard { disk, .. } | Self::Copy(Copying { disk, .. }) => {
                Place::Blocks(Extent::all_of(disk))
            }
            Self::Flush { disk } | Self::Hints { disk } => Place::Disk(disk),
            Self::FlushAll { rounds } => Place::AllDisks { rounds },
        }
    }

    /// Which disk it works on; none when it flushes several.
    #[inline(always)]
    pub(crate) const fn disk(&self) -> Option<usize> {
        match self.place() {
            Place::Blocks(Extent { disk, .. }) | Place::Disk(disk) => Some(disk),
            Place::Nowhere | Place::AllDisks { .. } => None,
        }
    }

    /// The blocks that it reads or changes.
    #[inline(always)]
    pub(crate) const fn extent(&self) -> Option<Extent> {
        match self.place() {
            Place::Blocks(extent) => Some(extent),
            Place::Nowhere | Place::Disk(_) | Place::AllDisks { .. } => None,
        }
    }

    /// Bytes of the disk that it is about, as far as the command itself says that.
    #[inline(always)]
    pub(crate) const fn bytes(&self) -> DiskBytes {
        match *self {
            Self::Read(extent) | Self::Compare(extent) | Self::Verify { extent, .. } => extent.length,
            Self::Write { extent, .. } | Self::WriteZeroes { extent, .. } => extent.length,
            Self::CompareAndWrite { extent, .. } => extent.length,
            Self::Discard { .. } | Self::Copy(_) | Self::Hints { .. } => DiskBytes(0),
            Self::Flush { .. } | Self::FlushAll { .. } | Self::Nothing | Self::Controller => DiskBytes(0),
        }
    }

    /// Bytes of the disk that it needs buffers for beside the host's: to compare the two, or to pass on.
    #[inline(always)]
    pub(crate) fn buffered_bytes(&self, chunk_bytes: u32) -> DataBytes {
        match self {
            Self::Compare(extent) => extent.length.checked_data(),
            Self::Verify { extent, .. } => extent.length.checked_data().min(DataBytes(chunk_bytes)),
            Self::Copy(_) => DataBytes(COPY_PIECE_BYTES),
            Self::Nothing | Self::Controller | Self::Read(_) | Self::Write { .. } => DataBytes(0),
            Self::WriteZeroes { .. } | Self::Flush { .. } | Self::FlushAll { .. } => DataBytes(0),
            Self::Discard { .. } | Self::Hints { .. } | Self::CompareAndWrite { .. } => DataBytes(0),
        }
    }

    /// The same work, done only when its blocks are on stable storage. Without a write cache all writes are so.
    pub(crate) fn durable(self) -> Self {
        match self {
            Self::Write { extent, .. } => Self::Write { extent, durable: true },
            Self::WriteZeroes { extent, deallocate, .. } => {
                Self::WriteZeroes { extent, deallocate, durable: true }
            }
            Self::CompareAndWrite { extent, .. } => Self::CompareAndWrite { extent, durable: true },
            Self::Copy(copying) => Self::Copy(Copying { durable: true, ..copying }),
            Self::Nothing | Self::Controller | Self::Read(_) | Self::Compare(_) | Self::Verify { .. } => self,
            Self::Flush { .. } | Self::FlushAll { .. } | Self::Discard { .. } | Self::Hints { .. } => self,
        }
    }

    /// Whether a success of its disk says no more than that: it is no promise, and has no value.
    #[inline(always)]
    pub(crate) const fn ends_plainly(&self) -> bool {
        // Two comparisons for what comes most often, instead of a jump through a table.
        match *self {
            Self::Read(_) => true,
            Self::Write { durable, .. } => !durable,
            _ => false,
        }
    }

    /// Whether dwords 0 and 1 of its completion are what the disk says: it is one operation of one disk.
    pub(crate) const fn has_value(&self) -> bool {
        match self {
            Self::WriteZeroes { .. } | Self::Flush { .. } => true,
            Self::Read(_) | Self::Write { .. } | Self::Compare(_) | Self::Verify { .. } => false,
            Self::FlushAll { .. } | Self::Discard { .. } | Self::Copy(_) => false,
            Self::CompareAndWrite { .. } => true,
            Self::Nothing | Self::Controller | Self::Hints { .. } => false,
        }
    }

    /// Whether its success says that data is on stable storage.
    pub(crate) const fn is_promise(&self) -> bool {
        match *self {
            Self::Flush { .. } | Self::FlushAll { .. } => true,
            Self::Write { durable, .. } | Self::WriteZeroes { durable, .. } => durable,
            Self::CompareAndWrite { durable, .. } => durable,
            Self::Copy(copying) => copying.durable,
            Self::Nothing | Self::Controller | Self::Read(_) | Self::Compare(_) | Self::Verify { .. } => {
                false
            }
            Self::Discard { .. } | Self::Hints { .. } => false,
        }
    }
}
