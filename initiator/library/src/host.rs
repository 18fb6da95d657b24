//! The engine of one core.

use std::io;
use std::mem;
use std::os::fd::BorrowedFd;

use ringfab_base::{SlotId, Slots, SplitMix64};
use ringfab_fabric::rdma::{Rnic, RnicConfig, RnicCounters};
use ringfab_fabric::tcp::{TcpConfig, TcpStack};
use ringfab_fabric::{CopiedBytes, Events, TransportEvents};
use ringfab_memory::{ClassLayout, Pool};
use ringfab_reactor::{Completion, MailboxReceiver, Reactor, Wait, mailbox};
use ringfab_spec::CompletionEntry;

use crate::attachment::{Attachment, PATHS_MAX};
use crate::authentication::Keys;
use crate::command::CommandPool;
use crate::error::SubmitError;
use crate::messages::{Mailbox, Message};
use crate::namespace::{ControllerInfo, Namespace, NamespaceIdentity};
use crate::options::ConnectOptions;
use crate::path::SharedController;
use crate::path_status::PathStatus;
use crate::request::{AdminRequest, Asked, ControllerId, HostEvent, IoRequest, PathId, Refused};
use crate::resources::{OWNER_RNIC, OWNER_TCP, OWNER_TIMERS, Resources, Route, Routes};
use crate::transport::{self, Arrival, ConnectionEvent, Endpoint, TransportHandler, Transports};
use crate::url::Url;

/// How a [`Host`] is built.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HostConfig {
    /// Buffers for I/O and admin data. Every class must hold at least a page, and one at least 4 KiB.
    pub pool: Vec<ClassLayout>,
    /// The software RNIC: its seed, CRCs, capture. The owner number is the host's affair.
    pub rnic: RnicConfig,
    /// Seed of the jitter of reconnects.
    pub seed: u64,
}

impl HostConfig {
    /// With these buffers, this software RNIC, and this seed of the jitter.
    pub fn new(pool: Vec<ClassLayout>, rnic: RnicConfig, seed: u64) -> Self {
        Self { pool, rnic, seed }
    }
}

/// One core's end of NVMe over Fabrics: its reactor, its RNIC, its buffers and the controllers attached to it.
///
/// Per I/O it takes no lock and allocates nothing. All memory that a peer reaches comes from [`Host::pool`].
///
/// It stays on the thread that made it. Only [`Host::turn`] waits, and only when it is asked to; [`Host::new`] maps
/// memory, and a host name is looked up on a thread of its own. Everything else returns at once, and what comes of it
/// is told by a [`HostEvent`].
///
/// ```no_run
/// use ringfab_initiator::{ConnectOptions, Host, HostConfig, HostEvent, IoOperation, IoRequest, Wait};
/// use ringfab_initiator::{Reactor, ReactorConfig};
///
/// # fn read(config: HostConfig, options: ConnectOptions) -> Result<(), Box<dyn std::error::Error>> {
/// let ring = ReactorConfig { entries: 256, spin: std::time::Duration::ZERO, descriptors_max: 64 };
/// let mut host = Host::new(Reactor::new(&ring)?, config)?;
/// let controller = host.attach(options);
/// loop {
///     match host.next_event() {
///         Some(HostEvent::Ready { .. }) => {
///             let buffer = host.pool().take(4096).ok_or("no buffer")?;
///             let operation = IoOperation::Read { lba: 0, nlb: 1, buffer };
///             let request = IoRequest { nsid: 1, tag: 7, operation };
///             host.submit(controller, request).map_err(|refused| refused.reason)?;
///         }
///         Some(HostEvent::IoDone(done)) => {
///             done.result?;
///             println!("{}: {:?}", done.tag, done.buffer.map(|buffer| buffer[0]));
///             host.detach(controller);
///         }
///         Some(HostEvent::Detached { .. }) => return Ok(()),
///         Some(HostEvent::Failed { error, .. }) => return Err(error.into()),
///         Some(_) => {}
///         None => host.turn(Wait::Event)?,
///     }
/// }
/// # }
/// ```
pub struct Host {
    resources: Resources,
    /// What the transports report, while it is acted on.
    transport_events: TransportEvents,
    controllers: Slots<Attachment>,
    messages: MailboxReceiver<Box<Message>>,
}

impl Host {
    /// Tokens of the reactor with this owner number or above are the caller's: their completions come as
    /// [`HostEvent::Foreign`].
    pub const OWNER_FOREIGN_FIRST: u8 = 16;

    /// The most paths of a controller.
    pub const PATHS_MAX: usize = PATHS_MAX;

    /// A host on the core of `reactor`.
    ///
    /// # Errors
    /// When the pool cannot be mapped or the RNIC not be made.
    pub fn new(reactor: Reactor, config: HostConfig) -> io::Result<Self> {
        // Not registered with the ring: that is for files, and takes longer than everything else until a volume is
        // attached.
        let pool = Pool::new(&config.pool).map_err(io::Error::other)?;
        let tcp = TcpStack::new(TcpConfig::new(OWNER_TCP, config.rnic.seed));
        let rnic = Rnic::new(RnicConfig { owner: OWNER_RNIC, spin: reactor.spin(), ..config.rnic })?;
        let (sender, messages) = mailbox(reactor.waker());
        let resources = Resources {
            reactor,
            transports: Transports { rnic, tcp },
            pool,
            events: Events::with_capacity(EVENTS_MIN),
            io_outstanding: 0,
            routes: Routes::default(),
            commands: CommandPool::default(),
            random: SplitMix64::new(config.seed),
            mailbox: Mailbox(sender),
            threads: true,
        };
        Ok(Self {
            resources,
            transport_events: TransportEvents::default(),
            controllers: Slots::new(),
            messages,
        })
    }

    /// From now on, what authentication has to compute is computed as part of a turn, without threads: for a simulated
    /// reactor, whose time stands still meanwhile.
    pub fn set_single_threaded(&mut self) {
        self.resources.threads = false;
    }

    /// Buffers for I/O.
    pub fn pool(&self) -> &Pool {
        &self.resources.pool
    }

    /// The core's ring, for sockets and timers of the caller's own.
    pub fn reactor(&mut self) -> &mut Reactor {
        &mut self.resources.reactor
    }

    /// What the RNIC has done.
    pub fn rnic_counters(&self) -> RnicCounters {
        self.resources.transports.rnic.counters()
    }

    /// What its transports have copied so far.
    pub fn copied_bytes(&self) -> CopiedBytes {
        self.resources.transports.copied_bytes()
    }

    /// Starts to attach a controller. [`HostEvent::Ready`] or [`HostEvent::Failed`] follows. The first attachment is
    /// not retried; the policy's attempts begin with the first loss.
    pub fn attach(&mut self, options: ConnectOptions) -> ControllerId {
        self.attach_shared(options, 0).0
    }

    /// The same for a controller that this engine shares with `others` more, each on a thread of its own with I/O
    /// queues of its own. This engine leads: it has the admin queue too. The controller is ready when all of them have
    /// joined, within [`Timeouts::attach`](crate::Timeouts::attach), and has to allow an I/O queue for each.
    ///
    /// Every engine has the events of the controller. When any connection is lost, all of them end; what each engine
    /// has outstanding then waits or fails as the policy says. Detaching on any of them detaches all.
    pub fn attach_shared(
        &mut self,
        options: ConnectOptions,
        others: u16,
    ) -> (ControllerId, Vec<SharedController>) {
        let (resources, mut shared) = (&mut self.resources, Vec::new());
        let id = self.controllers.insert_with(|id| {
            let (attachment, for_others) = Attachment::attach(ControllerId(id), options, others, resources);
            shared = for_others;
            attachment
        });
        self.remove_gone(id);
        (ControllerId(id), shared)
    }

    /// Takes part in a controller that another engine attaches. [`HostEvent::Ready`] or [`HostEvent::Failed`] follows.
    /// Admin commands are for the engine that leads.
    pub fn join(&mut self, shared: SharedController) -> ControllerId {
        let resources = &mut self.resources;
        let id = self.controllers.insert_with(|id| Attachment::join(ControllerId(id), shared, resources));
        self.remove_gone(id);
        ControllerId(id)
    }

    /// The controller, once it was ready.
    pub fn info(&self, controller: ControllerId) -> Option<&ControllerInfo> {
        self.controllers.get(controller.0)?.info()
    }

    /// The namespaces in use: the one that the address names, or all that are active.
    pub fn namespaces(&self, controller: ControllerId) -> &[Namespace] {
        self.controllers.get(controller.0).map_or(&[], Attachment::namespaces)
    }

    /// Starts an I/O command; beyond the depth of the queues, and while the connection is lost, it waits in order.
    /// [`HostEvent::IoDone`] follows.
    ///
    /// # Errors
    /// Gives the request back with the reason.
    pub fn submit(&mut self, controller: ControllerId, request: IoRequest) -> Result<(), Refused<IoRequest>> {
        self.submit_as(controller, None, request)
    }

    /// The same for one disk only: another one that has got its number is not reached, as far as the controller has
    /// told of it. Once it has, what still waits for the old one ends with [`SubmitError::NoNamespace`].
    ///
    /// # Errors
    /// As [`Host::submit`]; [`SubmitError::NoNamespace`] also when the namespace is another disk.
    pub fn submit_to(
        &mut self,
        controller: ControllerId,
        disk: &NamespaceIdentity,
        request: IoRequest,
    ) -> Result<(), Refused<IoRequest>> {
        self.submit_as(controller, Some(disk), request)
    }

    fn submit_as(
        &mut self,
        controller: ControllerId,
        disk: Option<&NamespaceIdentity>,
        request: IoRequest,
    ) -> Result<(), Refused<IoRequest>> {
        match self.controllers.get_mut(controller.0) {
            Some(controller) => controller.submit(&mut self.resources, disk, request),
            None => Err(Refused { reason: SubmitError::Gone, request }),
        }
    }

    /// Starts an admin command; [`HostEvent::AdminDone`] follows.
    ///
    /// # Errors
    /// Gives the request back with the reason.
    pub fn admin(
        &mut self,
        controller: ControllerId,
        request: AdminRequest,
    ) -> Result<(), Refused<AdminRequest>> {
        match self.controllers.get_mut(controller.0) {
            Some(controller) => controller.submit_admin(&mut self.resources, request),
            None => Err(Refused { reason: SubmitError::Gone, request }),
        }
    }

    /// Authenticates again on each queue of a controller that has asked for it, with these keys if there are any. I/O
    /// goes on meanwhile. [`HostEvent::Reauthenticated`] follows for the queues of this engine, the one that leads.
    /// After its success the other engines do the same, and the keys are those of reconnects, too. If one end refuses
    /// the other, the connection is lost.
    ///
    /// # Errors
    /// The controller is not ready, or has not asked for authentication.
    pub fn reauthenticate(
        &mut self,
        controller: ControllerId,
        keys: Option<Keys>,
    ) -> Result<(), SubmitError> {
        self.ask(controller, &Asked::Reauthenticate(keys))
    }

    /// Resets a controller: all connections to it end, on every engine, and it is attached anew at once, with a new
    /// association. [`HostEvent::Lost`] and [`HostEvent::Ready`] follow. I/O waits meanwhile and goes on, as after any
    /// other loss. While it is lost already, this begins the next attempt to reconnect, without its delay.
    ///
    /// CC.EN is not cleared first: a controller that is disabled refuses I/O for good, and engines of other threads may
    /// still send some. To the controller, the end of the association is the same.
    ///
    /// # Errors
    /// This engine does not lead, or the controller is being detached or was given up.
    pub fn reset(&mut self, controller: ControllerId) -> Result<(), SubmitError> {
        self.ask(controller, &Asked::Reset)
    }

    /// The paths, as this engine sees them.
    pub fn paths(&self, controller: ControllerId) -> Vec<PathStatus> {
        let now = self.resources.now();
        self.controllers.get(controller.0).map_or_else(Vec::new, |attachment| attachment.path_status(now))
    }

    /// Adds a path to the same subsystem, by another address: [`HostEvent::PathAdded`] follows on every engine, and
    /// then [`HostEvent::Ready`] or [`HostEvent::PathRemoved`]. It is attached with the options of the controller, as
    /// [`ConnectOptions::at`] says, and tried again where it cannot be reached.
    ///
    /// # Errors
    /// This engine does not lead; the controller was never ready so far, or is being detached; the address is of
    /// another subsystem, or that of a path; there are [`Host::PATHS_MAX`].
    pub fn add_path(&mut self, controller: ControllerId, url: Url) -> Result<PathId, SubmitError> {
        match self.controllers.get_mut(controller.0) {
            Some(controller) => controller.add_path(&mut self.resources, url),
            None => Err(SubmitError::Gone),
        }
    }

    /// Removes a path: it takes no new commands, those that it has been sent end, and its controller shuts down.
    /// [`HostEvent::PathRemoved`] follows. One that is lost is removed at once.
    ///
    /// # Errors
    /// This engine does not lead; there is no such path; it is the last one, which goes with [`Host::detach`], or the
    /// last one that takes I/O.
    pub fn remove_path(&mut self, controller: ControllerId, path: PathId) -> Result<(), SubmitError> {
        match self.controllers.get_mut(controller.0) {
            Some(controller) => controller.remove_path(&mut self.resources, path),
            None => Err(SubmitError::Gone),
        }
    }

    fn ask(&mut self, controller: ControllerId, asked: &Asked) -> Result<(), SubmitError> {
        match self.controllers.get_mut(controller.0) {
            Some(controller) => controller.ask(&mut self.resources, asked),
            None => Err(SubmitError::Gone),
        }
    }

    /// Whether the controller is still there: one that has failed or is detached has told so, and is forgotten.
    pub fn is_attached(&self, controller: ControllerId) -> bool {
        self.controllers.get(controller.0).is_some()
    }

    /// Commands that were submitted and not answered yet, waiting ones included.
    pub fn outstanding(&self, controller: ControllerId) -> usize {
        self.controllers.get(controller.0).map_or(0, Attachment::outstanding)
    }

    /// Detaches in an orderly way: outstanding commands end, volatile caches are flushed, the controller shuts down.
    /// All within [`Timeouts::shutdown`](crate::Timeouts::shutdown); then [`HostEvent::Detached`] follows. While the
    /// connection is lost it is immediate, and outstanding requests end as cancelled.
    pub fn detach(&mut self, controller: ControllerId) {
        if let Some(found) = self.controllers.get_mut(controller.0) {
            found.detach(&mut self.resources, true);
            self.remove_gone(controller.0);
        }
    }

    /// Detaches at once: outstanding requests end with [`IoError::Cancelled`](crate::IoError::Cancelled), the
    /// connection closes. [`HostEvent::Detached`] follows.
    pub fn cancel(&mut self, controller: ControllerId) {
        if let Some(found) = self.controllers.get_mut(controller.0) {
            found.detach(&mut self.resources, false);
            self.remove_gone(controller.0);
        }
    }

    /// Starts what was submitted, and collects what has happened. With [`Wait::Event`] it waits unless an event is
    /// there; with [`Wait::No`] it does not wait. The only call that does.
    ///
    /// # Errors
    /// Only when the ring itself is broken.
    pub fn turn(&mut self, wait: Wait) -> io::Result<()> {
        let wait = match wait {
            _ if self.begin_turn() => Wait::No,
            Wait::Event if self.resources.io_outstanding > 0 => Wait::Answer,
            wait => wait,
        };
        self.resources.reactor.turn(wait)?;
        while let Some(completion) = self.resources.reactor.next_completion() {
            self.on_completion(completion);
        }
        while let Some(message) = self.messages.try_receive() {
            let id = message.path().controller;
            if let Some(attachment) = self.controllers.get_mut(id.0) {
                attachment.on_message(&mut self.resources, *message);
                self.remove_gone(id.0);
            } else {
                Attachment::turn_away(*message);
            }
        }
        self.take_events();
        Ok(())
    }

    /// A descriptor for a program that has a loop of its own and waits there, with poll(2) or in an epoll, beside other
    /// descriptors.
    ///
    /// Such a program calls [`Host::turn`] with [`Wait::No`] whenever it is readable, and takes the events. Before it
    /// waits, it calls [`Host::prepare_to_wait`]. It watches its own eventfds itself, not with the reactor. The example
    /// `own_loop` shows it.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`] where the reactor is simulated; the kernel's refusal.
    pub fn descriptor(&self) -> io::Result<BorrowedFd<'_>> {
        self.resources.reactor.descriptor()
    }

    /// Starts what was submitted, and has [`Host::descriptor`] become readable with whatever needs a turn next: an
    /// answer, a timer, a message of another thread. Returns whether the program may wait for that. If not, there is
    /// something to do already: a turn or an event.
    ///
    /// # Errors
    /// Only when the ring itself is broken.
    pub fn prepare_to_wait(&mut self) -> io::Result<bool> {
        let is_busy = self.begin_turn();
        Ok(!is_busy && self.resources.reactor.prepare_to_wait()?)
    }

    /// The next event, in order.
    pub fn next_event(&mut self) -> Option<HostEvent> {
        // Asked before it is taken, so that an event is not moved past what is done without one.
        if self.resources.events.rewind() {
            return None;
        }
        self.resources.events.take()
    }

    /// The same for many, which are looked at where they lie: [`Events::exchange`] with the events that wait.
    #[inline]
    pub fn exchange_events(&mut self, taken: &mut Events<HostEvent>) -> bool {
        self.resources.events.exchange(taken)
    }

    /// Starts what was submitted. Returns whether there is something to do already, which must not be slept over.
    #[inline]
    fn begin_turn(&mut self) -> bool {
        let resources = &mut self.resources;
        // The caller may have given buffers back that a transport waits for.
        let resumed = resources.transports.poll(&mut resources.reactor);
        resources.transports.flush(&mut resources.reactor);
        // What flushing has brought about counts, too.
        let happened = self.take_events();
        let busy = resumed || happened || !self.resources.events.is_empty();
        busy || !self.resources.transports.may_sleep(&mut self.resources.reactor)
    }

    /// Hands out what the transports have to say; whether it was anything.
    fn take_events(&mut self) -> bool {
        let mut happened = false;
        // What is done about some may bring about others.
        let mut transport_events = mem::take(&mut self.transport_events);
        let mut done = false;
        while !done {
            done = true;
            while self.resources.transports.rnic.exchange_events(&mut transport_events.rdma) {
                while let Some(event) = transport_events.rdma.next_slot() {
                    transport::rdma::report(event, self);
                }
                done = false;
            }
            while self.resources.transports.tcp.exchange_events(&mut transport_events.tcp) {
                while let Some(event) = transport_events.tcp.next_slot() {
                    transport::tcp::report(event, self);
                }
                done = false;
            }
            happened |= !done;
        }
        self.transport_events = transport_events;
        happened
    }

    fn on_completion(&mut self, completion: Completion) {
        match completion.token.owner {
            OWNER_RNIC => {
                self.resources.transports.rnic.on_completion(&mut self.resources.reactor, completion);
            }
            OWNER_TCP => self.resources.transports.tcp.on_completion(&mut self.resources.reactor, completion),
            OWNER_TIMERS => {
                let (index, generation) = (completion.token.index, completion.token.generation);
                let found = self.controllers.of_slot(index);
                if let Some((id, controller)) = found.filter(|(id, _)| id.generation_low() == generation) {
                    controller.on_timer(&mut self.resources);
                    self.remove_gone(id);
                }
            }
            _ => self.resources.events.push_with(|| HostEvent::Foreign(completion)),
        }
    }

    /// Has the controller whose connection it is do something, and forgets it when it is gone.
    #[inline]
    fn with_controller(
        &mut self,
        endpoint: Endpoint,
        act: impl FnOnce(&mut Attachment, &mut Resources, Route),
    ) {
        let Some(route) = self.resources.routes.get(endpoint) else { return };
        if let Some((id, controller)) = self.controllers.of_slot(route.controller) {
            act(controller, &mut self.resources, route);
            if controller.is_gone() {
                self.remove_gone(id);
            }
        }
    }

    /// Forgets a controller that has told its end.
    fn remove_gone(&mut self, id: SlotId) {
        if self.controllers.get(id).is_some_and(Attachment::is_gone)
            && let Some(mut controller) = self.controllers.remove(id)
        {
            controller.disarm(&mut self.resources);
            let none_left = self.controllers.is_empty();
            debug_assert!(!none_left || self.resources.io_outstanding == 0, "each I/O command ends once");
        }
    }
}

impl TransportHandler for Host {
    #[inline]
    fn on_response(&mut self, endpoint: Endpoint, entry: Option<&CompletionEntry>, arrival: Arrival) {
        self.with_controller(endpoint, |attachment, resources, route| {
            attachment.on_response(resources, route, entry, arrival);
        });
    }

    fn on_event(&mut self, endpoint: Endpoint, event: ConnectionEvent) {
        self.with_controller(endpoint, |attachment, resources, route| {
            attachment.on_event(resources, route, event);
        });
    }
}

/// Room for events before the first controller brings its own.
const EVENTS_MIN: usize = 64;
