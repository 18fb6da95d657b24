//! The results, as text and as JSON.

use hdrhistogram::Histogram;
use ringfab_fabric::CopiedBytes;
use ringfab_initiator::ControllerInfo;
use serde_json::{Value, json};

use super::Plan;
use super::load::{Direction, Outcome};
use crate::output;
use crate::quantity::Bytes;

const PERCENTILES: [(&str, f64); 5] =
    [("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("p99.9", 99.9), ("p99.99", 99.99)];

/// For programs; latencies are in microseconds.
pub(crate) fn document(plan: &Plan, outcome: &Outcome, info: Option<&ControllerInfo>) -> Value {
    json!({
        "rw": format!("{:?}", plan.kind).to_lowercase(),
        "read_percent": plan.read_percent,
        "bs": plan.io_bytes,
        "outstanding": plan.outstanding,
        "queues": info.map(|info| info.queues),
        "seed": plan.seed,
        "submitted": outcome.submitted,
        "elapsed_s": outcome.elapsed.as_secs_f64(),
        "iops": rate(count(outcome), outcome),
        "mib_per_s": mib(count(outcome), plan, outcome),
        "read": direction(&outcome.reads, plan, outcome),
        "write": direction(&outcome.writes, plan, outcome),
        "cpu": {
            "user_s": outcome.user.as_secs_f64(),
            "system_s": outcome.system.as_secs_f64(),
            "user_us_per_io": per_io(outcome.user.as_secs_f64(), outcome),
            "system_us_per_io": per_io(outcome.system.as_secs_f64(), outcome),
        },
        "copied": {
            "received_bytes": outcome.copied.received,
            "sent_bytes": outcome.copied.sent,
            "per_byte": copied_per_byte(plan, outcome),
        },
        "losses": outcome.losses,
        "verify": plan.verify.then(|| json!({
            "read_back": outcome.verified,
            "mismatches": outcome.mismatches,
            "first": outcome.mismatch_texts,
        })),
    })
}

/// For people.
pub(crate) fn lines(plan: &Plan, outcome: &Outcome) -> String {
    let total = count(outcome);
    let kind = format!("{:?}", plan.kind).to_lowercase();
    let (bytes, elapsed) = (Bytes(u64::from(plan.io_bytes)), outcome.elapsed.as_secs_f64());
    let mut rows = vec![
        ("load", format!("{kind} of {bytes}, {} outstanding, {elapsed:.2} s", plan.outstanding)),
        ("rate", format!("{:.0} IOPS, {:.1} MiB/s", rate(total, outcome), mib(total, plan, outcome))),
    ];
    for (name, direction) in [("read", &outcome.reads), ("write", &outcome.writes)] {
        if direction.count > 0 {
            rows.push((name, latency_text(&direction.latency)));
        }
    }
    let cpu = |time: std::time::Duration| per_io(time.as_secs_f64(), outcome);
    let (user, system) = (cpu(outcome.user), cpu(outcome.system));
    rows.push((
        "processor",
        format!("{:.2} us per I/O here ({user:.2} user, {system:.2} system)", user + system),
    ));
    let CopiedBytes { received, sent } = outcome.copied;
    let per_byte = copied_per_byte(plan, outcome);
    rows.push((
        "copied",
        format!("{per_byte:.3} bytes per byte moved here ({received} received, {sent} sent)"),
    ));
    if outcome.losses > 0 {
        rows.push(("losses", format!("{} times the connection was lost and made again", outcome.losses)));
    }
    if plan.verify {
        let (read_back, mismatches, seed) = (outcome.verified, outcome.mismatches, plan.seed);
        rows.push(("verify", format!("{read_back} I/Os read back, {mismatches} mismatches (seed {seed})")));
    }
    output::pairs(&rows)
}

fn direction(direction: &Direction, plan: &Plan, outcome: &Outcome) -> Value {
    let latency = &direction.latency;
    let mut document = json!({
        "count": direction.count,
        "iops": rate(direction.count, outcome),
        "mib_per_s": mib(direction.count, plan, outcome),
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

fn count(outcome: &Outcome) -> u64 {
    outcome.reads.count + outcome.writes.count
}

fn rate(count: u64, outcome: &Outcome) -> f64 {
    count as f64 / outcome.elapsed.as_secs_f64()
}

fn mib(count: u64, plan: &Plan, outcome: &Outcome) -> f64 {
    rate(count, outcome) * f64::from(plan.io_bytes) / f64::from(1 << 20)
}

/// Microseconds for one I/O; none without I/O.
fn per_io(seconds: f64, outcome: &Outcome) -> f64 {
    match count(outcome) {
        0 => 0.0,
        count => seconds * 1e6 / count as f64,
    }
}

/// Bytes copied here for each byte that was moved, those of the warm-up included; none without I/O.
fn copied_per_byte(plan: &Plan, outcome: &Outcome) -> f64 {
    let CopiedBytes { received, sent } = outcome.copied;
    let moved = outcome.submitted * u64::from(plan.io_bytes);
    if moved == 0 { 0.0 } else { (received + sent) as f64 / moved as f64 }
}

fn us(nanos: u64) -> f64 {
    nanos as f64 / 1e3
}
