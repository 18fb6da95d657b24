//! The receive loop of a stream: one receive is in flight, unless the protocol waits for a buffer.

use std::cmp::Ordering;
use std::io;
use std::ops::Range;

use ringfab_memory::SharedBuffer;
use ringfab_reactor::{Part, Reactor, ReceiveOp, STRIDES_MAX, Strides};

use super::life::{Phase, Stream};
use super::{DisconnectReason, Fault, Protocol, Shared};

/// Staging behind a direct receive: enough for a trailer, the next headers and a little data, and not so much that a
/// good part of the next large data would land there and be copied.
const BEHIND_DIRECT_BYTES: usize = 512;

/// What reaches so far into the staging memory came in large receives: the next begins elsewhere
/// ([`Shared::next_front`]).
const MUCH_BYTES: usize = 64 * 1024;

/// How many events a protocol takes in before it lets them be acted on. With all that a large receive may bring, the
/// two ends would work by turns, each waiting for the other's whole queue; with fewer, a send would be for too little.
pub(crate) const TURN_EVENTS: usize = 64;

/// Where a protocol wants the next bytes.
#[derive(Debug)]
pub(crate) enum ReceiveTarget {
    /// In the staging memory, behind those that it has not taken in, until so many are there. When they are there
    /// already, nothing more is received.
    Staging { bytes_max: usize },
    /// Straight in their final place.
    Direct(Place),
    /// Nowhere, before the pool has a buffer again.
    Buffer,
    /// Nowhere yet: what it has taken in is enough for one turn, and shall be acted on before the rest of what is
    /// there.
    Turn,
}

/// Memory to be filled from the stream.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) shared_buffer: SharedBuffer,
    /// First byte in the shared buffer.
    pub(crate) offset: usize,
    pub(crate) length: usize,
    /// Whether what comes next belongs elsewhere: the receive may go beyond the place then.
    pub(crate) is_last: bool,
    /// How the stream is expected to go on, by what belongs right behind the place. What turns out to belong elsewhere
    /// goes there, but has been in this memory.
    pub(crate) strides: Option<Strides>,
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
        let result = result.map(|bytes| bytes > 0);
        // The shared buffer goes here, whatever came: if its place is full now, the memory becomes unique again below.
        let (parts, shared_buffer) = (receive.parts(), receive.take_direct());
        let shared_buffer = shared_buffer.filter(|_| self.phase.is_streaming() && matches!(result, Ok(true)));
        self.receive = Some(receive);
        match (self.phase, result) {
            (Phase::Opening | Phase::Established | Phase::Draining, Ok(true)) => {
                self.on_parts(shared, reactor, shared_buffer, &parts);
            }
            (Phase::Securing, Ok(true)) => {
                self.unread.end = parts[0].staged.end;
                self.secure(shared, reactor);
            }
            (Phase::Securing | Phase::Opening | Phase::Established | Phase::Draining, result) => {
                self.on_stream_end(shared, reactor, result.err().as_ref());
            }
            (Phase::Terminating | Phase::Lingering, Ok(true)) => self.discard(shared, reactor),
            (Phase::Terminating | Phase::Lingering, _) => self.close_ended(shared, reactor),
            (Phase::Closing, _) => self.try_finish(shared, reactor),
            (Phase::Connecting | Phase::Ended, _) => {}
        }
    }

    /// Takes in what came: into the place of the receive, and what lies behind it. The shared buffer is let go of
    /// before what may complete the work that it belongs to: all that is expected to go on with it is still missing
    /// before the last part.
    fn on_parts(
        &mut self,
        shared: &mut Shared<P>,
        reactor: &mut Reactor,
        shared_buffer: Option<SharedBuffer>,
        parts: &[Part],
    ) {
        let mut staged = parts[0].staged.clone();
        if let Some(shared_buffer) = shared_buffer {
            self.on_placed(shared, &shared_buffer, parts[0].placed.clone());
            for (index, part) in parts.iter().enumerate().skip(1) {
                if part.placed.is_empty() {
                    break;
                }
                self.observe(shared, reactor, staged);
                if !self.goes_on(shared, &shared_buffer, part) {
                    staged = self.unplace(&shared_buffer, &parts[index..]);
                    break;
                }
                staged = part.staged.clone();
            }
        }
        self.observe(shared, reactor, staged);
        self.pump(shared, reactor);
    }

    fn on_placed(&mut self, shared: &mut Shared<P>, shared_buffer: &SharedBuffer, range: Range<usize>) {
        shared.counters.received_direct_bytes += range.len() as u64;
        self.protocol.placed(shared_buffer, range);
    }

    /// Adds what is in the staging memory to what the protocol has not taken in.
    fn observe(&mut self, shared: &mut Shared<P>, reactor: &Reactor, staged: Range<usize>) {
        self.unread.end = staged.end;
        if let Some(receive) = &self.receive {
            self.protocol.observe(shared, reactor, &receive.staging()[staged]);
        }
    }

    /// Whether what the protocol wants next is what came into the shared buffer here, and ends where that does unless
    /// nothing lies behind it. It is taken in then.
    fn goes_on(&mut self, shared: &mut Shared<P>, shared_buffer: &SharedBuffer, part: &Part) -> bool {
        let Some(receive) = &self.receive else { return false };
        let Ok(ReceiveTarget::Direct(place)) =
            self.protocol.receive(shared, receive.staging(), &mut self.unread)
        else {
            return false;
        };
        let first = |shared_buffer: &SharedBuffer, offset| shared_buffer.io_pointer(offset, 1);
        let begins = first(&place.shared_buffer, place.offset) == first(shared_buffer, part.placed.start);
        let ends = match part.placed.len().cmp(&place.length) {
            Ordering::Equal => true,
            Ordering::Less => part.staged.is_empty(),
            Ordering::Greater => false,
        };
        let goes_on = begins && ends && self.unread.is_empty();
        if goes_on {
            self.on_placed(shared, shared_buffer, part.placed.clone());
        }
        goes_on
    }

    /// Moves what came into these parts to the staging memory, where it would be had nothing been expected of it.
    /// Returns where it is now.
    fn unplace(&mut self, shared_buffer: &SharedBuffer, parts: &[Part]) -> Range<usize> {
        let bytes: usize = parts.iter().map(|part| part.placed.len() + part.staged.len()).sum();
        let (start, mut end) = (self.unread.end, self.unread.end + bytes);
        let Some(receive) = &mut self.receive else { return start..start };
        // From the last one on: each moves towards the end, over what has moved before it.
        for Part { placed, staged } in parts.iter().rev() {
            end -= staged.len();
            receive.staging_mut().copy_within(staged.clone(), end);
            end -= placed.len();
            shared_buffer.read_at(placed.start, &mut receive.staging_mut()[end..end + placed.len()]);
        }
        start..start + bytes
    }

    /// Feeds the protocol until it wants more, and aims the next receive accordingly.
    pub(super) fn pump(&mut self, shared: &mut Shared<P>, reactor: &mut Reactor) {
        if !self.ensure_receive(shared, reactor) {
            return;
        }
        let Some(receive) = &self.receive else { return };
        let wanted = self.protocol.receive(shared, receive.staging(), &mut self.unread);
        self.check_established(shared, reactor);
        match wanted {
            Ok(ReceiveTarget::Staging { bytes_max }) => self.arm_staging(shared, reactor, bytes_max),
            Ok(ReceiveTarget::Direct(place)) => self.arm_direct(shared, reactor, place),
            Ok(ReceiveTarget::Buffer) => {
                self.paused = true;
                shared.paused.push_back(self.key);
            }
            Ok(ReceiveTarget::Turn) => {
                self.paused = true;
                shared.yielded.push_back(self.key);
            }
            Err(fault) => return self.on_fault(shared, reactor, fault),
        }
        self.mark_dirty(shared);
        self.check_drained(shared, reactor);
    }

    /// Has staging memory. Without any the connection ends.
    pub(super) fn ensure_receive(&mut self, shared: &mut Shared<P>, reactor: &mut Reactor) -> bool {
        if self.receive.is_some() {
            return true;
        }
        match shared.take_receive() {
            Ok(receive) => self.receive = Some(receive),
            Err(error) => {
                tracing::warn!(peer = %self.addresses.1, reason = %error, "connection ended: no memory for it");
                self.on_broken(shared, reactor, &error);
            }
        }
        self.receive.is_some()
    }

    /// Goes on after [`ReceiveTarget::Turn`], or tries again to find a buffer, if one is waited for. Returns whether it
    /// went on.
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
        // The remainder moves to the front, so that whole headers fit behind it; but not again and again while it only
        // grows.
        let length = self.unread.len();
        if self.unread.start != self.front || length == 0 {
            self.front = if self.unread.end < MUCH_BYTES { 0 } else { shared.next_front() };
            receive.staging_mut().copy_within(self.unread.clone(), self.front);
            self.unread = self.front..self.front + length;
            shared.counters.moved_bytes += length as u64;
        }
        let end = bytes_max.saturating_add(self.front).min(receive.staging().len());
        if self.unread.end < end {
            receive.set_target(None, self.unread.end, end);
            self.arm(shared, reactor);
        }
    }

    fn arm_direct(&mut self, shared: &mut Shared<P>, reactor: &mut Reactor, place: Place) {
        let Some(receive) = &mut self.receive else { return };
        let Place { shared_buffer, offset, length, is_last, strides } = place;
        let behind = if is_last { BEHIND_DIRECT_BYTES } else { 0 };
        (self.front, self.unread) = (0, 0..0);
        let gaps = strides.map_or(0, |strides| STRIDES_MAX * strides.gap);
        receive.set_target(Some((shared_buffer, offset, length)), 0, gaps + behind);
        if let Some(strides) = strides {
            receive.add_strides(strides);
        }
        self.arm(shared, reactor);
    }

    /// Throws away what came, and waits for more of it or the end.
    pub(super) fn discard(&mut self, shared: &mut Shared<P>, reactor: &mut Reactor) {
        if let Some(receive) = &mut self.receive {
            (self.front, self.unread) = (0, 0..0);
            receive.set_target(None, 0, receive.staging().len());
        }
        self.arm(shared, reactor);
    }

    /// Puts a receive in flight, as it has been aimed.
    pub(super) fn arm(&mut self, shared: &mut Shared<P>, reactor: &mut Reactor) {
        let (Some(_), Some(receive)) = (self.wire.socket, self.receive.take()) else { return };
        self.receiving = true;
        let token = shared.token(super::kind::RECEIVE, self.key);
        self.wire.receive(shared, reactor, receive, token);
    }

    /// The peer's stream has ended, or receiving has failed.
    fn on_stream_end(&mut self, shared: &mut Shared<P>, reactor: &mut Reactor, error: Option<&io::Error>) {
        let reason = error.map_or(DisconnectReason::PeerClosed, DisconnectReason::of);
        if self.phase == Phase::Securing || matches!(reason, DisconnectReason::Insecure(_)) {
            return self.fail_tls(shared, reactor, reason);
        }
        // Some peers refuse by a failure.
        let refuses = error.is_none() || self.phase == Phase::Opening;
        let fault = refuses.then(|| self.protocol.stream_ended(self.unread.len())).flatten();
        match (fault, error) {
            (Some(fault), _) => self.on_fault(shared, reactor, fault),
            (None, Some(error)) => self.on_broken(shared, reactor, error),
            (None, None) => {
                let fault = Fault::Ended(self.send_failed.take().unwrap_or(reason));
                self.on_fault(shared, reactor, fault);
            }
        }
    }
}
