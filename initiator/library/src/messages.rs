//! What reaches a host from other threads: the answers of resolvers, and what the engines that share a controller tell
//! each other. The engine that attached the controller leads: it has the admin queue. The others follow.
//!
//! Each message is for one path.

use std::net::SocketAddr;
use std::sync::Arc;

use ringfab_auth::{Computed, Parties};
use ringfab_fabric::tcp::Psk;
use ringfab_reactor::MailboxSender;

use crate::access::AccessStates;
use crate::authentication::{AuthenticationFailure, Keys};
use crate::error::{Cause, ConnectError};
use crate::namespace::{ControllerInfo, Namespace};
use crate::options::ConnectOptions;
use crate::request::PathHandle;
use crate::retry::RetryDelays;

/// What another thread tells a host.
#[derive(Debug)]
pub(crate) enum Message {
    /// The answer of a resolver thread.
    Resolved(Resolved),
    /// What a worker has done.
    Worked(Worked),
    /// A follower tells the engine that leads.
    ToLeader {
        /// The leader's path.
        path: PathHandle,
        /// Number of the engine that tells.
        engine: u16,
        what: ToLeader,
    },
    /// A follower is to take part in a path that was added.
    JoinPath {
        /// Its part of it.
        path: PathHandle,
        part: Box<PathPart>,
    },
    /// The engine that leads tells a follower.
    ToFollower {
        /// The follower's part of it.
        path: PathHandle,
        what: ToFollower,
    },
}

impl Message {
    /// Which path of the host it is for.
    pub(crate) fn path(&self) -> PathHandle {
        match self {
            Self::Resolved(resolved) => resolved.path,
            Self::Worked(worked) => worked.path,
            Self::ToLeader { path, .. } | Self::ToFollower { path, .. } | Self::JoinPath { path, .. } => {
                *path
            }
        }
    }
}

/// What a follower needs to take part in a path.
#[derive(Debug)]
pub(crate) struct PathPart {
    pub(crate) options: Arc<ConnectOptions>,
    /// Number of the engine that follows, and how many there are.
    pub(crate) engine: u16,
    pub(crate) engines: u16,
    /// The leader's path.
    pub(crate) leader: PathHandle,
    pub(crate) mailbox: Mailbox,
}

/// The answer of a resolver thread.
#[derive(Debug)]
pub(crate) struct Resolved {
    pub(crate) path: PathHandle,
    /// Which of the path's questions it answers.
    pub(crate) question: u32,
    pub(crate) result: Result<Found, Cause>,
}

/// What there is to know before a connection is made.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// Where the controller may be.
    pub(crate) addresses: Vec<SocketAddr>,
    /// The keys for TLS; none when connections are in clear text.
    pub(crate) psks: Option<Arc<[Psk]>>,
}

/// What a worker has done for the authentication of a queue.
#[derive(Debug)]
pub(crate) struct Worked {
    pub(crate) path: PathHandle,
    /// Which of the path's tasks it was.
    pub(crate) task: u32,
    pub(crate) done: Done,
}

/// What came of a task.
#[derive(Debug)]
pub(crate) enum Done {
    /// The keys were read.
    Keys(Result<Arc<Parties>, AuthenticationFailure>),
    /// An exponentiation.
    Computed(Computed),
}

/// The sending end of a host's mailbox. The host looks into it in each turn, so what it receives is small.
#[derive(Clone)]
pub(crate) struct Mailbox(pub(crate) MailboxSender<Box<Message>>);

impl Mailbox {
    /// Sends a message; whether somebody is there to receive it.
    pub(crate) fn send(&self, message: Message) -> bool {
        self.0.send(Box::new(message)).is_ok()
    }
}

impl std::fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Mailbox")
    }
}

/// From an engine that follows.
#[derive(Debug)]
pub(crate) enum ToLeader {
    /// It can open its queues.
    Joined {
        /// Its part of the path.
        follower: PathHandle,
        mailbox: Mailbox,
    },
    /// Its queues are connected. These namespaces have commands that wait.
    Connected { attempt: u32, needed: Vec<u32> },
    /// One of its queues is of no further use. It closes the others.
    Lost { attempt: u32, error: ConnectError },
    /// Its queues have ended, and nothing of it is in flight.
    Closed {
        /// Whether I/O was answered with more than "try again".
        answered: bool,
        /// Whether nothing was outstanding.
        idle: bool,
    },
    /// It takes no more I/O, and has no more. These namespaces were written to.
    Drained { written: Vec<u32> },
    /// A command was refused for an access state that the leader has not told.
    AccessIsNews,
    /// A command's answer is overdue.
    Abort { qid: u16, cid: u16 },
    /// Its program detaches the controller, in order or at once.
    Detach { orderly: bool },
    /// The engine has ended.
    Left,
    /// The same, told for another path: it does not take part in this one either, if it has not joined.
    LeftBefore,
}

/// From the engine that leads.
#[derive(Clone, Debug)]
pub(crate) enum ToFollower {
    /// Connect your I/O queues.
    Connect(Box<OpenQueues>),
    /// The controller is ready: I/O goes on.
    Live {
        info: Arc<ControllerInfo>,
        namespaces: Arc<[Namespace]>,
        retry_delays: RetryDelays,
        reconnected: bool,
    },
    /// The connection was lost.
    Lost(ConnectError),
    /// Close your queues of this attempt, if you have not.
    Close { attempt: u32, orderly: bool },
    /// The next attempt to connect.
    Reconnecting { attempt: u32, delay: std::time::Duration },
    /// What was sent on the connections with these numbers is executed no more.
    Over { first: u32, last: u32 },
    /// I/O no longer waits for the connection.
    FailFast,
    /// The controller tells these access states.
    Access(Arc<AccessStates>),
    /// Namespaces have changed: I/O waits until they were looked at.
    Changed,
    /// They were scanned again, and these are in use now. `None`: nothing that was known has changed.
    Rescanned(Option<Arc<[Namespace]>>),
    /// Authenticate again on your queues, with these keys if they are new.
    Reauthenticate(Option<Arc<Keys>>),
    /// Take no more I/O, and say when all has ended.
    Drain,
    /// The controller was given up.
    Failed(ConnectError),
    /// The controller is detached.
    Detached(Option<ConnectError>),
}

/// What a follower needs to connect its I/O queues.
#[derive(Clone, Debug)]
pub(crate) struct OpenQueues {
    /// Counts the leader's attempts to connect.
    pub(crate) attempt: u32,
    pub(crate) address: SocketAddr,
    /// The keys for TLS, if connections are over TLS.
    pub(crate) psks: Option<Arc<[Psk]>>,
    pub(crate) cntlid: u16,
    /// I/O queues of all engines.
    pub(crate) queues: u16,
    /// Entries of each.
    pub(crate) queue_size: u16,
    pub(crate) in_capsule_bytes_max: u32,
}
