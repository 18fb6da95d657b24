//! Listening, connecting and the ways in which a connection ends.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::PoisonError;

use super::HostId;
use super::net::{Connection, End, EndKey, Listener, Owner, Segment};
use super::state::{PortKey, State, errno};
use crate::{ListenerId, Payload, PeerAddr, SocketId, Token};

/// The first of the ports that are given to whoever asks for none; IANA keeps 49152 and above for this.
const EPHEMERAL_FIRST: u16 = 49152;

impl State {
    pub(super) fn listen(
        &mut self,
        port: PortKey,
        address: SocketAddr,
        token: Token,
    ) -> io::Result<(ListenerId, SocketAddr)> {
        let host = self.ports[port].host;
        if !self.is_local(host, address.ip()) {
            return Err(errno(libc::EADDRNOTAVAIL));
        }
        let mut address = address;
        if address.port() == 0 {
            address.set_port(self.pick_port(host)?);
        } else if self.is_taken(host, address) {
            return Err(errno(libc::EADDRINUSE));
        }
        let id = self.ports[port].listeners.insert(Listener { address, token });
        Ok((ListenerId(id), address))
    }

    pub(super) fn connect(
        &mut self,
        port: PortKey,
        address: SocketAddr,
        token: Token,
    ) -> io::Result<SocketId> {
        let host = self.ports[port].host;
        let peer_host = self.host_of(host, address.ip());
        let local_ip =
            if address.ip().is_loopback() { address.ip() } else { self.hosts[host.0 as usize].address };
        let local = SocketAddr::new(local_ip, self.pick_port(host)?);
        let key = self.core.next_sequence();
        let from = EndKey { connection: key, side: 0 };
        let id = self.ports[port].sockets.insert(from);
        let socket = SocketId(id);
        let mut near = End::new(host, local, Owner::Socket(port, socket));
        near.connecting = Some(token);
        let far_owner = if peer_host.is_some() { Owner::Unborn } else { Owner::Closed };
        let far = End::new(peer_host.unwrap_or(host), address, far_owner);
        self.net.connections.insert(key, Connection { ends: [near, far], cut: false });
        match peer_host {
            Some(_) => self.push_segment(from.peer(), Segment::Connect),
            None => self.push_segment(from, Segment::Refuse(libc::EHOSTUNREACH)),
        }
        Ok(socket)
    }

    /// A connection request has arrived: somebody accepts it, or it is refused.
    pub(super) fn deliver_connect(&mut self, to: EndKey) {
        let Some(connection) = self.net.connections.get(&to.connection) else { return };
        let [from, at] = connection.ends.each_ref().map(|end| end.host);
        let (peer, address) = (connection.ends[0].address, connection.ends[1].address);
        let refuse_probability = self.net.faults(from, at).refuse_probability;
        let refused = self.core.chance(refuse_probability);
        let Some((port, token)) = self.listener_at(at, address).filter(|_| !refused) else {
            self.net.end(to).expect("looked up above").owner = Owner::Closed;
            self.push_segment(to.peer(), Segment::Refuse(libc::ECONNREFUSED));
            self.forget_if_closed(to.connection);
            return;
        };
        let id = self.ports[port].sockets.insert(to);
        let socket = SocketId(id);
        let end = self.net.end(to).expect("looked up above");
        end.owner = Owner::Socket(port, socket);
        end.established = true;
        self.complete(port, token, Ok(0), Payload::Accepted(socket, PeerAddr::Tcp(peer)));
        self.push_segment(to.peer(), Segment::Accept);
    }

    /// The answer to a connection request has arrived.
    pub(super) fn deliver_answer(&mut self, to: EndKey, answer: io::Result<u32>) {
        let Some(end) = self.net.end(to) else { return };
        let (Owner::Socket(port, _), Some(token)) = (end.owner, end.connecting.take()) else {
            // The asker has gone meanwhile; the acceptor learns of it.
            if answer.is_ok() {
                self.push_segment(to.peer(), Segment::Reset);
            }
            return;
        };
        end.established = answer.is_ok();
        self.complete(port, token, answer, Payload::None);
        // Receives that waited for the handshake end with it when it failed.
        self.feed_receives(to);
    }

    /// Closes an end as its kernel would: with an end of stream, or with a reset when bytes were left unread.
    pub(super) fn close_end(&mut self, key: EndKey) {
        let Some(end) = self.net.end(key) else { return };
        let owner = std::mem::replace(&mut end.owner, Owner::Closed);
        if owner == Owner::Closed {
            return;
        }
        let (unread, reset) = (!end.arrived.is_empty(), end.reset);
        let shut = end.shut && end.sending.is_none();
        end.arrived.clear();
        if let Owner::Socket(port, _) = owner {
            self.end_operations(key, port, libc::ECANCELED);
        }
        if unread && !reset {
            self.push_segment(key.peer(), Segment::Reset);
        } else if !shut && !reset {
            self.push_segment(key.peer(), Segment::Finish);
        }
        self.forget_if_closed(key.connection);
    }

    /// An end is closed by a reset: of what is on its way to the peer, all or nothing arrives before that.
    pub(super) fn abort_end(&mut self, key: EndKey) {
        let Some(end) = self.net.end(key) else { return };
        if end.established && !end.reset {
            end.reset = true;
            if self.core.chance(0.5) {
                self.clear_wire(key.peer());
            }
            self.push_segment(key.peer(), Segment::Reset);
        }
        self.close_end(key);
    }

    /// Completes everything in flight on an end with an error. Bytes that have arrived are not lost by it.
    pub(super) fn end_operations(&mut self, key: EndKey, port: PortKey, error: i32) {
        let Some(end) = self.net.end(key) else { return };
        let connecting = end.connecting.take();
        let (receives, sending) = (std::mem::take(&mut end.receives), end.sending.take());
        if let Some(token) = connecting {
            self.complete(port, token, Err(errno(error)), Payload::None);
        }
        for (operation, token) in receives {
            self.complete(port, token, Err(errno(error)), Payload::Receive(operation));
        }
        if let Some((batch, token)) = sending {
            self.complete(port, token, Err(errno(error)), Payload::Send(batch));
        }
    }

    /// Closes the ends whose handle was dropped on the way from one port to another.
    pub(super) fn close_orphans(&mut self) {
        let orphans = std::mem::take(&mut *self.net.orphans.lock().unwrap_or_else(PoisonError::into_inner));
        for end in orphans {
            self.close_end(end);
        }
    }

    /// All ends at a crashed host vanish. Their peers are reset, as they would be by its next boot.
    pub(super) fn crash_ends(&mut self, host: HostId) {
        let connections = self.net.connections.iter();
        let ends = connections.flat_map(|(key, connection)| {
            let here = [0, 1].into_iter().filter(|side| connection.ends[*side].host == host);
            here.map(|side| EndKey { connection: *key, side })
        });
        for key in ends.collect::<Vec<_>>() {
            self.clear_wire(key);
            if self.core.chance(0.5) {
                self.clear_wire(key.peer());
            }
            let Some(end) = self.net.end(key) else { continue };
            if end.owner == Owner::Closed {
                continue;
            }
            end.owner = Owner::Closed;
            (end.connecting, end.sending) = (None, None);
            end.receives.clear();
            end.arrived.clear();
            self.push_segment(key.peer(), Segment::Reset);
            self.forget_if_closed(key.connection);
        }
    }

    /// Forgets a connection whose ends are both closed. What is on its wires has no reader left.
    pub(super) fn forget_if_closed(&mut self, key: u64) {
        let Some(connection) = self.net.connections.get(&key) else { return };
        if connection.ends.iter().any(|end| end.owner != Owner::Closed) {
            return;
        }
        for side in [0, 1] {
            self.clear_wire(EndKey { connection: key, side });
        }
        self.net.connections.remove(&key);
    }

    fn listener_at(&self, host: HostId, address: SocketAddr) -> Option<(PortKey, Token)> {
        let ports = self.ports.iter().enumerate().filter(|(_, port)| port.host == host);
        let mut listeners =
            ports.flat_map(|(key, port)| port.listeners.values().map(move |listener| (key, listener)));
        let found = listeners.find(|(_, listener)| {
            let bound = listener.address;
            bound.port() == address.port() && (bound.ip().is_unspecified() || bound.ip() == address.ip())
        });
        found.map(|(key, listener)| (key, listener.token))
    }

    fn is_taken(&self, host: HostId, address: SocketAddr) -> bool {
        let ports = self.ports.iter().filter(|port| port.host == host);
        ports.flat_map(|port| port.listeners.values()).any(|listener| {
            let (bound, wanted) = (listener.address, address);
            let overlaps =
                bound.ip() == wanted.ip() || bound.ip().is_unspecified() || wanted.ip().is_unspecified();
            bound.port() == wanted.port() && overlaps
        })
    }

    /// A port of `host` that nobody listens on.
    fn pick_port(&mut self, host: HostId) -> io::Result<u16> {
        for _ in EPHEMERAL_FIRST..=u16::MAX {
            let next = &mut self.hosts[host.0 as usize].ephemeral_port;
            let picked = *next;
            *next = picked.checked_add(1).unwrap_or(EPHEMERAL_FIRST);
            if !self.is_taken(host, SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), picked)) {
                return Ok(picked);
            }
        }
        Err(errno(libc::EADDRNOTAVAIL))
    }

    fn is_local(&self, host: HostId, ip: IpAddr) -> bool {
        ip.is_unspecified() || ip.is_loopback() || ip == self.hosts[host.0 as usize].address
    }

    /// The host that has an address, seen from `host`.
    fn host_of(&self, host: HostId, ip: IpAddr) -> Option<HostId> {
        let own = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)].contains(&ip);
        if own || ip.is_loopback() {
            return Some(host);
        }
        let index = self.hosts.iter().position(|candidate| candidate.address == ip)?;
        Some(HostId(index as u32))
    }
}
