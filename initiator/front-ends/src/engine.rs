//! The engine of commands that run on the core's own loop.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use ringfab_fabric::rdma::RnicConfig;
use ringfab_initiator::{ConnectOptions, ControllerId, Host, HostConfig, HostEvent, Namespace};
use ringfab_memory::ClassLayout;
use ringfab_reactor::{Reactor, ReactorConfig, Token, Wait, pin_current_thread};

use crate::interrupt::{Cancelled, Interrupt};
use crate::namespaces::only_namespace;
use crate::options::ConnectArgs;

/// What an engine is built from.
pub(crate) struct EngineSetup {
    pub(crate) core: Option<usize>,
    pub(crate) spin: Duration,
    pub(crate) crc: bool,
    pub(crate) capture: Option<PathBuf>,
    /// Buffers of the command; those of the library come on top.
    pub(crate) pool: Vec<ClassLayout>,
    /// Sockets and files of the command.
    pub(crate) descriptors: u32,
}

impl EngineSetup {
    /// As the user asked.
    pub(crate) fn new(args: &ConnectArgs, pool: Vec<ClassLayout>) -> Self {
        Self {
            core: args.tuning.core,
            spin: args.spin(),
            crc: args.crc(),
            capture: args.capture(),
            pool,
            descriptors: 0,
        }
    }
}

/// An engine with one controller attached.
pub(crate) struct Engine {
    pub(crate) host: Host,
    pub(crate) controller: ControllerId,
}

/// The token of [`Engine::wake_after`].
const WAKE: Token = Token::new(Host::OWNER_FOREIGN_FIRST, u8::MAX, 0, 0);
/// What a command that a signal ended has for leaving in order. What is not flushed by then stays in the target's cache.
pub(crate) const HURRIED: Duration = Duration::from_millis(600);

/// Buffers for admin commands and lists of ranges.
const ADMIN_BUFFERS: ClassLayout = ClassLayout { buffer_bytes: 4096, count: 64 };
/// Entries of the ring; its completion queue has four times as many.
const RING_ENTRIES: u32 = 512;
/// Sockets of the controller's queues, of old ones that still close, and of the resolver.
const DESCRIPTORS: u32 = 512;

impl Engine {
    /// Builds the engine on the calling thread and attaches the controller.
    pub(crate) fn attach(options: ConnectOptions, setup: EngineSetup, interrupt: &Interrupt) -> Result<Self> {
        let mut host = build(setup)?;
        interrupt.wake(host.reactor().waker());
        let controller = host.attach(options);
        let mut engine = Self { host, controller };
        engine.wait_ready(interrupt)?;
        Ok(engine)
    }

    /// The one namespace that the address names, or the only one there is.
    pub(crate) fn only_namespace(&self) -> Result<Namespace> {
        only_namespace(self.host.namespaces(self.controller))
    }

    /// Detaches in an orderly way; the library bounds it. A controller that failed is gone already. After a signal `hurried`
    /// is all the time there is.
    pub(crate) fn detach(mut self, interrupt: &Interrupt, hurried: Option<Duration>) -> Result<()> {
        self.host.detach(self.controller);
        let mut hurried = hurried;
        loop {
            while let Some(event) = self.host.next_event() {
                match event {
                    HostEvent::Detached { trouble: None, .. } => return Ok(()),
                    HostEvent::Detached { trouble: Some(error), .. } | HostEvent::Failed { error, .. } => {
                        return Err(error).context("detach");
                    }
                    HostEvent::Foreign(completion) if completion.token == WAKE => {
                        self.host.cancel(self.controller);
                    }
                    _ => {}
                }
            }
            // The event that told its end may have been taken before.
            if !self.host.is_attached(self.controller) {
                return Ok(());
            }
            if interrupt.came()
                && let Some(limit) = hurried.take()
            {
                self.wake_after(limit);
            }
            self.host.turn(Wait::Event).context("the ring")?;
        }
    }

    /// Ends a wait for events after a time.
    pub(crate) fn wake_after(&mut self, time: Duration) {
        let reactor = self.host.reactor();
        let at = reactor.clock() + time;
        reactor.set_timer(at, WAKE);
    }

    fn wait_ready(&mut self, interrupt: &Interrupt) -> Result<()> {
        let mut cancelled = false;
        loop {
            while let Some(event) = self.host.next_event() {
                match event {
                    HostEvent::Ready { .. } => return Ok(()),
                    HostEvent::Detached { .. } => return Err(Cancelled.into()),
                    HostEvent::Failed { .. } if cancelled => return Err(Cancelled.into()),
                    HostEvent::Failed { error, .. } => return Err(error.into()),
                    _ => {}
                }
            }
            if interrupt.came() && !cancelled {
                cancelled = true;
                self.host.cancel(self.controller);
            }
            self.host.turn(Wait::Event).context("the ring")?;
        }
    }
}

fn build(setup: EngineSetup) -> Result<Host> {
    if let Some(core) = setup.core {
        pin_current_thread(core).with_context(|| format!("run on core {core}"))?;
    }
    let config = ReactorConfig {
        entries: RING_ENTRIES,
        spin: setup.spin,
        descriptors_max: DESCRIPTORS + setup.descriptors,
    };
    let reactor = Reactor::new(&config).context("set up io_uring")?;
    let mut rnic = RnicConfig::new(0, random()?);
    rnic.crc = setup.crc;
    rnic.capture = setup.capture;
    let mut pool = setup.pool;
    pool.push(ADMIN_BUFFERS);
    let seed = u64::from_le_bytes(random()?);
    Host::new(reactor, HostConfig { pool, rnic, seed }).context("set up the engine")
}

/// Random bytes of the system.
pub(crate) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    match getrandom::fill(&mut bytes) {
        Ok(()) => Ok(bytes),
        Err(error) => bail!("the system has no random numbers: {error}"),
    }
}
