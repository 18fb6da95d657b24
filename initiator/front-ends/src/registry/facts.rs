//! What an entry says.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use ringfab_base::shell_quoted;
use ringfab_initiator::blocking::{Connection, Controller};
use ringfab_initiator::{Namespace, Url};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::path_report::PathReport;
use crate::failures;

/// What has made an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// `ringfab mount`.
    Mount,
    /// `ringfab fuse`, or `connect-all --fuse`.
    Fuse,
    /// `ringfab nbd`, or `connect-all --nbd`.
    Nbd,
}

impl Kind {
    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Mount => "mount",
            Kind::Fuse => "fuse",
            Kind::Nbd => "nbd",
        }
    }
}

/// What does not change while it lives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Facts {
    pub(crate) kind: Kind,
    pub(crate) pid: u32,
    pub(crate) started_s: u64,
    pub(crate) address: String,
    pub(crate) nqn: String,
    /// Those at the beginning.
    pub(crate) namespaces: Vec<Disk>,
    #[serde(default)]
    pub(crate) read_only: bool,
    /// The name in `volumes.toml`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) volume: Option<String>,
    /// Where the file system or the files are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) directory: Option<PathBuf>,
    /// Where the file below the loop device is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) files: Option<PathBuf>,
    /// The loop device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) device: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) fstype: Option<String>,
    /// The number that the kernel has given the mount of the file system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mount_id: Option<u64>,
    /// Whether it has ended although its target was away, or given up: said at the end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) abandoned: bool,
    /// I/O commands that have failed; said at the end.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) failed_commands: u64,
    /// Where a network block device is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) uri: Option<String>,
}

/// A namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Disk {
    pub(crate) nsid: u32,
    pub(crate) bytes: u64,
    pub(crate) block_bytes: u32,
}

/// How it is at this moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Status {
    /// [`CONNECTED`], `reconnecting`, [`GIVEN_UP`] or [`DISK_REMOVED`].
    pub(crate) state: String,
    /// Since when it reconnects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) since_s: Option<u64>,
    /// How often it was connected again.
    #[serde(default)]
    pub(crate) reconnects: u64,
    /// I/O commands of a mount that have failed so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) failed_commands: Option<u64>,
    pub(crate) namespaces: Vec<Disk>,
    /// Its paths; none of a process of an older version.
    #[serde(default)]
    pub(crate) paths: Vec<PathReport>,
}

/// Its state while all is well.
const CONNECTED: &str = "connected";
/// Its state when the controller is gone for good.
const GIVEN_UP: &str = "given up";
/// The state of a mount whose controller is connected, and has no such disk any more.
const DISK_REMOVED: &str = "disk removed";

impl Facts {
    /// Facts of this process, from now on.
    pub(crate) fn new(kind: Kind, url: &Url, nqn: &str, namespaces: &[Namespace]) -> Self {
        Self {
            kind,
            pid: std::process::id(),
            started_s: seconds(SystemTime::now()),
            address: url.to_string(),
            nqn: nqn.to_owned(),
            namespaces: disks(namespaces),
            read_only: false,
            volume: None,
            directory: None,
            files: None,
            device: None,
            fstype: None,
            mount_id: None,
            abandoned: false,
            failed_commands: 0,
            uri: None,
        }
    }

    /// For programs: all keys, those that have no value as well.
    pub(crate) fn document(&self) -> Value {
        let mut value = json!({
            "volume": null, "directory": null, "files": null, "device": null, "fstype": null, "uri": null,
        });
        if let (Some(all), Ok(Value::Object(known))) = (value.as_object_mut(), serde_json::to_value(self)) {
            all.extend(known);
            // These are for those who look after it.
            all.remove("mount_id");
            all.remove("abandoned");
        }
        value
    }

    /// What to do when its controller was given up.
    pub(crate) fn remedy(&self) -> String {
        match (self.kind, &self.directory) {
            (Kind::Mount, Some(directory)) => {
                let directory = directory.to_string_lossy().into_owned();
                format!("`ringfab umount {}`, then mount it again", shell_quoted(&directory))
            }
            _ => format!("end process {}, then start it again", self.pid),
        }
    }

    /// How it has ended, as was noted at its end.
    pub(crate) fn ended(&self) -> Ended {
        Ended { failed_commands: self.failed_commands, abandoned: self.abandoned }
    }

    /// Whether it has this namespace.
    pub(crate) fn has(&self, nsid: u32) -> bool {
        self.namespaces.iter().any(|disk| disk.nsid == nsid)
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Status {
    /// Of an attached controller, and of the one disk of it that is mounted.
    pub(crate) fn of(controller: &Controller, mounted: Option<&Namespace>) -> Self {
        let is_there = |disk: &Namespace| {
            let now = controller.namespace(disk.nsid);
            now.is_some_and(|now| now.identity.agrees_with(&disk.identity))
        };
        let (state, since) = match controller.connection() {
            Connection::Connected if !mounted.is_none_or(is_there) => (DISK_REMOVED, None),
            Connection::Connected => (CONNECTED, None),
            Connection::Lost { since } => ("reconnecting", Some(seconds(since))),
            Connection::GivenUp => (GIVEN_UP, None),
        };
        Self {
            state: state.to_owned(),
            since_s: since,
            reconnects: controller.reconnects(),
            failed_commands: mounted.map(|_| failures::count()),
            namespaces: disks(&controller.namespaces()),
            paths: controller.paths().iter().map(PathReport::of).collect(),
        }
    }

    /// Whether its controller is connected.
    pub(crate) fn is_connected(&self) -> bool {
        [CONNECTED, DISK_REMOVED].contains(&self.state.as_str())
    }

    /// Whether its controller is gone for good.
    pub(crate) fn is_given_up(&self) -> bool {
        self.state == GIVEN_UP
    }

    /// Whether the target has removed the disk.
    pub(crate) fn is_removed(&self) -> bool {
        self.state == DISK_REMOVED
    }
}

/// How a mount has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ended {
    /// I/O commands that have failed.
    pub(crate) failed_commands: u64,
    /// Whether nothing could be written at the end, because the target was away.
    pub(crate) abandoned: bool,
}

impl Ended {
    /// What may be missing on the disk, in words.
    pub(crate) fn lost(self) -> Option<String> {
        match (self.failed_commands, self.abandoned) {
            (0, false) => None,
            (0, true) => Some(
                "it has ended without its target, and what was not written by then is not on the disk"
                    .to_owned(),
            ),
            (commands, _) => Some(lost(commands)),
        }
    }
}

/// What failed commands mean for a file system.
fn lost(commands: u64) -> String {
    let (commands, have) = if commands == 1 {
        ("1 I/O command".to_owned(), "has")
    } else {
        (format!("{commands} I/O commands"), "have")
    };
    format!("{commands} {have} failed since it was mounted, and what was written may not be on the disk")
}

pub(crate) fn disks(namespaces: &[Namespace]) -> Vec<Disk> {
    let disk = |one: &Namespace| Disk { nsid: one.nsid, bytes: one.bytes(), block_bytes: one.block_bytes };
    namespaces.iter().map(disk).collect()
}

/// Seconds since 1970.
pub(crate) fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
