//! Memory that several cores read and write, like a disk.

use std::ops::{Deref, Range};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

use crate::borrow::{BorrowedPages, PageBorrow, PageOwner};
use crate::dense::Dense;
use crate::mapping::{Mapping, PAGE_BYTES};
use crate::pages::Pages;
use crate::{Buffer, MemoryError, SharedBuffer};

/// How many pages are given back to the kernel at once.
const RELEASED_PAGES_MAX: usize = 256;

/// A line of the cache, or half of one.
const LINE_BYTES: usize = 64;

/// The bytes of a memory namespace. Like a disk's, they may be read and written by several cores at once. Each page is
/// read as one write left it, and never as parts of two; an access of several pages has no order among those that
/// overlap it. That makes a logical block of at most a page what AWUN promises (NVM Command Set 1.0, section 2.1.4).
///
/// An access that has to wait for a page first ends the borrows of its core, so that it has none of its own to wait
/// for.
#[derive(Debug)]
pub struct SharedMemory {
    mapping: Arc<Mapping>,
    dense: Dense,
    pages: Pages,
    bytes: usize,
}

// SAFETY: the mapping is reached only by the copies below, through raw pointers, and by who was lent a part of it. A
// page that has a reader is not written, and one that has a writer is neither read nor lent; the bytes themselves have
// no invariants.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
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

impl SharedMemory {
    /// Reserves `bytes` of zeroes; pages become resident when they are first written, and huge where all were.
    ///
    /// # Errors
    /// [`MemoryError::Map`] when the kernel refuses.
    pub fn new(bytes: usize) -> Result<Self, MemoryError> {
        let mapping = Arc::new(Mapping::new(bytes)?);
        Ok(Self { dense: Dense::new(&mapping)?, pages: Pages::new(bytes)?, mapping, bytes })
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Has the processor fetch what comes first of `length` bytes at `offset`, a page at most, for an access that
    /// follows a little later. It goes to the second level of the caches, where a processor has room for more lines on
    /// their way than in the first. Ranges beyond the end panic.
    pub fn prefetch(&self, offset: usize, length: usize) {
        let start = self.range(offset, length);
        if length > 0 {
            prefetch_line(self.pages.word(offset / PAGE_BYTES));
        }
        let bytes = length.min(PAGE_BYTES);
        (0..bytes).step_by(LINE_BYTES).for_each(|at| prefetch_line(start.wrapping_add(at)));
    }

    /// Copies `length` bytes at `offset` into `buffer` at `at`. Ranges beyond either end are a caller's error and
    /// panic.
    pub fn read(
        &self,
        borrowed: &BorrowedPages,
        offset: usize,
        buffer: &mut Buffer,
        at: usize,
        length: usize,
    ) {
        let source = self.range(offset, length);
        let target = &mut buffer[at..at + length];
        for part in pages(offset, length) {
            self.prefetch(part.end, offset + length - part.end);
            let page = part.start / PAGE_BYTES;
            if !self.pages.try_read(page..page + 1) {
                borrowed.end_all();
                self.pages.read(page);
            }
            let bytes = part.len();
            let start = part.start - offset;
            let target = &mut target[start..start + bytes];
            // SAFETY: `range` checked the source against the mapping, and the part is within the range. The slice is
            // the target's own length, and a buffer's memory belongs to a pool's mapping, never to this one.
            unsafe { std::ptr::copy_nonoverlapping(source.add(start), target.as_mut_ptr(), bytes) };
            self.pages.end_read(page..page + 1);
        }
    }

    /// Copies `length` bytes of `source` at `at` to `offset`. Ranges beyond either end panic.
    pub fn write(
        &self,
        borrowed: &BorrowedPages,
        offset: usize,
        source: &SharedBuffer,
        at: usize,
        length: usize,
    ) {
        let target = self.range(offset, length);
        for part in pages(offset, length) {
            self.prefetch(part.end, offset + length - part.end);
            let start = part.start - offset;
            self.writing(borrowed, part.start, || {
                let source = source.io_pointer(at + start, part.len());
                // SAFETY: both ranges were checked against their owners, which outlive the call, and the part is within
                // them. They do not overlap: the source is memory of a pool's mapping, or was lent by pages that nobody
                // writes meanwhile.
                unsafe { std::ptr::copy_nonoverlapping(source, target.add(start), part.len()) };
                self.dense.written(part.start);
            });
        }
    }

    /// Makes a range read as zero; whole pages are given back to the kernel.
    pub fn zero(&self, borrowed: &BorrowedPages, offset: usize, length: usize) {
        self.range(offset, length);
        let first_page = offset.next_multiple_of(PAGE_BYTES);
        let last_page = (offset + length) / PAGE_BYTES * PAGE_BYTES;
        if first_page >= last_page {
            return pages(offset, length).for_each(|part| self.zero_part(borrowed, part));
        }
        self.zero_part(borrowed, offset..first_page);
        for start in (first_page..last_page).step_by(RELEASED_PAGES_MAX * PAGE_BYTES) {
            self.release_pages(borrowed, start..last_page.min(start + RELEASED_PAGES_MAX * PAGE_BYTES));
        }
        self.zero_part(borrowed, last_page..offset + length);
    }

    /// Gives whole pages back to the kernel. Others wait that long for each of them, since no write may lose its first
    /// half.
    fn release_pages(&self, borrowed: &BorrowedPages, range: Range<usize>) {
        borrowed.end_all();
        let numbers = || range.start / PAGE_BYTES..range.end / PAGE_BYTES;
        // Everybody who takes several takes them in the order of their numbers.
        numbers().for_each(|page| self.pages.write(page));
        self.mapping.release(range.start, range.len());
        self.dense.released(range.clone());
        numbers().for_each(|page| self.pages.end_write(page));
    }

    /// A part of one page.
    fn zero_part(&self, borrowed: &BorrowedPages, part: Range<usize>) {
        if part.is_empty() {
            return;
        }
        let start = self.range(part.start, part.len());
        // SAFETY: `range` checked the bounds.
        self.writing(borrowed, part.start, || unsafe { std::ptr::write_bytes(start, 0, part.len()) });
    }

    /// Writes to the page of an offset while nobody else uses it.
    #[inline]
    fn writing(&self, borrowed: &BorrowedPages, offset: usize, write: impl FnOnce()) {
        let page = offset / PAGE_BYTES;
        if !self.pages.try_write(page) {
            borrowed.end_all();
            self.pages.write(page);
        }
        write();
        self.pages.end_write(page);
    }

    fn range(&self, offset: usize, length: usize) -> *mut u8 {
        assert!(offset.checked_add(length).is_some_and(|end| end <= self.bytes), "range beyond the memory");
        // SAFETY: the offset is within the mapping by the assertion above.
        unsafe { self.mapping.base().as_ptr().add(offset) }
    }
}

/// One core's handle of shared memory. Its borrows count it, and not the memory's own handles, which cores would all
/// write to.
#[derive(Debug)]
pub struct CoreMemory(Arc<SharedMemory>);

impl CoreMemory {
    /// Of memory that other cores may have, too.
    pub fn new(memory: Arc<SharedMemory>) -> Rc<Self> {
        Rc::new(Self(memory))
    }

    /// Lends the bytes at `offset` to `buffer`, as many as it has: the shared buffer shows them without a copy, until
    /// the borrow ends. Ranges beyond the end panic.
    ///
    /// # Errors
    /// Gives the buffer back when one of the pages is being written.
    pub fn borrow_pages(
        self: &Rc<Self>,
        borrowed: &BorrowedPages,
        offset: usize,
        buffer: Buffer,
    ) -> Result<SharedBuffer, Buffer> {
        let length = buffer.len();
        let start = self.range(offset, length);
        if !self.pages.try_read(numbers(offset, length)) {
            return Err(buffer);
        }
        let start = NonNull::new(start).expect("a mapping does not begin at zero");
        // SAFETY: the range lies within the mapping, which the borrow keeps. Its pages have a reader, so that nobody
        // writes them, until the borrow ends: that has the shared buffer come home first, unless it is the last one.
        let shared_buffer = unsafe { buffer.borrow_from(start) };
        borrowed.add(PageBorrow {
            shared_buffer: shared_buffer.clone(),
            memory: Rc::clone(self) as Rc<dyn PageOwner>,
            offset,
        });
        Ok(shared_buffer)
    }
}

impl PageOwner for CoreMemory {
    /// What was lent has come home, or nobody needs it any more.
    fn end_borrow(&self, offset: usize, length: usize) {
        self.pages.end_read(numbers(offset, length));
    }
}

impl Deref for CoreMemory {
    type Target = SharedMemory;

    fn deref(&self) -> &SharedMemory {
        &self.0
    }
}

/// The numbers of the pages that a range touches.
fn numbers(offset: usize, length: usize) -> Range<usize> {
    offset / PAGE_BYTES..(offset + length).div_ceil(PAGE_BYTES)
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

    use super::*;
    use crate::{ClassLayout, Pool};

    /// Pages of a range that is released in three steps.
    const MANY: usize = 2 * RELEASED_PAGES_MAX + 3;

    #[test]
    fn zeroing_clears_exactly_its_range_with_and_without_whole_pages() {
        let pool = Pool::new(&[ClassLayout { buffer_bytes: 65536, count: 2 }]).expect("pool");
        let (memory, borrowed) = (SharedMemory::new(65536).expect("memory"), BorrowedPages::default());
        for (offset, length) in [(0, 65536), (1, 4094), (100, 9000), (4096, 4096), (4095, 4098), (0, 0)] {
            let mut full = pool.take(65536).expect("buffer");
            full.fill(0xab);
            let full = full.share();
            memory.write(&borrowed, 0, &full, 0, 65536);
            memory.zero(&borrowed, offset, length);
            let mut back = pool.take(65536).expect("buffer");
            memory.read(&borrowed, 0, &mut back, 0, 65536);
            for (index, byte) in back.iter().enumerate() {
                let inside = index >= offset && index < offset + length;
                assert_eq!(*byte, if inside { 0 } else { 0xab }, "byte {index} of {offset}+{length}");
            }
        }
    }

    #[test]
    fn a_long_range_is_zeroed_from_end_to_end_and_every_page_can_be_written_again() {
        const BYTES: usize = MANY * PAGE_BYTES;
        let pool = Pool::new(&[ClassLayout { buffer_bytes: BYTES, count: 2 }]).expect("pool");
        let (memory, borrowed) = (SharedMemory::new(BYTES).expect("memory"), BorrowedPages::default());
        let mut full = pool.take(BYTES).expect("buffer");
        full.fill(0xab);
        let full = full.share();
        for (offset, length) in
            [(0, BYTES), (5 * PAGE_BYTES + 7, BYTES - 9 * PAGE_BYTES), (PAGE_BYTES, PAGE_BYTES)]
        {
            memory.write(&borrowed, 0, &full, 0, BYTES);
            memory.zero(&borrowed, offset, length);
            let mut back = pool.take(BYTES).expect("buffer");
            memory.read(&borrowed, 0, &mut back, 0, BYTES);
            assert!(back[offset..offset + length].iter().all(|byte| *byte == 0));
            assert!(back[..offset].iter().chain(&back[offset + length..]).all(|byte| *byte == 0xab));
        }
    }

    #[test]
    #[expect(clippy::too_many_lines, reason = "two threads that write beside one that reads")]
    fn a_page_is_read_and_lent_as_one_write_left_it() {
        const BYTES: usize = 2 * PAGE_BYTES;
        let memory = &Arc::new(SharedMemory::new(BYTES).expect("memory"));
        let pool = || Pool::new(&[ClassLayout { buffer_bytes: BYTES, count: 1 }]).expect("pool");
        let (writing, ended) = (AtomicU32::new(0), AtomicBool::new(false));
        let writes = &|value: u8| {
            let mut full = pool().take(BYTES).expect("buffer");
            full.fill(value);
            let (full, borrowed) = (full.share(), BorrowedPages::default());
            writing.fetch_add(1, Ordering::Relaxed);
            for round in 0.. {
                match round % 16 {
                    _ if ended.load(Ordering::Relaxed) => break,
                    0 => memory.zero(&borrowed, 0, BYTES),
                    1 => memory.zero(&borrowed, 100, PAGE_BYTES),
                    _ => memory.write(&borrowed, 0, &full, 0, BYTES),
                }
            }
        };
        let reads = || {
            let (pool, borrowed, handle) =
                (pool(), BorrowedPages::default(), CoreMemory::new(Arc::clone(memory)));
            let whole = |read: &[u8]| {
                // The second way to zero leaves the ends of both pages.
                let parts = [&read[..100], &read[100..PAGE_BYTES], &read[PAGE_BYTES + 100..]];
                parts.iter().all(|part| part.iter().all(|byte| *byte == part[0]))
            };
            while writing.load(Ordering::Relaxed) < 2 {
                std::thread::yield_now();
            }
            let mut lent = 0;
            let all_whole = (0..10_000).all(|_| {
                let buffer = pool.take(BYTES).expect("buffer");
                match handle.borrow_pages(&borrowed, 0, buffer) {
                    Ok(shared_buffer) => {
                        lent += 1;
                        // Twice from where it lies, and once from where it comes home to.
                        let all = |shared_buffer: &SharedBuffer| shared_buffer.with_bytes(0..BYTES, whole);
                        let whole = all(&shared_buffer) && all(&shared_buffer);
                        borrowed.end_all();
                        whole && all(&shared_buffer)
                    }
                    Err(mut buffer) => {
                        memory.read(&borrowed, 0, &mut buffer, 0, BYTES);
                        whole(&buffer)
                    }
                }
            });
            assert!(lent > 0, "pages are not written all of the time");
            all_whole
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

    /// Memory with a byte for each page, a pool, and the borrows of a core.
    fn lending() -> (Rc<CoreMemory>, Pool, BorrowedPages) {
        let pool = Pool::new(&[ClassLayout { buffer_bytes: 2 * PAGE_BYTES, count: 2 }]).expect("pool");
        let (memory, borrowed) =
            (SharedMemory::new(4 * PAGE_BYTES).expect("memory"), BorrowedPages::default());
        let mut page = pool.take(PAGE_BYTES).expect("buffer");
        page.fill(1);
        let page = page.share();
        for (number, value) in [1, 2, 3, 4].into_iter().enumerate() {
            page.write_at(0, &[value; PAGE_BYTES]);
            memory.write(&borrowed, number * PAGE_BYTES, &page, 0, PAGE_BYTES);
        }
        drop(page);
        (CoreMemory::new(Arc::new(memory)), pool, borrowed)
    }

    fn bytes(shared_buffer: &SharedBuffer) -> Vec<u8> {
        shared_buffer.with_bytes(0..shared_buffer.len(), <[u8]>::to_vec)
    }

    #[test]
    fn borrowed_pages_are_read_in_place_and_copied_only_where_they_are_needed_afterwards() {
        let (memory, pool, borrowed) = lending();
        let borrow_pages = |offset, length| {
            let buffer = pool.take(length).expect("buffer");
            let own = buffer.io_pointer(0, 0);
            (memory.borrow_pages(&borrowed, offset, buffer).expect("nobody writes"), own)
        };
        let ((kept, own), (dropped, _)) =
            (borrow_pages(PAGE_BYTES / 2, 2 * PAGE_BYTES), borrow_pages(0, PAGE_BYTES));
        let expected = [[1; 2048].as_slice(), &[2; 4096], &[3; 2048]].concat();
        assert_eq!(bytes(&kept), expected);
        assert_eq!(kept.io_pointer(0, 0), memory.range(PAGE_BYTES / 2, 1));
        let kept = kept.into_unique().expect_err("it is not its own");
        drop(dropped);
        assert_eq!((pool.usage().taken, borrowed.is_empty()), (2, false));
        borrowed.end_all();
        assert_eq!((pool.usage().taken, borrowed.is_empty()), (1, true));
        assert_eq!((bytes(&kept), kept.io_pointer(0, 0)), (expected, own));
        assert_eq!(borrowed.copied_bytes(), 2 * PAGE_BYTES as u64);
        let (again, own) = (kept.into_unique().expect("the last one"), own);
        assert_eq!(again.io_pointer(0, 0), own);
        let other = pool.take(PAGE_BYTES).expect("the one that was dropped");
        assert!(other.io_pointer(0, 0) != memory.range(0, 1), "it has its own bytes again");
    }

    #[test]
    fn a_core_ends_its_borrows_before_it_waits_for_a_page() {
        let (memory, pool, borrowed) = lending();
        let buffer = || pool.take(PAGE_BYTES).expect("buffer");
        let steps: [&dyn Fn(); 3] =
            [&|| memory.zero(&borrowed, 100, 8), &|| memory.zero(&borrowed, 0, PAGE_BYTES), &|| {
                let source = memory.borrow_pages(&borrowed, PAGE_BYTES, buffer()).expect("free");
                memory.write(&borrowed, 0, &source, 0, PAGE_BYTES);
            }];
        for (step, seen) in steps.into_iter().zip([1, 1, 0]) {
            let shared_buffer = memory.borrow_pages(&borrowed, 0, buffer()).expect("nobody writes");
            step();
            assert!(borrowed.is_empty());
            assert_eq!(
                (bytes(&shared_buffer)[0], bytes(&shared_buffer)[4095]),
                (seen, seen),
                "as it was before"
            );
        }
        assert_eq!(bytes(&memory.borrow_pages(&borrowed, 0, buffer()).expect("free")), [2; 4096]);
    }

    #[test]
    fn a_page_that_is_written_is_not_lent_and_no_page_beside_it_stays_taken() {
        let (memory, pool, borrowed) = lending();
        memory.pages.write(1);
        let buffer = pool.take(2 * PAGE_BYTES).expect("buffer");
        let buffer = memory.borrow_pages(&borrowed, 0, buffer).expect_err("the second page has a writer");
        assert!(borrowed.is_empty() && memory.pages.try_write(0));
        memory.pages.end_write(0);
        memory.pages.end_write(1);
        assert!(memory.borrow_pages(&borrowed, 0, buffer).is_ok());
    }

    #[test]
    #[should_panic(expected = "written to what is lent")]
    fn what_is_lent_is_not_written_by_its_shared_buffer() {
        let (memory, pool, borrowed) = lending();
        let buffer = pool.take(PAGE_BYTES).expect("buffer");
        memory.borrow_pages(&borrowed, 0, buffer).expect("nobody writes").write_at(0, &[1]);
    }

    #[test]
    #[should_panic(expected = "range beyond the memory")]
    fn an_access_beyond_the_end_is_a_callers_error() {
        SharedMemory::new(4096).expect("memory").zero(&BorrowedPages::default(), 4096, 1);
    }
}
