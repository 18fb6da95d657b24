//! One command, from its submission to its answer.

use ringfab_fabric::rdma::RemoteBuffer;
use ringfab_memory::SharedBuffer;
use ringfab_reactor::Time;
use ringfab_spec::SubmissionEntry;

use crate::request::{AdminData, AdminRequest, IoOperation, IoRequest};
use crate::retry::Tries;
use crate::wire;

/// A command with everything it takes to send it, also a second time. It passes through many hands, so it is in a box,
/// which an I/O command has from [`CommandPool`].
#[derive(Debug)]
pub(crate) struct Command {
    /// What goes over the wire, but for the identifier and the data pointer.
    pub(crate) entry: SubmissionEntry,
    /// Who waits for the answer.
    pub(crate) owner: Owner,
    /// Which way its data go.
    pub(crate) direction: Direction,
    /// The data's memory. While it is exposed the RNIC holds it, and this is `None`.
    pub(crate) memory: Option<SharedBuffer>,
    /// First byte of the data in `memory`.
    pub(crate) offset: u32,
    /// Bytes of data.
    pub(crate) length: u32,
    /// Bytes of data to us that came with the answer; where the transport does not say, all.
    pub(crate) received: u32,
    /// How the memory is exposed, while it is.
    pub(crate) exposed: Option<RemoteBuffer>,
    /// Number of its submission, counted over all queues: the order of a replay.
    pub(crate) order: u64,
    /// When it was sent last.
    pub(crate) sent: Time,
    /// When an answer is overdue; while it waits for another try, when that is.
    pub(crate) deadline: Time,
    /// Whether it was overdue before and its abort was asked for.
    pub(crate) aborted: bool,
    /// What was tried before, of a command that was told to come again.
    pub(crate) tries: Tries,
}

const ZEROES: [u8; 4096] = [0; 4096];

/// Commands pass through many hands, so what holds them holds boxes.
pub(crate) type BoxedCommand = Box<Command>;

/// Who waits for a command's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The submitter of an I/O command, who calls it by this tag.
    Io(u64),
    /// The submitter of an admin command.
    Admin(u64),
    /// The sequence of steps that attaches, refreshes or shuts down.
    Sequence,
    /// The keep-alive timer.
    KeepAlive,
    /// Nobody in particular: the controller answers when something has happened.
    AsyncEvent,
    /// Nobody: the effect shows at the aborted command.
    Abort,
    /// Who waits for the end of a lost instance of a controller, by this number.
    Reset(u64),
    /// The same: which resets are done.
    ResetLog,
    /// The paths of the subsystem: which controllers have lost this host.
    LostHostLog,
}

/// Which way a command's data go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// It has none.
    None,
    /// The controller writes them to us, all of them or none.
    ToHost,
    /// The controller writes as many to us as it has: the length is an allocation length. That of every admin and
    /// Fabrics command is one. Over RDMA nobody says how much was written, so the memory is zero before.
    AllocatedToHost,
    /// The controller reads them from us.
    ToController,
}

impl Direction {
    /// Whether the controller writes.
    pub(crate) fn is_to_host(self) -> bool {
        matches!(self, Self::ToHost | Self::AllocatedToHost)
    }
}

impl Command {
    /// A command without data.
    pub(crate) fn new(entry: SubmissionEntry, owner: Owner) -> Box<Self> {
        Box::new(Self::plain(entry, owner))
    }

    fn plain(entry: SubmissionEntry, owner: Owner) -> Self {
        Self {
            entry,
            owner,
            direction: Direction::None,
            memory: None,
            offset: 0,
            length: 0,
            received: 0,
            exposed: None,
            order: 0,
            sent: Time::ZERO,
            deadline: Time::MAX,
            aborted: false,
            tries: Tries::default(),
        }
    }

    /// Makes it what [`Command::plain`] makes, field by field where it lies.
    #[inline(always)]
    fn renew(&mut self, new_entry: SubmissionEntry, new_owner: Owner) {
        let Self {
            entry,
            owner,
            direction,
            memory,
            offset,
            length,
            received,
            exposed,
            order,
            sent,
            deadline,
            aborted,
            tries,
        } = self;
        (*entry, *owner, *direction) = (new_entry, new_owner, Direction::None);
        (*memory, *offset, *length, *received, *exposed) = (None, 0, 0, 0, None);
        (*order, *sent, *deadline, *aborted, *tries) = (0, Time::ZERO, Time::MAX, false, Tries::default());
    }

    /// This command with data.
    pub(crate) fn with_data(
        mut self: Box<Self>,
        direction: Direction,
        memory: SharedBuffer,
        offset: u32,
        length: u32,
    ) -> Box<Self> {
        self.set_data(direction, memory, offset, length);
        self
    }

    fn set_data(&mut self, direction: Direction, memory: SharedBuffer, offset: u32, length: u32) {
        (self.direction, self.memory) = (direction, Some(memory));
        (self.offset, self.length) = (offset, length);
    }

    /// Before it is sent: where the controller may write less than there is room for, the rest is zero.
    pub(crate) fn clear_room(&self) {
        let (Direction::AllocatedToHost, Some(memory)) = (self.direction, &self.memory) else { return };
        let end = (self.offset + self.length) as usize;
        for at in (self.offset as usize..end).step_by(ZEROES.len()) {
            memory.write_at(at, &ZEROES[..ZEROES.len().min(end - at)]);
        }
    }

    /// The command of an I/O request, for a namespace with blocks of `block_bytes`.
    pub(crate) fn from_io(request: IoRequest, block_bytes: u32, pool: &mut CommandPool) -> Box<Self> {
        let IoRequest { nsid, tag, operation } = request;
        let mut new = |entry| pool.take(entry, Owner::Io(tag));
        match operation {
            IoOperation::Read { lba, nlb, buffer } => {
                let command = new(wire::read(nsid, lba, nlb));
                command.with_data(Direction::ToHost, buffer.share(), 0, nlb * block_bytes)
            }
            IoOperation::Write { lba, nlb, source, offset, fua } => {
                let command = new(wire::write(nsid, lba, nlb, fua));
                command.with_data(Direction::ToController, source, offset, nlb * block_bytes)
            }
            IoOperation::Compare { lba, nlb, source, offset } => {
                let command = new(wire::compare(nsid, lba, nlb));
                command.with_data(Direction::ToController, source, offset, nlb * block_bytes)
            }
            IoOperation::Discard { ranges } => {
                let length = ranges.shared_buffer.len() as u32;
                let command = new(wire::discard(nsid, ranges.count));
                command.with_data(Direction::ToController, ranges.shared_buffer, 0, length)
            }
            IoOperation::Verify { lba, nlb } => new(wire::verify(nsid, lba, nlb)),
            IoOperation::Flush => new(wire::flush(nsid)),
            IoOperation::WriteZeroes { lba, nlb, deallocate, fua } => {
                new(wire::write_zeroes(nsid, lba, nlb, deallocate, fua))
            }
        }
    }

    /// The command of an admin request.
    pub(crate) fn from_admin(request: AdminRequest) -> Box<Self> {
        let command = Self::new(request.entry, Owner::Admin(request.tag));
        match request.data {
            AdminData::None => command,
            AdminData::FromController(buffer) => {
                let length = buffer.len() as u32;
                command.with_data(Direction::AllocatedToHost, buffer.share(), 0, length)
            }
            AdminData::ToController(shared_buffer) => {
                let length = shared_buffer.len() as u32;
                command.with_data(Direction::ToController, shared_buffer, 0, length)
            }
        }
    }
}

/// Boxes of commands that have ended, for those to come: most likely one that is still in the cache.
#[derive(Debug, Default)]
pub(crate) struct CommandPool(Vec<BoxedCommand>);

impl CommandPool {
    /// Makes sure that there are `count`, for a controller that may have so many outstanding.
    pub(crate) fn provide(&mut self, count: usize) {
        let unused = || Command::new(SubmissionEntry::zeroed(), Owner::Abort);
        self.0.extend((self.0.len()..count).map(|_| unused()));
    }

    /// A command without data, in a box that was used before if there is one.
    #[inline(always)]
    fn take(&mut self, entry: SubmissionEntry, owner: Owner) -> Box<Command> {
        match self.0.pop() {
            Some(mut command) => {
                command.renew(entry, owner);
                command
            }
            None => Command::new(entry, owner),
        }
    }

    /// Keeps the box of a command that has ended, whose memory was taken out, unless there are enough.
    pub(crate) fn keep(&mut self, command: Box<Command>) {
        debug_assert!(command.memory.is_none(), "the memory is the submitter's again");
        if self.0.len() < self.0.capacity() {
            self.0.push(command);
        }
    }
}

#[cfg(test)]
mod tests {
    use ringfab_fabric::rdma::RegionId;
    use ringfab_spec::Status;

    use super::*;
    use crate::retry::{RetryDelays, Verdict};

    #[test]
    fn nothing_of_a_command_is_left_in_its_box_for_the_next() {
        let mut used = Command::new(SubmissionEntry::zeroed(), Owner::KeepAlive);
        used.entry.nsid.set(7);
        used.direction = Direction::ToController;
        (used.offset, used.length, used.received) = (1, 2, 2);
        (used.order, used.sent, used.deadline) = (3, Time::MAX, Time::ZERO);
        used.exposed = Some(RemoteBuffer {
            address: 1,
            length: 2,
            key: 3,
            region: RegionId::Iwarp(3),
            invalidate: true,
        });
        used.aborted = true;
        let policy = crate::ReconnectPolicy::default();
        used.tries.next(Verdict::Retry, Status::INTERNAL_ERROR, &RetryDelays::default(), &policy);
        let mut pool = CommandPool(vec![used]);
        let next = pool.take(wire::flush(9), Owner::Io(5));
        assert_eq!(format!("{next:?}"), format!("{:?}", Command::plain(wire::flush(9), Owner::Io(5))));
        assert!(pool.0.is_empty(), "it was used");
    }
}
