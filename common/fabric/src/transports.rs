//! A core's end of both transports, for who speaks either.

use ringfab_memory::Pool;
use ringfab_reactor::Reactor;

use crate::copied::CopiedBytes;
use crate::events::Events;
use crate::rdma::{self, QueuePairId, Rnic};
use crate::tcp::{self, ConnectionId, TcpStack};

/// Receives that rest at once. Each takes some microseconds, which nobody should notice.
const RESTS_MAX: usize = 64;

/// A connection of either kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A queue pair.
    Rdma(QueuePairId),
    /// A connection of NVMe/TCP.
    Tcp(ConnectionId),
}

impl Endpoint {
    /// How many kinds there are.
    pub const KINDS: usize = 2;

    /// Which of [`Endpoint::KINDS`] tables it is in, and where there: small and dense for each.
    pub fn place(self) -> (usize, usize) {
        match self {
            Self::Rdma(queue_pair) => (0, queue_pair.index as usize),
            Self::Tcp(connection) => (1, connection.index as usize),
        }
    }
}

/// Events of all transports, while they are looked at.
#[derive(Debug, Default)]
pub struct TransportEvents {
    /// Of NVMe/RDMA.
    pub rdma: Events<rdma::RnicEvent>,
    /// Of NVMe/TCP.
    pub tcp: Events<tcp::TcpEvent>,
}

/// A core's end of all transports.
#[derive(Debug)]
pub struct Transports {
    /// Of NVMe/RDMA.
    pub rnic: Rnic,
    /// Of NVMe/TCP.
    pub tcp: TcpStack,
}

impl Transports {
    /// Once per turn, after whatever may have freed buffers: resumes what waited for them. Returns whether something
    /// did.
    pub fn poll(&mut self, reactor: &mut Reactor) -> bool {
        self.rnic.poll(reactor) | self.tcp.poll(reactor)
    }

    /// Sends what was posted.
    pub fn flush(&mut self, reactor: &mut Reactor) {
        self.rnic.flush(reactor);
        self.tcp.flush(reactor);
    }

    /// Whether the core may sleep in its ring.
    pub fn may_sleep(&mut self, reactor: &mut Reactor) -> bool {
        self.rnic.may_sleep(reactor) && self.tcp.may_sleep()
    }

    /// Some times a second: gives back memory that has not been used for some time. What a core keeps for the next
    /// connections, and for those that receive, is bounded; most pages of those that are idle go.
    pub fn trim(&mut self, reactor: &mut Reactor) {
        self.rnic.trim();
        self.tcp.trim();
        reactor.trim_receives(RESTS_MAX);
    }

    /// What was copied, over both.
    pub fn copied_bytes(&self) -> CopiedBytes {
        let (rdma, tcp) = (self.rnic.counters().copied_bytes, self.tcp.counters().copied_bytes);
        CopiedBytes { received: rdma.received + tcp.received, sent: rdma.sent + tcp.sent }
    }

    /// From now on, what a connection receives that was not asked for goes into buffers of another share of the same
    /// pool. An RDMA device has memory of its own for that.
    pub fn set_receive_pool(&mut self, endpoint: Endpoint, pool: &Pool) {
        match endpoint {
            Endpoint::Rdma(queue_pair) => self.rnic.set_receive_pool(queue_pair, pool),
            Endpoint::Tcp(connection) => self.tcp.set_receive_pool(connection, pool),
        }
    }

    /// Ends a connection: what was posted before is still sent. Its last event follows.
    pub fn disconnect(&mut self, reactor: &mut Reactor, endpoint: Endpoint) {
        match endpoint {
            Endpoint::Rdma(queue_pair) => self.rnic.disconnect(reactor, queue_pair),
            Endpoint::Tcp(connection) => self.tcp.disconnect(reactor, connection),
        }
    }

    /// Ends a connection without sending what was posted. Its last event follows.
    pub fn abort(&mut self, reactor: &mut Reactor, endpoint: Endpoint) {
        match endpoint {
            Endpoint::Rdma(queue_pair) => self.rnic.abort(reactor, queue_pair),
            Endpoint::Tcp(connection) => self.tcp.abort(reactor, connection),
        }
    }
}
