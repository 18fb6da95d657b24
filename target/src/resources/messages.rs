//! What the queues of one core tell those of another.

use std::sync::Arc;

use ringfab_auth::Computed;

use super::claims::{ClaimId, ClaimMessage};
use super::{CoreRequestId, RequestId};
use crate::controller::Controller;
use crate::failure::Failure;
use crate::worker::WorkError;

/// A message to the queues of a core.
#[derive(Debug)]
pub(crate) enum QueueMessage {
    /// End a controller's I/O queues on this core, and its admin queue too when asked.
    EndQueues {
        /// Whose.
        controller: Arc<Controller>,
        /// The admin queue too.
        admin: bool,
    },
    /// End a controller's queues on this core at once, with whatever lies in their connections: its host asks for that.
    Fence(Arc<Controller>),
    /// End a controller's queues on this core at once, in favour of another host.
    Evict(Arc<Controller>),
    /// Abort a command of a controller, if it is on this core and still waits.
    Abort(AbortRequest),
    /// The answer to a [`QueueMessage::Abort`] that this core sent.
    AbortAnswered {
        /// The Abort command that asked.
        asker: CoreRequestId,
        /// Whether a command was aborted.
        aborted: bool,
    },
    /// A worker has done what an admin command asked for.
    WorkerDone {
        /// The command.
        request: RequestId,
        /// Its controller: by now another queue may be in the place of the one that asked.
        controller: Arc<Controller>,
        /// The bytes for the host, or the status.
        outcome: Result<Vec<u8>, Failure>,
    },
    /// A worker has computed for the authentication of a queue.
    Computed {
        /// The place of the queue.
        queue: u16,
        /// Its controller: by now another queue may be in its place.
        controller: Arc<Controller>,
        /// What came of it.
        outcome: Result<Computed, WorkError>,
    },
    /// About a fused operation's claim to blocks.
    Claim(ClaimId, ClaimMessage),
    /// Something about the controllers has changed: check them now.
    CheckControllers,
}

/// Which command to abort, and who asks.
#[derive(Clone, Debug)]
pub(crate) struct AbortRequest {
    pub(crate) controller: Arc<Controller>,
    pub(crate) queue_id: u16,
    pub(crate) command_id: u16,
    pub(crate) asker: CoreRequestId,
}

/// The way to the queues of a core. How messages travel is the core's.
#[derive(Clone)]
pub(crate) struct QueueSender(Arc<dyn Fn(QueueMessage) + Send + Sync>);

impl std::fmt::Debug for QueueSender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("QueueSender")
    }
}

impl QueueSender {
    /// A way to a core: `send` never blocks, and drops what comes too late.
    pub(crate) fn new(send: impl Fn(QueueMessage) + Send + Sync + 'static) -> Self {
        Self(Arc::new(send))
    }

    /// Sends a message.
    pub(crate) fn send(&self, message: QueueMessage) {
        (self.0)(message);
    }
}
