//! The engine of one core.

use std::io;
use std::mem;

use ringfab_base::SplitMix64;
use ringfab_fabric::rdma::{Rnic, RnicConfig, RnicCounters};
use ringfab_fabric::tcp::{TcpConfig, TcpStack};
use ringfab_fabric::{CopiedBytes, Events, TransportEvents};
use ringfab_memory::{ClassLayout, Pool};
use ringfab_reactor::{Completion, MailboxReceiver, Reactor, Wait, mailbox};
use ringfab_spec::CompletionEntry;

use crate::attachment::Attachment;
use crate::command::CommandPool;
use crate::core::{Core, OWNER_RNIC, OWNER_TCP, OWNER_TIMERS, Route, Routes};
use crate::error::SubmitError;
use crate::messages::{Mailbox, Message};
use crate::namespace::{ControllerInfo, Namespace, NamespaceIdentity};
use crate::options::ConnectOptions;
use crate::path::SharedController;
use crate::request::{AdminRequest, ControllerId, HostEvent, IoRequest, Refused};
use crate::transport::{self, Endpoint, Event, TransportHandler, Transports};

/// How a [`Host`] is built.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// Buffers for I/O and admin data. Every class must hold at least a page, and one at least 4 KiB.
    pub pool: Vec<ClassLayout>,
    /// The software RNIC: its seed, CRCs, capture. The owner number is the host's affair.
    pub rnic: RnicConfig,
    /// Seed of the jitter of reconnects.
    pub seed: u64,
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
    core: Core,
    /// What the transports report, while it is acted on.
    transport_events: TransportEvents,
    controllers: Vec<Slot>,
    messages: MailboxReceiver<Box<Message>>,
}

/// A place for a controller; handles of its former ones have other generations.
struct Slot {
    generation: u32,
    attachment: Option<Attachment>,
}

impl Host {
    /// Tokens of the reactor with this owner number or above are the caller's: their completions come as
    /// [`HostEvent::Foreign`].
    pub const OWNER_FOREIGN_FIRST: u8 = 16;

    /// A host on the core of `reactor`.
    ///
    /// # Errors
    /// When the pool cannot be mapped or the RNIC not be made.
    pub fn new(reactor: Reactor, config: HostConfig) -> io::Result<Self> {
        // Not registered with the ring: that is for files, and takes longer than everything else until a volume is
        // attached.
        let pool = Pool::new(&config.pool).map_err(io::Error::other)?;
        let rnic = Rnic::new(RnicConfig { owner: OWNER_RNIC, spin: reactor.spin(), ..config.rnic })?;
        let (sender, messages) = mailbox(reactor.waker());
        let core = Core {
            reactor,
            transports: Transports { rnic, tcp: TcpStack::new(TcpConfig::new(OWNER_TCP)) },
            pool,
            events: Events::with_capacity(EVENTS_MIN),
            io_outstanding: 0,
            routes: Routes::default(),
            commands: CommandPool::default(),
            random: SplitMix64::new(config.seed),
            mailbox: Mailbox(sender),
        };
        Ok(Self { core, transport_events: TransportEvents::default(), controllers: Vec::new(), messages })
    }

    /// Buffers for I/O.
    pub fn pool(&self) -> &Pool {
        &self.core.pool
    }

    /// The core's ring, for sockets and timers of the caller's own.
    pub fn reactor(&mut self) -> &mut Reactor {
        &mut self.core.reactor
    }

    /// What the RNIC has done.
    pub fn rnic_counters(&self) -> RnicCounters {
        self.core.transports.rnic.counters()
    }

    /// What its transports have copied so far.
    pub fn copied_bytes(&self) -> CopiedBytes {
        self.core.transports.copied_bytes()
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
        let id = self.free_id();
        let (attachment, shared) = Attachment::attach(id, options, others, &mut self.core);
        self.keep(id, attachment);
        (id, shared)
    }

    /// Takes part in a controller that another engine attaches. [`HostEvent::Ready`] or [`HostEvent::Failed`] follows.
    /// Admin commands are for the engine that leads.
    pub fn join(&mut self, shared: SharedController) -> ControllerId {
        let id = self.free_id();
        let attachment = Attachment::join(id, shared, &mut self.core);
        self.keep(id, attachment);
        id
    }

    fn free_id(&mut self) -> ControllerId {
        let free = self.controllers.iter().position(|slot| slot.attachment.is_none());
        let index = free.unwrap_or_else(|| {
            self.controllers.push(Slot { generation: 0, attachment: None });
            self.controllers.len() - 1
        });
        let slot = &mut self.controllers[index];
        ControllerId { index: index as u32, generation: slot.generation }
    }

    fn keep(&mut self, id: ControllerId, attachment: Attachment) {
        self.controllers[id.index as usize].attachment = Some(attachment);
        self.remove_gone(id.index);
    }

    /// The controller, once it was ready.
    pub fn info(&self, controller: ControllerId) -> Option<&ControllerInfo> {
        self.controller(controller)?.info()
    }

    /// The namespaces in use: the one that the address names, or all that are active.
    pub fn namespaces(&self, controller: ControllerId) -> &[Namespace] {
        self.controller(controller).map_or(&[], Attachment::namespaces)
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
    /// told of it. Once it has, what still waits for the old one ends with Invalid Namespace.
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
        match Self::find(&mut self.controllers, controller) {
            Some(controller) => controller.submit(&mut self.core, disk, request),
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
        match Self::find(&mut self.controllers, controller) {
            Some(controller) => controller.submit_admin(&mut self.core, request),
            None => Err(Refused { reason: SubmitError::Gone, request }),
        }
    }

    /// Whether the controller is still there: one that has failed or is detached has told so, and is forgotten.
    pub fn is_attached(&self, controller: ControllerId) -> bool {
        self.controller(controller).is_some()
    }

    /// Commands that were submitted and not answered yet, waiting ones included.
    pub fn outstanding(&self, controller: ControllerId) -> usize {
        self.controller(controller).map_or(0, Attachment::outstanding)
    }

    /// Detaches in an orderly way: outstanding commands end, volatile caches are flushed, the controller shuts down.
    /// All within [`Timeouts::shutdown`](crate::Timeouts::shutdown); then [`HostEvent::Detached`] follows. While the
    /// connection is lost it is immediate, and outstanding requests end as cancelled.
    pub fn detach(&mut self, controller: ControllerId) {
        if let Some(found) = Self::find(&mut self.controllers, controller) {
            found.detach(&mut self.core);
            self.remove_gone(controller.index);
        }
    }

    /// Detaches at once: outstanding requests end with [`IoError::Cancelled`](crate::IoError::Cancelled), the
    /// connection closes. [`HostEvent::Detached`] follows.
    pub fn cancel(&mut self, controller: ControllerId) {
        if let Some(found) = Self::find(&mut self.controllers, controller) {
            found.cancel(&mut self.core);
            self.remove_gone(controller.index);
        }
    }

    /// Starts what was submitted, and collects what has happened. With [`Wait::Event`] it waits unless an event is
    /// there; with [`Wait::No`] it does not wait. The only call that does.
    ///
    /// # Errors
    /// Only when the ring itself is broken.
    pub fn turn(&mut self, wait: Wait) -> io::Result<()> {
        let core = &mut self.core;
        // The caller may have given buffers back that a transport waits for.
        let resumed = core.transports.poll(&mut core.reactor);
        core.transports.flush(&mut core.reactor);
        // What flushing has brought about must not be slept over.
        let happened = self.take_events();
        let busy = resumed || happened || !self.core.events.is_empty();
        let wait = match wait {
            _ if busy || !self.core.transports.may_sleep(&mut self.core.reactor) => Wait::No,
            Wait::Event if self.core.io_outstanding > 0 => Wait::Answer,
            wait => wait,
        };
        self.core.reactor.turn(wait)?;
        while let Some(completion) = self.core.reactor.next_completion() {
            self.on_completion(completion);
        }
        while let Some(message) = self.messages.try_receive() {
            let id = message.controller();
            if let Some(attachment) = Self::find(&mut self.controllers, id) {
                attachment.on_message(&mut self.core, *message);
                self.remove_gone(id.index);
            } else {
                Attachment::turn_away(*message);
            }
        }
        self.take_events();
        Ok(())
    }

    /// The next event, in order.
    pub fn next_event(&mut self) -> Option<HostEvent> {
        // Asked before it is taken, so that an event is not moved past what is done without one.
        if self.core.events.rewind() {
            return None;
        }
        self.core.events.take()
    }

    /// The same for many, which are looked at where they lie: [`Events::exchange`] with the events that wait.
    #[inline]
    pub fn exchange_events(&mut self, taken: &mut Events<HostEvent>) -> bool {
        self.core.events.exchange(taken)
    }

    /// Hands out what the transports have to say; whether it was anything.
    fn take_events(&mut self) -> bool {
        let mut happened = false;
        // What is done about some may bring about others.
        let mut transport_events = mem::take(&mut self.transport_events);
        let mut done = false;
        while !done {
            done = true;
            while self.core.transports.rnic.exchange_events(&mut transport_events.rdma) {
                while let Some(event) = transport_events.rdma.next_slot() {
                    transport::rdma::report(event, self);
                }
                done = false;
            }
            while self.core.transports.tcp.exchange_events(&mut transport_events.tcp) {
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
            OWNER_RNIC => self.core.transports.rnic.on_completion(&mut self.core.reactor, completion),
            OWNER_TCP => self.core.transports.tcp.on_completion(&mut self.core.reactor, completion),
            OWNER_TIMERS => {
                let (index, generation) = (completion.token.index, completion.token.generation);
                let slot = self.controllers.get_mut(index as usize);
                let slot = slot.filter(|slot| slot.generation as u16 == generation);
                if let Some(controller) = slot.and_then(|slot| slot.attachment.as_mut()) {
                    controller.on_timer(&mut self.core);
                    self.remove_gone(index);
                }
            }
            _ => self.core.events.push_with(|| HostEvent::Foreign(completion)),
        }
    }

    /// Has the controller whose connection it is do something, and forgets it when it is gone.
    #[inline]
    fn with_controller(&mut self, endpoint: Endpoint, act: impl FnOnce(&mut Attachment, &mut Core, Route)) {
        let Some(route) = self.core.routes.get(endpoint) else { return };
        let slot = self.controllers.get_mut(route.controller as usize);
        if let Some(controller) = slot.and_then(|slot| slot.attachment.as_mut()) {
            act(controller, &mut self.core, route);
            if controller.is_gone() {
                self.remove_gone(route.controller);
            }
        }
    }

    fn controller(&self, id: ControllerId) -> Option<&Attachment> {
        let slot = self.controllers.get(id.index as usize)?;
        slot.attachment.as_ref().filter(|_| slot.generation == id.generation)
    }

    fn find(controllers: &mut [Slot], id: ControllerId) -> Option<&mut Attachment> {
        let slot = controllers.get_mut(id.index as usize)?;
        slot.attachment.as_mut().filter(|_| slot.generation == id.generation)
    }

    /// Forgets a controller that has told its end.
    fn remove_gone(&mut self, index: u32) {
        let slot = &mut self.controllers[index as usize];
        if let Some(controller) = slot.attachment.as_mut().filter(|controller| controller.is_gone()) {
            controller.disarm(&mut self.core);
            slot.attachment = None;
            slot.generation = slot.generation.wrapping_add(1);
            let none_left = self.controllers.iter().all(|slot| slot.attachment.is_none());
            debug_assert!(!none_left || self.core.io_outstanding == 0, "each I/O command ends once");
        }
    }
}

impl TransportHandler for Host {
    #[inline]
    fn on_response(&mut self, endpoint: Endpoint, entry: Option<&CompletionEntry>, invalidated: Option<u32>) {
        self.with_controller(endpoint, |attachment, core, route| {
            attachment.on_response(core, route, entry, invalidated);
        });
    }

    fn on_event(&mut self, endpoint: Endpoint, event: Event) {
        self.with_controller(endpoint, |attachment, core, route| attachment.on_event(core, route, event));
    }
}

/// Room for events before the first controller brings its own.
const EVENTS_MIN: usize = 64;
