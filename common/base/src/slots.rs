//! A table of slots with generations.

/// Names a value in [`Slots`]: its slot, and which of the slot's values it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SlotId {
    /// The slot, counted from zero.
    pub index: u32,
    /// How many values left the slot before this one came; it wraps around.
    pub generation: u32,
}

impl SlotId {
    /// The part of the generation that fits a token or a command identifier.
    #[inline]
    pub const fn generation_low(self) -> u16 {
        self.generation as u16
    }
}

/// Values behind handles that expire: once a value has left, its handle finds nothing, though the slot is used again.
/// A late completion, or a number that a peer repeats, is recognised so.
///
/// A slot that became free last is used first. The table grows when all slots are in use, and never shrinks.
#[derive(Debug)]
pub struct Slots<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    /// Slots without a value that are not to be used yet.
    retired: Vec<u32>,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new(), retired: Vec::new() }
    }
}

impl<T> Slots<T> {
    /// An empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty table with memory for `capacity` values.
    pub fn with_capacity(capacity: usize) -> Self {
        let (slots, free) = (Vec::with_capacity(capacity), Vec::with_capacity(capacity));
        Self { slots, free, retired: Vec::new() }
    }

    /// How many values there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len() - self.retired.len()
    }

    /// How many slots there are, with and without a value.
    #[inline]
    pub fn slot_count(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Whether there is no value.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether no slot is free and there are `count_max` of them.
    #[inline]
    pub fn is_full(&self, count_max: u32) -> bool {
        self.free.is_empty() && self.slots.len() >= count_max as usize
    }

    /// Puts a value into a free slot, unless there are `count_max` slots and none is free.
    ///
    /// # Errors
    /// Gives the value back.
    #[inline]
    pub fn try_insert(&mut self, value: T, count_max: u32) -> Result<SlotId, T> {
        if self.is_full(count_max) {
            return Err(value);
        }
        Ok(self.insert(value))
    }

    /// Puts a value into a free slot.
    #[inline]
    pub fn insert(&mut self, value: T) -> SlotId {
        self.insert_with(|_| value)
    }

    /// Puts in what `make` makes of the handle that it gets.
    #[inline]
    pub fn insert_with(&mut self, make: impl FnOnce(SlotId) -> T) -> SlotId {
        let index = self.free.pop().unwrap_or_else(|| self.grow());
        let slot = &mut self.slots[index as usize];
        let id = SlotId { index, generation: slot.generation };
        slot.value = Some(make(id));
        id
    }

    #[cold]
    fn grow(&mut self) -> u32 {
        let index = u32::try_from(self.slots.len()).expect("fewer values than numbers for them");
        self.slots.push(Slot { generation: 0, value: None });
        index
    }

    /// The value of a handle, if it is still there.
    #[inline]
    pub fn get(&self, id: SlotId) -> Option<&T> {
        let slot = self.slots.get(id.index as usize)?;
        if slot.generation == id.generation { slot.value.as_ref() } else { None }
    }

    /// The same, to be changed.
    #[inline]
    pub fn get_mut(&mut self, id: SlotId) -> Option<&mut T> {
        let slot = self.slots.get_mut(id.index as usize)?;
        if slot.generation == id.generation { slot.value.as_mut() } else { None }
    }

    /// The value of a slot and the low bits of a generation, with its whole handle, if it is still there.
    #[inline]
    pub fn find(&self, index: u32, generation_low: u16) -> Option<(SlotId, &T)> {
        let slot = self.slots.get(index as usize)?;
        let id = SlotId { index, generation: slot.generation };
        let value = slot.value.as_ref()?;
        if id.generation_low() == generation_low { Some((id, value)) } else { None }
    }

    /// Takes a value out; its handle has expired.
    #[inline]
    pub fn remove(&mut self, id: SlotId) -> Option<T> {
        let value = self.take(id)?;
        self.free.push(id.index);
        Some(value)
    }

    /// Takes a value out whose slot is not to be used again before [`Slots::reuse`], because something that names the
    /// slot alone is still to come.
    pub fn retire(&mut self, id: SlotId) -> Option<T> {
        let value = self.take(id)?;
        self.retired.push(id.index);
        Some(value)
    }

    /// Slots of values that have retired can be used again.
    #[inline]
    pub fn reuse(&mut self) {
        self.free.append(&mut self.retired);
    }

    #[inline]
    fn take(&mut self, id: SlotId) -> Option<T> {
        let slot = self.slots.get_mut(id.index as usize)?;
        if slot.generation != id.generation {
            return None;
        }
        let value = slot.value.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        Some(value)
    }

    /// Takes all values out, by slot.
    pub fn drain(&mut self) -> Vec<T> {
        let ids: Vec<SlotId> = self.iter().map(|(id, _)| id).collect();
        ids.into_iter().filter_map(|id| self.remove(id)).collect()
    }

    /// The value of a slot, whichever of its values it is, with its handle.
    pub fn of_slot(&mut self, index: u32) -> Option<(SlotId, &mut T)> {
        let slot = self.slots.get_mut(index as usize)?;
        Some((SlotId { index, generation: slot.generation }, slot.value.as_mut()?))
    }

    /// All values with their handles, by slot.
    pub fn iter(&self) -> impl Iterator<Item = (SlotId, &T)> {
        self.slots.iter().enumerate().filter_map(|(index, slot)| {
            let id = SlotId { index: index as u32, generation: slot.generation };
            Some((id, slot.value.as_ref()?))
        })
    }

    /// All values, by slot.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|slot| slot.value.as_ref())
    }

    /// All values, by slot, to be changed.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().filter_map(|slot| slot.value.as_mut())
    }
}

#[cfg(test)]
mod tests {
    use super::Slots;

    #[test]
    fn a_handle_expires_with_its_value_though_the_slot_is_used_again() {
        let mut slots = Slots::new();
        let (first, second) = (slots.insert('a'), slots.insert('b'));
        assert_eq!((slots.remove(first), slots.remove(first)), (Some('a'), None));
        let third = slots.insert('c');
        assert_eq!(third.index, first.index);
        assert_eq!((slots.get(first), slots.get(second), slots.get(third)), (None, Some(&'b'), Some(&'c')));
        assert_eq!(slots.find(third.index, third.generation_low()), Some((third, &'c')));
        assert_eq!(slots.find(first.index, first.generation_low()), None);
        assert_eq!((slots.len(), slots.values().count()), (2, 2));
    }

    #[test]
    fn a_slot_that_has_retired_is_not_used_before_it_may() {
        let mut slots = Slots::new();
        let first = slots.insert('a');
        assert_eq!((slots.retire(first), slots.retire(first)), (Some('a'), None));
        assert_eq!((slots.get(first), slots.len(), slots.is_full(1)), (None, 0, true));
        let second = slots.insert('b');
        assert_ne!(second.index, first.index);
        slots.reuse();
        let third = slots.insert('c');
        assert_eq!((third.index, slots.of_slot(first.index)), (first.index, Some((third, &mut 'c'))));
        assert_eq!((slots.drain(), slots.is_empty(), slots.get(third)), (vec!['c', 'b'], true, None));
    }

    #[test]
    fn the_slot_that_became_free_last_is_used_first_and_nothing_grows() {
        let mut slots = Slots::with_capacity(2);
        let ids = [slots.insert(0), slots.insert(1)];
        assert_eq!(ids.map(|id| slots.remove(id)), [Some(0), Some(1)]);
        assert!(slots.is_empty());
        let next = slots.insert_with(|id| id.index);
        assert_eq!((next.index, slots.get(next)), (1, Some(&1)));
        slots.values_mut().for_each(|value| *value += 5);
        assert_eq!(slots.iter().collect::<Vec<_>>(), [(next, &6)]);
        assert!(slots.try_insert(7, 2).is_ok());
        assert_eq!(slots.try_insert(8, 2), Err(8));
    }
}
