//! fio, as what others are measured with.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::case::Rw;
use crate::sample::{Metric, Sample};

/// One job of fio.
pub(crate) struct Job<'a> {
    /// The engine, and what it works on.
    pub(crate) engine: &'a [String],
    /// What is in its environment, if something has to be.
    pub(crate) environment: Option<(&'a str, &'a Path)>,
    pub(crate) rw: Rw,
    pub(crate) io_bytes: u32,
    pub(crate) depth: u16,
    /// How much of what it works on it uses.
    pub(crate) size_bytes: u64,
}

impl Job<'_> {
    /// Runs it for a time.
    pub(crate) fn run(&self, warmup: Duration, time: Duration) -> Result<Sample> {
        let millis = |time: Duration| format!("{}ms", time.as_millis());
        let bounds = [format!("--ramp_time={}", millis(warmup)), format!("--runtime={}", millis(time))];
        let document = self.start(&[&["--time_based=1".to_owned()][..], &bounds].concat())?;
        sample(&document, self.rw, self.io_bytes)
    }

    /// Runs it once over all of its size.
    pub(crate) fn run_whole(&self) -> Result<()> {
        self.start(&[]).map(drop)
    }

    fn start(&self, more: &[String]) -> Result<Value> {
        let mut command = Command::new("fio");
        command.args(["--name=job", "--output-format=json", "--norandommap=1", "--allow_file_create=0"]);
        command.args(self.engine).args(more).envs(self.environment);
        command.arg(format!("--rw={}", self.rw.name()));
        command.arg(format!("--bs={}", self.io_bytes)).arg(format!("--iodepth={}", self.depth));
        command.arg(format!("--size={}", self.size_bytes)).stdin(Stdio::null());
        let output = command.output().context("start fio")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "fio: {}", said.trim());
        // It may warn before its document.
        let text = String::from_utf8_lossy(&output.stdout);
        let begin = text.find('{').context("fio prints no JSON")?;
        serde_json::from_str(&text[begin..]).context("what fio prints")
    }
}

fn sample(document: &Value, rw: Rw, io_bytes: u32) -> Result<Sample> {
    let side = if matches!(rw, Rw::RandWrite | Rw::Write) { "write" } else { "read" };
    let job = document.pointer("/jobs/0").context("a job of fio")?;
    ensure!(job["error"] == 0, "fio reports error {}", job["error"]);
    let figures = &job[side];
    let iops = figures["iops"].as_f64().filter(|iops| *iops > 0.0).context("fio has done nothing")?;
    let mut sample = Sample::default();
    sample.set(Metric::Iops, iops);
    sample.set(Metric::Megabytes, iops * f64::from(io_bytes) / 1e6);
    let percentiles = &figures["clat_ns"]["percentile"];
    for (metric, name) in
        [(Metric::P50, "50.000000"), (Metric::P99, "99.000000"), (Metric::P999, "99.900000")]
    {
        sample.set(metric, percentiles[name].as_f64().context("a percentile of fio")? / 1e3);
    }
    Ok(sample)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn figures_are_read_from_the_right_side() {
        let side = |iops: f64| {
            let percentiles = json!({ "50.000000": 1000, "99.000000": 2000, "99.900000": 3000 });
            json!({ "iops": iops, "clat_ns": { "percentile": percentiles } })
        };
        let document = json!({ "jobs": [{ "error": 0, "read": side(0.0), "write": side(50.0) }] });
        let figures = sample(&document, Rw::RandWrite, 4096).expect("writes");
        assert_eq!((figures.get(Metric::Iops), figures.get(Metric::P999)), (Some(50.0), Some(3.0)));
        let error = sample(&document, Rw::RandRead, 4096).expect_err("no reads").to_string();
        assert!(error.contains("nothing"), "{error}");
    }

    #[test]
    fn an_error_of_the_job_is_one() {
        let document = json!({ "jobs": [{ "error": 5 }] });
        assert!(sample(&document, Rw::Read, 4096).expect_err("error 5").to_string().contains('5'));
    }
}
