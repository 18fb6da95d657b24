//! Memory that is used from its front, and whose pages go back while nobody needs them.

use std::fmt;
use std::ops::{Deref, DerefMut, Range};

use crate::MemoryError;
use crate::mapping::{Mapping, PAGE_BYTES};

/// Bytes of a mapping of their own: zero at first, and resident only where they were touched since.
///
/// Memory of the heap would not do. Once a large block was freed, the allocator keeps blocks of its size, fills them
/// with zeroes when they are taken again, and gives none of their pages back.
pub struct Staging {
    mapping: Mapping,
    bytes: usize,
}

impl Staging {
    /// Maps so many bytes.
    ///
    /// # Errors
    /// [`MemoryError::Map`] when the kernel refuses.
    pub fn new(bytes: usize) -> Result<Self, MemoryError> {
        Ok(Self { mapping: Mapping::new(bytes.max(1))?, bytes })
    }

    /// Gives the whole pages of a range back to the kernel. They read as zero afterwards, so that nobody may be reading
    /// them meanwhile:
    ///
    /// ```compile_fail,E0502
    /// let mut staging = ringfab_memory::Staging::new(4096).unwrap();
    /// let bytes: &[u8] = &staging;
    /// staging.release(0..4096);
    /// assert_eq!(bytes[0], 0);
    /// ```
    pub fn release(&mut self, range: Range<usize>) {
        let start = range.start.next_multiple_of(PAGE_BYTES);
        // Nothing of ours lies behind the last byte of the last page.
        let end =
            if range.end >= self.bytes { self.mapping.bytes() } else { range.end / PAGE_BYTES * PAGE_BYTES };
        if start < end {
            self.mapping.release(start, end - start);
        }
    }
}

impl Deref for Staging {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `self` owns the mapping, which is at least so long and initialized by the kernel; the borrow of
        // `self` keeps everybody else from writing.
        unsafe { std::slice::from_raw_parts(self.mapping.base().as_ptr(), self.bytes) }
    }
}

impl DerefMut for Staging {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the borrow is the only one.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.base().as_ptr(), self.bytes) }
    }
}

impl fmt::Debug for Staging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Staging").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_released_reads_as_zero_and_what_is_before_it_stays() {
        let mut staging = Staging::new(3 * PAGE_BYTES + 5).expect("four pages");
        staging.fill(7);
        staging.release(10..staging.len());
        assert!(staging[..PAGE_BYTES].iter().all(|byte| *byte == 7), "the page that the range begins in");
        assert!(staging[PAGE_BYTES..].iter().all(|byte| *byte == 0));
        staging.fill(7);
        staging.release(0..2 * PAGE_BYTES - 1);
        assert!(staging[PAGE_BYTES..].iter().all(|byte| *byte == 7), "half a page is none");
        assert!(staging[..PAGE_BYTES].iter().all(|byte| *byte == 0));
    }
}
