//! The results, as text and as JSON.

use hdrhistogram::Histogram;
use ringfab_fabric::CopiedBytes;
use ringfab_initiator::ControllerInfo;
use serde_json::{Value, json};

use super::Workload;
use super::load::{LatencyStats, Measurement};
use crate::output;
use crate::quantity::Bytes;

const PERCENTILES: [(&str, f64); 5] =
    [("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("p99.9", 99.9), ("p99.99", 99.99)];

/// For programs; latencies are in microseconds.
pub(crate) fn document(workload: &Workload, measured: &Measurement, info: &ControllerInfo) -> Value {
    json!({
        "rw": format!("{:?}", workload.kind).to_lowercase(),
        "read_percent": workload.read_percent,
        "bs": workload.io_bytes,
        "outstanding": measured.outstanding,
        "queues": info.queues,
        "seed": workload.seed,
        "submitted": measured.submitted,
        "elapsed_s": measured.elapsed.as_secs_f64(),
        "iops": rate(count(measured), measured),
        "mib_per_s": mib(count(measured), workload, measured),
        "read": direction(&measured.reads, workload, measured),
        "write": direction(&measured.writes, workload, measured),
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
pub(crate) fn lines(workload: &Workload, measured: &Measurement) -> String {
    let total = count(measured);
    let kind = format!("{:?}", workload.kind).to_lowercase();
    let (bytes, elapsed) = (Bytes(u64::from(workload.io_bytes)), measured.elapsed.as_secs_f64());
    let mut rows = vec![
        ("load", format!("{kind} of {bytes}, {} outstanding, {elapsed:.2} s", measured.outstanding)),
        ("rate", format!("{:.0} IOPS, {:.1} MiB/s", rate(total, measured), mib(total, workload, measured))),
    ];
    for (name, stats) in [("read", &measured.reads), ("write", &measured.writes)] {
        if stats.count > 0 {
            rows.push((name, latency_text(&stats.latency)));
        }
    }
    let cpu = |time: std::time::Duration| per_io(time.as_secs_f64(), measured);
    let (user, system) = (cpu(measured.cpu.user), cpu(measured.cpu.system));
    rows.push((
        "processor",
        format!("{:.2} us per I/O here ({user:.2} user, {system:.2} system)", user + system),
    ));
    let CopiedBytes { received, sent } = measured.copied;
    let per_byte = copied_per_byte(workload, measured);
    rows.push((
        "copied",
        format!("{per_byte:.3} bytes per byte moved here ({received} received, {sent} sent)"),
    ));
    if measured.losses > 0 {
        rows.push(("losses", format!("{} times the connection was lost and made again", measured.losses)));
    }
    if workload.verify {
        let (read_back, mismatches, seed) = (measured.verified, measured.mismatches, workload.seed);
        rows.push(("verify", format!("{read_back} I/Os read back, {mismatches} mismatches (seed {seed})")));
    }
    output::pairs(&rows)
}

fn direction(stats: &LatencyStats, workload: &Workload, measured: &Measurement) -> Value {
    let latency = &stats.latency;
    let mut document = json!({
        "count": stats.count,
        "iops": rate(stats.count, measured),
        "mib_per_s": mib(stats.count, workload, measured),
        "latency_us": { "min": us(latency.min()), "mean": latency.mean() / 1e3, "max": us(latency.max()) },
    });
    for (name, percentile) in PERCENTILES {
        document["latency_us"][name] = us(latency.value_at_percentile(percentile)).into();
    }
    document
}

fn latency_text(latency: &Histogram<u64>) -> String {
    let mut text = String::from("us: ");
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
