//! A host with many controllers attached that does nothing: what idle connections cost is measured on it and on the
//! target. It is a process of its own, so that its processor time is its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use ringfab_fabric::rdma::RnicConfig;
use ringfab_initiator::{ConnectOptions, Host, HostConfig, HostEvent, HostIdentity, Url};
use ringfab_memory::ClassLayout;
use ringfab_reactor::{Reactor, ReactorConfig, Wait};

/// As the commands of `ringfab` have it at their defaults.
const SPIN: Duration = Duration::from_micros(50);
const BUFFER_BYTES: usize = 4096;
/// For the commands that attach controllers, one after the other, and for those that wait for events on each.
const BUFFERS_MIN: usize = 64;
const BUFFERS_EACH: usize = 4;

#[derive(Args)]
pub(crate) struct HoldArgs {
    /// Address of the controller
    url: Url,
    /// Controllers to attach, one after the other
    #[arg(long, default_value_t = 1)]
    count: usize,
    /// I/O queues of each
    #[arg(long, default_value_t = 1)]
    queues: u16,
    /// Depth of each I/O queue
    #[arg(long, default_value_t = 128)]
    depth: u16,
    /// Gets the milliseconds that the last attachment took, once all are there
    #[arg(long)]
    ready_file: PathBuf,
}

/// Attaches, says so, and stays until it is killed.
pub(crate) fn run(args: &HoldArgs) -> Result<()> {
    let mut host = host(args)?;
    let mut options = ConnectOptions::new(args.url.clone(), HostIdentity::for_url(&args.url)?);
    (options.queues, options.depth) = (args.queues, args.depth);
    let mut took = Duration::ZERO;
    for _ in 0..args.count {
        took = attach(&mut host, options.clone())?;
    }
    write_whole(&args.ready_file, &format!("{}", took.as_secs_f64() * 1e3))?;
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
    let reactor = ReactorConfig { entries: 512, spin: SPIN, descriptors_max: connections + 64 };
    let mut rnic = RnicConfig::new(0, [7; 32]);
    rnic.crc = args.url.crc.unwrap_or(true);
    let count = BUFFERS_MIN + BUFFERS_EACH * args.count;
    let pool = vec![ClassLayout { buffer_bytes: BUFFER_BYTES, count }];
    let config = HostConfig { pool, rnic, seed: 7 };
    Host::new(Reactor::new(&reactor).context("set up io_uring")?, config).context("set up the engine")
}

fn attach(host: &mut Host, options: ConnectOptions) -> Result<Duration> {
    let begun = Instant::now();
    host.attach(options);
    loop {
        while let Some(event) = host.next_event() {
            match event {
                HostEvent::Ready { .. } => return Ok(begun.elapsed()),
                HostEvent::Failed { error, .. } => return Err(error.into()),
                HostEvent::Lost { .. } => bail!("a connection was lost while others were made"),
                _ => {}
            }
        }
        host.turn(Wait::Event).context("the ring")?;
    }
}

/// So that whoever sees the file sees all of it.
fn write_whole(path: &Path, text: &str) -> Result<()> {
    let partial = path.with_extension("partial");
    fs::write(&partial, text).context("write the ready file")?;
    fs::rename(&partial, path).context("write the ready file")
}
