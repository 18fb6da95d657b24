//! Files that were opened with O_TRUNC, as `cp`, `dd` and a shell's `>` do.
//!
//! A namespace keeps its size and its content when it is opened. But the writer believes that the file is empty, and
//! skips ranges that shall read as zeroes: `cp` leaves out the holes of an image. So a range that such a writer skips
//! is zeroed before its next write. What comes after its last byte stays as it is, as on a block device. That includes
//! a hole at the end, unless the writer sets the size. `cp` does; `dd conv=sparse` does not, because the file is long
//! enough.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fuser::Errno;

/// The handle of a file that was opened without O_TRUNC, of which there is nothing to know.
pub(super) const PLAIN: u64 = 0;

/// The open files, by their handles.
#[derive(Debug, Default)]
pub(super) struct Truncated {
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    last: u64,
    /// Where each one's content ends, as its writer believes.
    ends: HashMap<u64, Arc<Mutex<u64>>>,
}

impl Truncated {
    /// A handle for one more.
    pub(super) fn open(&self) -> u64 {
        let mut open = locked(&self.open);
        open.last += 1;
        let handle = open.last;
        open.ends.insert(handle, Arc::default());
        handle
    }

    /// It was closed.
    pub(super) fn close(&self, handle: u64) {
        locked(&self.open).ends.remove(&handle);
    }

    /// Whether a handle is one of these.
    pub(super) fn contains(&self, handle: Option<u64>) -> bool {
        handle.is_some_and(|handle| locked(&self.open).ends.contains_key(&handle))
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
        if handle == PLAIN {
            return Ok(());
        }
        let Some(end) = locked(&self.open).ends.get(&handle).cloned() else { return Ok(()) };
        let mut end = locked(&end);
        if *end < range.start {
            zero(*end..range.start)?;
        }
        *end = range.end.max(*end);
        Ok(())
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
        let handle = files.open();
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
        assert!(files.fill(handle, 900..901, never).is_ok() && files.fill(PLAIN, 900..901, never).is_ok());
    }
}
