//! What the engine does not know of the outstanding work requests: their memory and the poster's names.

use ringfab_memory::Lease;

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

/// One of them.
#[derive(Debug, Default)]
pub(super) struct Entry {
    /// The poster's name.
    pub(super) id: u64,
    pub(super) signaled: bool,
    pub(super) lease: Option<Lease>,
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
    pub(super) fn push(&mut self, id: u64, signaled: bool) -> &mut Option<Lease> {
        assert!(!self.is_full(), "the engine admits no more work requests than there are slots");
        let slot = self.next as usize;
        self.next = self.after(self.next);
        self.outstanding += 1;
        let entry = &mut self.entries[slot];
        (entry.id, entry.signaled) = (id, signaled);
        &mut entry.lease
    }

    /// Takes the oldest one.
    #[inline]
    pub(super) fn pop(&mut self) -> Entry {
        assert!(self.outstanding > 0, "work completes in the order of posting");
        let entry = &mut self.entries[self.oldest as usize];
        let taken = Entry { id: entry.id, signaled: entry.signaled, lease: entry.lease.take() };
        self.oldest = self.after(self.oldest);
        self.outstanding -= 1;
        taken
    }

    /// The memory of the one in a slot.
    #[inline]
    pub(super) fn lease(&self, slot: u32) -> Option<&Lease> {
        self.entries.get(slot as usize)?.lease.as_ref()
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
}
