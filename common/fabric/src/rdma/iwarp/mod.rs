//! The software RNIC: MPA, DDP and RDMAP over a TCP socket of the core's reactor, in user space.
//!
//! The protocol itself lives in [`ringfab_proto::iwarp`], which sees bytes and handles only. Here are the socket,
//! the memory behind the handles, and time. One core's `Device` holds everything in tables:
//!
//! - `listener`: accepted sockets until their MPA request is complete; then they wait, detached, for an answer.
//! - `connect`: from a TCP connect to the MPA reply.
//! - `connection`: a queue pair, with its phases; `receive` and `transmit` are its two loops, `teardown` its end.
//! - `farewell`: sockets that still have a rejection to deliver.
//! - `regions` and `work`: the leases behind exposed memory and behind work requests.
//! - `capture`: what went over the wire, as a file that packet analysers read.

mod capture;
mod connect;
mod connection;
mod device;
mod farewell;
mod listener;
mod message;
mod receive;
mod regions;
mod shared;
mod teardown;
mod transmit;
mod work;

pub(crate) use device::Device;
pub(crate) use listener::PendingAccept;

/// What an operation of the reactor was started for: the `kind` of its token.
mod kind {
    /// A listener accepted a connection.
    pub(super) const ACCEPTED: u8 = 1;
    /// Bytes of an MPA request.
    pub(super) const HALF_OPEN_RECEIVE: u8 = 2;
    /// An MPA request took too long.
    pub(super) const HALF_OPEN_TIMER: u8 = 3;
    /// A TCP connection was made or refused.
    pub(super) const CONNECT: u8 = 4;
    /// Bytes of a queue pair.
    pub(super) const RECEIVE: u8 = 5;
    /// A batch of a queue pair was sent.
    pub(super) const SEND: u8 = 6;
    /// A queue pair's phase took too long.
    pub(super) const TIMER: u8 = 7;
    /// A rejection was sent.
    pub(super) const FAREWELL_SEND: u8 = 8;
    /// Bytes that nobody wants, after a rejection.
    pub(super) const FAREWELL_RECEIVE: u8 = 9;
    /// The peer took too long to close after a rejection.
    pub(super) const FAREWELL_TIMER: u8 = 10;
}
