//! NVMe/TCP: one core's connections of either role, each over a socket of the core's reactor.
//!
//! The protocol itself lives in [`ringfab_proto::tcp`], which sees bytes and handles only. Here are the socket, the memory
//! behind the handles, and time.
//!
//! Rules of the house:
//! - What was given to a connection (sinks, sources) comes back with an event or ends with the connection.
//! - [`Event::Disconnected`] or [`Event::ConnectFailed`] is the last event of a connection: nothing of it is in flight, and
//!   it holds no memory.
//! - A peer reaches only the memory of what is outstanding on its own connection.
//!
//! | module | what it has |
//! | --- | --- |
//! | `stack` | the tables of a core, and the interface |
//! | `listener` | listening sockets; what they accept are connections that nobody has adopted yet |
//! | `connection` | a connection with its phases |
//! | `receive`, `inbound`, `transmit` | its two loops, and the memory for what comes |
//! | `teardown` | its end |

mod config;
mod connection;
mod event;
mod inbound;
mod listener;
mod receive;
mod shared;
mod stack;
mod teardown;
mod transmit;

pub use config::{AcceptParameters, ConnectParameters, ListenParameters, TcpConfig};
pub use event::{ConnectError, DisconnectReason, Event, Incoming};
pub use ringfab_proto::tcp::Digests;
pub use ringfab_reactor::ListenerId;
pub use stack::{ConnectionId, Counters, TcpStack};
pub use transmit::{Ended, SubmitData};

/// What an operation of the reactor was started for: the `kind` of its token.
mod kind {
    /// A listener accepted a connection.
    pub(super) const ACCEPTED: u8 = 1;
    /// A TCP connection was made or refused.
    pub(super) const CONNECT: u8 = 2;
    /// Bytes of a connection.
    pub(super) const RECEIVE: u8 = 3;
    /// A batch of a connection was sent.
    pub(super) const SEND: u8 = 4;
    /// A connection's phase took too long.
    pub(super) const TIMER: u8 = 5;
}
