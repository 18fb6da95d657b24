//! The requests of a connection, each in a slot of a fixed table.

use std::ops::Range;

use ringfab_base::{SlotId, Slots};
use ringfab_initiator::bytes::{block_pieces, part_bytes, touched_blocks};
use ringfab_initiator::{BlockRange, IoError};
use ringfab_memory::SharedBuffer;
use ringfab_proto::nbd::{Command, Errno, Extent, Request, flag};

use super::super::export::{Refusal, errno};
use crate::failures;

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
    fn from(refusal: Refusal) -> Self {
        Self { errno: refusal.errno, reason: Reason::Text(refusal.text) }
    }
}

impl Failure {
    /// A command for a request has failed.
    pub(crate) fn of(command: Command, error: IoError) -> Self {
        let errno = errno(error);
        // What not every controller has is asked for once; what is given up at the end is said then.
        let optional = matches!(command, Command::Trim | Command::WriteZeroes | Command::BlockStatus);
        if !(optional && errno == Errno::NotSup || errno == Errno::Shutdown) {
            failures::note(error);
        }
        Self { errno, reason: Reason::Io(error) }
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
    /// Those of them that are chores of other threads.
    pub(crate) chores: u32,
    /// Whether a flush must follow (FUA of a command that has none of its own).
    pub(crate) flush_due: bool,
    /// Whether nothing more will be issued.
    pub(crate) complete: bool,
    /// The first failure.
    pub(crate) failure: Option<Failure>,
    /// What is allocated, for who asked for that.
    pub(crate) extents: Vec<Extent>,
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
            chores: 0,
            flush_due: false,
            complete: false,
            failure: None,
            extents: Vec::new(),
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

    /// The bytes for which nothing was issued.
    pub(crate) fn rest(&self) -> Range<u64> {
        let Request { offset, length, .. } = self.request;
        offset + u64::from(self.issued)..offset + u64::from(length)
    }

    /// Leaves out what comes next and is only a part of a block.
    pub(crate) fn skip_parts(&mut self, block: u32) {
        // A range without a whole block may have two of them.
        for _ in 0..2 {
            self.issued += part_bytes(&self.rest(), block);
        }
    }

    /// The next whole blocks of a request that begins with one now, as one command that takes so many.
    pub(crate) fn next_blocks(&self, block: u32, blocks_max: u32) -> BlockRange {
        let Range { start, end } = self.rest();
        let blocks = start / u64::from(block)..end / u64::from(block);
        block_pieces(blocks, blocks_max).next().expect("there is a whole block")
    }

    /// Bytes of the whole blocks that a request touches.
    pub(crate) fn covered(&self, block: u32) -> u32 {
        let Request { offset, length, .. } = self.request;
        (behind(offset, block) + length).next_multiple_of(block)
    }

    /// Whole blocks of a read's part, in bytes.
    pub(crate) fn part_bytes(&self, part: u32, part_bytes_max: u32, block: u32) -> u32 {
        let start = part * part_bytes_max;
        (self.covered(block) - start).min(part_bytes_max)
    }

    /// What of a part the client has asked for: its first byte in the part, the offset of that, and how many.
    pub(crate) fn asked(&self, part: u32, part_bytes_max: u32, block: u32) -> (u32, u64, u32) {
        let Request { offset, length, .. } = self.request;
        let start = offset - u64::from(behind(offset, block)) + u64::from(part) * u64::from(part_bytes_max);
        let end = start + u64::from(self.part_bytes(part, part_bytes_max, block));
        let (from, to) = (start.max(offset), end.min(offset + u64::from(length)));
        ((from - start) as u32, from, (to - from) as u32)
    }
}

/// Bytes of a block that lie before an offset.
fn behind(offset: u64, block: u32) -> u32 {
    (offset % u64::from(block)) as u32
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

    /// Whether one has commands at the controller that may write some of these blocks.
    pub(crate) fn are_writing(&self, blocks: &Range<u64>, block: u32) -> bool {
        self.0.values().any(|entry| {
            let Request { command, offset, length, .. } = entry.request;
            let writes = matches!(command, Command::Write | Command::WriteZeroes | Command::Trim);
            let written = touched_blocks(&(offset..offset + u64::from(length)), block);
            let touches = written.start < blocks.end && blocks.start < written.end;
            writes && entry.in_flight > entry.chores && touches
        })
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
    fn the_parts_of_a_read_are_whole_blocks_of_which_the_client_gets_what_it_asked_for() {
        let entry = Outstanding::new(Request { offset: 700, ..request(3000) });
        assert_eq!(entry.covered(512), 3584);
        assert_eq!([0, 1, 2, 3].map(|part| entry.part_bytes(part, 1024, 512)), [1024, 1024, 1024, 512]);
        let asked = [0, 1, 2, 3].map(|part| entry.asked(part, 1024, 512));
        assert_eq!(asked, [(188, 700, 836), (0, 1536, 1024), (0, 2560, 1024), (0, 3584, 116)]);
        let inside = Outstanding::new(Request { offset: 4097, ..request(3) });
        assert_eq!((inside.covered(4096), inside.asked(0, 8192, 4096)), (4096, (1, 4097, 3)));
    }

    #[test]
    fn the_next_blocks_are_what_one_command_takes_of_what_was_not_issued() {
        let mut entry = Outstanding::new(Request { offset: 700, ..request(3000) });
        entry.issued = 324;
        assert_eq!(entry.rest(), 1024..3700);
        assert_eq!(entry.next_blocks(512, 3), BlockRange { lba: 2, nlb: 3 });
        entry.issued += 3 * 512;
        assert_eq!(
            entry.next_blocks(512, 3),
            BlockRange { lba: 5, nlb: 2 },
            "the last part of a block is left"
        );
    }

    #[test]
    fn what_is_only_parts_of_blocks_is_left_out() {
        for (offset, length, left) in
            [(700, 324, 0), (700, 500, 0), (0, 5, 0), (700, 900, 576), (512, 1024, 1024), (700, 0, 0)]
        {
            let mut entry = Outstanding::new(Request { offset, ..request(length) });
            entry.skip_parts(512);
            assert_eq!(entry.request.length - entry.issued, left, "{offset}, {length}");
        }
    }

    #[test]
    fn blocks_are_written_by_commands_at_the_controller_and_not_by_chores() {
        let mut requests = Requests::new();
        let write = Request { command: Command::Write, offset: 700, ..request(3000) };
        let slot = requests.insert(write).expect("a slot");
        assert!(!requests.are_writing(&(0..9), 512), "nothing was issued");
        requests.get(slot).in_flight = 2;
        assert!(requests.are_writing(&(7..8), 512) && requests.are_writing(&(0..2), 512));
        assert!(!requests.are_writing(&(8..9), 512) && !requests.are_writing(&(0..1), 512));
        requests.get(slot).chores = 2;
        assert!(!requests.are_writing(&(0..9), 512));
    }

    #[test]
    fn the_first_failure_is_the_one_that_is_told() {
        let mut entry = Outstanding::new(request(1));
        entry.fail(Refusal::new(Errno::NoSpc, "first").into());
        entry.fail(Failure::of(Command::Read, IoError::TimedOut));
        assert_eq!(entry.failure.expect("a failure").errno, Errno::NoSpc);
    }
}
