//! What comes on a connection, and the memory for it.

use std::ops::Range;

use ringfab_memory::{Buffer, SharedBuffer};
use ringfab_proto::tcp::{self as proto, Place};
use ringfab_spec::tcp::IcReq;
use ringfab_spec::{CompletionEntry, SubmissionEntry};

use super::TcpEvent;
use super::connection::{Connection, fault, first_bytes};
use super::inbound::Capsule;
use crate::stream::{self, Fault, ReceiveTarget, Shared};

impl Connection {
    /// Feeds the engine until it wants more.
    #[expect(clippy::too_many_lines, reason = "an arm for each event of the engine")]
    pub(super) fn feed(
        &mut self,
        shared: &mut Shared<Self>,
        staging: &[u8],
        unread: &mut Range<usize>,
    ) -> Result<ReceiveTarget, Fault> {
        if !self.reserve() {
            return Ok(ReceiveTarget::Buffer);
        }
        let enough = shared.events.len() + stream::TURN_EVENTS;
        loop {
            if shared.events.len() >= enough {
                return Ok(ReceiveTarget::Turn);
            }
            // The header of the first capsule is for who adopts the connection.
            if self.arriving && self.engine.negotiated().is_some() {
                return Ok(ReceiveTarget::Staging { bytes_max: first_bytes(&staging[unread.clone()]) });
            }
            let step = self.engine.receive(&staging[unread.clone()]).map_err(fault)?;
            let base = unread.start;
            unread.start += step.consumed;
            match step.event {
                proto::Event::NeedMore => {
                    let bytes_max = if self.arriving { IcReq::SIZE } else { usize::MAX };
                    return Ok(ReceiveTarget::Staging { bytes_max });
                }
                proto::Event::Direct { to, remaining } => return Ok(self.want(to, remaining)),
                proto::Event::Place { to, payload } => {
                    shared.counters.received_copied_bytes += payload.len() as u64;
                    self.place(shared, staging, to, payload.start + base..payload.end + base);
                }
                proto::Event::Initialized if self.arriving => {}
                proto::Event::Initialized => {
                    shared.events.push_with(|| TcpEvent::Established { connection: self.id });
                }
                proto::Event::Command { sqe, data_bytes: 0 } => {
                    let connection = self.id;
                    shared.counters.received_copied_bytes += SubmissionEntry::SIZE as u64;
                    shared.events.push_with(|| TcpEvent::Command {
                        connection,
                        sqe,
                        data: None,
                        intact: true,
                    });
                }
                proto::Event::Command { sqe, data_bytes } => {
                    shared.counters.received_copied_bytes += SubmissionEntry::SIZE as u64;
                    self.capsule = Some(Capsule { sqe, bytes: data_bytes, data: None });
                    if !self.reserve() {
                        return Ok(ReceiveTarget::Buffer);
                    }
                }
                proto::Event::CommandEnd { intact } => {
                    shared.copies.make(staging);
                    self.on_capsule(shared, intact);
                }
                proto::Event::TransferEnd { tag, intact } => {
                    shared.copies.make(staging);
                    self.on_transfer(shared, tag, intact);
                }
                proto::Event::Response { cqe, intact, received } => {
                    shared.counters.received_copied_bytes += CompletionEntry::SIZE as u64;
                    let connection = self.id;
                    shared.events.push_with(|| TcpEvent::Response { connection, cqe, intact, received });
                }
            }
        }
    }

    /// Finds memory for the capsule that is being received. Returns whether there was some.
    fn reserve(&mut self) -> bool {
        match (&mut self.capsule, &self.pool) {
            (Some(capsule), Some(pool)) => capsule.reserve(pool),
            _ => true,
        }
    }

    fn on_capsule(&mut self, shared: &mut Shared<Self>, intact: bool) {
        let Some(Capsule { sqe, data, .. }) = self.capsule.take() else { return };
        let data = data.map(unique);
        shared.events.push_with(|| TcpEvent::Command { connection: self.id, sqe, data, intact });
    }

    fn on_transfer(&mut self, shared: &mut Shared<Self>, tag: u16, intact: bool) {
        let connection = self.id;
        for (id, shared_buffer) in self.transfers.end(tag) {
            let sink = Some(unique(shared_buffer));
            shared.events.push_with(|| TcpEvent::Data { connection, id, sink, intact });
        }
    }

    /// The memory of a place: where it starts there, and how much of it is in one piece.
    fn resolve(&self, place: Place) -> (&SharedBuffer, usize, usize) {
        let found = match place {
            Place::Capsule { offset } => {
                let shared_buffer = self.capsule.as_ref().and_then(|capsule| capsule.data.as_ref());
                shared_buffer.map(|shared_buffer| {
                    (shared_buffer, offset as usize, shared_buffer.len() - offset as usize)
                })
            }
            Place::Transfer { tag, offset } => {
                let found = self.transfers.find(tag, offset);
                found.map(|(shared_buffer, start)| (shared_buffer, start, shared_buffer.len() - start))
            }
            Place::Command { cid, offset } => self
                .engine
                .sink(cid)
                .map(|sink| (&sink.handle, (sink.offset + offset) as usize, (sink.length - offset) as usize)),
        };
        found.expect("the engine names places of what is outstanding")
    }

    /// Has staged bytes copied to their place, which may be in several pieces.
    fn place(&self, shared: &mut Shared<Self>, staging: &[u8], to: Place, mut rest: Range<usize>) {
        let mut at = to;
        while !rest.is_empty() {
            let (shared_buffer, start, room) = self.resolve(at);
            let now = rest.start..rest.end.min(rest.start + room);
            at = at.advanced(now.len() as u32);
            rest.start = now.end;
            shared.copies.add(staging, shared_buffer, start, now);
        }
    }

    /// As much of a place as is in one piece.
    fn want(&self, place: Place, length: usize) -> ReceiveTarget {
        let (shared_buffer, offset, room) = self.resolve(place);
        let (shared_buffer, is_last) = (shared_buffer.clone(), length <= room);
        ReceiveTarget::Direct(stream::Place {
            shared_buffer,
            offset,
            length: length.min(room),
            is_last,
            strides: None,
        })
    }
}

/// The memory of what has come whole: no receive into it is in flight.
fn unique(shared_buffer: SharedBuffer) -> Buffer {
    shared_buffer.into_unique().expect("no receive into the memory of ended data is in flight")
}
