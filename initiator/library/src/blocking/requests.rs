//! What a caller's operation is to the host, with its data in a buffer of the pool.

use ringfab_memory::CallerSource;

use super::message::Operation;
use crate::error::SubmitError;
use crate::host::Host;
use crate::request::{AdminData, AdminRequest, DiscardRanges, IoOperation, IoRequest};

/// What the host is given.
pub(super) enum Request {
    Io(IoRequest),
    Admin(AdminRequest),
}

/// The request of a job, with its data copied into a buffer of the pool. `Err(None)` when no buffer is left.
pub(super) fn request_of(
    host: &Host,
    tag: u64,
    operation: &Operation,
) -> Result<Request, Option<SubmitError>> {
    let take = |length: usize| match host.pool().take(length) {
        Some(buffer) => Ok(buffer),
        None if length > host.pool().buffer_bytes_max() => Err(Some(SubmitError::Length)),
        None => Err(None),
    };
    let copy = |source: &CallerSource| {
        let mut buffer = take(source.len())?;
        // A caller that was cancelled has taken it back. Nobody waits for the answer then.
        if source.copy_into(&mut buffer) { Ok(buffer.share()) } else { Err(Some(SubmitError::Gone)) }
    };
    let copy_admin = |data: &[u8]| {
        take(data.len()).map(|mut buffer| {
            buffer.copy_from_slice(data);
            buffer.share()
        })
    };
    let io = |nsid, operation| Request::Io(IoRequest { nsid, tag, operation });
    let admin = |entry, data| Request::Admin(AdminRequest { entry, data, tag });
    Ok(match *operation {
        Operation::Read { nsid, lba, nlb, length, .. } => {
            io(nsid, IoOperation::Read { lba, nlb, buffer: take(length)? })
        }
        Operation::Write { nsid, lba, nlb, ref source, fua } => {
            io(nsid, IoOperation::Write { lba, nlb, source: copy(source)?, offset: 0, fua })
        }
        Operation::Compare { nsid, lba, nlb, ref source } => {
            io(nsid, IoOperation::Compare { lba, nlb, source: copy(source)?, offset: 0 })
        }
        Operation::Flush { nsid } => io(nsid, IoOperation::Flush),
        Operation::Verify { nsid, lba, nlb } => io(nsid, IoOperation::Verify { lba, nlb }),
        Operation::WriteZeroes { nsid, lba, nlb, deallocate } => {
            io(nsid, IoOperation::WriteZeroes { lba, nlb, deallocate, fua: false })
        }
        Operation::Discard { nsid, ref ranges } => {
            let ranges = DiscardRanges::new(host.pool(), ranges).ok_or(None)?;
            io(nsid, IoOperation::Discard { ranges })
        }
        Operation::AdminRead { entry, length: 0 } => admin(entry, AdminData::None),
        Operation::AdminRead { entry, length } => admin(entry, AdminData::FromController(take(length)?)),
        Operation::AdminWrite { entry, ref data } => admin(entry, AdminData::ToController(copy_admin(data)?)),
    })
}
