//! How a path is, as a process tells it that has it.

use std::time::SystemTime;

use ringfab_initiator::PathStatus;
use serde::{Deserialize, Serialize};

use super::facts::seconds;

/// A path of what is attached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PathReport {
    /// Its number.
    pub(crate) path: String,
    /// Where it leads, as it was given or found.
    pub(crate) address: String,
    /// The address that it is connected to, or was last.
    pub(crate) connected_to: Option<String>,
    pub(crate) cntlid: Option<u16>,
    /// `attaching`, `ready`, `recovering`, `lost` or `leaving`.
    pub(crate) state: String,
    /// The access state of each group (ANA); none where the controller tells none.
    pub(crate) groups: Vec<GroupReport>,
    /// I/O commands that were answered.
    pub(crate) commands: u64,
    /// Bytes of their data.
    pub(crate) bytes: u64,
    /// Commands without an answer.
    pub(crate) outstanding: u64,
    pub(crate) losses: u64,
    /// When it was lost last, and why.
    pub(crate) last_loss_s: Option<u64>,
    pub(crate) last_loss: Option<String>,
    /// From its last loss to the first answer by another path.
    pub(crate) last_failover_us: Option<u64>,
}

/// The access state of a group by one path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GroupReport {
    pub(crate) group: u32,
    pub(crate) state: String,
}

impl PathReport {
    pub(super) fn of(path: &PathStatus) -> Self {
        let loss = path.last_loss.as_ref();
        let groups = path.groups.iter();
        Self {
            path: path.id.to_string(),
            address: path.url.to_string(),
            connected_to: path.address.map(|address| address.to_string()),
            cntlid: path.cntlid,
            state: path.state.to_string(),
            groups: groups
                .map(|one| GroupReport { group: one.group, state: one.state.to_string() })
                .collect(),
            commands: path.commands,
            bytes: path.bytes,
            outstanding: path.outstanding as u64,
            losses: path.losses,
            last_loss_s: loss.and_then(|loss| SystemTime::now().checked_sub(loss.ago)).map(seconds),
            last_loss: loss.map(|loss| format!("{}: {}", loss.error.step, loss.error.cause)),
            last_failover_us: path
                .last_failover
                .map(|time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX)),
        }
    }

    /// Whether it takes I/O.
    pub(crate) fn is_ready(&self) -> bool {
        ["ready", "recovering"].contains(&self.state.as_str())
    }

    /// Its access states in short: one word where all groups have the same.
    pub(crate) fn access(&self) -> String {
        let first = self.groups.first().map(|one| &one.state);
        match first {
            None => "-".to_owned(),
            Some(first) if self.groups.iter().all(|one| one.state == *first) => first.clone(),
            Some(_) => {
                let each = self.groups.iter().map(|one| format!("{} {}", one.group, one.state));
                each.collect::<Vec<_>>().join(", ")
            }
        }
    }
}
