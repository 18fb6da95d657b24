//! The instance of a path's controller, and what one controller is asked about others.
//!
//! A controller is another *instance* each time it becomes ready: it then has another uniquifier and random number
//! (CIU and CIRN, Base 2.3). After a loss, another controller of the subsystem can be asked to end a lost instance
//! (Cross-Controller Reset), or tells that one has lost this host. [`crate::fences`] decides whom to ask.

use std::time::Duration;

use ringfab_memory::{Buffer, SharedBuffer};
use ringfab_spec::log::{ControllerInstance, CrossControllerResetEntry, LostHostEntry};
use ringfab_spec::{CompletionEntry, Status, SubmissionEntry};

use super::{Path, PathEvent};
use crate::command::{Command, Direction, Owner};
use crate::error::{Cause, Step};
use crate::options::ConnectOptions;
use crate::resources::Resources;
use crate::retry::{Verdict, judge};
use crate::wire;
use crate::wire::answers::{self, LostPathFacts};
use crate::wire::data::AnswerData;

/// A log page about lost paths fits in.
const LOG_BYTES: usize = 4096;

/// What a clock adds to the keep-alive timeout: controllers look at theirs at intervals of a second at most.
const GRANULARITY: Duration = Duration::from_secs(1);

/// What stands for the keep-alive timeout where there is none: no network holds a segment for longer (the maximum
/// segment lifetime of TCP).
const NO_KEEP_ALIVE: Duration = Duration::from_secs(120);

/// What has to be known of an instance of a controller when it is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Instance {
    /// Which one it is; `None` where the controller has no instances.
    pub(crate) id: Option<ControllerInstance>,
    /// Resets of other controllers that it does at once (CCRL).
    pub(crate) resets_max: u8,
    /// How long after the end of the connections it may execute what it was sent.
    pub(crate) replay_delay: Duration,
    /// How long that may be by the rule, if somebody has chosen a shorter time.
    pub(crate) risks: Option<Duration>,
}

impl Instance {
    /// Of a controller that says this of itself, and that has this keep-alive timeout.
    pub(super) fn new(
        cntlid: u16,
        facts: &LostPathFacts,
        keep_alive: Option<Duration>,
        options: &ConnectOptions,
    ) -> Self {
        let &LostPathFacts { ciu, cirn, quiesce, .. } = facts;
        // What is sent until the end of the connections may be the controller's last sign of life of this host. It may
        // be on its way for as long as the controller takes to give up a host that is silent, and then it takes that
        // time once more.
        let rule = (keep_alive.unwrap_or(NO_KEEP_ALIVE) + GRANULARITY) * 2 + quiesce;
        let replay_delay = options.replay_delay_wanted().unwrap_or(rule);
        Self {
            id: (ciu != 0).then_some(ControllerInstance { cntlid, ciu, cirn }),
            resets_max: if ciu == 0 { 0 } else { facts.resets_max },
            replay_delay,
            risks: (replay_delay < rule).then_some(rule),
        }
    }
}

/// What a path remembers of its controller's instances.
#[derive(Debug, Default)]
pub(crate) struct Instances {
    /// Number of the connection that was ready last, the same on every engine.
    connection: u32,
    /// The instance of the leader's connection, from when it is ready until that ends.
    current: Option<Instance>,
}

impl Instances {
    /// I/O can be sent on a connection with this number. Only the leader knows to which instance.
    pub(super) fn begin(&mut self, connection: u32, current: Option<Instance>) {
        (self.connection, self.current) = (connection, current);
    }

    /// Number of the connection that was ready last, the same on every engine.
    pub(crate) fn connection(&self) -> u32 {
        self.connection
    }

    /// The instance of the controller, while the connection is ready; only the leader knows.
    pub(crate) fn current(&self) -> Option<&Instance> {
        self.current.as_ref()
    }

    /// The connection ends. Returns the instance that it led to, if it was ready.
    pub(super) fn end(&mut self) -> Option<Instance> {
        self.current.take()
    }
}

/// A controller has answered a Cross-Controller Reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResetAnswer {
    /// The instance is over.
    Over,
    /// It will be: the log page says when.
    Begun,
    /// Perhaps later: the controller has too much to do, or somebody has asked for the same.
    Later,
    /// The log page is full: it has to be read first.
    LogFull,
    /// Not by this controller.
    Refused(Status),
}

/// Asks a path's controller to reset an instance of another one, or its own earlier one.
pub(crate) fn reset(path: &mut Path, resources: &mut Resources, number: u64, impacted: ControllerInstance) {
    let command = Command::new(wire::cross_controller_reset(impacted), Owner::Reset(number));
    path.association.queues.admin.send(resources, command);
}

/// Asks a path's controller which resets are done. Says whether there was memory for the answer.
pub(crate) fn look_at_resets(path: &mut Path, resources: &mut Resources) -> bool {
    read_log(path, resources, wire::reset_log(LOG_BYTES as u32), Owner::ResetLog)
}

fn read_log(path: &mut Path, resources: &mut Resources, entry: SubmissionEntry, owner: Owner) -> bool {
    let Some(buffer) = resources.pool.take(LOG_BYTES).map(Buffer::share) else { return false };
    let command = Command::new(entry, owner);
    let command = command.with_data(Direction::AllocatedToHost, buffer, 0, LOG_BYTES as u32);
    path.association.queues.admin.send(resources, command);
    true
}

/// A path's controller has answered a command about others.
pub(super) fn on_answer(path: &mut Path, command: &Command, entry: &CompletionEntry) {
    let event = match command.owner {
        Owner::Reset(number) => PathEvent::ResetAnswered { number, answer: reset_answer(entry) },
        Owner::ResetLog => PathEvent::ResetLog(read_answer(command, entry, answers::parse_reset_log)),
        Owner::LostHostLog => PathEvent::LostHosts(read_answer(command, entry, answers::parse_lost_host_log)),
        _ => return,
    };
    path.reports.push(event);
}

/// An event of a path's controller that is about others.
pub(super) fn on_event(path: &mut Path, resources: &mut Resources, entry: &CompletionEntry) {
    if answers::is_reset_done(entry) {
        path.reports.push(PathEvent::ResetDone);
    }
    if answers::is_lost_host(entry)
        && !read_log(path, resources, wire::lost_host_log(LOG_BYTES as u32), Owner::LostHostLog)
    {
        tracing::debug!(peer = path.peer(), "no memory for the Lost Host Communication log");
    }
}

/// Another controller tells that this path's has lost us.
pub(crate) fn lose_host(path: &mut Path, resources: &mut Resources) {
    path.lose(resources, Step::Live, Cause::LostHost);
    path.check_closed(resources);
}

fn reset_answer(entry: &CompletionEntry) -> ResetAnswer {
    let status = entry.status();
    match status.code() {
        _ if status.is_success() && answers::is_reset_at_once(entry) => ResetAnswer::Over,
        _ if status.is_success() => ResetAnswer::Begun,
        Status::CROSS_CONTROLLER_RESET_IN_PROGRESS | Status::CROSS_CONTROLLER_RESET_LIMIT_EXCEEDED => {
            ResetAnswer::Later
        }
        Status::CROSS_CONTROLLER_RESET_LOG_FULL => ResetAnswer::LogFull,
        _ if judge(status) == Verdict::Retry => ResetAnswer::Later,
        _ => ResetAnswer::Refused(status),
    }
}

/// The entries of a log page; none if it could not be read.
fn read_answer<T>(
    command: &Command,
    entry: &CompletionEntry,
    parse: impl FnOnce(AnswerData<'_>) -> Result<Vec<T>, wire::data::Short>,
) -> Vec<T> {
    let memory: &SharedBuffer = match &command.memory {
        Some(memory) if entry.status().is_success() => memory,
        _ => return Vec::new(),
    };
    let parsed =
        memory.with_bytes(0..LOG_BYTES, |room| parse(AnswerData::new(room, command.received as usize)));
    parsed.unwrap_or_default()
}

/// What a controller tells of a reset.
pub(crate) type ResetEntry = CrossControllerResetEntry;
/// What a controller tells of another one that has lost this host.
pub(crate) type LostEntry = LostHostEntry;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::HostIdentity;

    fn options(text: &str) -> ConnectOptions {
        let host =
            HostIdentity { nqn: "nqn.2026-01.org.example:me".to_owned(), id: uuid::Uuid::from_u128(1) };
        ConnectOptions::new(format!("nvme+tcp://192.0.2.1/a{text}").parse().expect("an address"), host)
    }

    #[test]
    fn the_clock_runs_for_twice_the_keep_alive_timeout_and_for_what_quiescing_takes() {
        let facts = LostPathFacts { ciu: 1, quiesce: Duration::from_millis(300), ..LostPathFacts::default() };
        let seconds = Duration::from_secs;
        let of = |keep_alive, text| Instance::new(7, &facts, keep_alive, &options(text));
        let usual = of(Some(seconds(10)), "");
        assert_eq!((usual.replay_delay, usual.risks), (Duration::from_millis(22_300), None));
        assert_eq!(of(None, "").replay_delay, Duration::from_millis(242_300), "twice two minutes, and a bit");
        let chosen = of(Some(seconds(10)), "?replaydelay=500");
        assert_eq!(chosen.replay_delay, Duration::from_millis(500));
        assert_eq!(chosen.risks, Some(usual.replay_delay));
        assert_eq!(of(Some(seconds(10)), "?replaydelay=30000").risks, None, "longer than need be");
    }

    #[test]
    fn a_controller_without_a_uniquifier_has_no_instances_and_resets_none() {
        let facts = LostPathFacts { ciu: 0, resets_max: 4, ..LostPathFacts::default() };
        let instance = Instance::new(7, &facts, None, &options(""));
        assert_eq!((instance.id, instance.resets_max), (None, 0));
    }
}
