//! The requests of a connection, each in a slot of a fixed table.

use ringfab_base::{SlotId, Slots};
use ringfab_initiator::IoError;
use ringfab_memory::SharedBuffer;

use super::super::export::{Refusal, errno};
use super::super::wire::{Errno, Request, flag};

/// Requests of one connection at most; beyond that nothing more is received.
pub(crate) const REQUESTS_MAX: usize = 128;
/// Parts of one request under way at most.
pub(crate) const WINDOW: usize = 8;

/// Why a request failed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failure {
    pub(crate) errno: Errno,
    pub(crate) reason: Reason,
}

/// The same for people.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reason {
    Text(&'static str),
    Io(IoError),
}

impl From<Refusal> for Failure {
    fn from((errno, text): Refusal) -> Self {
        Self { errno, reason: Reason::Text(text) }
    }
}

impl From<IoError> for Failure {
    fn from(error: IoError) -> Self {
        Self { errno: errno(error), reason: Reason::Io(error) }
    }
}

/// A request under way.
#[derive(Debug)]
pub(crate) struct Outstanding {
    pub(crate) request: Request,
    /// Bytes for which commands were issued, from the start.
    pub(crate) issued: u32,
    /// Commands outstanding.
    pub(crate) in_flight: u32,
    /// Whether a flush must follow (FUA of a command that has none of its own).
    pub(crate) flush_due: bool,
    /// Whether nothing more will be issued.
    pub(crate) complete: bool,
    /// The first failure.
    pub(crate) failure: Option<Failure>,
    /// Reads: which places of the window are in use.
    pub(crate) busy: u8,
    /// Reads: parts that have been read and not been sent.
    pub(crate) parts: [Option<SharedBuffer>; WINDOW],
    /// Reads: bytes that went into replies.
    pub(crate) sent: u32,
    /// Reads that are answered in order: parts handed to the replies.
    pub(crate) ordered_next: u32,
    /// Reads that are answered in order: whether the reply has begun, after which no error can be told.
    pub(crate) begun: bool,
}

const _: () = assert!(WINDOW == u8::BITS as usize, "the window's bits are in a byte");

impl Outstanding {
    fn new(request: Request) -> Self {
        Self {
            request,
            issued: 0,
            in_flight: 0,
            flush_due: false,
            complete: false,
            failure: None,
            busy: 0,
            parts: [const { None }; WINDOW],
            sent: 0,
            ordered_next: 0,
            begun: false,
        }
    }

    /// Keeps the first failure.
    pub(crate) fn fail(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
    }

    /// Whether a read is answered by one reply with all its bytes in order.
    pub(crate) fn is_ordered(&self, structured: bool) -> bool {
        !structured || self.request.flags & flag::DF != 0
    }

    /// Bytes of a read's part.
    pub(crate) fn part_bytes(&self, part: u32, part_bytes_max: u32) -> u32 {
        let start = part * part_bytes_max;
        (self.request.length - start).min(part_bytes_max)
    }
}

/// The requests of a connection, of which there is a fixed number at most.
#[derive(Debug)]
pub(crate) struct Requests(Slots<Outstanding>);

impl Requests {
    pub(crate) fn new() -> Self {
        Self(Slots::with_capacity(REQUESTS_MAX))
    }

    /// A slot for a request; `None` when all are in use.
    pub(crate) fn insert(&mut self, request: Request) -> Option<u16> {
        let inserted = self.0.try_insert(Outstanding::new(request), REQUESTS_MAX as u32);
        inserted.ok().map(|id| id.index as u16)
    }

    /// The request of a slot that is in use: it is, for as long as a command or a reply names it.
    pub(crate) fn get(&mut self, slot: u16) -> &mut Outstanding {
        self.find(slot).1
    }

    /// Ends a request.
    pub(crate) fn remove(&mut self, slot: u16) -> Outstanding {
        let id = self.find(slot).0;
        self.0.remove(id).expect("it was found")
    }

    fn find(&mut self, slot: u16) -> (SlotId, &mut Outstanding) {
        self.0.of_slot(slot.into()).expect("a slot in use")
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.0.is_full(REQUESTS_MAX as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::wire::Command;
    use super::*;

    fn request(length: u32) -> Request {
        Request { flags: 0, command: Command::Read, cookie: 1, offset: 0, length }
    }

    #[test]
    fn there_are_as_many_slots_as_said_and_each_comes_back() {
        let mut requests = Requests::new();
        let slots: Vec<u16> =
            (0..REQUESTS_MAX).map(|_| requests.insert(request(1)).expect("a slot")).collect();
        assert!(requests.is_full() && requests.insert(request(1)).is_none());
        for slot in slots {
            requests.remove(slot);
        }
        assert!(requests.is_empty());
    }

    #[test]
    fn the_last_part_is_as_long_as_the_rest() {
        let entry = Outstanding::new(request(1000));
        assert_eq!([0, 1, 2, 3].map(|part| entry.part_bytes(part, 300)), [300, 300, 300, 100]);
    }

    #[test]
    fn the_first_failure_is_the_one_that_is_told() {
        let mut entry = Outstanding::new(request(1));
        entry.fail((Errno::NoSpc, "first").into());
        entry.fail(IoError::TimedOut.into());
        assert_eq!(entry.failure.expect("a failure").errno, Errno::NoSpc);
    }
}
