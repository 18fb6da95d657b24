//! Calls that name a namespace by its number alone, for a program that has one call to make. [`Disk`](super::Disk) has
//! the same calls, for one disk and no other that gets its number.

use super::{Controller, Run};
use crate::error::IoError;
use crate::namespace::BlockRange;

impl Controller {
    /// [`Disk::read_at`](super::Disk::read_at) of whichever disk is namespace `nsid`.
    ///
    /// # Errors
    /// As there; also when there is no such namespace.
    pub fn read_at(&self, nsid: u32, offset: u64, target: &mut [u8]) -> Result<(), IoError> {
        self.any_disk(nsid).read_at(offset, target)
    }

    /// [`Disk::write_at`](super::Disk::write_at) of whichever disk is namespace `nsid`.
    ///
    /// # Errors
    /// As there; also when there is no such namespace.
    pub fn write_at(&self, nsid: u32, offset: u64, source: &[u8], fua: bool) -> Result<(), IoError> {
        self.any_disk(nsid).write_at(offset, source, fua)
    }

    /// [`Disk::flush`](super::Disk::flush) of whichever disk is namespace `nsid`.
    ///
    /// # Errors
    /// As there; also when there is no such namespace.
    pub fn flush(&self, nsid: u32) -> Result<(), IoError> {
        self.any_disk(nsid).flush()
    }

    /// [`Disk::write_zeroes`](super::Disk::write_zeroes) of whichever disk is namespace `nsid`.
    ///
    /// # Errors
    /// As there; also when there is no such namespace.
    pub fn write_zeroes(&self, nsid: u32, offset: u64, length: u64, deallocate: bool) -> Result<(), IoError> {
        self.any_disk(nsid).write_zeroes(offset, length, deallocate)
    }

    /// [`Disk::discard`](super::Disk::discard) of whichever disk is namespace `nsid`.
    ///
    /// # Errors
    /// As there; also when there is no such namespace.
    pub fn discard(&self, nsid: u32, ranges: &[BlockRange]) -> Result<(), IoError> {
        self.any_disk(nsid).discard(ranges)
    }

    /// [`Disk::verify`](super::Disk::verify) of whichever disk is namespace `nsid`.
    ///
    /// # Errors
    /// As there; also when there is no such namespace.
    pub fn verify(&self, nsid: u32, offset: u64, length: u64) -> Result<(), IoError> {
        self.any_disk(nsid).verify(offset, length)
    }

    /// [`Disk::compare`](super::Disk::compare) of whichever disk is namespace `nsid`.
    ///
    /// # Errors
    /// As there; also when there is no such namespace.
    pub fn compare(&self, nsid: u32, offset: u64, source: &[u8]) -> Result<bool, IoError> {
        self.any_disk(nsid).compare(offset, source)
    }

    /// [`Disk::allocation`](super::Disk::allocation) of whichever disk is namespace `nsid`.
    ///
    /// # Errors
    /// As there; also when there is no such namespace.
    pub fn allocation(&self, nsid: u32, lba: u64, blocks: u64) -> Result<Vec<Run>, IoError> {
        self.any_disk(nsid).allocation(lba, blocks)
    }
}
