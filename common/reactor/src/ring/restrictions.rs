//! What a ring can be asked for: the operations that this crate uses, and no others. Operations are no system calls, so
//! that a filter of these would not see what they do.

use std::io;

use io_uring::register::Restriction;
use io_uring::{Submitter, opcode, squeue};

/// Operations of [`super::operations`].
const OPERATIONS: [u8; 16] = [
    opcode::Connect::CODE,
    opcode::AcceptMulti::CODE,
    opcode::Recv::CODE,
    opcode::RecvMsg::CODE,
    opcode::Send::CODE,
    opcode::SendMsg::CODE,
    opcode::Read::CODE,
    opcode::ReadFixed::CODE,
    opcode::Write::CODE,
    opcode::WriteFixed::CODE,
    opcode::Fsync::CODE,
    opcode::Fallocate::CODE,
    opcode::Statx::CODE,
    opcode::PollAdd::CODE,
    opcode::Timeout::CODE,
    opcode::AsyncCancel2::CODE,
];

/// What the ring itself is told: numbers of `io_uring_register(2)`.
const REGISTRATIONS: [u8; 8] = [
    4,  // IORING_REGISTER_EVENTFD
    6,  // IORING_REGISTER_FILES_UPDATE
    13, // IORING_REGISTER_FILES2
    15, // IORING_REGISTER_BUFFERS2
    16, // IORING_REGISTER_BUFFERS_UPDATE
    19, // IORING_REGISTER_IOWQ_MAX_WORKERS
    20, // IORING_REGISTER_RING_FDS
    21, // IORING_UNREGISTER_RING_FDS
];

/// Restricts a ring that was made disabled, and enables it. It cannot be undone.
pub(super) fn restrict(submitter: &Submitter<'_>) -> io::Result<()> {
    let flags = squeue::Flags::FIXED_FILE | squeue::Flags::ASYNC;
    let operations = OPERATIONS.into_iter().map(Restriction::sqe_op);
    let registrations = REGISTRATIONS.into_iter().map(Restriction::register_op);
    let flags = Restriction::sqe_flags_allowed(flags.bits());
    let mut all: Vec<Restriction> = operations.chain(registrations).chain([flags]).collect();
    submitter.register_restrictions(&mut all)?;
    submitter.register_enable_rings()
}
