//! Slots with generations, so that a handle that was given up is recognised.

/// Values behind handles of index and generation.
#[derive(Debug)]
pub(super) struct Table<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Table<T> {
    pub(super) fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }

    /// Stores a value and returns its index and generation.
    pub(super) fn insert(&mut self, value: T) -> (u32, u32) {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, value: None });
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[index as usize];
        slot.value = Some(value);
        (index, slot.generation)
    }

    pub(super) fn get(&self, index: u32, generation: u32) -> Option<&T> {
        let slot = self.slots.get(index as usize)?;
        slot.value.as_ref().filter(|_| slot.generation == generation)
    }

    pub(super) fn get_mut(&mut self, index: u32, generation: u32) -> Option<&mut T> {
        let slot = self.slots.get_mut(index as usize)?;
        slot.value.as_mut().filter(|_| slot.generation == generation)
    }

    pub(super) fn remove(&mut self, index: u32, generation: u32) -> Option<T> {
        let slot = self.slots.get_mut(index as usize)?;
        if slot.generation != generation {
            return None;
        }
        let value = slot.value.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(index);
        Some(value)
    }

    /// All values, by index.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|slot| slot.value.as_ref())
    }

    /// Empties the table and returns what was in it, by index.
    pub(super) fn drain(&mut self) -> Vec<T> {
        self.free.clear();
        std::mem::take(&mut self.slots).into_iter().filter_map(|slot| slot.value).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Table;

    #[test]
    fn a_handle_that_was_given_up_finds_nothing_even_when_its_slot_is_used_again() {
        let mut table = Table::new();
        let (index, old) = table.insert('a');
        assert_eq!(table.remove(index, old), Some('a'));
        let (again, new) = table.insert('b');
        assert_eq!(again, index);
        assert_eq!((table.get(index, old), table.get(index, new)), (None, Some(&'b')));
        assert_eq!(table.remove(index, old), None);
    }
}
