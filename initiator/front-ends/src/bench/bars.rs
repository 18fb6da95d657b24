//! A small histogram of latencies, for people.

use hdrhistogram::Histogram;
use ringfab_process::terminal::{self, Stream};
use serde_json::{Value, json};

/// Letters of the longest bar.
const BAR_MAX: usize = 40;

/// Latencies between two limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bucket {
    /// Its upper limit, in nanoseconds; the one before has the lower.
    limit: u64,
    count: u64,
}

/// The limits are 1, 2 and 5 times powers of ten, from the bucket of the shortest latency to that of the longest.
fn buckets(latency: &Histogram<u64>) -> Vec<Bucket> {
    let mut buckets: Vec<Bucket> = Vec::new();
    for value in latency.iter_recorded() {
        let at = value.value_iterated_to();
        while buckets.last().is_none_or(|bucket| bucket.limit < at) {
            let limit = buckets.last().map_or_else(|| limit_of(at), |bucket| next_limit(bucket.limit));
            buckets.push(Bucket { limit, count: 0 });
        }
        if let Some(bucket) = buckets.last_mut() {
            bucket.count += value.count_since_last_iteration();
        }
    }
    buckets
}

/// The smallest limit that is no less.
fn limit_of(value: u64) -> u64 {
    let mut limit = 1;
    while limit < value {
        limit = next_limit(limit);
    }
    limit
}

fn next_limit(limit: u64) -> u64 {
    let power = 10_u64.pow(limit.ilog10());
    if limit / power == 2 { limit / 2 * 5 } else { limit * 2 }
}

/// For programs.
pub(super) fn document(latency: &Histogram<u64>) -> Value {
    let entry = |bucket: &Bucket| json!({ "up_to_us": bucket.limit as f64 / 1e3, "count": bucket.count });
    buckets(latency).iter().map(entry).collect()
}

/// A line for each bucket: its limit, a bar, and its part of all. It fits the terminal.
pub(super) fn lines(name: &str, latency: &Histogram<u64>) -> String {
    // What stands beside the bar takes 24 letters.
    let room = terminal::width(Stream::Out).map_or(BAR_MAX, |width| width.saturating_sub(24));
    drawn(name, &buckets(latency), room.clamp(8, BAR_MAX), terminal::is_unicode())
}

fn drawn(name: &str, buckets: &[Bucket], width: usize, unicode: bool) -> String {
    let all: u64 = buckets.iter().map(|bucket| bucket.count).sum();
    let most = buckets.iter().map(|bucket| bucket.count).max().unwrap_or(0).max(1);
    let mut text = format!("{name} latency\n");
    for Bucket { limit, count } in buckets {
        let bar = bar(*count as f64 / most as f64, width, unicode);
        let percent = *count as f64 * 100.0 / all.max(1) as f64;
        text.push_str(&format!("  up to {:>7}  {bar:<width$} {percent:>5.1} %\n", time(*limit)));
    }
    text
}

/// A bar of a part of the width. What is not nothing can be seen.
fn bar(part: f64, width: usize, unicode: bool) -> String {
    const EIGHTHS: [char; 8] = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉'];
    let eighths = (part * width as f64 * 8.0).round() as usize;
    let eighths = if part > 0.0 { eighths.max(1) } else { eighths };
    if !unicode {
        return "#".repeat(eighths.div_ceil(8));
    }
    let rest = Some(EIGHTHS[eighths % 8]).filter(|_| !eighths.is_multiple_of(8));
    "█".repeat(eighths / 8).chars().chain(rest).collect()
}

fn time(nanos: u64) -> String {
    match nanos {
        0..1_000 => format!("{nanos} ns"),
        1_000..1_000_000 => format!("{} us", nanos / 1_000),
        1_000_000..1_000_000_000 => format!("{} ms", nanos / 1_000_000),
        _ => format!("{} s", nanos / 1_000_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(latencies: &[u64]) -> Histogram<u64> {
        let mut histogram = Histogram::new_with_bounds(1, 100_000_000_000, 3).expect("a histogram");
        latencies.iter().for_each(|latency| histogram.saturating_record(*latency));
        histogram
    }

    #[test]
    fn limits_are_round_and_every_latency_is_in_one_bucket() {
        let all = buckets(&histogram(&[900, 1_500, 1_600, 30_000]));
        let shown: Vec<(u64, u64)> = all.iter().map(|bucket| (bucket.limit, bucket.count)).collect();
        assert_eq!(shown, [(1_000, 1), (2_000, 2), (5_000, 0), (10_000, 0), (20_000, 0), (50_000, 1)]);
        assert_eq!(buckets(&histogram(&[])), []);
    }

    #[test]
    fn bars_are_drawn_in_the_letters_that_there_are() {
        let all = buckets(&histogram(&[1_500, 1_500, 3_000, 3_000, 3_000, 3_000]));
        let ascii = drawn("read", &all, 8, false);
        assert_eq!(
            ascii,
            "read latency\n  up to    2 us  ####      33.3 %\n  up to    5 us  ########  66.7 %\n"
        );
        assert!(drawn("read", &all, 8, true).contains(" ████      33.3 %"));
        assert_eq!((bar(0.0001, 8, true).as_str(), bar(0.0001, 8, false).as_str()), ("▏", "#"));
        assert_eq!((bar(0.0, 8, true).as_str(), bar(1.0, 3, true).as_str()), ("", "███"));
    }
}
