//! What a program submits to a [`Host`](crate::Host), and the events that it gets.

use ringfab_base::SlotId;
use ringfab_memory::{Buffer, Pool, SharedBuffer};
use ringfab_reactor::Completion;
use ringfab_spec::{CompletionEntry, SubmissionEntry};

use crate::authentication::Keys;
use crate::error::{ConnectError, IoError, SubmitError};
use crate::namespace::BlockRange;

/// An attached controller of a [`Host`](crate::Host). The handle of a controller that is gone is recognised.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ControllerId(pub(crate) SlotId);

/// One of the paths to what is attached: a way to its namespaces, by a controller of its own. Every engine that shares
/// it knows the path by the same name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PathId {
    pub(crate) slot: u16,
    /// Which of the slot's paths it is: a message for one that was removed is recognised.
    pub(crate) generation: u16,
}

impl PathId {
    /// The first path in a slot.
    pub(crate) const fn first(slot: u16) -> Self {
        Self { slot, generation: 0 }
    }

    /// The path that comes into the slot after this one.
    pub(crate) const fn successor(self) -> Self {
        Self { slot: self.slot, generation: self.generation.wrapping_add(1) }
    }

    /// Its place among the paths.
    #[inline]
    pub(crate) fn index(self) -> usize {
        self.slot.into()
    }
}

/// Its place, counted from one, and behind a dot how many paths were there before it, if there were any.
impl std::fmt::Display for PathId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let place = u32::from(self.slot) + 1;
        match self.generation {
            0 => write!(f, "{place}"),
            before => write!(f, "{place}.{before}"),
        }
    }
}

impl std::str::FromStr for PathId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || format!("`{text}` is no number of a path");
        let (place, generation) = text.split_once('.').unwrap_or((text, "0"));
        let slot = place.parse::<u16>().ok().and_then(|place| place.checked_sub(1)).ok_or_else(wrong)?;
        Ok(Self { slot, generation: generation.parse().map_err(|_| wrong())? })
    }
}

/// A path of one of a host's controllers: whom a message is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PathHandle {
    pub(crate) controller: ControllerId,
    pub(crate) path: PathId,
}

/// One command of the NVM Command Set. It owns its memory until its [`IoDone`].
#[derive(Debug)]
pub struct IoRequest {
    /// The namespace.
    pub nsid: u32,
    /// The submitter's name for it, given back in [`IoDone`].
    pub tag: u64,
    /// What to do.
    pub operation: IoOperation,
}

/// What an [`IoRequest`] does. LBAs and counts are in logical blocks, counted from one.
#[derive(Debug)]
#[non_exhaustive]
pub enum IoOperation {
    /// Read into the start of `buffer`.
    Read {
        /// First block.
        lba: u64,
        /// Blocks to read.
        nlb: u32,
        /// At least `nlb` blocks long; its first bytes are overwritten.
        buffer: Buffer,
    },
    /// Write from `source`.
    Write {
        /// First block.
        lba: u64,
        /// Blocks to write.
        nlb: u32,
        /// The bytes, from `offset`. They must not change before the [`IoDone`].
        source: SharedBuffer,
        /// Where in `source` they start.
        offset: u32,
        /// Force Unit Access: complete only when the bytes are on stable storage.
        fua: bool,
    },
    /// Make every write that completed before this was submitted reach stable storage.
    Flush,
    /// Make blocks read as zeroes.
    WriteZeroes {
        /// First block.
        lba: u64,
        /// Blocks to zero.
        nlb: u32,
        /// Whether the space may be freed.
        deallocate: bool,
        /// Force Unit Access.
        fua: bool,
    },
    /// Say that the content of some ranges is no longer needed (Dataset Management, deallocate).
    Discard {
        /// Which ones.
        ranges: DiscardRanges,
    },
    /// Have the controller read blocks, without sending them here; an error when it cannot.
    Verify {
        /// First block.
        lba: u64,
        /// Blocks to read.
        nlb: u32,
    },
    /// Compare blocks with `source`; [`Status::COMPARE_FAILURE`] when they differ.
    Compare {
        /// First block.
        lba: u64,
        /// Blocks to compare.
        nlb: u32,
        /// The bytes, from `offset`.
        source: SharedBuffer,
        /// Where in `source` they start.
        offset: u32,
    },
}

/// The ranges of a Dataset Management command, as they go over the wire.
///
/// ```
/// use ringfab_initiator::{BlockRange, ClassLayout, DiscardRanges, IoOperation, Pool};
///
/// let pool = Pool::new(&[ClassLayout { buffer_bytes: 4096, count: 1 }]).expect("memory");
/// let ranges = DiscardRanges::new(&pool, &[BlockRange { lba: 8, nlb: 16 }]).expect("a buffer");
/// let operation = IoOperation::Discard { ranges };
/// # drop(operation);
/// ```
#[derive(Debug)]
pub struct DiscardRanges {
    pub(crate) shared_buffer: SharedBuffer,
    pub(crate) count: u32,
    /// Blocks of the longest.
    pub(crate) longest: u32,
    /// Blocks of all.
    pub(crate) total: u64,
    /// The block behind the last; `None` when there is no such number.
    pub(crate) end: Option<u64>,
}

impl DiscardRanges {
    /// The most ranges of one command (NVM Command Set 1.0, section 3.2.3).
    pub const COUNT_MAX: usize = 256;
    /// Bytes of one range on the wire.
    const RANGE_BYTES: usize = 16;

    /// Ranges in a buffer of `pool`: one to [`DiscardRanges::COUNT_MAX`], else it is a caller's error and
    /// panics. `None` when the pool has no buffer left.
    pub fn new(pool: &Pool, ranges: &[BlockRange]) -> Option<Self> {
        assert!((1..=Self::COUNT_MAX).contains(&ranges.len()), "one to 256 ranges");
        let mut buffer = pool.take(ranges.len() * Self::RANGE_BYTES)?;
        for (range, bytes) in ranges.iter().zip(buffer.chunks_exact_mut(Self::RANGE_BYTES)) {
            bytes[..4].fill(0);
            bytes[4..8].copy_from_slice(&range.nlb.to_le_bytes());
            bytes[8..].copy_from_slice(&range.lba.to_le_bytes());
        }
        let end = |range: &BlockRange| range.lba.checked_add(u64::from(range.nlb));
        Some(Self {
            shared_buffer: buffer.share(),
            count: ranges.len() as u32,
            longest: ranges.iter().map(|range| range.nlb).max().unwrap_or(0),
            total: ranges.iter().map(|range| u64::from(range.nlb)).sum(),
            end: ranges.iter().try_fold(0, |last, range| end(range).map(|end| end.max(last))),
        })
    }
}

/// An admin command. The command identifier, the data pointer and the flags of `entry` are filled in.
#[derive(Debug)]
pub struct AdminRequest {
    /// The command.
    pub entry: SubmissionEntry,
    /// Its data.
    pub data: AdminData,
    /// The submitter's name for it, given back in [`AdminDone`].
    pub tag: u64,
}

/// The data of an admin command.
#[derive(Debug)]
pub enum AdminData {
    /// It has none.
    None,
    /// The controller sends data into `buffer`, as many as it has and the buffer has room for.
    FromController(Buffer),
    /// The controller fetches all of `source`.
    ToController(SharedBuffer),
}

/// What a program asks of a controller that is attached.
#[derive(Clone, Debug)]
pub(crate) enum Asked {
    /// Authenticate again, with these keys if there are any.
    Reauthenticate(Option<Keys>),
    /// End all connections, and attach it anew.
    Reset,
}

/// What a [`Host`](crate::Host) tells its owner.
#[derive(Debug)]
#[non_exhaustive]
pub enum HostEvent {
    /// An I/O command has ended.
    IoDone(IoDone),
    /// An admin command has ended.
    AdminDone(AdminDone),
    /// The controller can take I/O: see [`Host::namespaces`](crate::Host::namespaces).
    Ready {
        /// Which one.
        controller: ControllerId,
        /// By which path.
        path: PathId,
        /// Whether it was lost before; outstanding I/O goes on now.
        reconnected: bool,
    },
    /// The connection to the controller was lost. Outstanding I/O waits or fails, as the policy says.
    Lost {
        /// Which one.
        controller: ControllerId,
        /// Which path to it.
        path: PathId,
        /// Why.
        error: ConnectError,
    },
    /// The next attempt to reconnect.
    Reconnecting {
        /// Which one.
        controller: ControllerId,
        /// Which path to it.
        path: PathId,
        /// Counted from one since the loss.
        attempt: u32,
        /// When it starts, from now.
        delay: std::time::Duration,
    },
    /// A path was added. It is attached next: see [`HostEvent::Ready`].
    PathAdded {
        /// To which controller.
        controller: ControllerId,
        /// The new path.
        path: PathId,
    },
    /// A path was removed as asked, or given up, and others are left. Its name is dead.
    PathRemoved {
        /// Of which controller.
        controller: ControllerId,
        /// The path that was.
        path: PathId,
        /// Why it was given up; `None` when that was asked for.
        error: Option<ConnectError>,
    },
    /// I/O goes on after a loss: another path has given the first answer on this engine.
    FailedOver {
        /// Of which controller.
        controller: ControllerId,
        /// The path that was lost.
        from: PathId,
        /// The path that has answered.
        to: PathId,
        /// From the loss to the answer.
        after: std::time::Duration,
    },
    /// A controller tells other access states (ANA) than before: see [`Host::paths`](crate::Host::paths).
    AccessChanged {
        /// Which one.
        controller: ControllerId,
        /// By which path it tells.
        path: PathId,
    },
    /// The queues of this engine have authenticated again, as [`Host::reauthenticate`](crate::Host::reauthenticate) or
    /// [`Authentication::repeat`](crate::Authentication::repeat) wanted.
    Reauthenticated {
        /// Of which controller.
        controller: ControllerId,
        /// Of which path to it.
        path: PathId,
        /// Why not, where the connection goes on all the same. Where one end has refused the other, it is lost.
        result: Result<(), ConnectError>,
    },
    /// A namespace changed its size, appeared or went away: see [`Host::namespaces`](crate::Host::namespaces).
    NamespacesChanged {
        /// Of which controller.
        controller: ControllerId,
    },
    /// A discovery controller tells that its log page has changed. The next change is told once the page was read.
    DiscoveryLogChanged {
        /// Which one.
        controller: ControllerId,
        /// By which path it tells.
        path: PathId,
    },
    /// The controller could not be attached, or was given up, and no path is left. All its requests have been answered,
    /// and its handle is dead.
    Failed {
        /// Which one.
        controller: ControllerId,
        /// Why.
        error: ConnectError,
    },
    /// The controller was detached as asked. All its requests have been answered, and its handle is dead.
    Detached {
        /// Which one.
        controller: ControllerId,
        /// What could not be done in an orderly way, if anything.
        trouble: Option<ConnectError>,
    },
    /// A completion of the reactor for another part of the loop: its owner is
    /// [`Host::OWNER_FOREIGN_FIRST`](crate::Host::OWNER_FOREIGN_FIRST) or above.
    Foreign(Completion),
}

impl HostEvent {
    /// Which controller it is about; none for what only passes through the engine.
    pub fn controller(&self) -> Option<ControllerId> {
        match self {
            Self::IoDone(done) => Some(done.controller),
            Self::AdminDone(done) => Some(done.controller),
            Self::Ready { controller, .. }
            | Self::Lost { controller, .. }
            | Self::Reconnecting { controller, .. }
            | Self::PathAdded { controller, .. }
            | Self::PathRemoved { controller, .. }
            | Self::FailedOver { controller, .. }
            | Self::AccessChanged { controller, .. }
            | Self::Reauthenticated { controller, .. }
            | Self::NamespacesChanged { controller }
            | Self::DiscoveryLogChanged { controller, .. }
            | Self::Failed { controller, .. }
            | Self::Detached { controller, .. } => Some(*controller),
            Self::Foreign(_) => None,
        }
    }
}

/// The end of an I/O command.
#[derive(Debug)]
pub struct IoDone {
    /// Of which controller.
    pub controller: ControllerId,
    /// The submitter's name for it.
    pub tag: u64,
    /// Success, or why not.
    pub result: Result<(), IoError>,
    /// The buffer of a Read; its content is unspecified after an error.
    pub buffer: Option<Buffer>,
    /// The source of a Write or Compare, the ranges of a Discard. A send may still hold it for a while, which
    /// only matters to who wants it unique.
    pub source: Option<SharedBuffer>,
}

/// The end of an admin command.
#[derive(Debug)]
pub struct AdminDone {
    /// Of which controller.
    pub controller: ControllerId,
    /// The submitter's name for it.
    pub tag: u64,
    /// The completion (of success), or why there is none.
    pub result: Result<CompletionEntry, IoError>,
    /// The buffer of [`AdminData::FromController`]. What the controller has not written of it is zero.
    pub buffer: Option<Buffer>,
    /// How many bytes came into the buffer. Over RDMA a controller does not say, and it is the whole buffer.
    pub received: u32,
}

/// A request was not taken; it comes back.
#[derive(Debug)]
pub struct Refused<R> {
    /// Why.
    pub reason: SubmitError,
    /// The request.
    pub request: R,
}
