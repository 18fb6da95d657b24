//! Ringfab as its users have it: `ringfab-target` and `ringfab bench` as processes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tempfile::TempDir;

use crate::case::{Congestion, Fabric, Namespace, Rw, Transport};
use crate::place::{INITIATOR_CORE, TARGET_CORE, on_core};
use crate::sample::{Metric, Sample};
use crate::service::{CpuTime, Service};

/// Name of the one subsystem.
const NQN: &str = "nqn.2026-11.org.example:bench";
/// Size of the memory namespace and of the file; large enough to lie outside the caches.
pub(crate) const NAMESPACE_BYTES: u64 = 512 << 20;

/// Where the programs are, and how long to run them.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    /// Folder of the programs.
    pub(crate) programs: PathBuf,
    pub(crate) warmup: Duration,
    pub(crate) time: Duration,
    /// Of the connections that Ringfab makes.
    pub(crate) congestion: Congestion,
}

impl Setup {
    /// A program of ours.
    pub(crate) fn program(&self, name: &str) -> Command {
        Command::new(self.programs.join(name))
    }
}

/// A target with one namespace of each kind and a listener of each transport.
pub(crate) struct Target {
    service: Service,
    /// `HOST:PORT` of RDMA and of TCP.
    addresses: [String; 2],
    _folder: TempDir,
}

impl Target {
    /// Starts one at its defaults on the target's core.
    pub(crate) fn start(setup: &Setup, file: &Path) -> Result<Self> {
        let folder = tempfile::tempdir().context("a folder for the target")?;
        let path = |name: &str| folder.path().join(name);
        fs::write(path("target.toml"), configuration(setup, &path("state"), file))?;
        let mut command = setup.program("ringfab-target");
        command.args(["serve", "--config"]).arg(path("target.toml"));
        command.arg("--ready-file").arg(path("ready"));
        let addresses = || {
            let text = fs::read_to_string(path("ready")).ok()?;
            let mut lines = text.lines().map(str::to_owned);
            Some([lines.next()?, lines.next()?])
        };
        let service = Service::start(command, Some(TARGET_CORE), &path("log"), || addresses().is_some())?;
        let addresses = addresses().context("two addresses in the ready file")?;
        Ok(Self { service, addresses, _folder: folder })
    }

    /// Its process.
    pub(crate) fn service(&self) -> &Service {
        &self.service
    }

    /// Address of a namespace.
    pub(crate) fn url(&self, setup: &Setup, transport: Transport, digests: bool, nsid: u32) -> String {
        let state = if digests { "on" } else { "off" };
        let congestion = setup.congestion.name().map(|name| format!("&congestion={name}"));
        let congestion = congestion.unwrap_or_default();
        match transport {
            Transport::Rdma => {
                let address = &self.addresses[0];
                format!("nvme+rdma://{address}/{NQN}?ns={nsid}&provider=iwarp&crc={state}{congestion}")
            }
            Transport::Tcp => {
                let address = &self.addresses[1];
                format!("nvme+tcp://{address}/{NQN}?ns={nsid}&hdgst={state}&ddgst={state}{congestion}")
            }
        }
    }

    /// Writes all of the memory namespace once, so that its pages are there.
    pub(crate) fn fill_memory(&self, setup: &Setup) -> Result<()> {
        let case = Fabric {
            transport: Transport::Tcp,
            digests: false,
            namespace: Namespace::Memory,
            rw: Rw::Write,
            io_bytes: 128 << 10,
            depth: 16,
            queues: 1,
        };
        let setup =
            Setup { warmup: Duration::from_millis(10), time: Duration::from_secs(1), ..setup.clone() };
        self.measure(&setup, &case).map(drop)
    }

    /// Runs one case.
    pub(crate) fn measure(&self, setup: &Setup, case: &Fabric) -> Result<Sample> {
        let url = self.url(setup, case.transport, case.digests, case.namespace.nsid());
        let mut command = bench(setup, case, &url);
        let before = self.service.cpu()?;
        let output = on_core(INITIATOR_CORE, || command.output().context("start ringfab bench"))?;
        let target = self.service.cpu()?.since(before);
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "ringfab bench: {}", said.trim());
        let document = serde_json::from_slice(&output.stdout).context("what ringfab bench prints")?;
        sample(&document, case, target)
    }
}

fn configuration(setup: &Setup, state: &Path, file: &Path) -> String {
    let congestion = setup.congestion.name().map(|name| format!("congestion = {name:?}\n"));
    let congestion = congestion.unwrap_or_default();
    let control = state.with_file_name("control");
    format!(
        "[target]\nstate_dir = {state:?}\ncores = [{TARGET_CORE}]\n[control]\nsocket = {control:?}\n\
         [[listener]]\naddress = \"127.0.0.1\"\nport = 0\nprovider = \"iwarp\"\ncrc = false\n{congestion}\
         [[listener]]\naddress = \"127.0.0.1\"\nport = 0\ntransport = \"tcp\"\n{congestion}\
         [[subsystem]]\nnqn = {NQN:?}\nallow_any_host = true\n\
         [[subsystem.namespace]]\nnsid = {}\nnull = \"1TiB\"\nblock_bytes = 512\n\
         [[subsystem.namespace]]\nnsid = {}\nmemory = {NAMESPACE_BYTES}\nblock_bytes = 512\n\
         [[subsystem.namespace]]\nnsid = {}\npath = {file:?}\nblock_bytes = 512\ndirect = true\n",
        Namespace::Null.nsid(),
        Namespace::Memory.nsid(),
        Namespace::File.nsid(),
    )
}

fn bench(setup: &Setup, case: &Fabric, url: &str) -> Command {
    let mut command = setup.program("ringfab");
    command.args(["--json", "bench", url, "--seed", "1", "--rw", case.rw.name()]);
    let millis = |time: Duration| format!("{}ms", time.as_millis());
    for (option, value) in [
        ("--bs", case.io_bytes.to_string()),
        ("--depth", case.depth.to_string()),
        ("--queues", case.queues.to_string()),
        ("--core", INITIATOR_CORE.to_string()),
        ("--warmup", millis(setup.warmup)),
        ("--time", millis(setup.time)),
        ("--destroy-data", case.namespace.nsid().to_string()),
    ] {
        command.args([option, &value]);
    }
    // The same part of each namespace, so that they differ in nothing else.
    command.args(["--size", &NAMESPACE_BYTES.to_string()]);
    command.stdin(Stdio::null());
    command
}

/// The figures of one run. The target's processor time is that of the whole run, over all its I/Os.
fn sample(document: &Value, case: &Fabric, target: CpuTime) -> Result<Sample> {
    let number = |path: &str| {
        document
            .pointer(path)
            .and_then(Value::as_f64)
            .with_context(|| format!("ringfab bench gives no {path}"))
    };
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
    sample.set(Metric::TargetUser, target.user_s * 1e6 / submitted);
    sample.set(Metric::TargetSystem, target.system_s * 1e6 / submitted);
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
            "cpu": { "user_us_per_io": 1.0, "system_us_per_io": 2.0 },
        });
        let target = CpuTime { user_s: 0.001, system_s: 0.002 };
        let sample = sample(&document, &CASE, target).expect("all is there");
        for (metric, value) in [
            (Metric::Iops, 1000.0),
            (Metric::Megabytes, 4.096),
            (Metric::P50, 10.0),
            (Metric::P999, 30.0),
            (Metric::InitiatorSystem, 2.0),
            (Metric::TargetUser, 2.0),
            (Metric::TargetSystem, 4.0),
        ] {
            assert_eq!(sample.get(metric), Some(value), "{metric:?}");
        }
    }

    #[test]
    fn a_figure_that_is_missing_is_named() {
        let error = sample(&json!({ "iops": 1.0 }), &CASE, CpuTime::default()).expect_err("too little");
        assert!(error.to_string().contains("/submitted"), "{error}");
    }
}
