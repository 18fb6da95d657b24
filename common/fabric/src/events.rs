//! Events that wait to be taken.

use std::mem;

/// Events in the order in which they came. Each is made in its place here: one that is put together elsewhere, field by field,
/// and then moved in words of 16 bytes has the move wait for the stores before it.
#[derive(Debug)]
pub struct Events<T> {
    /// Those from `next` on wait; the ones before it were taken.
    slots: Vec<Option<T>>,
    next: usize,
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

    /// Adds an event. There is room for it before it is made, and nothing that could fail behind that: the compiler then needs
    /// no copy of it for such a case.
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

    /// When all were taken, the next ones go where these were, so that a few lines of the cache do for all. Whether it is so.
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
