//! What a program may know of the paths to a subsystem.

use std::net::SocketAddr;
use std::time::Duration;

pub use ringfab_spec::log::AnaState;

pub use crate::access::GroupAccess;
use crate::error::ConnectError;
use crate::request::PathId;
use crate::url::Url;

/// A path, as one engine sees it, or all engines of a [`blocking::Controller`](crate::blocking::Controller) together.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PathStatus {
    /// Its name.
    pub id: PathId,
    /// Where it leads, as it was given or found.
    pub url: Url,
    /// The address that it is connected to, or was last.
    pub address: Option<SocketAddr>,
    /// The controller's identifier, once it was ready.
    pub cntlid: Option<u16>,
    /// How it is.
    pub state: PathState,
    /// The access state of each group, ascending by group; empty where the controller tells none.
    pub groups: Vec<GroupAccess>,
    /// I/O commands that were answered since it was added.
    pub commands: u64,
    /// Bytes of data of the I/O commands that were sent since it was added.
    pub bytes: u64,
    /// I/O commands that it was sent and has not answered.
    pub outstanding: usize,
    /// How often it was lost.
    pub losses: u64,
    /// The last time.
    pub last_loss: Option<PathLoss>,
    /// How long I/O stood still when it was lost last: from the loss to the first answer of another path.
    pub last_failover: Option<Duration>,
}

/// How a path is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PathState {
    /// It is being attached for the first time.
    Attaching,
    /// It takes I/O.
    Ready,
    /// It was lost and is back, and is used when no other path can be: see
    /// [`PathPolicy::well_for`](crate::PathPolicy::well_for).
    Recovering,
    /// It was lost, or could not be attached yet, and is tried again.
    Lost,
    /// It is being left.
    Leaving,
}

impl std::fmt::Display for PathState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Attaching => "attaching",
            Self::Ready => "ready",
            Self::Recovering => "recovering",
            Self::Lost => "lost",
            Self::Leaving => "leaving",
        })
    }
}

/// A loss of a path.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PathLoss {
    /// How long ago.
    pub ago: Duration,
    /// Why.
    pub error: ConnectError,
}

impl PathStatus {
    /// Of a path of which nothing else is known.
    pub(crate) fn new(id: PathId, url: Url) -> Self {
        Self {
            id,
            url,
            address: None,
            cntlid: None,
            state: PathState::Attaching,
            groups: Vec::new(),
            commands: 0,
            bytes: 0,
            outstanding: 0,
            losses: 0,
            last_loss: None,
            last_failover: None,
        }
    }

    /// Takes another engine's part of the same path in.
    pub(crate) fn add(&mut self, other: &Self) {
        self.commands += other.commands;
        self.bytes += other.bytes;
        self.outstanding += other.outstanding;
        self.last_failover = self.last_failover.max(other.last_failover);
    }
}
