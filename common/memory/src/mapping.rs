//! Page-aligned memory from the kernel.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use crate::MemoryError;

/// Granularity of mappings and the alignment of every buffer of a page or more.
pub const PAGE_BYTES: usize = 4096;

/// What one entry of the page tables' second level covers.
pub(crate) const HUGE_BYTES: usize = 2 << 20;

/// A mapping, page aligned and resident only where it was touched. Mostly it is private, anonymous and zeroed.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

impl Mapping {
    /// Maps `bytes`, rounded up to whole pages.
    ///
    /// # Errors
    /// [`MemoryError::Map`] with the kernel's answer; `bytes` of zero is refused with `EINVAL`.
    pub fn new(bytes: usize) -> Result<Self, MemoryError> {
        Self::make(bytes, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, -1, 0)
    }

    /// The same of a file, from `offset` on, a multiple of [`PAGE_BYTES`]. Whoever else has the file may change the
    /// bytes at any time, so that no reference to them may be made.
    ///
    /// # Errors
    /// As [`Mapping::new`].
    pub(crate) fn of_file(file: BorrowedFd<'_>, offset: u64, bytes: usize) -> Result<Self, MemoryError> {
        let Ok(offset) = libc::off_t::try_from(offset) else {
            return Err(MemoryError::Map { bytes, source: std::io::ErrorKind::InvalidInput.into() });
        };
        Self::make(bytes, libc::MAP_SHARED, file.as_raw_fd(), offset)
    }

    fn make(
        bytes: usize,
        flags: libc::c_int,
        descriptor: libc::c_int,
        offset: libc::off_t,
    ) -> Result<Self, MemoryError> {
        let rounded = bytes.checked_next_multiple_of(PAGE_BYTES).unwrap_or(0);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choosing aliases nothing of ours.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), rounded, access, flags, descriptor, offset) };
        let error = |source| MemoryError::Map { bytes, source };
        if base == libc::MAP_FAILED {
            return Err(error(std::io::Error::last_os_error()));
        }
        let base = NonNull::new(base.cast()).ok_or_else(|| error(std::io::ErrorKind::OutOfMemory.into()))?;
        Ok(Self { base, bytes: rounded })
    }

    /// Size in bytes, a multiple of [`PAGE_BYTES`].
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Address of the first byte; valid for [`Mapping::bytes`] as long as the mapping lives.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Gives the pages of a range back to the kernel; they read as zero afterwards. `offset` and `bytes` must be
    /// multiples of [`PAGE_BYTES`] within the mapping.
    pub fn release(&self, offset: usize, bytes: usize) {
        assert!(offset.is_multiple_of(PAGE_BYTES) && bytes.is_multiple_of(PAGE_BYTES));
        assert!(offset.checked_add(bytes).is_some_and(|end| end <= self.bytes), "range beyond the mapping");
        // SAFETY: the range lies in this mapping, which `self` keeps alive; the pages stay mapped and readable.
        let result =
            unsafe { libc::madvise(self.base.as_ptr().add(offset).cast(), bytes, libc::MADV_DONTNEED) };
        assert_eq!(result, 0, "madvise of our own mapping: {}", std::io::Error::last_os_error());
    }

    /// Puts the pages of a range together into huge ones; no byte of it changes. `offset` and `bytes` must be multiples
    /// of [`PAGE_BYTES`] within the mapping.
    ///
    /// # Errors
    /// The kernel has no huge page left, or cannot do this (before Linux 6.1).
    pub(crate) fn collapse(&self, offset: usize, bytes: usize) -> std::io::Result<()> {
        assert!(offset.checked_add(bytes).is_some_and(|end| end <= self.bytes), "range beyond the mapping");
        // SAFETY: the range lies in this mapping, which `self` keeps alive; what is read there stays the same.
        let result =
            unsafe { libc::madvise(self.base.as_ptr().add(offset).cast(), bytes, libc::MADV_COLLAPSE) };
        if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    }
}

// SAFETY: a mapping is a number of addresses; who reaches for the bytes behind them argues that for itself.
unsafe impl Send for Mapping {}
// SAFETY: as above; what the kernel does to its pages it does for all threads.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `self` owns the mapping, and every handle into it holds a counted reference to its owner, so
        // nobody can reach the memory any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
