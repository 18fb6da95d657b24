//! Sockets for datagrams.

use std::io;
use std::net::SocketAddr;

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::Ring;
use super::descriptors::{Kind, Role, internet_address};
use super::in_flight::InFlight;
use super::operations::OperationKind;
use super::sockets::set_class_and_buffers;
use crate::{Datagram, DatagramSocketId, Payload, SocketOptions, Token};

/// The part of a ring that is about datagrams.
pub(crate) struct RingDatagrams<'a>(&'a mut InFlight);

impl Ring {
    #[inline]
    pub(crate) fn datagrams(&mut self) -> RingDatagrams<'_> {
        RingDatagrams(&mut self.in_flight)
    }
}

impl RingDatagrams<'_> {
    pub(crate) fn bind(
        &mut self,
        address: SocketAddr,
        options: &SocketOptions,
    ) -> io::Result<(DatagramSocketId, SocketAddr)> {
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        set_class_and_buffers(&socket, address, options)?;
        socket.bind(&SockAddr::from(address))?;
        let bound = internet_address(&socket.local_addr()?)?;
        let socket: std::os::fd::OwnedFd = socket.into();
        Ok((DatagramSocketId(self.0.add_descriptor(socket, Role::Datagrams)?), bound))
    }

    #[inline]
    pub(crate) fn send(&mut self, socket: DatagramSocketId, datagram: Box<Datagram>, token: Token) {
        self.start(socket, OperationKind::SendDatagram(datagram), token);
    }

    #[inline]
    pub(crate) fn receive(&mut self, socket: DatagramSocketId, room: Box<Datagram>, token: Token) {
        self.start(socket, OperationKind::ReceiveDatagram(room), token);
    }

    pub(crate) fn close(&mut self, socket: DatagramSocketId) {
        if let Some(index) = self.0.descriptors.find(Kind::Datagrams, socket.0) {
            self.0.close(index);
        }
    }

    fn start(&mut self, socket: DatagramSocketId, held: OperationKind, token: Token) {
        match (self.0.descriptors.find(Kind::Datagrams, socket.0), held) {
            (Some(index), held) => self.0.start(token, index, held),
            (None, OperationKind::SendDatagram(datagram) | OperationKind::ReceiveDatagram(datagram)) => {
                self.0.refuse(token, libc::ECANCELED, Payload::Datagram(datagram));
            }
            (None, _) => unreachable!("only datagrams are started here"),
        }
    }
}
