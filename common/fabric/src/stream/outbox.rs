//! What a stream gathers to be sent.

use ringfab_memory::SharedBuffer;
use ringfab_reactor::SendBatch;

use super::{Protocol, Shared};
use crate::table::Key;

/// A batch ends with the message that reaches this many bytes.
const BATCH_BYTES: usize = 1 << 20;

/// Payloads up to this size, a small block, are copied into the batch: cheaper than a piece of their own, for which the
/// kernel begins two more copies.
const COPY_BYTES_MAX: usize = 512;

/// Pieces that one message may add: header, payload, trailer.
const MESSAGE_PIECES_MAX: usize = 3;

/// Takes the pieces of what is to be sent, in the order of the stream.
#[derive(Debug)]
pub(crate) struct Gather<'a>(&'a mut SendBatch);

impl<'a> Gather<'a> {
    /// Of what goes into this batch.
    pub(super) fn of(batch: &'a mut SendBatch) -> Self {
        Self(batch)
    }

    /// Whether there is room for a message: a payload, and so many bytes around it.
    #[inline]
    pub(crate) fn fits(&self, head_bytes: usize) -> bool {
        self.0.bytes() < BATCH_BYTES && self.0.has_room(head_bytes + COPY_BYTES_MAX, MESSAGE_PIECES_MAX)
    }

    /// Copies a header or a trailer.
    #[inline(always)]
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.0.push_bytes(bytes);
    }

    /// Room for a header or a trailer, to be filled in at once.
    #[inline(always)]
    pub(crate) fn room(&mut self, length: usize) -> &mut [u8] {
        self.0.push_room(length)
    }

    /// The last bytes that were copied, behind the last payload that was not.
    pub(crate) fn copied_last(&self, length: usize) -> &[u8] {
        self.0.copied_last(length)
    }

    /// Takes a payload from where it lies, or a copy of a small one.
    #[inline]
    pub(crate) fn push_shared(&mut self, shared_buffer: SharedBuffer, offset: usize, length: usize) {
        if length <= COPY_BYTES_MAX {
            shared_buffer.read_at(offset, self.0.push_room(length));
        } else {
            self.0.push_shared(shared_buffer, offset, length);
        }
    }
}

/// One batch in flight, and the next one.
#[derive(Debug)]
pub(super) struct Outbox {
    /// The stream.
    key: Key,
    pub(super) sending: bool,
    /// What was given since the last send, as far as the protocol has gathered it at once.
    pub(super) batch: Option<Box<SendBatch>>,
    /// What the protocol shall be told when the batch in flight was sent.
    pub(super) transmitted: usize,
    /// Whether the stream is on the list of those that may have something to send.
    pub(super) dirty: bool,
}

impl Outbox {
    pub(super) fn new(key: Key) -> Self {
        Self { key, sending: false, batch: None, transmitted: 0, dirty: false }
    }

    /// Has the next flush visit the stream, unless what is in flight brings that about.
    #[inline]
    pub(super) fn enlist<P: Protocol>(&mut self, shared: &mut Shared<P>) {
        if !self.dirty && !self.sending {
            self.dirty = true;
            shared.dirty.push_back(self.key);
        }
    }

    /// The batch that is sent next.
    #[inline]
    pub(super) fn gather<P: Protocol>(&mut self, shared: &mut Shared<P>) -> Gather<'_> {
        Gather(self.batch.get_or_insert_with(|| shared.take_batch()))
    }
}

#[cfg(test)]
mod tests {
    use ringfab_memory::{ClassLayout, Pool};

    use super::*;

    #[test]
    fn a_batch_takes_messages_up_to_the_one_that_reaches_its_limit() {
        const BUFFER_BYTES: usize = 128 << 10;
        let pool = Pool::new(&[ClassLayout { buffer_bytes: BUFFER_BYTES, count: 1 }]).expect("a pool");
        let shared_buffer = pool.take(BUFFER_BYTES).expect("a buffer").share();
        let mut batch = SendBatch::new(8192, 64);
        let mut gather = Gather(&mut batch);
        for _ in 1..BATCH_BYTES / BUFFER_BYTES {
            gather.push_shared(shared_buffer.clone(), 0, BUFFER_BYTES);
        }
        gather.push_shared(shared_buffer.clone(), 0, BUFFER_BYTES - 1);
        assert!(gather.fits(24));
        gather.push(&[0]);
        assert!(!gather.fits(24));
    }
}
