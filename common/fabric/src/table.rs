//! Slots with generations.

/// A table of at most `count_max` things. A slot's generation changes when its thing leaves, so that a late
/// completion or an old handle is recognised.
#[derive(Debug)]
pub(crate) struct Table<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    /// Slots without a thing, of which something is still to be told.
    retired: Vec<u32>,
    count_max: u32,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    thing: Option<T>,
}

/// A slot and its generation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Key {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl Key {
    /// The part of the generation that fits a token.
    pub(crate) fn generation_low(self) -> u16 {
        self.generation as u16
    }
}

impl<T> Table<T> {
    pub(crate) fn new(count_max: u32) -> Self {
        Self { slots: Vec::new(), free: Vec::new(), retired: Vec::new(), count_max }
    }

    /// How many things there are.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len() - self.retired.len()
    }

    /// Whether nothing more fits.
    pub(crate) fn is_full(&self) -> bool {
        self.slots.len() - self.free.len() >= self.count_max as usize
    }

    /// Puts in what `make` makes of its key; `None` when the table is full.
    pub(crate) fn insert_with(&mut self, make: impl FnOnce(Key) -> T) -> Option<Key> {
        if self.is_full() {
            return None;
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 1, thing: None });
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[index as usize];
        let key = Key { index, generation: slot.generation };
        slot.thing = Some(make(key));
        Some(key)
    }

    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        let slot = self.slots.get(key.index as usize)?;
        slot.thing.as_ref().filter(|_| slot.generation == key.generation)
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let slot = self.slots.get_mut(key.index as usize)?;
        slot.thing.as_mut().filter(|_| slot.generation == key.generation)
    }

    /// The whole key of a token's part of it, if its thing is still there.
    pub(crate) fn key_of(&self, index: u32, generation_low: u16) -> Option<Key> {
        let slot = self.slots.get(index as usize)?;
        let key = Key { index, generation: slot.generation };
        (slot.thing.is_some() && key.generation_low() == generation_low).then_some(key)
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let thing = self.take(key)?;
        self.free.push(key.index);
        Some(thing)
    }

    /// Takes a thing out whose owner has events to come. Whoever takes them may index by the slot, so that no other thing gets
    /// it before [`Table::reuse`].
    pub(crate) fn retire(&mut self, key: Key) -> Option<T> {
        let thing = self.take(key)?;
        self.retired.push(key.index);
        Some(thing)
    }

    /// All events were taken: slots of things that have retired can be used again.
    #[inline]
    pub(crate) fn reuse(&mut self) {
        self.free.append(&mut self.retired);
    }

    fn take(&mut self, key: Key) -> Option<T> {
        self.get(key)?;
        let slot = &mut self.slots[key.index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        slot.thing.take()
    }

    /// All things.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|slot| slot.thing.as_ref())
    }

    /// All things, to be changed.
    #[cfg(feature = "verbs")]
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().filter_map(|slot| slot.thing.as_mut())
    }

    /// The keys of all things.
    pub(crate) fn keys(&self) -> Vec<Key> {
        self.keys_where(|_| true)
    }

    /// The keys of all things of a kind.
    pub(crate) fn keys_where(&self, kind: impl Fn(&T) -> bool) -> Vec<Key> {
        let slots = self.slots.iter().enumerate();
        let slots = slots.filter(|(_, slot)| slot.thing.as_ref().is_some_and(&kind));
        slots.map(|(index, slot)| Key { index: index as u32, generation: slot.generation }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Table;

    #[test]
    fn a_key_dies_with_its_thing_though_the_slot_is_used_again() {
        let mut table = Table::new(2);
        let first = table.insert_with(|_| 'a').expect("room");
        let second = table.insert_with(|_| 'b').expect("room");
        assert!(table.insert_with(|_| 'c').is_none());
        assert_eq!(table.remove(first), Some('a'));
        let third = table.insert_with(|_| 'c').expect("the free slot");
        assert_eq!(third.index, first.index);
        assert_eq!((table.get(first), table.get(second), table.get(third)), (None, Some(&'b'), Some(&'c')));
        assert_eq!(table.remove(first), None);
        assert_eq!(table.key_of(third.index, third.generation_low()), Some(third));
        assert_eq!(table.key_of(first.index, first.generation_low()), None);
    }

    #[test]
    fn a_slot_of_which_something_is_to_be_told_is_not_used_again_before_it_was() {
        let mut table = Table::new(2);
        let first = table.insert_with(|_| 'a').expect("room");
        assert_eq!((table.retire(first), table.retire(first)), (Some('a'), None));
        assert_eq!((table.get(first), table.len()), (None, 0));
        let second = table.insert_with(|_| 'b').expect("room");
        assert_ne!(second.index, first.index);
        assert!(table.is_full() && table.insert_with(|_| 'c').is_none());
        table.reuse();
        assert_eq!(table.insert_with(|_| 'c').map(|key| key.index), Some(first.index));
    }
}
