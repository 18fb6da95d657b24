//! Files that were made shorter, by O_TRUNC as `cp`, `dd` and a shell's `>` do, or by ftruncate, as `dd seek=` does.
//!
//! A namespace keeps its size and its content then, as a block device does. But the writer believes that the file ends
//! there, and skips ranges that shall read as zeroes: `cp` leaves out the holes of an image. So a range that such a
//! writer skips is zeroed before its next write. What comes after its last byte stays as it is, as on a block device.
//! That includes a hole at the end, unless the writer sets the size. `cp` does; `dd conv=sparse` does not, because the
//! file is long enough.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fuser::Errno;

/// The open files, by their handles.
#[derive(Debug, Default)]
pub(super) struct Truncated {
    last: AtomicU64,
    /// Where each one's content ends, as its writer believes.
    ends: Mutex<HashMap<u64, Arc<Mutex<u64>>>>,
    /// How many these are, so that writers need no lock where there are none.
    count: AtomicUsize,
}

impl Truncated {
    /// A handle for one more open file. With `anew`, its writer believes that it is empty.
    pub(super) fn open(&self, anew: bool) -> u64 {
        let handle = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        if anew {
            self.insert(handle, 0);
        }
        handle
    }

    /// It was closed.
    pub(super) fn close(&self, handle: u64) {
        let mut ends = locked(&self.ends);
        ends.remove(&handle);
        self.count.store(ends.len(), Ordering::Release);
    }

    /// Whether a handle is one of these.
    pub(super) fn contains(&self, handle: u64) -> bool {
        self.end_of(handle).is_some()
    }

    /// A writer sets the size of its file, of which `whole` bytes are there. What it adds is zeroed.
    ///
    /// # Errors
    /// Those of `zero`; what was added is still to be zeroed then.
    pub(super) fn resize(
        &self,
        handle: u64,
        size: u64,
        whole: u64,
        zero: impl FnOnce(Range<u64>) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        match self.end_of(handle) {
            Some(end) => {
                let mut end = locked(&end);
                if *end < size {
                    zero(*end..size)?;
                }
                *end = size;
            }
            None if size < whole => self.insert(handle, size),
            None => {}
        }
        Ok(())
    }

    /// Before a writer fills `range`: zeroes what it has skipped. Other writers of the same open file wait for that, so
    /// that nothing they write is zeroed.
    ///
    /// # Errors
    /// Those of `zero`; what was skipped is still to be zeroed then.
    pub(super) fn fill(
        &self,
        handle: u64,
        range: Range<u64>,
        zero: impl FnOnce(Range<u64>) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let Some(end) = self.end_of(handle) else { return Ok(()) };
        let mut end = locked(&end);
        if *end < range.start {
            zero(*end..range.start)?;
        }
        *end = range.end.max(*end);
        Ok(())
    }

    fn insert(&self, handle: u64, end: u64) {
        let mut ends = locked(&self.ends);
        ends.insert(handle, Arc::new(Mutex::new(end)));
        self.count.store(ends.len(), Ordering::Release);
    }

    fn end_of(&self, handle: u64) -> Option<Arc<Mutex<u64>>> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        locked(&self.ends).get(&handle).cloned()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_writer_skips_is_zeroed_once_and_nothing_behind_it() {
        let files = Truncated::default();
        let handle = files.open(true);
        let mut zeroed = Vec::new();
        for range in [0..10, 20..30, 5..8, 30..40, 100..101] {
            let done = files.fill(handle, range, |gap| {
                zeroed.push(gap);
                Ok(())
            });
            assert!(done.is_ok());
        }
        assert_eq!(zeroed, [10..20, 40..100]);
        assert!(files.fill(handle, 200..300, |_| Err(Errno::EIO)).is_err());
        let mut again = None;
        assert!(
            files
                .fill(handle, 200..300, |gap| {
                    again = Some(gap);
                    Ok(())
                })
                .is_ok()
        );
        assert_eq!(again, Some(101..200), "a failure leaves it to be done");
        files.close(handle);
        let never = |_| -> Result<(), Errno> { panic!("nothing is zeroed") };
        assert!(
            files.fill(handle, 900..901, never).is_ok()
                && files.fill(files.open(false), 900..901, never).is_ok()
        );
    }

    #[test]
    fn who_makes_a_file_shorter_and_longer_again_gets_zeroes_there() {
        let files = Truncated::default();
        let handle = files.open(false);
        let mut zeroed = Vec::new();
        // It is as long as it says, shorter, longer than that, and shorter again.
        for size in [1000, 300, 500, 200, 1000] {
            let done = files.resize(handle, size, 1000, |gap| {
                zeroed.push(gap);
                Ok(())
            });
            assert!(done.is_ok());
        }
        assert_eq!(zeroed, [300..500, 200..1000]);
        let other = files.open(false);
        assert!(files.contains(handle) && !files.contains(other));
        files.close(handle);
        assert!(!files.contains(handle));
    }
}
