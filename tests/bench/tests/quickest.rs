//! The program measures what it says, over each transport. Nothing here is about speed.

use std::path::Path;
use std::process::Command;

use ringfab_tests::program;
use serde_json::Value;

/// The first sample of a case.
fn figures<'a>(run: &'a Value, name: &str) -> &'a Value {
    let cases = run["cases"].as_array().expect("cases");
    let case = cases.iter().find(|case| case["name"] == name).unwrap_or_else(|| panic!("{name}: {run}"));
    &case["samples"][0]
}

fn figure(sample: &Value, name: &str) -> f64 {
    sample[name].as_f64().unwrap_or_else(|| panic!("{name}: {sample}"))
}

/// Runs the cases whose names contain one of these, briefly, and gives what was written down.
fn run(folder: &Path, only: &[&str]) -> Value {
    run_form(folder, &["--quick"], only)
}

fn run_form(folder: &Path, form: &[&str], only: &[&str]) -> Value {
    let target = program("ringfab-target");
    assert_eq!(program("ringfab").parent(), target.parent());
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringfab-bench"));
    command.arg("run").args(form).args([
        "--rounds",
        "1",
        "--time",
        "100",
        "--warmup",
        "20",
        "--patience",
        "0",
        "--date",
        "today",
    ]);
    command.arg("--programs").arg(target.parent().expect("a folder"));
    command.arg("--out").arg(folder).arg("--scratch").arg(folder);
    only.iter().for_each(|text| {
        command.args(["--only", text]);
    });
    let output = command.output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(!said.contains("NOT RUN"), "{said}");
    let text = std::fs::read(folder.join("run.json")).expect("a run");
    serde_json::from_slice(&text).expect("JSON")
}

#[test]
fn the_quickest_case_of_each_transport_has_plausible_figures() {
    const CASES: [&str; 2] = ["rdma null randread 4k depth 32", "tcp null randread 4k depth 32"];
    let folder = tempfile::tempdir().expect("a folder");
    let run = run(folder.path(), &CASES);
    assert_eq!(run["facts"]["date"], "today");
    for case in CASES {
        let sample = figures(&run, case);
        let (iops, p50) = (figure(sample, "iops"), figure(sample, "p50"));
        assert!(iops > 0.0 && p50 > 1.0, "{sample}");
        assert!(p50 <= figure(sample, "p99") && figure(sample, "p99") <= figure(sample, "p999"), "{sample}");
        assert!((figure(sample, "megabytes") - iops * 0.004096).abs() < 1.0, "{sample}");
        // The initiator copies small payloads out of what it received; the target copies little but headers.
        let copied = ["initiator", "target"].map(|end| figure(sample, &format!("{end}_copied")));
        assert!(copied[0] > 0.01 && copied[0] < 2.5 && copied[1] > 0.01 && copied[1] < 0.5, "{sample}");
        // Each end runs on one core.
        for end in ["initiator", "target"] {
            let cpu = figure(sample, &format!("{end}_user")) + figure(sample, &format!("{end}_system"));
            assert!(cpu * 1e-6 * iops < 3.0, "{end}: {sample}");
        }
    }
    let report = std::fs::read_to_string(folder.path().join("report.md")).expect("a report");
    assert!(report.contains("### rdma null") && report.contains("### tcp null"), "{report}");
    assert!(report.contains("p99.9 against the median, depth 32"), "{report}");
}

#[test]
fn what_a_target_costs_without_work_is_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = run(folder.path(), &["footprint start", "footprint connect"]);
    let start = figures(&run, "footprint start");
    assert!(figure(start, "millis") > 0.1 && figure(start, "resident_kib") > 1024.0, "{start}");
    for transport in ["rdma", "tcp"] {
        let connect = figures(&run, &format!("footprint connect {transport} queues 4"));
        assert!(figure(connect, "millis") > 0.01, "{connect}");
    }
}

#[test]
fn what_an_io_costs_in_a_crowd_is_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let cases = ["scale rdma beside 63 queues", "scale tcp among 64 namespaces", "scale tcp threads 4"];
    let run = run_form(folder.path(), &[], &cases);
    for case in cases {
        let sample = figures(&run, case);
        // So short a run may cost less than the visit that is taken off, where it hardly ran.
        assert!(
            figure(sample, "iops") > 0.0 && figure(sample, "target_cpu").abs() < 1000.0,
            "{case}: {sample}"
        );
    }
    let queues = figures(&run, cases[0]);
    assert!(figure(queues, "worst_millis") <= figure(queues, "millis"), "{queues}");
    assert!(figure(queues, "each_kib") > 1.0, "{queues}");
    assert!(figure(figures(&run, cases[2]), "resident_kib") > 1024.0, "{run}");
}

#[test]
fn a_run_compares_with_itself_without_a_change() {
    let folder = tempfile::tempdir().expect("a folder");
    run(folder.path(), &["raw ping-pong"]);
    let kept = folder.path().join("run.json");
    let output =
        Command::new(env!("CARGO_BIN_EXE_ringfab-bench")).arg("compare").args([&kept, &kept]).output();
    let output = output.expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("+0.0 %"), "{text}");
}
