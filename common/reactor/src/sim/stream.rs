//! Bytes from one end of a connection to the other.

use super::net::{End, EndKey, Owner, Segment};
use super::state::{State, errno};
use crate::{Payload, ReceiveOp, SendBatch, Token};

impl State {
    pub(super) fn receive(&mut self, key: EndKey, operation: Box<ReceiveOp>, token: Token) {
        let end = self.net.end(key).expect("a socket's end lives as long as the socket");
        end.receives.push_back((operation, token));
        self.feed_receives(key);
    }

    pub(super) fn send(&mut self, key: EndKey, batch: Box<SendBatch>, token: Token) {
        let end = self.net.end(key).expect("a socket's end lives as long as the socket");
        assert!(end.sending.is_none(), "one send per socket is in flight");
        let refusal = match (end.reset, end.shut, end.established) {
            (true, ..) => Some(libc::ECONNRESET),
            (_, true, _) => Some(libc::EPIPE),
            (.., false) => Some(libc::ENOTCONN),
            _ => None,
        };
        let Owner::Socket(port, _) = end.owner else { unreachable!("only sockets send") };
        match refusal {
            Some(error) => self.complete(port, token, Err(errno(error)), Payload::Send(batch)),
            None => {
                end.sending = Some((batch, token));
                self.pump(key);
            }
        }
    }

    /// Sends the end of the stream, behind the send in flight.
    pub(super) fn shutdown_write(&mut self, key: EndKey) {
        let end = self.net.end(key).expect("a socket's end lives as long as the socket");
        if end.reset || !end.established || std::mem::replace(&mut end.shut, true) {
            return;
        }
        if end.sending.is_none() {
            self.push_segment(key.peer(), Segment::Finish);
        }
    }

    /// Something has arrived at an end.
    pub(super) fn deliver(&mut self, to: EndKey, segment: Segment) {
        match segment {
            Segment::Connect => self.deliver_connect(to),
            Segment::Accept => self.deliver_answer(to, Ok(0)),
            Segment::Refuse(error) => self.deliver_answer(to, Err(errno(error))),
            Segment::Data(bytes) => self.deliver_data(to, &bytes),
            Segment::Finish => self.deliver_finish(to),
            Segment::Reset => self.deliver_reset(to),
        }
    }

    fn deliver_data(&mut self, to: EndKey, bytes: &[u8]) {
        let Some(end) = self.net.end(to) else { return };
        if end.reset {
            return;
        }
        if end.owner == Owner::Closed {
            // Nobody will ever read this, and the sender shall know.
            self.push_segment(to.peer(), Segment::Reset);
            return;
        }
        end.arrived.extend(bytes);
        self.feed_receives(to);
    }

    fn deliver_finish(&mut self, to: EndKey) {
        let Some(end) = self.net.end(to) else { return };
        end.finished = true;
        self.feed_receives(to);
    }

    fn deliver_reset(&mut self, to: EndKey) {
        let drops_unread = self.core.chance(0.5);
        let Some(end) = self.net.end(to) else { return };
        end.reset = true;
        if drops_unread {
            end.arrived.clear();
        }
        match end.owner {
            Owner::Socket(port, _) => self.end_operations(to, port, libc::ECONNRESET),
            // The request to connect was lost on the way, so that nobody will ever hold this end.
            Owner::Unborn => {
                end.owner = Owner::Closed;
                self.forget_if_closed(to.connection);
            }
            Owner::Detached | Owner::Closed => {}
        }
    }

    /// Completes as many waiting receives as there are bytes (or an end of stream) for.
    pub(super) fn feed_receives(&mut self, key: EndKey) {
        while let Some(result) = self.next_fed(key) {
            let Some(end) = self.net.end(key) else { return };
            let Owner::Socket(port, _) = end.owner else { return };
            let Some((mut operation, token)) = end.receives.pop_front() else { return };
            let length = *result.as_ref().unwrap_or(&0) as usize;
            operation.append(&end.arrived.make_contiguous()[..length]);
            end.arrived.drain(..length);
            self.complete(port, token, result.map_err(errno), Payload::Receive(operation));
        }
        self.pump(key.peer());
    }

    /// What the first waiting receive of a socket gets now: bytes, an end of stream, or an error.
    fn next_fed(&mut self, key: EndKey) -> Option<Result<u32, i32>> {
        let connection = self.net.connections.get(&key.connection)?;
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
        let cuts = self.net.faults(a, b).chunk_max < usize::MAX;
        if length_max > 0 && cuts && self.core.chance(0.5) {
            return Some(Ok(self.core.part_of(length_max) as u32));
        }
        Some(Ok(length_max as u32))
    }

    /// Puts as much of an end's send on the wire as the peer has room for.
    pub(super) fn pump(&mut self, key: EndKey) {
        while let Some(bytes) = self.next_segment(key) {
            let connection = &self.net.connections[&key.connection];
            let hosts = connection.ends.each_ref().map(|end| end.host);
            let cut_probability = self.net.faults(hosts[0], hosts[1]).cut_probability;
            if self.core.chance(cut_probability) {
                self.cut(key.connection);
                return;
            }
            self.push_segment(key.peer(), Segment::Data(bytes));
            let Some(end) = self.net.end(key) else { return };
            if end.shut && end.sending.is_none() {
                self.push_segment(key.peer(), Segment::Finish);
            }
        }
    }

    /// Takes the next segment out of a send, and completes the send with its last.
    fn next_segment(&mut self, key: EndKey) -> Option<Vec<u8>> {
        let connection = self.net.connections.get_mut(&key.connection)?;
        if connection.cut {
            return None;
        }
        let hosts = connection.ends.each_ref().map(|end| end.host);
        let peer = &connection.ends[1 - key.side];
        let waiting = peer.arrived.len() + peer.wire.bytes;
        let end = &mut connection.ends[key.side];
        let (batch, _) = end.sending.as_mut()?;
        let left = batch.unsent_bytes();
        let faults = self.net.faults(hosts[0], hosts[1]);
        let room = faults.buffer_bytes.saturating_sub(waiting).min(left);
        let chunk_max = faults.chunk_max.max(1);
        if room == 0 && left > 0 {
            return None;
        }
        let length =
            if chunk_max == usize::MAX || room == 0 { room } else { self.core.part_of(room.min(chunk_max)) };
        self.take_from_send(key, length)
    }

    fn take_from_send(&mut self, key: EndKey, length: usize) -> Option<Vec<u8>> {
        let end = self.net.end(key)?;
        let (batch, token) = end.sending.as_mut()?;
        let mut bytes = Vec::with_capacity(length);
        batch.copy_unsent(length, &mut bytes);
        batch.advance(length);
        let token = *token;
        if batch.unsent_bytes() == 0 {
            let (batch, _) = end.sending.take()?;
            let Owner::Socket(port, _) = end.owner else { unreachable!("only sockets send") };
            let sent = batch.bytes() as u32;
            self.complete(port, token, Ok(sent), Payload::Send(batch));
        }
        (!bytes.is_empty()).then_some(bytes)
    }
}

impl End {
    /// What a reader gets after the last byte, if nothing more can come.
    fn stream_end(&self) -> Option<Result<u32, i32>> {
        if self.reset {
            return Some(Err(libc::ECONNRESET));
        }
        if self.finished {
            return Some(Ok(0));
        }
        let refused = !self.established && self.connecting.is_none();
        refused.then_some(Err(libc::ENOTCONN))
    }
}
