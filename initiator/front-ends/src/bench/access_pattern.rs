//! Where the next I/O goes, and whether it is a read.

use ringfab_base::mix;

use super::Workload;

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
pub(crate) struct AccessPattern {
    random: Random,
    extents: u64,
    next: u64,
    is_random: bool,
    read_percent: u64,
}

impl AccessPattern {
    pub(crate) fn new(workload: &Workload) -> Self {
        Self {
            random: Random::new(workload.access_seed),
            extents: workload.extents,
            next: 0,
            is_random: workload.kind.is_random(),
            read_percent: u64::from(workload.read_percent),
        }
    }

    /// The next extent, below the number of extents.
    #[inline]
    pub(crate) fn next_extent(&mut self) -> u64 {
        if self.is_random {
            return self.random.below(self.extents);
        }
        let extent = self.next;
        self.next = if extent + 1 == self.extents { 0 } else { extent + 1 };
        extent
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

    pub(crate) fn workload(kind: Kind, extents: u64, read_percent: u8) -> Workload {
        Workload {
            kind,
            read_percent,
            nsid: 1,
            block_bytes: 512,
            io_bytes: 4096,
            io_nlb: 8,
            lba_first: 0,
            extents,
            outstanding: 1,
            time: Duration::from_secs(1),
            warmup: Duration::ZERO,
            verify: false,
            seed: 7,
            access_seed: 7,
        }
    }

    #[test]
    fn extents_in_order_begin_again_at_the_end() {
        let mut pattern = AccessPattern::new(&workload(Kind::Read, 3, 100));
        let extents: Vec<u64> = (0..7).map(|_| pattern.next_extent()).collect();
        assert_eq!(extents, [0, 1, 2, 0, 1, 2, 0]);
        assert!(pattern.is_read());
    }

    #[test]
    fn random_extents_reach_every_extent_evenly_and_none_beyond() {
        let mut pattern = AccessPattern::new(&workload(Kind::Randread, 10, 100));
        let mut counts = [0_u32; 10];
        for _ in 0..100_000 {
            counts[pattern.next_extent() as usize] += 1;
        }
        assert!(counts.iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
    }

    #[test]
    fn the_mix_of_reads_is_as_asked_and_its_ends_are_exact() {
        for percent in [0, 30, 70, 100] {
            let mut pattern = AccessPattern::new(&workload(Kind::Randrw, 10, percent));
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
