//! What one measurement gives, and what several give together.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// A figure that a measurement may give. Rates are per second; times in microseconds unless the name says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Metric {
    /// I/Os, or exchanges of messages.
    Iops,
    /// Megabytes (10^6) of data; in raw exchanges of all that travels.
    Megabytes,
    /// Median latency.
    P50,
    /// Latency that one in a hundred exceeds.
    P99,
    /// Latency that one in a thousand exceeds.
    P999,
    /// The initiator's processor time for one I/O in user mode.
    InitiatorUser,
    /// The same in the kernel.
    InitiatorSystem,
    /// The target's processor time for one I/O in user mode.
    TargetUser,
    /// The same in the kernel.
    TargetSystem,
    /// The target's processor time, in percent of one core.
    TargetBusy,
    /// The initiator's.
    InitiatorBusy,
    /// Resident memory in KiB.
    ResidentKib,
    /// A time in milliseconds.
    Millis,
    /// The longest of several, in milliseconds.
    WorstMillis,
    /// Resident memory of one of several, in KiB.
    EachKib,
    /// The target's processor time for one I/O.
    TargetCpu,
    /// Instructions of the target in user mode for one I/O.
    TargetInstructions,
    /// Bytes that the initiator copied for each byte of payload.
    InitiatorCopied,
    /// Bytes that the target copied for each byte of payload.
    TargetCopied,
    /// How fast the slower of the two processors was around the measurement: steps of a calculation in a microsecond.
    Pace,
    /// How long a cache line took to the other processor and back around the measurement, in nanoseconds.
    RoundTrip,
    /// How long the hypervisor kept the processors waiting, in percent of the time.
    Stolen,
}

impl Metric {
    /// Head of a column.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Iops => "IOPS",
            Self::Megabytes => "MB/s",
            Self::P50 => "p50 µs",
            Self::P99 => "p99 µs",
            Self::P999 => "p99.9 µs",
            Self::InitiatorUser => "init. user µs",
            Self::InitiatorSystem => "init. sys µs",
            Self::TargetUser => "target user µs",
            Self::TargetSystem => "target sys µs",
            Self::TargetBusy => "target CPU %",
            Self::InitiatorBusy => "init. CPU %",
            Self::ResidentKib => "KiB",
            Self::Millis => "ms",
            Self::WorstMillis => "worst ms",
            Self::EachKib => "KiB each",
            Self::TargetCpu => "target µs",
            Self::TargetInstructions => "target instr.",
            Self::InitiatorCopied => "init. copied",
            Self::TargetCopied => "target copied",
            Self::Pace => "pace",
            Self::RoundTrip => "line ns",
            Self::Stolen => "stolen %",
        }
    }

    /// Whether more is better.
    pub(crate) fn more_is_better(self) -> bool {
        matches!(self, Self::Iops | Self::Megabytes)
    }
}

/// What one measurement gave.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Sample(BTreeMap<Metric, f64>);

impl Sample {
    /// Notes a figure.
    pub(crate) fn set(&mut self, metric: Metric, value: f64) {
        self.0.insert(metric, value);
    }

    /// A figure, if it was measured.
    pub(crate) fn get(&self, metric: Metric) -> Option<f64> {
        self.0.get(&metric).copied()
    }

    /// Which figures there are.
    pub(crate) fn metrics(&self) -> impl Iterator<Item = Metric> {
        self.0.keys().copied()
    }

    /// Notes the percentiles of latencies in nanoseconds; none when there were none.
    pub(crate) fn set_latency(&mut self, nanos: &Histogram<u64>) {
        if nanos.is_empty() {
            return;
        }
        for (metric, percentile) in [(Metric::P50, 50.0), (Metric::P99, 99.0), (Metric::P999, 99.9)] {
            self.set(metric, nanos.value_at_percentile(percentile) as f64 / 1e3);
        }
    }
}

/// One figure over all rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// Of the values that are numbers; `None` when there are none.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median =
            if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 };
        Some(Self { median, min, max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_the_middle_or_between_the_two_middle_ones() {
        let odd = Spread::of([5.0, 1.0, 3.0]).expect("values");
        assert_eq!((odd.median, odd.min, odd.max), (3.0, 1.0, 5.0));
        let even = Spread::of([4.0, 1.0, 2.0, 10.0]).expect("values");
        assert_eq!((even.median, even.min, even.max), (3.0, 1.0, 10.0));
    }

    #[test]
    fn what_is_no_number_does_not_count() {
        assert_eq!(Spread::of([]), None);
        assert_eq!(Spread::of([f64::NAN, f64::INFINITY]), None);
        assert_eq!(Spread::of([f64::NAN, 2.0]).map(|spread| spread.median), Some(2.0));
    }

    #[test]
    fn percentiles_are_in_microseconds() {
        let mut nanos = Histogram::<u64>::new_with_bounds(1, 1 << 30, 3).expect("a histogram");
        (1..=1000).for_each(|micros| nanos.record(micros * 1000).expect("in range"));
        let mut sample = Sample::default();
        sample.set_latency(&nanos);
        let near = |metric, micros: f64| {
            let value = sample.get(metric).expect("it is set");
            assert!((value - micros).abs() <= micros / 500.0, "{value} is not {micros}");
        };
        near(Metric::P50, 500.0);
        near(Metric::P99, 990.0);
        near(Metric::P999, 999.0);
    }

    #[test]
    fn samples_survive_json() {
        let mut sample = Sample::default();
        sample.set(Metric::Iops, 1.5);
        sample.set(Metric::P999, 20.0);
        let text = serde_json::to_string(&sample).expect("JSON");
        assert_eq!(text, r#"{"iops":1.5,"p999":20.0}"#);
        assert_eq!(serde_json::from_str::<Sample>(&text).expect("JSON"), sample);
    }
}
