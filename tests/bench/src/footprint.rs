//! What Ringfab costs while it does nothing, and how long it takes to begin.

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ringfab_initiator::blocking::{Controller, EngineOptions};
use ringfab_initiator::{ConnectOptions, HostIdentity, Url};

use crate::case::{Footprint, Namespace, Transport};
use crate::held::{Held, Hold};
use crate::sample::{Metric, Sample};
use crate::target::{Setup, Target};

/// How long idleness is watched: each controller sends one Keep Alive in this time at the defaults.
const WATCHED: Duration = Duration::from_secs(5);
/// What happens after something was started or attached is over by then.
pub(crate) const SETTLED: Duration = Duration::from_millis(300);
/// Queues over which the memory of one is averaged.
const QUEUES: u16 = 64;

/// Measures one case, each with a target of its own.
pub(crate) fn measure(setup: &Setup, case: &Footprint, file: &Path) -> Result<Sample> {
    match case {
        Footprint::Start => start(setup, file),
        Footprint::Connect { transport, queues } => connect(setup, *transport, *queues, file),
        Footprint::Idle { transport, connections } => idle(setup, *transport, *connections, file),
        Footprint::Queue { transport } => queue(setup, *transport, file),
    }
}

/// From the start of the target's process to the first block of the file in a host's hands; its memory before that.
fn start(setup: &Setup, file: &Path) -> Result<Sample> {
    let begun = Instant::now();
    let target = Target::start(setup, file)?;
    let url: Url = target.url(setup, Transport::Rdma, false, Namespace::File.nsid()).parse()?;
    let options = ConnectOptions::new(url.clone(), HostIdentity::for_url(&url)?);
    let controller = Controller::connect(options, EngineOptions::default()).context("attach")?;
    let mut block = [0; 4096];
    controller.read_at(Namespace::File.nsid(), 0, &mut block).context("read")?;
    let took = begun.elapsed();
    controller.detach()?;
    drop(target);
    let fresh = Target::start(setup, file)?;
    // What has just been done is measured once it has settled.
    sleep(SETTLED);
    let mut sample = Sample::default();
    sample.set(Metric::Millis, took.as_secs_f64() * 1e3);
    sample.set(Metric::ResidentKib, fresh.service().resident_kib()? as f64);
    Ok(sample)
}

fn connect(setup: &Setup, transport: Transport, queues: u16, file: &Path) -> Result<Sample> {
    let target = Target::start(setup, file)?;
    let held = hold(setup, &target, transport, 1, queues)?;
    let mut sample = Sample::default();
    sample.set(Metric::Millis, held.took.last_ms);
    Ok(sample)
}

/// Processor time of both ends; each controller has two connections.
fn idle(setup: &Setup, transport: Transport, connections: usize, file: &Path) -> Result<Sample> {
    let target = Target::start(setup, file)?;
    let held = hold(setup, &target, transport, connections.div_ceil(2), 1)?;
    // The same.
    sleep(SETTLED);
    let ends = [(Metric::TargetBusy, target.service()), (Metric::InitiatorBusy, &held.service)];
    let before = [ends[0].1.run_time()?, ends[1].1.run_time()?];
    let begun = Instant::now();
    // What is measured is the time in which nothing happens.
    sleep(WATCHED);
    let mut sample = Sample::default();
    for ((metric, service), before) in ends.into_iter().zip(before) {
        let busy = service.run_time()?.saturating_sub(before);
        sample.set(metric, busy.as_secs_f64() / begun.elapsed().as_secs_f64() * 100.0);
    }
    Ok(sample)
}

/// What one more idle I/O queue adds to the target's memory.
fn queue(setup: &Setup, transport: Transport, file: &Path) -> Result<Sample> {
    let target = Target::start(setup, file)?;
    let resident = |queues| -> Result<f64> {
        let _held = hold(setup, &target, transport, 1, queues)?;
        // The same as above.
        sleep(SETTLED);
        Ok(target.service().resident_kib()? as f64)
    };
    // What the first one touches stays, so that the second one shows its queues only.
    let (one, many) = (resident(1)?, resident(1 + QUEUES)?);
    let mut sample = Sample::default();
    sample.set(Metric::ResidentKib, (many - one) / f64::from(QUEUES));
    Ok(sample)
}

fn hold(
    setup: &Setup,
    target: &Target,
    transport: Transport,
    controllers: usize,
    queues: u16,
) -> Result<Held> {
    let nsid = Some(Namespace::Null.nsid());
    Hold { transport, controllers, queues, at_once: false, nsid }.start(setup, target)
}
