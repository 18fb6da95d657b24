//! The admin queue: commands of the caller, and the path's own.

use std::collections::VecDeque;
use std::time::Duration;

use ringfab_reactor::Time;
use ringfab_spec::CompletionEntry;

use crate::command::{Command, Owner};
use crate::delayed::Delayed;
use crate::error::{IoError, SubmitError};
use crate::options::ReconnectPolicy;
use crate::queue::Queue;
use crate::request::ControllerId;
use crate::resources::Resources;
use crate::retry::{RetryDelays, judge};
use crate::wire;

/// Admin commands that may wait for room.
pub(crate) const ADMIN_WAITING_MAX: usize = 256;

/// The admin queue of a path, and what waits for it. A follower has none.
#[derive(Debug)]
pub(super) struct AdminQueue {
    queue: Option<Queue>,
    /// Commands that wait for room.
    waiting: VecDeque<Box<Command>>,
    /// Commands of the caller that wait for another try.
    delayed: Delayed,
    /// Overdue commands of followers, to be aborted when the controller takes another Abort: queue and command
    /// identifier.
    aborts: VecDeque<(u16, u16)>,
    /// Aborts that the controller takes at once (ACL).
    aborts_max: u16,
    /// How long a command may take.
    timeout: Duration,
    /// When the first answer may be overdue. To find overdue answers takes a pass over all slots.
    scan_at: Time,
}

impl AdminQueue {
    /// A queue that is not connected yet.
    pub(super) fn new(timeout: Duration) -> Self {
        Self {
            queue: None,
            waiting: VecDeque::new(),
            delayed: Delayed::default(),
            aborts: VecDeque::new(),
            aborts_max: 0,
            timeout,
            scan_at: Time::MAX,
        }
    }

    pub(super) fn queue(&self) -> Option<&Queue> {
        self.queue.as_ref()
    }

    pub(super) fn queue_mut(&mut self) -> Option<&mut Queue> {
        self.queue.as_mut()
    }

    pub(super) fn set_queue(&mut self, queue: Queue) {
        self.queue = Some(queue);
    }

    pub(super) fn take_queue(&mut self) -> Option<Queue> {
        self.queue.take()
    }

    /// The controller takes so many Aborts at once (ACL).
    pub(super) fn set_aborts_max(&mut self, aborts_max: u16) {
        self.aborts_max = aborts_max;
    }

    /// Commands of the caller without an answer.
    pub(super) fn outstanding(&self) -> usize {
        let is_callers = |command: &Command| matches!(command.owner, Owner::Admin(_));
        let sent = self.queue.as_ref().map_or(0, |queue| queue.count(is_callers));
        self.waiting.len() + self.delayed.len() + sent
    }

    /// How long a command may take.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// When it has something to do.
    pub(super) fn due(&self) -> Time {
        self.scan_at.min(self.delayed.due())
    }

    /// Whether it takes another command of the caller.
    ///
    /// # Errors
    /// Too many wait already.
    pub(super) fn check_room(&self) -> Result<(), SubmitError> {
        if self.waiting.len() < ADMIN_WAITING_MAX { Ok(()) } else { Err(SubmitError::Full) }
    }

    /// Sends a command, or lets it wait for room.
    pub(super) fn send(&mut self, resources: &mut Resources, command: Box<Command>) {
        self.send_within(resources, command, self.timeout);
    }

    /// The same for a command that has a limit of its own.
    pub(super) fn send_within(
        &mut self,
        resources: &mut Resources,
        mut command: Box<Command>,
        limit: Duration,
    ) {
        // The answer to an Asynchronous Event Request is never overdue.
        if command.owner != Owner::AsyncEvent {
            command.deadline = resources.now() + limit;
            self.scan_by(command.deadline);
        }
        let Some(queue) = self.queue.as_mut() else { return self.waiting.push_back(command) };
        if let Err((command, _)) = queue.send(&mut resources.transports, command) {
            self.waiting.push_back(command);
        }
    }

    /// Sends what waits, as far as there is room.
    pub(super) fn send_waiting(&mut self, resources: &mut Resources) {
        let deadline = resources.now() + self.timeout;
        let Some(queue) = self.queue.as_mut() else { return };
        while queue.has_room() {
            let Some(mut command) = self.waiting.pop_front() else { break };
            command.deadline = deadline;
            self.scan_at = self.scan_at.min(deadline);
            if let Err((command, _)) = queue.send(&mut resources.transports, command) {
                return self.waiting.push_front(command);
            }
        }
        self.send_aborts(resources);
    }

    /// Commands whose delay is over get another try; with [`Time::MAX`] all.
    pub(super) fn retry_due(&mut self, resources: &mut Resources, now: Time) {
        if now >= self.delayed.due() {
            self.waiting.extend(self.delayed.take_due(now));
            self.send_waiting(resources);
        }
    }

    /// A command of the caller has an answer: that is its end, or it gets another try.
    pub(super) fn answered(
        &mut self,
        resources: &mut Resources,
        controller: ControllerId,
        mut command: Box<Command>,
        entry: &CompletionEntry,
        retry: (&RetryDelays, &ReconnectPolicy),
    ) {
        let status = entry.status();
        if status.is_success() {
            return resources.done(controller, command, Ok(entry));
        }
        let verdict = judge(status);
        if let Some(delay) = command.tries.next(verdict, status, retry.0, retry.1) {
            tracing::debug!(%status, ?delay, sent = command.tries.sent(), "admin command tried again");
            return self.delayed.push(command, resources.now() + delay);
        }
        let error = IoError::final_status(verdict, status, command.tries);
        resources.done(controller, command, Err(error));
    }

    /// Keeps a command of the caller that has no answer, until [`AdminQueue::end_waiting`].
    pub(super) fn keep(&mut self, command: Box<Command>) {
        self.waiting.push_back(command);
    }

    /// Aborts that the controller takes beside those that it has not answered.
    pub(super) fn aborts_left(&self) -> usize {
        let is_abort = |command: &Command| command.owner == Owner::Abort;
        let sent = self.queue.as_ref().map_or(0, |queue| queue.count(is_abort));
        let waiting = self.waiting.iter().filter(|command| is_abort(command)).count();
        usize::from(self.aborts_max).saturating_sub(sent + waiting)
    }

    /// Asks the controller to abort a command, once it takes another Abort.
    pub(super) fn abort(&mut self, resources: &mut Resources, qid: u16, cid: u16) {
        self.aborts.push_back((qid, cid));
        self.send_aborts(resources);
    }

    fn send_aborts(&mut self, resources: &mut Resources) {
        if self.aborts.is_empty() {
            return;
        }
        for _ in 0..self.aborts_left() {
            let Some((qid, cid)) = self.aborts.pop_front() else { return };
            self.send(resources, Command::new(wire::abort(qid, cid), Owner::Abort));
        }
    }

    /// Makes sure that an answer that is overdue by then is noticed.
    pub(super) fn scan_by(&mut self, deadline: Time) {
        self.scan_at = self.scan_at.min(deadline);
    }

    /// Looks for overdue answers when it is time: who waits for one that is.
    pub(super) fn scan(&mut self, now: Time) -> Option<Owner> {
        if now < self.scan_at {
            return None;
        }
        let overdue = self.queue.as_mut().and_then(|queue| queue.overdue(now));
        let owner = overdue.map(|(_, command)| command.owner);
        self.scan_at = self.queue.as_mut().map_or(Time::MAX, Queue::deadline);
        owner
    }

    /// Its connection ends: what waits for another try does not wait any longer.
    pub(super) fn stop(&mut self) {
        self.waiting.extend(self.delayed.take_due(Time::MAX));
        self.aborts.clear();
        self.scan_at = Time::MAX;
    }

    /// Ends what waits: there is no queue any more.
    pub(super) fn end_waiting(&mut self, resources: &mut Resources, controller: ControllerId) {
        while let Some(command) = self.waiting.pop_front() {
            resources.done(controller, command, Err(IoError::NoPath));
        }
    }
}
