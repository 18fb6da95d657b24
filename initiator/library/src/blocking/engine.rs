//! The engine's threads, and the handle that ends them.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use ringfab_fabric::rdma::RnicConfig;
use ringfab_memory::ClassLayout;
use ringfab_reactor::{MailboxReceiver, MailboxSender, Reactor, ReactorConfig, mailbox, pin_current_thread};

use super::client::{EngineClient, TAG_END, Turn};
use super::message::{Answer, Ended, Job, Message, Operation, Order, Permits, Reply};
use super::requests::{Request, request_of};
use super::{Connection, EngineOptions};
use crate::authentication::Keys;
use crate::bytes::{BlockWriter, Claims};
use crate::cancel::{CANCEL_POLL, CancelToken};
use crate::error::{Cause, ConnectError, IoError, Step, SubmitError};
use crate::host::{Host, HostConfig};
use crate::namespace::{ControllerInfo, Namespace};
use crate::options::ConnectOptions;
use crate::path::SharedController;
use crate::path_status::PathStatus;
use crate::request::{ControllerId, HostEvent, PathId};
use crate::url::Url;

/// The most bytes of one command's data.
pub(super) const CHUNK_BYTES_MAX: usize = 256 * 1024;
/// Commands of all callers at the engine at once.
const JOBS_MAX: usize = 256;
/// Entries of the ring; its completion queue has four times as many.
const RING_ENTRIES: u32 = 512;
/// Sockets of the controller's queues, of old ones that still close, and of the resolver.
const DESCRIPTORS: u32 = 512;

/// What a detach has for leaving in order once its calls were cancelled.
const HURRIED: Duration = Duration::from_millis(500);

/// The handle of an engine's thread. Dropping it detaches in an orderly way.
#[derive(Debug)]
pub(super) struct Engine {
    options: ConnectOptions,
    /// Of each thread; the first leads.
    senders: Vec<Mailbox>,
    /// Whose turn it is: commands go to the threads one after the other.
    next: AtomicUsize,
    snapshot: Arc<RwLock<Snapshot>>,
    permits: Arc<Permits>,
    /// Blocks of which somebody changes a part.
    pub(super) claims: Arc<Claims>,
    pub(super) cancel: CancelToken,
    thread: Mutex<Option<Thread>>,
}

/// The thread of the engine that leads. It waits for the others before it ends.
#[derive(Debug)]
struct Thread {
    handle: JoinHandle<Result<(), ConnectError>>,
    /// Its other end is dropped when the thread ends.
    ended: Receiver<Started>,
}

/// The sender of a mailbox, which cannot be printed.
struct Mailbox(MailboxSender<Message>);

impl std::fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Mailbox")
    }
}

/// What the callers may look at.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) info: ControllerInfo,
    pub(super) namespaces: Vec<Namespace>,
    pub(super) connection: Connection,
    /// How often it was connected again.
    pub(super) reconnects: u64,
}

/// What all threads are given.
#[derive(Clone)]
struct Common {
    engine: EngineOptions,
    claims: Arc<Claims>,
    told: Sender<Started>,
}

/// What a starting thread says.
enum Started {
    /// It takes messages.
    Mailbox {
        /// Its number.
        thread: usize,
        sender: MailboxSender<Message>,
    },
    /// An engine that follows could not be made.
    Broken(String),
    /// It takes commands. The first one says what callers may look at.
    Ready(Option<Arc<RwLock<Snapshot>>>),
}

impl Engine {
    /// Starts the thread and waits until the controller is ready.
    pub(super) fn start(options: ConnectOptions, engine: EngineOptions) -> Result<Self, ConnectError> {
        let peer = options.url.peer();
        let attached = options.clone();
        let local = |error: String| ConnectError {
            peer: peer.clone(),
            step: Step::Connect,
            cause: Cause::Local(error),
        };
        let (told, started) = channel();
        let cancel = engine.cancel.clone();
        let threads = usize::from(engine.threads.max(1));
        let claims = Arc::<Claims>::default();
        let common = Common { engine, claims: claims.clone(), told };
        let thread = std::thread::Builder::new().name("ringfab-0".to_owned()).spawn(move || {
            let peer = options.url.peer();
            lead(options, common).unwrap_or_else(|error| {
                Err(ConnectError { peer, step: Step::Connect, cause: Cause::Local(error.to_string()) })
            })
        });
        let thread = thread.map_err(|error| local(format!("no thread for the engine: {error}")))?;
        match wait_ready(&started, threads, &cancel) {
            Ok((senders, snapshot)) => Ok(Self {
                options: attached,
                senders,
                next: AtomicUsize::new(0),
                snapshot,
                permits: Permits::new(JOBS_MAX),
                claims,
                cancel,
                thread: Mutex::new(Some(Thread { handle: thread, ended: started })),
            }),
            Err(not_ready) => {
                let panicked = || Err(local("the engine's thread panicked".to_owned()));
                let result = thread.join().unwrap_or_else(|_| panicked());
                let cause = match not_ready {
                    NotReady::Cancelled => Cause::Cancelled,
                    NotReady::Ended => Cause::Local("the engine has ended".to_owned()),
                    NotReady::NoThread(error) => return Err(local(error)),
                };
                Err(result.err().unwrap_or(ConnectError { peer: peer.clone(), step: Step::Connect, cause }))
            }
        }
    }

    /// What the callers may look at.
    pub(super) fn snapshot(&self) -> RwLockReadGuard<'_, Snapshot> {
        self.snapshot.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a command.
    pub(super) fn start_job(&self, order: Order, reply: &SyncSender<Reply>) -> Result<(), IoError> {
        let permit = self.permits.acquire(&self.cancel)?;
        let job = Job::new(order, reply.clone(), permit);
        // An engine that is gone gives the job back, and dropping it is the answer.
        drop(self.senders[self.thread_for(&job)].0.send(Message::Run(job)));
        Ok(())
    }

    /// The thread that a command goes to. Only the first one has an admin queue.
    fn thread_for(&self, job: &Job) -> usize {
        match job.order.operation {
            Operation::AdminRead { .. } | Operation::AdminWrite { .. } => 0,
            _ if self.senders.len() == 1 => 0,
            _ => self.next.fetch_add(1, Ordering::Relaxed) % self.senders.len(),
        }
    }

    /// Authenticates again, and waits for it.
    pub(super) fn reauthenticate(&self, keys: Option<Keys>) -> Result<(), ConnectError> {
        self.ask(Step::Authenticate, |reply| Message::Reauthenticate { keys, reply })
    }

    /// Begins a reset.
    pub(super) fn reset(&self) -> Result<(), ConnectError> {
        self.ask(Step::Live, |reply| Message::Reset { reply })
    }

    /// How the controller is attached.
    pub(super) fn options(&self) -> &ConnectOptions {
        &self.options
    }

    /// How the paths are, with the counters of all threads.
    pub(super) fn paths(&self) -> Vec<PathStatus> {
        let ask = |thread: usize| {
            let (reply, replies) = sync_channel(1);
            self.send(thread, Message::Paths { reply }).ok().map(|()| replies)
        };
        let asked: Vec<_> = (0..self.threads()).filter_map(ask).collect();
        // A thread that ends drops the question.
        let mut parts = asked.into_iter().filter_map(|replies| replies.recv().ok());
        let mut paths = parts.next().unwrap_or_default();
        for other in parts.flatten() {
            if let Some(path) = paths.iter_mut().find(|path| path.id == other.id) {
                path.add(&other);
            }
        }
        paths
    }

    /// Adds a path.
    pub(super) fn add_path(&self, url: Url) -> Result<PathId, ConnectError> {
        self.ask(Step::Connect, |reply| Message::AddPath { url: Box::new(url), reply })
    }

    /// Begins to remove a path.
    pub(super) fn remove_path(&self, path: PathId) -> Result<(), ConnectError> {
        self.ask(Step::Live, |reply| Message::RemovePath { path, reply })
    }

    /// Asks the thread that leads for something, and waits for its answer.
    fn ask<T>(
        &self,
        step: Step,
        message: impl FnOnce(SyncSender<Result<T, ConnectError>>) -> Message,
    ) -> Result<T, ConnectError> {
        let (reply, replies) = sync_channel(1);
        let gone = |cause| ConnectError { peer: self.snapshot().info.subsystem.clone(), step, cause };
        let ended = || gone(Cause::Local("the engine has ended".to_owned()));
        self.send(0, message(reply)).map_err(|_| ended())?;
        loop {
            match replies.recv_timeout(CANCEL_POLL) {
                Ok(result) => return result,
                Err(RecvTimeoutError::Disconnected) => return Err(ended()),
                Err(RecvTimeoutError::Timeout) if self.cancel.is_cancelled() => {
                    return Err(gone(Cause::Cancelled));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Threads.
    pub(super) fn threads(&self) -> usize {
        self.senders.len()
    }

    /// Tells a thread something.
    pub(super) fn send(&self, thread: usize, message: Message) -> Result<(), IoError> {
        self.senders[thread].0.send(message).map_err(|_| IoError::NoPath)
    }

    /// Has all threads leave. Whether one was still there.
    fn leave(&self, orderly: bool) -> bool {
        let told = |sender: &Mailbox| sender.0.send(Message::Leave { orderly }).is_ok();
        self.senders.iter().filter(|sender| told(sender)).count() > 0
    }

    /// Waits for an answer, or for the cancellation.
    pub(super) fn wait(&self, replies: &Receiver<Reply>) -> Result<Reply, IoError> {
        loop {
            match replies.recv_timeout(CANCEL_POLL) {
                Ok(reply) => return Ok(reply),
                Err(RecvTimeoutError::Disconnected) => return Err(IoError::NoPath),
                Err(RecvTimeoutError::Timeout) if self.cancel.is_cancelled() => {
                    return Err(IoError::Cancelled);
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Runs one command that writes no blocks, or only such as its caller has claimed.
    pub(super) fn call(&self, order: Order) -> Result<Answer, IoError> {
        let (reply, replies) = sync_channel(1);
        self.start_job(order, &reply)?;
        drop(reply);
        match self.wait(&replies)?? {
            Ended::Done(answer) => Ok(answer),
            Ended::HeldBack => unreachable!("only a write is held back, and not for a claim of its own"),
        }
    }

    /// Detaches, in an orderly way or at once, and waits for the end of the thread. The shutdown timeout bounds that,
    /// and less when cancelled.
    pub(super) fn detach(&self, orderly: bool) -> Result<(), ConnectError> {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(thread) = thread else { return Ok(()) };
        if thread.handle.thread().id() == std::thread::current().id() {
            // A client had the last handle; the thread is ending already.
            return Ok(());
        }
        if !self.leave(orderly) {
            tracing::debug!("the engine has ended already");
        }
        self.wait_left(&thread.ended);
        thread.handle.join().unwrap_or(Ok(()))
    }

    /// Waits for the end of the thread. Once cancelled there is no time for more than a moment of the orderly way.
    fn wait_left(&self, ended: &Receiver<Started>) {
        let mut cancelled: Option<Instant> = None;
        while let Err(RecvTimeoutError::Timeout) | Ok(_) = ended.recv_timeout(CANCEL_POLL) {
            if !self.cancel.is_cancelled() {
                continue;
            }
            if cancelled.get_or_insert_with(Instant::now).elapsed() >= HURRIED && !self.leave(false) {
                tracing::debug!("the engine has ended meanwhile");
            }
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Err(error) = self.detach(true) {
            tracing::warn!(%error, "not detached in an orderly way");
        }
    }
}

/// Why the threads are not ready.
enum NotReady {
    Cancelled,
    /// The one that leads says why.
    Ended,
    /// An engine that follows could not be made.
    NoThread(String),
}

/// Waits until each thread is ready.
fn wait_ready(
    started: &Receiver<Started>,
    threads: usize,
    cancel: &CancelToken,
) -> Result<(Vec<Mailbox>, Arc<RwLock<Snapshot>>), NotReady> {
    let mut senders: Vec<Option<Mailbox>> = (0..threads).map(|_| None).collect();
    let (mut ready, mut snapshot) = (0, None);
    let mut cancelled = false;
    loop {
        match started.recv_timeout(CANCEL_POLL) {
            Ok(Started::Mailbox { thread, sender }) => senders[thread] = Some(Mailbox(sender)),
            Ok(Started::Ready(first)) => {
                ready += 1;
                snapshot = first.or(snapshot);
                if ready == threads && !cancelled {
                    return senders
                        .into_iter()
                        .collect::<Option<Vec<_>>>()
                        .zip(snapshot)
                        .ok_or(NotReady::Ended);
                }
            }
            Ok(Started::Broken(error)) => {
                if let Some(leader) = &senders[0] {
                    // One that has ended needs no more.
                    let _ended = leader.0.send(Message::Leave { orderly: false });
                }
                return Err(NotReady::NoThread(error));
            }
            Err(RecvTimeoutError::Disconnected) if cancelled => return Err(NotReady::Cancelled),
            Err(RecvTimeoutError::Disconnected) => return Err(NotReady::Ended),
            Err(RecvTimeoutError::Timeout) => {
                if let Some(leader) = senders[0].as_ref().filter(|_| cancel.is_cancelled() && !cancelled) {
                    cancelled = leader.0.send(Message::Leave { orderly: false }).is_ok();
                }
            }
        }
    }
}

/// The thread of the engine that leads: from the first step of attaching to the last event, and the end of the others.
fn lead(options: ConnectOptions, common: Common) -> io::Result<Result<(), ConnectError>> {
    let peer = options.url.peer();
    let mut host = new_host(&options, &common.engine, 0)?;
    let receiver = open_mailbox(&mut host, 0, &common.told);
    let (controller, shared) = host.attach_shared(options, common.engine.threads.max(1) - 1);
    let mut threads = Vec::new();
    for (shared, number) in shared.into_iter().zip(1..) {
        let common = common.clone();
        let thread = std::thread::Builder::new().name(format!("ringfab-{number}"));
        threads.push(thread.spawn(move || follow(shared, number, common))?);
    }
    let dispatcher = Dispatcher::new(&mut host, receiver, common, Role { peer, leads: true });
    let result = run(host, controller, dispatcher);
    for thread in threads {
        match thread.join() {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "an engine thread failed"),
            Err(_) => tracing::warn!("an engine thread panicked"),
        }
    }
    result
}

/// The thread of an engine that follows.
fn follow(shared: SharedController, number: usize, common: Common) -> io::Result<()> {
    let mut host = new_host(shared.options(), &common.engine, number).inspect_err(|error| {
        // Who does not wait any more leaves.
        let _result = common.told.send(Started::Broken(error.to_string()));
    })?;
    let receiver = open_mailbox(&mut host, number, &common.told);
    let peer = shared.options().url.peer();
    let controller = host.join(shared);
    let dispatcher = Dispatcher::new(&mut host, receiver, common, Role { peer, leads: false });
    // How it ended is said by the one that leads.
    run(host, controller, dispatcher).map(drop)
}

/// Says where a thread takes messages.
fn open_mailbox(host: &mut Host, thread: usize, told: &Sender<Started>) -> MailboxReceiver<Message> {
    let (sender, receiver) = mailbox(host.reactor().waker());
    // Who does not wait any more leaves.
    let _result = told.send(Started::Mailbox { thread, sender });
    receiver
}

/// Runs the handle's part of a thread to its end.
fn run(
    mut host: Host,
    controller: ControllerId,
    mut dispatcher: Dispatcher,
) -> io::Result<Result<(), ConnectError>> {
    host.run(controller, &mut dispatcher)?;
    Ok(dispatcher.end.take().unwrap_or(Ok(())))
}

/// The engine of thread `number`, on the calling thread.
fn new_host(options: &ConnectOptions, engine: &EngineOptions, number: usize) -> io::Result<Host> {
    if let Some(core) = engine.core {
        pin_current_thread(core + number)?;
    }
    let mut seed = [0; 32];
    getrandom::fill(&mut seed).map_err(io::Error::other)?;
    let mut jitter = [0; 8];
    getrandom::fill(&mut jitter).map_err(io::Error::other)?;
    let config = ReactorConfig {
        entries: RING_ENTRIES,
        spin: engine.spin,
        descriptors_max: DESCRIPTORS + engine.client_descriptors,
    };
    let reactor = Reactor::new(&config)?;
    let mut rnic = RnicConfig::new(0, seed);
    rnic.capture.clone_from(&engine.capture);
    rnic.crc = options.url.rdma.crc.unwrap_or(rnic.crc);
    let mut pool = vec![
        ClassLayout { buffer_bytes: 4096, count: JOBS_MAX },
        ClassLayout { buffer_bytes: 64 * 1024, count: 64 },
        ClassLayout { buffer_bytes: CHUNK_BYTES_MAX, count: 64 },
    ];
    pool.extend(&engine.client_buffers);
    Host::new(reactor, HostConfig { pool, rnic, seed: u64::from_le_bytes(jitter) })
}

/// Which of the threads one is.
struct Role {
    /// The controller's name for people.
    peer: String,
    /// Whether this is the thread that leads.
    leads: bool,
}

/// The handle's part of a thread: it gives the callers' commands to the host, and the answers to the callers.
struct Dispatcher {
    /// What shares the thread. Dropped before the host, whose ring may be watching what it has.
    client: Option<Box<dyn EngineClient>>,
    /// Whether there was one.
    had_client: bool,
    receiver: MailboxReceiver<Message>,
    /// For the jobs that write.
    writer: BlockWriter,
    /// Jobs at the host, by tag.
    jobs: Vec<Option<Job>>,
    /// Jobs that wait for a buffer or a place.
    backlog: VecDeque<Job>,
    /// Who waits for an authentication.
    authenticating: Vec<SyncSender<Result<(), ConnectError>>>,
    role: Role,
    /// What the callers look at, on the thread that leads.
    snapshot: Option<Arc<RwLock<Snapshot>>>,
    /// The paths by which commands go.
    ready_paths: BTreeSet<PathId>,
    /// Who waits until this thread is ready, until it is.
    told: Option<Sender<Started>>,
    /// How it ended, when the controller is given up or detached. A client may still have to answer others then.
    end: Option<Result<(), ConnectError>>,
    /// Whether it was asked to leave.
    leaving: bool,
}

impl EngineClient for Dispatcher {
    fn turn(&mut self, host: &mut Host, controller: ControllerId) -> io::Result<Turn> {
        self.take_messages(host, controller);
        self.writer.report(|nsid, blocks| self.is_writing(nsid, blocks));
        let turn = self.turn_client(host, controller);
        let over = self.end.is_some() && (self.client.is_none() || self.leaving);
        Ok(if over { Turn::Over } else { turn })
    }

    #[inline]
    fn on_event(&mut self, event: &mut HostEvent, host: &mut Host, controller: ControllerId) {
        match event {
            HostEvent::IoDone(done) if done.tag >= TAG_END => {
                self.finish(done.tag - TAG_END, done.result.map(|()| None), done.buffer.as_deref());
            }
            HostEvent::AdminDone(done) if done.tag >= TAG_END => {
                let data = done.buffer.as_deref().map(|data| &data[..done.received as usize]);
                self.finish(done.tag - TAG_END, done.result.map(Some), data);
            }
            _ => {
                if let Some(client) = &mut self.client {
                    client.on_event(event, host, controller);
                }
                self.on_controller_event(event, host, controller);
            }
        }
    }
}

impl Dispatcher {
    fn new(host: &mut Host, receiver: MailboxReceiver<Message>, common: Common, role: Role) -> Self {
        Self {
            client: None,
            had_client: false,
            receiver,
            writer: common.claims.join(host.reactor().waker()),
            jobs: (0..JOBS_MAX).map(|_| None).collect(),
            backlog: VecDeque::new(),
            authenticating: Vec::new(),
            role,
            snapshot: None,
            ready_paths: BTreeSet::new(),
            told: Some(common.told),
            end: None,
            leaving: false,
        }
    }

    /// Whether commands of jobs may write some of these blocks.
    fn is_writing(&self, nsid: u32, blocks: &Range<u64>) -> bool {
        let is_there = |of: u32, written: &Range<u64>| {
            of == nsid && written.start < blocks.end && blocks.start < written.end
        };
        // A job that has not begun is held back, unless its caller has claimed its blocks and was cancelled since.
        let waiting = self.backlog.iter().filter(|job| job.order.claimed);
        self.jobs.iter().flatten().chain(waiting).any(|job| job.order.operation.writes_any(is_there))
    }

    fn on_controller_event(&mut self, event: &HostEvent, host: &Host, controller: ControllerId) {
        match event {
            HostEvent::IoDone(_)
            | HostEvent::AdminDone(_)
            | HostEvent::DiscoveryLogChanged { .. }
            | HostEvent::Foreign(_) => {}
            HostEvent::Reauthenticated { result, .. } => self.reauthenticated(result),
            HostEvent::Ready { path, reconnected, .. } => {
                tracing::info!(reconnected, "controller ready");
                self.ready_paths.insert(*path);
                self.ready(host, controller);
                self.connection_is(|_| Connection::Connected);
                if *reconnected {
                    self.change_snapshot(|shared| shared.reconnects += 1);
                }
            }
            HostEvent::NamespacesChanged { .. } => self.update_view(host, controller),
            HostEvent::Lost { path, error, .. } => {
                if self.path_is_not_ready(*path) {
                    tracing::debug!(%error, "I/O waits");
                    self.reauthenticated(&Err(error.clone()));
                }
            }
            HostEvent::PathAdded { path, .. } => tracing::info!(%path, "path added"),
            HostEvent::PathRemoved { path, .. } => {
                tracing::info!(%path, "path removed");
                self.path_is_not_ready(*path);
            }
            HostEvent::FailedOver { from, to, after, .. } => {
                tracing::info!(%from, %to, ?after, "failed over");
            }
            HostEvent::AccessChanged { path, .. } => tracing::info!(%path, "access states changed"),
            HostEvent::Reconnecting { attempt, delay, .. } => {
                tracing::info!(attempt, ?delay, "reconnecting");
            }
            HostEvent::Failed { error, .. } => {
                self.connection_is(|_| Connection::GivenUp);
                self.end = Some(Err(error.clone()));
            }
            HostEvent::Detached { trouble, .. } => self.end = Some(trouble.clone().map_or(Ok(()), Err)),
        }
    }

    fn take_messages(&mut self, host: &mut Host, controller: ControllerId) {
        while let Some(message) = self.receiver.try_receive() {
            match message {
                Message::Run(job) => self.backlog.push_back(job),
                Message::Leave { orderly } => {
                    self.leaving = true;
                    match orderly {
                        _ if !self.role.leads => {}
                        true => host.detach(controller),
                        false => host.cancel(controller),
                    }
                }
                Message::Reauthenticate { keys, reply } => match host.reauthenticate(controller, keys) {
                    Ok(()) => self.authenticating.push(reply),
                    Err(reason) => self.answer(&reply, Step::Authenticate, Err(reason)),
                },
                Message::Reset { reply } => self.answer(&reply, Step::Live, host.reset(controller)),
                Message::Paths { reply } => {
                    // Who does not wait any more leaves.
                    let _result = reply.try_send(host.paths(controller));
                }
                Message::AddPath { url, reply } => {
                    self.answer(&reply, Step::Connect, host.add_path(controller, *url));
                }
                Message::RemovePath { path, reply } => {
                    self.answer(&reply, Step::Live, host.remove_path(controller, path));
                }
                Message::AddClient(make) => {
                    // Another one might be told of what the one before has started.
                    if !std::mem::replace(&mut self.had_client, true) {
                        self.client = make(host, controller);
                    }
                }
            }
        }
        while let Some(job) = self.backlog.pop_front() {
            if let Some(job) = self.submit(job, host, controller) {
                return self.backlog.push_front(job);
            }
        }
    }

    /// Answers somebody who has asked for something.
    fn answer<T>(
        &self,
        reply: &SyncSender<Result<T, ConnectError>>,
        step: Step,
        result: Result<T, SubmitError>,
    ) {
        let error = |reason: SubmitError| {
            let cause = Cause::Local(reason.to_string());
            ConnectError { peer: self.role.peer.clone(), step, cause }
        };
        // Who does not wait any more leaves.
        let _result = reply.try_send(result.map_err(error));
    }

    /// Answers those who wait for an authentication.
    fn reauthenticated(&mut self, result: &Result<(), ConnectError>) {
        for reply in self.authenticating.drain(..) {
            // Who does not wait any more leaves.
            let _result = reply.try_send(result.clone());
        }
    }

    /// Lets the client go on.
    fn turn_client(&mut self, host: &mut Host, controller: ControllerId) -> Turn {
        let Some(client) = &mut self.client else { return Turn::Idle };
        match client.turn(host, controller) {
            Ok(Turn::Over) => {}
            Ok(turn) => return turn,
            Err(error) => tracing::error!(%error, "a client of the engine failed"),
        }
        self.client = None;
        Turn::Busy
    }

    /// The controller takes commands.
    fn ready(&mut self, host: &Host, controller: ControllerId) {
        self.update_view(host, controller);
        if let Some(told) = self.told.take() {
            // Who does not wait any more leaves.
            let _result = told.send(Started::Ready(self.snapshot.clone()));
        }
    }

    fn update_view(&mut self, host: &Host, controller: ControllerId) {
        let Some(info) = host.info(controller).filter(|_| self.role.leads) else { return };
        let (info, namespaces) = (info.clone(), host.namespaces(controller).to_vec());
        match &self.snapshot {
            Some(shared) => {
                let mut shared = shared.write().unwrap_or_else(PoisonError::into_inner);
                (shared.info, shared.namespaces) = (info, namespaces);
            }
            None => {
                let connection = Connection::Connected;
                let snapshot = Snapshot { info, namespaces, connection, reconnects: 0 };
                self.snapshot = Some(Arc::new(RwLock::new(snapshot)));
            }
        }
    }

    /// A path takes no commands any more. Says whether none does.
    fn path_is_not_ready(&mut self, path: PathId) -> bool {
        self.ready_paths.remove(&path);
        let none = self.ready_paths.is_empty();
        if none {
            self.connection_is(|before| match before {
                Connection::Connected => Connection::Lost { since: SystemTime::now() },
                lost => lost,
            });
        }
        none
    }

    /// The connection is another one than before.
    fn connection_is(&self, now: impl FnOnce(Connection) -> Connection) {
        self.change_snapshot(|shared| shared.connection = now(shared.connection));
    }

    fn change_snapshot(&self, change: impl FnOnce(&mut Snapshot)) {
        let Some(shared) = &self.snapshot else { return };
        change(&mut shared.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// Gives the host a job; gives it back when a buffer or place is missing that will come free.
    fn submit(&mut self, job: Job, host: &mut Host, controller: ControllerId) -> Option<Job> {
        let order = &job.order;
        if !order.claimed && order.operation.writes_any(|nsid, blocks| self.writer.must_wait(nsid, blocks)) {
            job.answer(Ok(Ended::HeldBack));
            return None;
        }
        let Some(tag) = self.jobs.iter().position(Option::is_none) else { return Some(job) };
        let request = match request_of(host, TAG_END + tag as u64, &order.operation) {
            Ok(request) => request,
            Err(None) if self.jobs.iter().any(Option::is_some) => return Some(job),
            Err(reason) => {
                job.answer(Err(IoError::Refused(reason.unwrap_or(SubmitError::Buffer))));
                return None;
            }
        };
        let refused = match request {
            Request::Io(request) => {
                let submitted = match &job.order.disk {
                    Some(disk) => host.submit_to(controller, disk, request),
                    None => host.submit(controller, request),
                };
                submitted.err().map(|refused| refused.reason)
            }
            Request::Admin(request) => host.admin(controller, request).err().map(|refused| refused.reason),
        };
        match refused {
            None => self.jobs[tag] = Some(job),
            Some(SubmitError::Full) => return Some(job),
            Some(reason) => job.answer(Err(reason.into())),
        }
        None
    }

    fn finish(
        &mut self,
        tag: u64,
        result: Result<Option<ringfab_spec::CompletionEntry>, IoError>,
        data: Option<&[u8]>,
    ) {
        let Some(job) = self.jobs.get_mut(tag as usize).and_then(Option::take) else { return };
        let data = data.filter(|_| result.is_ok());
        let data = data.map_or_else(Vec::new, |data| job.order.operation.take_data(data));
        job.answer(result.map(|entry| Ended::Done(Answer { data, entry })));
    }
}
