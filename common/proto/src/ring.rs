//! A queue of what is copied.

/// A queue in a ring. What is pushed is made where it lies, which a queue of things that must be dropped cannot
/// promise: one that is put together elsewhere, field by field, and then moved in words of 16 bytes has the move wait
/// for the stores before it.
#[derive(Debug)]
pub(crate) struct Ring<T> {
    entries: Box<[T]>,
    /// Where the oldest one lies.
    first: usize,
    len: usize,
}

impl<T: Copy + Default> Ring<T> {
    /// Without memory, until there is something to hold.
    pub(crate) fn new() -> Self {
        Self { entries: Box::default(), first: 0, len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Makes memory for so many, if there is less.
    #[cold]
    #[inline(never)]
    pub(crate) fn reserve(&mut self, capacity: usize) {
        if capacity > self.entries.len() {
            let oldest = (0..self.len).map(|index| self.entries[self.place(index)]);
            let free = std::iter::repeat_n(T::default(), capacity - self.len);
            self.entries = oldest.chain(free).collect();
            self.first = 0;
        }
    }

    /// Adds an entry.
    #[inline(always)]
    pub(crate) fn push(&mut self, entry: T) {
        if self.len == self.entries.len() {
            self.reserve(self.len * 2 + 4);
        }
        let place = self.place(self.len);
        self.entries[place] = entry;
        self.len += 1;
    }

    /// The one behind `index` older ones.
    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        if index < self.len { self.entries.get(self.place(index)) } else { None }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        let place = if index < self.len { Some(self.place(index)) } else { None };
        self.entries.get_mut(place?)
    }

    /// The newest one.
    #[inline(always)]
    pub(crate) fn last_mut(&mut self) -> Option<&mut T> {
        self.get_mut(self.len.wrapping_sub(1))
    }

    /// Removes the oldest one, if there is one. When none is left, the next ones go to the front again, which is in the
    /// cache.
    #[inline]
    pub(crate) fn remove_first(&mut self) {
        match self.len {
            0 => {}
            1 => (self.first, self.len) = (0, 0),
            _ => (self.first, self.len) = (self.place(1), self.len - 1),
        }
    }

    #[inline]
    fn place(&self, index: usize) -> usize {
        let place = self.first + index;
        if place >= self.entries.len() { place.wrapping_sub(self.entries.len()) } else { place }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::Ring;

    #[test]
    fn a_ring_holds_what_a_queue_would_however_it_goes_round_and_grows() {
        let (mut ring, mut queue) = (Ring::new(), VecDeque::new());
        let mut next = 0_u32;
        // Rises and falls, by different steps, so that it grows at other places than its front.
        for round in 0..200_usize {
            for _ in 0..round % 7 {
                next += 1;
                ring.push(next);
                queue.push_back(next);
            }
            for _ in 0..round % 5 {
                ring.remove_first();
                queue.pop_front();
            }
            if round == 50 {
                ring.reserve(queue.len() + 3);
            }
            if let (Some(mine), Some(other)) = (ring.get_mut(round % 3), queue.get_mut(round % 3)) {
                (*mine, *other) = (*mine + 1000, *other + 1000);
            }
            assert_eq!(ring.last_mut(), queue.back_mut());
            assert_eq!(ring.len(), queue.len());
            assert!(
                (0..queue.len() + 2).all(|index| ring.get(index) == queue.get(index)),
                "in round {round}"
            );
        }
        assert!(queue.len() > 100, "it has grown");
        while ring.len() > 0 {
            ring.remove_first();
        }
        ring.remove_first();
        assert_eq!((ring.len(), ring.get(0)), (0, None));
        assert_eq!(ring.get_mut(0), None);
        assert_eq!(ring.last_mut(), None);
    }
}
