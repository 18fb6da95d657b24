//! Moves bytes: the verbs-shaped RDMA interface and its providers, and NVMe/TCP.
//!
//! The NVMe/RDMA code of both ends uses [`rdma`]. It has two providers: the software RNIC ([`rdma::iwarp`]), which
//! implements MPA, DDP and RDMAP over a TCP socket of the core's reactor, and RDMA devices (`rdma::verbs`). [`tcp`] has
//! the connections of NVMe/TCP, which carry capsules and data themselves, over TLS or in clear text. `stream` has the
//! life of a TCP connection, for NVMe/TCP and the software RNIC.
//!
//! Not implemented here: Fibre Channel, unreliable queue pairs, and RDMA atomics.

mod copied;
mod events;
mod peers;
pub mod rdma;
mod stream;
mod table;
pub mod tcp;
mod transports;
mod zone;

pub use copied::CopiedBytes;
pub use events::Events;
pub use peers::{PeerCounts, network_of};
pub use transports::{Endpoint, TransportEvents, Transports};
pub use zone::{ZoneError, ZonedIp, is_link_local, zone_index};
