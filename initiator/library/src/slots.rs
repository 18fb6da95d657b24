//! The fixed table of a queue's outstanding commands.
//!
//! A command identifier is a slot and a sequence number: the low bits index the table, the high bits change with
//! every use of the slot. So an answer that comes twice, or after its command was taken back, is recognised without
//! a search, and an identifier from the peer becomes a slot only through [`SlotTable::take`].

/// Values with identifiers of 16 bits. Nothing is allocated after construction.
#[derive(Debug)]
pub(crate) struct SlotTable<T> {
    entries: Box<[Entry<T>]>,
    /// Free slots; the one that came free last is taken next, since it is most likely still in the cache.
    free: Vec<u16>,
    slot_bits: u32,
}

#[derive(Debug)]
struct Entry<T> {
    sequence: u16,
    value: Option<T>,
}

impl<T> SlotTable<T> {
    /// The most slots, so that there are sequence numbers left.
    pub(crate) const SLOTS_MAX: usize = 4096;
    /// Never an identifier: log pages use it for "no command" (Base 2.0, section 5.16.1.2).
    const NEVER: u16 = 0xffff;

    /// A table of `slots`, one to [`SlotTable::SLOTS_MAX`].
    pub(crate) fn new(slots: usize) -> Self {
        assert!((1..=Self::SLOTS_MAX).contains(&slots), "a table of {slots} slots");
        let entries = (0..slots).map(|_| Entry { sequence: 0, value: None }).collect();
        let slot_bits = usize::BITS - (slots - 1).leading_zeros();
        Self { entries, free: (0..slots as u16).rev().collect(), slot_bits }
    }

    /// Values in the table.
    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Whether there is no free slot.
    pub(crate) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Puts a value into a free slot and returns its identifier.
    ///
    /// # Errors
    /// Gives the value back when there is none.
    pub(crate) fn insert(&mut self, value: T) -> Result<u16, T> {
        let Some(slot) = self.free.pop().map(usize::from) else { return Err(value) };
        let entry = &mut self.entries[slot];
        entry.value = Some(value);
        if Self::join(slot, entry.sequence, self.slot_bits) == Self::NEVER {
            entry.sequence = 0;
        }
        Ok(Self::join(slot, entry.sequence, self.slot_bits))
    }

    /// The value of an identifier that is outstanding.
    pub(crate) fn get_mut(&mut self, id: u16) -> Option<&mut T> {
        let slot = self.slot(id)?;
        self.entries[slot].value.as_mut()
    }

    /// Takes a value out. `None` for an identifier that is not outstanding: never used, late, or answered twice.
    pub(crate) fn take(&mut self, id: u16) -> Option<T> {
        let slot = self.slot(id)?;
        let entry = &mut self.entries[slot];
        let value = entry.value.take()?;
        entry.sequence = entry.sequence.wrapping_add(1) & (u16::MAX >> self.slot_bits);
        self.free.push(slot as u16);
        Some(value)
    }

    /// All outstanding values.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().filter_map(|entry| entry.value.as_ref())
    }

    /// All outstanding identifiers with their values.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u16, &mut T)> {
        let bits = self.slot_bits;
        self.entries.iter_mut().enumerate().filter_map(move |(slot, entry)| {
            let id = Self::join(slot, entry.sequence, bits);
            entry.value.as_mut().map(|value| (id, value))
        })
    }

    /// Takes the outstanding value of the lowest slot.
    pub(crate) fn pop(&mut self) -> Option<T> {
        let (id, _) = self.iter_mut().next()?;
        self.take(id)
    }

    fn slot(&self, id: u16) -> Option<usize> {
        let slot = usize::from(id) & ((1 << self.slot_bits) - 1);
        let entry = self.entries.get(slot)?;
        let outstanding = entry.value.is_some() && Self::join(slot, entry.sequence, self.slot_bits) == id;
        outstanding.then_some(slot)
    }

    fn join(slot: usize, sequence: u16, slot_bits: u32) -> u16 {
        (u32::from(sequence) << slot_bits) as u16 | slot as u16
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_second_answer_and_a_late_one_find_nothing() {
        let mut table = SlotTable::new(4);
        let first = table.insert('a').expect("a free slot");
        assert_eq!(table.take(first), Some('a'));
        assert_eq!(table.take(first), None);
        let second = table.insert('b').expect("a free slot");
        assert_ne!(first, second, "the slot is the same, the sequence is not");
        assert_eq!(table.take(first), None);
        assert_eq!(table.take(second), Some('b'));
    }

    #[test]
    fn a_full_table_gives_the_value_back_and_takes_one_more_after_a_take() {
        let mut table = SlotTable::new(3);
        let ids: Vec<u16> = (0..3).map(|value| table.insert(value).expect("a free slot")).collect();
        assert!(table.is_full());
        assert_eq!(table.insert(9), Err(9));
        assert_eq!(table.take(ids[1]), Some(1));
        assert!(table.insert(9).is_ok());
    }

    #[test]
    fn no_identifier_is_ever_the_one_that_log_pages_reserve() {
        for slots in [1, 2, 1024, 4096] {
            let mut table = SlotTable::new(slots);
            for round in 0..70_000 / slots.min(64) {
                let ids: Vec<u16> = (0..slots).map(|_| table.insert(()).expect("a free slot")).collect();
                assert!(!ids.contains(&0xffff), "round {round}");
                assert!(ids.iter().all(|id| table.take(*id).is_some()));
                if slots > 64 && round > 70 {
                    break;
                }
            }
        }
    }

    proptest! {
        #[test]
        fn any_identifier_from_a_peer_is_outstanding_or_nothing(slots in 1_usize..200, ids: Vec<u16>) {
            let mut table = SlotTable::new(slots);
            let known: Vec<u16> = (0..slots).map(|slot| table.insert(slot).expect("free")).collect();
            for id in ids {
                let outstanding = known.contains(&id) && table.get_mut(id).is_some();
                prop_assert_eq!(table.take(id).is_some(), outstanding);
            }
            prop_assert_eq!(table.iter_mut().count(), table.len());
        }
    }
}
