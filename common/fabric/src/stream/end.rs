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
    /// What protects the connection failed: the peer sent an alert, or a record that no one could have sealed who has
    /// the key.
    #[error("TLS: {0}")]
    Insecure(String),
    /// The stream ended, but the peer has not said over TLS that it ends. It may have closed in haste, or somebody
    /// between the ends has cut off what it still had to say.
    #[error("the connection was cut off: its stream ended without TLS's close_notify")]
    Truncated,
}

impl DisconnectReason {
    /// What is known beyond the kind, for a connection that was never established.
    pub(crate) fn into_detail(self) -> String {
        match self {
            Self::Broken(what)
            | Self::PeerTerminated(what)
            | Self::Violation(what)
            | Self::Insecure(what) => what,
            Self::Local | Self::PeerClosed | Self::Truncated => self.to_string(),
        }
    }

    /// What a failed operation says of the connection.
    pub(crate) fn of(error: &io::Error) -> Self {
        let known = error.get_ref().and_then(|inner| inner.downcast_ref::<Self>());
        known.cloned().unwrap_or_else(|| Self::Broken(error.to_string()))
    }
}

impl From<DisconnectReason> for io::Error {
    fn from(reason: DisconnectReason) -> Self {
        Self::other(reason)
    }
}

/// How far a connection came that is to be established.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// There was no TCP connection.
    Connect,
    /// The TLS handshake was not complete.
    Secure,
    /// The two sides have not agreed, as the protocol provides.
    Open,
}

/// How a stream has ended.
#[derive(Debug)]
pub(crate) enum End {
    /// There is no TCP connection.
    Refused(io::Error),
    /// It was not established in time.
    TimedOut { step: Step, limit: Duration },
    /// There was a TCP connection, and no TLS over it.
    Unsecured(String),
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
