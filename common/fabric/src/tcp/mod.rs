//! NVMe/TCP: one core's connections of either role, each over a socket of the core's reactor.
//!
//! The protocol itself lives in [`ringfab_proto::tcp`], which sees bytes and handles only. Here are the socket, the
//! memory behind the handles, and time.
//!
//! Rules of the house:
//! - What was given to a connection (sinks, sources) comes back with an event or ends with the connection.
//! - [`TcpEvent::Disconnected`] or [`TcpEvent::ConnectFailed`] is the last event of a connection: nothing of it is in
//!   flight, and it holds no memory.
//! - A peer reaches only the memory of what is outstanding on its own connection.
//!
//! | module | what it has |
//! | --- | --- |
//! | `stack` | the interface of a core's connections, which are streams |
//! | `connection` | what the protocol adds to a stream |
//! | `receive`, `inbound`, `transmit` | what comes, the memory for it, and what is sent |

mod config;
mod connection;
mod event;
mod inbound;
mod receive;
mod stack;
mod transmit;

pub use config::{AcceptParameters, ConnectParameters, ListenParameters, TcpConfig};
pub use event::{ConnectError, ConnectionId, DisconnectReason, Incoming, TcpEvent};
pub use ringfab_auth::{CipherSuite, Secret};
pub use ringfab_proto::tcp::Digests;
pub use ringfab_reactor::{ListenerId, kernel_tls_is_prepared, prepare_kernel_tls};
pub use ringfab_tls::{Psk, PskStore};
pub use stack::{Counters, TcpStack};
pub use transmit::{C2hData, Ended, SubmitData};

pub use crate::stream::{ListenerTls, ProtectedBy, Security};
