//! What is posted to a queue pair.

use ringfab_memory::{Buffer, SharedBuffer};
pub use ringfab_proto::iwarp::Inline;

/// A queue pair of this RNIC. Handles of ended queue pairs are recognised and ignored.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct QueuePairId {
    /// Slot in the RNIC's table; small and dense, so that a caller may index by it.
    pub index: u32,
    /// Generation of the slot.
    pub generation: u32,
}

impl QueuePairId {
    /// Whether an RDMA device has it, and not the software RNIC, which sends from wherever a shared buffer's bytes lie.
    #[inline]
    pub fn is_of_device(self) -> bool {
        cfg!(feature = "verbs") && self.index & 1 == 1
    }
}

/// Ties queue pairs and exposed memory together.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ProtectionDomain(pub(crate) u32);

/// What a peer may do with exposed memory: exactly one of the two, so that nothing is written while it is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// The peer may read it (RDMA READ).
    RemoteRead,
    /// The peer may write it (RDMA WRITE).
    RemoteWrite,
}

/// To whom memory is exposed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// The peers of all queue pairs of a domain. Only the software RNIC can do that.
    Domain(ProtectionDomain),
    /// The peer of this queue pair. The software RNIC includes the others of its domain.
    QueuePair(QueuePairId),
}

impl From<ProtectionDomain> for Scope {
    fn from(domain: ProtectionDomain) -> Self {
        Self::Domain(domain)
    }
}

impl From<QueuePairId> for Scope {
    fn from(queue_pair: QueuePairId) -> Self {
        Self::QueuePair(queue_pair)
    }
}

/// Names an exposure to the RNIC that made it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RegionId {
    /// Of the software RNIC: the key itself.
    Iwarp(u32),
    /// Of a verbs device. Several exposures may have the same key there.
    Verbs {
        /// Slot in the table of exposures.
        index: u32,
        /// Generation of the slot.
        generation: u16,
    },
}

/// Memory of one end as the other end names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteBuffer {
    /// Address of the first byte (tagged offset).
    pub address: u64,
    /// Length in bytes.
    pub length: u32,
    /// Remote key (STag).
    pub key: u32,
    /// Its name for [`super::Rnic::revoke`].
    pub region: RegionId,
    /// Whether the peer may be asked to invalidate the key: it names this memory alone.
    pub invalidate: bool,
}

/// A range of a shared buffer.
#[derive(Debug)]
pub struct Slice {
    /// The memory.
    pub shared_buffer: SharedBuffer,
    /// First byte of the range.
    pub offset: u32,
    /// Bytes in the range.
    pub length: u32,
}

impl Slice {
    /// The first byte behind the range.
    #[inline]
    pub(crate) fn end(&self) -> usize {
        self.offset as usize + self.length as usize
    }
}

/// What a send-queue work request does.
#[derive(Debug)]
pub enum Work {
    /// SEND: `head`, then `data`, as one message.
    Send {
        /// The capsule.
        head: Inline,
        /// In-capsule data.
        data: Option<Slice>,
        /// Key that the peer's RNIC invalidates on delivery (Send with Invalidate).
        invalidate: Option<u32>,
        /// Asks the peer for a solicited event.
        solicited: bool,
    },
    /// RDMA WRITE of `source` to the peer's memory.
    Write {
        /// The bytes.
        source: Slice,
        /// The peer's key.
        remote_key: u32,
        /// The peer's address.
        remote_address: u64,
    },
    /// RDMA READ of `length` bytes of the peer's memory into the start of `sink`.
    Read {
        /// Where the bytes go; given back with the completion.
        sink: Buffer,
        /// How many.
        length: u32,
        /// The peer's key.
        remote_key: u32,
        /// The peer's address.
        remote_address: u64,
    },
}

/// A send-queue work request.
#[derive(Debug)]
pub struct SendRequest {
    /// The poster's name for it.
    pub id: u64,
    /// What it does.
    pub work: Work,
    /// Whether its success is reported, at the latest with that of the next one that is signaled. Reads always are,
    /// each on its own.
    pub signaled: bool,
}

/// A SEND of a message that is small and lies somewhere. It is read as it is posted, and mostly goes from there to
/// where it is sent from without a copy in between.
#[derive(Debug)]
pub struct Capsule<'a> {
    /// The poster's name for it.
    pub id: u64,
    /// The capsule, of no more than [`Inline::LEN_MAX`] bytes.
    pub head: &'a [u8],
    /// In-capsule data, which follow it.
    pub data: Option<Slice>,
    /// Key that the peer's RNIC invalidates on delivery (Send with Invalidate).
    pub invalidate: Option<u32>,
    /// As in [`SendRequest`].
    pub signaled: bool,
}

impl From<Capsule<'_>> for SendRequest {
    fn from(capsule: Capsule<'_>) -> Self {
        let Capsule { id, head, data, invalidate, signaled } = capsule;
        let work = Work::Send { head: Inline::new(head), data, invalidate, solicited: false };
        Self { id, work, signaled }
    }
}

/// Why a work request was not taken. It comes back in the error.
#[derive(Debug, thiserror::Error)]
pub enum PostError {
    /// The send queue has as many outstanding requests as it was created for.
    #[error("the send queue is full")]
    Full(Box<SendRequest>),
    /// The queue pair has ended or is ending.
    #[error("the queue pair has ended")]
    Ended(Box<SendRequest>),
    /// The peer lets us have no READ outstanding.
    #[error("the peer accepts no RDMA READ")]
    NoReads(Box<SendRequest>),
    /// The memory belongs to no pool that the queue pair was made with.
    #[error("the memory is not registered with the device")]
    Unregistered(Box<SendRequest>),
    /// The remote range wraps around the end of the address space, so that no region can hold it.
    #[error("the remote range wraps around the address space")]
    Range(Box<SendRequest>),
}
