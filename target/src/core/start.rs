//! Builds the cores and their threads.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use ringfab_block::Shared;
use ringfab_fabric::rdma::{Rnic, RnicConfig};
use ringfab_fabric::tcp::{TcpConfig, TcpStack};
use ringfab_memory::{ClassLayout, Pool};
use ringfab_reactor::{MailboxReceiver, Monitor, Reactor, ReactorConfig, mailbox, pin_current_thread};

use super::Core;
use super::cores::Cores;
use super::message::{CoreMessage, CoreSender};
use super::report::{Listening, Ready, Registration, Report, at, warn_unpinned};
use crate::config::Config;
use crate::disks::DiskHandles;
use crate::disks::disk_handles::Opened;
use crate::limits::{ADMIN_DATA_BYTES_MAX, IN_CAPSULE_BYTES_MAX};
use crate::model::Listener;
use crate::resources::disks::{Disks, Namespaces};
use crate::resources::{Resources, owner};
use crate::target::Target;
use crate::transport::Transports;
use crate::worker::Workers;

/// Submission queue entries of a core's ring.
const RING_ENTRIES: u32 = 1024;

/// The most sockets and files of a core.
const DESCRIPTORS_MAX: u32 = 8192;

/// The most connections of a core for each transport, those in handshake included. Descriptors are the narrower bound.
const CONNECTIONS_MAX: u32 = DESCRIPTORS_MAX;

/// The most connections of a listener in handshake, and what part of the descriptors they may have.
const HALF_OPEN_MAX: u32 = 512;
const HALF_OPEN_PART: u32 = 16;

/// So many may always be, or a host with a few queues would not get in.
const HALF_OPEN_LEAST: u32 = 8;

/// Buffers for admin commands, on each core: many small ones, and as many large ones as one log page of the largest
/// size needs.
const ADMIN_CLASSES: [ClassLayout; 2] = [
    ClassLayout { buffer_bytes: 8192, count: 64 },
    ClassLayout { buffer_bytes: ADMIN_PIECE_BYTES, count: ADMIN_DATA_BYTES_MAX as usize / ADMIN_PIECE_BYTES },
];

/// A piece of the largest data of an admin command.
const ADMIN_PIECE_BYTES: usize = 128 << 10;

/// Buffers for Compare and Copy commands with data in their capsules, one each, and for fused pairs, up to three each.
const COMPARE_CLASSES: [ClassLayout; 1] =
    [ClassLayout { buffer_bytes: IN_CAPSULE_BYTES_MAX as usize, count: 12 }];

/// What a core is built from, whatever its reactor is.
#[derive(Debug)]
pub struct CoreParts {
    /// Its ring, or its simulation.
    pub reactor: Reactor,
    /// What is served.
    pub target: Arc<Target>,
    /// Sizes of its buffers.
    pub classes: Vec<ClassLayout>,
    /// Who does slow work for it.
    pub workers: Workers,
    /// Seed of the RNIC's keys.
    pub seed: [u8; 32],
}

/// A target of one core, in the caller's thread; for simulations and tests. Its listeners are bound at once.
///
/// # Errors
/// What the system refuses.
pub fn build(parts: CoreParts) -> io::Result<(Core, Vec<SocketAddr>)> {
    let (cores, addresses) = build_all(vec![parts])?;
    let [core] = <[Core; 1]>::try_from(cores).expect("one for one");
    Ok((core, addresses))
}

/// The same with several cores, which the caller turns in any order. Each opens the disks by itself.
///
/// # Errors
/// What the system refuses.
pub fn build_all(parts: Vec<CoreParts>) -> io::Result<(Vec<Core>, Vec<SocketAddr>)> {
    let (senders, inboxes): (Vec<_>, Vec<_>) = parts.iter().map(|part| mailbox(part.reactor.waker())).unzip();
    let senders: Vec<CoreSender> = senders.into_iter().map(CoreSender).collect();
    let (descriptors, mut cores) = (descriptors_max(parts.len()), Vec::new());
    for (number, (part, inbox)) in parts.into_iter().zip(inboxes).enumerate() {
        cores.push(assemble(part, None, descriptors, number, senders.clone(), inbox)?.0);
    }
    let Some(Core { listeners, resources, .. }) = cores.first_mut() else { return Ok((cores, Vec::new())) };
    let served = Arc::clone(&resources.served);
    let addresses = listeners.bind_all(resources, served.listeners())?;
    Ok((cores, addresses))
}

/// The threads of a running target.
#[derive(Debug)]
pub struct Running {
    addresses: Vec<SocketAddr>,
    cores: Cores,
    monitors: Vec<Monitor>,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

impl Running {
    /// The addresses that are bound, in the order of the configuration's listeners.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// What each core's loop is doing, by number.
    pub fn monitors(&self) -> &[Monitor] {
        &self.monitors
    }

    /// The way to them.
    pub fn cores(&self) -> &Cores {
        &self.cores
    }

    /// Stops accepting, and ends within `limit`. Returns at once.
    pub fn drain(&self, limit: Duration) {
        for core in &self.cores.senders {
            core.send(CoreMessage::Drain(limit));
        }
    }

    /// Whether every core has ended.
    pub fn is_finished(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// Whether some core has ended.
    pub fn is_any_finished(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }

    /// Waits for the cores.
    ///
    /// # Errors
    /// When one ended by an error, or panicked.
    pub fn join(self) -> io::Result<()> {
        let outcomes: Vec<_> = self.threads.into_iter().map(JoinHandle::join).collect();
        for outcome in outcomes {
            outcome.map_err(|_| io::Error::other("a core's thread panicked"))??;
        }
        Ok(())
    }
}

/// Starts one thread for each configured processor, opens the disks and binds the listeners.
///
/// # Errors
/// What the system refuses: a ring, memory, an address. Threads that were started have ended then.
pub fn start(target: &Arc<Target>, config: &Config) -> io::Result<Running> {
    let disk_handles = Arc::<DiskHandles>::default();
    let mut opened = disk_handles.open_at_start(target, config.target.cores.len()).into_iter();
    let (report, reports) = mpsc::channel();
    let mut threads = Vec::new();
    let mut starts = Vec::new();
    for (number, processor) in config.target.cores.iter().copied().enumerate() {
        let (start, started) = mpsc::channel();
        starts.push(start);
        let thread = CoreThread {
            number,
            processor,
            spin: config.target.spin,
            descriptors: descriptors_max(config.target.cores.len()),
            classes: config.memory.classes().to_vec(),
            listeners: if number == 0 { target.served().listeners().to_vec() } else { Vec::new() },
            target: Arc::clone(target),
            opened: opened.next(),
            report: report.clone(),
            started,
        };
        let named = std::thread::Builder::new().name(format!("core-{processor}"));
        let spawned = named.spawn(move || thread.run());
        threads.push(spawned.map_err(at(format!("no thread for core {processor} (ulimit -u, TasksMax=)")))?);
    }
    drop(report);
    let mut ready = Vec::new();
    for _ in 0..threads.len() {
        ready.push(reports.recv().map_err(ended)??.into_ready());
    }
    ready.sort_by_key(|core| core.number);
    warn_unpinned(&ready);
    let (cores, monitors): (Vec<CoreSender>, Vec<Monitor>) =
        ready.into_iter().map(|core| (core.sender, core.monitor)).unzip();
    for start in &starts {
        // A thread that has ended has reported why, or will.
        let _ended = start.send(cores.clone());
    }
    let (mut addresses, mut buffers) = (Vec::new(), Registration::default());
    for _ in 0..threads.len() {
        let listening = reports.recv().map_err(ended)??.into_listening();
        addresses.extend(listening.addresses);
        buffers.add(listening.buffers);
    }
    buffers.warn_unregistered();
    Ok(Running { addresses, cores: Cores { senders: cores, disk_handles }, monitors, threads })
}

fn ended(_: mpsc::RecvError) -> io::Error {
    io::Error::other("a core's thread ended while it started")
}

/// One thread that becomes a core.
struct CoreThread {
    number: usize,
    processor: usize,
    spin: Duration,
    descriptors: u32,
    classes: Vec<ClassLayout>,
    listeners: Vec<Arc<Listener>>,
    target: Arc<Target>,
    /// Its own descriptors of the disks.
    opened: Option<Opened>,
    report: mpsc::Sender<io::Result<Report>>,
    started: mpsc::Receiver<Vec<CoreSender>>,
}

impl CoreThread {
    fn run(self) -> io::Result<()> {
        let report = self.report.clone();
        let core = match self.become_core() {
            Ok(Some(core)) => core,
            // Another core could not start.
            Ok(None) => return Ok(()),
            Err(error) => {
                let _gone = report.send(Err(error));
                return Ok(());
            }
        };
        drop(report);
        core.run()
    }

    fn become_core(self) -> io::Result<Option<Core>> {
        let unpinned = pin_current_thread(self.processor).err();
        let config =
            ReactorConfig { entries: RING_ENTRIES, spin: self.spin, descriptors_max: self.descriptors };
        let reactor = Reactor::new(&config).map_err(at("a ring of io_uring".to_owned()))?;
        let (sender, inbox) = mailbox(reactor.waker());
        let (sender, monitor) = (CoreSender(sender), reactor.monitor());
        let ready = Ready { number: self.number, processor: self.processor, sender, monitor, unpinned };
        let _gone = self.report.send(Ok(Report::Ready(ready)));
        let Ok(cores) = self.started.recv() else { return Ok(None) };
        let mut seed = [0; 32];
        getrandom::fill(&mut seed).map_err(io::Error::other)?;
        let parts = CoreParts {
            reactor,
            target: self.target,
            classes: self.classes,
            workers: Workers::of_process(),
            seed,
        };
        let (mut core, buffers) =
            assemble(parts, self.opened.as_ref(), self.descriptors, self.number, cores, inbox)?;
        let addresses = core.listeners.bind_all(&mut core.resources, &self.listeners)?;
        let _gone = self.report.send(Ok(Report::Listening(Listening { addresses, buffers })));
        Ok(Some(core))
    }
}

/// As many as each of so many cores may want, so that all of them leave the process an eighth of what it may open.
fn descriptors_max(cores: usize) -> u32 {
    let limit = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE);
    let (soft, _) = limit.unwrap_or((1024, 1024));
    let each = soft / 8 * 7 / cores.max(1) as u64;
    DESCRIPTORS_MAX.min(u32::try_from(each).unwrap_or(DESCRIPTORS_MAX)).max(64)
}

fn assemble(
    parts: CoreParts,
    opened: Option<&Opened>,
    descriptors: u32,
    number: usize,
    cores: Vec<CoreSender>,
    inbox: MailboxReceiver<CoreMessage>,
) -> io::Result<(Core, Registration)> {
    let CoreParts { mut reactor, target, classes, workers, seed } = parts;
    let make = |classes: &[ClassLayout]| Pool::new(classes).map_err(io::Error::other);
    let pool = make(&classes).map_err(at("memory for the buffers of a core".to_owned()))?;
    let (admin_pool, compare_pool) = (make(&ADMIN_CLASSES)?, make(&COMPARE_CLASSES)?);
    let buffers = Registration::of(&pool, reactor.register_pool(&pool));
    let config = RnicConfig::new(owner::RNIC, seed);
    let rnic = Rnic::new(RnicConfig { spin: reactor.spin(), queue_pairs_max: CONNECTIONS_MAX, ..config })?;
    let tcp =
        TcpStack::new(TcpConfig { connections_max: CONNECTIONS_MAX, ..TcpConfig::new(owner::TCP, seed) });
    let transports = Transports { rnic, tcp };
    let shared = Shared::new(&pool).ok_or_else(|| io::Error::other("the pool has no buffer"))?;
    let served = target.served();
    let disks = Disks::open_all(&served, opened, &mut reactor, &shared);
    let namespaces = Namespaces::of(&served);
    let queues = cores.iter().map(CoreSender::to_queues).collect();
    let resources = Resources::new(
        reactor,
        transports,
        target,
        served,
        workers,
        namespaces,
        disks,
        shared,
        pool,
        admin_pool,
        compare_pool,
        number,
        queues,
    );
    let half_open = (descriptors / HALF_OPEN_PART).clamp(HALF_OPEN_LEAST, HALF_OPEN_MAX);
    Ok((Core::new(resources, cores, inbox, descriptors as usize, half_open), buffers))
}
