//! Who reads and who writes the pages of shared memory.

use std::ops::Range;
use std::slice;

use crate::MemoryError;
use crate::mapping::{Mapping, PAGE_BYTES};
use crate::page_word;
use crate::sync::AtomicU32;

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
            if !page_word::try_read(&self.words()[page]) {
                self.end_read(pages.start..page);
                return false;
            }
        }
        true
    }

    /// Adds a reader to a page, when its writer has left.
    pub(crate) fn read(&self, page: usize) {
        page_word::read(&self.words()[page]);
    }

    #[inline]
    pub(crate) fn end_read(&self, pages: Range<usize>) {
        self.words()[pages].iter().for_each(page_word::end_read);
    }

    /// Makes a page the caller's, if nobody uses it.
    #[inline]
    pub(crate) fn try_write(&self, page: usize) -> bool {
        page_word::try_write(&self.words()[page])
    }

    /// Makes a page the caller's, when everybody has left it.
    pub(crate) fn write(&self, page: usize) {
        page_word::write(&self.words()[page]);
    }

    #[inline]
    pub(crate) fn end_write(&self, page: usize) {
        page_word::end_write(&self.words()[page]);
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
