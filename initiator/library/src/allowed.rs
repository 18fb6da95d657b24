//! Whether a controller may be sent a command: it has to have announced the command, every bit of it, and its length.
//!
//! docs/what-is-sent.md lists each field that goes over the wire, and what allows it.

use crate::error::SubmitError;
use crate::namespace::Namespace;
use crate::request::{DiscardRanges, IoOperation};

/// The most blocks that the field of a command counts (NLB).
const BLOCKS_MAX: u32 = 65_536;

/// Checks an operation, and leaves out of it what is only a wish and what the namespace does not have.
///
/// # Errors
/// When there is no command for it.
pub(crate) fn fit(namespace: &Namespace, operation: &mut IoOperation) -> Result<(), SubmitError> {
    let transfer = namespace.transfer_blocks_max;
    match operation {
        IoOperation::Read { lba, nlb, buffer } => {
            room(namespace, *nlb, buffer.len() as u64)?;
            blocks(namespace, *lba, *nlb, transfer)
        }
        IoOperation::Write { lba, nlb, source, offset, .. } => {
            room(namespace, *nlb, (source.len() as u64).saturating_sub(u64::from(*offset)))?;
            blocks(namespace, *lba, *nlb, transfer)
        }
        IoOperation::Compare { lba, nlb, source, offset } => {
            has(namespace.compares, "Compare")?;
            room(namespace, *nlb, (source.len() as u64).saturating_sub(u64::from(*offset)))?;
            blocks(namespace, *lba, *nlb, transfer)
        }
        IoOperation::WriteZeroes { lba, nlb, deallocate, .. } => {
            has(namespace.write_zeroes_blocks_max > 0, "Write Zeroes")?;
            *deallocate &= namespace.write_zeroes_deallocates;
            blocks(namespace, *lba, *nlb, namespace.write_zeroes_blocks_max)
        }
        IoOperation::Verify { lba, nlb } => {
            has(namespace.verify_blocks_max > 0, "Verify")?;
            blocks(namespace, *lba, *nlb, namespace.verify_blocks_max)
        }
        IoOperation::Discard { ranges } => {
            has(namespace.discard_blocks_max > 0, "Dataset Management")?;
            discard(namespace, ranges)
        }
        IoOperation::Flush => Ok(()),
    }
}

fn has(announced: bool, command: &'static str) -> Result<(), SubmitError> {
    if announced { Ok(()) } else { Err(SubmitError::NoCommand(command)) }
}

fn room(namespace: &Namespace, nlb: u32, bytes: u64) -> Result<(), SubmitError> {
    if bytes < u64::from(nlb) * u64::from(namespace.block_bytes) { Err(SubmitError::Buffer) } else { Ok(()) }
}

fn blocks(namespace: &Namespace, lba: u64, nlb: u32, most: u32) -> Result<(), SubmitError> {
    if nlb == 0 || nlb > most.min(BLOCKS_MAX) {
        return Err(SubmitError::Length);
    }
    let end = lba.checked_add(u64::from(nlb));
    if end.is_none_or(|end| end > namespace.blocks) { Err(SubmitError::Range) } else { Ok(()) }
}

fn discard(namespace: &Namespace, ranges: &DiscardRanges) -> Result<(), SubmitError> {
    let fits = ranges.count <= namespace.discard_ranges_max
        && ranges.longest <= namespace.discard_blocks_max
        && ranges.total <= namespace.discard_total_blocks_max;
    match ranges.end {
        _ if !fits => Err(SubmitError::Length),
        Some(end) if end <= namespace.blocks => Ok(()),
        _ => Err(SubmitError::Range),
    }
}
