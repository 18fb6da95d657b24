//! What is in flight, and what it holds.

use std::os::fd::RawFd;

use io_uring::{cqueue, opcode, squeue, types};
use ringfab_base::{SlotId, Slots};
use ringfab_memory::{Buffer, SharedBuffer};
use socket2::SockAddr;

use crate::{Datagram, Payload, ReceiveOp, SendBatch, Token};

/// An operation that works on no descriptor of the table.
pub(super) const NO_DESCRIPTOR: u32 = u32::MAX;

/// Operations by slot. A slot's generation is part of what the kernel echoes, so that a completion finds its own
/// operation or none.
pub(super) struct Operations {
    slots: Slots<Operation>,
    /// Where those begin that have not been looked at for the longest time, to see whether they rest.
    rests_from: u32,
}

/// One operation in flight.
pub(super) struct Operation {
    pub(super) token: Token,
    /// Index in the descriptor table, or [`NO_DESCRIPTOR`].
    pub(super) descriptor: u32,
    pub(super) held: OperationKind,
}

/// What an operation is and owns until its completion. All memory that the kernel was told of is on the heap or in
/// a pool, so that moving this value moves none of it.
pub(super) enum OperationKind {
    /// Connecting; the address is read when the entry is submitted.
    Connect(Box<SockAddr>),
    /// A multi-shot accept.
    Accept,
    /// A receive. With `poll_first` the kernel waits for data without looking for some before, since the last
    /// receive left nothing behind.
    Receive { operation: Box<ReceiveOp>, poll_first: bool },
    /// A send, which goes on until the batch is empty.
    /// A socket whose records the kernel seals takes no `MSG_WAITALL`.
    Send { batch: Box<SendBatch>, sealed: bool },
    /// A send of a datagram.
    SendDatagram(Box<Datagram>),
    /// A receive of one.
    ReceiveDatagram(Box<Datagram>),
    /// A read of a file.
    Read(Transfer<Buffer>),
    /// A write to a file, which reaches stable storage when `durable`.
    Write { transfer: Transfer<SharedBuffer>, durable: bool },
    /// A synchronisation of a file's data.
    Sync,
    /// An `fallocate` with this mode.
    Allocate { mode: i32, offset: u64, length: u64 },
    /// A question for a file's size. The kernel takes no registered file for it.
    Size(RawFd, Box<libc::statx>),
    /// Waiting for a foreign descriptor to become readable.
    Poll(RawFd),
    /// The end of that.
    StopPolling(RawFd),
    /// The read of the wake-up eventfd.
    Wake(RawFd, Box<[u8; 8]>),
    /// A timer of the kernel.
    Alarm(Box<types::Timespec>),
    /// The cancellation of an operation, by its name.
    CancelOne(u64),
    /// The cancellation of everything on the descriptor.
    Cancel,
    /// The cancellation of everything there is.
    CancelAll,
}

/// A range of memory on its way to or from a range of a file.
pub(super) struct Transfer<M> {
    pub(super) memory: M,
    /// Offset in the file.
    pub(super) offset: u64,
    /// Offset in the memory.
    pub(super) at: usize,
    pub(super) length: u32,
    /// Bytes already transferred.
    pub(super) done: u32,
    /// Slot of the registered buffer that the memory lies in.
    pub(super) registration: Option<u16>,
    /// A thread of the kernel takes the operation: see [`FileInfo::remote`](crate::FileInfo::remote).
    pub(super) threaded: bool,
}

impl<M> Transfer<M> {
    fn flags(&self) -> squeue::Flags {
        if self.threaded { squeue::Flags::ASYNC } else { squeue::Flags::empty() }
    }

    fn position(&self) -> u64 {
        self.offset + u64::from(self.done)
    }

    fn place(&self) -> (usize, usize) {
        (self.at + self.done as usize, (self.length - self.done) as usize)
    }
}

/// How the kernel is told of a descriptor.
#[derive(Clone, Copy)]
pub(super) struct Target {
    pub(super) number: i32,
    /// Whether `number` is a slot of the registered files.
    pub(super) registered: bool,
}

impl Target {
    fn fd(self) -> types::Fd {
        types::Fd(self.number)
    }

    fn mark(self, entry: squeue::Entry) -> squeue::Entry {
        if self.registered { entry.flags(squeue::Flags::FIXED_FILE) } else { entry }
    }
}

impl Operation {
    /// The submission entry for what remains to be done. It points into memory that `self.held` owns.
    pub(super) fn entry(&mut self, target: Target) -> squeue::Entry {
        let fd = target.fd();
        let entry = match &mut self.held {
            OperationKind::Connect(address) => {
                opcode::Connect::new(fd, address.as_ptr().cast(), address.len()).build()
            }
            OperationKind::Accept => opcode::AcceptMulti::new(fd).flags(libc::SOCK_CLOEXEC).build(),
            OperationKind::Receive { operation, poll_first } => receive_entry(fd, operation, *poll_first),
            OperationKind::Send { batch, sealed } => send_entry(fd, batch, *sealed),
            OperationKind::SendDatagram(datagram) => {
                opcode::SendMsg::new(fd, datagram.prepare_send()).build()
            }
            OperationKind::ReceiveDatagram(room) => opcode::RecvMsg::new(fd, room.prepare_receive()).build(),
            OperationKind::Read(transfer) => read_entry(fd, transfer),
            OperationKind::Write { transfer, durable } => write_entry(fd, transfer, *durable),
            OperationKind::Sync => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
            OperationKind::Allocate { mode, offset, length } => {
                opcode::Fallocate::new(fd, *length).offset(*offset).mode(*mode).build()
            }
            OperationKind::Size(file, status) => return size_entry(*file, status),
            OperationKind::Poll(foreign) => {
                return opcode::PollAdd::new(types::Fd(*foreign), libc::POLLIN as u32).build();
            }
            OperationKind::Wake(eventfd, count) => {
                return opcode::Read::new(types::Fd(*eventfd), count.as_mut_ptr(), 8).build();
            }
            OperationKind::StopPolling(descriptor) => {
                let matching = types::CancelBuilder::fd(types::Fd(*descriptor)).all();
                return opcode::AsyncCancel2::new(matching).build();
            }
            OperationKind::Alarm(after) => return opcode::Timeout::new(&raw const **after).build(),
            OperationKind::CancelOne(name) => {
                return opcode::AsyncCancel2::new(types::CancelBuilder::user_data(*name)).build();
            }
            OperationKind::Cancel => return cancel_entry(target),
            OperationKind::CancelAll => {
                return opcode::AsyncCancel2::new(types::CancelBuilder::any()).build();
            }
        };
        target.mark(entry)
    }

    /// What the owner gets back.
    pub(super) fn into_payload(self) -> Payload {
        match self.held {
            OperationKind::Receive { operation, .. } => Payload::Receive(operation),
            OperationKind::Send { batch, .. } => Payload::Send(batch),
            OperationKind::SendDatagram(datagram) | OperationKind::ReceiveDatagram(datagram) => {
                Payload::Datagram(datagram)
            }
            OperationKind::Read(transfer) => Payload::Buffer(transfer.memory),
            OperationKind::Write { transfer, .. } => Payload::SharedBuffer(transfer.memory),
            OperationKind::Size(_, status) => Payload::FileBytes(status.stx_size),
            _ => Payload::None,
        }
    }
}

impl OperationKind {
    /// The size of an open file.
    pub(super) fn size(file: RawFd) -> Self {
        // SAFETY: the all-zero bit pattern is a valid `statx`.
        Self::Size(file, Box::new(unsafe { std::mem::zeroed() }))
    }
}

/// `IORING_RECVSEND_POLL_FIRST`.
const POLL_FIRST: u16 = 1;

fn receive_entry(fd: types::Fd, receive: &mut ReceiveOp, poll_first: bool) -> squeue::Entry {
    let ioprio = if poll_first { POLL_FIRST } else { 0 };
    let message = receive.prepare();
    // One range needs no message header, which the kernel would have to copy and parse.
    if receive.is_plain() {
        let range = receive.vectors[0];
        let length = u32::try_from(range.iov_len).unwrap_or(i32::MAX as u32);
        return opcode::Recv::new(fd, range.iov_base.cast(), length).ioprio(ioprio).build();
    }
    opcode::RecvMsg::new(fd, message).ioprio(ioprio).build()
}

fn send_entry(fd: types::Fd, batch: &mut SendBatch, sealed: bool) -> squeue::Entry {
    let message = batch.prepare();
    let flags = libc::MSG_NOSIGNAL | if sealed { 0 } else { libc::MSG_WAITALL };
    if let Some(piece) = batch.only_piece() {
        let length = u32::try_from(piece.iov_len).unwrap_or(i32::MAX as u32);
        return opcode::Send::new(fd, piece.iov_base.cast(), length).flags(flags).build();
    }
    opcode::SendMsg::new(fd, message).flags(flags as u32).build()
}

fn read_entry(fd: types::Fd, transfer: &Transfer<Buffer>) -> squeue::Entry {
    let (at, length) = transfer.place();
    let pointer = transfer.memory.io_pointer(at, length);
    let (length, offset) = (length as u32, transfer.position());
    match transfer.registration {
        Some(slot) => opcode::ReadFixed::new(fd, pointer, length, slot).offset(offset).build(),
        None => opcode::Read::new(fd, pointer, length).offset(offset).build(),
    }
    .flags(transfer.flags())
}

fn write_entry(fd: types::Fd, transfer: &Transfer<SharedBuffer>, durable: bool) -> squeue::Entry {
    let (at, length) = transfer.place();
    let pointer = transfer.memory.io_pointer(at, length);
    let (length, offset) = (length as u32, transfer.position());
    let flags = if durable { libc::RWF_DSYNC } else { 0 };
    match transfer.registration {
        Some(slot) => {
            opcode::WriteFixed::new(fd, pointer, length, slot).offset(offset).rw_flags(flags).build()
        }
        None => opcode::Write::new(fd, pointer, length).offset(offset).rw_flags(flags).build(),
    }
    .flags(transfer.flags())
}

fn size_entry(file: RawFd, status: &mut libc::statx) -> squeue::Entry {
    let place = std::ptr::from_mut(status).cast();
    let statx = opcode::Statx::new(types::Fd(file), c"".as_ptr(), place);
    statx.flags(libc::AT_EMPTY_PATH).mask(libc::STATX_SIZE).build()
}

fn cancel_entry(target: Target) -> squeue::Entry {
    let matching = if target.registered {
        types::CancelBuilder::fd(types::Fixed(target.number as u32))
    } else {
        types::CancelBuilder::fd(target.fd())
    };
    opcode::AsyncCancel2::new(matching.all()).build()
}

impl Operations {
    /// A table with room for `capacity` operations; it grows when more are in flight.
    pub(super) fn new(capacity: usize) -> Self {
        Self { slots: Slots::with_capacity(capacity), rests_from: 0 }
    }

    /// How many are in flight.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Stores an operation and returns what names it to the kernel.
    #[inline]
    pub(super) fn insert(&mut self, operation: Operation) -> u64 {
        let id = self.slots.insert(operation);
        u64::from(id.generation) << 32 | u64::from(id.index)
    }

    /// The operation of that name, if it is still in flight.
    #[inline]
    pub(super) fn get_mut(&mut self, name: u64) -> Option<&mut Operation> {
        self.slots.get_mut(id_of(name))
    }

    /// Has receives that wait for data rest, each once at most, until so many have given pages back. The next time it
    /// goes on behind the last one, so that some that keep losing their pages do not keep others from it.
    pub(super) fn trim_receives(&mut self, count_max: usize) {
        let mut rested = 0;
        for _ in 0..self.slots.slot_count() {
            let index = self.rests_from % self.slots.slot_count();
            self.rests_from = index + 1;
            if let Some((_, Operation { held: OperationKind::Receive { operation, .. }, .. })) =
                self.slots.of_slot(index)
            {
                rested += usize::from(operation.trim());
            }
            if rested == count_max {
                return;
            }
        }
    }

    /// Takes an operation out; its name is never used again for another before 2^32 others had its slot.
    #[inline]
    pub(super) fn remove(&mut self, name: u64) -> Option<Operation> {
        self.slots.remove(id_of(name))
    }
}

fn id_of(name: u64) -> SlotId {
    SlotId { index: name as u32, generation: (name >> 32) as u32 }
}

/// What the kernel said of an operation.
#[derive(Clone, Copy)]
pub(super) struct Outcome {
    pub(super) result: i32,
    /// Whether a multi-shot operation goes on.
    pub(super) more: bool,
    /// Whether a receive left data behind.
    pub(super) left_data: bool,
}

impl Outcome {
    pub(super) fn new(entry: &cqueue::Entry) -> Self {
        let flags = entry.flags();
        Self { result: entry.result(), more: cqueue::more(flags), left_data: cqueue::sock_nonempty(flags) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A receive whose window is all of its staging memory, in which something was left.
    fn receive() -> OperationKind {
        let mut operation = ReceiveOp::new(4096);
        operation.staging_mut().fill(7);
        operation.set_target(None, 0, 4096);
        OperationKind::Receive { operation, poll_first: false }
    }

    fn has_pages(operations: &mut Operations, name: u64) -> bool {
        match &operations.get_mut(name).expect("in flight").held {
            OperationKind::Receive { operation, .. } => operation.staging()[0] == 7,
            _ => unreachable!("only receives"),
        }
    }

    #[test]
    fn receives_that_are_used_again_and_again_do_not_keep_others_from_resting() {
        let mut operations = Operations::new(8);
        let insert = |operations: &mut Operations| {
            operations.insert(Operation {
                token: Token::new(0, 0, 0, 0),
                descriptor: NO_DESCRIPTOR,
                held: receive(),
            })
        };
        let (first, last) = (insert(&mut operations), insert(&mut operations));
        for _ in 0..32 {
            operations.trim_receives(1);
            if !has_pages(&mut operations, first) {
                operations.get_mut(first).expect("in flight").held = receive();
            }
        }
        assert!(!has_pages(&mut operations, last));
    }
}
