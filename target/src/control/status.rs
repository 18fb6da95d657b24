//! The state of the target as `status` and `namespace list` show it. Reading it does not wait for a change.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use serde::Serialize;

use uuid::Uuid;

use super::configured::{Configured, Current};
use crate::config::{Change, ChangeLine};
use crate::controller::Controller;
use crate::core::{CoreUsage, Cores};
use crate::model::namespace::{Health, Namespace};
use crate::target::Target;
use crate::worker::{self, Hanging};

/// A namespace.
#[derive(Clone, Debug, Serialize)]
pub struct NamespaceState {
    /// NQN of its subsystem.
    pub subsystem: String,
    /// Its identifier.
    pub nsid: u32,
    /// `ready`; `not ready`; `needs reopen` when an administrator has to have its disk opened anew; `detached` when it
    /// is served, but its name is gone or leads elsewhere; `closing` while commands still run after its removal.
    pub state: &'static str,
    /// Why it is not simply ready.
    pub reason: Option<String>,
    /// Bytes of its disk behind the last whole block, which are not used.
    pub unused_bytes: u64,
    /// How often its disk has failed.
    pub media_errors: u64,
    /// Size in bytes, whole blocks only.
    pub bytes: u64,
    /// Bytes of a logical block.
    pub block_bytes: u32,
    /// Whether writes are refused.
    pub read_only: bool,
    /// The file or device, `memory` or `null`.
    pub source: String,
    /// Namespace Globally Unique Identifier, as the configuration takes it.
    pub nguid: String,
    /// Universally unique identifier.
    pub uuid: String,
}

impl NamespaceState {
    pub(super) fn of(subsystem: &str, namespace: &Namespace, closing: bool) -> Self {
        let Health { state, reason, unused_bytes } = namespace.health();
        let state = if closing { "closing" } else { state };
        Self {
            subsystem: subsystem.to_owned(),
            nsid: namespace.nsid(),
            state,
            reason,
            unused_bytes,
            media_errors: namespace.media_errors(),
            bytes: namespace.blocks() << namespace.block_shift(),
            block_bytes: namespace.block_bytes(),
            read_only: namespace.read_only(),
            source: namespace.source(),
            nguid: Uuid::from_bytes(*namespace.nguid()).simple().to_string(),
            uuid: namespace.uuid().to_string(),
        }
    }
}

/// A connected queue.
#[derive(Clone, Debug, Serialize)]
pub struct QueueState {
    /// Its identifier; zero is the admin queue.
    pub id: u16,
    /// The core that serves it.
    pub core: usize,
    /// Size in entries.
    pub entries: u32,
    /// The host's address.
    pub peer: String,
    /// Commands that completed: those that read, those that write, all others.
    pub commands: [u64; 3],
    /// Bytes read and bytes written.
    pub bytes: [u64; 2],
}

/// A controller, which is a host that is connected.
#[derive(Clone, Debug, Serialize)]
pub struct ControllerState {
    /// Its identifier.
    pub id: u16,
    /// NQN of its subsystem.
    pub subsystem: String,
    /// NQN of its host.
    pub host: String,
    /// Identifier of its host.
    pub host_id: String,
    /// Its queues.
    pub queues: Vec<QueueState>,
}

/// Where the configuration comes from, and what of it is in no file.
#[derive(Clone, Debug, Serialize)]
pub struct ConfigurationState {
    /// The file.
    pub file: Option<PathBuf>,
    /// When the last change was applied, in seconds since 1970.
    pub applied_at: u64,
    /// How many changes there have been of what is served.
    pub generation: u64,
    /// What was changed by command and is not in the file.
    pub unsaved: Vec<ChangeLine>,
}

/// What a target is doing.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// Version of the program.
    pub version: &'static str,
    /// Where the configuration comes from.
    pub configuration: ConfigurationState,
    /// Files and sockets that the process has open, if the system tells.
    pub open_files: Option<usize>,
    /// What each core has in use.
    pub cores: Vec<CoreUsage>,
    /// Who is connected.
    pub controllers: Vec<ControllerState>,
    /// What is served.
    pub namespaces: Vec<NamespaceState>,
    /// Calls to files that have not returned for a while: what they are on does not answer.
    pub hanging: Vec<Hanging>,
}

/// What there is to see of a target that runs.
#[derive(Clone, Debug)]
pub struct View {
    target: Arc<Target>,
    cores: Cores,
    configured: Current,
}

impl View {
    pub(super) fn new(target: Arc<Target>, cores: Cores, configured: Current) -> Self {
        Self { target, cores, configured }
    }

    /// What is configured now.
    pub fn configured(&self) -> Arc<Configured> {
        self.configured.get()
    }

    pub(super) fn set_configured(&self, configured: Configured) {
        self.configured.set(configured);
    }

    pub(super) fn target(&self) -> &Target {
        &self.target
    }

    pub(super) fn cores(&self) -> &Cores {
        &self.cores
    }

    fn configuration(&self) -> ConfigurationState {
        let configured = self.configured();
        let since_1970 = configured.since.duration_since(UNIX_EPOCH).unwrap_or_default();
        ConfigurationState {
            file: configured.file.clone(),
            applied_at: since_1970.as_secs(),
            generation: self.target.served().generation(),
            unsaved: configured.unsaved().iter().map(Change::line).collect(),
        }
    }

    /// All namespaces, also those that were removed and are not closed yet.
    pub fn list(&self) -> Vec<NamespaceState> {
        let mut all = Vec::new();
        for (subsystem, namespace) in self.target.served().namespaces() {
            all.push(NamespaceState::of(subsystem.nqn(), namespace, false));
        }
        for (subsystem, namespace) in self.cores.disk_handles().removed() {
            all.push(NamespaceState::of(subsystem.nqn(), &namespace, true));
        }
        all
    }

    /// What the target is doing now.
    ///
    /// # Errors
    /// When a core does not answer.
    pub fn status(&self) -> Result<Status, String> {
        let cores = self.cores.usage()?;
        let controllers = self.target.controllers().iter().map(|one| controller(one)).collect();
        let (open_files, namespaces, hanging) = (open_files(), self.list(), worker::hanging());
        let (version, configuration) = (env!("CARGO_PKG_VERSION"), self.configuration());
        Ok(Status { version, configuration, open_files, cores, controllers, namespaces, hanging })
    }
}

fn open_files() -> Option<usize> {
    // Whoever looks has the list itself open.
    std::fs::read_dir("/proc/self/fd").ok().map(|files| files.count() - 1)
}

fn controller(controller: &Controller) -> ControllerState {
    let queues = controller.queues();
    let queues = queues.iter().map(|queue| {
        let counters = queue.io().counters();
        QueueState {
            id: queue.id(),
            core: queue.core(),
            entries: queue.entries(),
            peer: queue.peer().to_string(),
            commands: [counters.commands_read, counters.commands_write, counters.commands_other],
            bytes: [counters.bytes_read, counters.bytes_written],
        }
    });
    ControllerState {
        id: controller.id(),
        subsystem: controller.subsystem().nqn().to_owned(),
        host: controller.host().nqn.clone(),
        host_id: Uuid::from_bytes(controller.host().id).to_string(),
        queues: queues.collect(),
    }
}
