//! What the engine does not know of the outstanding work requests: their memory and the poster's names.

use ringfab_memory::SharedBuffer;

/// The outstanding work requests of a queue pair, in the order of posting, which is also that of completion.
#[derive(Debug)]
pub(super) struct WorkTable {
    /// A ring. Entries are filled in where they lie: one that was built elsewhere would have to be moved here.
    entries: Box<[Entry]>,
    /// The slot that is filled next, and that of the oldest one.
    next: u32,
    oldest: u32,
    outstanding: u32,
}

/// One of them, or several that complete together.
#[derive(Debug, Default)]
pub(super) struct Entry {
    /// The poster's name, of several that of the last one that is signaled.
    pub(super) id: u64,
    pub(super) signaled: bool,
    pub(super) count: u32,
    pub(super) shared_buffer: Option<SharedBuffer>,
}

impl WorkTable {
    pub(super) fn new(depth: u32) -> Self {
        let entries = (0..depth.max(1)).map(|_| Entry::default()).collect();
        Self { entries, next: 0, oldest: 0, outstanding: 0 }
    }

    pub(super) fn is_full(&self) -> bool {
        self.outstanding as usize >= self.entries.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.outstanding == 0
    }

    /// The slot that the next [`WorkTable::push`] takes.
    #[inline]
    pub(super) fn slot_next(&self) -> u32 {
        self.next
    }

    /// Takes one in, and gives the place of its memory, where there is none yet.
    #[inline]
    pub(super) fn push(&mut self, id: u64, signaled: bool) -> &mut Option<SharedBuffer> {
        assert!(!self.is_full(), "the engine admits no more work requests than there are slots");
        let slot = self.next as usize;
        self.next = self.after(self.next);
        self.outstanding += 1;
        let entry = &mut self.entries[slot];
        (entry.id, entry.signaled, entry.count) = (id, signaled, 1);
        &mut entry.shared_buffer
    }

    /// Takes one in that has no memory here and, if it has `joined` the last one, completes together with it.
    #[inline]
    pub(super) fn add(&mut self, id: u64, signaled: bool, joined: bool) {
        if joined {
            self.join(id, signaled);
        } else {
            self.push(id, signaled);
        }
    }

    #[inline]
    fn join(&mut self, id: u64, signaled: bool) {
        assert!(!self.is_full() && !self.is_empty(), "there is room, and one that it can join");
        let last = if self.next == 0 { self.entries.len() - 1 } else { self.next as usize - 1 };
        let entry = &mut self.entries[last];
        if signaled {
            (entry.id, entry.signaled) = (id, true);
        }
        entry.count += 1;
        self.outstanding += 1;
    }

    /// Takes the oldest one.
    #[inline]
    pub(super) fn pop(&mut self) -> Entry {
        assert!(self.outstanding > 0, "work completes in the order of posting");
        let entry = &mut self.entries[self.oldest as usize];
        let Entry { id, signaled, count, .. } = *entry;
        let taken = Entry { id, signaled, count, shared_buffer: entry.shared_buffer.take() };
        self.oldest = self.after(self.oldest);
        self.outstanding -= count;
        taken
    }

    /// The memory of the one in a slot.
    #[inline]
    pub(super) fn shared_buffer(&self, slot: u32) -> Option<&SharedBuffer> {
        self.entries.get(slot as usize)?.shared_buffer.as_ref()
    }

    fn after(&self, slot: u32) -> u32 {
        if slot as usize + 1 == self.entries.len() { 0 } else { slot + 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_leaves_in_the_order_of_posting_however_often_the_ring_goes_round() {
        let mut work = WorkTable::new(3);
        work.push(0, false);
        for id in 1..10 {
            let slot = work.slot_next();
            work.push(id, false);
            work.push(id + 100, false);
            assert!(work.is_full() && slot < 3);
            let left: Vec<u64> = (0..2).map(|_| work.pop().id).collect();
            assert_eq!(left, if id == 1 { [0, 1] } else { [id + 99, id] });
        }
        assert_eq!(work.pop().id, 109);
        assert!(work.is_empty());
    }

    #[test]
    fn those_that_complete_together_leave_together_and_fill_it_one_by_one() {
        let mut work = WorkTable::new(4);
        for round in 0..5 {
            work.push(round, true);
            work.push(round + 10, false);
            work.join(round + 20, true);
            work.join(round + 30, false);
            assert!(work.is_full());
            let [first, others] = [work.pop(), work.pop()];
            assert_eq!((first.id, first.signaled, first.count), (round, true, 1));
            assert_eq!((others.id, others.signaled, others.count), (round + 20, true, 3));
            assert!(work.is_empty());
        }
    }
}
