//! SplitMix64 (Steele, Lea and Flood: "Fast splittable pseudorandom number generators", 2014).

/// The constant that the state grows by: 2^64 divided by the golden ratio, made odd.
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// A sequence of 64-bit numbers that depends on its seed alone. It scatters well, and anybody can predict it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// The sequence of a seed; any seed is good.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    #[inline]
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GAMMA);
        finalize(self.0)
    }

    /// The next number, reduced to less than `bound`, which is not zero. Small bounds are hit evenly enough; the
    /// error is below `bound` / 2^64.
    #[inline]
    pub const fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// A number that looks random and depends on `value` alone: the first of the sequence with that seed.
#[inline]
pub const fn mix(value: u64) -> u64 {
    finalize(value.wrapping_add(GAMMA))
}

const fn finalize(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::{SplitMix64, mix};

    #[test]
    fn the_sequence_is_that_of_the_reference_implementation() {
        // The first numbers of the reference implementation for the seed 1234567.
        let mut random = SplitMix64::new(1_234_567);
        let first: Vec<u64> = (0..3).map(|_| random.next()).collect();
        assert_eq!(first, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
        assert_eq!(mix(1_234_567), first[0]);
        assert!((0..100).all(|_| random.below(7) < 7));
    }
}
