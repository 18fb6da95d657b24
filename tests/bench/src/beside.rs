//! A host with one command at a time beside a busy one, on one core of the target: how long that one takes, and what
//! the busy one does meanwhile. Both hosts share a processor, which is in these figures, too.

use std::process::Stdio;
use std::thread::sleep;

use anyhow::{Context, Result, ensure};

use crate::case::{Beside, Fabric, Namespace, Rw, Transport};
use crate::fabric::{bench, number, run};
use crate::place::{INITIATOR_CORE, on_core};
use crate::sample::{Metric, Sample};
use crate::target::{Setup, Target};

/// Outstanding in each queue of the busy host.
const BUSY_DEPTH: u16 = 128;
/// Hosts are told apart by their names.
const BUSY_NQN: &str = "nqn.2026-11.org.ringfab:busy";
const QUIET_NQN: &str = "nqn.2026-11.org.ringfab:quiet";

/// Latencies are those of the quiet host, the rate is that of the busy one. The other one's lie within the busy one's
/// time.
pub(crate) fn measure(setup: &Setup, target: &Target, case: &Beside) -> Result<Sample> {
    let nsid = Namespace::Memory.nsid();
    let long = Setup { time: setup.time + 2 * setup.warmup + setup.time / 2, ..setup.clone() };
    let load = reads(case.transport, case.io_bytes, BUSY_DEPTH, case.queues);
    let mut busy = bench(&long, target, &load, nsid);
    busy.args(["--hostnqn", BUSY_NQN]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let busy = on_core(INITIATOR_CORE, || busy.spawn().context("start ringfab bench"))?;
    // A measurement begins when what it is about has settled.
    sleep(setup.warmup);
    let mut quiet = bench(setup, target, &reads(case.transport, 4096, 1, 1), nsid);
    quiet.args(["--hostnqn", QUIET_NQN]);
    let document = run(quiet);
    let output = busy.wait_with_output().context("the busy host")?;
    let document = document?;
    ensure!(output.status.success(), "the busy host has failed");
    let rate = serde_json::from_slice(&output.stdout).context("what the busy host prints")?;
    let mut sample = Sample::default();
    for (metric, name) in [(Metric::P50, "p50"), (Metric::P99, "p99"), (Metric::P999, "p99.9")] {
        sample.set(metric, number(&document, &format!("/read/latency_us/{name}"))?);
    }
    sample.set(Metric::Iops, number(&rate, "/iops")?);
    Ok(sample)
}

fn reads(transport: Transport, io_bytes: u32, depth: u16, queues: u16) -> Fabric {
    let (namespace, rw) = (Namespace::Memory, Rw::RandRead);
    Fabric { transport, digests: false, namespace, rw, io_bytes, depth, queues }
}
