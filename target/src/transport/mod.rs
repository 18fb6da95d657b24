//! How a queue's capsules and data move. A transport only moves bytes. A queue owns the life of its requests, and sees
//! a transport as its [`Link`].
//!
//! Each transport has a module: how data is fetched, how it is sent with the response, and how a connection arrives.
//! This module has the types that they share.

pub(crate) mod rdma;
pub(crate) mod tcp;

use std::net::SocketAddr;

use ringfab_fabric::rdma::DisconnectReason;
pub(crate) use ringfab_fabric::{Endpoint, Transports};
use ringfab_memory::{Buffer, SharedBuffer};
use ringfab_reactor::Reactor;
use ringfab_spec::{CompletionEntry, SubmissionEntry};

use crate::nvm::{DataBytes, HostMemory};

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

/// A queue's end of its connection, with the room for what is in flight on it.
#[derive(Debug)]
pub(crate) struct Link {
    endpoint: Endpoint,
    depth: u32,
    used: u32,
    /// What was posted to answer commands, and what of it has been sent; both wrap around.
    posted: u32,
    sent: u32,
}

impl Link {
    /// What a queue of so many entries has in flight at most: a data transfer and a response for each. A command of
    /// many pieces waits until there is room for all of them.
    pub(crate) fn depth(entries: u16) -> u32 {
        u32::from(entries) * 2 + Self::PIECES_MAX + 1
    }

    /// The most pieces of one command's data.
    const PIECES_MAX: u32 = 64;

    pub(crate) fn new(endpoint: Endpoint, entries: u16) -> Self {
        Self { endpoint, depth: Self::depth(entries), used: 0, posted: 0, sent: 0 }
    }

    /// Its connection.
    pub(crate) fn endpoint(&self) -> Endpoint {
        self.endpoint
    }

    /// Whether the host's end of data can be of this kind.
    pub(crate) fn reaches(&self, memory: &HostMemory) -> bool {
        match memory {
            HostMemory::None | HostMemory::Capsule { .. } => true,
            HostMemory::Registered { .. } => matches!(self.endpoint, Endpoint::Rdma(_)),
            HostMemory::Transport => matches!(self.endpoint, Endpoint::Tcp(_)),
        }
    }

    /// Whether data may be sent from wherever they lie. A device reaches what was registered with it, and nothing else.
    pub(crate) fn sends_from_anywhere(&self) -> bool {
        match self.endpoint {
            Endpoint::Rdma(queue_pair) => !queue_pair.is_of_device(),
            Endpoint::Tcp(_) => true,
        }
    }

    /// Whether so much can be posted now.
    pub(crate) fn has_room(&self, count: usize) -> bool {
        self.depth - self.used >= count as u32
    }

    /// Whether nothing is in flight to the host.
    pub(crate) fn is_idle(&self) -> bool {
        self.used == 0
    }

    /// So many things in flight have ended: their room is free again.
    pub(crate) fn completed(&mut self, count: u32) {
        // Data whose response was refused are counted when they have been sent, and never were before.
        self.used = self.used.saturating_sub(count);
    }

    /// So many of what was posted to answer commands have been sent.
    pub(crate) fn sent(&mut self, count: u32) {
        self.completed(count);
        self.sent = self.sent.wrapping_add(count);
    }

    /// How much was posted to answer commands so far.
    pub(crate) fn posted(&self) -> u32 {
        self.posted
    }

    /// Whether everything has been sent that was posted until then.
    pub(crate) fn has_sent(&self, posted: u32) -> bool {
        self.sent.wrapping_sub(posted) as i32 >= 0
    }

    /// Has the host's data moved into `sinks`. [`Event::Fetched`] follows for as many of them as are returned, beside
    /// what kept the others from being posted.
    pub(crate) fn fetch(
        &mut self,
        transports: &mut Transports,
        command: &CommandData,
        sinks: impl Iterator<Item = Piece<Buffer>>,
    ) -> (u16, Result<(), LinkError>) {
        let (posted, outcome) = match self.endpoint {
            Endpoint::Rdma(queue_pair) => rdma::fetch(&mut transports.rnic, queue_pair, command, sinks),
            Endpoint::Tcp(connection) => tcp::fetch(&mut transports.tcp, connection, command, sinks),
        };
        self.used += u32::from(posted);
        (posted, outcome)
    }

    /// Sends data, if there are any, and the response behind them, unless the last of `count` pieces says what it
    /// would.
    pub(crate) fn answer(
        &mut self,
        transports: &mut Transports,
        command: &CommandData,
        (count, data): (usize, impl Iterator<Item = Piece<SharedBuffer>>),
        entry: &CompletionEntry,
    ) -> Result<(), LinkError> {
        let response = match self.endpoint {
            Endpoint::Rdma(queue_pair) => {
                rdma::answer(&mut transports.rnic, queue_pair, command, data, entry)?;
                true
            }
            Endpoint::Tcp(connection) => {
                tcp::answer(&mut transports.tcp, connection, command, (count, data), entry)?
            }
        };
        let count = count as u32 + u32::from(response);
        self.used += count;
        self.posted = self.posted.wrapping_add(count);
        Ok(())
    }

    /// Lets the host send another command.
    pub(crate) fn replenish(&self, transports: &mut Transports) {
        if let Endpoint::Rdma(queue_pair) = self.endpoint {
            transports.rnic.post_receive(queue_pair, 1);
        }
    }
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
