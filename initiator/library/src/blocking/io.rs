//! Reading and writing bytes: a call becomes as many commands as it takes, several of them in flight.

use std::sync::mpsc::sync_channel;

use ringfab_memory::CallerMemory;
use ringfab_spec::Status;

use super::Controller;
use super::engine::CHUNK_BYTES_MAX;
use super::message::Operation;
use crate::error::{IoError, SubmitError};
use crate::namespace::{BlockRange, Namespace};
use crate::request::DiscardRanges;

/// Commands of one call in flight, each with a part of the caller's memory.
const WINDOW: usize = CallerMemory::PARTS_MAX;

impl Controller {
    /// Reads `target.len()` bytes at byte `offset`, both of any alignment. Blocks until all are there.
    ///
    /// # Errors
    /// The first error of the commands that it took; the content of `target` is unspecified then. No namespace `nsid`,
    /// or bytes beyond its end, are [`IoError::Status`] as from the controller.
    pub fn read_at(&self, nsid: u32, offset: u64, target: &mut [u8]) -> Result<(), IoError> {
        let namespace = self.in_range(nsid, offset, target.len() as u64)?;
        let block = u64::from(namespace.block_bytes);
        let (first, end) = (offset / block, (offset + target.len() as u64).div_ceil(block));
        let chunks = chunks(first, end - first, chunk_blocks(&namespace));
        CallerMemory::scope(|memory| {
            let mut rest = target;
            self.pipeline(chunks.map(|(lba, nlb)| {
                let length = nlb as usize * block as usize;
                // Only the first chunk can start before the target, and only the last one can end behind it.
                let skip = offset.saturating_sub(lba * block) as usize;
                let part = rest.split_off_mut(..(length - skip).min(rest.len())).unwrap_or_default();
                Operation::Read { nsid, lba, nlb, length, skip, target: memory.lend_target(part) }
            }))
        })
    }

    /// Writes `source` at byte `offset`, both of any alignment. Blocks that are only touched in part are read, changed
    /// and written, which is not atomic towards other writers of the same block. With `fua` (Force Unit Access) the
    /// bytes are on stable storage afterwards. The call blocks until all are written.
    ///
    /// # Errors
    /// As [`Controller::read_at`]; any of the blocks may or may not be written then.
    pub fn write_at(&self, nsid: u32, offset: u64, source: &[u8], fua: bool) -> Result<(), IoError> {
        let namespace = self.in_range(nsid, offset, source.len() as u64)?;
        let block = u64::from(namespace.block_bytes);
        let head = ((block - offset % block) % block).min(source.len() as u64) as usize;
        let (head, rest) = source.split_at(head);
        if !head.is_empty() {
            self.write_part(&namespace, offset, head, fua)?;
        }
        let offset = offset + head.len() as u64;
        let (body, tail) = rest.split_at(rest.len() - rest.len() % block as usize);
        let first = offset / block;
        let chunks = chunks(first, body.len() as u64 / block, chunk_blocks(&namespace));
        CallerMemory::scope(|memory| {
            self.pipeline(chunks.map(|(lba, nlb)| {
                let at = ((lba - first) * block) as usize;
                let source = memory.lend_source(&body[at..at + nlb as usize * block as usize]);
                Operation::Write { nsid, lba, nlb, source, fua }
            }))
        })?;
        if tail.is_empty() {
            Ok(())
        } else {
            self.write_part(&namespace, offset + body.len() as u64, tail, fua)
        }
    }

    /// Makes every write that ended before reach stable storage, and blocks until it has.
    ///
    /// # Errors
    /// The command's.
    pub fn flush(&self, nsid: u32) -> Result<(), IoError> {
        self.engine.call(Operation::Flush { nsid }, self.disk.clone()).map(drop)
    }

    /// Makes a range of bytes, aligned to blocks, read as zeroes.
    ///
    /// # Errors
    /// The first error of the commands that it took.
    pub fn write_zeroes(&self, nsid: u32, offset: u64, length: u64, deallocate: bool) -> Result<(), IoError> {
        let (namespace, lba, blocks) = self.aligned(nsid, offset, length)?;
        let most = match namespace.write_zeroes_blocks_max {
            0 => return Err(IoError::Status(Status::INVALID_OPCODE)),
            most => most.min(65_536),
        };
        let operation = |(lba, nlb)| Operation::WriteZeroes { nsid, lba, nlb, deallocate };
        self.pipeline(chunks(lba, blocks, most).map(operation))
    }

    /// Says that blocks are no longer needed.
    ///
    /// # Errors
    /// The first error of the commands that it took.
    pub fn discard(&self, nsid: u32, ranges: &[BlockRange]) -> Result<(), IoError> {
        let namespace = self.namespace(nsid).ok_or(SubmitError::NoNamespace(nsid))?;
        if namespace.discard_blocks_max == 0 {
            return Err(IoError::Status(Status::INVALID_OPCODE));
        }
        let operations =
            discards(&namespace, ranges).into_iter().map(|ranges| Operation::Discard { nsid, ranges });
        self.pipeline(operations)
    }

    /// Has the controller read a range of bytes, aligned to blocks, without sending them here.
    ///
    /// # Errors
    /// The first error of the commands that it took; Invalid Command Opcode if the controller has no Verify.
    pub fn verify(&self, nsid: u32, offset: u64, length: u64) -> Result<(), IoError> {
        let (namespace, lba, blocks) = self.aligned(nsid, offset, length)?;
        let most = match namespace.verify_blocks_max {
            0 => return Err(IoError::Status(Status::INVALID_OPCODE)),
            most => most,
        };
        let operation = |(lba, nlb)| Operation::Verify { nsid, lba, nlb };
        self.pipeline(chunks(lba, blocks, most).map(operation))
    }

    /// Compares bytes, aligned to blocks, with `source`; `false` when they differ.
    ///
    /// # Errors
    /// Any other error of the commands that it took.
    pub fn compare(&self, nsid: u32, offset: u64, source: &[u8]) -> Result<bool, IoError> {
        let (namespace, first, blocks) = self.aligned(nsid, offset, source.len() as u64)?;
        let block = namespace.block_bytes as usize;
        let chunks = chunks(first, blocks, chunk_blocks(&namespace));
        let compared = CallerMemory::scope(|memory| {
            self.pipeline(chunks.map(|(lba, nlb)| {
                let at = (lba - first) as usize * block;
                let source = memory.lend_source(&source[at..at + nlb as usize * block]);
                Operation::Compare { nsid, lba, nlb, source }
            }))
        });
        match compared {
            Ok(()) => Ok(true),
            Err(IoError::Status(status)) if status.code() == Status::COMPARE_FAILURE => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Runs commands with several in flight; the first error counts, after which none is started any more.
    fn pipeline(&self, mut operations: impl Iterator<Item = Operation>) -> Result<(), IoError> {
        let (reply, replies) = sync_channel(WINDOW);
        let (mut running, mut first_error) = (0, None);
        loop {
            while running < WINDOW && first_error.is_none() {
                let Some(operation) = operations.next() else { break };
                self.engine.start_job(operation, self.disk.clone(), &reply)?;
                running += 1;
            }
            if running == 0 {
                return first_error.map_or(Ok(()), Err);
            }
            let answer = self.engine.wait(&replies)?;
            running -= 1;
            first_error = first_error.or(answer.err());
        }
    }

    /// Changes a part of one block.
    fn write_part(&self, namespace: &Namespace, offset: u64, part: &[u8], fua: bool) -> Result<(), IoError> {
        let (nsid, block) = (namespace.nsid, u64::from(namespace.block_bytes));
        let (lba, at) = (offset / block, (offset % block) as usize);
        let mut data = vec![0; block as usize];
        CallerMemory::scope(|memory| {
            let (length, target) = (data.len(), memory.lend_target(&mut data));
            self.engine
                .call(Operation::Read { nsid, lba, nlb: 1, length, skip: 0, target }, self.disk.clone())
        })?;
        data[at..at + part.len()].copy_from_slice(part);
        CallerMemory::scope(|memory| {
            let source = memory.lend_source(&data);
            self.engine.call(Operation::Write { nsid, lba, nlb: 1, source, fua }, self.disk.clone())
        })
        .map(drop)
    }

    /// The namespace, if it holds the bytes.
    fn in_range(&self, nsid: u32, offset: u64, length: u64) -> Result<Namespace, IoError> {
        let namespace = self.namespace(nsid).ok_or(SubmitError::NoNamespace(nsid))?;
        let end = offset.checked_add(length).filter(|end| *end <= namespace.bytes());
        end.map(|_| namespace).ok_or_else(|| SubmitError::Range.into())
    }

    /// The namespace, first block and number of blocks, if the bytes are whole blocks within it.
    fn aligned(&self, nsid: u32, offset: u64, length: u64) -> Result<(Namespace, u64, u64), IoError> {
        let namespace = self.in_range(nsid, offset, length)?;
        let block = u64::from(namespace.block_bytes);
        if !offset.is_multiple_of(block) || !length.is_multiple_of(block) {
            return Err(IoError::Refused(SubmitError::Length));
        }
        Ok((namespace, offset / block, length / block))
    }
}

/// Blocks of one command.
fn chunk_blocks(namespace: &Namespace) -> u32 {
    namespace.transfer_blocks_max.min(CHUNK_BYTES_MAX as u32 / namespace.block_bytes).max(1)
}

/// Ranges, as commands that the namespace takes.
fn discards(namespace: &Namespace, ranges: &[BlockRange]) -> Vec<Vec<BlockRange>> {
    let count = (namespace.discard_ranges_max as usize).clamp(1, DiscardRanges::COUNT_MAX);
    let mut commands: Vec<Vec<BlockRange>> = Vec::new();
    let mut room = 0;
    for range in ranges {
        for (lba, nlb) in chunks(range.lba, u64::from(range.nlb), namespace.discard_blocks_max) {
            let last = commands.last_mut().filter(|last| last.len() < count && room >= u64::from(nlb));
            match last {
                Some(last) => last.push(BlockRange { lba, nlb }),
                None => {
                    commands.push(vec![BlockRange { lba, nlb }]);
                    room = namespace.discard_total_blocks_max;
                }
            }
            room = room.saturating_sub(u64::from(nlb));
        }
    }
    commands
}

/// Splits blocks into pieces of at most `most`.
fn chunks(lba: u64, blocks: u64, most: u32) -> impl Iterator<Item = (u64, u32)> + Clone {
    let most = u64::from(most.max(1));
    (0..blocks.div_ceil(most)).map(move |index| {
        let start = index * most;
        (lba + start, (blocks - start).min(most) as u32)
    })
}

#[cfg(test)]
mod tests {
    use super::chunks;

    #[test]
    fn blocks_are_split_without_gap_or_overlap() {
        for (blocks, most) in [(0, 8), (1, 8), (8, 8), (9, 8), (1000, 7), (5, 0)] {
            let mut next = 100;
            for (lba, nlb) in chunks(100, blocks, most) {
                assert_eq!(lba, next);
                assert!(nlb >= 1 && nlb <= most.max(1));
                next += u64::from(nlb);
            }
            assert_eq!(next, 100 + blocks);
        }
    }
}
