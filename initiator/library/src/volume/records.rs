//! What has happened to a path, for people, and how long I/O stands still when one is lost.

use std::time::Duration;

use ringfab_reactor::Time;

use crate::error::ConnectError;
use crate::path_status::PathLoss;
use crate::request::PathId;

/// The losses of a path.
#[derive(Debug, Default)]
pub(super) struct Record {
    pub(super) losses: u64,
    last: Option<(Time, ConnectError)>,
    /// From the last loss to the first answer of another path.
    pub(super) failover: Option<Duration>,
}

impl Record {
    /// It is lost.
    pub(super) fn lost(&mut self, now: Time, error: ConnectError) {
        self.losses += 1;
        self.last = Some((now, error));
    }

    /// The last loss.
    pub(super) fn last_loss(&self, now: Time) -> Option<PathLoss> {
        let (at, error) = self.last.as_ref()?;
        Some(PathLoss { ago: now.since(*at), error: error.clone() })
    }
}

/// A loss after which nothing was answered yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failover {
    /// The path that was lost.
    pub(super) from: PathId,
    pub(super) since: Time,
}
