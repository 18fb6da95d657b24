//! What an RNIC reports.

use std::any::Any;
use std::net::SocketAddr;

use super::{DisconnectReason, ListenerId, QueuePairId};
use bytes::Bytes;
use ringfab_memory::Buffer;

/// The first bytes of a received message. Aligned, so that an event with them inside is moved in the words that it
/// was stored in.
#[derive(Clone, Copy, Debug)]
#[repr(align(8))]
pub struct ReceivedHead {
    /// The bytes; only the first `length` count.
    pub bytes: [u8; ReceivedHead::LENGTH_MAX],
    /// At most [`ReceivedHead::LENGTH_MAX`].
    pub length: u64,
}

impl ReceivedHead {
    /// The most bytes of one.
    pub const LENGTH_MAX: usize = 64;

    /// A copy of `bytes`, of which there are no more than [`ReceivedHead::LENGTH_MAX`]; more panic.
    #[inline]
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let mut head = Self { bytes: [0; Self::LENGTH_MAX], length: bytes.len() as u64 };
        head.bytes[..bytes.len()].copy_from_slice(bytes);
        head
    }

    /// The same of what has a length that is known: of a command or a response.
    #[inline(always)]
    pub(crate) fn whole<const N: usize>(bytes: &[u8; N]) -> Self {
        let mut head = Self { bytes: [0; Self::LENGTH_MAX], length: N as u64 };
        head.bytes[..N].copy_from_slice(bytes);
        head
    }

    /// The bytes that arrived.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.length as usize]
    }
}

/// A completion of a work request, or a step in a connection's life.
#[derive(Debug)]
pub enum RnicEvent {
    /// A SEND of the peer arrived; it took one receive credit.
    Received {
        /// On this queue pair.
        queue_pair: QueuePairId,
        /// Its first 64 bytes.
        head: ReceivedHead,
        /// What followed them, from the first byte of a pool buffer (page aligned).
        data: Option<Buffer>,
        /// The key of ours that it invalidated, if any. The memory has been revoked: see [`super::Rnic::revoke`].
        invalidated: Option<u32>,
    },
    /// A signaled SEND or WRITE is complete, and with it those before it: their memory is ours again (not that the
    /// peer has seen it). Several that complete together may be told of once.
    Sent {
        /// On this queue pair.
        queue_pair: QueuePairId,
        /// The poster's name for the last one that is signaled.
        id: u64,
        /// How many SENDs and WRITEs, signaled or not, have completed that no such event has counted.
        count: u32,
    },
    /// A READ is complete; the bytes are in `sink`.
    Read {
        /// On this queue pair.
        queue_pair: QueuePairId,
        /// The poster's name for it.
        id: u64,
        /// What was read.
        sink: Buffer,
    },
    /// A work request ended without effect that could be relied on, because the queue pair ended. SENDs and WRITEs
    /// that would have completed together may be told of once.
    Flushed {
        /// On this queue pair.
        queue_pair: QueuePairId,
        /// The poster's name for it, of several that of the last one that is signaled, or that of the first.
        id: u64,
        /// The buffer of a READ.
        sink: Option<Buffer>,
    },
    /// A listener has a connection request: answer it with [`super::Rnic::accept`] or [`super::Rnic::reject`], on
    /// this or another core's RNIC. Dropping it closes the connection.
    ConnectRequest(ConnectRequest),
    /// The peer accepted, or an accepted connection is ready to use. Over iWARP the accepting side's first work request
    /// starts only once something has arrived (RFC 5044, section 7.1.3), so the connecting side has to speak first.
    Established {
        /// The queue pair.
        queue_pair: QueuePairId,
        /// What the peer said.
        private_data: Bytes,
    },
    /// The peer answered with a reject.
    Rejected {
        /// The queue pair, which is gone.
        queue_pair: QueuePairId,
        /// What the peer said.
        private_data: Bytes,
    },
    /// The connection could not be made.
    ConnectFailed {
        /// The queue pair, which is gone.
        queue_pair: QueuePairId,
        /// At which step, and why.
        error: ConnectError,
    },
    /// An established connection has ended and nothing of it is in flight.
    Disconnected {
        /// The queue pair, which is gone.
        queue_pair: QueuePairId,
        /// Why.
        reason: DisconnectReason,
    },
}

/// Why a connection was not made.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No TCP connection.
    #[error("connect: {0}")]
    Connect(#[source] std::io::Error),
    /// The peer closed or broke the connection during the MPA exchange.
    #[error("MPA: the connection ended before the reply: {0}")]
    MpaEnded(String),
    /// What came was no valid MPA frame, or one that cannot be agreed with.
    #[error("MPA: {0}")]
    Mpa(String),
    /// Nothing came in time.
    #[error("{step}: no answer within {seconds} s")]
    TimedOut {
        /// `connect` or `MPA`.
        step: &'static str,
        /// The limit.
        seconds: u64,
    },
}

/// A connection that waits for an answer. It may travel to another core.
#[derive(Debug)]
pub struct ConnectRequest {
    /// The listener that took it.
    pub listener: ListenerId,
    /// Our end of it.
    pub local: SocketAddr,
    /// Where it comes from.
    pub peer: SocketAddr,
    /// What the peer said.
    pub private_data: Bytes,
    /// The most RDMA READs that the peer lets us have outstanding, if it said.
    pub initiator_depth_max: Option<u16>,
    /// What its provider keeps of it until then.
    pub(crate) pending: Box<dyn Any + Send>,
}
