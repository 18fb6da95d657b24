//! Datagrams on their way: each by itself, so that some are lost, come twice, or overtake others.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;

use ringfab_base::{SlotId, Slots};

use super::HostId;
use super::core::Event;
use super::machines::{Machines, PortKey, errno};
use super::net::{Direction, Net};
use crate::{Datagram, DatagramSocketId, Payload, Token};

/// All sockets for datagrams, and what is on its way between them.
#[derive(Default)]
pub(super) struct Datagrams {
    sockets: Slots<DatagramSocket>,
    flying: BTreeMap<u64, Flying>,
}

/// A socket of a port.
struct DatagramSocket {
    port: PortKey,
    address: SocketAddr,
    /// What has come and nobody has received yet.
    arrived: VecDeque<Flying>,
    arrived_bytes: usize,
    receives: VecDeque<(Box<Datagram>, Token)>,
}

/// Whose operation it is.
#[derive(Clone, Copy)]
pub(super) struct Asker {
    pub(super) port: PortKey,
    pub(super) token: Token,
}

struct Flying {
    from: SocketAddr,
    to: SocketAddr,
    /// The host that it goes to.
    host: HostId,
    bytes: Vec<u8>,
    /// How many bytes may wait there.
    buffer_bytes: usize,
}

impl Datagrams {
    pub(super) fn bind(
        &mut self,
        machines: &mut Machines,
        port: PortKey,
        mut address: SocketAddr,
    ) -> io::Result<(DatagramSocketId, SocketAddr)> {
        let host = machines.ports[port].host;
        if !machines.is_local(host, address.ip()) {
            return Err(errno(libc::EADDRNOTAVAIL));
        }
        if address.port() == 0 {
            address.set_port(machines.pick_port(host)?);
        }
        if self.socket_at(machines, host, address).is_some() {
            return Err(errno(libc::EADDRINUSE));
        }
        let (arrived, receives) = (VecDeque::new(), VecDeque::new());
        let socket = DatagramSocket { port, address, arrived, arrived_bytes: 0, receives };
        Ok((DatagramSocketId(self.sockets.insert(socket)), address))
    }

    /// A datagram gets on its way, or is lost; the link decides. A partition, which stalls streams, loses it.
    pub(super) fn send(
        &mut self,
        machines: &mut Machines,
        net: &Net,
        socket: DatagramSocketId,
        datagram: Box<Datagram>,
        asker: Asker,
    ) {
        let Asker { port, token } = asker;
        let Some(socket) = self.sockets.get(socket.0) else {
            return machines.complete(port, token, Err(errno(libc::ECANCELED)), Payload::Datagram(datagram));
        };
        let (near, mut from) = (machines.ports[port].host, socket.address);
        if from.ip().is_unspecified() {
            from.set_ip(machines.hosts[near.0 as usize].address);
        }
        let to = datagram.peer().expect("whoever sends has said where");
        if let Some(host) = machines.host_of(near, to.ip()) {
            let faults = net.faults(near, host);
            let copies = 1 + usize::from(machines.core.chance(faults.duplicate_probability));
            for _ in 0..copies {
                if machines.core.chance(faults.loss_probability)
                    || net.is_partitioned(Direction { from: near, to: host })
                {
                    continue;
                }
                let (bytes, buffer_bytes) = (datagram.bytes().to_vec(), faults.buffer_bytes);
                let number = machines.core.next_sequence();
                self.flying.insert(number, Flying { from, to, host, bytes, buffer_bytes });
                let at = machines.core.after(faults.delay_min, faults.delay_max);
                machines.core.schedule(at, Event::Datagram { datagram: number });
            }
        }
        let length = datagram.bytes().len() as u32;
        machines.complete(port, token, Ok(length), Payload::Datagram(datagram));
    }

    /// A datagram has arrived: at whoever has its address, if anybody has, and room.
    pub(super) fn arrive(&mut self, machines: &mut Machines, number: u64) {
        let Some(flying) = self.flying.remove(&number) else { return };
        machines.core.record(&[number, flying.bytes.len() as u64]);
        let host = machines.machine_of(flying.host);
        let Some(id) = self.socket_at(machines, host, flying.to) else { return };
        let socket = self.sockets.get_mut(id).expect("it was just found");
        if socket.arrived_bytes + flying.bytes.len() <= flying.buffer_bytes {
            socket.arrived_bytes += flying.bytes.len();
            socket.arrived.push_back(flying);
            socket.hand_out(machines);
        }
    }

    pub(super) fn receive(
        &mut self,
        machines: &mut Machines,
        socket: DatagramSocketId,
        room: Box<Datagram>,
        asker: Asker,
    ) {
        let Asker { port, token } = asker;
        match self.sockets.get_mut(socket.0) {
            Some(socket) => {
                socket.receives.push_back((room, token));
                socket.hand_out(machines);
            }
            None => machines.complete(port, token, Err(errno(libc::ECANCELED)), Payload::Datagram(room)),
        }
    }

    pub(super) fn close(&mut self, machines: &mut Machines, socket: DatagramSocketId) {
        let Some(socket) = self.sockets.remove(socket.0) else { return };
        for (mut room, token) in socket.receives {
            room.set_empty();
            let cancelled = Err(errno(libc::ECANCELED));
            machines.complete(socket.port, token, cancelled, Payload::Datagram(room));
        }
    }

    /// A port has ended, and its sockets with it.
    pub(super) fn end_port(&mut self, port: PortKey) {
        let ended: Vec<SlotId> =
            self.sockets.iter().filter(|(_, socket)| socket.port == port).map(|(id, _)| id).collect();
        ended.into_iter().for_each(|id| drop(self.sockets.remove(id)));
    }

    fn socket_at(&self, machines: &Machines, host: HostId, address: SocketAddr) -> Option<SlotId> {
        let mut sockets = self.sockets.iter().filter(|(_, socket)| machines.ports[socket.port].host == host);
        let found = sockets.find(|(_, socket)| {
            let (own, ip) = (socket.address, address.ip());
            let fits = own.ip() == ip || own.ip().is_unspecified() || ip.is_unspecified();
            own.port() == address.port() && fits
        });
        found.map(|(id, _)| id)
    }
}

impl DatagramSocket {
    /// Gives what has arrived to those who receive.
    fn hand_out(&mut self, machines: &mut Machines) {
        while !self.arrived.is_empty()
            && let Some((mut room, token)) = self.receives.pop_front()
            && let Some(flying) = self.arrived.pop_front()
        {
            self.arrived_bytes -= flying.bytes.len();
            let length = room.receive(flying.from, &flying.bytes);
            machines.complete(self.port, token, Ok(length as u32), Payload::Datagram(room));
        }
    }
}
