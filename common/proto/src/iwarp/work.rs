//! What the owner of a queue pair posts, and what it gets back.

use thiserror::Error;

/// Bytes that travel inside a work request, as a capsule does, so that small messages need no registered buffer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Inline {
    bytes: [u8; Inline::LEN_MAX],
    len: u8,
}

impl Inline {
    /// The most bytes of one: a command capsule without data.
    pub const LEN_MAX: usize = 64;

    /// No bytes.
    pub const EMPTY: Self = Self { bytes: [0; Self::LEN_MAX], len: 0 };

    /// A copy of `bytes`; more than [`Inline::LEN_MAX`] is a caller's error and panics.
    #[must_use]
    #[inline]
    pub fn new(bytes: &[u8]) -> Self {
        let mut inline = Self { len: bytes.len() as u8, ..Self::EMPTY };
        inline.bytes[..bytes.len()].copy_from_slice(bytes);
        inline
    }

    /// The bytes.
    #[must_use]
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl core::fmt::Debug for Inline {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Inline({} bytes)", self.len)
    }
}

/// A piece of the owner's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Local<H> {
    /// The owner's name for the memory.
    pub handle: H,
    /// The offset of the first byte.
    pub offset: u64,
    /// The length in bytes.
    pub len: u32,
}

/// An RDMAP Send of one of the four kinds (RFC 5040, section 5.3).
#[derive(Clone, Copy, Debug)]
pub struct SendRequest<H> {
    /// The first bytes of the message.
    pub inline: Inline,
    /// The rest of the message.
    pub payload: Option<Local<H>>,
    /// The peer's STag to invalidate.
    pub invalidate: Option<u32>,
    /// Whether the peer should raise a solicited event.
    pub solicited: bool,
}

/// The same, with inline bytes that stay where they are until the message is emitted.
#[derive(Clone, Copy, Debug)]
pub struct SendRef<'a, H> {
    /// The first bytes of the message, no more than [`Inline::LEN_MAX`].
    pub inline: &'a [u8],
    /// The rest of the message.
    pub payload: Option<Local<H>>,
    /// The peer's STag to invalidate.
    pub invalidate: Option<u32>,
    /// Whether the peer should raise a solicited event.
    pub solicited: bool,
}

impl<H: Copy> SendRef<'_, H> {
    /// The length of the message in bytes.
    #[inline]
    pub(crate) fn message_len(&self) -> u64 {
        self.inline.len() as u64 + self.payload.map_or(0, |local| u64::from(local.len))
    }
}

impl<H: Copy> SendRequest<H> {
    #[inline]
    pub(crate) fn borrowed(&self) -> SendRef<'_, H> {
        let &Self { ref inline, payload, invalidate, solicited } = self;
        SendRef { inline: inline.as_slice(), payload, invalidate, solicited }
    }
}

/// An RDMA Write (RFC 5040, section 5.1).
#[derive(Clone, Copy, Debug)]
pub struct WriteRequest<H> {
    /// The peer's STag.
    pub stag: u32,
    /// The tagged offset of the first byte at the peer.
    pub to: u64,
    /// What is written.
    pub payload: Local<H>,
}

/// An RDMA Read (RFC 5040, section 5.2).
#[derive(Clone, Copy, Debug)]
pub struct ReadRequest<H> {
    /// The peer's STag.
    pub stag: u32,
    /// The tagged offset of the first byte at the peer.
    pub to: u64,
    /// The STag that the response will name. It only has to match; placement follows `sink`.
    pub sink_stag: u32,
    /// The tagged offset that the response will start from.
    pub sink_to: u64,
    /// Where the data goes, and how much.
    pub sink: Local<H>,
}

/// A work request for the send queue.
#[derive(Clone, Copy, Debug)]
pub enum WorkRequest<H> {
    /// A Send.
    Send(SendRequest<H>),
    /// An RDMA Write.
    Write(WriteRequest<H>),
    /// An RDMA Read.
    Read(ReadRequest<H>),
}

impl<H: Copy> WorkRequest<H> {
    /// Which kind of work it is.
    #[must_use]
    pub fn kind(&self) -> WorkKind {
        match self {
            Self::Send(_) => WorkKind::Send,
            Self::Write(_) => WorkKind::Write,
            Self::Read(_) => WorkKind::Read,
        }
    }

    /// The owner's memory that the work uses.
    #[must_use]
    pub fn local(&self) -> Option<Local<H>> {
        match self {
            Self::Send(send) => send.payload,
            Self::Write(write) => Some(write.payload),
            Self::Read(read) => Some(read.sink),
        }
    }

    /// The length of the message in bytes.
    pub(crate) fn message_len(&self) -> u64 {
        let inline = match self {
            Self::Send(send) => send.inline.as_slice().len() as u64,
            Self::Write(_) | Self::Read(_) => 0,
        };
        inline + self.local().map_or(0, |local| u64::from(local.len))
    }
}

/// The kinds of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkKind {
    /// A Send.
    Send,
    /// An RDMA Write.
    Write,
    /// An RDMA Read.
    Read,
}

/// How a work request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkStatus {
    /// Send, Write: the transport has taken the bytes. Read: all data is in its place.
    Done,
    /// The connection ended first. The work may or may not have reached the peer.
    Flushed,
}

/// A work request that ended, and the memory that is the owner's again; or several that ended together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion<H> {
    /// The owner's number for the work request, the last one of several.
    pub wr_id: u64,
    /// How many work requests.
    pub count: u32,
    /// What kind of work it was, the last one of several.
    pub kind: WorkKind,
    /// The memory it used; none of what was emitted as it was posted, for which the sink took it.
    pub local: Option<Local<H>>,
    /// How it ended.
    pub status: WorkStatus,
}

/// Why a work request was not taken. It was not changed and can be posted again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PostError {
    /// The send queue is full.
    #[error("the send queue holds its maximum of {0} work requests")]
    Full(usize),
    /// The peer accepts no RDMA Read on this connection.
    #[error("the peer accepts no RDMA Read: the negotiated ORD is 0")]
    NoReads,
    /// The message is longer than 2^32 - 1 bytes, or its range wraps.
    #[error("the work request names a range that wraps, or a message beyond 4 GiB")]
    Range,
    /// The connection has ended.
    #[error("the connection has ended")]
    Ended,
}

/// The receive queue is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the receive queue holds its maximum of {0} buffers")]
pub struct RecvFull(pub usize);
