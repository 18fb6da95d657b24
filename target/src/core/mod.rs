//! A core: its ring, its transports, its disks, and the queues that live on it. One thread runs [`Core::run`]; a
//! simulation calls [`Core::turn`].
//!
//! | module | what it has |
//! | --- | --- |
//! | `queues`, `waiting` | the table of queues; requests that have waited go on |
//! | `admission` | who gets in when the core is full, and who gives way |
//! | `trim` | when memory of queues is given back |
//! | `watch` | disks that do not answer |
//! | `bind`, `psk_store` | the listeners, and the keys that they ask for |
//! | `queue_request`, `listen` | from a connection to a queue |
//! | `message`, `cores` | what cores and the control side tell each other |
//! | `serve` | another configuration is served |
//! | `drain`, `end` | how far a drain is, the last flushes, and the end |
//! | `usage` | what is in use, as `status` shows it |
//! | `timer` | the core's own timers |
//! | `start`, `report` | the start of all cores, and what is said of it |

mod admission;
mod bind;
mod cores;
mod drain;
mod end;
mod listen;
mod message;
mod psk_store;
mod queue_request;
mod queues;
mod report;
mod serve;
mod start;
mod timer;
mod trim;
mod usage;
mod waiting;
mod watch;

use std::io;
use std::mem;

use ringfab_block::DiskTokens;
use ringfab_fabric::TransportEvents;
use ringfab_fabric::rdma::RnicCounters;
use ringfab_memory::{Buffer, PoolUsage};
use ringfab_reactor::{Completion, MailboxReceiver, Time, Wait};
use ringfab_spec::SubmissionEntry;

use crate::resources::hosts::PoolKind;
use crate::resources::messages::QueueMessage;
use crate::resources::operations::DEFERRED_MAX;
use crate::resources::{Resources, owner};
use crate::transport::{self, Disconnection, Endpoint, FetchId, IncomingConnection, TransportHandler};

pub use crate::resources::states::{LatencySplit, State, StateUsage, WaitsFor};
use admission::Admission;
use bind::Listeners;
pub(crate) use cores::{AllCores, CoresInTurns};
pub use cores::{ControlClaim, Cores};
use drain::Drain;
use message::{AwaitedEnd, CoreMessage, CoreSender};
pub(crate) use message::{ServeMessage, TakenAway};
use queues::Queues;
pub use start::{CoreParts, Running, build, build_all, start};
use timer::{CoreTimer, HOUSEKEEPING};
pub use usage::{Buffers, CoreUsage};
use watch::DiskWatch;
pub use watch::SilentDisk;

/// One core of the target.
#[derive(Debug)]
pub struct Core {
    resources: Resources,
    /// The way to all cores, this one included.
    cores: Vec<CoreSender>,
    queues: Queues,
    /// What the transports report, while it is acted on.
    transport_events: TransportEvents,
    inbox: MailboxReceiver<CoreMessage>,
    listeners: Listeners,
    admission: Admission,
    disk_watch: DiskWatch,
    /// Runs while there is anything to look after.
    housekeeping: CoreTimer,
    /// Whether a queue or a controller may have ended since the last look.
    look_soon: bool,
    /// Who waits for the end of what a change has taken away, and until when.
    awaited: Vec<(AwaitedEnd, Time)>,
    drain: Drain,
}

impl Core {
    fn new(
        resources: Resources,
        cores: Vec<CoreSender>,
        inbox: MailboxReceiver<CoreMessage>,
        descriptors: usize,
        half_open: u32,
    ) -> Self {
        Self {
            resources,
            cores,
            queues: Queues::default(),
            transport_events: TransportEvents::default(),
            inbox,
            listeners: Listeners::new(half_open),
            admission: Admission::new(descriptors),
            disk_watch: DiskWatch::default(),
            housekeeping: CoreTimer::new(owner::timer::HOUSEKEEPING),
            look_soon: false,
            awaited: Vec::new(),
            drain: Drain::default(),
        }
    }

    /// Runs until a drain has ended.
    ///
    /// # Errors
    /// Only when the ring itself is broken.
    pub fn run(mut self) -> io::Result<()> {
        while !self.is_drained() {
            self.turn(Wait::Event)?;
        }
        self.close()
    }

    /// One turn of the loop: waits as asked, then handles everything that has happened, then sends.
    ///
    /// # Errors
    /// Only when the ring itself is broken.
    pub fn turn(&mut self, wait: Wait) -> io::Result<()> {
        // The last turn may have given back buffers that a transport waits for.
        let resumed = self.resources.transports.poll(&mut self.resources.reactor);
        let may_sleep = !resumed && self.resources.transports.may_sleep(&mut self.resources.reactor);
        let wait = match wait {
            _ if !may_sleep || self.resources.turns.are_ready() => Wait::No,
            Wait::Event if self.resources.disk_operations.any() => Wait::Answer,
            wait => wait,
        };
        self.resources.reactor.turn(wait)?;
        self.resources.disk_operations.submitted();
        self.resources.begin_turn();
        while let Some(completion) = self.resources.reactor.next_completion() {
            self.dispatch(completion);
        }
        self.handle_events();
        while let Some(message) = self.inbox.try_receive() {
            self.on_message(message);
        }
        // One look for all that have ended together: it goes through all queues.
        if mem::take(&mut self.look_soon) {
            self.look();
        }
        let Self { resources, queues, .. } = self;
        queues.serve_buffers(resources);
        if resources.limited.any_wait() {
            queues.serve_limits(resources);
        }
        if resources.turns.are_taken() {
            queues.serve_turns(resources);
        }
        // What messages brought about must not be slept over: a connection that was taken may bring its first command.
        self.handle_events();
        if self.resources.limited.any_wait() {
            self.resources.limited.arm_timer(&mut self.resources.reactor);
        }
        if self.resources.claims.any_held() {
            self.queues.report_held(&mut self.resources);
        }
        self.report_idle();
        self.resources.reactor.worked(self.resources.states.take_arrived());
        self.resources.transports.flush(&mut self.resources.reactor);
        self.resources.end_borrows();
        Ok(())
    }

    fn handle_events(&mut self) {
        // What is done about some may bring about others.
        let mut transport_events = mem::take(&mut self.transport_events);
        let mut done = false;
        while !done {
            done = true;
            while self.resources.transports.rnic.exchange_events(&mut transport_events.rdma) {
                while let Some(event) = transport_events.rdma.next_slot() {
                    transport::rdma::report(event, self);
                    self.queues.start_deferred(&mut self.resources, DEFERRED_MAX);
                }
                done = false;
            }
            while self.resources.transports.tcp.exchange_events(&mut transport_events.tcp) {
                while let Some(event) = transport_events.tcp.next_slot() {
                    transport::tcp::report(event, self);
                    self.queues.start_deferred(&mut self.resources, DEFERRED_MAX);
                }
                done = false;
            }
            done &= self.resources.disk_operations.deferred() == 0;
            self.queues.start_deferred(&mut self.resources, 0);
        }
        self.transport_events = transport_events;
    }

    /// The way to all cores of its target.
    pub fn cores(&self) -> Cores {
        Cores { senders: self.cores.clone(), ..Cores::default() }
    }

    /// What its RNIC has done.
    pub fn rnic_counters(&self) -> RnicCounters {
        self.resources.transports.rnic.counters()
    }

    /// Buffers in use: those of I/O commands and those of admin commands.
    pub fn pool_usage(&self) -> [PoolUsage; 2] {
        [PoolKind::Io, PoolKind::Admin].map(|kind| self.resources.hosts.usage(kind))
    }

    /// What it has in use now.
    pub fn usage(&self) -> CoreUsage {
        CoreUsage::of(&self.resources)
    }

    fn dispatch(&mut self, completion: Completion) {
        let Self { resources, queues, .. } = self;
        match completion.token.owner {
            owner::RNIC => resources.transports.rnic.on_completion(&mut resources.reactor, completion),
            owner::TCP => resources.transports.tcp.on_completion(&mut resources.reactor, completion),
            owner::DISK => self.on_disk(completion),
            owner::CORE => match completion.token.kind {
                owner::timer::EVICTION => self.admission.timer_fired(queues, resources),
                owner::timer::LIMIT => resources.limited.timer_fired(),
                _ => self.housekeep(),
            },
            other => tracing::error!(owner = other, "a completion without an owner"),
        }
    }

    /// A completion of a disk's own. It may finish none of its operations, one or many.
    fn on_disk(&mut self, completion: Completion) {
        let Self { resources, queues, .. } = self;
        let disk = usize::from(DiskTokens::disk_of(completion.token));
        let Some(open) = resources.disks.get_mut(disk) else { return };
        let Some(finished) = open.disk.on_completion(&mut resources.reactor, completion) else { return };
        let (was_silent, several) = (open.progress.end(), open.disk.finishes_several());
        queues.disk_finished(resources, finished);
        if was_silent {
            self.disk_answers(disk);
        }
        if several {
            self.others_finished(disk);
        }
    }

    /// The completion that has finished an operation of a disk may have finished more.
    #[cold]
    fn others_finished(&mut self, disk: usize) {
        while let Some(open) = self.resources.disks.get_mut(disk) {
            let Some(finished) = open.disk.next_finished(&mut self.resources.reactor) else { return };
            let was_silent = open.progress.end();
            self.queues.disk_finished(&mut self.resources, finished);
            if was_silent {
                self.disk_answers(disk);
            }
        }
    }

    /// A disk that was reported to be silent has ended something.
    #[cold]
    fn disk_answers(&mut self, disk: usize) {
        let now = self.resources.reactor.now();
        self.resources.disks.answers(disk, now);
        self.queues.serve_held_back(&mut self.resources, now);
    }

    fn on_message(&mut self, message: CoreMessage) {
        match message {
            CoreMessage::Accept { connection, way, queue_request, place } => {
                self.accept(*connection, way, queue_request, place);
            }
            CoreMessage::Queues(message) => self.on_queue_message(message),
            CoreMessage::Serve(message, reply) => {
                if reply.send(self.on_serve(message)).is_err() {
                    tracing::debug!("an answer about what is served came too late");
                }
            }
            CoreMessage::AwaitEnd(awaited) => {
                let until = self.resources.reactor.now() + awaited.limit;
                self.awaited.push((awaited, until));
                self.answer_awaited();
            }
            CoreMessage::Flush(disk, reply) => self.resources.flush_for_control(disk, reply),
            CoreMessage::ReportUsage(reply) => {
                if reply.send((self.resources.core, self.usage())).is_err() {
                    tracing::debug!("a report of usage came too late");
                }
            }
            CoreMessage::Drain(limit) => self.begin_drain(limit),
            CoreMessage::Idle => self.drain.other_is_idle(),
        }
    }

    fn on_queue_message(&mut self, message: QueueMessage) {
        let Self { resources, queues, .. } = self;
        match message {
            QueueMessage::Fence(controller) => queues.fence_all_of(resources, &controller),
            QueueMessage::Evict(controller) => queues.evict_all_of(resources, &controller),
            QueueMessage::EndQueues { controller, admin } => {
                queues.end_all_of(resources, &controller, admin);
                self.look_soon = true;
            }
            QueueMessage::Abort(request) => {
                let aborted = queues.iter_mut().any(|queue| {
                    queue.id() == request.queue_id
                        && queue.belongs_to(&request.controller)
                        && queue.abort(resources, request.command_id)
                });
                let asker = request.asker;
                resources.cores[asker.core].send(QueueMessage::AbortAnswered { asker, aborted });
            }
            QueueMessage::AbortAnswered { asker, aborted } => {
                let asker = asker.request;
                if let Some(queue) = queues.get_mut(asker.queue) {
                    queue.abort_answered(resources, asker, aborted);
                }
            }
            QueueMessage::WorkerDone { request, controller, outcome } => {
                if let Some(queue) = queues.get_mut(request.queue).filter(|one| one.belongs_to(&controller)) {
                    queue.worker_done(resources, request, outcome);
                }
            }
            QueueMessage::Computed { queue, controller, outcome } => {
                if let Some(queue) = queues.get_mut(queue).filter(|one| one.belongs_to(&controller)) {
                    queue.computed(resources, outcome);
                }
            }
            QueueMessage::Claim(id, message) => queues.on_claim(resources, id, message),
            QueueMessage::CheckControllers => self.look_soon = true,
        }
    }

    fn housekeep(&mut self) {
        self.housekeeping.fired();
        self.resources.target.expire_psks(self.resources.reactor.now());
        self.look();
        let Self { resources, queues, .. } = self;
        resources.transports.trim(&mut resources.reactor);
        queues.trim(resources);
        self.arm_housekeeping();
    }

    fn arm_housekeeping(&mut self) {
        let Self { resources, queues, .. } = self;
        let rests = queues.trimming_is_wanted() || resources.target.keeps_psks();
        if self.drain.is_on() || rests || !queues.is_empty() {
            self.housekeeping.arm(&mut resources.reactor, HOUSEKEEPING);
        }
    }

    /// Deadlines, events to report, and controllers whose I/O has ended.
    fn look(&mut self) {
        self.queues.tick(&mut self.resources);
        self.disk_watch.look(&mut self.queues, &mut self.resources);
        self.resources.finish_resets();
        if self.resources.disks.any_closing() {
            self.close_unused_disks();
        }
        self.answer_awaited();
    }
}

impl TransportHandler for Core {
    fn on_incoming(&mut self, connection: IncomingConnection) {
        self.route(connection);
    }

    #[inline]
    fn on_capsule(
        &mut self,
        endpoint: Endpoint,
        command: Option<&SubmissionEntry>,
        data: Option<Buffer>,
        intact: bool,
    ) {
        if let Some(queue) = self.queues.on(endpoint) {
            queue.on_capsule(&mut self.resources, command, data, intact);
        }
    }

    #[inline]
    fn on_fetched(&mut self, endpoint: Endpoint, id: FetchId, sink: Option<Buffer>, intact: bool) {
        if let Some(queue) = self.queues.on(endpoint) {
            queue.on_fetched(&mut self.resources, id, sink, intact);
        }
    }

    #[inline]
    fn on_sent(&mut self, endpoint: Endpoint, count: u32) {
        if let Some(queue) = self.queues.on(endpoint) {
            queue.on_sent(&mut self.resources, count);
        }
    }

    fn on_disconnected(&mut self, endpoint: Endpoint, disconnection: Disconnection<'_>) {
        if let Some(queue) = self.queues.on(endpoint) {
            queue.on_disconnected(&mut self.resources, disconnection);
            self.queues.disconnected(&mut self.resources, endpoint);
        }
    }
}
