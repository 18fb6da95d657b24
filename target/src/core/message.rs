//! What cores and the control plane tell each other.

use std::sync::{Arc, Weak, mpsc};
use std::time::Duration;

use ringfab_block::OpenedFile;
use ringfab_reactor::MailboxSender;

use super::queue_request::QueueRequest;
use super::usage::CoreUsage;
use crate::controller::Controller;
use crate::model::{Difference, Listener, Namespace, Served, Subsystem, Way};
use crate::placement::Place;
use crate::resources::flushes::Flushed;
use crate::resources::messages::{QueueMessage, QueueSender};
use crate::transport::IncomingConnection;

/// A message to a core.
#[derive(Debug)]
pub(crate) enum CoreMessage {
    /// A connection that this core shall serve.
    Accept {
        /// The connection, waiting to be taken.
        connection: Box<IncomingConnection>,
        /// By which it came.
        way: Way,
        /// The queue that it shall be.
        queue_request: QueueRequest,
        /// Its place on this core, if it is an I/O queue.
        place: Option<Place>,
    },
    /// What the queues of another core tell those of this one.
    Queues(QueueMessage),
    /// What is served changes.
    Serve(ServeMessage, Reply),
    /// Say so once nothing needs any more what a change has taken away.
    AwaitEnd(AwaitedEnd),
    /// Flush the disk at a position.
    Flush(usize, Flushed),
    /// Tell what is in use, with the number of the core.
    ReportUsage(mpsc::Sender<(usize, CoreUsage)>),
    /// Stop accepting, finish what is outstanding, and end within the limit.
    Drain(Duration),
    /// Another core has nothing left to do in a drain.
    Idle,
}

/// What a core does about what it serves, for the control side.
#[derive(Clone, Debug)]
pub(crate) enum ServeMessage {
    /// Get ready to serve a namespace, with a descriptor for each core when it is a file.
    Open { subsystem: Arc<Subsystem>, namespace: Arc<Namespace>, files: Arc<Vec<OpenedFile>> },
    /// Bind a listener. Only the first core does.
    Listen(Arc<Listener>),
    /// Close a listener before its successor on the same address is bound.
    Unlisten(Arc<Listener>),
    /// Take back what was got ready.
    Discard(Arc<Difference>),
    /// Serve this from now on. No command is taken any more for a namespace that is gone; its disk is closed when the
    /// last of those that run has ended.
    Serve { served: Arc<Served>, difference: Arc<Difference> },
    /// Go on with the same disk opened anew. What has begun ends on the old one.
    Reopen { subsystem: Arc<Subsystem>, namespace: Arc<Namespace>, files: Arc<Vec<OpenedFile>> },
    /// The backing of a namespace has another size in bytes.
    Resize { index: usize, bytes: u64 },
}

/// What a change takes away. It keeps no namespace: whoever lets go of the last share of one in memory frees it.
#[derive(Debug)]
pub(crate) struct TakenAway {
    /// Namespaces that are not served any more.
    pub(crate) namespaces: Vec<Weak<Namespace>>,
    /// Controllers that were ended.
    pub(crate) controllers: Vec<Arc<Controller>>,
    /// Controllers whose hosts may do no more on these disks, by their positions.
    pub(crate) access: Vec<(Arc<Controller>, Vec<usize>)>,
}

/// Who waits for the end of what a change has taken away.
#[derive(Clone, Debug)]
pub(crate) struct AwaitedEnd {
    pub(super) taken_away: Arc<TakenAway>,
    /// For how long from now.
    pub(super) limit: Duration,
    /// Where a core says that nothing needs it any more.
    pub(super) reply: mpsc::Sender<()>,
}

/// Where a core says that it is done, or why it cannot.
pub(crate) type Reply = mpsc::Sender<Result<(), String>>;

/// The way to a core.
#[derive(Clone)]
pub(crate) struct CoreSender(pub(crate) MailboxSender<CoreMessage>);

impl std::fmt::Debug for CoreSender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CoreSender")
    }
}

impl CoreSender {
    /// Sends a message. A core that has ended already needs none.
    pub(crate) fn send(&self, message: CoreMessage) {
        if self.0.send(message).is_err() {
            tracing::debug!("a message came too late for its core");
        }
    }

    /// The way to the core's queues.
    pub(super) fn to_queues(&self) -> QueueSender {
        let core = self.clone();
        QueueSender::new(move |message| core.send(CoreMessage::Queues(message)))
    }
}
