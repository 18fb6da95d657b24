//! Where the next I/O goes, and whether it is a read.

use ringfab_base::mix;

use super::Plan;

/// A small generator of numbers: xorshift64* (Vigna 2014). Good enough to spread I/O, and nothing else.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// Any seed will do.
    pub(crate) fn new(seed: u64) -> Self {
        // The state must not be zero; nearby seeds should not begin alike.
        Self(mix(seed) | 1)
    }

    #[inline]
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `bound`, by multiplication instead of division.
    #[inline]
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

/// The sequence of I/Os.
#[derive(Clone, Debug)]
pub(crate) struct Pattern {
    random: Random,
    places: u64,
    next: u64,
    is_random: bool,
    read_percent: u64,
}

impl Pattern {
    pub(crate) fn new(plan: &Plan) -> Self {
        Self {
            random: Random::new(plan.pattern_seed),
            places: plan.places,
            next: 0,
            is_random: plan.kind.is_random(),
            read_percent: u64::from(plan.read_percent),
        }
    }

    /// The next place, below the number of places.
    #[inline]
    pub(crate) fn place(&mut self) -> u64 {
        if self.is_random {
            return self.random.below(self.places);
        }
        let place = self.next;
        self.next = if place + 1 == self.places { 0 } else { place + 1 };
        place
    }

    /// Whether the next I/O is a read.
    #[inline]
    pub(crate) fn is_read(&mut self) -> bool {
        match self.read_percent {
            0 => false,
            100 => true,
            percent => self.random.below(100) < percent,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Kind;
    use std::time::Duration;

    pub(crate) fn plan(kind: Kind, places: u64, read_percent: u8) -> Plan {
        Plan {
            kind,
            read_percent,
            nsid: 1,
            block_bytes: 512,
            io_bytes: 4096,
            io_nlb: 8,
            lba_first: 0,
            places,
            outstanding: 1,
            time: Duration::from_secs(1),
            warmup: Duration::ZERO,
            verify: false,
            seed: 7,
            pattern_seed: 7,
        }
    }

    #[test]
    fn places_in_order_begin_again_at_the_end() {
        let mut pattern = Pattern::new(&plan(Kind::Read, 3, 100));
        let places: Vec<u64> = (0..7).map(|_| pattern.place()).collect();
        assert_eq!(places, [0, 1, 2, 0, 1, 2, 0]);
        assert!(pattern.is_read());
    }

    #[test]
    fn random_places_reach_every_place_evenly_and_none_beyond() {
        let mut pattern = Pattern::new(&plan(Kind::Randread, 10, 100));
        let mut counts = [0_u32; 10];
        for _ in 0..100_000 {
            counts[pattern.place() as usize] += 1;
        }
        assert!(counts.iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
    }

    #[test]
    fn the_mix_of_reads_is_as_asked_and_its_ends_are_exact() {
        for percent in [0, 30, 70, 100] {
            let mut pattern = Pattern::new(&plan(Kind::Randrw, 10, percent));
            let reads = (0..100_000).filter(|_| pattern.is_read()).count() as u64;
            let wanted = u64::from(percent) * 1000;
            let slack = if percent % 100 == 0 { 0 } else { 700 };
            assert!(reads.abs_diff(wanted) <= slack, "{percent}: {reads}");
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_sequence_and_another_one_another() {
        let take = |seed| (0..8).map(move |_| ()).scan(Random::new(seed), |random, ()| Some(random.next()));
        assert!(take(1).eq(take(1)));
        assert!(!take(1).eq(take(2)));
    }
}
