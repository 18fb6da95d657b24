//! Numbers of queue pairs: ours, and those of devices with their hashing.

use std::hash::Hasher;

use crate::rdma::QueuePairId;
use crate::table::Key;

/// The queue pair that a key names, told from those of the other provider by being odd.
pub(super) fn queue_pair_id(key: Key) -> QueuePairId {
    QueuePairId { index: key.index << 1 | 1, generation: key.generation }
}

pub(super) fn key_of(queue_pair: QueuePairId) -> Key {
    Key { index: queue_pair.index >> 1, generation: queue_pair.generation }
}

/// Hashes numbers that devices give out. No peer chooses them, so nothing keyed is needed: each completion is looked
/// up.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NumberHasher(u64);

impl NumberHasher {
    /// 2^64 divided by the golden ratio: spreads numbers that follow each other over all bits.
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
}

impl Hasher for NumberHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(5) ^ number).wrapping_mul(Self::SPREAD);
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn finish(&self) -> u64 {
        // Tables take the low bits, which a product leaves poorest.
        self.0 ^ self.0 >> 32
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::{BuildHasher, BuildHasherDefault};

    use super::*;

    #[test]
    fn numbers_that_follow_each_other_are_spread_over_the_low_and_the_high_bits() {
        let hash = |number: u32| BuildHasherDefault::<NumberHasher>::default().hash_one((0usize, number));
        for step in [1, 2, 256] {
            let hashes: Vec<u64> = (0..64).map(|count| hash(17 + count * step)).collect();
            let places: HashSet<u64> = hashes.iter().map(|hash| hash & 0x7f).collect();
            let marks: HashSet<u64> = hashes.iter().map(|hash| hash >> 57).collect();
            assert!(places.len() > 32 && marks.len() > 32, "{step}: {} and {}", places.len(), marks.len());
        }
    }
}
