//! One way to a subsystem: a controller, its queues, its life, its timers.
//!
//! Several engines may share a controller. The one that attached it leads: it has the admin queue, runs the sequence of
//! commands that attaches, and decides when to connect and when to close. The others follow: each has I/O queues of its
//! own, and does what the leader says. When any connection is lost, all of them end, and the leader connects again only
//! when every engine has reported that nothing of it is in flight any more.
//!
//! | phase | meaning | what ends it |
//! | --- | --- | --- |
//! | Resolving | a thread asks for the address | its answer, or a timeout |
//! | Connecting | the admin queue pair connects | the transport's event |
//! | Setup | commands of the attach sequence run, one at a time; a follower connects its I/O queues | the last answer; the leader |
//! | Live | I/O runs | a loss, a detach |
//! | Draining | no new commands; outstanding ones end | the last answer |
//! | Shutdown | caches are flushed, the controller shuts down; a follower waits for that | the last answer; the leader |
//! | Closing | connections end; nothing of ours is in flight afterwards | the last one's end, on every engine |
//! | Delay | waits for the next attempt to reconnect | the timer; the leader |
//! | Gone | told to the volumes, to be removed | at once |

mod admin;
mod close;
mod event;
mod facts;
mod failed_log;
mod follower;
mod followers;
mod io_queues;
mod liveness;
mod notice;
mod sending;
mod sequence;
mod steps;
mod timers;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use ringfab_fabric::rdma::{DisconnectReason, ProtectionDomain};
use ringfab_reactor::Time;
use ringfab_spec::CompletionEntry;

use crate::command::{BoxedCommand, Command, Direction, Owner};
use crate::core::Core;
use crate::error::{Cause, ConnectError, Step};
use crate::messages::Resolved;
use crate::namespace::{ControllerInfo, Namespace};
use crate::options::ConnectOptions;
use crate::queue::Queue;
use crate::request::ControllerId;
use crate::retry::Pace;
use crate::transport::{Connect, Event, NotSent};
use crate::url::Transport;
pub(crate) use admin::ADMIN_WAITING_MAX;
use admin::AdminQueue;
pub(crate) use event::PathEvent;
pub(crate) use follower::GivenUp;
use follower::LeaderLink;
pub use follower::SharedController;
pub(crate) use followers::Followers;
use io_queues::IoQueues;
pub(crate) use io_queues::Share;
use liveness::Liveness;
use notice::Notices;
pub(crate) use notice::{AGAIN as NOTICE_AGAIN, FIRST as NOTICE_FIRST, SLOW_IO, seconds};
use sequence::Sequence;
use steps::SequenceStep;
use timers::{KeepAlive, Timers};

/// A way to a subsystem, or this engine's part of it.
pub(crate) struct Path {
    id: ControllerId,
    /// Its index among the paths of the subsystem.
    index: u16,
    options: Arc<ConnectOptions>,
    peer: String,
    domain: ProtectionDomain,
    phase: Phase,
    role: Role,
    share: Share,
    addresses: Addresses,
    admin: AdminQueue,
    io: IoQueues,
    sequence: Sequence,
    info: Option<ControllerInfo>,
    /// What the controller says about trying again.
    pace: Pace,
    liveness: Liveness,
    /// Why the phase Closing, and what comes after it.
    ending: Option<Ending>,
    /// Whether namespaces changed while they were being looked at.
    refresh_again: bool,
    timers: Timers,
    keep_alive: KeepAlive,
    notices: Notices,
    /// What the volumes have not been told yet.
    events: VecDeque<PathEvent>,
    /// I/O that was sent and has no answer, for the volumes to take back.
    unanswered: Vec<BoxedCommand>,
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

/// What this engine is for the controller.
#[derive(Debug)]
pub(crate) enum Role {
    /// It has the admin queue, and these follow.
    Leader(Followers),
    /// It has I/O queues only.
    Follower(LeaderLink),
}

/// What comes after Closing.
#[derive(Debug)]
enum Ending {
    /// Try again, as the policy says.
    Reconnect(ConnectError),
    /// Wait for what the leader says.
    Follow,
    /// Tell that it failed.
    Fail(ConnectError),
    /// Tell that it is detached.
    Detach(Option<ConnectError>),
}

/// Where the controller is.
#[derive(Debug, Default)]
struct Addresses {
    found: Vec<SocketAddr>,
    /// The one that is tried.
    next: usize,
    /// Counts the questions to the resolver, so that a late answer is recognised.
    question: u32,
}

impl Addresses {
    fn current(&self) -> SocketAddr {
        self.found[self.next.min(self.found.len() - 1)]
    }
}

/// Entries of the admin queue, as other hosts have it.
const ADMIN_QUEUE_SIZE: u16 = 32;

impl Path {
    /// A path that starts to attach a controller, with other engines that follow.
    pub(crate) fn attach(
        id: ControllerId,
        index: u16,
        options: Arc<ConnectOptions>,
        followers: Followers,
        core: &mut Core,
    ) -> Self {
        let share = Share { engine: 0, engines: followers.engines() };
        let mut this = Self::new(id, index, options, Role::Leader(followers), share, core);
        this.resolve(core);
        this
    }

    fn new(
        id: ControllerId,
        index: u16,
        options: Arc<ConnectOptions>,
        role: Role,
        share: Share,
        core: &mut Core,
    ) -> Self {
        Self {
            id,
            index,
            peer: options.url.peer(),
            domain: core.transports.rnic.allocate_domain(),
            phase: Phase::Delay,
            role,
            share,
            addresses: Addresses::default(),
            admin: AdminQueue::default(),
            io: IoQueues::default(),
            sequence: Sequence::default(),
            info: None,
            pace: Pace::default(),
            liveness: Liveness::default(),
            ending: None,
            refresh_again: false,
            timers: Timers::default(),
            keep_alive: KeepAlive::default(),
            notices: Notices::default(),
            events: VecDeque::new(),
            unanswered: Vec::new(),
            options,
        }
    }

    /// What the controller said of itself, once it was ready.
    pub(crate) fn info(&self) -> Option<&ControllerInfo> {
        self.info.as_ref()
    }

    /// What the controller says about trying again.
    pub(crate) fn pace(&self) -> &Pace {
        &self.pace
    }

    /// The controller's name for people.
    pub(crate) fn peer(&self) -> &str {
        &self.peer
    }

    /// Whether it has ended for good.
    pub(crate) fn is_gone(&self) -> bool {
        self.phase == Phase::Gone
    }

    /// Whether I/O can be sent, though perhaps not at this moment.
    #[inline]
    pub(crate) fn takes_io(&self) -> bool {
        matches!(self.phase, Phase::Live | Phase::Draining)
    }

    /// Commands on its I/O queues that are not answered.
    pub(crate) fn io_outstanding(&self) -> usize {
        self.io.outstanding()
    }

    /// Commands of the caller without an answer.
    pub(crate) fn outstanding(&self) -> usize {
        self.io.outstanding() + self.admin.outstanding()
    }

    /// What the volumes are to be told next.
    pub(crate) fn next_event(&mut self) -> Option<PathEvent> {
        self.events.pop_front()
    }

    /// I/O that was sent and has no answer.
    pub(crate) fn unanswered(&mut self) -> &mut Vec<BoxedCommand> {
        &mut self.unanswered
    }

    /// The I/O queue whose turn it is, or the next one with room, if I/O can be sent.
    #[inline]
    pub(crate) fn queue_with_room(&self) -> Option<usize> {
        if self.takes_io() { self.io.queue_with_room() } else { None }
    }

    /// Sends an I/O command on a queue with room.
    ///
    /// # Errors
    /// Gives the command back, as it was.
    #[inline]
    pub(crate) fn send(
        &mut self,
        core: &mut Core,
        queue: usize,
        command: Box<Command>,
    ) -> Result<(), (Box<Command>, NotSent)> {
        self.io.send(&mut core.transports, queue, command)
    }

    /// Starts an attempt with the first step, finding the address.
    fn resolve(&mut self, core: &mut Core) {
        self.phase = Phase::Resolving;
        self.addresses.next = 0;
        self.addresses.question += 1;
        self.begin_attempt(core.now());
        self.timers.phase = core.now() + self.options.timeouts.resolve;
        let url = &self.options.url;
        match crate::resolve::resolve(url, self.id, self.addresses.question, &core.mailbox) {
            Ok(Some(address)) => {
                self.addresses.found = vec![address];
                self.connect(core);
            }
            Ok(None) => {}
            Err(error) => self.lose(core, Step::Resolve, Cause::Local(error.to_string())),
        }
    }

    /// Takes the resolver's answer.
    pub(crate) fn on_resolved(&mut self, core: &mut Core, resolved: Resolved) {
        if self.phase != Phase::Resolving || resolved.question != self.addresses.question {
            return;
        }
        match resolved.result {
            Ok(addresses) if !addresses.is_empty() => {
                self.addresses.found = addresses;
                self.connect(core);
            }
            Ok(_) => self.lose(core, Step::Resolve, Cause::Name("no address".to_owned())),
            Err(error) => self.lose(core, Step::Resolve, Cause::Name(error)),
        }
    }

    /// Starts to connect the admin queue to the next address.
    fn connect(&mut self, core: &mut Core) {
        self.phase = Phase::Connecting;
        self.timers.phase = Time::MAX;
        match self.connect_queue(core, 0, ADMIN_QUEUE_SIZE) {
            Ok(queue) => self.admin.queue = Some(queue),
            Err(error) => self.lose(core, Step::Connect, Cause::Local(error.to_string())),
        }
    }

    /// Starts to connect one queue, zero for the admin queue. The transport bounds how long it takes.
    fn connect_queue(&mut self, core: &mut Core, number: u16, size: u16) -> std::io::Result<Queue> {
        let to = Connect {
            address: self.addresses.current(),
            url: &self.options.url,
            domain: self.domain,
            qid: self.qid(number),
            size,
            pool: &core.pool,
            timeout: self.options.timeouts.connect,
        };
        let queue = Queue::connect(&mut core.transports, &mut core.reactor, &to)?;
        core.routes.add(queue.endpoint(), self.id, self.index, number);
        Ok(queue)
    }

    /// The NVMe queue identifier of a queue of this engine.
    fn qid(&self, number: u16) -> u16 {
        if number == 0 { 0 } else { self.share.qid(number) }
    }

    /// The queue of this engine with a number, zero for the admin queue.
    #[inline]
    fn queue_mut(&mut self, number: u16) -> Option<&mut Queue> {
        if number == 0 { self.admin.queue.as_mut() } else { self.io.get_mut(number) }
    }

    /// Takes an event of the connection of one of its queues.
    pub(crate) fn on_event(&mut self, core: &mut Core, number: u16, event: Event) {
        match event {
            Event::Established { credits } => self.on_established(core, number, credits),
            Event::Rejected(why) => {
                self.queue_ended(number);
                self.lose(core, Step::Mpa, Cause::Rejected(why));
            }
            Event::ConnectFailed { step, text } => {
                self.queue_ended(number);
                self.on_connect_failed(core, step, text);
            }
            Event::Disconnected(reason) => {
                self.queue_ended(number);
                self.on_disconnected(core, number, reason);
            }
        }
        self.check_closed(core);
    }

    /// Takes a response capsule, or something in its place. Returns the I/O command that it answers.
    #[inline]
    pub(crate) fn on_response(
        &mut self,
        core: &mut Core,
        number: u16,
        entry: Option<&CompletionEntry>,
        invalidated: Option<u32>,
    ) -> Option<Box<Command>> {
        if matches!(self.phase, Phase::Closing | Phase::Delay | Phase::Gone) {
            return None;
        }
        let Some(entry) = entry else {
            let step = self.step();
            self.lose(core, step, Cause::Protocol("a response that is not 16 bytes long"));
            return None;
        };
        let queue = self.queue_mut(number)?;
        match queue.answer(&mut core.transports, entry, invalidated) {
            Ok(command) => {
                if !entry.status().is_success() {
                    self.log_failed(number, &command, entry);
                }
                match command.owner {
                    Owner::Io(_) => return self.whole(core, command),
                    _ => self.own_answered(core, command, entry),
                }
            }
            Err((command, violation)) => self.violated(core, number, entry, command, violation),
        }
        self.check_closed(core);
        None
    }

    #[cold]
    fn violated(
        &mut self,
        core: &mut Core,
        number: u16,
        entry: &CompletionEntry,
        command: Option<Box<Command>>,
        violation: &'static str,
    ) {
        let (qid, cid) = (self.qid(number), entry.cid.get());
        tracing::warn!(peer = self.peer, %self.id.index, qid, cid, violation, "protocol violation");
        self.keep(command);
        let step = self.step();
        self.lose(core, step, Cause::Protocol(violation));
    }

    /// The command, if its memory is whole again. A response that overtook its data would let the controller write into
    /// memory that is the caller's already.
    #[inline]
    fn whole(&mut self, core: &mut Core, command: Box<Command>) -> Option<Box<Command>> {
        let arriving = command.direction == Direction::ToHost
            && command.memory.as_ref().is_some_and(|shared_buffer| !shared_buffer.is_unique());
        if !arriving {
            return Some(command);
        }
        self.keep(Some(command));
        self.lose(core, Step::Live, Cause::Protocol("a response before its data had arrived"));
        None
    }

    /// Keeps a command whose answer does not count: I/O for a replay, an admin command to be told of its end.
    fn keep(&mut self, command: Option<Box<Command>>) {
        let Some(command) = command else { return };
        match command.owner {
            Owner::Io(_) => self.unanswered.push(command),
            Owner::Admin(_) => self.admin.waiting.push_back(command),
            Owner::Sequence => self.sequence.scratch = command.memory,
            Owner::KeepAlive | Owner::AsyncEvent | Owner::Abort => {}
        }
    }

    /// A connection has ended. A controller that shuts down may let go of its I/O queues; the admin queue says how it
    /// went.
    fn on_disconnected(&mut self, core: &mut Core, number: u16, reason: DisconnectReason) {
        match self.sequence.step {
            Some(SequenceStep::ShutdownSet | SequenceStep::ShutdownStatus) if number != 0 => {}
            // The leader has the controller shut down.
            None if self.phase == Phase::Shutdown && matches!(self.role, Role::Follower(_)) => {}
            // Without the answer, but that is what was asked for.
            Some(SequenceStep::Disconnect(asked)) if asked == number => {
                let unanswered = self.queue_mut(number).and_then(|queue| queue.pop(&mut core.transports));
                self.keep(unanswered);
                let next = self.after_queue(number);
                self.run(core, next);
            }
            Some(SequenceStep::Disconnect(asked)) if (1..asked).contains(&number) => {}
            _ => {
                let step = self.step();
                self.lose(core, step, Cause::Disconnected(reason));
            }
        }
    }

    fn on_established(&mut self, core: &mut Core, number: u16, credits: Option<u16>) {
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
        if let Some(queue) = self.queue_mut(number) {
            queue.set_credits(credits);
        }
        tracing::debug!(peer = self.peer, qid = self.qid(number), credits, "queue pair established");
        match (self.phase, self.sequence.step) {
            (Phase::Connecting, _) if number == 0 => {
                self.phase = Phase::Setup;
                self.run(core, SequenceStep::Connect);
            }
            (Phase::Setup, Some(SequenceStep::QueueEstablish(wanted))) if wanted == number => {
                self.run(core, SequenceStep::QueueConnect(number));
            }
            _ => {}
        }
    }

    /// A connection could not be made. The admin queue tries the other addresses of the name first.
    fn on_connect_failed(&mut self, core: &mut Core, step: Step, text: String) {
        if self.phase == Phase::Connecting && self.addresses.next + 1 < self.addresses.found.len() {
            self.addresses.next += 1;
            self.admin.queue = None;
            return self.connect(core);
        }
        self.lose(core, step, Cause::Fabric(text));
    }

    /// The transport has let go of a queue's connection.
    fn queue_ended(&mut self, number: u16) {
        if let Some(queue) = self.queue_mut(number) {
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
            Phase::Setup => self.sequence.step.map_or(Step::Identify, SequenceStep::step),
            Phase::Draining | Phase::Shutdown => Step::Shutdown,
            Phase::Live | Phase::Closing | Phase::Delay | Phase::Gone => Step::Live,
        }
    }

    fn error(&self, step: Step, cause: Cause) -> ConnectError {
        ConnectError { peer: self.peer.clone(), step, cause }
    }

    /// The volumes have found that this is the right subsystem: I/O can run.
    pub(crate) fn accept(&mut self, core: &mut Core, namespaces: &[Namespace]) {
        let reconnected = self.liveness.loss.is_some();
        self.log_back(core.now());
        self.phase = Phase::Live;
        self.liveness.begin(core.now());
        let info = self.describe();
        self.lead_on(&info, namespaces, reconnected);
        self.info = Some(info);
        (self.timers.attach, self.timers.notice) = (Time::MAX, Time::MAX);
        self.events.push_back(PathEvent::Ready { reconnected });
        // A discovery controller need not have events, and none of its own concerns us.
        if !self.sequence.facts.controller.discovery && !self.options.url.is_discovery() {
            self.watch_events(core);
        }
    }

    /// What the volumes found is not the right subsystem.
    pub(crate) fn reject(&mut self, core: &mut Core, cause: Cause) {
        self.lose(core, Step::Identify, cause);
        self.check_closed(core);
    }
}

impl crate::chooser::Candidate for Path {
    #[inline]
    fn is_open(&self) -> bool {
        self.takes_io()
    }
}
