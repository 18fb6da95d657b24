//! Connections and listeners by handle, in tables with a maximum size.

use ringfab_base::Slots;

pub(crate) use ringfab_base::SlotId as Key;

/// A table of at most `count_max` things.
#[derive(Debug)]
pub(crate) struct Table<T> {
    slots: Slots<T>,
    count_max: u32,
}

impl<T> Table<T> {
    pub(crate) fn new(count_max: u32) -> Self {
        Self { slots: Slots::new(), count_max }
    }

    /// How many things there are.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether nothing more fits. Slots that have retired count.
    pub(crate) fn is_full(&self) -> bool {
        self.slots.is_full(self.count_max)
    }

    /// Puts in what `make` makes of its key; `None` when the table is full.
    pub(crate) fn insert_with(&mut self, make: impl FnOnce(Key) -> T) -> Option<Key> {
        (!self.is_full()).then(|| self.slots.insert_with(make))
    }

    #[inline]
    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        self.slots.get(key)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        self.slots.get_mut(key)
    }

    /// The whole key of a token's part of it, if its thing is still there.
    #[inline]
    pub(crate) fn key_of(&self, index: u32, generation_low: u16) -> Option<Key> {
        self.slots.find(index, generation_low).map(|(key, _)| key)
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        self.slots.remove(key)
    }

    /// Takes a thing out whose owner has events to come. Whoever takes them may index by the slot, so no other thing
    /// gets it before [`Table::reuse`].
    pub(crate) fn retire(&mut self, key: Key) -> Option<T> {
        self.slots.retire(key)
    }

    /// All events were taken: slots of things that have retired can be used again.
    #[inline]
    pub(crate) fn reuse(&mut self) {
        self.slots.reuse();
    }

    /// All things.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.values()
    }

    /// All things, to be changed.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.values_mut()
    }

    /// The keys of all things.
    pub(crate) fn keys(&self) -> Vec<Key> {
        self.keys_where(|_| true)
    }

    /// The keys of all things of a kind.
    pub(crate) fn keys_where(&self, kind: impl Fn(&T) -> bool) -> Vec<Key> {
        self.slots.iter().filter(|(_, thing)| kind(thing)).map(|(key, _)| key).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Table;

    #[test]
    fn a_table_is_full_with_the_slots_of_which_something_is_still_to_be_told() {
        let mut table = Table::new(2);
        let first = table.insert_with(|_| 'a').expect("room");
        let second = table.insert_with(|_| 'b').expect("room");
        assert!(table.insert_with(|_| 'c').is_none());
        assert_eq!(table.retire(first), Some('a'));
        assert!(table.is_full() && table.insert_with(|_| 'c').is_none());
        table.reuse();
        let third = table.insert_with(|_| 'c').expect("the free slot");
        assert_eq!((third.index, table.keys()), (first.index, vec![third, second]));
        assert_eq!(table.key_of(first.index, first.generation_low()), None);
    }
}
