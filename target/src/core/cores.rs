//! Messages to the cores of a running target, for the control side.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::Core;
use super::message::{AwaitedEnd, CoreMessage, CoreSender, ServeMessage, TakenAway};
use super::usage::CoreUsage;
use crate::controller::Controller;
use crate::disks::DiskHandles;
use crate::resources::messages::QueueMessage;

/// How long cores may take to answer; a turn of a loop takes far less.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The way to all cores, for whoever changes what they serve.
pub(crate) trait AllCores {
    /// How many there are.
    fn count(&self) -> usize;

    /// Has every core do the same, and waits until all have.
    ///
    /// # Errors
    /// What the first core says that cannot; the others may have done it.
    fn broadcast(&self, message: ServeMessage) -> Result<(), String>;

    /// Ends a controller with all its queues.
    fn end_controller(&self, controller: &Arc<Controller>, reason: &str);

    /// Waits until no core needs any more what a change has taken away, for so long at most. Says whether that is so. A
    /// core in the caller's thread only looks.
    fn await_end(&self, taken_away: TakenAway, limit: Duration) -> bool;
}

/// The way to all cores of a target.
#[derive(Clone, Debug, Default)]
pub struct Cores {
    pub(super) senders: Vec<CoreSender>,
    pub(super) disk_handles: Arc<DiskHandles>,
}

impl Cores {
    /// What each has in use.
    ///
    /// # Errors
    /// When one does not answer.
    pub fn usage(&self) -> Result<Vec<CoreUsage>, String> {
        let usage = self.usage_within(ANSWER_TIMEOUT).into_iter().collect::<Option<Vec<CoreUsage>>>();
        usage.ok_or_else(|| "a core does not answer".to_owned())
    }

    /// The same, without those that do not answer within a limit.
    pub fn usage_within(&self, limit: Duration) -> Vec<Option<CoreUsage>> {
        let deadline = Instant::now() + limit;
        let (reply, replies) = mpsc::channel();
        for core in &self.senders {
            core.send(CoreMessage::ReportUsage(reply.clone()));
        }
        drop(reply);
        let mut usage = vec![None; self.senders.len()];
        for _ in &self.senders {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok((core, told)) = replies.recv_timeout(left) else { break };
            usage[core] = Some(told);
        }
        usage
    }

    /// The disks that they serve.
    pub(crate) fn disk_handles(&self) -> &Arc<DiskHandles> {
        &self.disk_handles
    }
}

impl AllCores for Cores {
    fn count(&self) -> usize {
        self.senders.len()
    }

    fn broadcast(&self, message: ServeMessage) -> Result<(), String> {
        let (reply, replies) = mpsc::channel();
        for core in &self.senders {
            core.send(CoreMessage::Serve(message.clone(), reply.clone()));
        }
        // What the message holds is the cores' alone now.
        drop((message, reply));
        let mut outcome = Ok(());
        for _ in &self.senders {
            let answer = replies.recv_timeout(ANSWER_TIMEOUT);
            outcome = outcome.and(answer.unwrap_or_else(|_| Err("a core does not answer".to_owned())));
        }
        outcome
    }

    fn end_controller(&self, controller: &Arc<Controller>, reason: &str) {
        controller.log_ended(reason);
        controller.end();
        for core in &self.senders {
            let message = QueueMessage::EndQueues { controller: Arc::clone(controller), admin: true };
            core.send(CoreMessage::Queues(message));
        }
    }

    fn await_end(&self, taken_away: TakenAway, limit: Duration) -> bool {
        let (deadline, taken_away) = (Instant::now() + limit, Arc::new(taken_away));
        let (reply, replies) = mpsc::channel();
        for core in &self.senders {
            let (taken_away, reply) = (Arc::clone(&taken_away), reply.clone());
            core.send(CoreMessage::AwaitEnd(AwaitedEnd { taken_away, limit, reply }));
        }
        drop(reply);
        // A core that has ended needs nothing.
        self.senders.iter().all(|_| {
            let left = deadline.saturating_duration_since(Instant::now());
            replies.recv_timeout(left) != Err(RecvTimeoutError::Timeout)
        })
    }
}

/// A core in the caller's thread, which is all cores of its target; for simulations.
pub(crate) struct SingleCore<'a>(RefCell<&'a mut Core>);

impl<'a> SingleCore<'a> {
    /// The way to it.
    pub(crate) fn new(core: &'a mut Core) -> Self {
        Self(RefCell::new(core))
    }
}

impl fmt::Debug for SingleCore<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SingleCore")
    }
}

impl AllCores for SingleCore<'_> {
    fn count(&self) -> usize {
        1
    }

    fn broadcast(&self, message: ServeMessage) -> Result<(), String> {
        self.0.borrow_mut().on_serve(message)
    }

    fn end_controller(&self, controller: &Arc<Controller>, reason: &str) {
        controller.log_ended(reason);
        controller.end();
        let mut core = self.0.borrow_mut();
        let Core { resources, queues, look_soon, .. } = &mut **core;
        queues.end_all_of(resources, controller, true);
        *look_soon = true;
    }

    fn await_end(&self, taken_away: TakenAway, _limit: Duration) -> bool {
        !self.0.borrow().needs(&taken_away)
    }
}
