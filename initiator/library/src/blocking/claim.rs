//! Blocks that nobody else writes for a while.

use std::ops::Range;

use super::disk::Disk;
use crate::bytes::{Place, touched_blocks};
use crate::error::IoError;

/// Blocks of a disk that this program writes only through here, as long as this lives: see [`Disk::claim`].
#[derive(Debug)]
pub struct Claim {
    disk: Disk,
    range: Range<u64>,
    _place: Place,
}

impl Disk {
    /// Keeps every other writer of this program from the blocks of a range of bytes, until what is returned is dropped.
    /// It waits until those have ended who came before: as long as their I/O takes. The turn goes by the order of the
    /// calls. A thread that has claimed some blocks must not claim or write others meanwhile, but through its claim:
    /// two such threads might wait for each other.
    ///
    /// # Errors
    /// [`IoError::Cancelled`].
    pub fn claim(&self, offset: u64, length: u64) -> Result<Claim, IoError> {
        let range = offset..offset.saturating_add(length);
        let block_bytes = self.namespace_in_use()?.block_bytes;
        let place = self.claim_blocks(touched_blocks(&range, block_bytes))?;
        Ok(Claim { disk: self.clone(), range, _place: place })
    }

    /// The same for blocks by number.
    pub(super) fn claim_blocks(&self, blocks: Range<u64>) -> Result<Place, IoError> {
        let engine = self.engine();
        engine.claims.claim(self.nsid(), blocks, &engine.cancel).ok_or(IoError::Cancelled)
    }
}

impl Claim {
    /// The bytes that were asked for. The whole blocks that they touch are claimed.
    pub fn range(&self) -> &Range<u64> {
        &self.range
    }

    /// Writes bytes of the claimed blocks, as [`Disk::write_at`].
    ///
    /// # Errors
    /// As [`Disk::write_at`].
    ///
    /// # Panics
    /// When not all bytes were claimed.
    pub fn write_at(&self, offset: u64, source: &[u8], fua: bool) -> Result<(), IoError> {
        self.check(offset, source.len() as u64);
        self.disk.write(offset, source, fua, true)
    }

    /// Makes claimed blocks read as zeroes, as [`Disk::write_zeroes`].
    ///
    /// # Errors
    /// As [`Disk::write_zeroes`].
    ///
    /// # Panics
    /// When not all bytes were claimed.
    pub fn write_zeroes(&self, offset: u64, length: u64, deallocate: bool) -> Result<(), IoError> {
        self.check(offset, length);
        self.disk.zero(offset, length, deallocate, true)
    }

    fn check(&self, offset: u64, length: u64) {
        let claimed = &self.range;
        assert!(
            offset >= claimed.start && offset.saturating_add(length) <= claimed.end,
            "bytes that are claimed"
        );
    }
}
