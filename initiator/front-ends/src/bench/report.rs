//! The results, as text and as JSON.

use hdrhistogram::Histogram;
use ringfab_base::counted;
use ringfab_fabric::CopiedBytes;
use ringfab_initiator::ControllerInfo;
use serde_json::{Value, json};

use super::Workload;
use super::gather::Second;
use super::load::{LatencyStats, Measurement};
use super::{bars, svg};
use crate::output;
use crate::quantity::Bytes;

const PERCENTILES: [(&str, f64); 5] =
    [("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("p99.9", 99.9), ("p99.99", 99.99)];

/// What a run has found.
pub(super) struct Outcome<'a> {
    /// Of each engine.
    pub(super) workloads: &'a [Workload],
    pub(super) measured: &'a Measurement,
    pub(super) seconds: &'a [Second],
    pub(super) info: &'a ControllerInfo,
}

impl Outcome<'_> {
    /// For programs; latencies are in microseconds. docs/json.md has the meaning of each key.
    pub(super) fn document(&self) -> Value {
        let (workload, measured) = (&self.workloads[0], self.measured);
        let size: u64 = self.workloads.iter().map(|one| one.extents * u64::from(one.io_bytes)).sum();
        json!({
            "rw": kind(workload),
            "read_percent": workload.read_percent,
            "bs": workload.io_bytes,
            "size": size,
            "outstanding": measured.outstanding,
            "queues": self.info.queues,
            "numjobs": self.workloads.len(),
            "seed": workload.seed,
            "submitted": measured.submitted,
            "elapsed_s": measured.elapsed.as_secs_f64(),
            "interrupted": measured.interrupted,
            "iops": rate(count(measured), measured),
            "mib_per_s": mib(count(measured), workload, measured),
            "read": direction(&measured.reads, workload, measured),
            "write": direction(&measured.writes, workload, measured),
            "seconds": self.seconds.iter().map(|one| second(one, workload)).collect::<Vec<_>>(),
            "cpu": {
                "user_s": measured.cpu.user.as_secs_f64(),
                "system_s": measured.cpu.system.as_secs_f64(),
                "user_us_per_io": per_io(measured.cpu.user.as_secs_f64(), measured),
                "system_us_per_io": per_io(measured.cpu.system.as_secs_f64(), measured),
            },
            "copied": {
                "received_bytes": measured.copied.received,
                "sent_bytes": measured.copied.sent,
                "per_byte": copied_per_byte(workload, measured),
            },
            "losses": measured.losses,
            "verify": workload.verify.then(|| json!({
                "read_back": measured.verified,
                "mismatches": measured.mismatches,
                "first": measured.mismatch_texts,
            })),
        })
    }

    /// For people.
    pub(super) fn lines(&self) -> String {
        let (workload, measured) = (&self.workloads[0], self.measured);
        let total = count(measured);
        let (bytes, elapsed) = (Bytes(u64::from(workload.io_bytes)), measured.elapsed.as_secs_f64());
        let load =
            format!("{} of {bytes}, {} outstanding, {elapsed:.2} s", kind(workload), measured.outstanding);
        let load = if measured.interrupted { load + ", interrupted" } else { load };
        let rate = format!("{:.0} IOPS, {:.1} MiB/s", rate(total, measured), mib(total, workload, measured));
        let mut rows = vec![("load", load), ("rate", rate)];
        for (name, stats) in directions(measured) {
            rows.push((name, latency_text(&stats.latency)));
        }
        rows.extend(cost_rows(workload, measured));
        let mut text = output::pairs(&rows);
        for (name, stats) in directions(measured) {
            text.push('\n');
            text.push_str(&bars::lines(name, &stats.latency));
        }
        text
    }

    /// The latency over time, as SVG.
    pub(super) fn picture(&self) -> String {
        let workload = &self.workloads[0];
        let (bytes, outstanding) = (Bytes(u64::from(workload.io_bytes)), self.measured.outstanding);
        svg::draw(
            &format!("latency of {} of {bytes}, {outstanding} outstanding", kind(workload)),
            self.seconds,
        )
    }
}

/// The directions with I/O.
fn directions(measured: &Measurement) -> impl Iterator<Item = (&'static str, &LatencyStats)> {
    [("read", &measured.reads), ("write", &measured.writes)].into_iter().filter(|(_, stats)| stats.count > 0)
}

fn kind(workload: &Workload) -> String {
    format!("{:?}", workload.kind).to_lowercase()
}

/// What it cost, and what went wrong.
fn cost_rows(workload: &Workload, measured: &Measurement) -> Vec<(&'static str, String)> {
    let cpu = |time: std::time::Duration| per_io(time.as_secs_f64(), measured);
    let (user, system) = (cpu(measured.cpu.user), cpu(measured.cpu.system));
    let processor = format!("{:.2} us per I/O here ({user:.2} user, {system:.2} system)", user + system);
    let CopiedBytes { received, sent } = measured.copied;
    let per_byte = copied_per_byte(workload, measured);
    let copied = format!("{per_byte:.3} bytes per byte moved here ({received} received, {sent} sent)");
    let mut rows = vec![("processor", processor), ("copied", copied)];
    if measured.losses > 0 {
        let times = counted(measured.losses, "time");
        rows.push(("losses", format!("{times} the connection was lost and made again")));
    }
    if workload.verify {
        let (read_back, mismatches, seed) = (measured.verified, measured.mismatches, workload.seed);
        rows.push(("verify", format!("{read_back} I/Os read back, {mismatches} mismatches (seed {seed})")));
    }
    rows
}

/// A second of the measurement, for people who watch it.
pub(super) fn second_line(second: &Second, io_bytes: u32) -> String {
    let mib = second.iops * f64::from(io_bytes) / f64::from(1 << 20);
    let us = |nanos: f64| nanos / 1e3;
    format!(
        "{:>5} s  {:>9.0} IOPS  {mib:>8.1} MiB/s  us: mean {:.1}, p50 {:.1}, p99 {:.1}",
        second.at + 1,
        second.iops,
        us(second.mean),
        us(second.p50 as f64),
        us(second.p99 as f64)
    )
}

fn second(second: &Second, workload: &Workload) -> Value {
    json!({
        "at_s": second.at,
        "iops": second.iops,
        "mib_per_s": second.iops * f64::from(workload.io_bytes) / f64::from(1 << 20),
        "mean_us": second.mean / 1e3,
        "p50_us": us(second.p50),
        "p99_us": us(second.p99),
    })
}

fn direction(stats: &LatencyStats, workload: &Workload, measured: &Measurement) -> Value {
    let latency = &stats.latency;
    let mut document = json!({
        "count": stats.count,
        "iops": rate(stats.count, measured),
        "mib_per_s": mib(stats.count, workload, measured),
        "latency_us": {
            "min": us(latency.min()),
            "mean": latency.mean() / 1e3,
            "stdev": latency.stdev() / 1e3,
            "max": us(latency.max()),
        },
        "histogram": bars::document(latency),
    });
    for (name, percentile) in PERCENTILES {
        document["latency_us"][name] = us(latency.value_at_percentile(percentile)).into();
    }
    document
}

fn latency_text(latency: &Histogram<u64>) -> String {
    let mut text = format!("us: mean {:.1}, stdev {:.1}, ", latency.mean() / 1e3, latency.stdev() / 1e3);
    for (name, percentile) in PERCENTILES {
        text.push_str(&format!("{name} {:.1}, ", us(latency.value_at_percentile(percentile))));
    }
    text.push_str(&format!("max {:.1}", us(latency.max())));
    text
}

fn count(measured: &Measurement) -> u64 {
    measured.reads.count + measured.writes.count
}

fn rate(count: u64, measured: &Measurement) -> f64 {
    count as f64 / measured.elapsed.as_secs_f64()
}

fn mib(count: u64, workload: &Workload, measured: &Measurement) -> f64 {
    rate(count, measured) * f64::from(workload.io_bytes) / f64::from(1 << 20)
}

/// Microseconds for one I/O; none without I/O.
fn per_io(seconds: f64, measured: &Measurement) -> f64 {
    match count(measured) {
        0 => 0.0,
        count => seconds * 1e6 / count as f64,
    }
}

/// Bytes copied here for each byte that was moved, those of the warm-up included; none without I/O.
fn copied_per_byte(workload: &Workload, measured: &Measurement) -> f64 {
    let CopiedBytes { received, sent } = measured.copied;
    let moved = measured.submitted * u64::from(workload.io_bytes);
    if moved == 0 { 0.0 } else { (received + sent) as f64 / moved as f64 }
}

fn us(nanos: u64) -> f64 {
    nanos as f64 / 1e3
}
