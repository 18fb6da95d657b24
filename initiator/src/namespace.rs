//! What the initiator knows of a controller and its namespaces.

use uuid::Uuid;

/// A range of logical blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRange {
    /// First block.
    pub lba: u64,
    /// Blocks.
    pub nlb: u32,
}

/// A namespace as its Identify data describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// Its identifier within the subsystem.
    pub nsid: u32,
    /// Size in logical blocks (NSZE).
    pub blocks: u64,
    /// Bytes of a logical block, a power of two from 512 to 65536.
    pub block_bytes: u32,
    /// Who it is, to be compared after a reconnect.
    pub identity: NamespaceIdentity,
    /// Whether it may only be read (NSATTR).
    pub read_only: bool,
    /// The most blocks that one Read, Write or Compare can take here.
    pub transfer_blocks_max: u32,
    /// The most blocks of one Write Zeroes; zero when the controller does not do it.
    pub write_zeroes_blocks_max: u32,
    /// The most blocks of one Verify; zero when the controller does not do it.
    pub verify_blocks_max: u32,
    /// The most blocks of one range of a Discard; zero when the controller does not do it.
    pub discard_blocks_max: u32,
    /// The most ranges of one Discard.
    pub discard_ranges_max: u32,
    /// Preferred granularity and alignment of writes, in blocks (NPWG), at least one.
    pub preferred_write_blocks: u32,
}

impl Namespace {
    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.blocks.saturating_mul(u64::from(self.block_bytes))
    }

    /// The most bytes of one Read, Write or Compare.
    pub fn transfer_bytes_max(&self) -> u32 {
        self.transfer_blocks_max.saturating_mul(self.block_bytes)
    }
}

/// The globally unique identifiers of a namespace; those that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct NamespaceIdentity {
    /// Namespace Globally Unique Identifier.
    pub nguid: Option<[u8; 16]>,
    /// IEEE Extended Unique Identifier.
    pub eui64: Option<[u8; 8]>,
    /// Namespace UUID.
    pub uuid: Option<Uuid>,
}

impl NamespaceIdentity {
    /// Whether both can be the same namespace: no identifier that both have differs.
    pub fn agrees_with(&self, other: &Self) -> bool {
        fn agree<T: PartialEq>(one: &Option<T>, other: &Option<T>) -> bool {
            one.as_ref().zip(other.as_ref()).is_none_or(|(one, other)| one == other)
        }
        agree(&self.nguid, &other.nguid) && agree(&self.eui64, &other.eui64) && agree(&self.uuid, &other.uuid)
    }
}

/// A controller as its properties and Identify data describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerInfo {
    /// Controller identifier.
    pub cntlid: u16,
    /// The subsystem's NQN, as the controller reports it.
    pub subsystem: String,
    /// Serial number.
    pub serial: String,
    /// Model number.
    pub model: String,
    /// Firmware revision.
    pub firmware: String,
    /// Version: major, minor, tertiary.
    pub version: (u16, u8, u8),
    /// Whether it is a discovery controller.
    pub discovery: bool,
    /// The most bytes of one command's data (MDTS); `None` when unlimited.
    pub transfer_bytes_max: Option<u32>,
    /// Whether it has a volatile write cache, so that Flush means something.
    pub volatile_write_cache: bool,
    /// In-capsule data of an I/O command, in bytes at most.
    pub in_capsule_bytes_max: u32,
    /// I/O queues connected.
    pub queues: u16,
    /// Entries of each I/O queue's submission queue. One less can be outstanding.
    pub queue_size: u16,
    /// Keep-alive timeout agreed on; `None` when off.
    pub keep_alive: Option<std::time::Duration>,
}
