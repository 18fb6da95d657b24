//! How long I/O stands still when one of two paths is lost: the longest time between two answers, from the loss until
//! the other path answers.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use ringfab_fabric::rdma::RnicConfig;
use ringfab_initiator::{
    ConnectOptions, ControllerId, Host, HostConfig, HostEvent, HostIdentity, IoOperation, IoRequest,
    PathChooser, Url,
};
use ringfab_memory::ClassLayout;
use ringfab_reactor::{Reactor, ReactorConfig, Wait};

use crate::case::{Failover, Loss, Namespace, Rw, Transport};
use crate::cuttable::Cuttable;
use crate::place::{INITIATOR_CORE, on_core};
use crate::sample::{Metric, Sample};
use crate::target::{Setup, Target};

/// Keep-alive timeout, in seconds.
const KEEP_ALIVE_S: u32 = 2;
/// Outstanding commands.
const DEPTH: u64 = 4;
const BUFFER_BYTES: usize = 4096;
/// Nothing may take longer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Blocks that are read and written.
const BLOCKS: u64 = 10_000;

/// Measures one loss.
pub(crate) fn measure(setup: &Setup, target: &Target, case: &Failover) -> Result<Sample> {
    let second: Url = target.url(setup, Transport::Tcp, false, Namespace::Memory.nsid()).parse()?;
    let way = Cuttable::to(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), second.port))?;
    let mut first = second.clone();
    first.port = way.address.port();
    let gap = on_core(INITIATOR_CORE, || {
        let mut load = Load::attach(first, second, case.rw)?;
        load.run_until("an answer", |load| load.answers > 1000)?;
        load.begin();
        match case.loss {
            Loss::Ended => way.end(),
            Loss::Silent => way.fall_silent(),
        }
        load.run_until("the other path", |load| load.failed_over)?;
        Ok(load.longest)
    })?;
    let mut sample = Sample::default();
    sample.set(Metric::Millis, gap.as_secs_f64() * 1e3);
    Ok(sample)
}

/// A host with two paths, of which it uses the first one, and commands without a pause.
struct Load {
    host: Host,
    controller: ControllerId,
    rw: Rw,
    next: u64,
    answers: u64,
    /// When the last answer came, and the longest time without one.
    last: Instant,
    longest: Duration,
    failed_over: bool,
}

impl Load {
    fn attach(first: Url, second: Url, rw: Rw) -> Result<Self> {
        let config = ReactorConfig { entries: 128, spin: Duration::ZERO, descriptors_max: 64 };
        let pool = vec![ClassLayout { buffer_bytes: BUFFER_BYTES, count: 64 }];
        let reactor = Reactor::new(&config).context("set up io_uring")?;
        let mut host =
            Host::new(reactor, HostConfig::new(pool, RnicConfig::new(0, [7; 32]), 7)).context("an engine")?;
        let identity = HostIdentity::for_url(&first)?;
        let mut options = ConnectOptions::new(first, identity);
        options.further_urls = vec![second];
        options.keep_alive = Duration::from_secs(KEEP_ALIVE_S.into());
        options.paths.chooser = PathChooser::OneInUse;
        let controller = host.attach(options);
        let mut this = Self {
            host,
            controller,
            rw,
            next: 0,
            answers: 0,
            last: Instant::now(),
            longest: Duration::ZERO,
            failed_over: false,
        };
        let mut ready = 0;
        let deadline = Instant::now() + PATIENCE;
        while ready < 2 {
            ensure!(Instant::now() < deadline, "two paths are not ready in time");
            this.host.turn(Wait::Event).context("the ring")?;
            while let Some(event) = this.host.next_event() {
                match event {
                    HostEvent::Ready { .. } => ready += 1,
                    HostEvent::Failed { error, .. } | HostEvent::Lost { error, .. } => {
                        return Err(error.into());
                    }
                    _ => {}
                }
            }
        }
        for _ in 0..DEPTH {
            this.submit()?;
        }
        Ok(this)
    }

    /// From here on the times between answers count.
    fn begin(&mut self) {
        (self.last, self.longest) = (Instant::now(), Duration::ZERO);
    }

    fn submit(&mut self) -> Result<()> {
        let mut buffer = self.host.pool().take(BUFFER_BYTES).context("a buffer")?;
        let lba = (self.next * 8) % BLOCKS;
        let operation = if self.rw == Rw::RandWrite {
            buffer.fill(self.next as u8);
            IoOperation::Write { lba, nlb: 8, source: buffer.share(), offset: 0, fua: false }
        } else {
            IoOperation::Read { lba, nlb: 8, buffer }
        };
        let request = IoRequest { nsid: Namespace::Memory.nsid(), tag: self.next, operation };
        self.next += 1;
        match self.host.submit(self.controller, request) {
            Ok(()) => Ok(()),
            Err(refused) => bail!("a command was refused: {}", refused.reason),
        }
    }

    fn run_until(&mut self, what: &str, done: impl Fn(&Self) -> bool) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !done(self) {
            ensure!(Instant::now() < deadline, "{what} did not come");
            self.host.turn(Wait::Event).context("the ring")?;
            while let Some(event) = self.host.next_event() {
                match event {
                    HostEvent::IoDone(io) => {
                        io.result.context("a command has failed")?;
                        drop(io);
                        self.answered()?;
                    }
                    HostEvent::FailedOver { .. } => self.failed_over = true,
                    HostEvent::Failed { error, .. } => return Err(error.into()),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn answered(&mut self) -> Result<()> {
        let now = Instant::now();
        self.longest = self.longest.max(now - self.last);
        self.last = now;
        self.answers += 1;
        self.submit()
    }
}
