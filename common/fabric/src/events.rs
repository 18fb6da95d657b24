//! Events that wait to be taken.

use std::mem;

/// Events in the order in which they came. Each is made in its place here: one that is put together elsewhere, field by
/// field, and then moved in words of 16 bytes has the move wait for the stores before it.
#[derive(Debug)]
pub struct Events<T> {
    /// Those from `next` on wait; the ones before it were taken.
    slots: Vec<Option<T>>,
    next: usize,
}

impl<T> Default for Events<T> {
    /// Without memory.
    fn default() -> Self {
        Self::with_capacity(0)
    }
}

impl<T> Events<T> {
    /// With memory for so many, which grows when more wait.
    pub fn with_capacity(capacity: usize) -> Self {
        Self { slots: Vec::with_capacity(capacity), next: 0 }
    }

    /// Makes memory for so many more than wait now.
    pub fn reserve(&mut self, additional: usize) {
        self.slots.reserve(additional);
    }

    /// How many wait.
    #[inline]
    pub fn len(&self) -> usize {
        self.slots.len() - self.next
    }

    /// Whether none waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.slots.len() == self.next
    }

    /// Adds an event. There is room for it before it is made, and nothing that could fail behind that: the compiler
    /// then needs no copy of it for such a case.
    #[inline(always)]
    pub fn push_with(&mut self, make: impl FnOnce() -> T) {
        if self.slots.len() == self.slots.capacity() {
            self.make_room();
        }
        self.slots.push(None);
        if let Some(slot) = self.slots.last_mut() {
            // It replaces none, and code that would drop one is not wanted.
            mem::forget(slot.replace(make()));
        }
    }

    #[cold]
    #[inline(never)]
    fn make_room(&mut self) {
        // Who never takes all of them does not have them grow for it.
        self.slots.drain(..self.next);
        self.next = 0;
        self.slots.reserve(self.slots.len().max(1));
    }

    /// The oldest event.
    #[inline]
    pub fn take(&mut self) -> Option<T> {
        let event = self.slots.get_mut(self.next)?.take();
        self.next += 1;
        event
    }

    /// The oldest event, where it lies until all that wait have been looked at: [`Events::exchange`] drops what is left
    /// of it.
    #[inline]
    pub fn next_slot(&mut self) -> Option<&mut Option<T>> {
        let slot = self.slots.get_mut(self.next)?;
        self.next += 1;
        Some(slot)
    }

    /// Puts those that wait into `taken`, all of which have been taken or looked at, and may be dropped. Returns
    /// whether there are any. Who looks at them there does not move them, and more may come here meanwhile; when none
    /// did, the memory comes back, so that the next ones go where these were.
    #[inline]
    pub fn exchange(&mut self, taken: &mut Self) -> bool {
        assert!(taken.is_empty(), "events would be lost");
        if !self.is_empty() || !taken.slots.is_empty() {
            taken.rewind();
            mem::swap(self, taken);
        }
        !taken.is_empty()
    }

    /// When all were taken, the next ones go where these were, so that a few lines of the cache do for all. Whether it
    /// is so.
    #[inline]
    pub fn rewind(&mut self) -> bool {
        let empty = self.is_empty();
        if empty {
            self.slots.clear();
            self.next = 0;
        }
        empty
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::rc::Rc;

    use super::Events;

    #[test]
    fn events_come_out_as_they_went_in_and_none_is_lost_or_left() {
        let shared = Rc::new(());
        let (mut events, mut queue) = (Events::with_capacity(2), VecDeque::new());
        let mut next = 0_u32;
        for round in 0..200_u32 {
            for _ in 0..round % 7 {
                next += 1;
                events.push_with(|| (next, Rc::clone(&shared)));
                queue.push_back(next);
            }
            for _ in 0..round % 5 {
                assert_eq!(events.take().map(|(number, _)| number), queue.pop_front(), "in round {round}");
            }
            assert_eq!((events.len(), events.is_empty()), (queue.len(), queue.is_empty()));
            assert_eq!(Rc::strong_count(&shared), 1 + queue.len(), "in round {round}");
            assert_eq!(events.rewind(), queue.is_empty());
        }
        assert!(queue.len() > 100, "it has grown");
        drop(events);
        assert_eq!(Rc::strong_count(&shared), 1);
    }

    #[test]
    fn what_is_looked_at_elsewhere_comes_in_order_and_its_memory_comes_back() {
        let (mut events, mut taken) = (Events::with_capacity(4), Events::default());
        assert!(!events.exchange(&mut taken));
        let memory = events.slots.as_ptr();
        for round in 0..10 {
            assert_eq!(events.slots.as_ptr(), memory);
            events.push_with(|| round);
            events.push_with(|| round + 1);
            assert!(events.exchange(&mut taken));
            assert_eq!(taken.next_slot(), Some(&mut Some(round)));
            assert_eq!(taken.next_slot(), Some(&mut Some(round + 1)));
            assert_eq!(taken.next_slot(), None);
            assert!(!events.exchange(&mut taken));
        }
    }

    #[test]
    fn what_comes_while_others_are_looked_at_is_next_and_those_are_dropped_then() {
        let shared = Rc::new(());
        let (mut events, mut taken) = (Events::default(), Events::default());
        let make = |number: u32| (number, Rc::clone(&shared));
        events.push_with(|| make(0));
        for number in 1..10 {
            assert!(events.exchange(&mut taken));
            assert_eq!(Rc::strong_count(&shared), 2, "the one before is gone");
            events.push_with(|| make(number));
            let looked = taken.next_slot().and_then(|slot| slot.as_ref());
            assert_eq!(looked.map(|(number, _)| *number), Some(number - 1));
        }
        assert!(events.exchange(&mut taken));
        assert_eq!(taken.take().map(|(number, _)| number), Some(9));
        assert!(!events.exchange(&mut taken));
        assert_eq!(Rc::strong_count(&shared), 1);
    }

    #[test]
    #[should_panic(expected = "events would be lost")]
    fn what_was_not_looked_at_is_not_dropped() {
        let (mut events, mut taken) = (Events::default(), Events::default());
        events.push_with(|| 1);
        events.exchange(&mut taken);
        events.exchange(&mut taken);
    }

    #[test]
    fn who_leaves_one_behind_each_time_has_no_more_memory_for_it() {
        let mut events = Events::with_capacity(4);
        events.push_with(|| 0);
        for number in 1..1000 {
            events.push_with(|| number);
            assert_eq!(events.take(), Some(number - 1));
            assert!(!events.rewind());
        }
        assert!(events.slots.capacity() <= 8, "{}", events.slots.capacity());
    }
}
