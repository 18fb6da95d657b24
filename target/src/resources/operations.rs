//! Operations of a core's disks, and when they are submitted to the kernel.

use std::collections::VecDeque;

use ringfab_block::{Operation, Tag};

use super::flushes::ControlFlushes;

/// So many commands are looked at while the memory of an operation comes nearer.
pub(crate) const DEFERRED_MAX: usize = 2;

/// An operation of a disk in memory, to be started once the processor has what it touches.
#[derive(Debug)]
pub(crate) struct DeferredOperation {
    /// Position of the disk.
    pub(crate) disk: usize,
    pub(crate) operation: Operation,
    pub(crate) tag: Tag,
}

/// Operations of a core's disks: how many are under way, and how many of them the kernel has not heard of yet.
#[derive(Debug)]
pub(crate) struct DiskOperations {
    outstanding: usize,
    queued: usize,
    /// Operations whose memory is on its way to the processor. None is left at the end of a turn.
    deferred: VecDeque<DeferredOperation>,
    /// Those that are no command's.
    pub(crate) flushes: ControlFlushes,
}

impl Default for DiskOperations {
    fn default() -> Self {
        let deferred = VecDeque::with_capacity(2 * DEFERRED_MAX);
        Self { outstanding: 0, queued: 0, deferred, flushes: ControlFlushes::default() }
    }
}

impl DiskOperations {
    /// Starts an operation a little later.
    #[inline]
    pub(crate) fn defer(&mut self, operation: DeferredOperation) {
        self.deferred.push_back(operation);
    }

    /// How many are to be started later.
    #[inline]
    pub(crate) fn deferred(&self) -> usize {
        self.deferred.len()
    }

    /// The one that was deferred first.
    pub(crate) fn next_deferred(&mut self) -> Option<DeferredOperation> {
        self.deferred.pop_front()
    }

    /// One was queued. Returns whether all that are queued should go to the kernel now, since the disks have little to
    /// do: not more than twice as many. The end of the turn is soon enough for the rest, and cheaper for all of them at
    /// once. So a device that was idle begins with the first command, and has something to do while others are looked
    /// at.
    #[must_use]
    #[inline]
    pub(crate) fn start(&mut self) -> bool {
        self.outstanding += 1;
        self.queued += 1;
        3 * self.queued >= self.outstanding
    }

    /// The kernel has all of them.
    #[inline]
    pub(crate) fn submitted(&mut self) {
        self.queued = 0;
    }

    /// One has ended.
    #[inline]
    pub(crate) fn end(&mut self) {
        self.outstanding -= 1;
    }

    /// Whether there are any.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.outstanding > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_disks_get_the_first_operation_at_once_and_the_others_in_growing_numbers() {
        let mut operations = DiskOperations::default();
        let mut submitted_at = Vec::new();
        for number in 1..=32 {
            if operations.start() {
                operations.submitted();
                submitted_at.push(number);
            }
        }
        assert_eq!(submitted_at, [1, 2, 3, 5, 8, 12, 18, 27]);
        (0..32).for_each(|_| operations.end());
        assert!(!operations.any());
    }

    #[test]
    fn busy_disks_get_what_a_turn_brings_at_its_end() {
        let mut operations = DiskOperations::default();
        for _ in 0..100 {
            let _now = operations.start();
        }
        operations.submitted();
        for _ in 0..30 {
            operations.end();
        }
        assert!((0..30).all(|_| !operations.start()), "30 of 100 were done and came again");
    }
}
