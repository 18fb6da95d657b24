//! What comes back from an operation.

use std::io;
use std::net::SocketAddr;

use ringfab_base::SlotId;
use ringfab_memory::{Buffer, SharedBuffer};

use crate::{Datagram, ListenAddr, ReceiveOp, SendBatch, Token};

/// A stream socket of this reactor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SocketId(pub(crate) SlotId);

/// A socket of this reactor for datagrams.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DatagramSocketId(pub(crate) SlotId);

/// A listening socket of this reactor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ListenerId(pub(crate) SlotId);

/// A listener that was bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bind {
    /// Its handle.
    pub listener: ListenerId,
    /// The address it got.
    pub address: ListenAddr,
}

/// A file or block device open in this reactor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FileId(pub(crate) SlotId);

/// A timer that was set.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TimerId(pub(crate) SlotId);

/// Who is at the other end of an accepted socket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PeerAddr {
    /// A TCP peer.
    Tcp(SocketAddr),
    /// A process on this machine, through a Unix socket.
    Unix,
}

/// An operation has ended. A timer and a multi-shot accept use the same shape.
#[derive(Debug)]
pub struct Completion {
    /// What the starter wrote on the operation.
    pub token: Token,
    /// Bytes moved (or zero), or the kernel's error. An operation ended by closing its socket or file says
    /// `ECANCELED`.
    pub result: io::Result<u32>,
    /// What the operation held, given back.
    pub payload: Payload,
}

/// What an operation held while it was in flight.
#[derive(Debug)]
pub enum Payload {
    /// Nothing: connect, sync, allocate, timer, poll.
    None,
    /// The size of a file in bytes.
    FileBytes(u64),
    /// The buffer of a file read.
    Buffer(Buffer),
    /// The source of a file write.
    SharedBuffer(SharedBuffer),
    /// The receive operation, which says what arrived where.
    Receive(Box<ReceiveOp>),
    /// The batch that was sent, with its shared buffers.
    Send(Box<SendBatch>),
    /// A datagram that was sent, or what was received.
    Datagram(Box<Datagram>),
    /// A connection that a listener accepted.
    Accepted(SocketId, PeerAddr),
}
