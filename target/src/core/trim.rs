//! When queues that have ended, or are idle, bring about that memory is given back.

use std::mem;

/// How often memory is given back after the last queue has ended, and after how many queues the heap is trimmed.
const TRIMS_AFTER: u32 = 8;
const ENDED_MANY: usize = 64;

/// Queues that let go of their slots at once. Each takes some microseconds, which nobody should notice.
const RESTS_MAX: usize = 32;

/// What of the memory of queues is still to be given back.
#[derive(Debug, Default)]
pub(super) struct Trimming {
    /// Queues that have ended or let go of slots since the heap was last trimmed.
    ended: usize,
    /// Rounds that are still to be done once there is no queue any more.
    rounds: u32,
    /// The queue that is the next to be asked whether it rests.
    rests_from: usize,
}

impl Trimming {
    /// Whether there is anything to do without a queue.
    pub(super) fn is_wanted(&self) -> bool {
        self.rounds > 0
    }

    /// A queue has ended.
    pub(super) fn queue_ended(&mut self) {
        self.ended += 1;
        self.rounds = TRIMS_AFTER;
    }

    /// One round: asks each of so many queues once at most, until enough have let go of slots. `rest` says whether one
    /// has. The next round goes on behind the last one, so that queues that are busy now and then do not keep others
    /// from it. Returns whether the heap is to be trimmed: the last of many that left together have left a while ago.
    pub(super) fn round(&mut self, queues: usize, rest: impl FnMut(usize) -> bool) -> bool {
        let rested = self.rest_some(queues, rest);
        self.ended += rested;
        self.rounds = if rested > 0 { TRIMS_AFTER } else { self.rounds.saturating_sub(1) };
        self.rounds == 0 && mem::take(&mut self.ended) >= ENDED_MANY
    }

    fn rest_some(&mut self, queues: usize, mut rest: impl FnMut(usize) -> bool) -> usize {
        let mut rested = 0;
        for _ in 0..queues {
            let number = self.rests_from % queues;
            self.rests_from = number + 1;
            rested += usize::from(rest(number));
            if rested == RESTS_MAX {
                break;
            }
        }
        rested
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_heap_is_trimmed_once_when_many_have_ended_and_a_while_has_passed() {
        let mut trimming = Trimming::default();
        (0..ENDED_MANY).for_each(|_| trimming.queue_ended());
        for _ in 1..TRIMS_AFTER {
            assert!(trimming.is_wanted());
            assert!(!trimming.round(0, |_| unreachable!()));
        }
        assert!(trimming.round(0, |_| unreachable!()));
        assert!(!trimming.is_wanted());
        assert!(!trimming.round(0, |_| unreachable!()), "it was trimmed");
    }

    #[test]
    fn few_that_end_do_not_trim_the_heap_and_do_not_add_up() {
        let mut trimming = Trimming::default();
        for _ in 0..3 {
            (1..ENDED_MANY).for_each(|_| trimming.queue_ended());
            assert!((0..2 * TRIMS_AFTER).all(|_| !trimming.round(0, |_| unreachable!())));
        }
    }

    #[test]
    fn each_round_goes_on_behind_the_last_queue_that_was_asked() {
        let mut trimming = Trimming::default();
        let mut asked = Vec::new();
        let queues = RESTS_MAX + 10;
        for _ in 0..2 {
            trimming.round(queues, |number| {
                asked.push(number);
                true
            });
        }
        let expected: Vec<usize> = (0..2 * RESTS_MAX).map(|number| number % queues).collect();
        assert_eq!(asked, expected);
        asked.clear();
        trimming.round(queues, |number| {
            asked.push(number);
            false
        });
        assert_eq!(asked.len(), queues, "each once, if none rests");
    }
}
