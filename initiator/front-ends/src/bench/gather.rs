//! Gathers what the engines measure, second by second.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::Duration;

use anyhow::{Result, anyhow};

use super::load::{LatencyStats, Measurement, Report, Window};

/// A second of the measurement, over all engines.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Second {
    /// Where it begins, in seconds since the measurement began.
    pub(crate) at: u32,
    /// I/Os that have ended in it, each second.
    pub(crate) iops: f64,
    /// Latencies in nanoseconds.
    pub(crate) mean: f64,
    pub(crate) p50: u64,
    pub(crate) p99: u64,
}

/// The windows of one second so far.
struct Part {
    all: LatencyStats,
    engines: usize,
    /// I/Os in a second: the sum of those of the engines.
    rate: f64,
}

/// What was gathered so far.
struct Gathered {
    engines: usize,
    total: Window,
    parts: BTreeMap<u32, Part>,
    seconds: Vec<Second>,
    sum: Option<Measurement>,
}

/// Takes what engines report until all of them are over, or one has failed. `tell` is told of each second when it is
/// over.
pub(super) fn gather(
    reports: &Receiver<Report>,
    empty: &[SyncSender<Box<Window>>],
    mut tell: impl FnMut(&Second),
) -> Result<(Measurement, Vec<Second>)> {
    let mut gathered = Gathered {
        engines: empty.len(),
        total: Window::new()?,
        parts: BTreeMap::new(),
        seconds: Vec::new(),
        sum: None,
    };
    for report in reports {
        match report {
            Report::Window { engine, mut window } => {
                gathered.total.reads.add(&window.reads);
                gathered.total.writes.add(&window.writes);
                gathered.add(window.number, window.time, &window.reads, &window.writes)?;
                window.reset();
                // An engine that is over needs no more.
                let _over = empty[engine].try_send(window);
            }
            Report::Over(measurement) => {
                let measurement = measurement?;
                if let Some((number, time)) = measurement.last {
                    gathered.add(number, time, &measurement.reads, &measurement.writes)?;
                }
                match &mut gathered.sum {
                    Some(sum) => sum.add(&measurement),
                    None => gathered.sum = Some(*measurement),
                }
            }
        }
        gathered.finish(gathered.engines).iter().for_each(&mut tell);
    }
    gathered.finish(0);
    let mut sum = gathered.sum.ok_or_else(|| anyhow!("the engine has ended"))?;
    sum.reads.add(&gathered.total.reads);
    sum.writes.add(&gathered.total.writes);
    Ok((sum, gathered.seconds))
}

impl Gathered {
    /// Adds the window of an engine.
    fn add(
        &mut self,
        number: u32,
        time: Duration,
        reads: &LatencyStats,
        writes: &LatencyStats,
    ) -> Result<()> {
        // What is hardly longer than nothing says nothing.
        if time < Duration::from_millis(1) {
            return Ok(());
        }
        let part = match self.parts.remove(&number) {
            Some(part) => part,
            None => Part { all: LatencyStats::new()?, engines: 0, rate: 0.0 },
        };
        let part = self.parts.entry(number).or_insert(part);
        part.all.add(reads);
        part.all.add(writes);
        part.engines += 1;
        part.rate += (reads.count + writes.count) as f64 / time.as_secs_f64();
        Ok(())
    }

    /// The seconds that so many engines have told of, in order. Those before them are as complete as they will be.
    fn finish(&mut self, engines: usize) -> &[Second] {
        let last = self.parts.iter().rev().find(|(_, part)| part.engines >= engines);
        let Some(last) = last.map(|(number, _)| *number) else { return &[] };
        let left = self.parts.split_off(&(last + 1));
        let done = std::mem::replace(&mut self.parts, left);
        let first = self.seconds.len();
        self.seconds.extend(done.into_iter().map(|(at, part)| {
            let latency = &part.all.latency;
            let (mean, p50, p99) =
                (latency.mean(), latency.value_at_percentile(50.0), latency.value_at_percentile(99.0));
            Second { at, iops: part.rate, mean, p50, p99 }
        }));
        &self.seconds[first..]
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    fn stats(latencies: &[u64]) -> LatencyStats {
        let mut stats = LatencyStats::new().expect("a histogram");
        for latency in latencies {
            stats.record(Duration::from_nanos(*latency));
        }
        stats
    }

    fn window(engine: usize, number: u32, latencies: &[u64]) -> Report {
        let window =
            Window { number, time: Duration::from_secs(1), reads: stats(latencies), writes: stats(&[]) };
        Report::Window { engine, window: Box::new(window) }
    }

    fn over(number: u32, latencies: &[u64]) -> Report {
        Report::Over(Ok(Box::new(Measurement {
            last: Some((number, Duration::from_millis(500))),
            reads: stats(latencies),
            ..Measurement::of_nothing().expect("a histogram")
        })))
    }

    #[test]
    fn windows_of_engines_become_seconds_and_all_of_them_the_result() {
        let (sender, reports) = sync_channel(16);
        let (empty, emptied): (Vec<_>, Vec<_>) = (0..2).map(|_| sync_channel(2)).unzip();
        for report in [
            window(0, 0, &[1000, 1000]),
            window(1, 0, &[3000]),
            window(0, 1, &[5000; 4]),
            // This engine was late: its second window began in the third second.
            window(1, 2, &[7000]),
            window(0, 2, &[7000]),
            over(3, &[9000]),
            over(3, &[9000, 9000]),
        ] {
            sender.send(report).expect("room");
        }
        drop(sender);
        let mut told = Vec::new();
        let (sum, seconds) = gather(&reports, &empty, |second| told.push(second.clone())).expect("a result");
        assert_eq!(seconds.iter().map(|one| one.at).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!(seconds.iter().map(|one| one.iops).collect::<Vec<_>>(), [3.0, 4.0, 2.0, 6.0]);
        assert_eq!(told, seconds);
        assert_eq!((sum.reads.count, sum.reads.latency.len()), (12, 12));
        assert!(seconds[0].p50.abs_diff(1000) < 10 && seconds[0].p99.abs_diff(3000) < 10, "{seconds:?}");
        // The windows go back, and are empty.
        let back: Vec<_> = emptied.iter().map(|emptied| emptied.try_iter().count()).collect();
        assert_eq!(back, [2, 2]);
    }

    #[test]
    fn a_failure_of_one_engine_is_the_result() {
        let (sender, reports) = sync_channel(4);
        let (empty, _emptied): (Vec<_>, Vec<_>) = (0..2).map(|_| sync_channel(2)).unzip();
        sender.send(Report::Over(Err(anyhow!("broken")))).expect("room");
        let failed = gather(&reports, &empty, |_| {}).map(drop).expect_err("a failure");
        assert_eq!(failed.to_string(), "broken");
    }
}
