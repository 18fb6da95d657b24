//! How long I/O stands still when one of two paths is lost: the longest time between two answers, from the loss until
//! the other path answers.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::Signal;
use ringfab_fabric::rdma::RnicConfig;
use ringfab_initiator::{
    ConnectOptions, ControllerId, Host, HostConfig, HostEvent, HostIdentity, IoOperation, IoRequest,
    PathChooser, PathState, Url,
};
use ringfab_memory::ClassLayout;
use ringfab_reactor::{Reactor, ReactorConfig, Wait};

use crate::case::{Failover, Loss, Namespace, Rw, Transport};
use crate::cuttable::Cuttable;
use crate::place::{INITIATOR_CORE, on_core};
use crate::sample::{Metric, Sample};
use crate::target::{Layout, Setup, Target};

/// Keep-alive timeout, in seconds.
const KEEP_ALIVE_S: u32 = 2;
/// Outstanding commands.
const DEPTH: u64 = 4;
const BUFFER_BYTES: usize = 4096;
/// So many answers by the other path show that I/O goes on.
const ENOUGH: u64 = 1000;
/// Nothing may take longer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Blocks that are read and written.
const BLOCKS: u64 = 10_000;

/// Measures one loss.
pub(crate) fn measure(setup: &Setup, case: &Failover, file: &Path) -> Result<Sample> {
    let mut ways = Ways::make(setup, case.loss, file)?;
    let longest = on_core(INITIATOR_CORE, || {
        let mut load = Load::attach(&ways, case.rw)?;
        load.run_until("an answer", |load| load.answers > 1000)?;
        load.begin();
        ways.lose(case.loss)?;
        load.run_until("answers by the other path", Load::is_on_the_other)?;
        Ok(load.longest)
    })?;
    let mut sample = Sample::default();
    sample.set(Metric::Millis, longest.as_secs_f64() * 1e3);
    Ok(sample)
}

/// Two ways to one disk, and what the first of them leads by.
struct Ways {
    urls: [Url; 2],
    first: Target,
    _second: Option<Target>,
    cuttable: Option<Cuttable>,
}

impl Ways {
    fn make(setup: &Setup, loss: Loss, file: &Path) -> Result<Self> {
        let url = |target: &Target| -> Result<Url> {
            Ok(target.url(setup, Transport::Tcp, false, Namespace::File.nsid()).parse()?)
        };
        let first = Target::serve(setup, &Layout::half(file, false))?;
        let to_first = url(&first)?;
        if loss.is_of_a_way() {
            let cuttable = Cuttable::to(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), to_first.port))?;
            let mut to_cuttable = to_first.clone();
            to_cuttable.port = cuttable.address.port();
            let urls = [to_cuttable, to_first];
            return Ok(Self { urls, first, _second: None, cuttable: Some(cuttable) });
        }
        let second = Target::serve(setup, &Layout::half(file, true))?;
        let urls = [to_first, url(&second)?];
        Ok(Self { urls, first, _second: Some(second), cuttable: None })
    }

    /// Loses the first.
    fn lose(&mut self, loss: Loss) -> Result<()> {
        let cuttable = self.cuttable.as_ref().context("a way that can be cut");
        match loss {
            Loss::Reset => cuttable?.reset(),
            Loss::Silent => cuttable?.fall_silent(),
            Loss::Stopped => self.first.service().signal(Signal::SIGSTOP)?,
            Loss::Ended => self.first.service().signal(Signal::SIGTERM)?,
        }
        Ok(())
    }
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
}

impl Load {
    /// Attaches the first way, and then the other one, so that the first is the one in use.
    fn attach(ways: &Ways, rw: Rw) -> Result<Self> {
        let [first, second] = ways.urls.clone();
        let config = ReactorConfig { entries: 128, spin: Duration::ZERO, descriptors_max: 64 };
        let pool = vec![ClassLayout { buffer_bytes: BUFFER_BYTES, count: 64 }];
        let reactor = Reactor::new(&config).context("set up io_uring")?;
        let mut host =
            Host::new(reactor, HostConfig::new(pool, RnicConfig::new(0, [7; 32]), 7)).context("an engine")?;
        let identity = HostIdentity::for_url(&first)?;
        let mut options = ConnectOptions::new(first, identity);
        options.keep_alive = Duration::from_secs(KEEP_ALIVE_S.into());
        options.paths.chooser = PathChooser::OneInUse;
        let controller = host.attach(options);
        let mut this =
            Self { host, controller, rw, next: 0, answers: 0, last: Instant::now(), longest: Duration::ZERO };
        this.run_until("the first path", |this| this.ready_paths() == 1)?;
        this.host.add_path(controller, second).context("another path")?;
        this.run_until("the other path", |this| this.ready_paths() == 2)?;
        for _ in 0..DEPTH {
            this.submit()?;
        }
        Ok(this)
    }

    fn ready_paths(&self) -> usize {
        self.host.paths(self.controller).iter().filter(|path| path.state == PathState::Ready).count()
    }

    /// Whether the first path is gone, and the other one has answered for a while.
    fn is_on_the_other(&self) -> bool {
        let paths = self.host.paths(self.controller);
        matches!(&paths[..], [first, other]
            if first.state != PathState::Ready && other.commands > ENOUGH)
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
        let request = IoRequest { nsid: Namespace::File.nsid(), tag: self.next, operation };
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
                    HostEvent::Failed { error, .. } | HostEvent::PathRemoved { error: Some(error), .. } => {
                        return Err(error.into());
                    }
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
