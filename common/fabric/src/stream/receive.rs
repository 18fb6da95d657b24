//! The receive loop of a stream: one receive is in flight, unless the protocol waits for a buffer.

use std::io;

use ringfab_memory::Lease;
use ringfab_reactor::{Reactor, ReceiveOp};

use super::life::{Phase, Stream};
use super::{DisconnectReason, Fault, Protocol, Shared};

/// Staging behind a direct receive: enough for a trailer, the next headers and a little data, and not so much that a good
/// part of the next large data would land there and be copied.
const BEHIND_DIRECT_BYTES: usize = 512;

/// What reaches so far into the staging memory came in large receives: the next begins elsewhere ([`Shared::next_front`]).
const MUCH_BYTES: usize = 64 * 1024;

/// How many events a protocol takes in before it lets them be acted on. With all that a large receive may bring, the two ends
/// would work by turns, each waiting for the other's whole queue; with fewer, a send would be for too little.
pub(crate) const TURN_EVENTS: usize = 64;

/// Where a protocol wants the next bytes.
#[derive(Debug)]
pub(crate) enum Want {
    /// In the staging memory, behind those that it has not taken in, until so many are there. When they are there already,
    /// nothing more is received.
    Staging { bytes_max: usize },
    /// Straight in their final place.
    Place(Place),
    /// Nowhere, before the pool has a buffer again.
    Buffer,
    /// Nowhere yet: what it has taken in is enough for one turn, and shall be acted on before the rest of what is there.
    Turn,
}

/// Memory to be filled from the stream.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) lease: Lease,
    /// First byte in the lease.
    pub(crate) offset: usize,
    pub(crate) length: usize,
    /// Whether what comes next belongs elsewhere: the receive may go beyond the place then.
    pub(crate) is_last: bool,
}

impl<P: Protocol> Stream<P> {
    /// A receive has ended.
    pub(super) fn on_received(
        &mut self,
        shared: &mut Shared<P>,
        reactor: &mut Reactor,
        mut receive: Box<ReceiveOp>,
        result: io::Result<u32>,
    ) {
        self.receiving = false;
        let (placed, staged) = (receive.direct_received(), receive.staging_received());
        let result = result.map(|bytes| bytes > 0);
        // The lease goes here, whatever came: if its place is full now, the memory becomes unique again below.
        if let Some(lease) = receive.take_direct()
            && self.is_streaming()
            && matches!(result, Ok(true))
        {
            self.protocol.placed(&lease, self.direct_start..self.direct_start + placed);
            shared.counters.received_direct_bytes += placed as u64;
        }
        self.receive = Some(receive);
        match (self.phase, result) {
            (Phase::Opening | Phase::Established | Phase::Draining, Ok(true)) => {
                self.on_staged(shared, reactor, staged);
            }
            (Phase::Opening | Phase::Established | Phase::Draining, Ok(false)) => {
                self.on_stream_end(shared, reactor);
            }
            (Phase::Opening | Phase::Established | Phase::Draining, Err(error)) => {
                self.on_receive_failed(shared, reactor, &error);
            }
            (Phase::Terminating | Phase::Lingering, Ok(true)) => self.discard(shared, reactor),
            (Phase::Terminating | Phase::Lingering, _) => self.close_ended(shared, reactor),
            (Phase::Closing, _) => self.try_finish(shared, reactor),
            (Phase::Connecting | Phase::Ended, _) => {}
        }
    }

    fn on_staged(&mut self, shared: &mut Shared<P>, reactor: &mut Reactor, staged: usize) {
        let (start, end) = (self.unread.end, self.unread.end + staged);
        if let Some(receive) = &self.receive {
            self.protocol.observe(shared, reactor, &receive.staging()[start..end]);
        }
        self.unread.end = end;
        self.pump(shared, reactor);
    }

    /// Feeds the protocol until it wants more, and aims the next receive accordingly.
    pub(super) fn pump(&mut self, shared: &mut Shared<P>, reactor: &mut Reactor) {
        let receive = self.receive.get_or_insert_with(|| shared.take_receive());
        let wanted = self.protocol.receive(shared, receive.staging(), &mut self.unread);
        self.check_established(shared, reactor);
        match wanted {
            Ok(Want::Staging { bytes_max }) => self.arm_staging(shared, reactor, bytes_max),
            Ok(Want::Place(place)) => self.arm_direct(shared, reactor, place),
            Ok(Want::Buffer) => {
                self.paused = true;
                shared.paused.push_back(self.key);
            }
            Ok(Want::Turn) => {
                self.paused = true;
                shared.yielded.push_back(self.key);
            }
            Err(fault) => return self.on_fault(shared, reactor, fault),
        }
        self.mark_dirty(shared);
        self.check_drained(shared, reactor);
    }

    /// Goes on after [`Want::Turn`], or tries again to find a buffer, if one is waited for. Returns whether it went on.
    pub(super) fn resume(&mut self, shared: &mut Shared<P>, reactor: &mut Reactor) -> bool {
        if !self.paused {
            return false;
        }
        self.paused = false;
        self.pump(shared, reactor);
        !self.paused
    }

    fn arm_staging(&mut self, shared: &mut Shared<P>, reactor: &mut Reactor, bytes_max: usize) {
        let Some(receive) = &mut self.receive else { return };
        // The remainder moves to the front, so that whole headers fit behind it; but not again and again while it only grows.
        let length = self.unread.len();
        if self.unread.start != self.front || length == 0 {
            self.front = if self.unread.end < MUCH_BYTES { 0 } else { shared.next_front() };
            receive.staging_mut().copy_within(self.unread.clone(), self.front);
            self.unread = self.front..self.front + length;
            shared.counters.moved_bytes += length as u64;
        }
        let end = bytes_max.saturating_add(self.front).min(receive.staging().len());
        if self.unread.end < end {
            receive.aim(None, self.unread.end, end);
            self.arm(shared, reactor);
        }
    }

    fn arm_direct(&mut self, shared: &Shared<P>, reactor: &mut Reactor, place: Place) {
        let Some(receive) = &mut self.receive else { return };
        let Place { lease, offset, length, is_last } = place;
        let behind = if is_last { BEHIND_DIRECT_BYTES } else { 0 };
        self.direct_start = offset;
        (self.front, self.unread) = (0, 0..0);
        receive.aim(Some((lease, offset, length)), 0, behind);
        self.arm(shared, reactor);
    }

    /// Throws away what came, and waits for more of it or the end.
    pub(super) fn discard(&mut self, shared: &Shared<P>, reactor: &mut Reactor) {
        if let Some(receive) = &mut self.receive {
            (self.front, self.unread) = (0, 0..0);
            receive.aim(None, 0, receive.staging().len());
        }
        self.arm(shared, reactor);
    }

    /// Puts a receive in flight, as it has been aimed.
    fn arm(&mut self, shared: &Shared<P>, reactor: &mut Reactor) {
        let (Some(socket), Some(receive)) = (self.socket, self.receive.take()) else { return };
        self.receiving = true;
        reactor.receive(socket, receive, shared.token(super::kind::RECEIVE, self.key));
    }

    /// The peer's stream has ended.
    fn on_stream_end(&mut self, shared: &mut Shared<P>, reactor: &mut Reactor) {
        let fault = self
            .protocol
            .stream_ended(self.unread.len())
            .unwrap_or_else(|| Fault::Ended(self.send_failed.take().unwrap_or(DisconnectReason::PeerClosed)));
        self.on_fault(shared, reactor, fault);
    }

    fn on_receive_failed(&mut self, shared: &mut Shared<P>, reactor: &mut Reactor, error: &io::Error) {
        // Some peers refuse in this way.
        if self.phase == Phase::Opening
            && let Some(fault) = self.protocol.stream_ended(self.unread.len())
        {
            return self.on_fault(shared, reactor, fault);
        }
        self.on_broken(shared, reactor, error);
    }
}
