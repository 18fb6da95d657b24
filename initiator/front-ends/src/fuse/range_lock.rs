//! One writer at a time for each block.
//!
//! A write that does not begin and end at block boundaries reads whole blocks, changes them and writes them. Another
//! write of the same block in between would be lost, so writes of the same block wait for each other. They have their
//! turn in the order in which they come: who wants many blocks does not wait for ever for those who want few.

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The ranges that are being written, and those that somebody waits for.
#[derive(Debug, Default)]
pub(crate) struct RangeLock {
    queue: Mutex<Queue>,
    freed: Condvar,
}

/// In the order in which they came.
#[derive(Debug, Default)]
struct Queue {
    last: u64,
    places: Vec<Place>,
}

#[derive(Debug)]
struct Place {
    number: u64,
    nsid: u32,
    range: Range<u64>,
}

/// A range that is being written; dropping it lets others in.
pub(crate) struct RangeGuard {
    lock: Arc<RangeLock>,
    number: u64,
    range: Range<u64>,
}

impl RangeLock {
    /// Waits until nobody who came before has a byte of `range` of that namespace, and keeps others out. The wait is as
    /// long as the I/O of those.
    pub(crate) fn lock(self: &Arc<Self>, nsid: u32, range: Range<u64>) -> RangeGuard {
        let mut queue = self.queue();
        let guard = self.take(&mut queue, nsid, range.clone());
        while queue.is_taken(nsid, &range, guard.number) {
            queue = self.freed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        drop(queue);
        guard
    }

    /// The same without waiting: `None` when another writer has a byte of it, or waits for one.
    pub(crate) fn try_lock(self: &Arc<Self>, nsid: u32, range: Range<u64>) -> Option<RangeGuard> {
        let mut queue = self.queue();
        (!queue.is_taken(nsid, &range, u64::MAX)).then(|| self.take(&mut queue, nsid, range))
    }

    fn take(self: &Arc<Self>, queue: &mut Queue, nsid: u32, range: Range<u64>) -> RangeGuard {
        queue.last += 1;
        let number = queue.last;
        queue.places.push(Place { number, nsid, range: range.clone() });
        RangeGuard { lock: Arc::clone(self), number, range }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// Whether somebody who came before this number has a byte of a range, or waits for one.
    fn is_taken(&self, nsid: u32, range: &Range<u64>, number: u64) -> bool {
        let before = self.places.iter().take_while(|place| place.number < number);
        before.into_iter().any(|place| place.nsid == nsid && overlap(&place.range, range))
    }
}

impl RangeGuard {
    /// What it keeps others out of.
    pub(crate) fn range(&self) -> &Range<u64> {
        &self.range
    }
}

impl Drop for RangeGuard {
    fn drop(&mut self) {
        self.lock.queue().places.retain(|place| place.number != self.number);
        self.lock.freed.notify_all();
    }
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

/// The blocks that a range of bytes touches, in bytes.
pub(crate) fn touched(offset: u64, length: u64, block_bytes: u64) -> Range<u64> {
    let end = offset + length;
    offset / block_bytes * block_bytes..end.div_ceil(block_bytes) * block_bytes
}

/// A range of bytes cut at blocks: a start that is only part of a block, whole blocks, and an end that is only part of
/// one. The parts may be empty.
pub(crate) fn cut(offset: u64, length: u64, block_bytes: u64) -> [Range<u64>; 3] {
    let end = offset + length;
    let body_start = offset.div_ceil(block_bytes) * block_bytes;
    let body_end = end / block_bytes * block_bytes;
    if body_start >= body_end {
        let middle = body_start.min(end);
        return [offset..middle, middle..middle, middle..end];
    }
    [offset..body_start, body_start..body_end, body_end..end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn writers_of_a_common_block_exclude_each_other() {
        let lock = Arc::new(RangeLock::default());
        // Each writer does what is wrong without the lock: it reads, waits and writes.
        let blocks: Vec<AtomicU64> = (0..4).map(|_| AtomicU64::new(0)).collect();
        std::thread::scope(|scope| {
            for writer in 0..8_u64 {
                let (lock, blocks) = (&lock, &blocks);
                scope.spawn(move || {
                    for round in 0..500_u64 {
                        let first = (writer + round) % 3;
                        let _guard = lock.lock(1, first * 512..(first + 2) * 512);
                        for block in [first, first + 1] {
                            let value = blocks[block as usize].load(Ordering::Relaxed);
                            std::thread::yield_now();
                            blocks[block as usize].store(value + 1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        let sum: u64 = blocks.iter().map(|block| block.load(Ordering::Relaxed)).sum();
        assert_eq!(sum, 8 * 500 * 2);
        assert!(lock.queue().places.is_empty());
    }

    #[test]
    fn other_ranges_and_other_namespaces_do_not_wait() {
        let lock = Arc::new(RangeLock::default());
        let _one = lock.lock(1, 0..512);
        let _next = lock.lock(1, 512..1024);
        let _other = lock.lock(2, 0..512);
    }

    #[test]
    fn who_does_not_wait_gets_what_is_free_and_nothing_else() {
        let lock = Arc::new(RangeLock::default());
        let held = lock.try_lock(1, 512..1024);
        assert!(held.is_some() && lock.try_lock(1, 0..513).is_none());
        assert!(lock.try_lock(1, 0..512).is_some());
        drop(held);
        assert!(lock.try_lock(1, 0..513).is_some());
    }

    #[test]
    fn who_wants_many_blocks_has_them_before_those_who_come_later() {
        let lock = Arc::new(RangeLock::default());
        let first = lock.lock(1, 0..512);
        std::thread::scope(|scope| {
            let many = scope.spawn(|| lock.lock(1, 0..1 << 30));
            while lock.queue().places.len() < 2 {
                std::thread::yield_now();
            }
            assert!(lock.try_lock(1, 4096..4608).is_none(), "somebody waits for it");
            assert!(lock.try_lock(2, 4096..4608).is_some());
            drop(first);
            let many = many.join().expect("it has its turn");
            assert_eq!(*many.range(), 0..1 << 30);
        });
        assert!(lock.try_lock(1, 4096..4608).is_some());
    }

    proptest! {
        #[test]
        fn the_parts_of_a_cut_make_up_the_range_and_only_the_middle_has_whole_blocks(
            offset in 0_u64..10_000, length in 0_u64..10_000,
        ) {
            let [head, body, tail] = cut(offset, length, 512);
            let ends = (head.start, head.end, body.end, tail.end);
            prop_assert_eq!(ends, (offset, body.start, tail.start, offset + length));
            prop_assert!(head.end >= head.start && body.end >= body.start && tail.end >= tail.start);
            prop_assert!(body.is_empty() || (body.start % 512 == 0 && body.end % 512 == 0));
            prop_assert!(head.end - head.start < 512 && tail.end - tail.start < 512);
            let blocks = touched(offset, length, 512);
            prop_assert!(blocks.start <= offset && blocks.end >= offset + length);
            prop_assert!(blocks.start + 512 > offset && blocks.end < offset + length + 512);
        }
    }
}
