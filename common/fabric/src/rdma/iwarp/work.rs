//! What the engine does not know of the outstanding work requests: their memory and the poster's names.

use ringfab_memory::Lease;

/// The outstanding work requests of a queue pair, in the order of posting, which is also that of completion.
#[derive(Debug)]
pub(super) struct WorkTable {
    entries: Box<[Option<Entry>]>,
    posted: u64,
    completed: u64,
}

/// One of them.
#[derive(Debug)]
pub(super) struct Entry {
    /// The poster's name.
    pub(super) id: u64,
    pub(super) signaled: bool,
    pub(super) lease: Option<Lease>,
}

impl WorkTable {
    pub(super) fn new(depth: u32) -> Self {
        Self { entries: (0..depth.max(1)).map(|_| None).collect(), posted: 0, completed: 0 }
    }

    pub(super) fn is_full(&self) -> bool {
        self.posted - self.completed >= self.entries.len() as u64
    }

    pub(super) fn is_empty(&self) -> bool {
        self.posted == self.completed
    }

    /// The slot that the next [`WorkTable::push`] takes.
    #[inline]
    pub(super) fn slot_next(&self) -> u32 {
        self.slot(self.posted)
    }

    #[inline]
    pub(super) fn push(&mut self, entry: Entry) {
        let slot = self.slot_next();
        let before = self.entries[slot as usize].replace(entry);
        assert!(before.is_none(), "the engine admits no more work requests than there are slots");
        self.posted += 1;
    }

    /// Takes the oldest one.
    #[inline]
    pub(super) fn pop(&mut self) -> Entry {
        let slot = self.slot(self.completed);
        self.completed += 1;
        self.entries[slot as usize].take().expect("work completes in the order of posting")
    }

    #[inline]
    pub(super) fn lease(&self, slot: u32) -> Option<&Lease> {
        self.entries.get(slot as usize)?.as_ref()?.lease.as_ref()
    }

    fn slot(&self, sequence: u64) -> u32 {
        (sequence % self.entries.len() as u64) as u32
    }
}
