//! The commands of attaching, refreshing and shutting down, one at a time.

use std::time::Duration;

use ringfab_memory::SharedBuffer;
use ringfab_reactor::Time;
use ringfab_spec::{CompletionEntry, Status, SubmissionEntry};

use super::facts::{Facts, NAMESPACES_MAX};
use super::steps::SequenceStep;
use super::{Path, PathEvent, Phase, Role};
use crate::command::{Command, Direction, Owner};
use crate::core::Core;
use crate::error::{Cause, Step};
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

/// How far the sequence is, and what it has found.
#[derive(Debug, Default)]
pub(super) struct Sequence {
    /// The step that runs.
    pub(super) step: Option<SequenceStep>,
    /// What was tried of it.
    pub(super) tries: Tries,
    pub(super) facts: Facts,
    /// Memory of the sequence's commands, so that they never wait for the pool.
    pub(super) scratch: Option<SharedBuffer>,
    /// Namespaces that a shutdown flushes, ascending.
    pub(super) flushes: Vec<u32>,
}

impl Path {
    /// Starts a command of the sequence.
    pub(super) fn run(&mut self, core: &mut Core, step: SequenceStep) {
        self.sequence.step = Some(step);
        self.timers.phase = Time::MAX;
        let plain = |entry| Command::new(entry, Owner::Sequence);
        match step {
            SequenceStep::QueueEstablish(qid) => return self.establish(core, qid),
            SequenceStep::Followers => return self.open_followers(core),
            SequenceStep::Connect => return self.send_connect(core, 0),
            SequenceStep::QueueConnect(qid) => return self.send_connect(core, qid),
            SequenceStep::Flush(nsid) => return self.send_sequence(core, 1, plain(wire::flush(nsid))),
            SequenceStep::Disconnect(qid) => return self.send_sequence(core, qid, plain(wire::disconnect())),
            _ => {}
        }
        let command = match step {
            SequenceStep::Capabilities => plain(wire::get_capabilities()),
            SequenceStep::Version => plain(wire::get_version()),
            SequenceStep::Enable => plain(wire::set_enabled(&self.sequence.facts.capabilities)),
            SequenceStep::ReadyStatus | SequenceStep::ShutdownStatus => plain(wire::get_status()),
            SequenceStep::ShutdownSet => plain(wire::set_shutdown(&self.sequence.facts.capabilities)),
            SequenceStep::HostBehavior => return self.send_host_behavior(core),
            SequenceStep::QueueCount => plain(wire::set_queue_count(self.queues_wanted())),
            SequenceStep::EventConfig => plain(wire::set_event_config(&self.sequence.facts.controller)),
            SequenceStep::Identify => return self.send_identify(core, wire::identify_controller()),
            SequenceStep::Limits => return self.send_identify(core, wire::identify_nvm_limits()),
            SequenceStep::List(after) => return self.send_identify(core, wire::identify_active(after)),
            SequenceStep::Listed(nsid) => return self.send_identify(core, wire::identify_active(nsid - 1)),
            SequenceStep::Namespace(index) => {
                return self.send_identify(core, wire::identify_namespace(self.sequence.facts.list[index]));
            }
            SequenceStep::Descriptors(index) => {
                return self.send_identify(core, wire::identify_descriptors(self.sequence.facts.list[index]));
            }
            SequenceStep::ChangedLog => {
                return self.send_identify(core, wire::changed_namespaces(SCRATCH_BYTES as u32));
            }
            _ => return,
        };
        self.send_sequence(core, 0, command);
    }

    /// Looks at CSTS again.
    pub(super) fn poll_again(&mut self, core: &mut Core) {
        if let Some(step) = self.sequence.step {
            self.run(core, step);
        }
    }

    /// Takes the answer to the command that runs, and starts the next.
    pub(super) fn sequence_answered(&mut self, core: &mut Core, command: Command, entry: &CompletionEntry) {
        let Some(step) = self.sequence.step.take() else { return };
        if let Some(shared_buffer) = command.memory {
            if command.direction == Direction::ToHost && !shared_buffer.is_unique() {
                self.sequence.scratch = Some(shared_buffer);
                return self.lose(
                    core,
                    step.step(),
                    Cause::Protocol("a response before its data had arrived"),
                );
            }
            self.sequence.scratch = Some(shared_buffer);
        }
        let status = entry.status();
        if !status.is_success() && !step.is_optional() && !self.tolerates(step, status) {
            return self.sequence_failed(core, step, &command.entry, entry);
        }
        if let Err(cause) = self.learn(core, step, entry) {
            return self.lose(core, step.step(), cause);
        }
        self.sequence.tries = Tries::default();
        match self.next_step(core, step) {
            Ok(Some(next)) => self.run(core, next),
            Ok(None) => {}
            Err(cause) => self.lose(core, step.step(), cause),
        }
    }

    /// A namespace may have been removed since it was listed. That the one of the address is none of the controller's
    /// is said in a sentence of its own, but for a flush of what was written there.
    fn tolerates(&self, step: SequenceStep, status: Status) -> bool {
        let removed = match step {
            SequenceStep::Namespace(_) => true,
            SequenceStep::Flush(_) => self.options.url.namespace.is_none(),
            _ => false,
        };
        removed && status.code() == Status::INVALID_NAMESPACE
    }

    fn sequence_failed(
        &mut self,
        core: &mut Core,
        step: SequenceStep,
        sent: &SubmissionEntry,
        answer: &CompletionEntry,
    ) {
        let status = answer.status();
        let (verdict, policy) = (judge(status), self.options.reconnect);
        // Whoever attaches does not wait for a path: an attempt has its own bound and its own next one.
        if step.may_repeat()
            && verdict == Verdict::Retry
            && let Some(delay) = self.sequence.tries.next(verdict, status, &self.pace, &policy)
        {
            tracing::debug!(peer = self.peer, %status, ?delay, command = step.command(), "tried again");
            return self.later(core.now() + delay, step);
        }
        let cause = match self.refused_field(step, sent, answer) {
            Some(field) => Cause::Field { field, status },
            None => Cause::Status { command: step.command(), status },
        };
        if self.phase == Phase::Live || self.phase == Phase::Draining {
            tracing::warn!(peer = self.peer, %cause, "the namespaces could not be identified again");
            // Those that are known are still in use.
            return self.events.push_back(PathEvent::NamespacesKept);
        }
        self.lose(core, step.step(), cause);
    }

    /// Which field of a Connect the controller refuses. The scratch memory still has its data.
    fn refused_field(
        &self,
        step: SequenceStep,
        sent: &SubmissionEntry,
        answer: &CompletionEntry,
    ) -> Option<RefusedField> {
        let refused = answer.status().code() == Status::CONNECT_INVALID_PARAMETERS;
        if !refused || !matches!(step, SequenceStep::Connect | SequenceStep::QueueConnect(_)) {
            return None;
        }
        let data = self.sequence.scratch.as_ref()?;
        data.with_bytes(0..SCRATCH_BYTES, |data| RefusedField::new(answer.connect_parameter(), sent, data))
    }

    /// Remembers what an answer says.
    #[expect(clippy::too_many_lines, reason = "an arm for each step")]
    fn learn(&mut self, core: &Core, step: SequenceStep, entry: &CompletionEntry) -> Result<(), Cause> {
        let success = entry.status().is_success();
        let scratch = self.sequence.scratch.as_ref();
        let with = |look: &mut dyn FnMut(&[u8])| {
            if let Some(shared_buffer) = scratch {
                shared_buffer.with_bytes(0..SCRATCH_BYTES, |bytes| look(bytes));
            }
        };
        let wanted = self.queues_wanted();
        let facts = &mut self.sequence.facts;
        match step {
            SequenceStep::Connect => {
                facts.cntlid = entry.connect_cntlid();
                if entry.connect_authreq() != 0 {
                    let text = "the target asks for authentication, which is not supported";
                    return Err(Cause::Unsupported(text.to_owned()));
                }
            }
            SequenceStep::Capabilities => facts.capabilities = answers::parse_capabilities(entry.result()),
            SequenceStep::Version => facts.version = answers::parse_version(entry.result()),
            SequenceStep::Enable => {
                facts.ready_until = core.now() + facts.capabilities.timeout;
                self.timers.attach += facts.capabilities.timeout;
            }
            SequenceStep::ReadyStatus | SequenceStep::ShutdownStatus => {
                facts.last_status = answers::parse_status(entry.result());
            }
            SequenceStep::Identify => {
                with(&mut |bytes| facts.controller = answers::parse_controller(bytes));
                self.check_controller()?;
                // Until it knows that we honour them, its delays are none.
                self.pace = Pace { crdt: Default::default(), ..self.sequence.facts.controller.pace };
            }
            SequenceStep::Limits => {
                facts.limits = answers::NvmLimits::default();
                if success {
                    with(&mut |bytes| facts.limits = answers::parse_nvm_limits(bytes));
                }
            }
            SequenceStep::HostBehavior if success => self.pace = facts.controller.pace,
            SequenceStep::QueueCount => {
                let allowed = answers::parse_queue_count(entry);
                facts.queues = allowed.min(wanted);
            }
            SequenceStep::ChangedLog => {
                facts.list.clear();
                let list = &mut facts.list;
                if success {
                    with(&mut |bytes| answers::parse_active(bytes, list));
                }
            }
            SequenceStep::List(_) | SequenceStep::Listed(_) => {
                let list = &mut facts.list;
                with(&mut |bytes| answers::parse_active(bytes, list));
            }
            SequenceStep::Namespace(index) if success => {
                let nsid = facts.list[index];
                let mut found = Ok(None);
                with(&mut |bytes| found = facts.namespace(nsid, bytes));
                facts.namespaces.extend(found?);
            }
            SequenceStep::Descriptors(_) if success => {
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
        let facts = &self.sequence.facts.controller;
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
    #[expect(clippy::too_many_lines, reason = "an arm for each step")]
    fn next_step(&mut self, core: &mut Core, step: SequenceStep) -> Result<Option<SequenceStep>, Cause> {
        let discovery = self.options.url.is_discovery() || self.sequence.facts.controller.discovery;
        let next = match step {
            SequenceStep::Connect => SequenceStep::Capabilities,
            SequenceStep::Capabilities => SequenceStep::Version,
            SequenceStep::Version => SequenceStep::Enable,
            SequenceStep::Enable => SequenceStep::ReadyStatus,
            SequenceStep::ReadyStatus => return self.after_status(core),
            SequenceStep::Identify if discovery => {
                self.identified();
                return Ok(None);
            }
            SequenceStep::Identify => SequenceStep::Limits,
            SequenceStep::Limits if !self.sequence.facts.controller.pace.crdt[0].is_zero() => {
                SequenceStep::HostBehavior
            }
            SequenceStep::Limits | SequenceStep::HostBehavior => SequenceStep::QueueCount,
            SequenceStep::QueueCount => SequenceStep::EventConfig,
            SequenceStep::EventConfig => {
                self.decide_queues()?;
                SequenceStep::QueueEstablish(1)
            }
            SequenceStep::QueueEstablish(qid) => SequenceStep::QueueConnect(qid),
            SequenceStep::QueueConnect(number) if number < self.share.count(self.sequence.facts.queues) => {
                SequenceStep::QueueEstablish(number + 1)
            }
            SequenceStep::ChangedLog => {
                if !self.refresh_again {
                    self.events.push_back(PathEvent::Changes(self.sequence.facts.list.clone()));
                }
                return Ok(self.first_namespace());
            }
            SequenceStep::QueueConnect(_) => match self.role {
                Role::Leader(_) => SequenceStep::Followers,
                Role::Follower(_) => {
                    self.events.push_back(PathEvent::Opened);
                    return Ok(None);
                }
            },
            SequenceStep::Followers => return Ok(self.first_namespace()),
            SequenceStep::List(after) => return self.after_list(after),
            SequenceStep::Listed(_) => return Ok(self.namespaces_known()),
            SequenceStep::Namespace(index) => {
                let active = self
                    .sequence
                    .facts
                    .namespaces
                    .last()
                    .is_some_and(|last| last.nsid == self.sequence.facts.list[index]);
                // Identification descriptors came with NVMe 1.3.
                if active && self.sequence.facts.version >= (1, 3, 0) {
                    SequenceStep::Descriptors(index)
                } else {
                    return self.after_namespace(index);
                }
            }
            SequenceStep::Descriptors(index) => return self.after_namespace(index),
            SequenceStep::Flush(nsid) => self.after_flush(nsid),
            SequenceStep::Disconnect(qid) => self.after_queue(qid),
            SequenceStep::ShutdownSet => SequenceStep::ShutdownStatus,
            SequenceStep::ShutdownStatus => return self.after_shutdown(core),
        };
        Ok(Some(next))
    }

    /// The first step of looking at the namespaces.
    pub(super) fn first_namespace(&mut self) -> Option<SequenceStep> {
        self.sequence.facts.list.clear();
        self.sequence.facts.namespaces.clear();
        let Some(nsid) = self.options.url.namespace else { return Some(SequenceStep::List(0)) };
        self.sequence.facts.list.push(nsid);
        Some(SequenceStep::Namespace(0))
    }

    fn after_list(&mut self, after: u32) -> Result<Option<SequenceStep>, Cause> {
        let list = &self.sequence.facts.list;
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
            return Ok(Some(SequenceStep::List(*last)));
        }
        if self.sequence.facts.list.is_empty() {
            Ok(self.namespaces_known())
        } else {
            // They ascend (Base 2.0, section 5.17.2.2), unless somebody is wrong; searching relies on it.
            self.sequence.facts.list.sort_unstable();
            self.sequence.facts.list.dedup();
            if self.timers.attach != Time::MAX {
                self.timers.attach += NAMESPACE_TIME * self.sequence.facts.list.len() as u32;
            }
            Ok(Some(SequenceStep::Namespace(0)))
        }
    }

    fn after_namespace(&mut self, index: usize) -> Result<Option<SequenceStep>, Cause> {
        if index + 1 < self.sequence.facts.list.len() {
            return Ok(Some(SequenceStep::Namespace(index + 1)));
        }
        // Without a size it is not active, or has a disk that is not ready: only the list tells these apart.
        if let (Some(nsid), true) = (self.options.url.namespace, self.sequence.facts.namespaces.is_empty()) {
            self.sequence.facts.list.clear();
            return Ok(Some(SequenceStep::Listed(nsid)));
        }
        Ok(self.namespaces_known())
    }

    /// All namespaces were looked at: while attaching that is the end of the sequence.
    fn namespaces_known(&mut self) -> Option<SequenceStep> {
        if self.phase == Phase::Setup {
            self.identified();
            return None;
        }
        let again = std::mem::take(&mut self.refresh_again);
        let found = std::mem::take(&mut self.sequence.facts.namespaces);
        self.events.push_back(PathEvent::NamespacesFound { found, final_look: !again });
        again.then_some(SequenceStep::ChangedLog)
    }

    /// The volumes are to say whether this is the right subsystem.
    fn identified(&mut self) {
        let facts = &mut self.sequence.facts;
        let found = std::mem::take(&mut facts.namespaces);
        self.events.push_back(PathEvent::Identified { found, listed: std::mem::take(&mut facts.list) });
    }

    /// I/O queues to ask for: one for each engine at least.
    fn queues_wanted(&self) -> u16 {
        self.options.queues_wanted().max(self.share.engines)
    }

    /// How many I/O queues there are, and how many entries each has: as both ends can.
    fn decide_queues(&mut self) -> Result<(), Cause> {
        let depth = self.options.depth_wanted();
        let facts = &mut self.sequence.facts;
        if facts.queues < self.share.engines {
            let (queues, engines) = (facts.queues, self.share.engines);
            let text =
                format!("the controller allows {queues} I/O queues, too few for {engines} engine threads");
            return Err(Cause::Unsupported(text));
        }
        let supported = facts.capabilities.queue_entries_max;
        let commands = facts.controller.maxcmd.checked_sub(1).map_or(u32::MAX, |less| u32::from(less) + 1);
        let wanted = u32::from(depth) + 1;
        facts.queue_size = wanted.min(supported).min(commands).clamp(2, 4096) as u16;
        facts.in_capsule_bytes_max = facts.announced_in_capsule_bytes();
        Ok(())
    }

    /// CSTS while it is being enabled.
    fn after_status(&mut self, core: &mut Core) -> Result<Option<SequenceStep>, Cause> {
        let now = core.now();
        let status = self.sequence.facts.last_status;
        if status.fatal {
            return Err(Cause::ControllerFatal);
        }
        if status.ready {
            // The controller's timer runs from its enabling, and before that it takes no Keep Alive.
            self.start_keep_alive(core);
            return Ok(Some(SequenceStep::Identify));
        }
        if now >= self.sequence.facts.ready_until {
            let limit = self.sequence.facts.capabilities.timeout;
            return Err(Cause::TimedOut { what: "enabling the controller (CSTS.RDY)", limit });
        }
        self.later(now + POLL, SequenceStep::ReadyStatus);
        Ok(None)
    }

    /// An orderly shutdown first flushes what was written to and is still there, one after the other.
    pub(super) fn after_flush(&self, nsid: u32) -> SequenceStep {
        let next = self.sequence.flushes.iter().find(|next| **next > nsid);
        next.map_or_else(|| self.after_queue(0), |next| SequenceStep::Flush(*next))
    }

    /// It ends the I/O queues one by one, where the controller can, and then the controller.
    pub(super) fn after_queue(&self, number: u16) -> SequenceStep {
        let mut queues = self.io.iter().zip(1_u16..).skip(number.into());
        let next = queues.find(|(queue, _)| queue.is_alive());
        let next = next.filter(|_| self.sequence.facts.controller.disconnect);
        next.map_or(SequenceStep::ShutdownSet, |(_, number)| SequenceStep::Disconnect(number))
    }

    /// CSTS while it shuts down. One that has failed will not complete that.
    fn after_shutdown(&mut self, core: &mut Core) -> Result<Option<SequenceStep>, Cause> {
        let status = self.sequence.facts.last_status;
        match status {
            _ if status.shutdown_complete => self.shutdown_complete(core),
            _ if status.fatal => return Err(Cause::ControllerFatal),
            _ => self.later(core.now() + POLL, SequenceStep::ShutdownStatus),
        }
        Ok(None)
    }

    fn later(&mut self, at: Time, step: SequenceStep) {
        self.sequence.step = Some(step);
        self.timers.phase = at;
    }

    /// Lets the transport connect an I/O queue.
    fn establish(&mut self, core: &mut Core, number: u16) {
        let facts = &self.sequence.facts;
        let (size, in_capsule_bytes_max) = (facts.queue_size, facts.in_capsule_bytes_max);
        match self.connect_queue(core, number, size) {
            Ok(mut queue) => {
                queue.set_in_capsule(in_capsule_bytes_max);
                self.io.push(queue);
            }
            Err(error) => self.lose(core, Step::IoQueues, Cause::Local(error.to_string())),
        }
    }
}
