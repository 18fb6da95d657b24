//! Ringfab as its users have it: `ringfab bench` against `ringfab-target`, as processes.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::case::{Fabric, Namespace, Rw, Transport};
use crate::place::{INITIATOR_CORE, on_core};
use crate::sample::{Metric, Sample};
use crate::service::CpuTime;
use crate::target::{HOST, NAMESPACE_BYTES, Setup, Target};

/// Runs one case.
pub(crate) fn measure(setup: &Setup, target: &Target, case: &Fabric) -> Result<Sample> {
    let (cpu, copied) = (target.service().cpu()?, target.copied_bytes()?);
    let command = bench(setup, target, case, case.namespace.nsid());
    let document = if setup.shares { run_anywhere(command)? } else { run(command)? };
    let used =
        Used { cpu: target.service().cpu()?.since(cpu), copied_bytes: target.copied_bytes()? - copied };
    sample(&document, case, &used)
}

/// Writes all of the memory namespace once, so that its pages are there.
pub(crate) fn fill_memory(setup: &Setup, target: &Target) -> Result<()> {
    let case = Fabric {
        transport: Transport::Tcp,
        digests: false,
        namespace: Namespace::Memory,
        rw: Rw::Write,
        io_bytes: 128 << 10,
        depth: 16,
        queues: 1,
    };
    let setup = Setup { warmup: Duration::from_millis(10), time: Duration::from_secs(1), ..setup.clone() };
    measure(&setup, target, &case).map(drop)
}

/// Runs `ringfab bench`, or what has it run, and gives what it prints.
pub(crate) fn run(command: Command) -> Result<Value> {
    on_core(INITIATOR_CORE, || run_anywhere(command))
}

fn run_anywhere(mut command: Command) -> Result<Value> {
    let output = command.stdin(Stdio::null()).output().context("start ringfab bench")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ringfab bench: {}", said.trim());
    serde_json::from_slice(&output.stdout).context("what ringfab bench prints")
}

/// The command of a case, on any namespace.
pub(crate) fn bench(setup: &Setup, target: &Target, case: &Fabric, nsid: u32) -> Command {
    let url = target.url(setup, case.transport, case.digests, nsid);
    let mut command = setup.program("ringfab");
    command.args(["--json", "bench", &url, "--seed", "1", "--rw", case.rw.name()]);
    if case.transport == Transport::Tls {
        command.args(["--hostnqn", HOST]);
    }
    let millis = |time: Duration| format!("{}ms", time.as_millis());
    for (option, value) in [
        ("--bs", case.io_bytes.to_string()),
        ("--depth", case.depth.to_string()),
        ("--queues", case.queues.to_string()),
        ("--warmup", millis(setup.warmup)),
        ("--time", millis(setup.time)),
        ("--destroy-data", nsid.to_string()),
    ] {
        command.args([option, &value]);
    }
    if setup.shares {
        command.args(["--spin", "0us"]);
    } else {
        command.args(["--core", &INITIATOR_CORE.to_string()]);
    }
    // The same part of each namespace, so that they differ in nothing else.
    command.args(["--size", &NAMESPACE_BYTES.to_string()]);
    command
}

/// A number that `ringfab bench` gives.
pub(crate) fn number(document: &Value, path: &str) -> Result<f64> {
    let found = document.pointer(path).and_then(Value::as_f64);
    found.with_context(|| format!("ringfab bench gives no {path}"))
}

/// What the target did for a whole run.
#[derive(Clone, Copy, Debug, Default)]
struct Used {
    cpu: CpuTime,
    copied_bytes: u64,
}

/// The figures of one run. What the target did is that of the whole run, over all its I/Os.
fn sample(document: &Value, case: &Fabric, target: &Used) -> Result<Sample> {
    let number = |path: &str| number(document, path);
    let side = if matches!(case.rw, Rw::RandWrite | Rw::Write) { "/write" } else { "/read" };
    let (iops, submitted) = (number("/iops")?, number("/submitted")?.max(1.0));
    let mut sample = Sample::default();
    sample.set(Metric::Iops, iops);
    sample.set(Metric::Megabytes, iops * f64::from(case.io_bytes) / 1e6);
    for (metric, name) in [(Metric::P50, "p50"), (Metric::P99, "p99"), (Metric::P999, "p99.9")] {
        sample.set(metric, number(&format!("{side}/latency_us/{name}"))?);
    }
    sample.set(Metric::InitiatorUser, number("/cpu/user_us_per_io")?);
    sample.set(Metric::InitiatorSystem, number("/cpu/system_us_per_io")?);
    sample.set(Metric::TargetUser, target.cpu.user_s * 1e6 / submitted);
    sample.set(Metric::TargetSystem, target.cpu.system_s * 1e6 / submitted);
    sample.set(Metric::InitiatorCopied, number("/copied/per_byte")?);
    let moved = submitted * f64::from(case.io_bytes);
    sample.set(Metric::TargetCopied, target.copied_bytes as f64 / moved);
    Ok(sample)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const CASE: Fabric = Fabric {
        transport: Transport::Rdma,
        digests: false,
        namespace: Namespace::Null,
        rw: Rw::RandWrite,
        io_bytes: 4096,
        depth: 1,
        queues: 1,
    };

    #[test]
    fn figures_come_from_the_side_that_the_case_is_about() {
        let latency = |p50: f64| json!({ "latency_us": { "p50": p50, "p99": 20.0, "p99.9": 30.0 } });
        let document = json!({
            "iops": 1000.0, "submitted": 500, "read": latency(0.0), "write": latency(10.0),
            "cpu": { "user_us_per_io": 1.0, "system_us_per_io": 2.0 }, "copied": { "per_byte": 0.25 },
        });
        let target = Used { cpu: CpuTime { user_s: 0.001, system_s: 0.002 }, copied_bytes: 500 * 4096 / 2 };
        let sample = sample(&document, &CASE, &target).expect("all is there");
        for (metric, value) in [
            (Metric::Iops, 1000.0),
            (Metric::Megabytes, 4.096),
            (Metric::P50, 10.0),
            (Metric::P999, 30.0),
            (Metric::InitiatorSystem, 2.0),
            (Metric::TargetUser, 2.0),
            (Metric::TargetSystem, 4.0),
            (Metric::InitiatorCopied, 0.25),
            (Metric::TargetCopied, 0.5),
        ] {
            assert_eq!(sample.get(metric), Some(value), "{metric:?}");
        }
    }

    #[test]
    fn a_figure_that_is_missing_is_named() {
        let error = sample(&json!({ "iops": 1.0 }), &CASE, &Used::default()).expect_err("too little");
        assert!(error.to_string().contains("/submitted"), "{error}");
    }
}
