//! The sockets of a reactor for datagrams (UDP).

use std::io;
use std::net::SocketAddr;

use crate::backend::{Backend, dispatch};
use crate::{Datagram, DatagramSocketId, SocketOptions, Token};

/// What a reactor does with datagrams; see [`Reactor::datagrams`](crate::Reactor::datagrams). Any number of sends and
/// receives may be in flight on a socket. What is sent may be lost, come twice, or come in another order; nobody is
/// told.
#[derive(Debug)]
pub struct Datagrams<'a>(pub(crate) &'a mut Backend);

impl Datagrams<'_> {
    /// A socket that has an address of its own; port zero picks a free one. Returns the address that it got. Of the
    /// options, [`SocketOptions::dscp`] and [`SocketOptions::buffer_bytes`] concern it.
    ///
    /// # Errors
    /// The kernel's refusal to bind.
    pub fn bind(
        &mut self,
        address: SocketAddr,
        options: &SocketOptions,
    ) -> io::Result<(DatagramSocketId, SocketAddr)> {
        dispatch!(self.0, part datagrams, bind(address, options))
    }

    /// Sends one; it has an address ([`Datagram::set`]). The completion says only that the system has taken it, or why
    /// not: `EMSGSIZE` for one that is too long for the way, for instance.
    #[inline]
    pub fn send(&mut self, socket: DatagramSocketId, datagram: Box<Datagram>, token: Token) {
        dispatch!(self.0, part datagrams, send(socket, datagram, token));
    }

    /// Receives the next one.
    #[inline]
    pub fn receive(&mut self, socket: DatagramSocketId, room: Box<Datagram>, token: Token) {
        dispatch!(self.0, part datagrams, receive(socket, room, token));
    }

    /// Closes a socket. Operations in flight on it complete with `ECANCELED`, or their result, first.
    pub fn close(&mut self, socket: DatagramSocketId) {
        dispatch!(self.0, part datagrams, close(socket));
    }
}
