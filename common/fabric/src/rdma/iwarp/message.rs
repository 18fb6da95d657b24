//! The message that is being received.

use std::ops::Range;

use ringfab_memory::{Buffer, Pool};

use crate::rdma::{QueuePairId, ReceivedHead, RnicEvent};

/// Bytes of a message that go to [`ReceivedHead`].
const HEAD_BYTES: usize = ReceivedHead::LENGTH_MAX;

/// A SEND of which some segments may have arrived.
#[derive(Debug)]
pub(super) struct Message {
    head: ReceivedHead,
    data: Option<Buffer>,
}

/// A segment of a SEND, its payload as a range of the staging memory.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    /// Offset in the message.
    pub(super) offset: usize,
    pub(super) payload: Range<usize>,
    pub(super) last: bool,
    pub(super) invalidated: Option<u32>,
}

impl Segment {
    /// Whether it is a message of its own, and all of it head.
    #[inline]
    pub(super) fn is_short(&self) -> bool {
        self.last && self.offset == 0 && self.payload.len() <= HEAD_BYTES
    }
}

impl Message {
    pub(super) fn new() -> Self {
        Self { head: ReceivedHead::new(&[]), data: None }
    }

    /// The largest buffer that a message of `receive_bytes_max` bytes may need.
    pub(super) fn data_bytes_max(receive_bytes_max: u32) -> usize {
        (receive_bytes_max as usize).saturating_sub(HEAD_BYTES)
    }

    /// Makes sure that there is a buffer for `segment`. False when the pool has none now.
    pub(super) fn reserve(&mut self, segment: &Segment, pool: &Pool, receive_bytes_max: u32) -> bool {
        let end = segment.offset + segment.payload.len();
        if self.data.is_none() && end > HEAD_BYTES {
            // How long a message of several segments becomes is not known before its last one.
            let length =
                if segment.last { end - HEAD_BYTES } else { Self::data_bytes_max(receive_bytes_max) };
            self.data = pool.take(length);
        }
        self.data.is_some() || end <= HEAD_BYTES
    }

    /// Copies a segment's payload to its place; returns how many bytes. [`Message::reserve`] came first.
    pub(super) fn place(&mut self, offset: usize, bytes: &[u8]) {
        let to_head = bytes.len().min(HEAD_BYTES.saturating_sub(offset));
        let (head, rest) = bytes.split_at(to_head);
        if !head.is_empty() {
            self.head.bytes[offset..offset + to_head].copy_from_slice(head);
            self.head.length = (offset + to_head) as u64;
        }
        if let (Some(data), false) = (&mut self.data, rest.is_empty()) {
            let start = offset + to_head - HEAD_BYTES;
            data[start..start + rest.len()].copy_from_slice(rest);
        }
    }

    /// The message of `length` bytes is complete.
    pub(super) fn finish(
        &mut self,
        queue_pair: QueuePairId,
        length: usize,
        invalidated: Option<u32>,
    ) -> RnicEvent {
        let mut data = self.data.take();
        if let Some(data) = &mut data {
            data.set_len(length - HEAD_BYTES);
        }
        let head = self.head;
        self.head.length = 0;
        RnicEvent::Received { queue_pair, head, data, invalidated }
    }
}
