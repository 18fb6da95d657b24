//! Timers, kept in user space. The kernel gets only the next one, when the loop goes to sleep.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use ringfab_base::{SlotId, Slots};

use crate::{Time, TimerId, Token};

/// Who a timer is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Alarm {
    /// The reactor's user.
    User(Token),
    /// A listener that rests after the kernel ran out of something: its handle.
    Accept(SlotId),
}

/// Timers by deadline. Cancelling frees the slot at once and leaves a stale entry in the heap, which is skipped
/// when its time comes, or swept out as soon as the stale ones are the majority.
pub(super) struct Timers {
    heap: BinaryHeap<Reverse<Entry>>,
    slots: Slots<Alarm>,
    sequence: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    at: Time,
    /// Timers of the same time fire in the order in which they were set.
    sequence: u64,
    id: SlotId,
}

/// Below this many entries sweeping is not worth while.
const SWEEP_MIN: usize = 64;

impl Timers {
    pub(super) fn new() -> Self {
        Self { heap: BinaryHeap::new(), slots: Slots::new(), sequence: 0 }
    }

    /// Sets a timer.
    pub(super) fn set(&mut self, at: Time, alarm: Alarm) -> TimerId {
        let id = self.slots.insert(alarm);
        self.sequence += 1;
        self.heap.push(Reverse(Entry { at, sequence: self.sequence, id }));
        TimerId(id)
    }

    /// Forgets a timer, if it is still set.
    pub(super) fn cancel(&mut self, timer: TimerId) {
        if self.slots.remove(timer.0).is_some() && self.heap.len() >= SWEEP_MIN {
            self.sweep();
        }
    }

    /// When the next entry, live or stale, is due; [`Time::MAX`] without any.
    #[inline]
    pub(super) fn next(&self) -> Time {
        self.heap.peek().map_or(Time::MAX, |entry| entry.0.at)
    }

    /// The next timer that is due at `now`.
    #[inline]
    pub(super) fn pop_due(&mut self, now: Time) -> Option<Alarm> {
        while self.next() <= now {
            let Reverse(entry) = self.heap.pop()?;
            if let Some(alarm) = self.slots.remove(entry.id) {
                return Some(alarm);
            }
        }
        None
    }

    fn sweep(&mut self) {
        if self.slots.len() * 2 < self.heap.len() {
            self.heap.retain(|Reverse(entry)| self.slots.get(entry.id).is_some());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alarm(index: u32) -> Alarm {
        Alarm::User(Token::new(0, 0, 0, index))
    }

    #[test]
    fn timers_fire_by_time_and_then_in_the_order_in_which_they_were_set() {
        let mut timers = Timers::new();
        for (at, index) in [(30, 0), (10, 1), (20, 2), (10, 3)] {
            timers.set(Time::from_nanos(at), alarm(index));
        }
        assert_eq!(timers.next(), Time::from_nanos(10));
        let mut order = Vec::new();
        while let Some(due) = timers.pop_due(Time::from_nanos(20)) {
            order.push(due);
        }
        assert_eq!(order, [alarm(1), alarm(3), alarm(2)]);
        assert_eq!(timers.next(), Time::from_nanos(30));
    }

    #[test]
    fn a_cancelled_timer_never_fires_and_its_old_handle_cannot_cancel_the_next() {
        let mut timers = Timers::new();
        let first = timers.set(Time::from_nanos(1), alarm(1));
        timers.cancel(first);
        let second = timers.set(Time::from_nanos(2), alarm(2));
        assert_eq!(first.0.index, second.0.index, "the slot is used again");
        timers.cancel(first);
        assert_eq!(timers.pop_due(Time::MAX), Some(alarm(2)));
        assert_eq!(timers.pop_due(Time::MAX), None);
    }

    #[test]
    fn setting_and_cancelling_for_ever_does_not_grow_the_heap() {
        let mut timers = Timers::new();
        timers.set(Time::from_nanos(5), alarm(0));
        for index in 1..100_000 {
            let timer = timers.set(Time::from_nanos(1_000_000), alarm(index));
            timers.cancel(timer);
        }
        assert!(timers.heap.len() <= SWEEP_MIN, "{} entries", timers.heap.len());
        assert_eq!(timers.pop_due(Time::MAX), Some(alarm(0)));
        assert_eq!(timers.pop_due(Time::MAX), None);
    }
}
