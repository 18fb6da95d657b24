//! Flow control of a submission queue (Base 2.0, section 3.3.2.9): a ring that exists only as two numbers.

/// Tail and head of the submission queue at the controller. It is full with `size - 1` entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SubmissionRing {
    size: u16,
    tail: u16,
    head: u16,
}

impl SubmissionRing {
    /// SQHD of a queue without flow control: answers are all there is to go by.
    const NO_HEAD: u16 = u16::MAX;

    /// An empty ring of `size` entries, at least two.
    pub(crate) fn new(size: u16) -> Self {
        assert!(size >= 2, "a ring holds one entry less than its size");
        Self { size, tail: 0, head: 0 }
    }

    /// Whether one more entry fits.
    pub(crate) fn has_room(&self) -> bool {
        self.used(self.head) < self.size - 1
    }

    /// Adds an entry; only when there is room.
    pub(crate) fn push(&mut self) {
        debug_assert!(self.has_room(), "checked by the caller");
        self.tail = if self.tail + 1 == self.size { 0 } else { self.tail + 1 };
    }

    /// Takes the head that a response reports (SQHD), with `outstanding` commands left without a response. Responses
    /// may carry heads in another order than they were read, so one that would go backwards changes nothing; and
    /// a command that was answered was read, so the ring never holds more entries than commands are outstanding.
    ///
    /// Returns whether the head is one that the ring can have.
    #[must_use]
    pub(crate) fn advance(&mut self, head: u16, outstanding: usize) -> bool {
        if head >= self.size && head != Self::NO_HEAD {
            return false;
        }
        if head != Self::NO_HEAD && self.used(head) <= self.used(self.head) {
            self.head = head;
        }
        if usize::from(self.used(self.head)) > outstanding {
            self.head = (self.tail + self.size - outstanding as u16) % self.size;
        }
        true
    }

    /// Entries between `head` and the tail.
    fn used(&self, head: u16) -> u16 {
        if self.tail >= head { self.tail - head } else { self.tail + self.size - head }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_takes_one_entry_less_than_its_size() {
        let mut ring = SubmissionRing::new(4);
        for _ in 0..3 {
            assert!(ring.has_room());
            ring.push();
        }
        assert!(!ring.has_room());
        assert!(ring.advance(1, 2));
        assert!(ring.has_room());
    }

    #[test]
    fn a_head_that_comes_late_does_not_go_backwards() {
        let mut ring = SubmissionRing::new(8);
        (0..6).for_each(|_| ring.push());
        assert!(ring.advance(5, 5));
        assert!(ring.advance(3, 4));
        assert_eq!(ring.used(ring.head), 1);
    }

    #[test]
    fn a_controller_that_never_moves_its_head_does_not_stop_the_queue() {
        let mut ring = SubmissionRing::new(4);
        for _ in 0..100 {
            assert!(ring.has_room());
            ring.push();
            assert!(ring.advance(0, 0));
        }
    }

    #[test]
    fn without_flow_control_answers_make_room() {
        let mut ring = SubmissionRing::new(4);
        for _ in 0..100 {
            (0..3).for_each(|_| ring.push());
            assert!(!ring.has_room());
            (0..3).for_each(|left| assert!(ring.advance(u16::MAX, 2 - left)));
        }
    }

    #[test]
    fn a_head_beyond_the_size_is_no_head() {
        let mut ring = SubmissionRing::new(4);
        ring.push();
        assert!(!ring.advance(4, 0));
        assert!(ring.advance(3, 1));
    }
}
