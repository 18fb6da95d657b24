//! The engine's thread, and the handle that ends it.

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ringfab_fabric::rdma::RnicConfig;
use ringfab_memory::ClassLayout;
use ringfab_reactor::{
    MailboxReceiver, MailboxSender, Reactor, ReactorConfig, Wait, mailbox, pin_current_thread,
};

use super::guest::{Guest, TAG_FIRST, Turn};
use super::message::{Answer, CANCEL_POLL, Job, Message, Permits, Reply, Work};
use super::requests::{Request, request_of};
use super::{CancelToken, EngineOptions};
use crate::error::{Cause, ConnectError, IoError, Step, SubmitError};
use crate::host::{Host, HostConfig};
use crate::namespace::{ControllerInfo, Namespace, NamespaceIdentity};
use crate::options::ConnectOptions;
use crate::request::{ControllerId, HostEvent};

/// The most bytes of one command's data.
pub(super) const CHUNK_BYTES_MAX: usize = 256 * 1024;
/// Commands of all callers at the engine at once.
const JOBS_MAX: usize = 256;

/// What a detach has for leaving in order once its calls were cancelled.
const HURRIED: Duration = Duration::from_millis(500);

/// The handle of an engine's thread. Dropping it detaches in an orderly way.
#[derive(Debug)]
pub(super) struct Engine {
    sender: Mailbox,
    view: Arc<RwLock<View>>,
    permits: Arc<Permits>,
    cancel: CancelToken,
    thread: Mutex<Option<Thread>>,
}

/// The engine's thread.
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
pub(super) struct View {
    pub(super) info: ControllerInfo,
    pub(super) namespaces: Vec<Namespace>,
}

/// What a starting thread says.
enum Started {
    Mailbox(MailboxSender<Message>),
    Ready(Arc<RwLock<View>>),
}

impl Engine {
    /// Starts the thread and waits until the controller is ready.
    pub(super) fn start(options: ConnectOptions, engine: EngineOptions) -> Result<Self, ConnectError> {
        let peer = options.url.peer();
        let local = |error: String| ConnectError {
            peer: peer.clone(),
            step: Step::Connect,
            cause: Cause::Local(error),
        };
        let (told, started) = channel();
        let cancel = engine.cancel.clone();
        let thread = std::thread::Builder::new().name("ringfab".to_owned()).spawn(move || {
            let peer = options.url.peer();
            run(options, &engine, &|what| told.send(what).is_ok()).unwrap_or_else(|error| {
                Err(ConnectError { peer, step: Step::Connect, cause: Cause::Local(error.to_string()) })
            })
        });
        let thread = thread.map_err(|error| local(format!("no thread for the engine: {error}")))?;
        match wait_ready(&started, &cancel) {
            Ok((sender, view)) => Ok(Self {
                sender: Mailbox(sender),
                view,
                permits: Permits::new(JOBS_MAX),
                cancel,
                thread: Mutex::new(Some(Thread { handle: thread, ended: started })),
            }),
            Err(cancelled) => {
                let result =
                    thread.join().unwrap_or_else(|_| Err(local("the engine's thread panicked".to_owned())));
                let cause = if cancelled {
                    Cause::Cancelled
                } else {
                    Cause::Local("the engine has ended".to_owned())
                };
                Err(result.err().unwrap_or(ConnectError { peer: peer.clone(), step: Step::Connect, cause }))
            }
        }
    }

    /// What the callers may look at.
    pub(super) fn view(&self) -> RwLockReadGuard<'_, View> {
        self.view.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a command.
    pub(super) fn start_job(
        &self,
        work: Work,
        disk: Option<Arc<NamespaceIdentity>>,
        index: usize,
        reply: &SyncSender<Reply>,
    ) -> Result<(), IoError> {
        let permit = self.permits.acquire(&self.cancel)?;
        let job = Job::new(work, disk, index, reply.clone(), permit);
        // An engine that is gone gives the job back, and dropping it is the answer.
        drop(self.sender.0.send(Message::Run(job)));
        Ok(())
    }

    /// Tells the thread something.
    pub(super) fn send(&self, message: Message) -> Result<(), IoError> {
        self.sender.0.send(message).map_err(|_| IoError::NoPath)
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

    /// Runs one command.
    pub(super) fn call(&self, work: Work, disk: Option<Arc<NamespaceIdentity>>) -> Result<Answer, IoError> {
        let (reply, replies) = sync_channel(1);
        self.start_job(work, disk, 0, &reply)?;
        drop(reply);
        self.wait(&replies)?.result
    }

    /// Detaches and waits for the end of the thread, which is bounded by the shutdown timeout, and by less when cancelled.
    pub(super) fn detach(&self) -> Result<(), ConnectError> {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(thread) = thread else { return Ok(()) };
        if thread.handle.thread().id() == std::thread::current().id() {
            // A guest had the last handle; the thread is ending already.
            return Ok(());
        }
        if self.sender.0.send(Message::Leave { orderly: true }).is_err() {
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
            if cancelled.get_or_insert_with(Instant::now).elapsed() >= HURRIED
                && self.sender.0.send(Message::Leave { orderly: false }).is_err()
            {
                tracing::debug!("the engine has ended meanwhile");
            }
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Err(error) = self.detach() {
            tracing::warn!(%error, "not detached in an orderly way");
        }
    }
}

/// Waits until the controller is ready. The error says whether that was cancelled.
fn wait_ready(
    started: &Receiver<Started>,
    cancel: &CancelToken,
) -> Result<(MailboxSender<Message>, Arc<RwLock<View>>), bool> {
    let mut sender = None;
    let mut cancelled = false;
    loop {
        match started.recv_timeout(CANCEL_POLL) {
            Ok(Started::Mailbox(mailbox)) => sender = Some(mailbox),
            Ok(Started::Ready(view)) if !cancelled => {
                return sender.map(|sender| (sender, view)).ok_or(false);
            }
            Ok(Started::Ready(_)) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(cancelled),
            Err(RecvTimeoutError::Timeout) => {
                if let Some(sender) = sender.as_ref().filter(|_| cancel.is_cancelled() && !cancelled) {
                    cancelled = sender.send(Message::Leave { orderly: false }).is_ok();
                }
            }
        }
    }
}

/// The thread: from the first step of attaching to the last event.
fn run(
    options: ConnectOptions,
    engine: &EngineOptions,
    tell: &dyn Fn(Started) -> bool,
) -> io::Result<Result<(), ConnectError>> {
    if let Some(core) = engine.core {
        pin_current_thread(core)?;
    }
    let mut host = new_host(&options, engine)?;
    let (sender, receiver) = mailbox(host.reactor().waker());
    tell(Started::Mailbox(sender));
    let controller = host.attach(options);
    let jobs = (0..JOBS_MAX).map(|_| None).collect();
    let mut worker = Worker {
        guest: None,
        invited: false,
        host,
        controller,
        receiver,
        jobs,
        backlog: VecDeque::new(),
        view: None,
        end: None,
        leaving: false,
    };
    loop {
        worker.take_events(tell);
        worker.take_messages();
        let wait = worker.turn_guest();
        if worker.end.is_some() && (worker.guest.is_none() || worker.leaving) {
            return Ok(worker.end.take().unwrap_or(Ok(())));
        }
        worker.host.turn(wait)?;
    }
}

fn new_host(options: &ConnectOptions, engine: &EngineOptions) -> io::Result<Host> {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed).map_err(io::Error::other)?;
    let mut jitter = [0; 8];
    getrandom::fill(&mut jitter).map_err(io::Error::other)?;
    let config = ReactorConfig { entries: 256, spin: engine.spin, descriptors_max: 256 };
    let reactor = Reactor::new(&config)?;
    let mut rnic = RnicConfig::new(0, seed);
    rnic.capture.clone_from(&engine.capture);
    rnic.crc = options.url.crc.unwrap_or(rnic.crc);
    let mut pool = vec![
        ClassLayout { buffer_bytes: 4096, count: JOBS_MAX },
        ClassLayout { buffer_bytes: 64 * 1024, count: 64 },
        ClassLayout { buffer_bytes: CHUNK_BYTES_MAX, count: 64 },
    ];
    pool.extend(&engine.guest_buffers);
    Host::new(reactor, HostConfig { pool, rnic, seed: u64::from_le_bytes(jitter) })
}

/// The thread's state.
struct Worker {
    /// Declared before the host, and so dropped before it: the host's ring may be watching what the guest has.
    guest: Option<Box<dyn Guest>>,
    /// Whether there was one.
    invited: bool,
    host: Host,
    controller: ControllerId,
    receiver: MailboxReceiver<Message>,
    /// Jobs at the host, by tag.
    jobs: Vec<Option<Job>>,
    /// Jobs that wait for a buffer or a place.
    backlog: VecDeque<Job>,
    view: Option<Arc<RwLock<View>>>,
    /// How it ended, when the controller is given up or detached. A guest may still have to answer others then.
    end: Option<Result<(), ConnectError>>,
    /// Whether it was asked to leave.
    leaving: bool,
}

impl Worker {
    fn take_messages(&mut self) {
        while let Some(message) = self.receiver.try_receive() {
            match message {
                Message::Run(job) => self.backlog.push_back(job),
                Message::Leave { orderly } => {
                    self.leaving = true;
                    if orderly {
                        self.host.detach(self.controller);
                    } else {
                        self.host.cancel(self.controller);
                    }
                }
                Message::Invite(make) => {
                    // Another one might be told of what the one before has started.
                    if !std::mem::replace(&mut self.invited, true) {
                        self.guest = make(&mut self.host);
                    }
                }
            }
        }
        while let Some(job) = self.backlog.pop_front() {
            if let Some(job) = self.submit(job) {
                return self.backlog.push_front(job);
            }
        }
    }

    /// Lets the guest go on, and says how to wait afterwards.
    fn turn_guest(&mut self) -> Wait {
        let Some(guest) = &mut self.guest else { return Wait::Event };
        match guest.turn(&mut self.host, self.controller) {
            Ok(Turn::Busy) => return Wait::No,
            Ok(Turn::Idle) => return Wait::Event,
            Ok(Turn::Over) => {}
            Err(error) => tracing::error!(%error, "a guest of the engine cannot go on"),
        }
        self.guest = None;
        Wait::No
    }

    /// Handles what has happened; the last event brings the end.
    fn take_events(&mut self, tell: &dyn Fn(Started) -> bool) {
        while let Some(event) = self.host.next_event() {
            match event {
                HostEvent::IoDone(done) if done.tag >= TAG_FIRST => {
                    if let Some(guest) = &mut self.guest {
                        guest.on_io_done(done, &mut self.host, self.controller);
                    }
                }
                HostEvent::IoDone(done) => {
                    let data = done.buffer.as_deref();
                    self.finish(done.tag, done.result.map(|()| None), data);
                }
                HostEvent::AdminDone(done) => {
                    self.finish(done.tag, done.result.map(Some), done.buffer.as_deref());
                }
                HostEvent::Ready { reconnected, .. } => {
                    tracing::info!(reconnected, "controller ready");
                    self.update_view(tell);
                }
                HostEvent::NamespacesChanged { .. } => self.update_view(tell),
                HostEvent::Lost { error, .. } => tracing::debug!(%error, "I/O waits"),
                HostEvent::Reconnecting { attempt, delay, .. } => {
                    tracing::info!(attempt, ?delay, "reconnecting");
                }
                HostEvent::Failed { error, .. } => self.end = Some(Err(error)),
                HostEvent::Detached { trouble, .. } => self.end = Some(trouble.map_or(Ok(()), Err)),
                HostEvent::Foreign(completion) => {
                    if let Some(guest) = &mut self.guest {
                        guest.on_completion(completion);
                    }
                }
            }
        }
    }

    fn update_view(&mut self, tell: &dyn Fn(Started) -> bool) {
        let Some(info) = self.host.info(self.controller).cloned() else { return };
        let view = View { info, namespaces: self.host.namespaces(self.controller).to_vec() };
        if let Some(shared) = &self.view {
            *shared.write().unwrap_or_else(PoisonError::into_inner) = view;
            return;
        }
        let shared = Arc::new(RwLock::new(view));
        self.view = Some(Arc::clone(&shared));
        tell(Started::Ready(shared));
    }

    /// Gives the host a job; gives it back when a buffer or place is missing that will come free.
    fn submit(&mut self, job: Job) -> Option<Job> {
        let Some(tag) = self.jobs.iter().position(Option::is_none) else { return Some(job) };
        let request = match request_of(&self.host, tag as u64, &job.work) {
            Ok(request) => request,
            Err(None) if self.jobs.iter().any(Option::is_some) => return Some(job),
            Err(reason) => {
                job.answer(Err(IoError::Refused(reason.unwrap_or(SubmitError::Buffer))));
                return None;
            }
        };
        let refused = match request {
            Request::Io(request) => {
                let submitted = match &job.disk {
                    Some(disk) => self.host.submit_to(self.controller, disk, request),
                    None => self.host.submit(self.controller, request),
                };
                submitted.err().map(|refused| refused.reason)
            }
            Request::Admin(request) => {
                self.host.admin(self.controller, request).err().map(|refused| refused.reason)
            }
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
        let data = data.filter(|_| result.is_ok()).map_or_else(Vec::new, <[u8]>::to_vec);
        job.answer(result.map(|entry| Answer { data, entry }));
    }
}
