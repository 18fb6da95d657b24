//! Bytes from one end of a connection to the other.

use super::machines::{EndKey, Machines, errno};
use super::net::{End, Net, Owner, Segment};
use crate::{Payload, ReceiveOp, SendBatch, Token};

impl Net {
    pub(super) fn receive(
        &mut self,
        machines: &mut Machines,
        key: EndKey,
        operation: Box<ReceiveOp>,
        token: Token,
    ) {
        let end = self.end(key).expect("a socket's end lives as long as the socket");
        end.receives.push_back((operation, token));
        self.feed_receives(machines, key);
    }

    pub(super) fn send(&mut self, machines: &mut Machines, key: EndKey, batch: Box<SendBatch>, token: Token) {
        let end = self.end(key).expect("a socket's end lives as long as the socket");
        assert!(end.sending.is_none(), "one send per socket is in flight");
        let refusal = match (end.reset, end.shut, end.established) {
            (true, ..) => Some(end.reset_error()),
            (_, true, _) => Some(libc::EPIPE),
            (.., false) => Some(libc::ENOTCONN),
            _ => None,
        };
        let Owner::Socket(port, _) = end.owner else { unreachable!("only sockets send") };
        match refusal {
            Some(error) => machines.complete(port, token, Err(errno(error)), Payload::Send(batch)),
            None => {
                end.sending = Some((batch, token));
                self.pump(machines, key);
            }
        }
    }

    /// Sends the end of the stream, behind the send in flight.
    pub(super) fn shutdown_write(&mut self, machines: &mut Machines, key: EndKey) {
        let end = self.end(key).expect("a socket's end lives as long as the socket");
        if end.reset || !end.established || std::mem::replace(&mut end.shut, true) {
            return;
        }
        if end.sending.is_none() {
            self.push_segment(machines, key.peer(), Segment::Finish);
        }
    }

    /// Something has arrived at an end.
    pub(super) fn deliver(&mut self, machines: &mut Machines, to: EndKey, segment: Segment) {
        match segment {
            Segment::Connect => self.deliver_connect(machines, to),
            Segment::Accept => self.deliver_answer(machines, to, Ok(0)),
            Segment::Refuse(error) => self.deliver_answer(machines, to, Err(errno(error))),
            Segment::Data(bytes) => self.deliver_data(machines, to, &bytes),
            Segment::Finish => self.deliver_finish(machines, to),
            Segment::Reset => self.deliver_reset(machines, to),
        }
    }

    fn deliver_data(&mut self, machines: &mut Machines, to: EndKey, bytes: &[u8]) {
        let Some(end) = self.end(to) else { return };
        if end.reset {
            return;
        }
        if end.owner == Owner::Closed {
            // Nobody will ever read this, and the sender shall know.
            self.push_segment(machines, to.peer(), Segment::Reset);
            return;
        }
        end.arrived.extend(bytes);
        self.feed_receives(machines, to);
    }

    fn deliver_finish(&mut self, machines: &mut Machines, to: EndKey) {
        let Some(end) = self.end(to) else { return };
        end.finished = true;
        self.feed_receives(machines, to);
    }

    fn deliver_reset(&mut self, machines: &mut Machines, to: EndKey) {
        let drops_unread = machines.core.chance(0.5);
        let Some(end) = self.end(to) else { return };
        end.reset = true;
        if drops_unread {
            end.arrived.clear();
        }
        match end.owner {
            Owner::Socket(port, _) => self.end_operations(machines, to, port, libc::ECONNRESET),
            // The request to connect was lost on the way, so that nobody will ever hold this end.
            Owner::Unborn => {
                end.owner = Owner::Closed;
                self.forget_if_closed(machines, to.connection);
            }
            Owner::Detached | Owner::Closed => {}
        }
    }

    /// Completes as many waiting receives as there are bytes (or an end of stream) for.
    pub(super) fn feed_receives(&mut self, machines: &mut Machines, key: EndKey) {
        while let Some(result) = self.next_fed(machines, key) {
            let Some(end) = self.end(key) else { return };
            let Owner::Socket(port, _) = end.owner else { return };
            let Some((mut operation, token)) = end.receives.pop_front() else { return };
            let length = *result.as_ref().unwrap_or(&0) as usize;
            operation.append(&end.arrived.make_contiguous()[..length]);
            end.arrived.drain(..length);
            machines.complete(port, token, result.map_err(errno), Payload::Receive(operation));
        }
        self.pump(machines, key.peer());
    }

    /// What the first waiting receive of a socket gets now: bytes, an end of stream, or an error.
    fn next_fed(&mut self, machines: &mut Machines, key: EndKey) -> Option<Result<u32, i32>> {
        let connection = self.connections.get(&key.connection)?;
        let [a, b] = connection.ends.each_ref().map(|end| end.host);
        let end = &connection.ends[key.side];
        let (operation, _) = end.receives.front()?;
        if !matches!(end.owner, Owner::Socket(..)) {
            return None;
        }
        if end.arrived.is_empty() {
            return end.stream_end();
        }
        let length_max = operation.capacity().min(end.arrived.len());
        let cuts = self.faults(a, b).chunk_max < usize::MAX;
        if length_max > 0 && cuts && machines.core.chance(0.5) {
            return Some(Ok(machines.core.part_of(length_max) as u32));
        }
        Some(Ok(length_max as u32))
    }

    /// Puts as much of an end's send on the wire as the peer has room for.
    pub(super) fn pump(&mut self, machines: &mut Machines, key: EndKey) {
        while let Some(bytes) = self.next_segment(machines, key) {
            let connection = &self.connections[&key.connection];
            let hosts = connection.ends.each_ref().map(|end| end.host);
            let cut_probability = self.faults(hosts[0], hosts[1]).cut_probability;
            if machines.core.chance(cut_probability) {
                self.cut(machines, key.connection);
                return;
            }
            self.push_segment(machines, key.peer(), Segment::Data(bytes));
            let Some(end) = self.end(key) else { return };
            if end.shut && end.sending.is_none() {
                self.push_segment(machines, key.peer(), Segment::Finish);
            }
        }
    }

    /// Takes the next segment out of a send, and completes the send with its last.
    fn next_segment(&mut self, machines: &mut Machines, key: EndKey) -> Option<Vec<u8>> {
        let connection = self.connections.get_mut(&key.connection)?;
        if connection.cut {
            return None;
        }
        let hosts = connection.ends.each_ref().map(|end| end.host);
        let peer = &connection.ends[1 - key.side];
        let waiting = peer.arrived.len() + peer.wire.bytes;
        let end = &mut connection.ends[key.side];
        let (batch, _) = end.sending.as_mut()?;
        let left = batch.unsent_bytes();
        let faults = self.faults(hosts[0], hosts[1]);
        let room = faults.buffer_bytes.saturating_sub(waiting).min(left);
        let chunk_max = faults.chunk_max.max(1);
        if room == 0 && left > 0 {
            return None;
        }
        let length = if chunk_max == usize::MAX || room == 0 {
            room
        } else {
            machines.core.part_of(room.min(chunk_max))
        };
        self.take_from_send(machines, key, length)
    }

    fn take_from_send(&mut self, machines: &mut Machines, key: EndKey, length: usize) -> Option<Vec<u8>> {
        let end = self.end(key)?;
        let (batch, token) = end.sending.as_mut()?;
        let mut bytes = Vec::with_capacity(length);
        batch.copy_unsent(length, &mut bytes);
        batch.advance(length);
        let token = *token;
        if batch.unsent_bytes() == 0 {
            let (batch, _) = end.sending.take()?;
            let Owner::Socket(port, _) = end.owner else { unreachable!("only sockets send") };
            let sent = batch.bytes() as u32;
            machines.complete(port, token, Ok(sent), Payload::Send(batch));
        }
        (!bytes.is_empty()).then_some(bytes)
    }
}

impl End {
    /// What is said of a connection that was reset.
    fn reset_error(&self) -> i32 {
        if self.timed_out { libc::ETIMEDOUT } else { libc::ECONNRESET }
    }

    /// What a reader gets after the last byte, if nothing more can come.
    fn stream_end(&self) -> Option<Result<u32, i32>> {
        if self.reset {
            return Some(Err(self.reset_error()));
        }
        if self.finished {
            return Some(Ok(0));
        }
        let refused = !self.established && self.connecting.is_none();
        refused.then_some(Err(libc::ENOTCONN))
    }
}
