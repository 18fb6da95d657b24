//! Files that were made shorter, by O_TRUNC as `cp`, `dd` and a shell's `>` do, or by ftruncate, as `dd seek=` does.
//!
//! A namespace keeps its size and its content then, as a block device does. But the writer believes that the file ends
//! there, and skips ranges that shall read as zeroes: `cp` leaves out the holes of an image. So a range that such a
//! writer skips is zeroed before its next write. What comes after its last byte stays as it is, as on a block device.
//! That includes a hole at the end, unless the writer sets the size. `cp` does; `dd conv=sparse` does not, because the
//! file is long enough.
//!
//! What anybody has written to the file since then is not zeroed: it is new, and a regular file would have it. So each
//! such open file has the ranges that are old still. Whoever zeroes claims the blocks first, and then looks at what is
//! old there. Whoever writes takes his range out of all of these before anybody else can have claimed his blocks,
//! unless the file was made shorter only after his write had begun.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use fuser::{Errno, INodeNo};

use super::disks::{file_name, nsid_of_inode};

/// Ranges of one open file that are old and lie apart, at most: 16 bytes each, and some for the tree.
const RANGES_MAX: usize = 4096;

/// The open files, by their handles.
#[derive(Debug, Default)]
pub(super) struct Truncated {
    last: AtomicU64,
    files: Mutex<HashMap<u64, Shorter>>,
    /// How many these are, so that writers need no lock where there are none.
    count: AtomicUsize,
}

/// An open file that its writer has made shorter.
#[derive(Debug)]
struct Shorter {
    ino: INodeNo,
    /// Where the content ends, as its writer believes.
    end: u64,
    /// What lies behind that and nobody has written since.
    old: Ranges,
    /// Whether the log has that it was refused something.
    refused: bool,
}

/// Ranges that lie apart, each as its start and its end.
#[derive(Debug, Default)]
struct Ranges {
    parts: BTreeMap<u64, u64>,
    /// They were too many, and are not known any more.
    lost: bool,
}

impl Truncated {
    /// A handle for one more open file. With `anew`, its writer believes that it is empty.
    pub(super) fn open(&self, ino: INodeNo, anew: bool) -> u64 {
        let handle = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        if anew {
            self.cut(ino, handle, 0);
        }
        handle
    }

    /// It was closed.
    pub(super) fn close(&self, handle: u64) {
        let mut files = self.files();
        files.remove(&handle);
        self.count.store(files.len(), Ordering::Release);
    }

    /// Where the content of a handle's file ends, if its writer believes that it is shorter than it is.
    pub(super) fn end(&self, handle: u64) -> Option<u64> {
        self.with(handle, |file| file.end)
    }

    /// A writer makes its file so short.
    pub(super) fn cut(&self, ino: INodeNo, handle: u64, size: u64) {
        let mut files = self.files();
        files.insert(handle, Shorter { ino, end: size, old: Ranges::from(size), refused: false });
        self.count.store(files.len(), Ordering::Release);
    }

    /// A writer that has filled its file up to there believes that it ends there, or behind that.
    pub(super) fn extend(&self, handle: u64, end: u64) {
        self.with(handle, |file| file.end = file.end.max(end));
    }

    /// Whether there is a file that its writer believes to be shorter than it is.
    pub(super) fn is_any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// The next range that a writer would skip if it wrote at `to`.
    ///
    /// # Errors
    /// When others have written in too many places to know what is old.
    pub(super) fn skipped(&self, handle: u64, to: u64) -> Result<Option<Range<u64>>, Errno> {
        self.with(handle, |file| file.skipped(to)).unwrap_or(Ok(None))
    }

    /// What is old in a range. Whoever asks has its blocks claimed, so that it stays so.
    pub(super) fn old_in(&self, handle: u64, range: &Range<u64>) -> Vec<Range<u64>> {
        self.with(handle, |file| file.old.within(range).collect()).unwrap_or_default()
    }

    /// Somebody has written a range of a file, or zeroed it: it is not old any more.
    pub(super) fn renew(&self, ino: INodeNo, range: &Range<u64>) {
        if !self.is_any() {
            return;
        }
        for file in self.files().values_mut().filter(|file| file.ino == ino) {
            file.old.remove(range);
        }
    }

    fn with<R>(&self, handle: u64, look: impl FnOnce(&mut Shorter) -> R) -> Option<R> {
        if !self.is_any() {
            return None;
        }
        self.files().get_mut(&handle).map(look)
    }

    fn files(&self) -> MutexGuard<'_, HashMap<u64, Shorter>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shorter {
    fn skipped(&mut self, to: u64) -> Result<Option<Range<u64>>, Errno> {
        if to <= self.end {
            return Ok(None);
        }
        if self.old.lost {
            if !std::mem::replace(&mut self.refused, true) {
                tracing::warn!(
                    file = file_name(nsid_of_inode(self.ino)?),
                    offset = to,
                    "a write fails: its program has made the file shorter and skips a part of it, and others have \
                     written to more than {RANGES_MAX} places of it since, so nobody knows what has to be zeroed"
                );
            }
            return Err(Errno::EBUSY);
        }
        Ok(self.old.within(&(self.end..to)).next())
    }
}

impl Ranges {
    /// All from a place on.
    fn from(start: u64) -> Self {
        Self { parts: BTreeMap::from([(start, u64::MAX)]), lost: false }
    }

    fn within(&self, range: &Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let (start, end) = (range.start, range.end);
        let before = self.parts.range(..start).next_back();
        let parts = before.into_iter().chain(self.parts.range(start..end));
        parts.map(move |(from, to)| (*from).max(start)..(*to).min(end)).filter(|part| !part.is_empty())
    }

    fn remove(&mut self, range: &Range<u64>) {
        if range.is_empty() || self.lost {
            return;
        }
        let touched = self.parts.range(..range.end).rev().take_while(|(_, end)| **end > range.start);
        let touched: Vec<(u64, u64)> = touched.map(|(start, end)| (*start, *end)).collect();
        for (start, end) in touched {
            self.parts.remove(&start);
            if start < range.start {
                self.parts.insert(start, range.start);
            }
            if range.end < end {
                self.parts.insert(range.end, end);
            }
        }
        if self.parts.len() > RANGES_MAX {
            *self = Self { parts: BTreeMap::new(), lost: true };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const INO: INodeNo = INodeNo(2);

    /// Writes as the files do it, and says what is zeroed before.
    fn write(files: &Truncated, handle: u64, range: Range<u64>) -> Vec<Range<u64>> {
        let mut zeroed = Vec::new();
        while let Some(gap) = files.skipped(handle, range.start).expect("it is known") {
            zeroed.extend(files.old_in(handle, &gap));
            files.renew(INO, &gap);
        }
        files.renew(INO, &range);
        files.extend(handle, range.end);
        zeroed
    }

    #[test]
    fn what_a_writer_skips_is_zeroed_once_and_nothing_behind_it() {
        let files = Truncated::default();
        let handle = files.open(INO, true);
        let zeroed: Vec<Range<u64>> = [0..10, 20..30, 5..8, 30..40, 100..101]
            .into_iter()
            .flat_map(|range| write(&files, handle, range))
            .collect();
        assert_eq!(zeroed, [10..20, 40..100]);
        let gap = Some(101..200);
        assert_eq!(files.skipped(handle, 200).ok(), Some(gap.clone()));
        assert_eq!(files.skipped(handle, 200).ok(), Some(gap), "a failure leaves it to be done");
        files.close(handle);
        assert_eq!(write(&files, handle, 900..901), []);
        assert_eq!(write(&files, files.open(INO, false), 900..901), []);
    }

    #[test]
    fn what_others_have_written_since_is_not_zeroed() {
        let files = Truncated::default();
        let (handle, other) = (files.open(INO, true), files.open(INO, false));
        for range in [100..200, 300..400, 150..320, 0..1] {
            assert_eq!(write(&files, other, range), [], "who has not made it shorter skips nothing");
        }
        files.renew(INodeNo(3), &(0..1000));
        assert_eq!(write(&files, handle, 500..600), [1..100, 400..500]);
        // Made shorter once more, it is as at the beginning.
        files.cut(INO, handle, 50);
        assert_eq!(files.end(handle), Some(50));
        assert_eq!(write(&files, handle, 250..260), vec![50..250; 1]);
        assert_eq!(files.end(other), None);
    }

    #[test]
    fn who_skips_what_nobody_knows_any_more_gets_an_error_and_can_begin_anew() {
        let files = Truncated::default();
        let handle = files.open(INO, true);
        for place in 0..RANGES_MAX as u64 {
            assert!(files.skipped(handle, 1 << 40).is_ok(), "{place}");
            files.renew(INO, &(place * 10 + 5..place * 10 + 6));
        }
        assert_eq!(files.skipped(handle, 1 << 40).err().map(Errno::code), Some(Errno::EBUSY.code()));
        assert_eq!(write(&files, handle, 0..10), [], "who skips nothing goes on");
        assert!(files.skipped(handle, 11).is_err());
        files.cut(INO, handle, 0);
        assert_eq!(write(&files, handle, 20..30), vec![0..20; 1]);
    }

    proptest! {
        #[test]
        fn what_is_old_is_what_nobody_has_taken(
            taken in prop::collection::vec((0_u64..100, 0_u64..30), 0..20), start in 0_u64..100, length in 0_u64..100,
        ) {
            let mut ranges = Ranges::from(20);
            for (at, bytes) in &taken {
                ranges.remove(&(*at..at + bytes));
            }
            let asked = start..start + length;
            let is_old = |byte: &u64| *byte >= 20 && !taken.iter().any(|(at, bytes)| (*at..at + bytes).contains(byte));
            let expected: Vec<u64> = asked.clone().filter(is_old).collect();
            prop_assert_eq!(ranges.within(&asked).flatten().collect::<Vec<_>>(), expected);
        }
    }
}
