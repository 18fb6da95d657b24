//! Memory that several cores read and write, like a disk.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use crate::dense::Dense;
use crate::mapping::{Mapping, PAGE_BYTES};
use crate::{Buffer, Lease, MemoryError};

/// How many pages can be written at once. Pages that are so many apart wait for each other.
const LANES: usize = 256;

/// A line of the cache, or half of one.
const LINE_BYTES: usize = 64;

/// Turns that a page is waited for before the processor is given to others: its writer may have been interrupted.
const SPINS: u32 = 1000;

/// The bytes of a memory namespace. Like a disk's, they may be read and written by several cores at once. Each page is read
/// as one write left it, and never as parts of two; an access of several pages has no order among those that overlap it.
/// That makes a logical block of at most a page what AWUN promises (NVM Command Set 1.0, section 2.1.4).
#[derive(Debug)]
pub struct SharedMemory {
    mapping: Arc<Mapping>,
    dense: Dense,
    bytes: usize,
    lanes: Box<[Lane]>,
}

// SAFETY: the mapping is reached only by the copies below, through raw pointers. No reference into it is ever
// made, so no two threads can hold aliasing references; the bytes themselves have no invariants.
unsafe impl Send for SharedMemory {}
// SAFETY: as above; what a read copied while a write went on is thrown away and copied again.
unsafe impl Sync for SharedMemory {}

/// Asks for a cache line, in the second level of the caches.
#[inline]
fn prefetch_line(pointer: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: this is a hint, which never faults, and changes nothing.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(pointer.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pldl2keep, [{}]", in(reg) pointer, options(nostack, readonly, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = pointer;
}

/// Guards pages: odd while one is written, and another even number afterwards. Readers change nothing, so that they do not
/// wait for each other.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Lane(AtomicU32);

impl Lane {
    /// Runs `copy` until no write has come in between.
    fn read(&self, mut copy: impl FnMut()) {
        let mut spins = 0;
        loop {
            let before = self.0.load(Ordering::Acquire);
            if before.is_multiple_of(2) {
                copy();
                fence(Ordering::Acquire);
                if self.0.load(Ordering::Relaxed) == before {
                    return;
                }
            }
            wait(&mut spins);
        }
    }

    /// Makes it the caller's, until [`Lane::release`].
    fn take(&self) {
        let mut spins = 0;
        loop {
            let version = self.0.load(Ordering::Relaxed);
            let taken = version.wrapping_add(1);
            if version.is_multiple_of(2)
                && self.0.compare_exchange(version, taken, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                // What is written now is not seen before the odd number.
                fence(Ordering::Release);
                return;
            }
            wait(&mut spins);
        }
    }

    fn release(&self) {
        self.0.fetch_add(1, Ordering::Release);
    }
}

fn wait(spins: &mut u32) {
    *spins += 1;
    if spins.is_multiple_of(SPINS) {
        std::thread::yield_now();
    } else {
        std::hint::spin_loop();
    }
}

impl SharedMemory {
    /// Reserves `bytes` of zeroes; pages become resident when they are first written, and huge where all were.
    ///
    /// # Errors
    /// [`MemoryError::Map`] when the kernel refuses.
    pub fn new(bytes: usize) -> Result<Self, MemoryError> {
        let lanes = (0..LANES).map(|_| Lane::default()).collect();
        let mapping = Arc::new(Mapping::new(bytes)?);
        Ok(Self { dense: Dense::new(&mapping)?, mapping, bytes, lanes })
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Has the processor fetch what comes first of `length` bytes at `offset`, a page at most, for a copy that follows a
    /// little later. It goes to the second level of the caches, where a processor has room for more lines on their way than
    /// in the first. Ranges beyond the end panic.
    pub fn prefetch(&self, offset: usize, length: usize) {
        let start = self.range(offset, length);
        let bytes = length.min(PAGE_BYTES);
        (0..bytes).step_by(LINE_BYTES).for_each(|at| prefetch_line(start.wrapping_add(at)));
    }

    /// Copies `length` bytes at `offset` into `buffer` at `at`. Ranges beyond either end are a caller's error and panic.
    pub fn read(&self, offset: usize, buffer: &mut Buffer, at: usize, length: usize) {
        let source = self.range(offset, length);
        let target = &mut buffer[at..at + length];
        for part in pages(offset, length) {
            self.prefetch(part.end, offset + length - part.end);
            let bytes = part.len();
            let start = part.start - offset;
            // SAFETY: `range` checked the source against the mapping, and the part is within the range.
            let source = unsafe { source.add(start) };
            let target = &mut target[start..start + bytes];
            // SAFETY: the source has so many bytes, the slice is the target's own length, and a buffer's memory belongs
            // to a pool's mapping, never to this one.
            let copy = || unsafe { std::ptr::copy_nonoverlapping(source, target.as_mut_ptr(), bytes) };
            self.lane(part.start).read(copy);
        }
    }

    /// Copies `length` bytes of `source` at `at` to `offset`. Ranges beyond either end panic.
    pub fn write(&self, offset: usize, source: &Lease, at: usize, length: usize) {
        let target = self.range(offset, length);
        let source = source.io_pointer(at, length);
        for part in pages(offset, length) {
            self.prefetch(part.end, offset + length - part.end);
            let start = part.start - offset;
            let lane = self.lane(part.start);
            lane.take();
            // SAFETY: both ranges were checked against their owners, which outlive the call, the part is within them, and
            // they belong to different mappings.
            unsafe { std::ptr::copy_nonoverlapping(source.add(start), target.add(start), part.len()) };
            self.dense.written(part.start);
            lane.release();
        }
    }

    /// Makes a range read as zero; whole pages are given back to the kernel.
    pub fn zero(&self, offset: usize, length: usize) {
        self.range(offset, length);
        let first_page = offset.next_multiple_of(PAGE_BYTES);
        let last_page = (offset + length) / PAGE_BYTES * PAGE_BYTES;
        if first_page >= last_page {
            return pages(offset, length).for_each(|part| self.zero_part(part));
        }
        self.zero_part(offset..first_page);
        for start in (first_page..last_page).step_by(LANES * PAGE_BYTES) {
            self.release_pages(start..last_page.min(start + LANES * PAGE_BYTES));
        }
        self.zero_part(last_page..offset + length);
    }

    /// Gives at most [`LANES`] whole pages back to the kernel. Others wait that long, since no write may lose its first half.
    fn release_pages(&self, range: Range<usize>) {
        let (first, count) = (range.start / PAGE_BYTES, range.len() / PAGE_BYTES);
        // Everybody who takes several takes them in the order of their numbers.
        let lanes = || (0..LANES).filter(|lane| (lane + LANES - first % LANES) % LANES < count);
        lanes().for_each(|lane| self.lanes[lane].take());
        self.mapping.release(range.start, range.len());
        self.dense.released(range);
        lanes().for_each(|lane| self.lanes[lane].release());
    }

    /// A part of one page.
    fn zero_part(&self, part: Range<usize>) {
        if part.is_empty() {
            return;
        }
        let start = self.range(part.start, part.len());
        let lane = self.lane(part.start);
        lane.take();
        // SAFETY: `range` checked the bounds.
        unsafe { std::ptr::write_bytes(start, 0, part.len()) };
        lane.release();
    }

    /// What guards the page of an offset.
    fn lane(&self, offset: usize) -> &Lane {
        &self.lanes[offset / PAGE_BYTES % LANES]
    }

    fn range(&self, offset: usize, length: usize) -> *mut u8 {
        assert!(offset.checked_add(length).is_some_and(|end| end <= self.bytes), "range beyond the memory");
        // SAFETY: the offset is within the mapping by the assertion above.
        unsafe { self.mapping.base().as_ptr().add(offset) }
    }
}

/// The parts of a range that lie in one page each.
fn pages(offset: usize, length: usize) -> impl Iterator<Item = Range<usize>> {
    let end = offset + length;
    let mut start = offset;
    std::iter::from_fn(move || {
        let part = start..end.min((start / PAGE_BYTES + 1) * PAGE_BYTES);
        start = part.end;
        (!part.is_empty()).then_some(part)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use super::{LANES, PAGE_BYTES, SharedMemory};
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
    fn a_long_range_is_zeroed_from_end_to_end_and_every_page_can_be_written_again() {
        const BYTES: usize = (2 * LANES + 3) * PAGE_BYTES;
        let pool = Pool::new(&[ClassLayout { buffer_bytes: BYTES, count: 2 }]).expect("pool");
        let memory = SharedMemory::new(BYTES).expect("memory");
        let mut full = pool.take(BYTES).expect("buffer");
        full.fill(0xab);
        let full = full.share();
        for (offset, length) in
            [(0, BYTES), (5 * PAGE_BYTES + 7, BYTES - 9 * PAGE_BYTES), (PAGE_BYTES, PAGE_BYTES)]
        {
            memory.write(0, &full, 0, BYTES);
            memory.zero(offset, length);
            let mut back = pool.take(BYTES).expect("buffer");
            memory.read(0, &mut back, 0, BYTES);
            assert!(back[offset..offset + length].iter().all(|byte| *byte == 0));
            assert!(back[..offset].iter().chain(&back[offset + length..]).all(|byte| *byte == 0xab));
        }
    }

    #[test]
    fn a_page_is_read_as_one_write_left_it() {
        const BYTES: usize = 2 * PAGE_BYTES;
        let memory = SharedMemory::new(BYTES).expect("memory");
        let pool = || Pool::new(&[ClassLayout { buffer_bytes: BYTES, count: 1 }]).expect("pool");
        let (writing, ended) = (AtomicU32::new(0), AtomicBool::new(false));
        let writes = &|value: u8| {
            let mut full = pool().take(BYTES).expect("buffer");
            full.fill(value);
            let full = full.share();
            writing.fetch_add(1, Ordering::Relaxed);
            for round in 0.. {
                match round % 16 {
                    _ if ended.load(Ordering::Relaxed) => break,
                    0 => memory.zero(0, BYTES),
                    1 => memory.zero(100, PAGE_BYTES),
                    _ => memory.write(0, &full, 0, BYTES),
                }
            }
        };
        let reads = || {
            let mut read = pool().take(BYTES).expect("buffer");
            let whole = |read: &[u8]| {
                // The second way to zero leaves the ends of both pages.
                let parts = [&read[..100], &read[100..PAGE_BYTES], &read[PAGE_BYTES + 100..]];
                parts.iter().all(|part| part.iter().all(|byte| *byte == part[0]))
            };
            while writing.load(Ordering::Relaxed) < 2 {
                std::thread::yield_now();
            }
            (0..10_000).all(|_| {
                memory.read(0, &mut read, 0, BYTES);
                whole(&read)
            })
        };
        std::thread::scope(|scope| {
            for value in [1, 2] {
                scope.spawn(move || writes(value));
            }
            let all_whole = reads();
            ended.store(true, Ordering::Relaxed);
            assert!(all_whole, "parts of two writes were read as one page");
        });
    }

    #[test]
    #[should_panic(expected = "range beyond the memory")]
    fn an_access_beyond_the_end_is_a_callers_error() {
        SharedMemory::new(4096).expect("memory").zero(4096, 1);
    }
}
