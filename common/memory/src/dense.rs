//! Huge pages for memory that is completely in use.
//!
//! An access to a page that the processor has not used for a while walks the page tables, which takes as long as a
//! cache miss. A huge page makes that rare, but takes all of its memory at once. So memory begins with small pages.
//! Once all small pages that a huge page would replace have been written, the huge page costs no memory, and they are
//! [joined](crate::collapse).

use std::ops::Range;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::MemoryError;
use crate::collapse::collapse_in_background;
use crate::mapping::{HUGE_BYTES, Mapping, PAGE_BYTES};

/// Small pages in a huge one.
const PAGES: usize = HUGE_BYTES / PAGE_BYTES;

/// What is known of a place for a huge page: a bit for each page that was written, and behind them their number.
const WORDS: usize = PAGES / 64 + 1;

/// Which pages of a mapping have been written. Who notes what happens to a page keeps others from writing and releasing
/// it.
#[derive(Debug)]
pub(crate) struct Dense {
    mapping: Arc<Mapping>,
    /// Bytes from where a huge page could begin to the begin of the mapping.
    lead: usize,
    /// [`WORDS`] for each place, zeroed and hardly resident; none where the mapping has no place for a huge page.
    places: Option<Mapping>,
}

impl Dense {
    /// Of a mapping in which nothing was written.
    ///
    /// # Errors
    /// [`MemoryError::Map`] when the kernel refuses the memory for it.
    pub(crate) fn new(mapping: &Arc<Mapping>) -> Result<Self, MemoryError> {
        let lead = mapping.base().addr().get() % HUGE_BYTES;
        let end = lead + mapping.bytes();
        let first_whole = lead.next_multiple_of(HUGE_BYTES);
        let places = (end >= first_whole + HUGE_BYTES)
            .then(|| Mapping::new(end.div_ceil(HUGE_BYTES) * WORDS * size_of::<AtomicU64>()))
            .transpose()?;
        Ok(Self { mapping: Arc::clone(mapping), lead, places })
    }

    /// The page at an offset has been written.
    #[inline]
    pub(crate) fn written(&self, offset: usize) {
        let Some((place, page)) = self.find(offset) else { return };
        if place[WORDS - 1].load(Ordering::Relaxed) != PAGES as u64 {
            self.note(place, page, offset);
        }
    }

    #[inline(never)]
    fn note(&self, place: &[AtomicU64], page: usize, offset: usize) {
        let (word, bit) = (&place[page / 64], 1 << (page % 64));
        let new = word.load(Ordering::Relaxed) & bit == 0 && word.fetch_or(bit, Ordering::Relaxed) & bit == 0;
        if new && place[WORDS - 1].fetch_add(1, Ordering::Relaxed) + 1 == PAGES as u64 {
            // The place has as many pages as a huge one, so that it begins within the mapping.
            collapse_in_background(&self.mapping, (self.lead + offset) / HUGE_BYTES * HUGE_BYTES - self.lead);
        }
    }

    /// Whole pages were given back to the kernel.
    pub(crate) fn released(&self, range: Range<usize>) {
        for offset in range.step_by(PAGE_BYTES) {
            let Some((place, page)) = self.find(offset) else { return };
            let (word, bit) = (&place[page / 64], 1 << (page % 64));
            if word.load(Ordering::Relaxed) & bit != 0 && word.fetch_and(!bit, Ordering::Relaxed) & bit != 0 {
                place[WORDS - 1].fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// What is known of the place of an offset, and which of its pages that is.
    #[inline]
    fn find(&self, offset: usize) -> Option<(&[AtomicU64], usize)> {
        let words = self.places.as_ref()?;
        let at = self.lead + offset;
        // SAFETY: the memory is zeroed and page aligned, and nothing else is ever made of it.
        let words = unsafe {
            slice::from_raw_parts(
                words.base().cast::<AtomicU64>().as_ptr(),
                words.bytes() / size_of::<AtomicU64>(),
            )
        };
        let first = at / HUGE_BYTES * WORDS;
        Some((&words[first..first + WORDS], at % HUGE_BYTES / PAGE_BYTES))
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};
    use std::{fs, thread};

    use super::*;
    use crate::collapse::huge_pages_wanted;

    /// Bytes of huge pages in a mapping.
    fn huge_bytes(mapping: &Mapping) -> usize {
        let address = mapping.base().addr().get();
        // The kernel may show it as one with its neighbours.
        let has_it = |line: &str| {
            let (start, end) = line.split(' ').next()?.split_once('-')?;
            let bound = |text| usize::from_str_radix(text, 16).ok();
            Some((bound(start)?..bound(end)?).contains(&address))
        };
        let maps = fs::read_to_string("/proc/self/smaps").expect("smaps");
        let own = maps.lines().skip_while(|line| has_it(line) != Some(true));
        let line = own.skip(1).find(|line| line.starts_with("AnonHugePages:")).expect("the mapping");
        let kib: usize = line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number");
        kib << 10
    }

    fn mapping(bytes: usize) -> (Arc<Mapping>, Dense) {
        let mapping = Arc::new(Mapping::new(bytes).expect("memory"));
        let dense = Dense::new(&mapping).expect("memory");
        (mapping, dense)
    }

    fn write(mapping: &Mapping, dense: &Dense, offset: usize) {
        // SAFETY: within the mapping, of which only this thread knows.
        unsafe { mapping.base().add(offset).cast::<u64>().write(offset as u64) };
        dense.written(offset);
    }

    #[test]
    fn what_is_written_all_over_gets_huge_pages_and_keeps_its_bytes() {
        let (mapping, dense) = mapping(3 * HUGE_BYTES);
        let whole = (dense.lead + mapping.bytes()) / HUGE_BYTES - dense.lead.div_ceil(HUGE_BYTES);
        let pages = || (0..mapping.bytes()).step_by(PAGE_BYTES);
        let missing = dense.lead.next_multiple_of(HUGE_BYTES) - dense.lead + 77 * PAGE_BYTES;
        pages().filter(|offset| *offset != missing).for_each(|offset| write(&mapping, &dense, offset));
        let wait_for = |bytes| {
            let deadline = Instant::now() + Duration::from_secs(20);
            while huge_bytes(&mapping) != bytes && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(10));
            }
            assert_eq!(huge_bytes(&mapping), if huge_pages_wanted() { bytes } else { 0 });
        };
        if huge_pages_wanted() {
            wait_for((whole - 1) * HUGE_BYTES);
        }
        write(&mapping, &dense, missing);
        wait_for(whole * HUGE_BYTES);
        for offset in pages() {
            // SAFETY: as above.
            assert_eq!(unsafe { mapping.base().add(offset).cast::<u64>().read() }, offset as u64);
        }
        mapping.release(missing, PAGE_BYTES);
        dense.released(missing..missing + PAGE_BYTES);
        assert!(huge_bytes(&mapping) < whole * HUGE_BYTES || !huge_pages_wanted());
        write(&mapping, &dense, missing);
        wait_for(whole * HUGE_BYTES);
    }

    #[test]
    fn pages_are_counted_once_and_no_longer_when_they_are_released() {
        let (mapping, dense) = mapping(2 * HUGE_BYTES);
        let count = |offset| dense.find(offset).expect("a place").0[WORDS - 1].load(Ordering::Relaxed);
        for offset in [0, 100, 0, 4095, 4096, 4096] {
            dense.written(offset);
        }
        assert_eq!(count(0), 2);
        dense.released(0..mapping.bytes());
        assert_eq!(count(0), 0);
        dense.released(0..PAGE_BYTES);
        dense.written(4096);
        assert_eq!(count(0), 1);
    }

    #[test]
    fn small_memory_is_not_looked_after() {
        let (mapping, dense) = mapping(HUGE_BYTES - PAGE_BYTES);
        dense.written(0);
        dense.released(0..mapping.bytes());
        assert!(dense.places.is_none());
    }
}
