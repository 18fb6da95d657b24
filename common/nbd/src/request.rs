//! An operation of the disk as requests to the server: one after the other, where a server takes less at once.

use ringfab_block::{BlockError, Finished, Operation, Tag};
use ringfab_memory::SharedBuffer;
use ringfab_proto::nbd::{Command, ExportInfo, Request, export, flag};

use crate::durability::Sent;

/// The most that one request trims or zeroes: others get their turn in between.
const CHANGE_BYTES_MAX: u64 = 128 << 20;

/// What is to be done.
#[derive(Debug)]
pub(crate) enum Work {
    Read { buffer: SharedBuffer },
    Write { source: SharedBuffer, at: u32, durable: bool },
    WriteZeroes { deallocate: bool, durable: bool },
    Trim,
    Flush,
}

/// An operation in flight.
#[derive(Debug)]
pub(crate) struct InFlight {
    /// Who waits for it; nobody for a flush of our own.
    tag: Option<Tag>,
    pub(crate) work: Work,
    /// The range of the disk.
    offset: u64,
    length: u64,
    /// Bytes that are done.
    done: u64,
    /// Bytes that the present request is about.
    pub(crate) asked: u32,
    /// For a read: bytes of the present request that have come, all of them before this one.
    pub(crate) received: u32,
    /// For a read: whether parts have come out of order, so that only their number is known.
    pub(crate) out_of_order: bool,
    /// A flush that makes a write durable is the present request.
    flushing: bool,
    /// Where the account of what is safe was when the present request was sent.
    pub(crate) sent: Sent,
    /// The send that its present request is in; zero before it is sent.
    pub(crate) batch: u64,
    /// Whether the present request was answered, and only its send is not known to be over.
    pub(crate) is_answered: bool,
    /// How the present request has failed.
    pub(crate) failure: Option<Failure>,
}

/// How a request has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) error: BlockError,
    /// The server's number, which is Linux's.
    pub(crate) errno: Option<i32>,
}

/// What comes after a request has been answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Another request of the same operation.
    Ask,
    /// It is over.
    Finish,
}

impl InFlight {
    /// A flush that nobody waits for.
    pub(crate) fn flush_of_our_own() -> Self {
        Self::of(None, Work::Flush, 0, 0)
    }

    /// An operation that is to begin.
    ///
    /// # Errors
    /// Gives back what NBD has nothing for.
    pub(crate) fn new(operation: Operation, tag: Tag) -> Result<Self, Operation> {
        let (offset, length) = operation.range().unwrap_or_default();
        let work = match operation {
            Operation::Read { buffer, .. } => Work::Read { buffer: buffer.share() },
            Operation::Write { source, at, durable, .. } => Work::Write { source, at, durable },
            Operation::WriteZeroes { deallocate, durable, .. } => Work::WriteZeroes { deallocate, durable },
            Operation::Discard { .. } => Work::Trim,
            Operation::Flush => Work::Flush,
            other => return Err(other),
        };
        Ok(Self::of(Some(tag), work, offset, length))
    }

    fn of(tag: Option<Tag>, work: Work, offset: u64, length: u64) -> Self {
        Self {
            tag,
            work,
            offset,
            length,
            done: 0,
            asked: 0,
            received: 0,
            out_of_order: false,
            flushing: false,
            sent: Sent::default(),
            batch: 0,
            is_answered: false,
            failure: None,
        }
    }

    /// Whether there is nothing to ask the server for: it has nothing of the kind, and needs nothing.
    pub(crate) fn is_idle(&self, info: &ExportInfo) -> bool {
        match self.work {
            Work::Flush => !info.has(export::SEND_FLUSH),
            Work::Trim => !info.has(export::SEND_TRIM) || self.length == 0,
            _ => self.length == 0,
        }
    }

    /// Whether nobody waits for it.
    pub(crate) const fn is_our_own(&self) -> bool {
        self.tag.is_none()
    }

    /// Whether it is over only when all that was written before it is safe, whichever core has written it. The flush
    /// behind a write is about that write.
    pub(crate) const fn is_about_all(&self) -> bool {
        !self.flushing && !self.is_our_own()
    }

    /// Whether it is a flush, or its present request is one.
    pub(crate) const fn is_flush(&self) -> bool {
        self.flushing || matches!(self.work, Work::Flush)
    }

    /// Whether its present request changes the disk.
    pub(crate) const fn changes(&self) -> bool {
        !self.flushing && matches!(self.work, Work::Write { .. } | Work::WriteZeroes { .. } | Work::Trim)
    }

    /// The present request. `through` says that each write is to reach stable storage. `zeroes_max` bytes of zeroes
    /// are at hand for a server that cannot make them itself.
    pub(crate) fn request(
        &mut self,
        info: &ExportInfo,
        through: bool,
        zeroes_max: usize,
        cookie: u64,
    ) -> Request {
        let left = self.length - self.done;
        let most = match self.work {
            Work::Read { .. } | Work::Write { .. } => u64::from(info.block_sizes.maximum),
            Work::WriteZeroes { .. } if !info.has(export::SEND_WRITE_ZEROES) => zeroes_max as u64,
            _ => CHANGE_BYTES_MAX,
        };
        (self.received, self.out_of_order, self.is_answered, self.failure) = (0, false, false, None);
        let (command, flags) = match &self.work {
            _ if self.flushing => (Command::Flush, 0),
            Work::Read { .. } => (Command::Read, 0),
            Work::Write { durable, .. } => (Command::Write, fua(info, *durable || through)),
            Work::WriteZeroes { durable, .. } if !info.has(export::SEND_WRITE_ZEROES) => {
                (Command::Write, fua(info, *durable || through))
            }
            Work::WriteZeroes { deallocate, durable } => {
                let hole = if *deallocate { 0 } else { flag::NO_HOLE };
                (Command::WriteZeroes, fua(info, *durable || through) | hole)
            }
            Work::Trim => (Command::Trim, fua(info, through)),
            Work::Flush => (Command::Flush, 0),
        };
        let is_flush = command == Command::Flush;
        self.asked = if is_flush { 0 } else { left.min(most) as u32 };
        let offset = if is_flush { 0 } else { self.offset + self.done };
        Request { flags, command, cookie, offset, length: self.asked }
    }

    /// The bytes that its present request, a write, carries.
    pub(crate) fn payload(&self, zeroes: Option<&SharedBuffer>) -> Payload {
        let length = self.asked as usize;
        match (&self.work, zeroes) {
            (Work::Write { source, at, .. }, _) => {
                Payload { source: source.clone(), at: *at as usize + self.done as usize, length }
            }
            (_, Some(zeroes)) => Payload { source: zeroes.clone(), at: 0, length },
            _ => unreachable!("only writes carry bytes"),
        }
    }

    /// Where the present request begins on the disk.
    pub(crate) const fn disk_offset(&self) -> u64 {
        self.offset + self.done
    }

    /// Whether it is a read that succeeds without all of its bytes.
    pub(crate) const fn is_incomplete(&self) -> bool {
        matches!(self.work, Work::Read { .. }) && self.failure.is_none() && self.received != self.asked
    }

    /// Bytes of a read come. Out of their order, nobody knows what will have come in the end; what another one has left
    /// in the buffer must not stay there.
    pub(crate) fn note_order(&mut self, placed: &Placed) {
        if !placed.in_order && !self.out_of_order {
            self.out_of_order = true;
            let rest = Placed {
                buffer: placed.buffer.clone(),
                at: (self.done as usize) + self.received as usize,
                in_order: false,
            };
            rest.fill_with_zeroes((self.asked - self.received) as usize);
        }
    }

    /// Where in the buffer of a read the bytes of a place on the disk go; none if they were not asked for.
    pub(crate) fn place(&self, offset: u64, length: u32) -> Option<Placed> {
        let Work::Read { buffer } = &self.work else { return None };
        let at = offset.checked_sub(self.offset + self.done)?;
        let end = at.checked_add(u64::from(length))?;
        if end > u64::from(self.asked) {
            return None;
        }
        Some(Placed {
            buffer: buffer.clone(),
            at: (self.done + at) as usize,
            in_order: at == u64::from(self.received),
        })
    }

    /// Whether an acknowledgement of the present request says nothing about stable storage.
    pub(crate) fn is_volatile(&self, info: &ExportInfo, through: bool) -> bool {
        let durable = match self.work {
            Work::Write { durable, .. } | Work::WriteZeroes { durable, .. } => durable,
            _ => false,
        };
        self.changes() && info.has(export::SEND_FLUSH) && fua(info, durable || through) == 0
    }

    /// The present request has been answered.
    pub(crate) fn answered(&mut self, info: &ExportInfo) -> Next {
        if self.failure.is_some() || self.flushing || matches!(self.work, Work::Flush) {
            return Next::Finish;
        }
        self.done += u64::from(self.asked);
        if self.done < self.length {
            return Next::Ask;
        }
        let durable =
            matches!(self.work, Work::Write { durable: true, .. } | Work::WriteZeroes { durable: true, .. });
        if durable && !info.has(export::SEND_FUA) && info.has(export::SEND_FLUSH) {
            self.flushing = true;
            return Next::Ask;
        }
        Next::Finish
    }

    /// It is over, as its last request was answered; see [`end`](Self::end).
    pub(crate) fn finish(self) -> Option<Finished> {
        match self.failure {
            None => self.end(Ok(()), None),
            Some(Failure { error, errno }) => self.end(Err(error), errno),
        }
    }

    /// It is over, however it went: what is to be said to whoever waits for it. Nobody receives into its buffer any
    /// more.
    pub(crate) fn end(self, result: Result<(), BlockError>, errno: Option<i32>) -> Option<Finished> {
        let Self { tag, offset, length, work, .. } = self;
        let tag = tag?;
        let operation = match work {
            Work::Read { buffer } => {
                let buffer =
                    buffer.into_unique().expect("nothing else has the buffer of a read that is over");
                Operation::Read { offset, buffer, may_borrow: false }
            }
            Work::Write { source, at, durable } => {
                Operation::Write { offset, source, at, length: length as u32, durable }
            }
            Work::WriteZeroes { deallocate, durable } => {
                Operation::WriteZeroes { offset, length, deallocate, durable }
            }
            Work::Trim => Operation::Discard { offset, length },
            Work::Flush => Operation::Flush,
        };
        Some(operation.finish(tag, result).with_errno(errno))
    }
}

/// Bytes that follow a request.
pub(crate) struct Payload {
    pub(crate) source: SharedBuffer,
    pub(crate) at: usize,
    pub(crate) length: usize,
}

/// Where bytes that were read go.
pub(crate) struct Placed {
    pub(crate) buffer: SharedBuffer,
    pub(crate) at: usize,
    /// Whether all bytes before them have come.
    pub(crate) in_order: bool,
}

impl Placed {
    /// Fills so many bytes with zeroes.
    pub(crate) fn fill_with_zeroes(&self, length: usize) {
        const ZEROES: [u8; 4096] = [0; 4096];
        let end = self.at + length;
        for at in (self.at..end).step_by(ZEROES.len()) {
            self.buffer.write_at(at, &ZEROES[..ZEROES.len().min(end - at)]);
        }
    }
}

fn fua(info: &ExportInfo, durable: bool) -> u16 {
    if durable && info.has(export::SEND_FUA) { flag::FUA } else { 0 }
}

impl Failure {
    /// What a server's error means for a request.
    pub(crate) fn of(errno: u32, work: &Work) -> Self {
        let otherwise = if matches!(work, Work::Read { .. }) { BlockError::Read } else { BlockError::Write };
        let error = match errno {
            1 if !matches!(work, Work::Read { .. }) => BlockError::ReadOnly,
            28 => BlockError::NoSpace,
            95 => BlockError::NotSupported,
            _ => otherwise,
        };
        Self { error, errno: i32::try_from(errno).ok() }
    }
}
