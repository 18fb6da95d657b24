//! Listening, connecting and the ways in which a connection ends.

use std::io;
use std::net::SocketAddr;
use std::sync::PoisonError;

use super::HostId;
use super::machines::{EndKey, Machines, PortKey, errno};
use super::net::{Connection, End, Net, Owner, Segment};
use crate::{Payload, PeerAddr, SocketId, Token};

impl Net {
    pub(super) fn connect(
        &mut self,
        machines: &mut Machines,
        port: PortKey,
        address: SocketAddr,
        token: Token,
    ) -> io::Result<SocketId> {
        let host = machines.ports[port].host;
        let peer_host = machines.host_of(host, address.ip());
        let local_ip =
            if address.ip().is_loopback() { address.ip() } else { machines.hosts[host.0 as usize].address };
        let local = SocketAddr::new(local_ip, machines.pick_port(host)?);
        let key = machines.core.next_sequence();
        let from = EndKey { connection: key, side: 0 };
        let id = machines.ports[port].sockets.insert(from);
        let socket = SocketId(id);
        let mut near = End::new(host, local, Owner::Socket(port, socket));
        near.connecting = Some(token);
        let far_owner = if peer_host.is_some() { Owner::Unborn } else { Owner::Closed };
        let far = End::new(peer_host.unwrap_or(host), address, far_owner);
        self.connections.insert(key, Connection { ends: [near, far], cut: false });
        match peer_host {
            Some(_) => self.push_segment(machines, from.peer(), Segment::Connect),
            None => self.push_segment(machines, from, Segment::Refuse(libc::EHOSTUNREACH)),
        }
        Ok(socket)
    }

    /// A connection request has arrived: somebody accepts it, or it is refused.
    pub(super) fn deliver_connect(&mut self, machines: &mut Machines, to: EndKey) {
        let Some(connection) = self.connections.get(&to.connection) else { return };
        let [from, at] = connection.ends.each_ref().map(|end| end.host);
        let (peer, address) = (connection.ends[0].address, connection.ends[1].address);
        let refuse_probability = self.faults(from, at).refuse_probability;
        let refused = machines.core.chance(refuse_probability);
        let Some((port, token)) = machines.listener_at(at, address).filter(|_| !refused) else {
            self.end(to).expect("looked up above").owner = Owner::Closed;
            self.push_segment(machines, to.peer(), Segment::Refuse(libc::ECONNREFUSED));
            self.forget_if_closed(machines, to.connection);
            return;
        };
        let id = machines.ports[port].sockets.insert(to);
        let socket = SocketId(id);
        let end = self.end(to).expect("looked up above");
        end.owner = Owner::Socket(port, socket);
        end.established = true;
        machines.complete(port, token, Ok(0), Payload::Accepted(socket, PeerAddr::Tcp(peer)));
        self.push_segment(machines, to.peer(), Segment::Accept);
    }

    /// The answer to a connection request has arrived.
    pub(super) fn deliver_answer(&mut self, machines: &mut Machines, to: EndKey, answer: io::Result<u32>) {
        let Some(end) = self.end(to) else { return };
        let (Owner::Socket(port, _), Some(token)) = (end.owner, end.connecting.take()) else {
            // The asker has gone meanwhile; the acceptor learns of it.
            if answer.is_ok() {
                self.push_segment(machines, to.peer(), Segment::Reset);
            }
            return;
        };
        end.established = answer.is_ok();
        machines.complete(port, token, answer, Payload::None);
        // Receives that waited for the handshake end with it when it failed.
        self.feed_receives(machines, to);
    }

    /// Closes an end as its kernel would: with an end of stream, or with a reset when bytes were left unread.
    pub(super) fn close_end(&mut self, machines: &mut Machines, key: EndKey) {
        let Some(end) = self.end(key) else { return };
        let owner = std::mem::replace(&mut end.owner, Owner::Closed);
        if owner == Owner::Closed {
            return;
        }
        let (unread, reset) = (!end.arrived.is_empty(), end.reset);
        let shut = end.shut && end.sending.is_none();
        end.arrived.clear();
        if let Owner::Socket(port, _) = owner {
            self.end_operations(machines, key, port, libc::ECANCELED);
        }
        if unread && !reset {
            self.push_segment(machines, key.peer(), Segment::Reset);
        } else if !shut && !reset {
            self.push_segment(machines, key.peer(), Segment::Finish);
        }
        self.forget_if_closed(machines, key.connection);
    }

    /// An end is closed by a reset: of what is on its way to the peer, all or nothing arrives before that.
    pub(super) fn abort_end(&mut self, machines: &mut Machines, key: EndKey) {
        let Some(end) = self.end(key) else { return };
        if end.established && !end.reset {
            end.reset = true;
            if machines.core.chance(0.5) {
                self.clear_wire(machines, key.peer());
            }
            self.push_reset(machines, key.peer());
        }
        self.close_end(machines, key);
    }

    /// Completes everything in flight on an end with an error. Bytes that have arrived are not lost by it.
    pub(super) fn end_operations(&mut self, machines: &mut Machines, key: EndKey, port: PortKey, error: i32) {
        let Some(end) = self.end(key) else { return };
        let connecting = end.connecting.take();
        let (receives, sending) = (std::mem::take(&mut end.receives), end.sending.take());
        if let Some(token) = connecting {
            machines.complete(port, token, Err(errno(error)), Payload::None);
        }
        for (operation, token) in receives {
            machines.complete(port, token, Err(errno(error)), Payload::Receive(operation));
        }
        if let Some((batch, token)) = sending {
            machines.complete(port, token, Err(errno(error)), Payload::Send(batch));
        }
    }

    /// Closes the ends whose handle was dropped on the way from one port to another.
    pub(super) fn close_orphans(&mut self, machines: &mut Machines) {
        let orphans = std::mem::take(&mut *self.orphans.lock().unwrap_or_else(PoisonError::into_inner));
        for end in orphans {
            self.close_end(machines, end);
        }
    }

    /// All ends at a crashed host vanish. Their peers are reset, as they would be by its next boot.
    pub(super) fn crash_ends(&mut self, machines: &mut Machines, host: HostId) {
        let connections = self.connections.iter();
        let ends = connections.flat_map(|(key, connection)| {
            let here =
                [0, 1].into_iter().filter(|side| machines.machine_of(connection.ends[*side].host) == host);
            here.map(|side| EndKey { connection: *key, side })
        });
        for key in ends.collect::<Vec<_>>() {
            self.clear_wire(machines, key);
            if machines.core.chance(0.5) {
                self.clear_wire(machines, key.peer());
            }
            let Some(end) = self.end(key) else { continue };
            // One that was closed before may just have lost what would have told its peer.
            end.owner = Owner::Closed;
            (end.connecting, end.sending) = (None, None);
            end.receives.clear();
            end.arrived.clear();
            self.push_reset(machines, key.peer());
            self.forget_if_closed(machines, key.connection);
        }
    }

    /// Forgets a connection whose ends are both closed. What is on its wires has no reader left.
    pub(super) fn forget_if_closed(&mut self, machines: &mut Machines, key: u64) {
        let Some(connection) = self.connections.get(&key) else { return };
        if connection.ends.iter().any(|end| end.owner != Owner::Closed) {
            return;
        }
        for side in [0, 1] {
            self.clear_wire(machines, EndKey { connection: key, side });
        }
        self.connections.remove(&key);
    }
}
