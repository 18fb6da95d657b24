//! Latency of sampled commands, as histograms that one core writes and the control side reads.
//!
//! A bucket ends at a power of two of microseconds, or at one and a half times that, so a quantile is at most a third
//! too large.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What a command waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Buffers, limits, or other commands.
    Wait,
    /// The host's data.
    Receive,
    /// A disk.
    Disk,
    /// The host takes the answer and its data.
    Send,
}

impl Phase {
    /// How many there are.
    pub const COUNT: usize = 4;

    /// Every phase, in the order of a command's life.
    pub const ALL: [Self; Self::COUNT] = [Self::Wait, Self::Receive, Self::Disk, Self::Send];

    /// Its name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Wait => "wait",
            Self::Receive => "receive",
            Self::Disk => "disk",
            Self::Send => "send",
        }
    }
}

/// Buckets with an end; the last ends at 16.8 seconds. One more is for what took longer.
pub const BOUNDS: usize = 48;

/// The end of a bucket in microseconds, itself included.
pub const fn bound_us(bucket: usize) -> u64 {
    match bucket {
        0 => 1,
        _ if bucket % 2 == 1 => 2 << (bucket / 2),
        _ => 3 << (bucket / 2 - 1),
    }
}

/// The bucket of a time.
const fn bucket_of(nanos: u64) -> usize {
    let micros = nanos.div_ceil(1000);
    if micros <= 1 {
        return 0;
    }
    let octave = (micros - 1).ilog2() as usize;
    let bucket = match octave {
        0 => 1,
        _ => 2 * octave + (micros > 3 << (octave - 1)) as usize,
    };
    if bucket < BOUNDS { bucket } else { BOUNDS }
}

/// How long each phase of one command took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timed {
    /// From the command's arrival until its answer was sent.
    pub total: Duration,
    /// By [`Phase`].
    pub phases: [Duration; Phase::COUNT],
}

/// A histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Histogram {
    /// How many were in each bucket; the last bucket has no end.
    pub counts: [u64; BOUNDS + 1],
    /// The sum of all times in nanoseconds.
    pub sum_ns: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: [0; BOUNDS + 1], sum_ns: 0 }
    }
}

impl Histogram {
    /// How many there were.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// A time in microseconds that this part of all did not exceed: the end of a bucket. None when nothing is in it.
    pub fn quantile_us(&self, part: f64) -> Option<u64> {
        let rank = (self.count() as f64 * part).ceil().max(1.0);
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen as f64 >= rank {
                return Some(bound_us(bucket.min(BOUNDS - 1)));
            }
        }
        None
    }
}

impl std::ops::AddAssign<&Self> for Histogram {
    fn add_assign(&mut self, other: &Self) {
        for (own, other) in self.counts.iter_mut().zip(other.counts) {
            *own += other;
        }
        self.sum_ns = self.sum_ns.wrapping_add(other.sum_ns);
    }
}

/// Histograms of whole commands and of their phases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    /// From a command's arrival until its answer was sent.
    pub total: Histogram,
    /// By [`Phase`].
    pub phases: [Histogram; Phase::COUNT],
}

impl std::ops::AddAssign<&Self> for Latency {
    fn add_assign(&mut self, other: &Self) {
        self.total += &other.total;
        for (own, other) in self.phases.iter_mut().zip(&other.phases) {
            *own += other;
        }
    }
}

/// [`Latency`] while one core counts in it.
#[derive(Debug, Default)]
pub(crate) struct LatencyRecord {
    total: HistogramRecord,
    phases: [HistogramRecord; Phase::COUNT],
}

impl LatencyRecord {
    pub(crate) fn add(&self, timed: &Timed) {
        self.total.add(timed.total);
        for (histogram, time) in self.phases.iter().zip(timed.phases) {
            histogram.add(time);
        }
    }

    pub(crate) fn read(&self) -> Latency {
        Latency { total: self.total.read(), phases: self.phases.each_ref().map(HistogramRecord::read) }
    }
}

#[derive(Debug)]
struct HistogramRecord {
    counts: [AtomicU64; BOUNDS + 1],
    sum_ns: AtomicU64,
}

impl Default for HistogramRecord {
    fn default() -> Self {
        Self { counts: [const { AtomicU64::new(0) }; BOUNDS + 1], sum_ns: AtomicU64::new(0) }
    }
}

impl HistogramRecord {
    fn add(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        add(&self.counts[bucket_of(nanos)], 1);
        add(&self.sum_ns, nanos);
    }

    fn read(&self) -> Histogram {
        let counts = self.counts.each_ref().map(|count| count.load(Ordering::Relaxed));
        Histogram { counts, sum_ns: self.sum_ns.load(Ordering::Relaxed) }
    }
}

/// One core writes a counter, so that a load and a store are enough and cheaper than an atomic addition.
pub(super) fn add(counter: &AtomicU64, value: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(value), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_in_the_first_bucket_that_ends_at_it_or_behind_it() {
        for bucket in 0..BOUNDS {
            let end = bound_us(bucket) * 1000;
            assert_eq!(bucket_of(end), bucket);
            assert_eq!(bucket_of(end + 1), bucket + 1);
        }
        assert_eq!((bucket_of(0), bucket_of(u64::MAX)), (0, BOUNDS));
        assert_eq!(bound_us(BOUNDS - 1), 1 << 24);
        let bounds: Vec<u64> = (0..8).map(bound_us).collect();
        assert_eq!(bounds, [1, 2, 3, 4, 6, 8, 12, 16]);
    }

    #[test]
    fn histograms_of_a_namespace_a_queue_or_a_host_take_2000_bytes() {
        // docs/memory.md has it.
        assert_eq!((size_of::<LatencyRecord>(), size_of::<Latency>()), (2000, 2000));
    }

    #[test]
    fn records_are_read_added_and_asked_for_quantiles() {
        let record = LatencyRecord::default();
        let timed = |micros| Timed {
            total: Duration::from_micros(micros),
            phases: [Duration::ZERO, Duration::ZERO, Duration::from_micros(micros), Duration::ZERO],
        };
        (0..99).for_each(|_| record.add(&timed(5)));
        record.add(&timed(1000));
        let mut sum = record.read();
        assert_eq!(sum.total.sum_ns, 99 * 5_000 + 1_000_000);
        assert_eq!(sum.total, sum.phases[Phase::Disk as usize]);
        assert_eq!(sum.phases[Phase::Wait as usize].counts[0], 100);
        sum += &record.read();
        assert_eq!(sum.total.count(), 200);
        let quantiles = [0.5, 0.99, 0.999].map(|part| sum.total.quantile_us(part));
        assert_eq!(quantiles, [Some(6), Some(6), Some(1024)]);
        assert_eq!(Histogram::default().quantile_us(0.5), None);
    }
}
