//! The target's path to a file and to a loop device, with nothing above it, beside fio's on the same.
//!
//! Both have registered buffers and files, go around the page cache and run on the target's core.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::case::{Disk, Medium, Rw, Tool};
use crate::fio::Job;
use crate::place::{TARGET_CORE, on_core};
use crate::sample::{Metric, Sample};
use crate::target::{NAMESPACE_BYTES, Setup};

const IO_BYTES: u32 = 4096;

/// Runs one case on a file, or on a loop device over it.
pub(crate) fn measure(setup: &Setup, case: &Disk, file: &Path) -> Result<Sample> {
    match case.medium {
        Medium::File => on_path(setup, case, file),
        Medium::Loop => on_path(setup, case, &LoopDevice::over(file)?.0),
    }
}

fn on_path(setup: &Setup, case: &Disk, path: &Path) -> Result<Sample> {
    match case.tool {
        Tool::Ours => ours(setup, case, path),
        Tool::Fio => fio(setup, case, path),
    }
}

fn fio(setup: &Setup, case: &Disk, path: &Path) -> Result<Sample> {
    let engine = [
        "--ioengine=io_uring".to_owned(),
        "--fixedbufs=1".to_owned(),
        "--registerfiles=1".to_owned(),
        "--direct=1".to_owned(),
        format!("--cpus_allowed={TARGET_CORE}"),
        format!("--filename={}", path.display()),
    ];
    let job = Job {
        engine: &engine,
        environment: None,
        rw: case.rw,
        io_bytes: IO_BYTES,
        depth: case.depth,
        size_bytes: NAMESPACE_BYTES,
    };
    job.run(setup.warmup, setup.time)
}

fn ours(setup: &Setup, case: &Disk, path: &Path) -> Result<Sample> {
    let mut command = setup.program("examples/disk_rate");
    command.arg(path).arg(if case.rw == Rw::RandRead { "read" } else { "write" });
    let (warmup, time) = (setup.warmup.as_millis() as u64, setup.time.as_millis() as u64);
    let numbers = [IO_BYTES.into(), case.depth.into(), NAMESPACE_BYTES, warmup, time, TARGET_CORE as u64];
    command.args(numbers.map(|number| number.to_string())).stdin(Stdio::null());
    let output = on_core(TARGET_CORE, || command.output().context("start the example disk_rate"))?;
    ensure!(output.status.success(), "disk_rate: {}", String::from_utf8_lossy(&output.stderr).trim());
    let document: Value = serde_json::from_slice(&output.stdout).context("what disk_rate prints")?;
    let mut sample = Sample::default();
    for (metric, name) in
        [(Metric::Iops, "iops"), (Metric::P50, "p50"), (Metric::P99, "p99"), (Metric::P999, "p99.9")]
    {
        sample.set(metric, document[name].as_f64().with_context(|| format!("disk_rate gives no {name}"))?);
    }
    Ok(sample)
}

/// A loop device, until this is dropped.
struct LoopDevice(PathBuf);

impl LoopDevice {
    fn over(file: &Path) -> Result<Self> {
        let mut command = Command::new("losetup");
        command.args(["--find", "--show", "--direct-io=on"]).arg(file);
        let output = command.output().context("start losetup")?;
        ensure!(output.status.success(), "losetup: {}", String::from_utf8_lossy(&output.stderr).trim());
        Ok(Self(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim())))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _gone = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}
