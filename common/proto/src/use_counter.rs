//! When a queue is used in earnest.

/// Uses of a queue that most connections never go beyond.
const FEW: u32 = 16;

/// Counts the first uses of something that should have room for all it may ever hold, but not while it is hardly used:
/// most connections of most hosts are. With a count of uses instead of what is held, the room is made soon and nothing
/// is allocated after a long time.
#[derive(Debug, Default)]
pub(crate) struct UseCounter(u32);

impl UseCounter {
    /// Counts a use. True once: now is the time to make all the room.
    #[inline]
    pub(crate) fn reaches_threshold(&mut self) -> bool {
        if self.0 > FEW {
            return false;
        }
        self.0 += 1;
        self.0 > FEW
    }
}

#[cfg(test)]
mod tests {
    use super::{FEW, UseCounter};

    #[test]
    fn the_use_after_a_few_is_in_earnest_and_no_other() {
        let mut uses = UseCounter::default();
        let told: Vec<u32> = (1..100).filter(|_| uses.reaches_threshold()).collect();
        assert_eq!(told, [FEW + 1]);
    }
}
