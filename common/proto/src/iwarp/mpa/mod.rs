//! Connection establishment: MPA Request and Reply frames (RFC 5044, section 7.1) and their enhanced form (RFC 6581).
//!
//! Both roles are state machines without I/O. Feed received bytes; what is not consumed belongs to the FPDU stream.

mod frame;
mod initiator;
mod responder;

pub use initiator::{Initiator, Outcome};
pub use responder::Responder;

pub use ringfab_spec::iwarp::{DEPTH_MAX, MPA_PRIVATE_DATA_BYTES_MAX as PRIVATE_DATA_LEN_MAX};

use thiserror::Error;

/// Which side of the connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Sent the Request.
    Initiator,
    /// Sent the Reply.
    Responder,
}

/// MPA revisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Revision {
    /// RFC 5044.
    One,
    /// RFC 6581.
    Two,
}

/// The kinds of first message in peer-to-peer mode (RFC 6581, section 4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadyToReceive {
    /// A Send of no bytes.
    Send,
    /// An RDMA Write of no bytes.
    Write,
    /// An RDMA Read of no bytes.
    Read,
}

/// A set of first messages that a side can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadySet {
    /// A Send of no bytes.
    pub send: bool,
    /// An RDMA Write of no bytes.
    pub write: bool,
    /// An RDMA Read of no bytes.
    pub read: bool,
}

impl ReadySet {
    /// All three.
    pub const ALL: Self = Self { send: true, write: true, read: true };

    fn intersection(self, other: Self) -> Self {
        Self {
            send: self.send && other.send,
            write: self.write && other.write,
            read: self.read && other.read,
        }
    }

    /// The cheapest kind: a Write needs no answer and no buffer, a Send no answer.
    fn cheapest(self) -> Option<ReadyToReceive> {
        if self.write {
            Some(ReadyToReceive::Write)
        } else if self.send {
            Some(ReadyToReceive::Send)
        } else if self.read {
            Some(ReadyToReceive::Read)
        } else {
            None
        }
    }
}

impl From<ReadyToReceive> for ReadySet {
    fn from(ready: ReadyToReceive) -> Self {
        Self {
            send: ready == ReadyToReceive::Send,
            write: ready == ReadyToReceive::Write,
            read: ready == ReadyToReceive::Read,
        }
    }
}

/// What this side brings to the negotiation.
#[derive(Clone, Copy, Debug)]
pub struct MpaConfig {
    /// The highest revision to use.
    pub revision: Revision,
    /// Whether to ask for CRCs. They are used when either side asks.
    pub crc: bool,
    /// The most incoming RDMA Reads to serve at a time; values above [`DEPTH_MAX`] count as that.
    pub ird: u16,
    /// The most outgoing RDMA Reads to have outstanding; values above [`DEPTH_MAX`] count as that.
    pub ord: u16,
    /// Initiator: ask for peer-to-peer mode with one of these first messages. A responder offers all of them.
    pub peer_to_peer: Option<ReadySet>,
}

impl Default for MpaConfig {
    fn default() -> Self {
        Self { revision: Revision::Two, crc: true, ird: 128, ord: 128, peer_to_peer: None }
    }
}

/// What both sides agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// Which side this is.
    pub role: Role,
    /// The revision in use.
    pub revision: Revision,
    /// Whether CRCs are generated and checked.
    pub crc: bool,
    /// The most incoming RDMA Reads that the peer may have outstanding.
    pub ird: u16,
    /// The most outgoing RDMA Reads that this side may have outstanding.
    pub ord: u16,
    /// In peer-to-peer mode, the initiator's first message.
    pub ready: Option<ReadyToReceive>,
}

/// Why no connection came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MpaError {
    /// The first bytes are not those of the expected frame.
    #[error("the peer does not speak MPA: byte {offset} of its key is {found:#04x}")]
    Key {
        /// The offset of the first wrong byte.
        offset: usize,
        /// The byte.
        found: u8,
    },
    /// The first bytes are those of the other transport.
    #[error("the peer speaks NVMe/TCP, not NVMe/RDMA over iWARP")]
    NvmeTcp,
    /// The frame announces more private data than allowed.
    #[error("the peer announces {0} bytes of private data, at most {PRIVATE_DATA_LEN_MAX} are allowed")]
    PrivateDataLen(u16),
    /// The owner passed more private data than fits.
    #[error("{0} bytes of private data do not fit into the MPA frame")]
    PrivateDataTooLong(usize),
    /// The revision is unknown, or above what this side was told to use.
    #[error("the peer uses MPA revision {0}, which is not supported here")]
    Revision(u8),
    /// The peer cannot receive without markers, which this side does not send.
    #[error("the peer requires MPA markers, which are not supported here")]
    Markers,
    /// An enhanced frame without room for its four bytes.
    #[error("an enhanced MPA frame has {0} bytes of private data, it needs at least 4")]
    EnhancedLen(u16),
    /// The responder answered an enhanced request in revision 1: connect again with [`Revision::One`], on a new TCP
    /// connection, because it took the enhanced fields for private data.
    #[error("the peer speaks only MPA revision 1")]
    OnlyRevisionOne,
    /// The responder answered an enhanced request in revision 2, but without the enhanced fields it must carry.
    #[error("the peer answered an enhanced MPA request without its enhanced fields")]
    NotEnhanced,
    /// The responder wants more incoming reads than this side offered.
    #[error("the peer wants {wanted} outstanding RDMA Reads, this side serves {ird}")]
    InsufficientIrd {
        /// What the peer will use as ORD.
        wanted: u16,
        /// What this side offered as IRD.
        ird: u16,
    },
    /// Peer-to-peer mode without a first message that both sides can do.
    #[error("no first message for peer-to-peer mode that both sides can do")]
    NoMatchingReady,
    /// A call that does not fit the state, such as accepting before the Request is complete.
    #[error("the MPA exchange is not in the state for this call")]
    State,
}

impl MpaError {
    /// The Terminate that tells an accepting responder about the failure, for errors that an initiator finds in a
    /// Reply.
    #[must_use]
    pub fn terminate_code(self) -> super::TerminateCode {
        match self {
            Self::InsufficientIrd { .. } => super::TerminateCode::MPA_INSUFFICIENT_IRD,
            Self::NoMatchingReady => super::TerminateCode::MPA_NO_MATCHING_RTR,
            _ => super::TerminateCode::MPA_INVALID_FRAME,
        }
    }
}
