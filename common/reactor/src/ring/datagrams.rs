//! Sockets for datagrams.

use std::io;
use std::net::SocketAddr;

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::Ring;
use super::descriptors::{Kind, Role, internet_address};
use super::operations::OperationKind;
use super::sockets::set_class_and_buffers;
use crate::{Datagram, DatagramSocketId, Payload, SocketOptions, Token};

impl Ring {
    pub(crate) fn bind_datagrams(
        &mut self,
        address: SocketAddr,
        options: &SocketOptions,
    ) -> io::Result<(DatagramSocketId, SocketAddr)> {
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        set_class_and_buffers(&socket, address, options)?;
        socket.bind(&SockAddr::from(address))?;
        let bound = internet_address(&socket.local_addr()?)?;
        let socket: std::os::fd::OwnedFd = socket.into();
        Ok((DatagramSocketId(self.in_flight.add_descriptor(socket, Role::Datagrams)?), bound))
    }

    #[inline]
    pub(crate) fn send_datagram(&mut self, socket: DatagramSocketId, datagram: Box<Datagram>, token: Token) {
        self.start_datagram(socket, OperationKind::SendDatagram(datagram), token);
    }

    #[inline]
    pub(crate) fn receive_datagram(&mut self, socket: DatagramSocketId, room: Box<Datagram>, token: Token) {
        self.start_datagram(socket, OperationKind::ReceiveDatagram(room), token);
    }

    pub(crate) fn close_datagrams(&mut self, socket: DatagramSocketId) {
        if let Some(index) = self.in_flight.descriptors.find(Kind::Datagrams, socket.0) {
            self.in_flight.close(index);
        }
    }

    fn start_datagram(&mut self, socket: DatagramSocketId, held: OperationKind, token: Token) {
        match (self.in_flight.descriptors.find(Kind::Datagrams, socket.0), held) {
            (Some(index), held) => self.in_flight.start(token, index, held),
            (None, OperationKind::SendDatagram(datagram) | OperationKind::ReceiveDatagram(datagram)) => {
                self.in_flight.refuse(token, libc::ECANCELED, Payload::Datagram(datagram));
            }
            (None, _) => unreachable!("only datagrams are started here"),
        }
    }
}
