//! How a stream has ended.

use std::io;
use std::time::Duration;

/// Why an established connection ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DisconnectReason {
    /// We disconnected.
    #[error("disconnected here")]
    Local,
    /// The peer closed the stream in an orderly way.
    #[error("the peer closed the connection")]
    PeerClosed,
    /// The socket failed.
    #[error("the connection broke: {0}")]
    Broken(String),
    /// The peer sent a Terminate message.
    #[error("the peer sent a Terminate: {0}")]
    PeerTerminated(String),
    /// The peer violated the protocol, and we sent a Terminate.
    #[error("protocol violation: {0}")]
    Violation(String),
}

impl DisconnectReason {
    /// What is known beyond the kind, for a connection that was never established.
    pub(crate) fn into_detail(self) -> String {
        match self {
            Self::Broken(what) | Self::PeerTerminated(what) | Self::Violation(what) => what,
            Self::Local | Self::PeerClosed => self.to_string(),
        }
    }
}

/// How a stream has ended.
#[derive(Debug)]
pub(crate) enum End {
    /// There is no TCP connection.
    Refused(io::Error),
    /// It was not established in time.
    TimedOut {
        /// Whether there was a TCP connection at least.
        connected: bool,
        limit: Duration,
    },
    /// It ended before it was established, other than by our will.
    Unopened(DisconnectReason),
    /// It has ended.
    Disconnected(DisconnectReason),
}

/// What keeps a protocol from going on.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The peer broke the protocol. What is to be said about it waits to be sent.
    Violation(String),
    /// There is nothing more to say.
    Ended(DisconnectReason),
    /// The peer may understand another attempt to connect.
    Retry,
}
