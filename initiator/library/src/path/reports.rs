//! What a path tells the volumes that use it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::instance::{Instance, LostEntry, ResetAnswer, ResetEntry};
use crate::access::AccessStates;
use crate::authentication::Keys;
use crate::command::BoxedCommand;
use crate::error::ConnectError;
use crate::messages::ToFollower;
use crate::namespace::Namespace;

/// What the volumes have not been told yet.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    events: VecDeque<PathEvent>,
    /// I/O that was sent and has no answer, for the volumes to take back.
    unanswered: Vec<BoxedCommand>,
}

impl Reports {
    /// Tells of an event.
    pub(super) fn push(&mut self, event: PathEvent) {
        self.events.push_back(event);
    }

    /// Tells what the leader tells of a path that this engine follows.
    pub(super) fn told_by_leader(&mut self, what: ToFollower) {
        self.push(match what {
            ToFollower::Reconnecting { attempt, delay } => PathEvent::Reconnecting { attempt, delay },
            ToFollower::Over { first, last } => PathEvent::Over { first, last },
            ToFollower::Access(states) => PathEvent::Access(states),
            ToFollower::FailFast => PathEvent::FailFast,
            ToFollower::Changed => PathEvent::NamespacesChanged,
            ToFollower::Rescanned(Some(found)) => {
                PathEvent::NamespacesFound { found: found.to_vec(), final_look: true }
            }
            ToFollower::Rescanned(None) => PathEvent::NamespacesKept,
            // These change the phase: the path acts on them itself.
            ToFollower::Connect(_)
            | ToFollower::Live { .. }
            | ToFollower::Lost(_)
            | ToFollower::Close { .. }
            | ToFollower::Reauthenticate(_)
            | ToFollower::Drain
            | ToFollower::Failed(_)
            | ToFollower::Detached(_) => return,
        });
    }

    /// Gives back a command that has no answer.
    pub(super) fn give_back(&mut self, command: BoxedCommand) {
        self.unanswered.push(command);
    }

    /// The next event.
    pub(crate) fn next(&mut self) -> Option<PathEvent> {
        self.events.pop_front()
    }

    /// I/O that was sent and has no answer.
    pub(crate) fn unanswered(&mut self) -> &mut Vec<BoxedCommand> {
        &mut self.unanswered
    }
}

/// A step in the life of a path, as far as it matters to those who use it.
#[derive(Debug)]
pub(crate) enum PathEvent {
    /// The controller is attached, and these are its namespaces. The path becomes ready with
    /// [`Path::on_identified`](super::Path::on_identified).
    Identified {
        /// With a size.
        found: Vec<Namespace>,
        /// All that the controller lists, if it was asked.
        listed: Vec<u32>,
        /// The NQN of the subsystem, as the controller tells it.
        subsystem: String,
    },
    /// The controller tells these access states.
    Access(Arc<AccessStates>),
    /// The I/O queues of this engine, which follows, are connected:
    /// [`Role::queues_connected`](super::Role::queues_connected) tells the leader.
    QueuesConnected,
    /// These are the namespaces that the engine that leads has found.
    Adopt(Arc<[Namespace]>),
    /// It can take I/O.
    Ready {
        /// Whether it was lost before.
        reconnected: bool,
    },
    /// It was lost. What it was sent and has not answered comes back: see [`Reports::unanswered`].
    Lost(ConnectError),
    /// The connections of this engine have ended, and for the engine that leads those of all. What came back to
    /// [`Reports::unanswered`] is in no use there any more.
    Closed,
    /// This instance of the controller may still have commands in hand. The engine that leads is told this.
    InstanceLost(Instance),
    /// What was sent on the connections with these numbers is executed no more, as the leader says.
    Over {
        /// The first one.
        first: u32,
        /// The last one.
        last: u32,
    },
    /// The controller has answered a Cross-Controller Reset with this number.
    ResetAnswered {
        /// See [`super::instance::reset`].
        number: u64,
        /// What it says.
        answer: ResetAnswer,
    },
    /// The controller tells that a reset is done.
    ResetDone,
    /// What the controller tells of the resets that it was asked for.
    ResetLog(Vec<ResetEntry>),
    /// Controllers that have lost this host, as this path's tells.
    LostHosts(Vec<LostEntry>),
    /// The next attempt to connect.
    Reconnecting {
        /// Counted from one since the loss.
        attempt: u32,
        /// When it starts, from now.
        delay: Duration,
    },
    /// It is lost for so long that I/O should not wait for it.
    FailFast,
    /// The discovery controller tells that its log page has changed.
    DiscoveryLogChanged,
    /// The controller tells that namespaces have changed.
    NamespacesChanged,
    /// These have; they are looked at next.
    Changes(Vec<u32>),
    /// What was found when they were looked at.
    NamespacesFound {
        /// With a size.
        found: Vec<Namespace>,
        /// Whether nothing changed meanwhile, so that I/O can go on.
        final_look: bool,
    },
    /// They could not be looked at, or nothing has changed.
    NamespacesKept,
    /// The queues of this engine have authenticated again, with these keys if they are new; or why they could not while
    /// the connection goes on.
    Reauthenticated(Result<Option<Arc<Keys>>, ConnectError>),
    /// What was submitted is to end, and nothing new to begin: the controller is being detached.
    Drain,
    /// It was given up.
    Failed(ConnectError),
    /// It is detached, with what could not be done in an orderly way.
    Detached(Option<ConnectError>),
}
