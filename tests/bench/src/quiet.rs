//! Whether the processors are ours. Those of a virtual machine share cores with others, and move: for seconds they may
//! run at half their speed, or pass a cache line to each other in five times the time. What is measured then says
//! nothing about what is measured before or after.

use std::fs;
use std::hint::{black_box, spin_loop};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use crate::place::{INITIATOR_CORE, TARGET_CORE, pin};
use crate::sample::{Metric, Sample};

/// A pace below this part of the best is a disturbed one: two processors on one core have little more than half of it
/// each.
const PACE_LEAST: f64 = 0.6;
/// So is a round trip of more than this many times the shortest: within one core it takes a third of what it takes
/// between two with a common cache, and without one it takes four times that.
const ROUND_TRIP_MOST: f64 = 4.0;
/// And a measurement of which the hypervisor took more than this many percent of one processor.
const STOLEN_MOST: f64 = 5.0;

/// How long a probe calculates.
const PROBE: Duration = Duration::from_millis(3);
/// Round trips of a probe, after as many that do not count.
const ROUND_TRIPS: u32 = 2000;
/// How long to wait before a machine that is disturbed is probed again.
const PAUSE: Duration = Duration::from_millis(200);
/// Probes at the beginning, to know what is to be had.
const FIRST_PROBES: u32 = 20;
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// What a probe found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Conditions {
    /// Steps of a calculation in a microsecond, on the slower processor while both calculate.
    pace: f64,
    /// Nanoseconds for a cache line to the other processor and back.
    round_trip: f64,
}

impl Conditions {
    /// Worse than any that are found.
    const WORST: Self = Self { pace: 0.0, round_trip: f64::INFINITY };

    /// The best of what samples met.
    pub(crate) fn best_of<'a>(samples: impl Iterator<Item = &'a Sample>) -> Self {
        samples.filter_map(Self::of).fold(Self::WORST, |best, one| best.with(one, f64::max, f64::min))
    }

    /// What a sample met; `None` when it was not looked at.
    fn of(sample: &Sample) -> Option<Self> {
        Some(Self { pace: sample.get(Metric::Pace)?, round_trip: sample.get(Metric::RoundTrip)? })
    }

    fn with(self, other: Self, pace: fn(f64, f64) -> f64, round_trip: fn(f64, f64) -> f64) -> Self {
        Self { pace: pace(self.pace, other.pace), round_trip: round_trip(self.round_trip, other.round_trip) }
    }

    /// Whether these are much worse than the best.
    fn disturbed(self, best: Self) -> bool {
        self.pace < PACE_LEAST * best.pace || self.round_trip > ROUND_TRIP_MOST * best.round_trip
    }
}

/// Whether a sample was taken while others had the processors, too, or while these were far from each other.
pub(crate) fn disturbed(sample: &Sample, best: Conditions) -> bool {
    Conditions::of(sample).is_some_and(|conditions| conditions.disturbed(best))
        || sample.get(Metric::Stolen).is_some_and(|percent| percent > STOLEN_MOST)
}

/// Probes before and after each measurement, and has those that were disturbed made again while its patience lasts.
pub(crate) struct Watch {
    now: Conditions,
    best: Conditions,
    /// What may still be spent on waiting and on measuring again.
    patience: Duration,
}

impl Watch {
    /// One that has no patience yet, and has looked what is to be had.
    pub(crate) fn new() -> Result<Self> {
        let worst = Conditions::WORST;
        let mut watch = Self { now: worst, best: worst, patience: Duration::ZERO };
        for _ in 0..FIRST_PROBES {
            watch.probe()?;
            // Probes of different moments.
            thread::sleep(FIRST_PAUSE);
        }
        Ok(watch)
    }

    /// Lets it spend more.
    pub(crate) fn grant(&mut self, patience: Duration) {
        self.patience += patience;
    }

    /// Measures undisturbed, if that can be had in time. The sample says what it met.
    pub(crate) fn measure(&mut self, mut act: impl FnMut() -> Result<Sample>) -> Result<Sample> {
        loop {
            self.wait()?;
            let (before, stolen, begun) = (self.now, stolen()?, Instant::now());
            let mut sample = act()?;
            let stolen = self::stolen()?.saturating_sub(stolen);
            sample.set(Metric::Stolen, stolen.as_secs_f64() / begun.elapsed().as_secs_f64() * 100.0);
            self.probe()?;
            let met = self.now.with(before, f64::min, f64::max);
            sample.set(Metric::Pace, met.pace);
            sample.set(Metric::RoundTrip, met.round_trip);
            if !disturbed(&sample, self.best) || self.patience.is_zero() {
                return Ok(sample);
            }
            self.spend(begun);
        }
    }

    /// Waits for good conditions.
    fn wait(&mut self) -> Result<()> {
        while self.now.disturbed(self.best) && !self.patience.is_zero() {
            let begun = Instant::now();
            thread::sleep(PAUSE.min(self.patience));
            self.probe()?;
            self.spend(begun);
        }
        Ok(())
    }

    fn spend(&mut self, since: Instant) {
        self.patience = self.patience.saturating_sub(since.elapsed());
    }

    fn probe(&mut self) -> Result<()> {
        let [one, other] = [TARGET_CORE, INITIATOR_CORE].map(|core| on(core, || steps_per_micro(PROBE)));
        let pace = joined(one)?.min(joined(other)?);
        self.now = Conditions { pace, round_trip: round_trip()? };
        self.best = self.best.with(self.now, f64::max, f64::min);
        Ok(())
    }
}

/// Does something on a core.
fn on<T: Send + 'static>(core: usize, act: impl FnOnce() -> T + Send + 'static) -> JoinHandle<Result<T>> {
    thread::spawn(move || {
        pin(core)?;
        Ok(act())
    })
}

fn joined<T>(thread: JoinHandle<Result<T>>) -> Result<T> {
    thread.join().map_err(|_| anyhow!("a probe panicked"))?
}

/// Steps of a calculation that keeps several units of a core busy.
fn steps_per_micro(time: Duration) -> f64 {
    const STEPS: u32 = 1000;
    let (mut sums, mut all, begun) = ([1_u32, 3, 5, 7], 0.0, Instant::now());
    while begun.elapsed() < time {
        for step in 0..STEPS {
            sums[0] = sums[0].wrapping_mul(3).wrapping_add(step);
            sums[1] = sums[1].wrapping_mul(5).wrapping_add(step);
            sums[2] ^= sums[0] >> 3;
            sums[3] = sums[3].wrapping_add(sums[2].wrapping_mul(sums[1]));
        }
        black_box(&mut sums);
        all += f64::from(STEPS);
    }
    all / begun.elapsed().as_secs_f64() / 1e6
}

/// How long a cache line takes to the other processor and back, in nanoseconds.
fn round_trip() -> Result<f64> {
    let line = Arc::new(AtomicU32::new(0));
    let (near, far) = (Arc::clone(&line), line);
    let wait = |line: &AtomicU32, value| {
        while line.load(Ordering::Acquire) != value {
            spin_loop();
        }
    };
    let answering = on(TARGET_CORE, move || {
        for turn in 0..2 * ROUND_TRIPS {
            wait(&far, 2 * turn + 1);
            far.store(2 * turn + 2, Ordering::Release);
        }
    });
    let asking = on(INITIATOR_CORE, move || {
        let mut begun = Instant::now();
        for turn in 0..2 * ROUND_TRIPS {
            if turn == ROUND_TRIPS {
                begun = Instant::now();
            }
            near.store(2 * turn + 1, Ordering::Release);
            wait(&near, 2 * turn + 2);
        }
        begun.elapsed().as_secs_f64() * 1e9 / f64::from(ROUND_TRIPS)
    });
    let nanos = joined(asking)?;
    joined(answering)?;
    Ok(nanos)
}

/// How long the hypervisor has kept the two processors waiting: see `stat` in proc(5).
fn stolen() -> Result<Duration> {
    const STEAL: usize = 7;
    const TICK: Duration = Duration::from_millis(10);
    let text = fs::read_to_string("/proc/stat").context("read the processors' times")?;
    let ticks = |core: usize| {
        let name = format!("cpu{core} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&name))?;
        line.split_whitespace().nth(STEAL)?.parse::<u32>().ok()
    };
    Ok(TICK * (ticks(TARGET_CORE).unwrap_or(0) + ticks(INITIATOR_CORE).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disturbed_measurement_is_made_again_while_patience_lasts() {
        let unheard_of = Conditions { pace: 1e12, round_trip: 1e-6 };
        for (patience, expected) in [(0, 1), (300, 2)] {
            let mut times = 0;
            let patience = Duration::from_millis(patience);
            let mut watch = Watch { now: unheard_of, best: unheard_of, patience };
            let sample = watch.measure(|| {
                times += 1;
                Ok(Sample::default())
            });
            assert_eq!(times, expected, "before it waited, and after {patience:?}");
            assert!(disturbed(&sample.expect("a sample"), unheard_of));
        }
    }

    #[test]
    fn an_undisturbed_measurement_is_made_once() {
        let mut times = 0;
        let perfect = Conditions { pace: f64::INFINITY, round_trip: 0.0 };
        let mut watch = Watch { now: perfect, best: Conditions::WORST, patience: Duration::from_secs(10) };
        let sample = watch.measure(|| {
            times += 1;
            Ok(Sample::default())
        });
        // Nothing was stolen in a few microseconds, and the only probe was the best.
        assert_eq!(times, 1);
        assert!(!disturbed(&sample.expect("a sample"), watch.best));
    }

    #[test]
    fn the_best_is_found_among_the_samples_and_what_is_much_worse_is_disturbed() {
        let sample = |pace, round_trip, stolen| {
            let mut sample = Sample::default();
            sample.set(Metric::Pace, pace);
            sample.set(Metric::RoundTrip, round_trip);
            sample.set(Metric::Stolen, stolen);
            sample
        };
        let samples = [
            (sample(500.0, 120.0, 0.0), false),
            (sample(310.0, 100.0, 5.0), false),
            (sample(290.0, 100.0, 0.0), true),
            (sample(500.0, 410.0, 0.0), true),
            (sample(500.0, 100.0, 6.0), true),
            (Sample::default(), false),
        ];
        let best = Conditions::best_of(samples.iter().map(|(sample, _)| sample));
        assert_eq!(best, Conditions { pace: 500.0, round_trip: 100.0 });
        for (sample, expected) in &samples {
            assert_eq!(disturbed(sample, best), *expected, "{sample:?}");
        }
    }
}
