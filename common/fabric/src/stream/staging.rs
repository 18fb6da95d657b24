//! The memory that a stream receives into, and what in it the protocol has not taken in.

use std::ops::Range;

use ringfab_memory::SharedBuffer;
use ringfab_reactor::{Part, ReceiveOp, STRIDES_MAX};

use super::receive_target::Place;
use super::{Protocol, Shared};

/// Staging behind a direct receive: enough for a trailer, the next headers and a little data, and not so much that a
/// good part of the next large data would land there and be copied.
const BEHIND_DIRECT_BYTES: usize = 512;

/// What reaches so far into the staging memory came in large receives: the next begins elsewhere
/// ([`Shared::next_front`]).
const MUCH_BYTES: usize = 64 * 1024;

/// A stream's receive with its staging memory.
#[derive(Debug, Default)]
pub(super) struct Staging {
    /// Ours except while it is in flight.
    pub(super) receive: Option<Box<ReceiveOp>>,
    /// Bytes of the memory that the protocol has not taken in.
    pub(super) unread: Range<usize>,
    /// Where they were to begin when it was last received into.
    front: usize,
}

impl Staging {
    /// What has come and is not taken in.
    pub(super) fn unread(&self) -> &[u8] {
        self.receive.as_ref().map_or(&[], |receive| &receive.staging()[self.unread.clone()])
    }

    /// Puts what has come elsewhere to the beginning.
    pub(super) fn fill(&mut self, bytes: &[u8]) {
        let Some(receive) = &mut self.receive else { return };
        receive.staging_mut()[..bytes.len()].copy_from_slice(bytes);
        self.unread = 0..bytes.len();
    }

    /// Moves what came into these parts to the staging memory, where it would be had nothing been expected of it.
    /// Returns where it is now.
    pub(super) fn unplace(&mut self, shared_buffer: &SharedBuffer, parts: &[Part]) -> Range<usize> {
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

    /// Aims the next receive behind what is there, until `bytes_max` are there in all. Returns whether any are missing.
    pub(super) fn aim_behind<P: Protocol>(&mut self, shared: &mut Shared<P>, bytes_max: usize) -> bool {
        let Some(receive) = &mut self.receive else { return false };
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
        let missing = self.unread.end < end;
        if missing {
            receive.set_target(None, self.unread.end, end);
        }
        missing
    }

    /// Aims the next receive at its final place.
    pub(super) fn aim_direct(&mut self, place: Place) {
        let Some(receive) = &mut self.receive else { return };
        let Place { shared_buffer, offset, length, is_last, strides } = place;
        let behind = if is_last { BEHIND_DIRECT_BYTES } else { 0 };
        (self.front, self.unread) = (0, 0..0);
        let gaps = strides.map_or(0, |strides| STRIDES_MAX * strides.gap);
        receive.set_target(Some((shared_buffer, offset, length)), 0, gaps + behind);
        if let Some(strides) = strides {
            receive.add_strides(strides);
        }
    }

    /// Aims the next receive at memory that nobody reads.
    pub(super) fn aim_away(&mut self) {
        if let Some(receive) = &mut self.receive {
            (self.front, self.unread) = (0, 0..0);
            receive.set_target(None, 0, receive.staging().len());
        }
    }
}
