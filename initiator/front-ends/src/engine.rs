//! The engines of commands that run on the cores' own loops.

use std::num::NonZeroU16;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use ringfab_fabric::rdma::RnicConfig;
use ringfab_initiator::{
    ConnectOptions, ControllerId, Host, HostConfig, HostEvent, Namespace, SharedController,
};
use ringfab_memory::ClassLayout;
use ringfab_reactor::{Reactor, ReactorConfig, Token, Wait, Waker, pin_current_thread};

use crate::interrupt::{Cancelled, Interrupt};
use crate::namespaces::only_namespace;
use crate::options::ConnectArgs;

/// What an engine is built from.
#[derive(Clone)]
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

    /// That of engine number `engine`: where the first one is pinned to a core, each of the others is to one of the
    /// next.
    fn for_engine(&self, engine: usize) -> Self {
        Self { core: self.core.map(|first| first + engine), ..self.clone() }
    }
}

/// An engine with one controller attached, or with its part of a controller.
pub(crate) struct Engine {
    pub(crate) host: Host,
    pub(crate) controller: ControllerId,
    /// Its number, from zero.
    pub(crate) number: usize,
}

/// The token of [`Engine::wake_after`].
const WAKE: Token = Token::new(Host::OWNER_FOREIGN_FIRST, u8::MAX, 0, 0);
/// What a command that a signal ended has for leaving in order. What is not flushed by then stays in the target's
/// cache.
pub(crate) const HURRIED: Duration = Duration::from_millis(600);

/// Buffers for admin commands and lists of ranges.
const ADMIN_BUFFERS: ClassLayout = ClassLayout { buffer_bytes: 4096, count: 64 };
/// Entries of the ring; its completion queue has four times as many.
const RING_ENTRIES: u32 = 512;
/// Sockets of the controller's queues, of old ones that still close, and of the resolver.
const DESCRIPTORS: u32 = 512;

impl Engine {
    /// Builds the engine on the calling thread and starts to attach the controller, which as many others share.
    fn start(
        options: ConnectOptions,
        others: u16,
        setup: EngineSetup,
        interrupt: &Interrupt,
    ) -> Result<(Self, Vec<SharedController>)> {
        let mut host = build(setup)?;
        interrupt.wake(host.reactor().waker());
        let (controller, shared) = host.attach_shared(options, others);
        Ok((Self { host, controller, number: 0 }, shared))
    }

    /// Builds the engine on the calling thread and takes part in a controller.
    fn join(
        shared: SharedController,
        number: usize,
        setup: EngineSetup,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let mut host = build(setup)?;
        interrupt.wake(host.reactor().waker());
        let controller = host.join(shared);
        let mut engine = Self { host, controller, number };
        engine.wait_ready(interrupt)?;
        Ok(engine)
    }

    /// The one namespace that the address names, or the only one there is.
    pub(crate) fn only_namespace(&self) -> Result<Namespace> {
        only_namespace(self.host.namespaces(self.controller))
    }

    /// Detaches in an orderly way; the library bounds it. A controller that failed is gone already. After a signal
    /// `hurried` is all the time there is.
    fn detach(&mut self, interrupt: &Interrupt, hurried: Option<Duration>) -> Result<()> {
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

    /// Goes on with what the engine that leads says, until the controller is left.
    fn follow(&mut self) -> Result<()> {
        while self.host.is_attached(self.controller) {
            self.host.turn(Wait::Event).context("the ring")?;
            while self.host.next_event().is_some() {}
        }
        Ok(())
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

/// The engine of the calling thread, which leads, and those that follow in threads of their own. Each of them does its
/// part of the work, whose result is a `T`.
pub(crate) struct Engines<T> {
    pub(crate) leader: Engine,
    threads: Vec<JoinHandle<Result<T>>>,
    /// Threads that are at their part of the work.
    working: Arc<AtomicUsize>,
}

/// A thread's part of the work; dropping it says that it has ended.
struct Part {
    working: Arc<AtomicUsize>,
    leader: Waker,
}

impl Drop for Part {
    fn drop(&mut self) {
        self.working.fetch_sub(1, Ordering::AcqRel);
        self.leader.wake();
    }
}

impl<T: Send + 'static> Engines<T> {
    /// Attaches a controller with so many engines. `work` is what each of those that follow does.
    pub(crate) fn attach(
        options: ConnectOptions,
        setup: &EngineSetup,
        count: NonZeroU16,
        interrupt: &Interrupt,
        work: impl Fn(&mut Engine) -> Result<T> + Clone + Send + 'static,
    ) -> Result<Self> {
        let others = count.get() - 1;
        let (mut leader, shared) = Engine::start(options, others, setup.for_engine(0), interrupt)?;
        let working = Arc::new(AtomicUsize::new(0));
        let mut threads = Vec::new();
        for (shared, number) in shared.into_iter().zip(1..) {
            working.fetch_add(1, Ordering::AcqRel);
            let part = Part { working: Arc::clone(&working), leader: leader.host.reactor().waker() };
            let (setup, interrupt, work) = (setup.for_engine(number), interrupt.clone(), work.clone());
            let thread = std::thread::Builder::new().name(format!("engine-{number}"));
            let thread = thread.spawn(move || {
                let mut engine = Engine::join(shared, number, setup, &interrupt)?;
                let result = work(&mut engine);
                drop(part);
                if result.is_ok() {
                    engine.follow()?;
                }
                result
            });
            threads.push(thread.context("start a thread for an engine")?);
        }
        leader.wait_ready(interrupt)?;
        Ok(Self { leader, threads, working })
    }

    /// Waits until the others have done their part, while this one leads.
    pub(crate) fn wait(&mut self) -> Result<()> {
        while self.working.load(Ordering::Acquire) > 0 && self.leader.host.is_attached(self.leader.controller)
        {
            self.leader.host.turn(Wait::Event).context("the ring")?;
            while self.leader.host.next_event().is_some() {}
        }
        Ok(())
    }

    /// Detaches in an orderly way, and says what the others have done. After a signal `hurried` is all the time there
    /// is.
    pub(crate) fn detach(
        mut self,
        interrupt: &Interrupt,
        hurried: Option<Duration>,
    ) -> (Result<()>, Result<Vec<T>>) {
        let detached = self.leader.detach(interrupt, hurried);
        (detached, self.join())
    }

    /// Detaches at once.
    pub(crate) fn cancel(mut self) -> Result<Vec<T>> {
        self.leader.host.cancel(self.leader.controller);
        while self.leader.host.is_attached(self.leader.controller) {
            self.leader.host.turn(Wait::Event).context("the ring")?;
            while self.leader.host.next_event().is_some() {}
        }
        self.join()
    }

    fn join(self) -> Result<Vec<T>> {
        // Without it the others would wait for what it says.
        drop(self.leader);
        let joined = self.threads.into_iter().map(JoinHandle::join);
        joined.map(|joined| joined.unwrap_or_else(|_| Err(anyhow!("an engine's thread panicked")))).collect()
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
