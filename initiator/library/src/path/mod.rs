//! One way to a subsystem: a controller, its queues, its life, its timers.
//!
//! Several engines may share a controller. The one that attached it leads: it has the admin queue, runs the sequence of
//! commands that attaches, and decides when to connect and when to close. The others follow: each has I/O queues of its
//! own, and does what the leader says. When any connection is lost, all of them end. The leader connects again only
//! when every engine has reported that nothing of it is in flight any more.
//!
//! [`Path`] only coordinates. Its parts own their state and decide: [`phase`] which phase follows, [`sequence`] which
//! command of attaching follows, [`queues`] what is outstanding and overdue, [`liveness`] when a loss is over,
//! [`followers`] and [`leader`] what engines ask of each other. The path does what they say.

mod admin;
mod connector;
mod followers;
mod io_queues;
mod keep_alive;
mod leader;
mod liveness;
mod notices;
mod phase;
mod queues;
mod reports;
mod role;
mod sequence;
mod timers;

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use ringfab_fabric::rdma::DisconnectReason;
use ringfab_reactor::Time;
use ringfab_spec::CompletionEntry;

use crate::command::{Command, Owner};
use crate::error::{Cause, ConnectError, Step, SubmitError};
use crate::messages::{Message, ToFollower, ToLeader, Worked};
use crate::namespace::{ControllerInfo, Namespace};
use crate::options::ConnectOptions;
use crate::path_status::{PathLoss, PathState, PathStatus};
use crate::request::{AdminRequest, Asked, PathHandle, Refused};
use crate::resources::Resources;
use crate::retry::RetryDelays;
use crate::transport::{Arrival, ConnectionEvent, NotSent};
use crate::url::{HostName, Url};
use crate::wire::{self, answers};
use crate::work;
pub(crate) use admin::ADMIN_WAITING_MAX;
use connector::Connector;
pub(crate) use connector::QueueShare;
pub(crate) use followers::Followers;
use followers::Request;
pub(crate) use io_queues::{IoQueues, SLOW_IO};
use keep_alive::KeepAlive;
pub use leader::SharedController;
pub(crate) use leader::{FinalError, LeaderLink, SharedPath};
use liveness::Liveness;
pub(crate) use notices::{AGAIN as NOTICE_AGAIN, FIRST as NOTICE_FIRST, seconds};
use notices::{Notices, Wait};
use phase::{After, Phase, Trigger};
use queues::Queues;
pub(crate) use reports::{PathEvent, Reports};
pub(crate) use role::Role;
use sequence::{Action, Context, Disconnection, Sequence, SequenceStep};
use timers::{Timer, Timers};

/// A way to a subsystem, or this engine's part of it.
pub(crate) struct Path {
    handle: PathHandle,
    options: Arc<ConnectOptions>,
    phase: Phase,
    role: Role,
    queues: Queues,
    sequence: Sequence,
    keep_alive: KeepAlive,
    liveness: Liveness,
    timers: Timers,
    notices: Notices,
    /// What the controller said of itself, once it was ready.
    info: Option<ControllerInfo>,
    /// Why it closes, unless that was asked for.
    trouble: Option<ConnectError>,
    reports: Reports,
}

impl Path {
    /// A path that starts to attach a controller, with other engines that follow. If it `persists`, an attempt that
    /// fails is followed by others, as after a loss.
    pub(crate) fn attach(
        handle: PathHandle,
        options: Arc<ConnectOptions>,
        followers: Followers,
        persists: bool,
        resources: &mut Resources,
    ) -> Self {
        let share = QueueShare { engine: 0, engines: followers.engines() };
        let connector = Connector::new(handle, options.clone(), share, resources);
        let mut this = Self::new(handle, options, Role::Leader(followers), connector);
        if persists {
            this.liveness.persist(resources.now(), this.options.reconnect);
        }
        this.advance(resources, Trigger::Attempt);
        this
    }

    /// This engine's part of a path that another one leads.
    pub(crate) fn join(handle: PathHandle, shared: SharedPath, resources: &mut Resources) -> Self {
        let SharedPath { options, share, link } = shared;
        let is_led = link.is_told(ToLeader::Joined { follower: handle, mailbox: resources.mailbox.clone() });
        let connector = Connector::new(handle, options.clone(), share, resources);
        let mut this = Self::new(handle, options, Role::Follower(link), connector);
        if !is_led {
            let error = leader::leader_has_ended(this.peer().to_owned(), Step::Connect);
            this.on_leader(resources, ToFollower::Failed(error));
        }
        this
    }

    fn new(handle: PathHandle, options: Arc<ConnectOptions>, role: Role, connector: Connector) -> Self {
        Self {
            handle,
            phase: Phase::Delay,
            role,
            sequence: Sequence::new(options.clone(), connector.share()),
            queues: Queues::new(connector, &options.timeouts),
            keep_alive: KeepAlive::default(),
            liveness: Liveness::default(),
            timers: Timers::default(),
            notices: Notices::new(options.url.peer()),
            info: None,
            trouble: None,
            reports: Reports::default(),
            options,
        }
    }

    /// What the controller said of itself, once it was ready.
    pub(crate) fn info(&self) -> Option<&ControllerInfo> {
        self.info.as_ref()
    }

    /// What the controller says about trying again.
    pub(crate) fn retry_delays(&self) -> &RetryDelays {
        &self.sequence.facts().retry_delays
    }

    /// The controller's name for people.
    pub(crate) fn peer(&self) -> &str {
        self.notices.peer()
    }

    /// Whether it is being left, or was given up.
    pub(crate) fn is_leaving(&self) -> bool {
        self.phase.is_final()
    }

    /// Whether it was never ready, and has failed at least once.
    pub(crate) fn has_failed_at_first(&self) -> bool {
        self.info.is_none() && self.liveness.has_failed()
    }

    /// Whether it leads to this address.
    pub(crate) fn leads_to(&self, url: &Url) -> bool {
        let own = &self.options.url;
        let same = own.host == url.host && own.port == url.port;
        let connected = match (&url.host, self.queues.connector.known_address()) {
            (HostName::Address(address), Some(known)) => {
                address.ip() == known.ip() && url.port == known.port()
            }
            _ => false,
        };
        own.transport == url.transport && (same || connected)
    }

    /// Whether it has ended for good.
    pub(crate) fn is_gone(&self) -> bool {
        self.phase == Phase::Gone
    }

    /// The I/O queues, if I/O can be sent, though perhaps not at this moment.
    #[inline]
    pub(crate) fn io(&self) -> Option<&IoQueues> {
        self.phase.takes_io().then_some(&self.queues.io)
    }

    /// The same, to send I/O.
    #[inline]
    pub(crate) fn io_mut(&mut self) -> Option<&mut IoQueues> {
        self.phase.takes_io().then_some(&mut self.queues.io)
    }

    /// Commands of the caller without an answer.
    pub(crate) fn outstanding(&self) -> usize {
        self.queues.outstanding()
    }

    /// What is known of it, for people. The volumes know the rest.
    pub(crate) fn status(&self, now: Time) -> PathStatus {
        let (commands, bytes) = self.queues.io.counters();
        let failed = self.liveness.last_error().zip(self.liveness.loss());
        PathStatus {
            id: self.handle.path,
            url: self.options.url.clone(),
            address: self.queues.connector.known_address(),
            cntlid: self.info.as_ref().map(|info| info.cntlid),
            state: match self.phase {
                Phase::Live => PathState::Ready,
                phase if phase.is_final() => PathState::Leaving,
                phase if phase.is_attaching() && self.info.is_none() && failed.is_none() => {
                    PathState::Attaching
                }
                _ => PathState::Lost,
            },
            groups: Vec::new(),
            commands,
            bytes,
            outstanding: self.queues.io.outstanding(),
            losses: 0,
            last_loss: failed
                .map(|(error, loss)| PathLoss { ago: now.since(loss.since()), error: error.clone() }),
            last_failover: None,
        }
    }

    /// What it is called, and how it is connected.
    pub(crate) fn handle(&self) -> PathHandle {
        self.handle
    }

    /// The other addresses of its name, once it is connected to one, if each is to be a path.
    pub(crate) fn keep_address(&mut self) -> Vec<HostName> {
        self.queues.connector.keep_address()
    }

    /// It has failed before anything was ready, and so have all others: it is given up.
    pub(crate) fn give_up(&mut self, resources: &mut Resources) {
        self.trouble = self.liveness.last_error().cloned();
        self.advance(resources, Trigger::GiveUp);
        self.check_closed(resources);
    }

    /// What the volumes are to be told.
    pub(crate) fn reports(&mut self) -> &mut Reports {
        &mut self.reports
    }

    /// Whether it works, which the volumes know, too.
    pub(crate) fn liveness(&mut self) -> &mut Liveness {
        &mut self.liveness
    }

    /// What this engine is for the controller.
    pub(crate) fn role(&self) -> &Role {
        &self.role
    }

    /// Goes on to the next phase, as the table of phases says, and begins with what it is for. Says whether there was a
    /// next one.
    fn advance(&mut self, resources: &mut Resources, trigger: Trigger) -> bool {
        let Some(next) = self.phase.next(trigger) else { return false };
        let before = mem::replace(&mut self.phase, next);
        match next {
            Phase::Resolving => self.resolve(resources),
            Phase::Connecting => {
                self.timers.phase = Time::MAX;
                self.timers.resume_attempt(self.sequence.attach_limit());
                if let Err(error) = self.queues.connect_admin(resources) {
                    self.lose(resources, Step::Connect, Cause::Local(error.to_string()));
                }
            }
            Phase::Setup => self.run(resources, Sequence::attach),
            Phase::Live => {
                self.notices.ready(resources.now(), self.info.is_some(), &self.liveness);
                self.timers.end_attempt();
                self.timers.repeat_authentication(resources.now(), &self.options);
                self.liveness.begin(resources.now());
            }
            Phase::Draining => {
                self.reports.push(PathEvent::Drain);
                self.queues.admin.retry_due(resources, Time::MAX);
                if self.role.leads() {
                    self.timers.shutdown = resources.now() + self.options.timeouts.shutdown;
                    self.notices.begin_wait(resources.now());
                    self.role.tell_followers(&ToFollower::Drain);
                }
            }
            Phase::Shutdown => {}
            Phase::Closing(_) if matches!(before, Phase::Closing(_)) => {}
            Phase::Closing(after) => {
                self.close(resources, before == Phase::Shutdown || after == After::Secure);
            }
            Phase::Delay => self.delay(resources),
            Phase::Gone => self.end(resources, before),
        }
        true
    }

    /// Starts an attempt with the first step, finding the address.
    fn resolve(&mut self, resources: &mut Resources) {
        let now = resources.now();
        self.timers.begin_attempt(now, self.options.timeouts.attach);
        self.timers.phase = now + self.options.timeouts.resolve;
        if self.liveness.loss().is_none() {
            self.notices.begin_wait(now);
        }
        match self.queues.connector.resolve(resources) {
            Ok(true) => drop(self.advance(resources, Trigger::Address)),
            Ok(false) => {}
            Err(cause) => self.lose(resources, cause.first_step(), cause),
        }
    }

    /// Takes the answer of a thread, of the resolver or of a worker.
    pub(crate) fn on_thread(&mut self, resources: &mut Resources, answer: Message) {
        match answer {
            Message::Resolved(resolved) if self.phase == Phase::Resolving => {
                match self.queues.connector.on_resolved(resolved) {
                    Some(Ok(())) => drop(self.advance(resources, Trigger::Address)),
                    Some(Err(cause)) => self.lose(resources, cause.first_step(), cause),
                    None => {}
                }
            }
            Message::Worked(Worked { task, done, .. }) if self.phase.is_connected() => {
                self.run(resources, |sequence, context| sequence.on_work(context, task, done));
            }
            _ => {}
        }
        self.check_closed(resources);
    }

    /// Has the sequence decide, and does what it says.
    fn run(
        &mut self,
        resources: &mut Resources,
        decide: impl FnOnce(&mut Sequence, &mut Context<'_>) -> Action,
    ) {
        let mut context = Context {
            now: resources.now(),
            pool: &resources.pool,
            io: &self.queues.io,
            secured: self.queues.connector.psks().is_some(),
            replacement: None,
            keep_alive: &mut self.keep_alive,
            reports: &mut self.reports,
        };
        let action = decide(&mut self.sequence, &mut context);
        context.replacement.take().into_iter().for_each(|psk| self.queues.connector.secure(psk));
        self.timers.extend_attempt(self.sequence.attach_limit());
        self.queues.admin.set_aborts_max(self.sequence.facts().controller.aborts_max);
        match action {
            Action::Nothing => {}
            Action::Send { number, command } => {
                self.timers.phase = Time::MAX;
                let Err((command, reason)) = self.queues.send(resources, number, command) else { return };
                self.sequence.take_back(*command);
                if self.phase.takes_io() && reason == NotSent::Busy {
                    return self.timers.phase = self.queues.hold(resources.now(), number);
                }
                tracing::debug!(peer = self.peer(), ?reason, "a command of the sequence could not be sent");
                self.lose(resources, self.step(), Cause::Protocol("the queue takes no command"));
            }
            Action::Work { number, task, limit } => {
                self.timers.phase = resources.now() + limit;
                if let Err(cause) = work::start(task, self.handle, number, resources) {
                    self.lose(resources, self.step(), cause);
                }
            }
            Action::ConnectQueue { number, size, in_capsule_bytes_max } => {
                let connected = self.queues.connect_io(resources, number, size, in_capsule_bytes_max);
                if let Err(error) = connected {
                    self.lose(resources, Step::IoQueues, Cause::Local(error.to_string()));
                }
            }
            Action::ConnectFollowers => connect_followers(self, resources),
            Action::RepeatAt(at) => self.timers.phase = at,
            Action::Secure(psk) => {
                self.queues.connector.secure(psk);
                self.advance(resources, Trigger::Secured);
            }
            Action::Leave => drop(self.advance(resources, Trigger::Leave)),
            Action::Fail(step, cause) => self.lose(resources, step, cause),
        }
    }

    /// Takes an event of the connection of one of its queues.
    pub(crate) fn on_event(&mut self, resources: &mut Resources, number: u16, event: ConnectionEvent) {
        if !matches!(event, ConnectionEvent::Established { .. })
            && let Some(queue) = self.queues.get_mut(number)
        {
            queue.ended();
        }
        match event {
            ConnectionEvent::Established { credits } => self.on_established(resources, number, credits),
            ConnectionEvent::Rejected(why) => self.lose(resources, Step::Mpa, Cause::Rejected(why)),
            // The admin queue first tries the older identity of the key, and the other addresses of the name.
            ConnectionEvent::ConnectFailed { step, .. }
                if self.phase == Phase::Connecting && self.queues.connector.next_attempt(step) =>
            {
                self.advance(resources, Trigger::Address);
            }
            ConnectionEvent::ConnectFailed { step, cause } => {
                self.lose(resources, step, self.queues.connector.explain(cause));
            }
            ConnectionEvent::Disconnected(reason) => self.on_disconnected(resources, number, reason),
        }
        self.check_closed(resources);
    }

    fn on_established(&mut self, resources: &mut Resources, number: u16, credits: Option<u16>) {
        if matches!(self.phase, Phase::Closing(_)) {
            return;
        }
        let violation = match credits {
            None => "an accept without the private data of NVMe/RDMA",
            Some(0) => "a controller that can receive no command",
            Some(credits) => {
                if let Some(queue) = self.queues.get_mut(number) {
                    queue.set_credits(credits);
                }
                let (peer, qid) = (self.peer(), self.queues.qid(number));
                tracing::debug!(peer, qid, credits, "queue pair established");
                return match number {
                    0 => drop(self.advance(resources, Trigger::Connected)),
                    _ => self.run(resources, |sequence, context| sequence.on_established(context, number)),
                };
            }
        };
        self.lose(resources, Step::Mpa, Cause::Protocol(violation));
    }

    /// A connection has ended.
    fn on_disconnected(&mut self, resources: &mut Resources, number: u16, reason: DisconnectReason) {
        match self.sequence.on_disconnected(number) {
            Disconnection::Expected => {}
            Disconnection::Answer => {
                let queue = self.queues.get_mut(number);
                let unanswered = queue.and_then(|queue| queue.pop(&mut resources.transports));
                self.keep(unanswered);
                self.run(resources, |sequence, context| sequence.on_queue_ended(context, number));
            }
            // The leader has the controller shut down.
            Disconnection::Loss if self.phase == Phase::Shutdown && !self.role.leads() => {}
            Disconnection::Refused(cause) => self.lose(resources, Step::Authenticate, cause),
            Disconnection::Loss => self.lose(resources, self.step(), Cause::Disconnected(reason)),
        }
    }

    /// Takes a response capsule, or something in its place. Returns the I/O command that it answers.
    #[inline]
    pub(crate) fn on_response(
        &mut self,
        resources: &mut Resources,
        number: u16,
        entry: Option<&CompletionEntry>,
        arrival: Arrival,
    ) -> Option<Box<Command>> {
        if !self.phase.is_connected() {
            return None;
        }
        let Some(entry) = entry else {
            self.lose(resources, self.step(), Cause::Protocol("a response that is not 16 bytes long"));
            return None;
        };
        let queue = self.queues.get_mut(number)?;
        match queue.answer(&mut resources.transports, entry, arrival) {
            Ok(command) => {
                if !entry.status().is_success() {
                    self.notices.failed(self.queues.qid(number), &command, entry);
                }
                if let Owner::Io(_) = command.owner {
                    return Some(command);
                }
                if number != 0 {
                    self.queues.io.note_sequence_answer();
                }
                self.on_admin_answer(resources, command, entry);
            }
            Err((command, violation)) => {
                let (qid, cid) = (self.queues.qid(number), entry.cid.get());
                tracing::warn!(
                    peer = self.peer(),
                    index = self.handle.controller.0.index,
                    qid,
                    cid,
                    violation,
                    "protocol violation"
                );
                self.keep(command);
                self.lose(resources, self.step(), Cause::Protocol(violation));
            }
        }
        self.check_closed(resources);
        None
    }

    /// Takes the answer to an admin command, or to one of the sequence.
    fn on_admin_answer(&mut self, resources: &mut Resources, command: Box<Command>, entry: &CompletionEntry) {
        let status = entry.status();
        match command.owner {
            Owner::Io(_) | Owner::Abort => {}
            Owner::Admin(_) => {
                self.liveness.admin_has_worked();
                let retry = (&self.sequence.facts().retry_delays, &self.options.reconnect);
                self.queues.admin.answered(resources, self.handle.controller, command, entry, retry);
            }
            Owner::Sequence => {
                self.run(resources, |sequence, context| sequence.on_answer(context, *command, entry));
            }
            Owner::KeepAlive => {
                if self.liveness.is_idle(self.queues.activity()) {
                    self.liveness.admin_has_worked();
                }
                if let Err(cause) = self.keep_alive.on_answer(status) {
                    self.lose(resources, Step::Live, cause);
                }
            }
            // Without events nothing is lost but their speed: sizes are looked at again after each reconnect.
            Owner::AsyncEvent if !status.is_success() => {
                tracing::debug!(peer = self.peer(), %status, "no asynchronous events");
            }
            Owner::AsyncEvent => self.on_async_event(resources, entry),
        }
        if self.phase.is_connected() {
            self.queues.admin.send_waiting(resources);
        }
    }

    /// Something has happened at the controller (Base 2.0, section 5.2). One request for the next event is kept
    /// outstanding.
    fn on_async_event(&mut self, resources: &mut Resources, entry: &CompletionEntry) {
        let changed = answers::is_namespace_change(entry);
        tracing::info!(peer = self.peer(), dw0 = entry.dw0.get(), changed, "asynchronous event");
        if answers::is_discovery_log_change(entry) {
            self.reports.push(PathEvent::DiscoveryLogChanged);
        }
        if changed && self.phase == Phase::Live {
            self.reports.push(PathEvent::NamespacesChanged);
            self.role.tell_followers(&ToFollower::Changed);
            self.run(resources, Sequence::rescan);
        }
        if answers::is_access_change(entry) && self.phase == Phase::Live {
            self.run(resources, Sequence::read_access);
        }
        self.queues.admin.send(resources, Command::new(wire::async_event_request(), Owner::AsyncEvent));
    }

    /// Keeps a command whose answer does not count: I/O for a replay, an admin command to be told of its end.
    fn keep(&mut self, command: Option<Box<Command>>) {
        let Some(command) = command else { return };
        match command.owner {
            Owner::Io(_) => self.reports.give_back(command),
            Owner::Admin(_) => self.queues.admin.keep(command),
            Owner::Sequence => self.sequence.take_back(*command),
            Owner::KeepAlive | Owner::AsyncEvent | Owner::Abort => {}
        }
    }

    /// What the volumes say of the controller that was identified: that it has these namespaces and I/O can run, or
    /// that it is not the right subsystem.
    pub(crate) fn on_identified(&mut self, resources: &mut Resources, result: Result<&[Namespace], Cause>) {
        let namespaces = match result {
            Ok(namespaces) => namespaces,
            Err(cause) => {
                self.lose(resources, Step::Identify, cause);
                return self.check_closed(resources);
            }
        };
        let reconnected = self.liveness.loss().is_some() && self.info.is_some();
        if !self.advance(resources, Trigger::Ready) {
            return;
        }
        let facts = self.sequence.facts();
        let info = facts.describe(self.keep_alive.timeout());
        self.role.tell_live(&info, namespaces, &self.sequence, reconnected);
        self.reports.push(PathEvent::Ready { reconnected });
        // A discovery controller need not have events, and only that of its log page concerns us.
        let is_discovery = info.discovery || self.options.url.is_discovery();
        if !is_discovery || info.discovery_log_events {
            self.queues.admin.send(resources, Command::new(wire::async_event_request(), Owner::AsyncEvent));
        }
        self.info = Some(info);
    }

    /// Starts an admin command, or lets it wait for room.
    pub(crate) fn submit_admin(
        &mut self,
        resources: &mut Resources,
        request: AdminRequest,
    ) -> Result<(), Refused<AdminRequest>> {
        let taken = match self.phase {
            _ if !self.role.leads() => Err(SubmitError::NoCommand("an admin queue on this engine")),
            Phase::Live => self.queues.admin.check_room(),
            Phase::Draining | Phase::Shutdown | Phase::Gone => Err(SubmitError::Gone),
            _ => Err(SubmitError::NotReady),
        };
        match taken {
            Ok(()) => self.queues.admin.send(resources, Command::from_admin(request)),
            Err(reason) => return Err(Refused { reason, request }),
        }
        Ok(())
    }

    /// Does what a program asks for: on this engine, and then on the others.
    pub(crate) fn ask(&mut self, resources: &mut Resources, asked: Asked) -> Result<(), SubmitError> {
        if !self.role.leads() {
            return Err(SubmitError::NoCommand("an admin queue on this engine"));
        }
        match (self.phase, asked) {
            (phase, _) if phase.is_final() => return Err(SubmitError::Gone),
            (Phase::Live, Asked::Reauthenticate(_)) if !self.sequence.has_authenticated() => {
                return Err(SubmitError::NoCommand("authentication: it has not asked for it"));
            }
            (Phase::Live, Asked::Reauthenticate(keys)) => {
                self.run(resources, Sequence::reauthenticate(keys.map(Arc::new)));
                self.timers.repeat_authentication(resources.now(), &self.options);
            }
            (_, Asked::Reauthenticate(_)) => return Err(SubmitError::NotReady),
            (Phase::Live, Asked::Reset) => {
                // Whatever was lost before is over.
                self.liveness.end();
                self.lose(resources, Step::Live, Cause::Reset);
                self.check_closed(resources);
            }
            (Phase::Delay, Asked::Reset) => self.timers.phase = resources.now(),
            // It is being attached anew.
            (_, Asked::Reset) => {}
        }
        Ok(())
    }

    /// A follower tells something.
    pub(crate) fn on_follower(&mut self, resources: &mut Resources, engine: u16, what: ToLeader) {
        let Role::Leader(followers) = &mut self.role else { return };
        match followers.receive(engine, what) {
            Some(Request::Lose(error)) => self.lose(resources, error.step, error.cause),
            Some(Request::LoseFollower) => {
                self.lose(resources, self.step(), Cause::Local("an engine thread has ended".to_owned()));
            }
            Some(Request::Abort { qid, cid }) if self.phase.takes_io() => {
                self.queues.admin.abort(resources, qid, cid);
            }
            Some(Request::ReadAccess) => self.access_is_news(resources),
            Some(Request::Detach { orderly }) => self.detach(resources, orderly),
            Some(Request::Abort { .. }) | None => {}
        }
        if self.sequence.step() == Some(SequenceStep::Followers) {
            self.run(resources, Sequence::repeat);
        }
        self.check_closed(resources);
    }

    /// An engine that follows elsewhere has ended.
    pub(crate) fn follower_has_left(&mut self, resources: &mut Resources, engine: u16) {
        if let Role::Leader(followers) = &mut self.role {
            followers.has_left(engine);
        }
        if self.sequence.step() == Some(SequenceStep::Followers) {
            self.run(resources, Sequence::repeat);
        }
    }

    /// The leader tells something.
    pub(crate) fn on_leader(&mut self, resources: &mut Resources, what: ToFollower) {
        let Role::Follower(leader) = &mut self.role else { return };
        match what {
            ToFollower::Connect(plan) => {
                leader.begin_attempt(plan.attempt);
                self.queues.connector.follow(&plan);
                self.sequence.set_plan(&plan);
                self.advance(resources, Trigger::Connected);
            }
            ToFollower::Live { info, namespaces, retry_delays, reconnected } => {
                // It may have lost a connection meanwhile, which the leader has not heard of.
                if self.advance(resources, Trigger::Ready) {
                    self.info = Some(Arc::unwrap_or_clone(info));
                    self.sequence.set_retry_delays(retry_delays);
                    self.reports.push(PathEvent::Adopt(namespaces));
                    self.reports.push(PathEvent::Ready { reconnected });
                }
            }
            ToFollower::Lost(error) => {
                self.reports.push(PathEvent::Lost(error));
                self.advance(resources, Trigger::Follow);
            }
            ToFollower::Close { attempt, orderly } => {
                if leader.on_close(attempt, orderly) {
                    self.advance(resources, Trigger::Follow);
                }
            }
            ToFollower::Reauthenticate(keys) => self.run(resources, Sequence::reauthenticate(keys)),
            ToFollower::Drain => drop(self.phase == Phase::Live && self.advance(resources, Trigger::Detach)),
            ToFollower::Failed(error) => {
                if leader.end() {
                    self.trouble = Some(leader.reason(error));
                    self.advance(resources, Trigger::GiveUp);
                }
            }
            ToFollower::Detached(trouble) => {
                if leader.end() {
                    self.trouble = trouble;
                    self.advance(resources, Trigger::Leave);
                }
            }
            ToFollower::Reconnecting { attempt, delay } => {
                self.reports.push(PathEvent::Reconnecting { attempt, delay });
            }
            ToFollower::Access(states) => self.reports.push(PathEvent::Access(states)),
            ToFollower::FailFast => self.reports.push(PathEvent::FailFast),
            ToFollower::Changed => self.reports.push(PathEvent::NamespacesChanged),
            ToFollower::Rescanned(Some(found)) => {
                self.reports.push(PathEvent::NamespacesFound { found: found.to_vec(), final_look: true });
            }
            ToFollower::Rescanned(None) => self.reports.push(PathEvent::NamespacesKept),
        }
        self.check_closed(resources);
    }

    /// The controller has refused a command for an access state that it has not told: it is asked for all of them.
    pub(crate) fn access_is_news(&mut self, resources: &mut Resources) {
        match &self.role {
            Role::Leader(_) if self.phase == Phase::Live => self.run(resources, Sequence::read_access),
            Role::Leader(_) => {}
            Role::Follower(leader) => leader.tell(ToLeader::AccessIsNews),
        }
    }

    /// The step that an error of now belongs to.
    fn step(&self) -> Step {
        let running = self.sequence.step().map(SequenceStep::step);
        self.phase.step(self.options.url.transport, running)
    }

    /// The connections are of no further use.
    fn lose(&mut self, resources: &mut Resources, step: Step, cause: Cause) {
        if !self.phase.is_connected() {
            return;
        }
        let error = ConnectError { peer: self.peer().to_owned(), step, cause };
        tracing::debug!(phase = ?self.phase, %error, "lost");
        if let Role::Follower(leader) = &self.role {
            leader.tell_lost(error);
            self.advance(resources, Trigger::Follow);
            return;
        }
        // It was in use.
        if self.phase == Phase::Live {
            let (now, activity) = (resources.now(), self.queues.activity());
            let answered = self.liveness.has_answered(activity);
            self.role.note_loss(now, answered, self.liveness.loss().cloned());
            let again = self.liveness.lose(now, activity, self.options.reconnect);
            self.notices.lost(now, &error, again, &self.liveness);
            self.reports.push(PathEvent::Lost(error.clone()));
            self.role.tell_followers(&ToFollower::Lost(error.clone()));
        }
        let again = self.liveness.tries_again(resources.now(), &error.cause);
        self.trouble = Some(error);
        self.advance(resources, Trigger::Lost { again });
    }

    /// Ends all connections. The controller reaches no memory any more from here on, and once the transport has
    /// reported the end of each, on every engine, nothing of ours is in flight either.
    fn close(&mut self, resources: &mut Resources, orderly: bool) {
        let activity = self.queues.activity();
        let (answered, idle) = (self.liveness.has_answered(activity), self.liveness.is_idle(activity));
        let orderly = self.role.close(orderly, answered, idle);
        self.sequence.stop();
        self.keep_alive = KeepAlive::default();
        self.timers.stop();
        for command in self.queues.close(resources, orderly) {
            self.keep(Some(command));
        }
    }

    /// Goes on when the last connection of all engines has ended.
    fn check_closed(&mut self, resources: &mut Resources) {
        let closing = matches!(self.phase, Phase::Closing(_));
        if !closing || self.queues.are_alive() || self.role.followers_are_closing() {
            return;
        }
        self.queues.forget(resources);
        self.queues.admin.end_waiting(resources, self.handle.controller);
        self.advance(resources, Trigger::Closed);
    }

    /// Schedules the next attempt. A follower leaves that to its leader.
    fn delay(&mut self, resources: &mut Resources) {
        self.reports.push(PathEvent::ConnectionsEnded);
        if let Role::Follower(leader) = &self.role {
            return leader.tell_closed();
        }
        if let Some(loss) = self.role.judge_loss(self.options.reconnect) {
            self.liveness.set_loss(loss);
        }
        let trouble = self.trouble.take();
        let reset = trouble.as_ref().is_some_and(|error| matches!(error.cause, Cause::Reset));
        let next = self.liveness.next_attempt(trouble.filter(|_| !reset), &mut resources.random);
        let Some((attempt, mut delay)) = next else { return };
        if reset {
            delay = Duration::ZERO;
        }
        self.timers.phase = resources.now() + delay;
        self.reports.push(PathEvent::Reconnecting { attempt, delay });
        self.role.tell_followers(&ToFollower::Reconnecting { attempt, delay });
    }

    /// This was all.
    fn end(&mut self, resources: &mut Resources, before: Phase) {
        self.queues.connector.end(resources);
        self.liveness.end();
        self.notices.end_wait();
        self.reports.push(match (before, self.trouble.take()) {
            (Phase::Closing(After::Fail), Some(error)) => {
                self.role.fail_followers(&error);
                PathEvent::Failed(error)
            }
            (_, trouble) => {
                self.role.tell_followers(&ToFollower::Detached(trouble.clone()));
                PathEvent::Detached(trouble)
            }
        });
    }

    /// Detaches, in order or at once. The leader does that.
    pub(crate) fn detach(&mut self, resources: &mut Resources, orderly: bool) {
        if let Role::Follower(leader) = &self.role {
            return leader.tell(ToLeader::Detach { orderly });
        }
        self.trouble = None;
        self.advance(resources, if orderly { Trigger::Detach } else { Trigger::Leave });
        self.check_closed(resources);
    }

    /// The volumes have no more commands: goes on with shutting down when the last one here has its answer, and those
    /// of the followers have theirs. `written` are the namespaces to flush. Says whether it went on.
    pub(crate) fn check_drained(
        &mut self,
        resources: &mut Resources,
        written: impl FnOnce() -> Vec<u32>,
    ) -> bool {
        if self.phase != Phase::Draining || self.outstanding() > 0 || self.sequence.step().is_some() {
            return false;
        }
        match &mut self.role {
            Role::Leader(followers) if !followers.are_drained() => return false,
            Role::Leader(followers) => {
                let written = [written(), followers.take_written()].concat();
                self.advance(resources, Trigger::Drained);
                self.run(resources, |sequence, context| sequence.shut_down(context, written));
            }
            Role::Follower(leader) => {
                leader.tell(ToLeader::Drained { written: written() });
                self.advance(resources, Trigger::Drained);
            }
        }
        true
    }

    /// When it acts next.
    pub(crate) fn next_deadline(&self) -> Time {
        let loss = if self.phase.is_down() { self.liveness.due() } else { Time::MAX };
        let due = [loss, self.timers.due(), self.queues.due(), self.keep_alive.due(), self.notices.due()];
        due.into_iter().min().unwrap_or(Time::MAX)
    }

    /// The timer has fired.
    pub(crate) fn on_timer(&mut self, resources: &mut Resources) {
        let now = resources.now();
        if self.phase.is_down() && self.liveness.starts_failing_fast(now) {
            self.reports.push(PathEvent::FailFast);
            self.role.tell_followers(&ToFollower::FailFast);
        }
        if self.phase.is_down() && self.liveness.is_over(now) {
            let after = self.options.reconnect.controller_loss_timeout.unwrap_or_default();
            let cause = self.liveness.why_given_up(after, self.step());
            self.trouble = Some(ConnectError { peer: self.peer().to_owned(), step: Step::Live, cause });
            self.advance(resources, Trigger::GiveUp);
        }
        while let Some(timer) = self.timers.take_due(now) {
            let timeouts = &self.options.timeouts;
            let (what, limit) = match (timer, self.phase) {
                (Timer::Phase, Phase::Resolving) => ("the resolver", timeouts.resolve),
                (Timer::Phase, Phase::Delay) => {
                    self.advance(resources, Trigger::Attempt);
                    continue;
                }
                (Timer::Phase, _) => {
                    self.run(resources, Sequence::repeat);
                    continue;
                }
                (Timer::Reauthenticate, _) => {
                    // A controller that has not asked for it is not asked for more.
                    let begun = self.ask(resources, Asked::Reauthenticate(None));
                    tracing::debug!(peer = self.peer(), ?begun, "it is time to authenticate again");
                    continue;
                }
                (Timer::Shutdown, _) => ("orderly shutdown", timeouts.shutdown),
                (Timer::Attach, _) => ("all of attaching", self.sequence.attach_limit()),
            };
            self.lose(resources, self.step(), Cause::TimedOut { what, limit });
        }
        self.scan(resources, now);
        if self.keep_alive.take_due(now, self.queues.answered()) {
            let limit = self.keep_alive.answer_limit(self.options.timeouts.admin);
            self.queues.admin.send_within(
                resources,
                Command::new(wire::keep_alive(), Owner::KeepAlive),
                limit,
            );
        }
        self.queues.admin.retry_due(resources, now);
        if now >= self.notices.due() {
            let (phase, step) = (self.phase, self.step());
            let (options, sequence) = (&self.options, &self.sequence);
            let wait = Wait::of(phase, step, options, sequence, &self.timers, &self.liveness);
            self.notices.log_wait(now, wait);
        }
        self.check_closed(resources);
    }

    /// Looks for overdue answers. An overdue I/O command is aborted; an overdue admin command means that the controller
    /// does not answer.
    fn scan(&mut self, resources: &mut Resources, now: Time) {
        if let Some(owner) = self.queues.admin.scan(now) {
            let limit = self.options.timeouts.admin;
            let (what, limit) = match owner {
                Owner::KeepAlive => ("Keep Alive", self.keep_alive.answer_limit(limit)),
                Owner::Sequence => {
                    (self.sequence.step().map_or("an admin command", SequenceStep::command), limit)
                }
                _ => ("an admin command", limit),
            };
            return self.lose(resources, self.step(), Cause::TimedOut { what, limit });
        }
        // The leader sends as many aborts at once as the controller takes.
        let aborts_left = if self.role.leads() { self.queues.admin.aborts_left() } else { usize::MAX };
        match self.queues.io.scan(now, aborts_left) {
            Ok(scan) => {
                for &(qid, cid) in &scan.overdue {
                    match &self.role {
                        Role::Leader(_) => self.queues.admin.abort(resources, qid, cid),
                        Role::Follower(leader) => leader.tell(ToLeader::Abort { qid, cid }),
                    }
                }
                self.notices.scanned(now, &scan, self.options.timeouts.io);
            }
            Err(cause) => self.lose(resources, self.step(), cause),
        }
    }
}

/// Has the followers connect their queues.
fn connect_followers(path: &mut Path, resources: &mut Resources) {
    let connector = &path.queues.connector;
    let plan = path.sequence.facts().plan(connector.address(), connector.psks());
    if path.role.connect_followers(plan) {
        path.run(resources, Sequence::on_followers_connected);
    }
}
