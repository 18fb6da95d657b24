//! Streams: connections over TCP on a core's reactor, for any protocol.
//!
//! A [`Stream`] has a socket and the life of a connection: connecting or accepted, one receive and one send in flight,
//! a bound on every phase, draining, and an end, after which nothing is in flight and no memory is held. Its
//! [`Protocol`] interprets the bytes, says where the next ones go, and gathers what is sent. NVMe/TCP ([`crate::tcp`])
//! and the software RNIC ([`crate::rdma::iwarp`]) are protocols.
//!
//! | module | what it has |
//! | --- | --- |
//! | `copies` | what is copied from staging memory to its place |
//! | `security` | what a connection over TLS is made with, and what it has then |
//! | `wire`, `protection` | the socket, and TLS on it: by the kernel, or by this process |
//! | `table` | the streams of a core, by keys with generations |
//! | `life` | a stream and its phases until it is established |
//! | `secure` | the TLS handshake |
//! | `staging`, `outbox` | the memory that it receives into, what is gathered to be sent |
//! | `receive`, `transmit` | its two loops, which do everything with bytes and the socket |
//! | `intake` | what a receive has brought |
//! | `teardown` | its end |
//! | `listener` | listening sockets |
//! | `shared` | what the streams of a core have in common |

mod copies;
mod end;
mod intake;
mod life;
mod listener;
mod outbox;
mod protection;
mod receive;
mod receive_target;
mod secure;
mod security;
mod shared;
mod staging;
mod table;
mod teardown;
mod transmit;
mod wire;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use ringfab_memory::SharedBuffer;
use ringfab_reactor::{DetachedSocket, ListenerId, Reactor};

use crate::table::Key;

pub(crate) use copies::Copies;
pub use end::DisconnectReason;
pub(crate) use end::{End, Fault, Step};
pub(crate) use listener::Listen;
pub(crate) use outbox::Gather;
pub(crate) use receive_target::{Place, ReceiveTarget, TURN_EVENTS};
pub use security::{ListenerTls, ProtectedBy, Security};
pub(crate) use shared::{Counters, FRONTS_BYTES, Shared, StreamConfig, TlsConfig};
pub(crate) use table::{Adopted, Connect, Streams};
pub(crate) use wire::Carried;

/// What is spoken on a stream: one connection's protocol engine with the memory behind its handles.
///
/// It never touches the socket or the clock. It may rely on being called for one thing at a time, on
/// [`Protocol::finish`] coming last, when no receive and no send uses its memory any more, and on what it has gathered
/// being sent in order.
pub(crate) trait Protocol: Sized + fmt::Debug {
    /// What all connections of a core have in common.
    type Core: fmt::Debug;
    /// What is reported to the owner.
    type Event: fmt::Debug;
    /// What a listener brings to the connections that it accepts.
    type Terms: Copy + fmt::Debug;

    /// The first `kind` of the tokens of its operations; there are [`KINDS`] of them.
    const KIND_FIRST: u8 = 0;
    /// Staging memory of a stream: what the engine needs at once fits, and [`FRONTS_BYTES`] more if it is much.
    const STAGING_BYTES: usize;

    /// A connection that was accepted just now.
    fn accepted(key: Key, terms: Self::Terms) -> Self;

    /// The TCP connection is there, with these two ends (local, peer).
    fn connected(
        &mut self,
        _shared: &mut Shared<Self>,
        _reactor: &Reactor,
        _addresses: (SocketAddr, SocketAddr),
    ) {
    }

    /// Whether the two sides have agreed, so that the owner may give it work.
    fn is_established(&self) -> bool;

    /// Whether what a listener's connection has said, with what is not taken in of it, is enough to hand it out.
    fn is_adoptable(&self, _unread: &[u8]) -> bool {
        false
    }

    /// Whether somebody outside hears how it ends: not for a listener's connection that was not handed out yet.
    fn has_owner(&self) -> bool {
        true
    }

    /// Ends a listener's connection here and reports it, so that whoever hears of it adopts it.
    fn offer(self, _offered: Offered<'_>) -> Option<Self::Event> {
        None
    }

    /// Takes in the bytes `unread` of `staging`, and cuts off its front what it is done with. Says what to receive
    /// next.
    fn receive(
        &mut self,
        shared: &mut Shared<Self>,
        staging: &[u8],
        unread: &mut Range<usize>,
    ) -> Result<ReceiveTarget, Fault>;

    /// A range of the memory that it wanted to be filled was filled.
    fn placed(&mut self, shared_buffer: &SharedBuffer, range: Range<usize>);

    /// Sees what came into the staging memory before it is taken in.
    fn observe(&mut self, _shared: &mut Shared<Self>, _reactor: &Reactor, _bytes: &[u8]) {}

    /// The peer's stream has ended, behind so many bytes that are not taken in, or has failed before the connection was
    /// established. Says whether that means more than that the peer has closed.
    fn stream_ended(&mut self, _unread: usize) -> Option<Fault> {
        None
    }

    /// Whether there is something to send, be it gathered already.
    fn wants_transmit(&self) -> bool;

    /// Gathers what is to be sent, until there is no more or no more room, behind what was gathered as it was given.
    /// Returns what [`Protocol::transmitted`] shall be told of all of it.
    fn transmit(&mut self, shared: &mut Shared<Self>, reactor: &Reactor, gather: &mut Gather<'_>) -> usize;

    /// What was gathered up to the last [`Protocol::transmit`] has been sent.
    fn transmitted(&mut self, shared: &mut Shared<Self>, bytes: usize);

    /// What gathering found to be wrong.
    fn fault(&self) -> Option<Fault> {
        None
    }

    /// Whether nothing that was given waits for the peer, so that a stream with nothing to send may end.
    fn is_idle(&self) -> bool {
        true
    }

    /// How long a connection that is established may take to answer before [`Protocol::post_empty_write`].
    fn patience(&self) -> Option<Duration> {
        None
    }

    /// The peer has not answered. Returns whether it is reminded.
    fn post_empty_write(&mut self) -> bool {
        false
    }

    /// Prepares for another attempt to connect, after [`Fault::Retry`].
    fn retry(&mut self, _shared: &mut Shared<Self>, _reactor: &Reactor) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// The stream has ended: lets go of everything, and reports it to whoever has heard of the connection.
    fn finish(&mut self, shared: &mut Shared<Self>, reactor: &Reactor, end: End);
}

/// A listener's connection on its way to who adopts it.
#[derive(Debug)]
pub(crate) struct Offered<'a> {
    pub(crate) listener: ListenerId,
    pub(crate) socket: DetachedSocket,
    /// The two ends (local, peer).
    pub(crate) addresses: (SocketAddr, SocketAddr),
    /// What came and was not taken in.
    pub(crate) unread: &'a [u8],
    /// What goes on protecting it, if something does.
    pub(crate) tls: Option<Carried>,
}

/// How many kinds of operations a protocol's streams have.
pub(crate) const KINDS: u8 = 6;

/// What an operation of the reactor was started for: the `kind` of its token, less the protocol's first one.
mod kind {
    /// A listener accepted a connection.
    pub(super) const ACCEPTED: u8 = 0;
    /// A TCP connection was made or refused.
    pub(super) const CONNECT: u8 = 1;
    /// Bytes of a stream.
    pub(super) const RECEIVE: u8 = 2;
    /// A batch of a stream was sent.
    pub(super) const SEND: u8 = 3;
    /// A stream's phase took too long.
    pub(super) const TIMER: u8 = 4;
    /// Connections wait for others in handshake that take their time.
    pub(super) const RELIEF: u8 = 5;
}
