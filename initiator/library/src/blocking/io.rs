//! Reading and writing bytes: a call becomes as many commands as it takes, several of them in flight.

use std::ops::Range;
use std::sync::mpsc::sync_channel;

use ringfab_memory::CallerMemory;
use ringfab_spec::Status;

use super::disk::Disk;
use super::engine::CHUNK_BYTES_MAX;
use super::message::{Ended, Operation, Order};
use crate::bytes::{Cut, block_pieces, discards, touched_blocks};
use crate::error::{IoError, SubmitError};
use crate::namespace::{BlockRange, Namespace};

/// Commands of one call in flight, each with a part of the caller's memory.
const WINDOW: usize = CallerMemory::PARTS_MAX;
/// The most blocks that Write Zeroes counts (NLB).
const BLOCKS_MAX: u32 = 65_536;

/// How several commands have ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pipelined {
    /// All have succeeded.
    Done,
    /// Some were not begun, because somebody has claimed blocks that they write.
    HeldBack,
}

impl Disk {
    /// Reads `target.len()` bytes at byte `offset`, both of any alignment. Blocks until all are there.
    ///
    /// # Errors
    /// The first error of the commands that it took; the content of `target` is unspecified then. Bytes beyond the end
    /// are an error, too.
    pub fn read_at(&self, offset: u64, target: &mut [u8]) -> Result<(), IoError> {
        let (namespace, range) = self.in_range(offset, target.len() as u64)?;
        let (nsid, block) = (namespace.nsid, u64::from(namespace.block_bytes));
        let blocks = touched_blocks(&range, namespace.block_bytes);
        let pieces = block_pieces(blocks, transfer_blocks(&namespace));
        CallerMemory::scope(|memory| {
            let mut rest = target;
            let operations = pieces.map(|BlockRange { lba, nlb }| {
                let length = nlb as usize * block as usize;
                // Only the first piece can start before the target, and only the last one can end behind it.
                let skip = offset.saturating_sub(lba * block) as usize;
                let part = rest.split_off_mut(..(length - skip).min(rest.len())).unwrap_or_default();
                Operation::Read { nsid, lba, nlb, length, skip, target: memory.lend_target(part) }
            });
            self.pipeline(operations, true).map(drop)
        })
    }

    /// Writes `source` at byte `offset`, both of any alignment. With `fua` (Force Unit Access) the bytes are on stable
    /// storage afterwards. The call blocks until all are written.
    ///
    /// A block that is only touched in part is read, changed and written. No other thread of this program writes it
    /// meanwhile, as long as it uses a handle of the same attached controller: two that write different bytes of a
    /// block both have them written. Other hosts are not kept out.
    ///
    /// # Errors
    /// As [`Disk::read_at`]; any of the blocks may or may not be written then.
    pub fn write_at(&self, offset: u64, source: &[u8], fua: bool) -> Result<(), IoError> {
        self.write(offset, source, fua, false)
    }

    /// The same for a caller that may have claimed the blocks.
    pub(super) fn write(&self, offset: u64, source: &[u8], fua: bool, claimed: bool) -> Result<(), IoError> {
        let (namespace, range) = self.in_range(offset, source.len() as u64)?;
        let Cut { head, body, tail } = Cut::new(&range, namespace.block_bytes);
        let (first, rest) = source.split_at((head.end - head.start) as usize);
        let (whole, last) = rest.split_at((body.end - body.start) as usize);
        self.write_part(&namespace, head.start, first, fua, claimed)?;
        self.write_blocks(&namespace, body.start, whole, fua, claimed)?;
        self.write_part(&namespace, tail.start, last, fua, claimed)
    }

    /// Makes every write that ended before reach stable storage, and blocks until it has.
    ///
    /// # Errors
    /// The command's.
    pub fn flush(&self) -> Result<(), IoError> {
        self.call(Operation::Flush { nsid: self.nsid() }).map(drop)
    }

    /// Makes a range of bytes, aligned to blocks, read as zeroes. With `deallocate`, the space may be freed.
    ///
    /// # Errors
    /// The first error of the commands that it took; [`SubmitError::NoCommand`] if the controller has no Write Zeroes.
    pub fn write_zeroes(&self, offset: u64, length: u64, deallocate: bool) -> Result<(), IoError> {
        self.zero(offset, length, deallocate, false)
    }

    /// The same for a caller that may have claimed the blocks.
    pub(super) fn zero(
        &self,
        offset: u64,
        length: u64,
        deallocate: bool,
        claimed: bool,
    ) -> Result<(), IoError> {
        let (namespace, blocks) = self.aligned(offset, length)?;
        let (nsid, most) = (namespace.nsid, namespace.write_zeroes_blocks_max.min(BLOCKS_MAX));
        if most == 0 {
            return Err(SubmitError::NoCommand("Write Zeroes").into());
        }
        let operation = |BlockRange { lba, nlb }| Operation::WriteZeroes { nsid, lba, nlb, deallocate };
        self.write_or_claim(blocks.clone(), claimed, |claimed| {
            self.pipeline(block_pieces(blocks.clone(), most).map(operation), claimed)
        })
    }

    /// Says that blocks are no longer needed.
    ///
    /// # Errors
    /// The first error of the commands that it took; [`SubmitError::NoCommand`] if the controller has no Dataset
    /// Management.
    pub fn discard(&self, ranges: &[BlockRange]) -> Result<(), IoError> {
        let (namespace, nsid) = (self.namespace_in_use()?, self.nsid());
        if namespace.discard_blocks_max == 0 {
            return Err(SubmitError::NoCommand("Dataset Management").into());
        }
        let first = ranges.iter().map(|range| range.lba).min().unwrap_or(0);
        let end = ranges.iter().map(|range| range.blocks().end).max().unwrap_or(0);
        let commands = discards(&namespace, ranges);
        self.write_or_claim(first..end, false, |claimed| {
            let operations = commands.iter().cloned().map(|ranges| Operation::Discard { nsid, ranges });
            self.pipeline(operations, claimed)
        })
    }

    /// Has the controller read a range of bytes, aligned to blocks, without sending them here.
    ///
    /// # Errors
    /// The first error of the commands that it took; [`SubmitError::NoCommand`] if the controller has no Verify.
    pub fn verify(&self, offset: u64, length: u64) -> Result<(), IoError> {
        let (namespace, blocks) = self.aligned(offset, length)?;
        let (nsid, most) = (namespace.nsid, namespace.verify_blocks_max);
        if most == 0 {
            return Err(SubmitError::NoCommand("Verify").into());
        }
        let operation = |BlockRange { lba, nlb }| Operation::Verify { nsid, lba, nlb };
        self.pipeline(block_pieces(blocks, most).map(operation), true).map(drop)
    }

    /// Compares bytes, aligned to blocks, with `source`; `false` when they differ.
    ///
    /// # Errors
    /// Any other error of the commands that it took.
    pub fn compare(&self, offset: u64, source: &[u8]) -> Result<bool, IoError> {
        let (namespace, blocks) = self.aligned(offset, source.len() as u64)?;
        let (nsid, block, first) = (namespace.nsid, namespace.block_bytes as usize, blocks.start);
        let pieces = block_pieces(blocks, transfer_blocks(&namespace));
        let compared = CallerMemory::scope(|memory| {
            let operations = pieces.map(|BlockRange { lba, nlb }| {
                let at = (lba - first) as usize * block;
                let source = memory.lend_source(&source[at..at + nlb as usize * block]);
                Operation::Compare { nsid, lba, nlb, source }
            });
            self.pipeline(operations, true)
        });
        match compared {
            Ok(_) => Ok(true),
            Err(IoError::Status(status)) if status.code() == Status::COMPARE_FAILURE => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Writes whole blocks.
    fn write_blocks(
        &self,
        namespace: &Namespace,
        offset: u64,
        source: &[u8],
        fua: bool,
        claimed: bool,
    ) -> Result<(), IoError> {
        let (nsid, block) = (namespace.nsid, u64::from(namespace.block_bytes));
        let first = offset / block;
        let blocks = first..first + source.len() as u64 / block;
        self.write_or_claim(blocks.clone(), claimed, |claimed| {
            let pieces = block_pieces(blocks.clone(), transfer_blocks(namespace));
            CallerMemory::scope(|memory| {
                let operations = pieces.map(|BlockRange { lba, nlb }| {
                    let at = ((lba - first) * block) as usize;
                    let source = memory.lend_source(&source[at..at + (u64::from(nlb) * block) as usize]);
                    Operation::Write { nsid, lba, nlb, source, fua }
                });
                self.pipeline(operations, claimed)
            })
        })
    }

    /// Changes a part of one block, while nobody else writes it.
    fn write_part(
        &self,
        namespace: &Namespace,
        offset: u64,
        part: &[u8],
        fua: bool,
        claimed: bool,
    ) -> Result<(), IoError> {
        if part.is_empty() {
            return Ok(());
        }
        let (nsid, block) = (namespace.nsid, u64::from(namespace.block_bytes));
        let (lba, at) = (offset / block, (offset % block) as usize);
        let _claim = if claimed { None } else { Some(self.claim_blocks(lba..lba + 1)?) };
        let mut data = vec![0; block as usize];
        CallerMemory::scope(|memory| {
            let (length, target) = (data.len(), memory.lend_target(&mut data));
            self.call(Operation::Read { nsid, lba, nlb: 1, length, skip: 0, target })
        })?;
        data[at..at + part.len()].copy_from_slice(part);
        CallerMemory::scope(|memory| {
            let source = memory.lend_source(&data);
            self.call(Operation::Write { nsid, lba, nlb: 1, source, fua }).map(drop)
        })
    }

    /// Writes whole blocks without a claim. Where somebody else has one of them claimed, writes them again when it is
    /// the caller's turn. `write` is told whether the blocks are claimed.
    fn write_or_claim(
        &self,
        blocks: Range<u64>,
        claimed: bool,
        write: impl Fn(bool) -> Result<Pipelined, IoError>,
    ) -> Result<(), IoError> {
        if write(claimed)? == Pipelined::Done {
            return Ok(());
        }
        let _claim = self.claim_blocks(blocks)?;
        write(true).map(drop)
    }

    /// Runs commands with several in flight. The first error counts. After it, or after one was held back, none is
    /// started any more.
    fn pipeline(
        &self,
        mut operations: impl Iterator<Item = Operation>,
        claimed: bool,
    ) -> Result<Pipelined, IoError> {
        let (reply, replies) = sync_channel(WINDOW);
        let (mut running, mut first_error, mut all) = (0, None, Pipelined::Done);
        loop {
            while running < WINDOW && first_error.is_none() && all == Pipelined::Done {
                let Some(operation) = operations.next() else { break };
                let order = Order { operation, disk: self.only(), claimed };
                self.engine().start_job(order, &reply)?;
                running += 1;
            }
            if running == 0 {
                return first_error.map_or(Ok(all), Err);
            }
            running -= 1;
            match self.engine().wait(&replies)? {
                Ok(Ended::Done(_)) => {}
                Ok(Ended::HeldBack) => all = Pipelined::HeldBack,
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
    }

    /// The namespace and the range, if it holds these bytes.
    fn in_range(&self, offset: u64, length: u64) -> Result<(Namespace, Range<u64>), IoError> {
        let namespace = self.namespace_in_use()?;
        let end = offset.checked_add(length).filter(|end| *end <= namespace.bytes());
        let end = end.ok_or(SubmitError::Range)?;
        Ok((namespace, offset..end))
    }

    /// The namespace and the blocks, by number, if the bytes are whole blocks within it.
    fn aligned(&self, offset: u64, length: u64) -> Result<(Namespace, Range<u64>), IoError> {
        let (namespace, range) = self.in_range(offset, length)?;
        let block = u64::from(namespace.block_bytes);
        if !offset.is_multiple_of(block) || !length.is_multiple_of(block) {
            return Err(IoError::Refused(SubmitError::Length));
        }
        Ok((namespace, range.start / block..range.end / block))
    }
}

/// The most blocks of one command that moves data.
fn transfer_blocks(namespace: &Namespace) -> u32 {
    namespace.transfer_blocks_max.min(CHUNK_BYTES_MAX as u32 / namespace.block_bytes).max(1)
}
