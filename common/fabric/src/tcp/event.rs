//! What a core's NVMe/TCP reports.

use std::net::SocketAddr;

use ringfab_memory::Buffer;
use ringfab_proto::tcp::Negotiated;
use ringfab_reactor::{DetachedSocket, ListenerId};
use ringfab_spec::{CompletionEntry, SubmissionEntry};

pub use crate::stream::DisconnectReason;
use crate::stream::{Carried, Security};
use crate::table::Key;

/// A connection of this core. Handles of ended ones are recognised and ignored.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ConnectionId {
    /// Slot in the table; small and dense, so that a caller may index by it.
    pub index: u32,
    /// Generation of the slot.
    pub generation: u32,
}

/// Something has happened.
#[derive(Debug)]
pub enum TcpEvent {
    /// A listener has a connection that wants to send its first command: adopt it with [`super::TcpStack::accept`],
    /// on this or another core. Dropping it closes the connection.
    Incoming(Box<Incoming>),
    /// To a controller: a command capsule.
    Command {
        /// On this connection.
        connection: ConnectionId,
        /// The command.
        sqe: SubmissionEntry,
        /// Its in-capsule data, from the first byte of a pool buffer.
        data: Option<Buffer>,
        /// Whether the data digest was right.
        intact: bool,
    },
    /// To a controller: data that were asked for. The memory is back; without it, the connection has ended.
    Data {
        /// On this connection.
        connection: ConnectionId,
        /// The asker's name for this piece.
        id: u64,
        /// The piece.
        sink: Option<Buffer>,
        /// Whether the data digests of the transfer were right.
        intact: bool,
    },
    /// To a controller: responses and data were sent.
    Sent {
        /// On this connection.
        connection: ConnectionId,
        /// How many, in the order in which they were given.
        count: u32,
    },
    /// To a host: the controller has answered ICReq; commands can be sent.
    Established {
        /// The connection.
        connection: ConnectionId,
    },
    /// To a host: a command has its answer, and its data are where they belong.
    Response {
        /// On this connection.
        connection: ConnectionId,
        /// The answer. When the controller said SUCCESS with the last data it was not sent: SQHD is FFFFh then.
        cqe: CompletionEntry,
        /// Whether the data digests were right.
        intact: bool,
        /// Bytes of data that the controller has sent.
        received: u32,
    },
    /// The connection could not be made.
    ConnectFailed {
        /// The connection, which is gone.
        connection: ConnectionId,
        /// At which step, and why.
        error: ConnectError,
    },
    /// A connection has ended and nothing of it is in flight.
    Disconnected {
        /// The connection, which is gone.
        connection: ConnectionId,
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
    /// What listens there answers the request to initialize the connection with something else than its response, or
    /// with one that cannot be agreed with.
    #[error("ICReq: {0}")]
    Initialize(String),
    /// The peer closed or broke the connection before any response.
    #[error("ICReq: the connection ended before the response: {0}")]
    InitializeEnded(String),
    /// The connection could not be protected.
    #[error("TLS handshake: {0}")]
    Tls(String),
    /// Nothing came in time.
    #[error("{step}: no answer within {seconds} s")]
    TimedOut {
        /// `connect`, `TLS handshake` or `ICReq`.
        step: &'static str,
        /// The limit.
        seconds: u64,
    },
}

/// A connection after ICReq and ICResp, with the header of its first capsule. It may travel to another core.
#[derive(Debug)]
pub struct Incoming {
    /// The listener that took it.
    pub listener: ListenerId,
    /// Our end of it.
    pub local: SocketAddr,
    /// Where it comes from.
    pub peer: SocketAddr,
    /// The first command as it was sent, unchecked: the queue that a Connect names says where the connection should go.
    pub first: SubmissionEntry,
    /// The controller that the data of a Connect name, where they came with it; unchecked, too.
    pub controller_id: Option<u16>,
    /// How it is protected by TLS, if it is.
    pub security: Option<Security>,
    pub(super) socket: DetachedSocket,
    pub(super) negotiated: Negotiated,
    /// What was received of the first capsule.
    pub(super) bytes: Vec<u8>,
    /// What goes on protecting it.
    pub(super) tls: Option<Carried>,
}

impl From<Key> for ConnectionId {
    fn from(key: Key) -> Self {
        Self { index: key.index, generation: key.generation }
    }
}

impl From<ConnectionId> for Key {
    fn from(id: ConnectionId) -> Self {
        Self { index: id.index, generation: id.generation }
    }
}
