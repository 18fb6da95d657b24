//! One busy queue with more and more beside it: nothing that an I/O costs may grow with that.

use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::case::{Crowd, Fabric, Namespace, Rw, Scale, Transport};
use crate::fabric::{bench, number, run};
use crate::footprint::SETTLED;
use crate::held::{Held, Hold};
use crate::perf;
use crate::sample::{Metric, Sample};
use crate::target::{Layout, Setup, Target};

/// Outstanding in the busy queue for rates and processor time; latencies are those of a single one.
const DEPTH: u16 = 128;
/// I/O queues of the host that keeps several threads busy, and what is outstanding in each.
const THREADED: (u16, u16) = (32, 4);
/// The most I/O queues of a controller.
const QUEUES_MAX: u16 = 128;

/// Measures one case, each with a target of its own. A folder beside the file is for more files.
pub(crate) fn measure(setup: &Setup, case: &Scale, file: &Path) -> Result<Sample> {
    let transport = case.transport;
    let hold = |controllers, queues, at_once| Hold { transport, controllers, queues, at_once, nsid: Some(1) };
    match case.crowd {
        Crowd::Nobody => {
            let target = Target::serve(setup, &layout(1, file)?.0)?;
            let mut sample = Sample::default();
            load(setup, &target, transport, 1, &mut sample)?;
            Ok(sample)
        }
        Crowd::Queues(count) => {
            let (controllers, queues) = split(count);
            beside(setup, &hold(controllers, queues, false), file)
        }
        Crowd::Hosts { count, at_once } => beside(setup, &hold(count, 1, at_once), file),
        Crowd::Namespaces(count) => among(setup, transport, count, file),
        Crowd::Threads(count) => threads(setup, transport, count, file),
    }
}

/// With idle connections: the time that they took, and the memory that one of them has.
fn beside(setup: &Setup, hold: &Hold, file: &Path) -> Result<Sample> {
    let (layout, _files) = layout(1, file)?;
    let target = Target::serve(setup, &layout)?;
    // What the first one touches stays.
    drop(Hold { controllers: 1, queues: 1, ..*hold }.start(setup, &target)?);
    let before = settled_kib(&target)?;
    let Held { service, took, .. } = &hold.start(setup, &target)?;
    let mut sample = Sample::default();
    sample.set(Metric::EachKib, (settled_kib(&target)? - before) / hold.connections() as f64);
    sample.set(Metric::Millis, took.all_ms);
    sample.set(Metric::WorstMillis, took.worst_ms);
    load(setup, &target, hold.transport, 1, &mut sample)?;
    service.run_time().context("who is idle is still there")?;
    Ok(sample)
}

/// With many namespaces: the time to start, that of a host to attach all of them, and the memory that one of them has.
fn among(setup: &Setup, transport: Transport, count: u32, file: &Path) -> Result<Sample> {
    let (few, _no_files) = layout(1, file)?;
    let fewest_kib = settled_kib(&Target::serve(setup, &few)?)?;
    let (many, _files) = layout(count, file)?;
    let begun = Instant::now();
    let target = Target::serve(setup, &many)?;
    let mut sample = Sample::default();
    sample.set(Metric::Millis, begun.elapsed().as_secs_f64() * 1e3);
    sample.set(Metric::EachKib, (settled_kib(&target)? - fewest_kib) / f64::from(count - 1));
    let all = Hold { transport, controllers: 1, queues: 1, at_once: false, nsid: None };
    sample.set(Metric::WorstMillis, all.start(setup, &target)?.took.worst_ms);
    load(setup, &target, transport, count, &mut sample)?;
    Ok(sample)
}

/// With several threads: their memory, and the time to start.
fn threads(setup: &Setup, transport: Transport, count: usize, file: &Path) -> Result<Sample> {
    let mut layout = Layout::usual(file);
    layout.threads = Some(count);
    let begun = Instant::now();
    let target = Target::serve(setup, &layout)?;
    let mut sample = Sample::default();
    sample.set(Metric::Millis, begun.elapsed().as_secs_f64() * 1e3);
    sample.set(Metric::ResidentKib, settled_kib(&target)?);
    let (depth, queues) = THREADED;
    let case = Fabric { queues, ..busy(transport, depth) };
    rates(setup, &target, &case, Namespace::Null.nsid(), &mut sample)?;
    Ok(sample)
}

/// Namespaces of which the last is null, and the folder that the files of the others are in.
fn layout(count: u32, file: &Path) -> Result<(Layout, tempfile::TempDir)> {
    let beside = file.parent().context("a folder")?;
    let folder = tempfile::Builder::new().prefix("ringfab-bench.").tempdir_in(beside)?;
    Ok((Layout::many(count, folder.path())?, folder))
}

fn settled_kib(target: &Target) -> Result<f64> {
    // What has just been done is measured once it has settled.
    sleep(SETTLED);
    Ok(target.service().resident_kib()? as f64)
}

fn busy(transport: Transport, depth: u16) -> Fabric {
    let (namespace, rw, io_bytes) = (Namespace::Null, Rw::RandRead, 4096);
    Fabric { transport, digests: false, namespace, rw, io_bytes, depth, queues: 1 }
}

/// What I/O costs: latencies at depth one, all else with a full queue.
fn load(setup: &Setup, target: &Target, transport: Transport, nsid: u32, sample: &mut Sample) -> Result<()> {
    let document = run(bench(setup, target, &busy(transport, 1), nsid))?;
    for (metric, name) in [(Metric::P50, "p50"), (Metric::P99, "p99")] {
        sample.set(metric, number(&document, &format!("/read/latency_us/{name}"))?);
    }
    rates(setup, target, &busy(transport, DEPTH), nsid, sample)
}

/// What the target did for I/Os. A run of hardly any is taken off: a host that comes and goes costs something, too, and
/// when it goes all disks are flushed.
fn rates(setup: &Setup, target: &Target, case: &Fabric, nsid: u32, sample: &mut Sample) -> Result<()> {
    let shortest = Duration::from_millis(1);
    let nothing = Setup { warmup: shortest, time: shortest, ..setup.clone() };
    let visit = Effort::of(target, bench(&nothing, target, &Fabric { depth: 1, ..*case }, nsid))?;
    let whole = Effort::of(target, bench(setup, target, case, nsid))?;
    sample.set(Metric::Iops, whole.iops);
    sample.set(Metric::TargetCpu, per_io(whole.micros - visit.micros, &whole, &visit));
    if let (Some(all), Some(visit_alone)) = (whole.instructions, visit.instructions) {
        sample.set(Metric::TargetInstructions, per_io(all - visit_alone, &whole, &visit));
    }
    Ok(())
}

fn per_io(effort: f64, whole: &Effort, visit: &Effort) -> f64 {
    effort / (whole.submitted - visit.submitted).max(1.0)
}

/// What a run of `ringfab bench` cost the target.
#[derive(Clone, Copy, Debug)]
struct Effort {
    iops: f64,
    submitted: f64,
    /// Processor time.
    micros: f64,
    instructions: Option<f64>,
}

impl Effort {
    fn of(target: &Target, command: Command) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let counts = folder.path().join("counts");
        let command =
            if perf::counts() { perf::counting(&command, target.service().pid(), &counts) } else { command };
        let before = target.service().run_time()?;
        let document = run(command)?;
        let ran = target.service().run_time()?.saturating_sub(before);
        Ok(Self {
            iops: number(&document, "/iops")?,
            submitted: number(&document, "/submitted")?,
            micros: ran.as_secs_f64() * 1e6,
            instructions: perf::counted(&counts),
        })
    }
}

/// Controllers and I/O queues of each that make exactly so many queues, with as few controllers as possible.
fn split(queues: u16) -> (usize, u16) {
    let each = (1..=QUEUES_MAX.min(queues)).rev().find(|each| queues.is_multiple_of(*each)).unwrap_or(1);
    (usize::from(queues / each), each)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_visit_costs_is_not_the_cost_of_its_io() {
        let effort = |submitted, micros| Effort { iops: 1.0, submitted, micros, instructions: None };
        let (visit, whole) = (effort(20.0, 90_000.0), effort(100_020.0, 290_000.0));
        assert!((per_io(whole.micros - visit.micros, &whole, &visit) - 2.0).abs() < 1e-9);
    }

    #[test]
    fn queues_are_split_exactly_among_few_controllers() {
        assert_eq!(split(63), (1, 63));
        assert_eq!(split(1023), (11, 93));
        assert_eq!(split(1024), (8, 128));
        assert_eq!(split(131), (131, 1), "a prime number");
    }
}
