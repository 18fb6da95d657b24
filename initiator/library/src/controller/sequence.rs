//! The commands of attaching, refreshing and shutting down, one at a time.

use std::time::Duration;

use ringfab_reactor::Time;
use ringfab_spec::{CompletionEntry, Status, SubmissionEntry};

use super::facts::NAMESPACES_MAX;
use super::task::Task;
use super::{Controller, Phase};
use crate::command::{Command, Direction, Owner};
use crate::core::Core;
use crate::error::{Cause, Step};
use crate::namespace;
use crate::refusal::RefusedField;
use crate::retry::{Pace, Tries, Verdict, judge};
use crate::url::Transport;
use crate::wire::{self, answers};

/// Memory for the data of one of the commands.
pub(super) const SCRATCH_BYTES: usize = 4096;
/// The last namespace identifier; a list after it may not be asked for.
const NSID_MAX: u32 = wire::NSID_ALL - 1;
/// Between two looks at CSTS.
const POLL: Duration = Duration::from_millis(10);
/// What each namespace adds to the time that attaching may take.
const NAMESPACE_TIME: Duration = Duration::from_millis(250);

impl Controller {
    /// Starts a command of the sequence.
    pub(super) fn run(&mut self, core: &mut Core, task: Task) {
        self.task = Some(task);
        self.timers.phase = Time::MAX;
        let plain = |entry| Command::new(entry, Owner::Sequence);
        match task {
            Task::QueueEstablish(qid) => return self.establish(core, qid),
            Task::Connect => return self.send_connect(core, 0),
            Task::QueueConnect(qid) => return self.send_connect(core, qid),
            Task::Flush(nsid) => return self.send_sequence(core, 1, plain(wire::flush(nsid))),
            Task::Disconnect(qid) => return self.send_sequence(core, qid, plain(wire::disconnect())),
            _ => {}
        }
        let command = match task {
            Task::Capabilities => plain(wire::get_capabilities()),
            Task::Version => plain(wire::get_version()),
            Task::Enable => plain(wire::set_enabled(&self.facts.capabilities)),
            Task::ReadyStatus | Task::ShutdownStatus => plain(wire::get_status()),
            Task::ShutdownSet => plain(wire::set_shutdown(&self.facts.capabilities)),
            Task::HostBehavior => return self.send_host_behavior(core),
            Task::QueueCount => plain(wire::set_queue_count(self.options.queues_wanted())),
            Task::EventConfig => plain(wire::set_event_config(&self.facts.controller)),
            Task::Identify => return self.send_identify(core, wire::identify_controller()),
            Task::Limits => return self.send_identify(core, wire::identify_nvm_limits()),
            Task::List(after) => return self.send_identify(core, wire::identify_active(after)),
            Task::Listed(nsid) => return self.send_identify(core, wire::identify_active(nsid - 1)),
            Task::Namespace(index) => {
                return self.send_identify(core, wire::identify_namespace(self.facts.list[index]));
            }
            Task::Descriptors(index) => {
                return self.send_identify(core, wire::identify_descriptors(self.facts.list[index]));
            }
            Task::ChangedLog => {
                return self.send_identify(core, wire::changed_namespaces(SCRATCH_BYTES as u32));
            }
            _ => return,
        };
        self.send_sequence(core, 0, command);
    }

    /// Looks at CSTS again.
    pub(super) fn poll_again(&mut self, core: &mut Core) {
        if let Some(task) = self.task {
            self.run(core, task);
        }
    }

    /// Takes the answer to the command that runs, and starts the next.
    pub(super) fn sequence_answered(&mut self, core: &mut Core, command: Command, entry: &CompletionEntry) {
        let Some(task) = self.task.take() else { return };
        if let Some(lease) = command.memory {
            if command.direction == Direction::ToHost && !lease.is_unique() {
                self.scratch = Some(lease);
                return self.lose(
                    core,
                    task.step(),
                    Cause::Protocol("a response before its data had arrived"),
                );
            }
            self.scratch = Some(lease);
        }
        let status = entry.status();
        if !status.is_success() && !task.is_optional() && !self.tolerates(task, status) {
            return self.sequence_failed(core, task, &command.entry, entry);
        }
        if let Err(cause) = self.learn(core, task, entry) {
            return self.lose(core, task.step(), cause);
        }
        self.task_tries = Tries::default();
        match self.next_task(core, task) {
            Ok(Some(next)) => self.run(core, next),
            Ok(None) => {}
            Err(cause) => self.lose(core, task.step(), cause),
        }
    }

    /// A namespace may have been removed since it was listed. That the one of the address is none of the controller's is said
    /// in a sentence of its own, but for a flush of what was written there.
    fn tolerates(&self, task: Task, status: Status) -> bool {
        let removed = match task {
            Task::Namespace(_) => true,
            Task::Flush(_) => self.options.url.namespace.is_none(),
            _ => false,
        };
        removed && status.code() == Status::INVALID_NAMESPACE
    }

    fn sequence_failed(
        &mut self,
        core: &mut Core,
        task: Task,
        sent: &SubmissionEntry,
        answer: &CompletionEntry,
    ) {
        let status = answer.status();
        let (verdict, policy) = (judge(status), self.options.reconnect);
        // Whoever attaches does not wait for a path: an attempt has its own bound and its own next one.
        if task.may_repeat()
            && verdict == Verdict::Retry
            && let Some(delay) = self.task_tries.next(verdict, status, &self.pace, &policy)
        {
            tracing::debug!(peer = self.peer, %status, ?delay, command = task.command(), "tried again");
            return self.later(core.now() + delay, task);
        }
        let cause = match self.refused_field(task, sent, answer) {
            Some(field) => Cause::Field { field, status },
            None => Cause::Status { command: task.command(), status },
        };
        if self.phase == Phase::Live || self.phase == Phase::Draining {
            tracing::warn!(peer = self.peer, %cause, "the namespaces could not be looked at again");
            return self.settle(core);
        }
        self.lose(core, task.step(), cause);
    }

    /// Which field of a Connect the controller refuses. The scratch memory still has its data.
    fn refused_field(
        &self,
        task: Task,
        sent: &SubmissionEntry,
        answer: &CompletionEntry,
    ) -> Option<RefusedField> {
        let refused = answer.status().code() == Status::CONNECT_INVALID_PARAMETERS;
        if !refused || !matches!(task, Task::Connect | Task::QueueConnect(_)) {
            return None;
        }
        let data = self.scratch.as_ref()?;
        data.with_bytes(0..SCRATCH_BYTES, |data| RefusedField::new(answer.connect_parameter(), sent, data))
    }

    /// Remembers what an answer says.
    #[expect(clippy::too_many_lines, reason = "an arm for each step")]
    fn learn(&mut self, core: &Core, task: Task, entry: &CompletionEntry) -> Result<(), Cause> {
        let success = entry.status().is_success();
        let scratch = self.scratch.as_ref();
        let with = |look: &mut dyn FnMut(&[u8])| {
            if let Some(lease) = scratch {
                lease.with_bytes(0..SCRATCH_BYTES, |bytes| look(bytes));
            }
        };
        let facts = &mut self.facts;
        match task {
            Task::Connect => {
                facts.cntlid = entry.connect_cntlid();
                if entry.connect_authreq() != 0 {
                    let text = "the target asks for authentication, which is not supported";
                    return Err(Cause::Unsupported(text.to_owned()));
                }
            }
            Task::Capabilities => facts.capabilities = answers::parse_capabilities(entry.result()),
            Task::Version => facts.version = answers::parse_version(entry.result()),
            Task::Enable => {
                facts.ready_until = core.now() + facts.capabilities.timeout;
                self.timers.attach += facts.capabilities.timeout;
            }
            Task::ReadyStatus | Task::ShutdownStatus => {
                facts.last_status = answers::parse_status(entry.result());
            }
            Task::Identify => {
                with(&mut |bytes| facts.controller = answers::parse_controller(bytes));
                self.check_controller()?;
                // Until it knows that we honour them, its delays are none.
                self.pace = Pace { crdt: Default::default(), ..self.facts.controller.pace };
            }
            Task::Limits => {
                facts.limits = answers::NvmLimits::default();
                if success {
                    with(&mut |bytes| facts.limits = answers::parse_nvm_limits(bytes));
                }
            }
            Task::HostBehavior if success => self.pace = facts.controller.pace,
            Task::QueueCount => {
                let allowed = answers::parse_queue_count(entry);
                facts.queues = allowed.min(self.options.queues_wanted());
            }
            Task::ChangedLog => {
                facts.list.clear();
                let list = &mut facts.list;
                if success {
                    with(&mut |bytes| answers::parse_active(bytes, list));
                }
            }
            Task::List(_) | Task::Listed(_) => {
                let list = &mut facts.list;
                with(&mut |bytes| answers::parse_active(bytes, list));
            }
            Task::Namespace(index) if success => {
                let nsid = facts.list[index];
                let mut found = Ok(None);
                with(&mut |bytes| found = facts.namespace(nsid, bytes));
                facts.namespaces.extend(found?);
            }
            Task::Descriptors(_) if success => {
                let namespace = facts.namespaces.last_mut();
                let mut uuid = None;
                with(&mut |bytes| uuid = answers::parse_uuid(bytes));
                if let Some(namespace) = namespace {
                    namespace.identity.uuid = uuid;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// What Identify Controller must say so that we can work with it.
    fn check_controller(&mut self) -> Result<(), Cause> {
        let facts = &self.facts.controller;
        let rdma = self.options.url.transport == Transport::Rdma;
        if rdma && !facts.keyed_sgl {
            let text = "the controller has no keyed SGLs, which RDMA needs".to_owned();
            return Err(Cause::Unsupported(text));
        }
        if !facts.keep_alive {
            self.keep_alive = Default::default();
        }
        self.keep_alive.traffic_based = facts.traffic_based_keep_alive;
        Ok(())
    }

    /// What comes after a command; `None` when something else brings it, or the sequence is at its end.
    fn next_task(&mut self, core: &mut Core, task: Task) -> Result<Option<Task>, Cause> {
        let discovery = self.options.url.is_discovery() || self.facts.controller.discovery;
        let next = match task {
            Task::Connect => Task::Capabilities,
            Task::Capabilities => Task::Version,
            Task::Version => Task::Enable,
            Task::Enable => Task::ReadyStatus,
            Task::ReadyStatus => return self.after_status(core),
            Task::Identify if discovery => {
                self.info = Some(self.describe());
                self.ready(core);
                return Ok(None);
            }
            Task::Identify => Task::Limits,
            Task::Limits if !self.facts.controller.pace.crdt[0].is_zero() => Task::HostBehavior,
            Task::Limits | Task::HostBehavior => Task::QueueCount,
            Task::QueueCount => Task::EventConfig,
            Task::EventConfig => Task::QueueEstablish(1),
            Task::QueueEstablish(qid) => Task::QueueConnect(qid),
            Task::QueueConnect(qid) if qid < self.facts.queues => Task::QueueEstablish(qid + 1),
            Task::ChangedLog => {
                self.settle_if_only_new(core);
                return Ok(self.first_namespace());
            }
            Task::QueueConnect(_) => return Ok(self.first_namespace()),
            Task::List(after) => return self.after_list(core, after),
            Task::Listed(_) => return self.namespaces_known(core).map(|()| None),
            Task::Namespace(index) => {
                let active =
                    self.facts.namespaces.last().is_some_and(|last| last.nsid == self.facts.list[index]);
                // Identification descriptors came with NVMe 1.3.
                if active && self.facts.version >= (1, 3, 0) {
                    Task::Descriptors(index)
                } else {
                    return self.after_namespace(core, index);
                }
            }
            Task::Descriptors(index) => return self.after_namespace(core, index),
            Task::Flush(nsid) => self.after_flush(nsid),
            Task::Disconnect(qid) => self.after_queue(qid),
            Task::ShutdownSet => Task::ShutdownStatus,
            Task::ShutdownStatus => return self.after_shutdown(core),
        };
        Ok(Some(next))
    }

    fn first_namespace(&mut self) -> Option<Task> {
        self.facts.list.clear();
        self.facts.namespaces.clear();
        let Some(nsid) = self.options.url.namespace else { return Some(Task::List(0)) };
        self.facts.list.push(nsid);
        Some(Task::Namespace(0))
    }

    fn after_list(&mut self, core: &mut Core, after: u32) -> Result<Option<Task>, Cause> {
        let list = &self.facts.list;
        if list.len() > NAMESPACES_MAX {
            return Err(Cause::Unsupported(format!(
                "more than {NAMESPACES_MAX} namespaces; name one with ns="
            )));
        }
        // The list that came may have been empty, since the one before it was just full.
        let more = |last: &&u32| {
            **last > after && **last < NSID_MAX && list.len().is_multiple_of(wire::ACTIVE_LIST_ENTRIES)
        };
        if let Some(last) = list.last().filter(more) {
            return Ok(Some(Task::List(*last)));
        }
        if self.facts.list.is_empty() {
            self.namespaces_known(core).map(|()| None)
        } else {
            // They ascend (Base 2.0, section 5.17.2.2), unless somebody is wrong; searching relies on it.
            self.facts.list.sort_unstable();
            self.facts.list.dedup();
            if self.timers.attach != Time::MAX {
                self.timers.attach += NAMESPACE_TIME * self.facts.list.len() as u32;
            }
            Ok(Some(Task::Namespace(0)))
        }
    }

    fn after_namespace(&mut self, core: &mut Core, index: usize) -> Result<Option<Task>, Cause> {
        if index + 1 < self.facts.list.len() {
            return Ok(Some(Task::Namespace(index + 1)));
        }
        // Without a size it is not active, or has a disk that is not ready: only the list tells these apart.
        if let (Some(nsid), true) = (self.options.url.namespace, self.facts.namespaces.is_empty()) {
            self.facts.list.clear();
            return Ok(Some(Task::Listed(nsid)));
        }
        self.namespaces_known(core).map(|()| None)
    }

    /// All namespaces were looked at: while attaching that is the end of the sequence.
    fn namespaces_known(&mut self, core: &mut Core) -> Result<(), Cause> {
        if self.phase != Phase::Setup {
            self.take_namespaces(core);
            if std::mem::take(&mut self.refresh_again) {
                self.run(core, Task::ChangedLog);
            } else {
                self.settle(core);
            }
            return Ok(());
        }
        if self.info.is_some() {
            let outstanding = |nsid| {
                let mut commands = self.waiting.iter().chain(&self.held);
                commands.any(|command| command.entry.nsid.get() == nsid)
            };
            let needed = |nsid| self.options.url.namespace == Some(nsid) || outstanding(nsid);
            self.facts.check_same(&self.namespaces, needed)?;
        } else if let (Some(nsid), true) = (self.options.url.namespace, self.facts.namespaces.is_empty()) {
            if self.facts.list.contains(&nsid) {
                return Err(Cause::NotReady { nsid });
            }
            return Err(Cause::Unsupported(format!("the subsystem has no active namespace {nsid}")));
        }
        self.namespaces = std::mem::take(&mut self.facts.namespaces);
        self.info = Some(self.describe());
        self.ready(core);
        Ok(())
    }

    /// CSTS while it is being enabled.
    fn after_status(&mut self, core: &mut Core) -> Result<Option<Task>, Cause> {
        let now = core.now();
        let status = self.facts.last_status;
        if status.fatal {
            return Err(Cause::ControllerFatal);
        }
        if status.ready {
            // The controller's timer runs from its enabling, and before that it takes no Keep Alive.
            self.start_keep_alive(core);
            return Ok(Some(Task::Identify));
        }
        if now >= self.facts.ready_until {
            let limit = self.facts.capabilities.timeout;
            return Err(Cause::TimedOut { what: "enabling the controller (CSTS.RDY)", limit });
        }
        self.poll_later(now, Task::ReadyStatus);
        Ok(None)
    }

    /// An orderly shutdown first flushes what was written to and is still there, one after the other.
    pub(super) fn after_flush(&self, nsid: u32) -> Task {
        let is_there = |nsid: &u32| namespace::find(&self.namespaces, *nsid).is_some();
        self.written.after(nsid).find(is_there).map_or_else(|| self.after_queue(0), Task::Flush)
    }

    /// It ends the I/O queues one by one, where the controller can, and then the controller.
    pub(super) fn after_queue(&self, qid: u16) -> Task {
        let next = self.queues.iter().find(|queue| queue.is_alive() && queue.qid() > qid);
        let next = next.filter(|_| self.facts.controller.disconnect);
        next.map_or(Task::ShutdownSet, |queue| Task::Disconnect(queue.qid()))
    }

    /// CSTS while it shuts down. One that has failed will not complete that.
    fn after_shutdown(&mut self, core: &mut Core) -> Result<Option<Task>, Cause> {
        let status = self.facts.last_status;
        match status {
            _ if status.shutdown_complete => self.shutdown_complete(core),
            _ if status.fatal => return Err(Cause::ControllerFatal),
            _ => self.poll_later(core.now(), Task::ShutdownStatus),
        }
        Ok(None)
    }

    fn poll_later(&mut self, now: Time, task: Task) {
        self.later(now + POLL, task);
    }

    fn later(&mut self, at: Time, task: Task) {
        self.task = Some(task);
        self.timers.phase = at;
    }

    /// Lets the RNIC connect an I/O queue, with as many entries as both ends can have.
    fn establish(&mut self, core: &mut Core, qid: u16) {
        let facts = &mut self.facts;
        let supported = facts.capabilities.queue_entries_max;
        let commands = facts.controller.maxcmd.checked_sub(1).map_or(u32::MAX, |less| u32::from(less) + 1);
        let wanted = u32::from(self.options.depth_wanted()) + 1;
        facts.queue_size = wanted.min(supported).min(commands).clamp(2, 4096) as u16;
        let size = facts.queue_size;
        match self.connect_queue(core, qid, size) {
            Ok(mut queue) => {
                queue.set_in_capsule(self.facts.in_capsule_bytes_max());
                self.queues.push(queue);
            }
            Err(error) => self.lose(core, Step::IoQueues, Cause::Local(error.to_string())),
        }
    }
}
