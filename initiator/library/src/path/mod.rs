//! One way to a subsystem: a controller, its queues, its life, its timers.
//!
//! Several engines may share a controller. The one that attached it leads: it has the admin queue, runs the sequence of
//! commands that attaches, and decides when to connect and when to close. The others follow: each has I/O queues of its
//! own, and does what the leader says. When any connection is lost, all of them end. The leader connects again only
//! when every engine has reported that nothing of it is in flight any more.
//!
//! [`Path`] only coordinates. Its parts own their state and decide: [`life`] what it is and [`phase`] which phase
//! follows, [`association`] what there is of a connected controller, [`sequence`] which command of attaching follows,
//! [`queues`] what is outstanding and overdue, [`liveness`] when a loss is over, [`followers`] and [`leader`] what
//! engines ask of each other. The path does what they say.

mod admin;
mod association;
mod connector;
mod followers;
pub(crate) mod instance;
mod io_queues;
mod keep_alive;
mod leader;
mod life;
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
use crate::namespace::Namespace;
use crate::options::ConnectOptions;
use crate::path_status::{PathLoss, PathStatus};
use crate::request::{AdminRequest, Asked, PathHandle, Refused};
use crate::resources::Resources;
use crate::transport::{Arrival, ConnectionEvent, NotSent};
use crate::url::Url;
use crate::wire::{self, answers};
use crate::work;
pub(crate) use admin::ADMIN_WAITING_MAX;
use association::Association;
use connector::Connector;
pub(crate) use connector::QueueShare;
pub(crate) use followers::Followers;
use followers::Request;
use instance::Instances;
pub(crate) use instance::{Instance, LostEntry, ResetAnswer, ResetEntry};
pub(crate) use io_queues::{IoQueues, SLOW_IO};
use keep_alive::KeepAliveDue;
pub use leader::SharedController;
pub(crate) use leader::{FinalError, LeaderLink, SharedPath};
use life::Life;
use liveness::Liveness;
pub(crate) use notices::{AGAIN as NOTICE_AGAIN, FIRST as NOTICE_FIRST, seconds};
use notices::{Notices, Wait};
use phase::{After, Phase, Trigger};
pub(crate) use reports::{PathEvent, Reports};
pub(crate) use role::Role;
use sequence::{Action, Context, Disconnection, Sequence, SequenceStep};
use timers::{Timer, Timers};

/// A way to a subsystem, or this engine's part of it.
pub(crate) struct Path {
    pub(crate) life: Life,
    /// What this engine is for the controller.
    pub(crate) role: Role,
    pub(crate) association: Association,
    /// Whether it works, which the volumes know, too.
    pub(crate) liveness: Liveness,
    timers: Timers,
    notices: Notices,
    /// Which instances its controller was and is.
    pub(crate) instances: Instances,
    /// What the volumes are to be told.
    pub(crate) reports: Reports,
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
            this.liveness.persist(resources.now(), this.life.options.reconnect);
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
            role,
            association: Association::new(&options, connector),
            liveness: Liveness::default(),
            timers: Timers::default(),
            notices: Notices::new(options.url.peer()),
            instances: Instances::default(),
            reports: Reports::default(),
            life: Life::new(handle, options),
        }
    }

    /// The controller's name for people.
    pub(crate) fn peer(&self) -> &str {
        self.notices.peer()
    }

    /// The I/O queues, if I/O can be sent, though perhaps not at this moment.
    #[inline]
    pub(crate) fn io(&self) -> Option<&IoQueues> {
        self.life.phase.takes_io().then_some(&self.association.queues.io)
    }

    /// The same, to send I/O.
    #[inline]
    pub(crate) fn io_mut(&mut self) -> Option<&mut IoQueues> {
        self.life.phase.takes_io().then_some(&mut self.association.queues.io)
    }

    /// Whether it was never ready, and has failed at least once.
    pub(crate) fn has_failed_at_first(&self) -> bool {
        !self.life.was_ready() && self.liveness.has_failed()
    }

    /// Whether it leads to this address.
    pub(crate) fn leads_to(&self, url: &Url) -> bool {
        self.life.leads_to(url, self.association.queues.connector.known_address())
    }

    /// What is known of it, for people. The volumes know the rest.
    pub(crate) fn status(&self, now: Time) -> PathStatus {
        let failed = self.liveness.last_error().zip(self.liveness.loss());
        let mut status = PathStatus::new(self.life.handle.path, self.life.options.url.clone());
        status.cntlid = self.life.info().map(|info| info.cntlid);
        status.state = self.life.state(failed.is_some());
        status.last_loss =
            failed.map(|(error, loss)| PathLoss { ago: now.since(loss.since()), error: error.clone() });
        self.association.count(&mut status);
        status
    }

    /// It has failed before anything was ready, and so have all others: it is given up.
    pub(crate) fn give_up(&mut self, resources: &mut Resources) {
        self.life.trouble = self.liveness.last_error().cloned();
        self.advance(resources, Trigger::GiveUp);
        self.check_closed(resources);
    }

    /// Goes on to the next phase, as the table of phases says, and begins with what it is for. Says whether there was a
    /// next one.
    fn advance(&mut self, resources: &mut Resources, trigger: Trigger) -> bool {
        let Some(next) = self.life.phase.next(trigger) else { return false };
        let before = mem::replace(&mut self.life.phase, next);
        match next {
            Phase::Resolving => self.resolve(resources),
            Phase::Connecting => {
                self.timers.phase = Time::MAX;
                self.timers.resume_attempt(self.association.sequence.attach_limit());
                if let Err(error) = self.association.queues.connect_admin(resources) {
                    self.lose(resources, Step::Connect, Cause::Local(error.to_string()));
                }
            }
            Phase::Setup => self.run(resources, Sequence::attach),
            Phase::Live => {
                self.notices.ready(resources.now(), self.life.info.is_some(), &self.liveness);
                self.timers.end_attempt();
                self.timers.repeat_authentication(resources.now(), &self.life.options);
                self.liveness.begin(resources.now());
            }
            Phase::Draining => {
                self.reports.push(PathEvent::Drain);
                self.association.queues.admin.retry_due(resources, Time::MAX);
                if self.role.leads() {
                    self.timers.shutdown = resources.now() + self.life.options.timeouts.shutdown;
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
        self.timers.begin_attempt(now, self.life.options.timeouts.attach);
        self.timers.phase = now + self.life.options.timeouts.resolve;
        if self.liveness.loss().is_none() {
            self.notices.begin_wait(now);
        }
        match self.association.queues.connector.resolve(resources) {
            Ok(true) => drop(self.advance(resources, Trigger::Address)),
            Ok(false) => {}
            Err(cause) => self.lose(resources, cause.first_step(), cause),
        }
    }

    /// Takes the answer of a thread, of the resolver or of a worker.
    pub(crate) fn on_thread(&mut self, resources: &mut Resources, answer: Message) {
        match answer {
            Message::Resolved(resolved) if self.life.phase == Phase::Resolving => {
                match self.association.queues.connector.on_resolved(resolved) {
                    Some(Ok(())) => drop(self.advance(resources, Trigger::Address)),
                    Some(Err(cause)) => self.lose(resources, cause.first_step(), cause),
                    None => {}
                }
            }
            Message::Worked(Worked { task, done, .. }) if self.life.phase.is_connected() => {
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
        let now = resources.now();
        let action = self.association.decide(now, &resources.pool, &mut self.reports, decide);
        self.timers.extend_attempt(self.association.sequence.attach_limit());
        match action {
            Action::Nothing => {}
            Action::Send { number, command } => {
                self.timers.phase = Time::MAX;
                let Err((command, reason)) = self.association.queues.send(resources, number, command) else {
                    return;
                };
                self.association.sequence.take_back(*command);
                if self.life.phase.takes_io() && reason == NotSent::Busy {
                    return self.timers.phase = self.association.queues.hold(resources.now(), number);
                }
                tracing::debug!(peer = self.peer(), ?reason, "a command of the sequence could not be sent");
                self.lose(resources, self.step(), Cause::Protocol("the queue takes no command"));
            }
            Action::Work { number, task, limit } => {
                self.timers.phase = resources.now() + limit;
                if let Err(cause) = work::start(task, self.life.handle, number, resources) {
                    self.lose(resources, self.step(), cause);
                }
            }
            Action::ConnectQueue { number, size, in_capsule_bytes_max } => {
                let connected =
                    self.association.queues.connect_io(resources, number, size, in_capsule_bytes_max);
                if let Err(error) = connected {
                    self.lose(resources, Step::IoQueues, Cause::Local(error.to_string()));
                }
            }
            Action::ConnectFollowers => connect_followers(self, resources),
            Action::RepeatAt(at) => self.timers.phase = at,
            Action::Secure(psk) => {
                self.association.queues.connector.secure(psk);
                self.advance(resources, Trigger::Secured);
            }
            Action::Leave => drop(self.advance(resources, Trigger::Leave)),
            Action::Fail(step, cause) => self.lose(resources, step, cause),
        }
    }

    /// Takes an event of the connection of one of its queues.
    pub(crate) fn on_event(&mut self, resources: &mut Resources, number: u16, event: ConnectionEvent) {
        if !matches!(event, ConnectionEvent::Established { .. })
            && let Some(queue) = self.association.queues.get_mut(number)
        {
            queue.ended();
        }
        match event {
            ConnectionEvent::Established { credits } => self.on_established(resources, number, credits),
            ConnectionEvent::Rejected(why) => self.lose(resources, Step::Mpa, Cause::Rejected(why)),
            // The admin queue first tries the older identity of the key, and the other addresses of the name.
            ConnectionEvent::ConnectFailed { step, .. }
                if self.life.phase == Phase::Connecting
                    && self.association.queues.connector.next_attempt(step) =>
            {
                self.advance(resources, Trigger::Address);
            }
            ConnectionEvent::ConnectFailed { step, cause } => {
                self.lose(resources, step, self.association.queues.connector.explain(cause));
            }
            ConnectionEvent::Disconnected(reason) => self.on_disconnected(resources, number, reason),
        }
        self.check_closed(resources);
    }

    fn on_established(&mut self, resources: &mut Resources, number: u16, credits: Option<u16>) {
        if matches!(self.life.phase, Phase::Closing(_)) {
            return;
        }
        let violation = match credits {
            None => "an accept without the private data of NVMe/RDMA",
            Some(0) => "a controller that can receive no command",
            Some(credits) => {
                if let Some(queue) = self.association.queues.get_mut(number) {
                    queue.set_credits(credits);
                }
                let (peer, qid) = (self.peer(), self.association.queues.qid(number));
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
        match self.association.sequence.on_disconnected(number) {
            Disconnection::Expected => {}
            Disconnection::Answer => {
                let queue = self.association.queues.get_mut(number);
                let unanswered = queue.and_then(|queue| queue.pop(&mut resources.transports));
                self.association.keep(&mut self.reports, unanswered);
                self.run(resources, |sequence, context| sequence.on_queue_ended(context, number));
            }
            // The leader has the controller shut down.
            Disconnection::Loss if self.life.phase == Phase::Shutdown && !self.role.leads() => {}
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
        if !self.life.phase.is_connected() {
            return None;
        }
        let Some(entry) = entry else {
            self.lose(resources, self.step(), Cause::Protocol("a response that is not 16 bytes long"));
            return None;
        };
        let queue = self.association.queues.get_mut(number)?;
        match queue.answer(&mut resources.transports, entry, arrival) {
            Ok(command) => {
                if !entry.status().is_success() {
                    self.notices.failed(self.association.queues.qid(number), &command, entry);
                }
                if let Owner::Io(_) = command.owner {
                    return Some(command);
                }
                if number != 0 {
                    self.association.queues.io.note_sequence_answer();
                }
                self.on_admin_answer(resources, command, entry);
            }
            Err((command, violation)) => {
                let (qid, cid) = (self.association.queues.qid(number), entry.cid.get());
                tracing::warn!(
                    peer = self.peer(),
                    index = self.life.handle.controller.0.index,
                    qid,
                    cid,
                    violation,
                    "protocol violation"
                );
                self.association.keep(&mut self.reports, command);
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
                let retry = (&self.association.sequence.facts().retry_delays, &self.life.options.reconnect);
                self.association.queues.admin.answered(
                    resources,
                    self.life.handle.controller,
                    command,
                    entry,
                    retry,
                );
            }
            Owner::Sequence => {
                self.run(resources, |sequence, context| sequence.on_answer(context, *command, entry));
            }
            Owner::KeepAlive => {
                if self.liveness.is_idle(self.association.queues.activity()) {
                    self.liveness.admin_has_worked();
                }
                if let Err(cause) = self.association.keep_alive.on_answer(resources.now(), status) {
                    self.lose(resources, Step::Live, cause);
                }
            }
            // Without events nothing is lost but their speed: sizes are looked at again after each reconnect.
            Owner::AsyncEvent if !status.is_success() => {
                tracing::debug!(peer = self.peer(), %status, "no asynchronous events");
            }
            Owner::AsyncEvent => self.on_async_event(resources, entry),
            Owner::Reset(_) | Owner::ResetLog | Owner::LostHostLog => {
                instance::on_answer(self, &command, entry);
            }
        }
        if self.life.phase.is_connected() {
            self.association.queues.admin.send_waiting(resources);
        }
    }

    /// Something has happened at the controller (Base 2.0, section 5.2). One request for the next event is kept
    /// outstanding.
    fn on_async_event(&mut self, resources: &mut Resources, entry: &CompletionEntry) {
        let changed = answers::is_namespace_change(entry);
        tracing::info!(peer = self.peer(), dw0 = entry.dw0.get(), changed, "asynchronous event");
        instance::on_event(self, resources, entry);
        if answers::is_discovery_log_change(entry) {
            self.reports.push(PathEvent::DiscoveryLogChanged);
        }
        if changed && self.life.phase == Phase::Live {
            self.reports.push(PathEvent::NamespacesChanged);
            self.role.tell_followers(&ToFollower::Changed);
            self.run(resources, Sequence::rescan);
        }
        if answers::is_access_change(entry) && self.life.phase == Phase::Live {
            self.run(resources, Sequence::read_access);
        }
        self.association
            .queues
            .admin
            .send(resources, Command::new(wire::async_event_request(), Owner::AsyncEvent));
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
        let reconnected = self.liveness.loss().is_some() && self.life.info.is_some();
        if !self.advance(resources, Trigger::Ready) {
            return;
        }
        let facts = self.association.sequence.facts();
        let info = facts.describe(self.association.keep_alive.timeout());
        let lost_paths = &facts.controller.lost_paths;
        let instance = Instance::new(info.cntlid, lost_paths, info.keep_alive, &self.life.options);
        self.instances.begin(self.role.connection(), Some(instance));
        self.role.tell_live(&info, namespaces, &self.association.sequence, reconnected);
        self.reports.push(PathEvent::Ready { reconnected });
        // A discovery controller need not have events, and only that of its log page concerns us.
        let is_discovery = info.discovery || self.life.options.url.is_discovery();
        if !is_discovery || info.discovery_log_events {
            self.association
                .queues
                .admin
                .send(resources, Command::new(wire::async_event_request(), Owner::AsyncEvent));
        }
        self.life.info = Some(info);
    }

    /// Starts an admin command, or lets it wait for room.
    pub(crate) fn submit_admin(
        &mut self,
        resources: &mut Resources,
        request: AdminRequest,
    ) -> Result<(), Refused<AdminRequest>> {
        let taken = match self.life.phase {
            _ if !self.role.leads() => Err(SubmitError::NoCommand("an admin queue on this engine")),
            Phase::Live => self.association.queues.admin.check_room(),
            Phase::Draining | Phase::Shutdown | Phase::Gone => Err(SubmitError::Gone),
            _ => Err(SubmitError::NotReady),
        };
        match taken {
            Ok(()) => self.association.queues.admin.send(resources, Command::from_admin(request)),
            Err(reason) => return Err(Refused { reason, request }),
        }
        Ok(())
    }

    /// Does what a program asks for: on this engine, and then on the others.
    pub(crate) fn ask(&mut self, resources: &mut Resources, asked: Asked) -> Result<(), SubmitError> {
        if !self.role.leads() {
            return Err(SubmitError::NoCommand("an admin queue on this engine"));
        }
        match (self.life.phase, asked) {
            (phase, _) if phase.is_final() => return Err(SubmitError::Gone),
            (Phase::Live, Asked::Reauthenticate(_)) if !self.association.sequence.has_authenticated() => {
                return Err(SubmitError::NoCommand("authentication: it has not asked for it"));
            }
            (Phase::Live, Asked::Reauthenticate(keys)) => {
                self.run(resources, Sequence::reauthenticate(keys.map(Arc::new)));
                self.timers.repeat_authentication(resources.now(), &self.life.options);
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
            Some(Request::Abort { qid, cid }) if self.life.phase.takes_io() => {
                self.association.queues.admin.abort(resources, qid, cid);
            }
            Some(Request::ReadAccess) => self.access_is_news(resources),
            Some(Request::Detach { orderly }) => self.detach(resources, orderly),
            Some(Request::Abort { .. }) | None => {}
        }
        if self.association.sequence.step() == Some(SequenceStep::Followers) {
            self.run(resources, Sequence::repeat);
        }
        self.check_closed(resources);
    }

    /// The leader tells something.
    pub(crate) fn on_leader(&mut self, resources: &mut Resources, what: ToFollower) {
        let Role::Follower(leader) = &mut self.role else { return };
        match what {
            ToFollower::Connect(plan) => {
                leader.begin_attempt(plan.attempt);
                self.association.queues.connector.follow(&plan);
                self.association.sequence.set_plan(&plan);
                self.advance(resources, Trigger::Connected);
            }
            ToFollower::Live { info, namespaces, retry_delays, reconnected } => {
                // It may have lost a connection meanwhile, which the leader has not heard of.
                if self.advance(resources, Trigger::Ready) {
                    self.instances.begin(self.role.connection(), None);
                    self.life.info = Some(Arc::unwrap_or_clone(info));
                    self.association.sequence.set_retry_delays(retry_delays);
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
            ToFollower::Drain if self.life.phase == Phase::Live => {
                self.advance(resources, Trigger::Detach);
            }
            ToFollower::Drain => {}
            ToFollower::Failed(error) => {
                if leader.end() {
                    self.life.trouble = Some(leader.reason(error));
                    self.advance(resources, Trigger::GiveUp);
                }
            }
            ToFollower::Detached(trouble) => {
                if leader.end() {
                    self.life.trouble = trouble;
                    self.advance(resources, Trigger::Leave);
                }
            }
            what => self.reports.told_by_leader(what),
        }
        self.check_closed(resources);
    }

    /// The controller has refused a command for an access state that it has not told: it is asked for all of them.
    pub(crate) fn access_is_news(&mut self, resources: &mut Resources) {
        match &self.role {
            Role::Leader(_) if self.life.phase == Phase::Live => self.run(resources, Sequence::read_access),
            Role::Leader(_) => {}
            Role::Follower(leader) => leader.tell(ToLeader::AccessIsNews),
        }
    }

    /// The step that an error of now belongs to.
    fn step(&self) -> Step {
        let running = self.association.sequence.step().map(SequenceStep::step);
        self.life.phase.step(self.life.options.url.transport, running)
    }

    /// The connections are of no further use.
    fn lose(&mut self, resources: &mut Resources, step: Step, cause: Cause) {
        if !self.life.phase.is_connected() {
            return;
        }
        let error = ConnectError { peer: self.peer().to_owned(), step, cause };
        tracing::debug!(phase = ?self.life.phase, %error, "lost");
        if let Role::Follower(leader) = &self.role {
            leader.tell_lost(error);
            self.advance(resources, Trigger::Follow);
            return;
        }
        // It was in use.
        if self.life.phase == Phase::Live {
            let (now, activity) = (resources.now(), self.association.queues.activity());
            let answered = self.liveness.has_answered(activity);
            self.role.note_loss(now, answered, self.liveness.loss().cloned());
            let again = self.liveness.lose(now, activity, self.life.options.reconnect);
            self.notices.lost(now, &error, again, &self.liveness);
            self.reports.push(PathEvent::Lost(error.clone()));
            self.role.tell_followers(&ToFollower::Lost(error.clone()));
        }
        let again = self.liveness.tries_again(resources.now(), &error.cause);
        if again && !self.life.was_ready() && !self.liveness.has_failed() {
            tracing::warn!("a path is not attached yet, and tried again: {error}");
        }
        self.life.trouble = Some(error);
        self.advance(resources, Trigger::Lost { again });
    }

    /// Ends all connections. The controller reaches no memory any more from here on, and once the transport has
    /// reported the end of each, on every engine, nothing of ours is in flight either.
    fn close(&mut self, resources: &mut Resources, orderly: bool) {
        let activity = self.association.queues.activity();
        let (answered, idle) = (self.liveness.has_answered(activity), self.liveness.is_idle(activity));
        let orderly = self.role.close(orderly, answered, idle);
        self.timers.stop();
        self.association.close(resources, &mut self.reports, orderly);
        // A controller that has shut down has nothing in hand.
        if let Some(instance) = self.instances.end().filter(|_| !orderly) {
            self.reports.push(PathEvent::InstanceLost(instance));
        }
    }

    /// Goes on when the last connection of all engines has ended.
    fn check_closed(&mut self, resources: &mut Resources) {
        let closing = matches!(self.life.phase, Phase::Closing(_));
        if !closing || self.association.queues.are_alive() || self.role.followers_are_closing() {
            return;
        }
        self.association.queues.forget(resources);
        self.reports.push(PathEvent::Closed);
        self.association.queues.admin.end_waiting(resources, self.life.handle.controller);
        self.advance(resources, Trigger::Closed);
    }

    /// Schedules the next attempt. A follower leaves that to its leader.
    fn delay(&mut self, resources: &mut Resources) {
        if let Role::Follower(leader) = &self.role {
            return leader.tell_closed();
        }
        if let Some(loss) = self.role.judge_loss(self.life.options.reconnect) {
            self.liveness.set_loss(loss);
        }
        let trouble = self.life.trouble.take();
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
        self.association.queues.connector.end(resources);
        self.liveness.end();
        self.notices.end_wait();
        self.reports.push(match (before, self.life.trouble.take()) {
            (Phase::Closing(After::Fail), Some(error)) => {
                self.role.end_followers(ToFollower::Failed(error.clone()));
                PathEvent::Failed(error)
            }
            (_, trouble) => {
                self.role.end_followers(ToFollower::Detached(trouble.clone()));
                PathEvent::Detached(trouble)
            }
        });
    }

    /// Detaches, in order or at once. The leader does that.
    pub(crate) fn detach(&mut self, resources: &mut Resources, orderly: bool) {
        if let Role::Follower(leader) = &self.role {
            return leader.tell(ToLeader::Detach { orderly });
        }
        self.life.trouble = None;
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
        if self.life.phase != Phase::Draining
            || self.association.outstanding() > 0
            || self.association.sequence.step().is_some()
        {
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
        let loss = if self.life.phase.is_down() { self.liveness.due() } else { Time::MAX };
        let due = [loss, self.timers.due(), self.association.due(), self.notices.due()];
        due.into_iter().min().unwrap_or(Time::MAX)
    }

    /// The timer has fired.
    pub(crate) fn on_timer(&mut self, resources: &mut Resources) {
        let now = resources.now();
        if self.life.phase.is_down() && self.liveness.starts_failing_fast(now) {
            self.reports.push(PathEvent::FailFast);
            self.role.tell_followers(&ToFollower::FailFast);
        }
        if self.life.phase.is_down() && self.liveness.is_over(now) {
            let after = self.life.options.reconnect.controller_loss_timeout.unwrap_or_default();
            let cause = self.liveness.why_given_up(after, self.step());
            self.life.trouble = Some(ConnectError { peer: self.peer().to_owned(), step: Step::Live, cause });
            self.advance(resources, Trigger::GiveUp);
        }
        while let Some(timer) = self.timers.take_due(now) {
            let timeouts = &self.life.options.timeouts;
            let (what, limit) = match (timer, self.life.phase) {
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
                (Timer::Attach, _) => ("all of attaching", self.association.sequence.attach_limit()),
            };
            self.lose(resources, self.step(), Cause::TimedOut { what, limit });
        }
        self.scan(resources, now);
        self.keep_alive(resources, now);
        self.association.queues.admin.retry_due(resources, now);
        if now >= self.notices.due() {
            let (phase, step) = (self.life.phase, self.step());
            let (options, sequence) = (&self.life.options, &self.association.sequence);
            let wait = Wait::of(phase, step, options, sequence, &self.timers, &self.liveness);
            self.notices.log_wait(now, wait);
        }
        self.check_closed(resources);
    }

    /// Sends a Keep Alive if it is time, and gives a controller up that is silent.
    fn keep_alive(&mut self, resources: &mut Resources, now: Time) {
        match self.association.keep_alive.take_due(now, self.association.queues.answered()) {
            KeepAliveDue::Nothing => {}
            KeepAliveDue::Send => {
                let limit = self.association.keep_alive.answer_limit(self.life.options.timeouts.admin);
                let command = Command::new(wire::keep_alive(), Owner::KeepAlive);
                self.association.queues.admin.send_within(resources, command, limit);
            }
            KeepAliveDue::Silent(limit) => {
                self.lose(resources, self.step(), Cause::TimedOut { what: "Keep Alive", limit });
            }
        }
    }

    /// Looks for overdue answers. An overdue I/O command is aborted; an overdue admin command means that the controller
    /// does not answer.
    fn scan(&mut self, resources: &mut Resources, now: Time) {
        if let Some(owner) = self.association.queues.admin.scan(now) {
            let limit = self.life.options.timeouts.admin;
            let (what, limit) = match owner {
                Owner::KeepAlive => ("Keep Alive", self.association.keep_alive.answer_limit(limit)),
                Owner::Sequence => (
                    self.association.sequence.step().map_or("an admin command", SequenceStep::command),
                    limit,
                ),
                _ => ("an admin command", limit),
            };
            return self.lose(resources, self.step(), Cause::TimedOut { what, limit });
        }
        // The leader sends as many aborts at once as the controller takes.
        let aborts_left =
            if self.role.leads() { self.association.queues.admin.aborts_left() } else { usize::MAX };
        match self.association.queues.io.scan(now, aborts_left) {
            Ok(scan) => {
                for &(qid, cid) in &scan.overdue {
                    match &self.role {
                        Role::Leader(_) => self.association.queues.admin.abort(resources, qid, cid),
                        Role::Follower(leader) => leader.tell(ToLeader::Abort { qid, cid }),
                    }
                }
                self.notices.scanned(now, &scan, self.life.options.timeouts.io);
            }
            Err(cause) => self.lose(resources, self.step(), cause),
        }
    }
}

/// Has the followers connect their queues.
fn connect_followers(path: &mut Path, resources: &mut Resources) {
    let connector = &path.association.queues.connector;
    let plan = path.association.sequence.facts().plan(connector.address(), connector.psks());
    if path.role.connect_followers(plan) {
        path.run(resources, Sequence::on_followers_connected);
    }
}
