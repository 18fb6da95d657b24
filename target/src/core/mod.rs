//! A core: its ring, its transports, its disks, and the queues that live on it. One thread runs [`Core::run`]; a
//! simulation calls [`Core::turn`].

mod admission;
mod bind;
mod claims;
mod cores;
mod drain;
mod limits;
mod listen;
mod message;
mod psk_store;
mod reap;
mod report;
mod serve;
mod start;
mod turns;
mod usage;
mod watch;

use std::collections::BTreeMap;
use std::io;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use ringfab_block::{DiskTokens, Finished, Started};
use ringfab_fabric::TransportEvents;
use ringfab_fabric::rdma::RnicCounters;
use ringfab_memory::{Buffer, PoolUsage};
use ringfab_reactor::{Completion, MailboxReceiver, Time, Token, Wait};
use ringfab_spec::SubmissionEntry;

use crate::controller::Controller;
use crate::queue::{Queue, log_keep_alive_expired};
use crate::resources::hosts::PoolKind;
use crate::resources::messages::QueueMessage;
use crate::resources::operations::{DEFERRED_MAX, DeferredOperation};
use crate::resources::{HostId, Resources};
use crate::transport::{self, Disconnection, Endpoint, FetchId, IncomingConnection, TransportHandler};

pub use crate::resources::states::{LatencySplit, State, StateUsage, WaitsFor};
use bind::Listeners;
pub use cores::Cores;
pub(crate) use cores::SingleCore;
pub(crate) use message::{CoreMessage, CoreSender};
pub(crate) use serve::{AllCores, ServeMessage};
pub use start::{CoreParts, Running, build, start};
pub use usage::{Buffers, CoreUsage};
pub use watch::SilentDisk;

/// Owners of reactor tokens on a core.
pub(crate) mod owner {
    /// The core itself: its timers.
    pub(crate) const CORE: u8 = 1;
    /// The RNIC.
    pub(crate) const RNIC: u8 = 2;
    /// The disks; the rest of the token says which, and what of it: see [`DiskTokens`](ringfab_block::DiskTokens).
    pub(crate) const DISK: u8 = 3;
    /// NVMe/TCP.
    pub(crate) const TCP: u8 = 4;
}

/// Kinds of the core's timers.
const HOUSEKEEPING_KIND: u8 = 0;
const EVICTION_KIND: u8 = 1;
const LIMIT_KIND: u8 = 2;

/// How often deadlines are looked at while there are queues.
const HOUSEKEEPING: Duration = Duration::from_millis(250);

/// One core of the target.
#[derive(Debug)]
pub struct Core {
    resources: Resources,
    /// The way to all cores, this one included.
    cores: Vec<CoreSender>,
    /// By slot; the slot is in the tags of the queue's disk operations.
    queues: Vec<Option<Box<Queue>>>,
    /// Slot of the queue on each connection, by the connection's place.
    by_endpoint: [Vec<Option<u16>>; Endpoint::KINDS],
    /// What the transports report, while it is acted on.
    transport_events: TransportEvents,
    inbox: MailboxReceiver<CoreMessage>,
    listeners: Listeners,
    /// Descriptors that it may have.
    descriptors: usize,
    housekeeping: bool,
    /// Whether a timer runs for queues without a Connect.
    eviction_armed: bool,
    /// How often it has looked at those that have none, by when they came and by slot.
    rounds_without_connect: BTreeMap<(Time, usize), u8>,
    /// Whether a queue or a controller may have ended since the last look.
    look_soon: bool,
    /// Queues that have ended since the heap was last trimmed.
    ended: usize,
    /// Housekeeping that is still to be done once there is no queue any more.
    rests: u32,
    /// The queue that is the next to be asked whether it rests.
    rests_from: usize,
    draining: Option<Time>,
    /// Whether this core has nothing left to do in a drain, and how many others have said so.
    idle: bool,
    others_idle: usize,
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
            queues: Vec::new(),
            by_endpoint: std::array::from_fn(|_| Vec::new()),
            transport_events: TransportEvents::default(),
            inbox,
            listeners: Listeners::new(half_open),
            descriptors,
            housekeeping: false,
            eviction_armed: false,
            rounds_without_connect: BTreeMap::new(),
            look_soon: false,
            ended: 0,
            rests: 0,
            rests_from: 0,
            draining: None,
            idle: false,
            others_idle: 0,
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
        self.serve_waiting();
        if self.resources.limited.any_wait() {
            limits::serve(self);
        }
        if self.resources.turns.are_taken() {
            turns::serve(self);
        }
        // What messages brought about must not be slept over: a connection that was taken may bring its first command.
        self.handle_events();
        if self.resources.limited.any_wait() {
            limits::set_timer(&mut self.resources);
        }
        self.report_held();
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
                    self.start_deferred(DEFERRED_MAX);
                }
                done = false;
            }
            while self.resources.transports.tcp.exchange_events(&mut transport_events.tcp) {
                while let Some(event) = transport_events.tcp.next_slot() {
                    transport::tcp::report(event, self);
                    self.start_deferred(DEFERRED_MAX);
                }
                done = false;
            }
            done &= self.resources.disk_operations.deferred() == 0;
            self.start_deferred(0);
        }
        self.transport_events = transport_events;
    }

    /// Starts operations that were deferred, the oldest first, until so many are left.
    #[inline]
    fn start_deferred(&mut self, left: usize) {
        while self.resources.disk_operations.deferred() > left {
            self.start_first_deferred();
        }
    }

    fn start_first_deferred(&mut self) {
        let Some(DeferredOperation { disk, operation, tag }) = self.resources.disk_operations.next_deferred()
        else {
            return;
        };
        let number = tag.index >> 16;
        let queue =
            self.queues[number as usize].as_mut().expect("a queue stays while its requests wait for disks");
        let open = self.resources.disks[disk].as_mut().expect("a disk stays open while requests refer to it");
        let Started::Finished(finished) = open.disk.start(&mut self.resources.reactor, operation, tag) else {
            unreachable!("only disks in memory are deferred, and these are done at once")
        };
        queue.on_disk(&mut self.resources, finished);
        self.reap(number as u16);
    }

    /// What its RNIC has done.
    pub fn rnic_counters(&self) -> RnicCounters {
        self.resources.transports.rnic.counters()
    }

    /// Buffers in use: those of I/O commands and those of admin commands.
    pub fn pool_usage(&self) -> [PoolUsage; 2] {
        [PoolKind::Io, PoolKind::Admin].map(|kind| self.resources.hosts.usage(kind))
    }

    fn dispatch(&mut self, completion: Completion) {
        match completion.token.owner {
            owner::RNIC => {
                self.resources.transports.rnic.on_completion(&mut self.resources.reactor, completion);
            }
            owner::TCP => {
                self.resources.transports.tcp.on_completion(&mut self.resources.reactor, completion);
            }
            owner::DISK => self.on_disk(completion),
            owner::CORE if completion.token.kind == EVICTION_KIND => self.evict_overdue(),
            owner::CORE if completion.token.kind == LIMIT_KIND => self.resources.limited.timer_fired(),
            owner::CORE => self.housekeep(),
            other => tracing::error!(owner = other, "a completion without an owner"),
        }
    }

    /// A completion of a disk's own. It may finish none of its operations, one or many.
    fn on_disk(&mut self, completion: Completion) {
        let disk = usize::from(DiskTokens::disk_of(completion.token));
        let Some(open) = self.resources.disks.get_mut(disk).and_then(Option::as_mut) else { return };
        let Some(finished) = open.disk.on_completion(&mut self.resources.reactor, completion) else { return };
        let (was_silent, several) = (open.progress.end(), open.disk.finishes_several());
        self.disk_finished(disk, finished, was_silent);
        if several {
            others_finished(self, disk);
        }
    }

    /// A disk has finished an operation. The tag says for which request of which queue.
    #[inline(always)]
    fn disk_finished(&mut self, disk: usize, finished: Finished, was_silent: bool) {
        self.resources.disk_operations.end();
        let number = finished.tag.index >> 16;
        let queue = self.queues[number as usize].as_mut();
        queue
            .expect("a queue stays while its requests wait for disks")
            .on_disk(&mut self.resources, finished);
        if was_silent {
            self.disk_answers(disk);
        }
        self.reap(number as u16);
    }

    fn on_message(&mut self, message: CoreMessage) {
        match message {
            CoreMessage::Accept { connection, queue_request, place } => {
                self.accept(*connection, queue_request, place);
            }
            CoreMessage::Queues(message) => self.on_queue_message(message),
            CoreMessage::Serve(message, reply) => {
                if reply.send(self.on_serve(message)).is_err() {
                    tracing::debug!("an answer about what is served came too late");
                }
            }
            CoreMessage::ReportUsage(reply) => {
                if reply.send((self.resources.core, self.usage())).is_err() {
                    tracing::debug!("a report of usage came too late");
                }
            }
            CoreMessage::Drain(limit) => self.drain(limit),
            CoreMessage::Idle => self.others_idle += 1,
        }
    }

    fn on_queue_message(&mut self, message: QueueMessage) {
        match message {
            QueueMessage::Evict(controller) => self.evict_queues(&controller),
            QueueMessage::EndQueues { controller, admin } => self.end_queues(&controller, admin),
            QueueMessage::Abort(request) => {
                let aborted = self.queues.iter_mut().flatten().any(|queue| {
                    queue.id() == request.queue_id
                        && queue.belongs_to(&request.controller)
                        && queue.abort(&mut self.resources, request.command_id)
                });
                let asker = request.asker;
                self.resources.cores[asker.core].send(QueueMessage::AbortAnswered { asker, aborted });
            }
            QueueMessage::AbortAnswered { asker, aborted } => {
                let asker = asker.request;
                if let Some(queue) = self.queues.get_mut(usize::from(asker.queue)).and_then(Option::as_mut) {
                    queue.abort_answered(&mut self.resources, asker, aborted);
                }
            }
            QueueMessage::WorkerDone { request, controller, outcome } => {
                let queue = self.queues.get_mut(usize::from(request.queue)).and_then(Option::as_mut);
                if let Some(queue) = queue.filter(|queue| queue.belongs_to(&controller)) {
                    queue.worker_done(&mut self.resources, request, outcome);
                }
            }
            QueueMessage::Computed { queue, controller, outcome } => {
                let queue = self.queues.get_mut(usize::from(queue)).and_then(Option::as_mut);
                if let Some(queue) = queue.filter(|queue| queue.belongs_to(&controller)) {
                    queue.computed(&mut self.resources, outcome);
                }
            }
            QueueMessage::Claim(id, message) => self.on_claim(id, message),
            QueueMessage::CheckControllers => self.look_soon = true,
        }
    }

    fn queue(&mut self, endpoint: Endpoint) -> Option<(&mut Queue, &mut Resources)> {
        let (kind, index) = endpoint.place();
        let number = (*self.by_endpoint[kind].get(index)?)?;
        let queue = self.queues[usize::from(number)].as_mut()?;
        (queue.endpoint() == endpoint).then_some((&mut **queue, &mut self.resources))
    }

    /// After something of a queue has ended: a queue whose connection is gone leaves its controller, and is freed when
    /// nothing of it is in flight any more.
    #[inline]
    fn reap(&mut self, number: u16) {
        if self.queues[usize::from(number)].as_ref().is_some_and(|queue| queue.is_closed()) {
            self.reap_closed(number);
        }
    }

    fn end_queues(&mut self, controller: &Arc<Controller>, admin: bool) {
        for queue in self.queues.iter_mut().flatten() {
            if queue.belongs_to(controller) && (admin || queue.id() != 0) {
                queue.abandon(&mut self.resources);
            }
        }
        self.look_soon = true;
    }

    /// Requests that wait for buffers get them, host by host.
    fn serve_waiting(&mut self) {
        for _ in 0..self.resources.hosts.begin_round() {
            let Some(host) = self.resources.hosts.take_next() else { return };
            for line in PoolKind::ALL {
                self.serve_line(host, line);
            }
            self.resources.hosts.served(host);
        }
    }

    /// In order; the first that gets none stops the line.
    fn serve_line(&mut self, host: HostId, line: PoolKind) {
        while let Some(waiter) = self.resources.hosts.first_waiting(host, line) {
            let queue = self.queues[usize::from(waiter.queue)].as_mut();
            let waits = queue.is_some_and(|queue| queue.retry_buffers(&mut self.resources, waiter));
            if waits {
                return;
            }
            self.resources.hosts.drop_waiting(host, line);
        }
    }

    fn housekeep(&mut self) {
        self.housekeeping = false;
        self.resources.target.expire_psks(self.resources.reactor.now());
        self.look();
        self.trim();
        self.arm_housekeeping();
    }

    /// Runs the housekeeping timer while there is anything to look after.
    fn arm_housekeeping(&mut self) {
        let rests = self.rests > 0 || self.resources.target.keeps_psks();
        let needed = self.draining.is_some() || rests || self.queues.iter().any(Option::is_some);
        if needed && !self.housekeeping {
            self.housekeeping = true;
            let at = self.resources.reactor.now() + HOUSEKEEPING;
            self.resources.reactor.set_timer(at, Token::new(owner::CORE, HOUSEKEEPING_KIND, 0, 0));
        }
    }

    /// Deadlines, events to report, and controllers whose I/O has ended.
    fn look(&mut self) {
        let now = self.resources.reactor.now();
        for number in 0..self.queues.len() {
            if let Some(queue) = &mut self.queues[number] {
                queue.tick(&mut self.resources, now);
                if queue.id() == 0
                    && let Some(controller) = queue.controller().filter(|controller| controller.expired(now))
                {
                    let controller = Arc::clone(controller);
                    log_keep_alive_expired(&controller);
                    controller.end();
                    self.resources.end_queues(&controller, true);
                }
                self.reap(number as u16);
            }
        }
        self.watch_disks();
        self.finish_resets();
        self.close_disks();
    }

    /// Completes the resets whose I/O queues are all gone.
    fn finish_resets(&mut self) {
        self.resources.resetting.retain(|controller| {
            let done = controller.io_queues() == 0;
            if done {
                controller.disabled_done();
            }
            !done
        });
    }
}

/// The completion that has finished an operation of a disk may have finished more.
#[cold]
fn others_finished(core: &mut Core, disk: usize) {
    while let Some(open) = core.resources.disks.get_mut(disk).and_then(Option::as_mut) {
        let Some(finished) = open.disk.next_finished(&mut core.resources.reactor) else { return };
        let was_silent = open.progress.end();
        core.disk_finished(disk, finished, was_silent);
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
        if let Some((queue, resources)) = self.queue(endpoint) {
            queue.on_capsule(resources, command, data, intact);
        }
    }

    #[inline]
    fn on_fetched(&mut self, endpoint: Endpoint, id: FetchId, sink: Option<Buffer>, intact: bool) {
        if let Some((queue, resources)) = self.queue(endpoint) {
            queue.on_fetched(resources, id, sink, intact);
        }
    }

    #[inline]
    fn on_sent(&mut self, endpoint: Endpoint, count: u32) {
        if let Some((queue, resources)) = self.queue(endpoint) {
            queue.on_sent(resources, count);
        }
    }

    fn on_disconnected(&mut self, endpoint: Endpoint, disconnection: Disconnection<'_>) {
        let Some((queue, resources)) = self.queue(endpoint) else { return };
        queue.on_disconnected(resources, disconnection);
        let (kind, index) = endpoint.place();
        let number = self.by_endpoint[kind][index].take().expect("the queue was just found");
        self.reap(number);
    }
}
