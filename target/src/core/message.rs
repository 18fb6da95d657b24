//! What cores and the control plane tell each other.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use super::claims::{ClaimId, ClaimMessage};
use super::listen::Wanted;
use super::namespaces::NamespaceMessage;
use super::usage::CoreUsage;
use crate::controller::Controller;
use crate::placement::Place;
use crate::transport::Arrival;

/// A message to a core.
#[derive(Debug)]
pub(crate) enum CoreMessage {
    /// A connection that this core shall serve.
    Accept {
        /// The connection, waiting to be taken.
        arrival: Box<Arrival>,
        /// The queue that it shall be.
        wanted: Wanted,
        /// Its place on this core, if it is an I/O queue.
        place: Option<Place>,
    },
    /// End a controller's I/O queues on this core, and its admin queue too when asked.
    EndQueues {
        /// Whose.
        controller: Arc<Controller>,
        /// The admin queue too.
        admin: bool,
    },
    /// End a controller's queues on this core at once, in favour of another host.
    Evict(Arc<Controller>),
    /// Abort a command of a controller, if it is on this core and still waits.
    Abort(AbortRequest),
    /// The answer to an [`CoreMessage::Abort`] that this core sent.
    AbortAnswered {
        /// The Abort command that asked.
        asker: Asker,
        /// Whether a command was aborted.
        aborted: bool,
    },
    /// About a fused operation's claim to blocks.
    Claim(ClaimId, ClaimMessage),
    /// Namespaces come, go, and change size.
    Namespace(NamespaceMessage),
    /// Something about the controllers has changed: look at them now.
    Look,
    /// Tell what is in use, with the number of the core.
    Tell(mpsc::Sender<(usize, CoreUsage)>),
    /// Stop accepting, finish what is outstanding, and end within the limit.
    Drain(Duration),
    /// Another core has nothing left to do in a drain.
    Quiet,
}

/// Which command to abort, and who asks.
#[derive(Clone, Debug)]
pub(crate) struct AbortRequest {
    pub(crate) controller: Arc<Controller>,
    pub(crate) queue_id: u16,
    pub(crate) command_id: u16,
    pub(crate) asker: Asker,
}

/// An Abort command: its core, its queue there, its slot and generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asker {
    pub(crate) core: usize,
    pub(crate) queue: u16,
    pub(crate) slot: u16,
    pub(crate) generation: u16,
}
