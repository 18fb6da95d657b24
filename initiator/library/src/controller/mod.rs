//! One attached controller: its queues, its life, its timers.
//!
//! | phase | meaning | what ends it |
//! | --- | --- | --- |
//! | Resolving | a thread asks for the address | its answer, or a timeout |
//! | Connecting | the admin queue pair connects | the RNIC's event |
//! | Setup | commands of the attach sequence run, one at a time | the last answer |
//! | Live | I/O runs | a loss, a detach |
//! | Draining | no new commands; outstanding ones end | the last answer |
//! | Shutdown | caches are flushed, the controller shuts down | the last answer |
//! | Closing | queue pairs end; nothing of ours is in flight afterwards | the RNIC's last event |
//! | Delay | waits for the next attempt to reconnect | the timer |
//! | Gone | told to the caller, to be removed | at once |

mod close;
mod facts;
mod held;
mod live;
mod notice;
mod replaced;
mod sending;
mod sequence;
mod task;
mod timers;
mod told;
mod written;

use std::collections::VecDeque;
use std::net::SocketAddr;

use ringfab_fabric::rdma::{DisconnectReason, ProtectionDomain};
use ringfab_memory::Lease;
use ringfab_reactor::Time;
use ringfab_spec::CompletionEntry;

use crate::command::Command;
use crate::core::{Core, Resolved};
use crate::error::{Cause, ConnectError, Step};
use crate::namespace::{ControllerInfo, Namespace};
use crate::options::ConnectOptions;
use crate::queue::Queue;
use crate::reconnect::Loss;
use crate::request::{ControllerId, HostEvent};
use crate::retry::{Pace, Tries};
use crate::transport::{Connect, Event};
use crate::url::Transport;
use facts::Facts;
use task::Task;
use timers::{KeepAlive, Timers};
use written::Written;

/// A controller of a host.
pub(crate) struct Controller {
    pub(crate) id: ControllerId,
    options: ConnectOptions,
    peer: String,
    domain: ProtectionDomain,
    phase: Phase,
    addresses: Vec<SocketAddr>,
    address_next: usize,
    /// Counts the questions to the resolver, so that a late answer is recognised.
    question: u32,
    admin: Option<Queue>,
    queues: Vec<Queue>,
    /// Where the search for a queue with room begins.
    queue_next: usize,
    /// I/O that waits for room or for a connection, in order.
    waiting: VecDeque<Box<Command>>,
    /// I/O that was told to try again a little later.
    #[expect(clippy::vec_box, reason = "they come from a queue of boxes, and go back there")]
    held: Vec<Box<Command>>,
    /// Admin commands that wait for room.
    admin_waiting: VecDeque<Box<Command>>,
    /// Memory of the sequence's commands, so that they never wait for the pool.
    scratch: Option<Lease>,
    task: Option<Task>,
    facts: Facts,
    info: Option<ControllerInfo>,
    namespaces: Vec<Namespace>,
    /// Submissions so far.
    order: u64,
    /// The course of the last loss. It is over when the controller has worked since: see [`Controller::has_worked`].
    loss: Option<Loss>,
    /// When it was ready last.
    live_since: Time,
    /// I/O commands since then that were answered with "try again".
    put_off: u64,
    /// Whether an admin command was answered since then, or a Keep Alive while nothing else waited.
    admin_worked: bool,
    /// When the attempt to attach began.
    attempt_since: Time,
    /// When commands that wait may be spoken of again: those that were told to come again, and those without an answer.
    held_told: Time,
    slow_told: Time,
    /// What the controller says about trying again.
    pace: Pace,
    /// Of the command of the sequence that runs.
    task_tries: Tries,
    /// Why the last attempt to reconnect failed.
    last_error: Option<ConnectError>,
    /// Why the phase Closing, and what comes after it.
    ending: Option<Ending>,
    /// Whether I/O fails instead of waiting.
    failing: bool,
    /// What was written to since it was attached.
    written: Written,
    /// Whether namespaces changed while they were being looked at.
    refresh_again: bool,
    /// Whether a namespace may be another one than it was: see [`replaced`].
    unsettled: bool,
    timers: Timers,
    keep_alive: KeepAlive,
}

/// See the table at the head of this module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Resolving,
    Connecting,
    Setup,
    Live,
    Draining,
    Shutdown,
    Closing,
    Delay,
    Gone,
}

/// What comes after Closing.
#[derive(Debug)]
enum Ending {
    /// Try again, as the policy says.
    Reconnect(ConnectError),
    /// Tell that it failed.
    Fail(ConnectError),
    /// Tell that it is detached.
    Detach(Option<ConnectError>),
}

/// Entries of the admin queue, as other hosts have it.
const ADMIN_QUEUE_SIZE: u16 = 32;
/// Admin commands that may wait for room.
const ADMIN_WAITING_MAX: usize = 256;

impl Controller {
    /// A controller that starts to attach.
    pub(crate) fn attach(id: ControllerId, options: ConnectOptions, core: &mut Core) -> Self {
        let depth = usize::from(options.depth_wanted()) * usize::from(options.queues_wanted());
        let capacity = options.waiting_max + depth;
        core.events.reserve(capacity + ADMIN_WAITING_MAX);
        core.spare.provide(depth);
        let mut this = Self {
            id,
            peer: options.url.peer(),
            domain: core.transports.rnic.allocate_domain(),
            phase: Phase::Gone,
            addresses: Vec::new(),
            address_next: 0,
            question: 0,
            admin: None,
            queues: Vec::new(),
            queue_next: 0,
            waiting: VecDeque::with_capacity(capacity),
            held: Vec::new(),
            admin_waiting: VecDeque::with_capacity(ADMIN_WAITING_MAX),
            scratch: None,
            task: None,
            facts: Facts::default(),
            info: None,
            namespaces: Vec::new(),
            order: 0,
            loss: None,
            live_since: Time::ZERO,
            put_off: 0,
            admin_worked: false,
            attempt_since: Time::ZERO,
            held_told: Time::ZERO,
            slow_told: Time::ZERO,
            pace: Pace::default(),
            task_tries: Tries::default(),
            last_error: None,
            ending: None,
            failing: false,
            written: Written::default(),
            refresh_again: false,
            unsettled: false,
            timers: Timers::default(),
            keep_alive: KeepAlive::default(),
            options,
        };
        this.resolve(core);
        this.arm(core);
        this
    }

    /// What it said of itself, once it was ready.
    pub(crate) fn info(&self) -> Option<&ControllerInfo> {
        self.info.as_ref()
    }

    /// The namespaces in use.
    pub(crate) fn namespaces(&self) -> &[Namespace] {
        &self.namespaces
    }

    /// Whether the host may forget it.
    pub(crate) fn is_gone(&self) -> bool {
        self.phase == Phase::Gone
    }

    /// Starts an attempt with the first step, finding the address.
    fn resolve(&mut self, core: &mut Core) {
        self.phase = Phase::Resolving;
        self.address_next = 0;
        self.question += 1;
        self.begin_attempt(core.now());
        self.timers.phase = core.now() + self.options.timeouts.resolve;
        let url = &self.options.url;
        match crate::resolve::resolve(url, self.id, self.question, &core.resolver) {
            Ok(Some(address)) => {
                self.addresses = vec![address];
                self.connect(core);
            }
            Ok(None) => {}
            Err(error) => self.lose(core, Step::Resolve, Cause::Local(error.to_string())),
        }
    }

    /// Takes the resolver's answer.
    pub(crate) fn on_resolved(&mut self, core: &mut Core, resolved: Resolved) {
        if self.phase != Phase::Resolving || resolved.question != self.question {
            return;
        }
        match resolved.result {
            Ok(addresses) if !addresses.is_empty() => {
                self.addresses = addresses;
                self.connect(core);
            }
            Ok(_) => self.lose(core, Step::Resolve, Cause::Name("no address".to_owned())),
            Err(error) => self.lose(core, Step::Resolve, Cause::Name(error)),
        }
        self.arm(core);
    }

    /// Starts to connect the admin queue to the next address.
    fn connect(&mut self, core: &mut Core) {
        self.phase = Phase::Connecting;
        self.timers.phase = Time::MAX;
        match self.connect_queue(core, 0, ADMIN_QUEUE_SIZE) {
            Ok(queue) => self.admin = Some(queue),
            Err(error) => self.lose(core, Step::Connect, Cause::Local(error.to_string())),
        }
    }

    /// Starts to connect one queue. The transport bounds how long it takes.
    fn connect_queue(&mut self, core: &mut Core, qid: u16, size: u16) -> std::io::Result<Queue> {
        let to = Connect {
            address: self.addresses[self.address_next.min(self.addresses.len() - 1)],
            url: &self.options.url,
            domain: self.domain,
            qid,
            size,
            pool: &core.pool,
            timeout: self.options.timeouts.connect,
        };
        let queue = Queue::connect(&mut core.transports, &mut core.reactor, &to)?;
        core.routes.add(queue.endpoint(), self.id, qid);
        Ok(queue)
    }

    /// The queue with an identifier, if there is one.
    fn queue_mut(&mut self, qid: u16) -> Option<&mut Queue> {
        match usize::from(qid).checked_sub(1) {
            None => self.admin.as_mut(),
            Some(index) => self.queues.get_mut(index),
        }
    }

    /// Takes an event of the connection of one of its queues.
    pub(crate) fn on_event(&mut self, core: &mut Core, qid: u16, event: Event) {
        match event {
            Event::Established { credits } => self.on_established(core, qid, credits),
            Event::Rejected(why) => {
                self.queue_ended(qid);
                self.lose(core, Step::Mpa, Cause::Rejected(why));
            }
            Event::ConnectFailed { step, text } => {
                self.queue_ended(qid);
                self.on_connect_failed(core, step, text);
            }
            Event::Disconnected(reason) => {
                self.queue_ended(qid);
                self.on_disconnected(core, qid, reason);
            }
        }
        self.check_closed(core);
        self.arm(core);
    }

    /// A response has come, or something in its place.
    pub(crate) fn on_response(
        &mut self,
        core: &mut Core,
        qid: u16,
        entry: Option<&CompletionEntry>,
        invalidated: Option<u32>,
    ) {
        self.take_response(core, qid, entry, invalidated);
        self.check_closed(core);
        self.arm(core);
    }

    /// A connection has ended. A controller that shuts down may let go of its I/O queues; the admin queue says how it
    /// went.
    fn on_disconnected(&mut self, core: &mut Core, qid: u16, reason: DisconnectReason) {
        match self.task {
            Some(Task::ShutdownSet | Task::ShutdownStatus) if qid != 0 => {}
            // Without the answer, but that is what was asked for.
            Some(Task::Disconnect(asked)) if asked == qid => {
                let unanswered = self.queue_mut(qid).and_then(|queue| queue.pop(&mut core.transports));
                self.keep(unanswered);
                let next = self.after_queue(qid);
                self.run(core, next);
            }
            Some(Task::Disconnect(asked)) if (1..asked).contains(&qid) => {}
            _ => {
                let step = self.step();
                self.lose(core, step, Cause::Disconnected(reason));
            }
        }
    }

    fn on_established(&mut self, core: &mut Core, qid: u16, credits: Option<u16>) {
        if self.phase == Phase::Closing {
            return;
        }
        let Some(credits) = credits else {
            return self.lose(
                core,
                Step::Mpa,
                Cause::Protocol("an accept without the private data of NVMe/RDMA"),
            );
        };
        if credits == 0 {
            return self.lose(core, Step::Mpa, Cause::Protocol("a controller that can receive no command"));
        }
        if let Some(queue) = self.queue_mut(qid) {
            queue.set_credits(credits);
        }
        tracing::debug!(peer = self.peer, qid, credits, "queue pair established");
        match (self.phase, self.task) {
            (Phase::Connecting, _) if qid == 0 => {
                self.phase = Phase::Setup;
                self.run(core, Task::Connect);
            }
            (Phase::Setup, Some(Task::QueueEstablish(wanted))) if wanted == qid => {
                self.run(core, Task::QueueConnect(qid));
            }
            _ => {}
        }
    }

    /// A connection could not be made. The admin queue tries the other addresses of the name first.
    fn on_connect_failed(&mut self, core: &mut Core, step: Step, text: String) {
        if self.phase == Phase::Connecting && self.address_next + 1 < self.addresses.len() {
            self.address_next += 1;
            self.admin = None;
            return self.connect(core);
        }
        self.lose(core, step, Cause::Fabric(text));
    }

    /// The transport has let go of a queue's connection.
    fn queue_ended(&mut self, qid: u16) {
        if let Some(queue) = self.queue_mut(qid) {
            queue.ended();
        }
    }

    /// The step that an error of now belongs to.
    fn step(&self) -> Step {
        match self.phase {
            Phase::Resolving => Step::Resolve,
            Phase::Connecting => match self.options.url.transport {
                Transport::Rdma => Step::Mpa,
                Transport::Tcp => Step::Initialize,
            },
            Phase::Setup => self.task.map_or(Step::Identify, Task::step),
            Phase::Draining | Phase::Shutdown => Step::Shutdown,
            Phase::Live | Phase::Closing | Phase::Delay | Phase::Gone => Step::Live,
        }
    }

    fn error(&self, step: Step, cause: Cause) -> ConnectError {
        ConnectError { peer: self.peer.clone(), step, cause }
    }

    /// The sequence has come to its end: I/O can run.
    fn ready(&mut self, core: &mut Core) {
        let reconnected = self.loss.is_some();
        self.say_back(core.now());
        self.phase = Phase::Live;
        (self.live_since, self.put_off, self.admin_worked) = (core.now(), 0, false);
        (self.timers.attach, self.timers.notice) = (Time::MAX, Time::MAX);
        self.failing = false;
        core.events.push_with(|| HostEvent::Ready { controller: self.id, reconnected });
        // A discovery controller need not have events, and none of its own concerns us.
        if !self.facts.controller.discovery && !self.options.url.is_discovery() {
            self.watch_events(core);
        }
        self.dispatch(core);
    }
}
