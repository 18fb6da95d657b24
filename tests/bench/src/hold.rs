//! A host with many controllers attached that does nothing: what idle connections cost is measured on it and on the
//! target. It is a process of its own, so that its processor time is its own.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use ringfab_fabric::rdma::RnicConfig;
use ringfab_initiator::{ConnectOptions, Host, HostConfig, HostEvent, HostIdentity, Url};
use ringfab_memory::ClassLayout;
use ringfab_reactor::{Reactor, ReactorConfig, SPIN_DEFAULT, Wait};

use crate::held::Took;

const BUFFER_BYTES: usize = 4096;
/// For the commands that attach controllers, one after the other, and for those that wait for events on each.
const BUFFERS_MIN: usize = 64;
const BUFFERS_EACH: usize = 4;

#[derive(Args)]
pub(crate) struct HoldArgs {
    /// Address of the controller
    url: Url,
    /// Controllers to attach, each for another host
    #[arg(long, default_value_t = 1)]
    count: usize,
    /// Attach all of them at once, rather than one after the other
    #[arg(long)]
    at_once: bool,
    /// I/O queues of each
    #[arg(long, default_value_t = 1)]
    queues: u16,
    /// Depth of each I/O queue
    #[arg(long, default_value_t = 128)]
    depth: u16,
    /// Gets how long the attachments took, once all are there
    #[arg(long)]
    ready_file: PathBuf,
}

/// Attaches, says so, and stays until it is killed.
pub(crate) fn run(args: &HoldArgs) -> Result<()> {
    let mut host = host(args)?;
    let took = attach_all(&mut host, args)?;
    write_whole(&args.ready_file, &serde_json::to_string(&took)?)?;
    loop {
        host.turn(Wait::Event).context("the ring")?;
        while let Some(event) = host.next_event() {
            if let HostEvent::Lost { error, .. } = event {
                return Err(anyhow!(error).context("a connection was lost"));
            }
        }
    }
}

fn host(args: &HoldArgs) -> Result<Host> {
    let connections = args.count as u32 * (u32::from(args.queues) + 1);
    let reactor = ReactorConfig { entries: 512, spin: SPIN_DEFAULT, descriptors_max: connections + 64 };
    let mut rnic = RnicConfig::new(0, [7; 32]);
    rnic.crc = args.url.rdma.crc.unwrap_or(true);
    let count = BUFFERS_MIN + BUFFERS_EACH * args.count;
    let pool = vec![ClassLayout { buffer_bytes: BUFFER_BYTES, count }];
    let config = HostConfig::new(pool, rnic, 7);
    Host::new(Reactor::new(&reactor).context("set up io_uring")?, config).context("set up the engine")
}

fn attach_all(host: &mut Host, args: &HoldArgs) -> Result<Took> {
    let at_a_time = if args.at_once { args.count } else { 1 };
    let (begun, mut took) = (Instant::now(), Took::default());
    let mut starts = HashMap::new();
    let (mut attached, mut ready) = (0, 0);
    while ready < args.count {
        while attached < args.count && attached - ready < at_a_time {
            starts.insert(host.attach(options(args, attached)?), Instant::now());
            attached += 1;
        }
        while let Some(event) = host.next_event() {
            match event {
                HostEvent::Ready { controller, .. } => {
                    let start = starts.get(&controller).context("a controller that was attached")?;
                    took.last_ms = millis(start.elapsed());
                    took.worst_ms = took.worst_ms.max(took.last_ms);
                    ready += 1;
                }
                HostEvent::Failed { error, .. } => return Err(error.into()),
                HostEvent::Lost { .. } => bail!("a connection was lost while others were made"),
                _ => {}
            }
        }
        if ready < args.count {
            host.turn(Wait::Event).context("the ring")?;
        }
    }
    took.all_ms = millis(begun.elapsed());
    Ok(took)
}

/// Each controller is another host's, unless the address names one.
fn options(args: &HoldArgs, number: usize) -> Result<ConnectOptions> {
    let nqn = format!("nqn.2014-08.org.nvmexpress:uuid:{number:08x}-0000-4000-8000-000000000000");
    let identity = match args.url.host_nqn {
        Some(_) => HostIdentity::for_url(&args.url)?,
        None => HostIdentity::load(Some(nqn), None, Path::new("/nonexistent"))?,
    };
    let mut options = ConnectOptions::new(args.url.clone(), identity);
    (options.queues, options.depth) = (args.queues, args.depth);
    Ok(options)
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// So that whoever sees the file sees all of it.
fn write_whole(path: &Path, text: &str) -> Result<()> {
    let partial = path.with_extension("partial");
    fs::write(&partial, text).context("write the ready file")?;
    fs::rename(&partial, path).context("write the ready file")
}
