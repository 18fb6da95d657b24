//! The commands of attaching, looking at the namespaces again, and shutting down: one at a time.
//!
//! [`automaton`] says which step follows. Here each step becomes a command, and its answer is taken.

mod access;
mod authentication;
mod automaton;
mod facts;
mod namespaces;
mod outgoing;
mod steps;

use std::sync::Arc;
use std::time::Duration;

use ringfab_fabric::tcp::Psk;
use ringfab_memory::{Buffer, Pool, SharedBuffer};
use ringfab_reactor::Time;
use ringfab_spec::auth::AuthHeader;
use ringfab_spec::{CompletionEntry, Status, SubmissionEntry};

use super::connector::QueueShare;
use super::io_queues::IoQueues;
use super::keep_alive::KeepAlive;
use super::reports::{PathEvent, Reports};
use crate::access::AccessStates;
use crate::authentication::{AuthenticationFailure, Keys};
use crate::command::Command;
use crate::error::{Cause, ConnectError, Step};
use crate::messages::{Done, OpenQueues};
use crate::options::ConnectOptions;
use crate::refusal::RefusedField;
use crate::retry::{RetryDelays, Tries, Verdict, judge};
use crate::url::Transport;
use crate::wire::data::{AnswerData, Short};
use crate::work::Task;
use access::AccessLog;
use authentication::{Authentication, Stage};
use facts::Facts;
use namespaces::NamespaceScan;
use outgoing::Outgoing;
pub(super) use steps::SequenceStep;

/// Memory for the data of one of the commands.
const SCRATCH_BYTES: usize = 4096;

/// How long a worker may take for what takes milliseconds: the machine may be busy, and a file system slow.
const WORK_LIMIT: Duration = Duration::from_secs(30);

/// What the sequence is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Purpose {
    #[default]
    Attach,
    /// Looking at the namespaces again, while I/O runs.
    Rescan,
    /// Reading the access states, while I/O runs.
    Access,
    /// Authenticating again, while I/O runs.
    Reauthenticate,
    Shutdown,
}

/// Memory of the data of one of the commands, while none has it.
#[derive(Debug)]
struct Scratch(Option<SharedBuffer>);

/// What the path does next for the sequence.
#[derive(Debug)]
pub(super) enum Action {
    /// Something else brings the next step, or the sequence has ended.
    Nothing,
    /// Send this on the queue with this number.
    Send { number: u16, command: Box<Command> },
    /// Have a worker do this, within a limit; its number is to come back with what it has done.
    Work { number: u32, task: Task, limit: Duration },
    /// Connect the I/O queue with this number.
    ConnectQueue { number: u16, size: u16, in_capsule_bytes_max: u32 },
    /// Have the followers connect their queues.
    ConnectFollowers,
    /// Repeat the step at this time.
    RepeatAt(Time),
    /// The admin queue connects again, and all queues are over TLS with this key.
    Secure(Psk),
    /// The controller has shut down.
    Leave,
    /// The connection is of no further use.
    Fail(Step, Cause),
}

/// What the end of a connection means to the sequence.
#[derive(Debug)]
pub(super) enum Disconnection {
    /// The connection is lost.
    Loss,
    /// The controller may do that now.
    Expected,
    /// It is what the step has asked for, though the answer is missing.
    Answer,
    /// One end has refused the other before.
    Refused(Cause),
}

/// What the sequence acts on beside its own state.
pub(super) struct Context<'a> {
    pub(super) now: Time,
    pub(super) pool: &'a Pool,
    pub(super) io: &'a IoQueues,
    /// Whether the connections are over TLS.
    pub(super) secured: bool,
    /// The key for TLS of queues that connect from now on, if it is replaced.
    pub(super) replacement: Option<Psk>,
    pub(super) keep_alive: &'a mut KeepAlive,
    pub(super) reports: &'a mut Reports,
}

/// How far the sequence is, and what it has learned about the controller.
#[derive(Debug)]
pub(super) struct Sequence {
    options: Arc<ConnectOptions>,
    share: QueueShare,
    purpose: Purpose,
    /// The step that runs.
    step: Option<SequenceStep>,
    /// What was tried of it.
    tries: Tries,
    facts: Facts,
    namespaces: NamespaceScan,
    access: AccessLog,
    authentication: Authentication,
    /// Whether the queue that has connected has to authenticate.
    asked: bool,
    /// Whether to authenticate again once the step that runs is over.
    reauthenticates: bool,
    /// What the controller adds to the time that attaching may take.
    extra_time: Duration,
    /// Memory of the sequence's commands, so that they never wait for the pool.
    scratch: Scratch,
    /// Namespaces that a shutdown flushes, ascending.
    flushes: Vec<u32>,
}

impl Sequence {
    /// Of the engine that has this share of the queues.
    pub(super) fn new(options: Arc<ConnectOptions>, share: QueueShare) -> Self {
        Self {
            authentication: Authentication::new(options.clone()),
            asked: false,
            reauthenticates: false,
            options,
            share,
            purpose: Purpose::default(),
            step: None,
            tries: Tries::default(),
            facts: Facts::default(),
            namespaces: NamespaceScan::default(),
            access: AccessLog::default(),
            extra_time: Duration::ZERO,
            scratch: Scratch(None),
            flushes: Vec::new(),
        }
    }

    /// The step that runs.
    pub(super) fn step(&self) -> Option<SequenceStep> {
        self.step
    }

    /// What was learned about the controller.
    pub(super) fn facts(&self) -> &Facts {
        &self.facts
    }

    /// How long attaching may take, as far as it is known.
    pub(super) fn attach_limit(&self) -> Duration {
        self.options.timeouts.attach + self.extra_time
    }

    /// How long the step that runs may take.
    pub(super) fn step_limit(&self) -> Duration {
        match self.step {
            Some(SequenceStep::EstablishQueue(_)) => self.options.timeouts.connect,
            Some(SequenceStep::ReadyStatus) => self.facts.capabilities.timeout,
            Some(SequenceStep::Authenticate(_, stage)) if stage.is_work() => WORK_LIMIT,
            _ => self.options.timeouts.admin,
        }
    }

    /// A follower connects its I/O queues by this plan.
    pub(super) fn set_plan(&mut self, plan: &OpenQueues) {
        let facts = &mut self.facts;
        (facts.cntlid, facts.queues, facts.queue_size) = (plan.cntlid, plan.queues, plan.queue_size);
        facts.in_capsule_bytes_max = plan.in_capsule_bytes_max;
    }

    /// What the controller says about trying again, as the leader has learned it.
    pub(super) fn set_retry_delays(&mut self, delays: RetryDelays) {
        self.facts.retry_delays = delays;
    }

    /// Starts to attach, with the admin queue connected. A follower connects its I/O queues.
    pub(super) fn attach(&mut self, context: &mut Context<'_>) -> Action {
        self.purpose = Purpose::Attach;
        self.authentication.reset();
        let first = if self.share.leads() { SequenceStep::Connect } else { SequenceStep::EstablishQueue(1) };
        self.start(context, first)
    }

    /// The controller tells that namespaces have changed: starts to look at them, or looks once more afterwards.
    pub(super) fn rescan(&mut self, context: &mut Context<'_>) -> Action {
        if self.step.is_some() {
            self.namespaces.again = true;
            return Action::Nothing;
        }
        self.purpose = Purpose::Rescan;
        self.start(context, SequenceStep::ChangedLog)
    }

    /// Reads the access states, where the controller tells any; once more if it is asked while something else runs.
    pub(super) fn read_access(&mut self, context: &mut Context<'_>) -> Action {
        if !self.facts.controller.access_states {
            return Action::Nothing;
        }
        if let Some(step) = self.step {
            // One that has just begun tells the latest.
            self.access.again |= step != SequenceStep::AccessLog(0);
            return Action::Nothing;
        }
        self.purpose = Purpose::Access;
        self.start(context, SequenceStep::AccessLog(0))
    }

    /// The access states, as they were read last.
    pub(super) fn access(&self) -> Arc<AccessStates> {
        self.access.states()
    }

    /// Authenticates each queue again that has authenticated, with these keys if there are any. I/O goes on meanwhile.
    /// If something else runs, it comes after that. A follower gets keys that the leader has tried, and keeps them.
    pub(super) fn reauthenticate(
        keys: Option<Arc<Keys>>,
    ) -> impl FnOnce(&mut Sequence, &mut Context<'_>) -> Action {
        move |this, context| {
            keys.into_iter().for_each(|keys| this.authentication.set_keys(keys, !this.share.leads()));
            this.authenticate_again(context)
        }
    }

    fn authenticate_again(&mut self, context: &mut Context<'_>) -> Action {
        if self.step.is_some() {
            // One that runs is as good, unless there are other keys.
            let runs = self.purpose == Purpose::Reauthenticate && !self.authentication.has_other_keys();
            self.reauthenticates |= !runs;
            return Action::Nothing;
        }
        let Some(first) = self.authentication.queue_after(None) else { return Action::Nothing };
        self.purpose = Purpose::Reauthenticate;
        self.authentication.begin_again(first, context.secured);
        self.start(context, SequenceStep::Authenticate(first, self.authentication.first()))
    }

    /// Whether the controller has asked a queue of this engine to authenticate.
    pub(super) fn has_authenticated(&self) -> bool {
        self.authentication.queue_after(None).is_some()
    }

    /// A worker has done what it was given.
    pub(super) fn on_work(&mut self, context: &mut Context<'_>, task: u32, done: Done) -> Action {
        let Some(step @ SequenceStep::Authenticate(_, stage)) = self.step else {
            return Action::Nothing;
        };
        match self.authentication.on_work(task, done) {
            Ok(true) if stage.is_work() => self.end_step(context, step),
            Ok(_) => Action::Nothing,
            Err(cause) if self.purpose == Purpose::Reauthenticate => {
                self.give_up_reauthentication(context, step, cause)
            }
            Err(cause) => Action::Fail(step.step(), cause),
        }
    }

    /// Nothing is lost: the keys that were good are so until the next connection.
    fn give_up_reauthentication(
        &mut self,
        context: &mut Context<'_>,
        step: SequenceStep,
        cause: Cause,
    ) -> Action {
        self.authentication.refuse_keys();
        let error = ConnectError { peer: self.options.url.peer(), step: step.step(), cause };
        tracing::warn!("not authenticated again, and the connection goes on: {error}");
        context.reports.push(PathEvent::Reauthenticated(Err(error)));
        self.step = None;
        self.go_idle(context)
    }

    /// Whether the controller does not take a second authentication on a connection, as SPDK's.
    fn refuses_to_repeat(&self, step: SequenceStep, status: Status) -> bool {
        self.purpose == Purpose::Reauthenticate
            && matches!(step, SequenceStep::Authenticate(_, Stage::Send))
            && self.authentication.is_first_message()
            && status.code() == Status::COMMAND_SEQUENCE_ERROR
    }

    /// Nothing runs: what was put off begins.
    fn go_idle(&mut self, context: &mut Context<'_>) -> Action {
        // I/O waits for a scan, and for no authentication.
        let for_io = matches!(self.purpose, Purpose::Reauthenticate | Purpose::Access);
        if for_io && std::mem::take(&mut self.namespaces.again) {
            return self.rescan(context);
        }
        if self.purpose != Purpose::Shutdown && std::mem::take(&mut self.access.again) {
            return self.read_access(context);
        }
        if std::mem::take(&mut self.reauthenticates) {
            return self.authenticate_again(context);
        }
        Action::Nothing
    }

    /// Starts to shut the controller down. These namespaces were written to.
    pub(super) fn shut_down(&mut self, context: &mut Context<'_>, mut written: Vec<u32>) -> Action {
        written.sort_unstable();
        written.dedup();
        (self.purpose, self.flushes) = (Purpose::Shutdown, written);
        let cached = self.facts.controller.volatile_write_cache;
        let first = if cached {
            automaton::after_flush(&self.flushes, &self.facts, context, 0)
        } else {
            automaton::after_queue(&self.facts, context, 0)
        };
        self.start(context, first)
    }

    /// It is time to repeat the step that runs.
    pub(super) fn repeat(&mut self, context: &mut Context<'_>) -> Action {
        match self.step {
            Some(step @ SequenceStep::Authenticate(_, stage)) if stage.is_work() => {
                Action::Fail(step.step(), Cause::TimedOut { what: stage.name(), limit: WORK_LIMIT })
            }
            Some(step) => self.start(context, step),
            None => Action::Nothing,
        }
    }

    /// An I/O queue is connected.
    pub(super) fn on_established(&mut self, context: &mut Context<'_>, number: u16) -> Action {
        self.end_step(context, SequenceStep::EstablishQueue(number))
    }

    /// The queues of all followers are connected.
    pub(super) fn on_followers_connected(&mut self, context: &mut Context<'_>) -> Action {
        self.end_step(context, SequenceStep::Followers)
    }

    /// A connection has ended.
    pub(super) fn on_disconnected(&mut self, number: u16) -> Disconnection {
        match self.step {
            // A controller that shuts down may let go of its I/O queues. The admin queue says how it went.
            Some(SequenceStep::ShutdownSet | SequenceStep::ShutdownStatus) if number != 0 => {
                Disconnection::Expected
            }
            Some(SequenceStep::Disconnect(asked)) if asked == number => Disconnection::Answer,
            Some(SequenceStep::Disconnect(asked)) if (1..asked).contains(&number) => Disconnection::Expected,
            // Who refuses, or is refused, closes the connection.
            Some(SequenceStep::Authenticate(..)) => {
                self.authentication.take_refusal().map_or(Disconnection::Loss, Disconnection::Refused)
            }
            _ => Disconnection::Loss,
        }
    }

    /// An I/O queue was disconnected, without an answer.
    pub(super) fn on_queue_ended(&mut self, context: &mut Context<'_>, number: u16) -> Action {
        self.end_step(context, SequenceStep::Disconnect(number))
    }

    /// The connections end.
    pub(super) fn stop(&mut self) {
        (self.step, self.namespaces.again, self.extra_time) = (None, false, Duration::ZERO);
        self.access = AccessLog::default();
        (self.asked, self.reauthenticates) = (false, false);
        self.authentication.reset();
    }

    /// Takes the memory of a command of the sequence back that was not answered.
    pub(super) fn take_back(&mut self, command: Command) {
        self.scratch.0 = command.memory.or(self.scratch.0.take());
    }

    /// Ends a step that is not a command, if it is the one that runs.
    fn end_step(&mut self, context: &mut Context<'_>, step: SequenceStep) -> Action {
        if self.step != Some(step) {
            return Action::Nothing;
        }
        self.go_on(context, step)
    }

    /// Starts the step after one that has come to its end.
    fn go_on(&mut self, context: &mut Context<'_>, ended: SequenceStep) -> Action {
        self.step = None;
        match self.next(context, ended) {
            Ok(automaton::Next::Step(next)) => self.start(context, next),
            Ok(automaton::Next::Again(at)) => {
                self.step = Some(ended);
                Action::RepeatAt(at)
            }
            Ok(automaton::Next::End) => self.go_idle(context),
            Ok(automaton::Next::Secure(psk)) => Action::Secure(psk),
            Ok(automaton::Next::Leave) => Action::Leave,
            Err(cause) => Action::Fail(ended.step(), cause),
        }
    }

    /// Starts a step.
    fn start(&mut self, context: &mut Context<'_>, step: SequenceStep) -> Action {
        self.step = Some(step);
        match step {
            SequenceStep::EstablishQueue(number) => {
                let (size, in_capsule_bytes_max) = (self.facts.queue_size, self.facts.in_capsule_bytes_max);
                Action::ConnectQueue { number, size, in_capsule_bytes_max }
            }
            SequenceStep::Followers => Action::ConnectFollowers,
            SequenceStep::Authenticate(_, stage) if stage.is_work() => self.authentication.work(),
            _ => Outgoing::send(step, self, context.pool)
                .unwrap_or_else(|cause| Action::Fail(step.step(), cause)),
        }
    }

    /// Takes the answer to the command that runs, and starts the next.
    pub(super) fn on_answer(
        &mut self,
        context: &mut Context<'_>,
        command: Command,
        entry: &CompletionEntry,
    ) -> Action {
        let (sent, received) = (command.entry, command.received as usize);
        self.take_back(command);
        let Some(step) = self.step.take() else { return Action::Nothing };
        let status = entry.status();
        if !status.is_success() && !step.is_optional() && !tolerates(&self.options, step, status) {
            return self.on_refusal(context, step, &sent, entry);
        }
        match self.learn(context, step, entry, received) {
            Ok(()) => {}
            // As if the controller did not have it.
            Err(cause @ Cause::Short { .. }) if step.is_optional() => {
                tracing::warn!(peer = self.options.url.peer(), %cause, "it is done without");
            }
            Err(cause) => return Action::Fail(step.step(), cause),
        }
        self.tries = Tries::default();
        self.go_on(context, step)
    }

    /// The controller refuses a step: it gets another try, or that is the end of the sequence.
    fn on_refusal(
        &mut self,
        context: &mut Context<'_>,
        step: SequenceStep,
        sent: &SubmissionEntry,
        answer: &CompletionEntry,
    ) -> Action {
        let status = answer.status();
        if self.refuses_to_repeat(step, status) {
            let cause = Cause::Authentication(AuthenticationFailure::OnlyOnce);
            return self.give_up_reauthentication(context, step, cause);
        }
        let (verdict, policy) = (judge(status), &self.options.reconnect);
        // Whoever attaches does not wait for a path: an attempt has its own bound and its own next one.
        if step.may_repeat()
            && verdict == Verdict::Retry
            && let Some(delay) = self.tries.next(verdict, status, &self.facts.retry_delays, policy)
        {
            tracing::debug!(%status, ?delay, command = step.command(), "tried again");
            self.step = Some(step);
            return Action::RepeatAt(context.now + delay);
        }
        let cause = match self.scratch.refused_field(step, sent, answer) {
            Some(field) => Cause::Field { field, status },
            // Whoever was told that it is refused may answer as it likes.
            None => self
                .authentication
                .take_refusal()
                .unwrap_or(Cause::Status { command: step.command(), status }),
        };
        if self.purpose == Purpose::Rescan {
            let peer = self.options.url.peer();
            tracing::warn!(peer, %cause, "the namespaces could not be identified again");
            // Those that are known are still in use.
            context.reports.push(PathEvent::NamespacesKept);
            return self.go_idle(context);
        }
        Action::Fail(step.step(), cause)
    }

    /// Remembers what an answer says, and so many bytes of data.
    fn learn(
        &mut self,
        context: &mut Context<'_>,
        step: SequenceStep,
        entry: &CompletionEntry,
        received: usize,
    ) -> Result<(), Cause> {
        let queues_wanted = queues_wanted(&self.options, self.share);
        let (facts, namespaces, access) = (&mut self.facts, &mut self.namespaces, &mut self.access);
        let authentication = &mut self.authentication;
        let short = |short: Short| short.cause(step.command());
        let mut learn = |room: &[u8]| {
            let data = AnswerData::new(room, received);
            if step.is_message() {
                data.require(AuthHeader::SIZE).map_err(short)?;
                authentication.on_message(data.received());
            }
            if let SequenceStep::AccessLog(from) = step
                && entry.status().is_success()
            {
                access.learn(from, data);
            }
            facts.learn(step, entry, data, queues_wanted).map_err(short)?;
            namespaces.learn(step, entry, data, facts)
        };
        match &self.scratch.0 {
            Some(buffer) => buffer.with_bytes(0..SCRATCH_BYTES, learn)?,
            None => learn(&[0; SCRATCH_BYTES])?,
        }
        match step {
            SequenceStep::Connect => {
                self.asked = self.authentication.on_connect(0, entry.connect_authreq(), context.secured)?;
            }
            SequenceStep::ConnectQueue(number) => {
                self.asked =
                    self.authentication.on_connect(number, entry.connect_authreq(), context.secured)?;
            }
            SequenceStep::Enable => {
                self.facts.ready_until = context.now + self.facts.capabilities.timeout;
                self.extra_time += self.facts.capabilities.timeout;
            }
            SequenceStep::Identify => {
                let controller = &self.facts.controller;
                if self.options.url.transport == Transport::Rdma && !controller.keyed_sgl {
                    let text = "the controller has no keyed SGLs, which RDMA needs";
                    return Err(Cause::Unsupported(text.to_owned()));
                }
                // A discovery controller that a host may stay with has it, even where KAS does not say so.
                let supported = controller.keep_alive || self.options.persistent_discovery;
                context.keep_alive.set_supported(supported, controller.traffic_based_keep_alive);
            }
            _ => {}
        }
        Ok(())
    }
}

impl Scratch {
    /// The memory; it is taken from the pool once.
    fn take(&mut self, pool: &Pool) -> Result<SharedBuffer, Cause> {
        let scratch = self.0.take().filter(SharedBuffer::is_unique);
        scratch.or_else(|| pool.take(SCRATCH_BYTES).map(Buffer::share)).ok_or_else(|| {
            let text = "no buffer of 4 KiB is left in the pool for the commands of attaching";
            Cause::Local(text.to_owned())
        })
    }

    /// Which field of a Connect the controller refuses. The memory still has its data.
    fn refused_field(
        &self,
        step: SequenceStep,
        sent: &SubmissionEntry,
        answer: &CompletionEntry,
    ) -> Option<RefusedField> {
        if !matches!(step, SequenceStep::Connect | SequenceStep::ConnectQueue(_)) {
            return None;
        }
        let data = self.0.as_ref()?;
        data.with_bytes(0..SCRATCH_BYTES, |data| match answer.status().code() {
            Status::CONNECT_INVALID_PARAMETERS => RefusedField::new(answer.connect_parameter(), sent, data),
            Status::CONNECT_INVALID_HOST => RefusedField::host(data),
            _ => None,
        })
    }
}

/// A namespace may have been removed since it was listed. That the one of the address is none of the controller's is
/// said in a sentence of its own, but for a flush of what was written there.
fn tolerates(options: &ConnectOptions, step: SequenceStep, status: Status) -> bool {
    let removed = match step {
        SequenceStep::Namespace(_) => true,
        SequenceStep::Flush(_) => options.url.namespace.is_none(),
        _ => false,
    };
    removed && status.code() == Status::INVALID_NAMESPACE
}

/// I/O queues to ask for: one for each engine at least.
fn queues_wanted(options: &ConnectOptions, share: QueueShare) -> u16 {
    options.queues_wanted().max(share.engines)
}
