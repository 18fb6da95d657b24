//! Memory that several cores read and write, like a disk.

use crate::mapping::{Mapping, PAGE_BYTES};
use crate::{Buffer, Lease, MemoryError};

/// The bytes of a memory namespace. Like a disk's, they may be read and written by several cores at once, and
/// two overlapping accesses that run at the same time have no order: a reader may see parts of either.
#[derive(Debug)]
pub struct SharedMemory {
    mapping: Mapping,
    bytes: usize,
}

// SAFETY: the mapping is reached only by the copies below, through raw pointers. No reference into it is ever
// made, so no two threads can hold aliasing references; the bytes themselves have no invariants.
unsafe impl Send for SharedMemory {}
// SAFETY: as above; overlapping copies tear at worst, as the type's documentation says.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Reserves `bytes` of zeroes; pages become resident when they are first written.
    ///
    /// # Errors
    /// [`MemoryError::Map`] when the kernel refuses.
    pub fn new(bytes: usize) -> Result<Self, MemoryError> {
        Ok(Self { mapping: Mapping::new(bytes)?, bytes })
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies `length` bytes at `offset` into `buffer` at `at`. Ranges beyond either end are a caller's error and panic.
    pub fn read(&self, offset: usize, buffer: &mut Buffer, at: usize, length: usize) {
        let source = self.range(offset, length);
        let target = &mut buffer[at..at + length];
        // SAFETY: `range` checked the source against the mapping, the slice is the target's own length, and a
        // buffer's memory belongs to a pool's mapping, never to this one.
        unsafe { std::ptr::copy_nonoverlapping(source, target.as_mut_ptr(), length) };
    }

    /// Copies `length` bytes of `source` at `at` to `offset`. Ranges beyond either end panic.
    pub fn write(&self, offset: usize, source: &Lease, at: usize, length: usize) {
        let target = self.range(offset, length);
        let source = source.io_pointer(at, length);
        // SAFETY: both ranges were checked against their owners, which outlive the call, and they belong to
        // different mappings.
        unsafe { std::ptr::copy_nonoverlapping(source, target, length) };
    }

    /// Makes a range read as zero; whole pages are given back to the kernel.
    pub fn zero(&self, offset: usize, length: usize) {
        let start = self.range(offset, length);
        let first_page = offset.next_multiple_of(PAGE_BYTES);
        let last_page = (offset + length) / PAGE_BYTES * PAGE_BYTES;
        if first_page >= last_page {
            // SAFETY: `range` checked the bounds.
            unsafe { std::ptr::write_bytes(start, 0, length) };
            return;
        }
        self.mapping.release(first_page, last_page - first_page);
        // SAFETY: the parts before the first and after the last whole page lie within the checked range.
        unsafe {
            std::ptr::write_bytes(start, 0, first_page - offset);
            std::ptr::write_bytes(start.add(last_page - offset), 0, offset + length - last_page);
        }
    }

    fn range(&self, offset: usize, length: usize) -> *mut u8 {
        assert!(offset.checked_add(length).is_some_and(|end| end <= self.bytes), "range beyond the memory");
        // SAFETY: the offset is within the mapping by the assertion above.
        unsafe { self.mapping.base().as_ptr().add(offset) }
    }
}

#[cfg(test)]
mod tests {
    use super::SharedMemory;
    use crate::{ClassLayout, Pool};

    #[test]
    fn zeroing_clears_exactly_its_range_with_and_without_whole_pages() {
        let pool = Pool::new(&[ClassLayout { buffer_bytes: 65536, count: 2 }]).expect("pool");
        let memory = SharedMemory::new(65536).expect("memory");
        for (offset, length) in [(0, 65536), (1, 4094), (100, 9000), (4096, 4096), (4095, 4098), (0, 0)] {
            let mut full = pool.take(65536).expect("buffer");
            full.fill(0xab);
            let full = full.share();
            memory.write(0, &full, 0, 65536);
            memory.zero(offset, length);
            let mut back = pool.take(65536).expect("buffer");
            memory.read(0, &mut back, 0, 65536);
            for (index, byte) in back.iter().enumerate() {
                let inside = index >= offset && index < offset + length;
                assert_eq!(*byte, if inside { 0 } else { 0xab }, "byte {index} of {offset}+{length}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "range beyond the memory")]
    fn an_access_beyond_the_end_is_a_callers_error() {
        SharedMemory::new(4096).expect("memory").zero(4096, 1);
    }
}
