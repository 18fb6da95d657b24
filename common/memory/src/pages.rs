//! Who reads and who writes the pages of shared memory.

use std::ops::Range;
use std::slice;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::MemoryError;
use crate::mapping::{Mapping, PAGE_BYTES};

/// Set while somebody writes a page, or waits for its readers to leave; below it is their number.
const WRITER: u32 = 1 << 31;

/// Turns that a page is waited for before the processor is given to others: who has it may have been interrupted.
const SPINS: u32 = 1000;

/// A word for each page. Each of them is read by many or written by one; a writer that waits keeps new readers out.
#[derive(Debug)]
pub(crate) struct Pages {
    /// Zeroed, and resident where pages were used.
    words: Mapping,
    count: usize,
}

impl Pages {
    /// Of memory that nobody uses.
    ///
    /// # Errors
    /// [`MemoryError::Map`] when the kernel refuses the memory for it.
    pub(crate) fn new(bytes: usize) -> Result<Self, MemoryError> {
        let count = bytes.div_ceil(PAGE_BYTES);
        Ok(Self { words: Mapping::new(count * size_of::<AtomicU32>())?, count })
    }

    #[inline]
    fn words(&self) -> &[AtomicU32] {
        // SAFETY: the memory is zeroed, page aligned and as large as all words, and nothing else is ever made of it.
        unsafe { slice::from_raw_parts(self.words.base().cast::<AtomicU32>().as_ptr(), self.count) }
    }

    /// The word of a page, for who asks for its line of the cache.
    #[inline]
    pub(crate) fn word(&self, page: usize) -> *const u8 {
        (&raw const self.words()[page]).cast()
    }

    /// Adds a reader to each page, or to none where one of them has a writer.
    #[inline]
    pub(crate) fn try_read(&self, pages: Range<usize>) -> bool {
        for page in pages.clone() {
            if !self.try_read_one(page) {
                self.end_read(pages.start..page);
                return false;
            }
        }
        true
    }

    #[inline]
    fn try_read_one(&self, page: usize) -> bool {
        let word = &self.words()[page];
        let free = word.fetch_add(1, Ordering::Acquire) & WRITER == 0;
        if !free {
            word.fetch_sub(1, Ordering::Relaxed);
        }
        free
    }

    /// Adds a reader to a page, when its writer has left.
    pub(crate) fn read(&self, page: usize) {
        let mut spins = 0;
        while !self.try_read_one(page) {
            while self.words()[page].load(Ordering::Relaxed) & WRITER != 0 {
                wait(&mut spins);
            }
        }
    }

    #[inline]
    pub(crate) fn end_read(&self, pages: Range<usize>) {
        for word in &self.words()[pages] {
            word.fetch_sub(1, Ordering::Release);
        }
    }

    /// Makes a page the caller's, if nobody uses it.
    #[inline]
    pub(crate) fn try_write(&self, page: usize) -> bool {
        self.words()[page].compare_exchange(0, WRITER, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Makes a page the caller's, when everybody has left it.
    pub(crate) fn write(&self, page: usize) {
        let (word, mut spins) = (&self.words()[page], 0);
        while word.fetch_or(WRITER, Ordering::Acquire) & WRITER != 0 {
            wait(&mut spins);
        }
        while word.load(Ordering::Acquire) != WRITER {
            wait(&mut spins);
        }
    }

    #[inline]
    pub(crate) fn end_write(&self, page: usize) {
        self.words()[page].fetch_and(!WRITER, Ordering::Release);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_readers_or_a_writer_and_others_do_not_concern_it() {
        let pages = Pages::new(3 * PAGE_BYTES).expect("words");
        assert!(pages.try_read(0..3) && pages.try_read(1..2));
        assert!(!pages.try_write(1));
        pages.end_read(0..3);
        assert!(pages.try_write(0) && pages.try_write(2) && !pages.try_write(1) && !pages.try_write(2));
        pages.end_read(1..2);
        pages.end_write(0);
        assert!(!pages.try_read(0..3), "the last one has a writer");
        assert!(pages.try_write(0) && pages.try_write(1), "and the others have been left again");
    }

    #[test]
    fn a_writer_that_waits_keeps_new_readers_out_and_gets_the_page_when_the_old_ones_leave() {
        let pages = &Pages::new(PAGE_BYTES).expect("words");
        assert!(pages.try_read(0..1));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                pages.write(0);
                pages.end_write(0);
            });
            while pages.try_read(0..1) {
                pages.end_read(0..1);
                std::thread::yield_now();
            }
            pages.end_read(0..1);
            pages.read(0);
            pages.end_read(0..1);
        });
        assert!(pages.try_write(0), "everybody has left");
    }
}
