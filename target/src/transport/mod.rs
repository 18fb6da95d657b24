//! How a queue's capsules and data move. A transport only moves bytes. A queue owns the life of its requests, and sees
//! a transport as its [`Link`].
//!
//! Each transport has a module: how data is fetched, how it is sent with the response, and how a connection arrives.
//! This module has the types that they share.

mod link;
pub(crate) mod rdma;
pub(crate) mod tcp;

use std::net::SocketAddr;

use ringfab_fabric::rdma::DisconnectReason;
pub(crate) use ringfab_fabric::{Endpoint, Transports};
use ringfab_memory::Buffer;
use ringfab_reactor::Reactor;
use ringfab_spec::SubmissionEntry;

use crate::nvm::{DataBytes, HostMemory};
pub(crate) use link::Link;

/// A listener, whatever its transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListenerId {
    Rdma(ringfab_fabric::rdma::ListenerId),
    Tcp(ringfab_fabric::tcp::ListenerId),
}

/// A connection that wants to become a queue. It may travel to another core.
#[derive(Debug)]
pub(crate) enum IncomingConnection {
    Rdma(ringfab_fabric::rdma::ConnectRequest),
    Tcp(Box<ringfab_fabric::tcp::Incoming>),
}

impl IncomingConnection {
    /// Whether it came on a listener.
    pub(crate) fn is_on(&self, listener: ListenerId) -> bool {
        match self {
            Self::Rdma(request) => listener == ListenerId::Rdma(request.listener),
            Self::Tcp(incoming) => listener == ListenerId::Tcp(incoming.listener),
        }
    }

    /// The host's address, and ours.
    pub(crate) fn addresses(&self) -> (SocketAddr, SocketAddr) {
        match self {
            Self::Rdma(request) => (request.peer, request.local),
            Self::Tcp(incoming) => (incoming.peer, incoming.local),
        }
    }
}

/// Who is told what has happened on connections. A transport tells what an event of its own says by reference where it
/// is large: a command would be moved once for each place that it passes through on its way to its request.
pub(crate) trait TransportHandler {
    /// A connection has come.
    fn on_incoming(&mut self, connection: IncomingConnection);

    /// A command capsule has come; `None` when it was too short for one. `intact` is whether the transport vouches for
    /// the data.
    fn on_capsule(
        &mut self,
        endpoint: Endpoint,
        command: Option<&SubmissionEntry>,
        data: Option<Buffer>,
        intact: bool,
    );

    /// A piece of a host's data is here, or its memory is lost with the connection.
    fn on_fetched(&mut self, endpoint: Endpoint, id: FetchId, sink: Option<Buffer>, intact: bool);

    /// So many of what was posted to answer commands, responses and pieces of data, have been sent.
    fn on_sent(&mut self, endpoint: Endpoint, count: u32);

    /// A connection has ended, and nothing of it is in flight.
    fn on_disconnected(&mut self, endpoint: Endpoint, disconnection: Disconnection<'_>);
}

/// How a connection has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Disconnection<'a> {
    /// What is to be said about it.
    pub(crate) why: &'a str,
    /// Whether one end found the other to break the protocol.
    pub(crate) broken: bool,
    /// Whether the peer has not said over TLS that it ends.
    pub(crate) truncated: bool,
}

impl Disconnection<'_> {
    /// Tells of a connection that was up.
    pub(crate) fn report(reason: &DisconnectReason, endpoint: Endpoint, handler: &mut impl TransportHandler) {
        let broken = matches!(reason, DisconnectReason::Violation(_) | DisconnectReason::PeerTerminated(_));
        let truncated = *reason == DisconnectReason::Truncated;
        handler.on_disconnected(endpoint, Disconnection { why: &reason.to_string(), broken, truncated });
    }
}

impl<'a> Disconnection<'a> {
    /// A connection that never was up.
    pub(crate) fn before_established(why: &'a str) -> Self {
        Self { why, broken: false, truncated: false }
    }
}

pub(crate) fn close_listener(transports: &mut Transports, reactor: &mut Reactor, listener: ListenerId) {
    match listener {
        ListenerId::Rdma(listener) => transports.rnic.close_listener(reactor, listener),
        ListenerId::Tcp(listener) => transports.tcp.close_listener(reactor, listener),
    }
}

/// Names what is fetched: for which life of which request, and which piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FetchId {
    pub(crate) slot: u16,
    pub(crate) generation: u16,
    pub(crate) piece: u8,
}

impl FetchId {
    /// Unpacks what [`FetchId::to_bits`] packed.
    fn from_bits(bits: u64) -> Self {
        let [s0, s1, g0, g1, piece, ..] = bits.to_le_bytes();
        let (slot, generation) = (u16::from_le_bytes([s0, s1]), u16::from_le_bytes([g0, g1]));
        Self { slot, generation, piece }
    }

    fn to_bits(self) -> u64 {
        let ([s0, s1], [g0, g1]) = (self.slot.to_le_bytes(), self.generation.to_le_bytes());
        u64::from_le_bytes([s0, s1, g0, g1, self.piece, 0, 0, 0])
    }
}

/// The data of one request on their way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommandData {
    pub(crate) slot: u16,
    pub(crate) generation: u16,
    /// The command's identifier.
    pub(crate) cid: u16,
    /// Where the host has its end of them.
    pub(crate) memory: HostMemory,
    pub(crate) length: DataBytes,
}

impl CommandData {
    /// What a piece of it is called while it is fetched.
    fn fetch_id(&self, piece: u8) -> u64 {
        FetchId { slot: self.slot, generation: self.generation, piece }.to_bits()
    }
}

/// A part of the data, in memory of ours.
#[derive(Debug)]
pub(crate) struct Piece<T> {
    pub(crate) index: u8,
    /// First byte in the command's data.
    pub(crate) offset: u32,
    pub(crate) length: u32,
    pub(crate) memory: T,
}

/// Why something could not be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkError {
    /// The connection has ended, which it reports on its own.
    Ended,
    /// The host's memory cannot be reached: it accepts no reads, or its range is none.
    Unreachable,
}

#[cfg(test)]
mod tests {
    use super::FetchId;

    #[test]
    fn a_work_identifier_survives_its_packing() {
        let id = FetchId { slot: 1023, generation: 65_535, piece: 7 };
        assert_eq!(FetchId::from_bits(id.to_bits()), id);
    }
}
