//! How an operation goes on after the kernel has done a part of it, or has asked to try again.

use ringfab_memory::{Buffer, SharedBuffer};

use super::descriptors::Descriptors;
use super::operations::{Operation, OperationKind, Outcome, Transfer};
use crate::SendBatch;

/// What a completion means for its operation.
pub(super) enum Progress {
    /// The kernel did part of it, or asks to try again.
    Continue,
    /// It has ended, with bytes or an error number.
    Done(Result<u32, i32>),
}

impl Operation {
    pub(super) fn progress(&mut self, outcome: Outcome, ending: bool, descriptors: &Descriptors) -> Progress {
        let result = u32::try_from(outcome.result).map_err(|_| -outcome.result);
        if result == Err(libc::EINTR) {
            // A worker of the kernel that was cancelled in the middle says so too.
            return if ending { Progress::Done(Err(libc::ECANCELED)) } else { Progress::Continue };
        }
        let descriptor = self.descriptor;
        match &mut self.held {
            // The next wake-up.
            OperationKind::Wake(..) if !ending => Progress::Continue,
            OperationKind::Receive { operation, .. } => {
                operation.set_received(result.map_or(0, |bytes| bytes as usize));
                Progress::Done(result)
            }
            OperationKind::ReceiveDatagram(room) => {
                match result {
                    Ok(bytes) => room.set_received(bytes as usize),
                    Err(_) => room.set_empty(),
                }
                Progress::Done(result)
            }
            OperationKind::Send { batch, .. } => send_progress(batch, result, ending),
            OperationKind::Read(transfer) => {
                read_progress(transfer, result, ending, || descriptors.offset_align(descriptor))
            }
            OperationKind::Write { transfer, .. } => write_progress(transfer, result, ending),
            OperationKind::Sync | OperationKind::Allocate { .. }
                if result == Err(libc::EAGAIN) && !ending =>
            {
                Progress::Continue
            }
            _ => Progress::Done(result),
        }
    }
}

/// A read goes on until the range is full or the file ends.
fn read_progress(
    transfer: &mut Transfer<Buffer>,
    result: Result<u32, i32>,
    ending: bool,
    offset_align: impl Fn() -> u32,
) -> Progress {
    let taken = match transferred(result, ending) {
        Ok(taken) => taken,
        Err(progress) => return progress,
    };
    transfer.done += taken;
    // Direct I/O can only stop between blocks where the file ends, and could not go on from there either.
    let at_end = taken == 0 || !transfer.done.is_multiple_of(offset_align());
    if transfer.done == transfer.length || at_end {
        return Progress::Done(Ok(transfer.done));
    }
    if ending { Progress::Done(Err(libc::ECANCELED)) } else { Progress::Continue }
}

/// A write goes on until everything was written; one that makes no progress is an error.
fn write_progress(transfer: &mut Transfer<SharedBuffer>, result: Result<u32, i32>, ending: bool) -> Progress {
    let taken = match transferred(result, ending) {
        Ok(taken) => taken,
        Err(progress) => return progress,
    };
    transfer.done += taken;
    if transfer.done == transfer.length {
        return Progress::Done(Ok(transfer.done));
    }
    match taken {
        0 => Progress::Done(Err(libc::EIO)),
        _ if ending => Progress::Done(Err(libc::ECANCELED)),
        _ => Progress::Continue,
    }
}

/// Bytes that were transferred now, or what else the result means.
fn transferred(result: Result<u32, i32>, ending: bool) -> Result<u32, Progress> {
    result.map_err(|errno| match errno {
        libc::EAGAIN if !ending => Progress::Continue,
        _ => Progress::Done(Err(errno)),
    })
}

/// A send goes on until every byte was taken or the socket failed.
fn send_progress(batch: &mut SendBatch, result: Result<u32, i32>, ending: bool) -> Progress {
    match result {
        Ok(0) if batch.unsent_bytes() > 0 => Progress::Done(Err(libc::EPIPE)),
        Ok(taken) => {
            batch.advance(taken as usize);
            if batch.unsent_bytes() == 0 {
                return Progress::Done(Ok(batch.bytes() as u32));
            }
            if ending { Progress::Done(Err(libc::ECANCELED)) } else { Progress::Continue }
        }
        Err(libc::EAGAIN) if !ending => Progress::Continue,
        Err(errno) => Progress::Done(Err(errno)),
    }
}
