//! Everything that is served, and who is connected to it.

mod connect;
mod refusal;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringfab_block::Backing;
use ringfab_memory::SharedMemory;

pub use connect::{Attached, ConnectRequest};
pub(crate) use connect::{field, invalid_command_parameter};
pub(crate) use refusal::Refusal;

use crate::config::{Config, ListenerConfig, NamespaceConfig, Source, Transport};
use crate::controller::{Controller, ControllerLimits};
use crate::identity::Identity;
use crate::namespace::{Index, Indexes, Namespace, NamespaceParameters};
use crate::subsystem::Subsystem;

/// The most controllers at once, so that hosts cannot take all memory; each is a few kilobytes.
const CONTROLLERS_MAX: usize = 1024;

/// The largest controller identifier that is given out; those above are reserved (Base 2.0, section 3.1.3).
const CONTROLLER_ID_MAX: u16 = 0xffef;

/// Everything that is served, and who is connected to it.
#[derive(Debug)]
pub struct Target {
    subsystems: Vec<Arc<Subsystem>>,
    discovery: Arc<Subsystem>,
    indexes: Indexes,
    listeners: Mutex<Vec<Listener>>,
    generation: AtomicU64,
    controllers: Mutex<Controllers>,
    admin_core: AtomicUsize,
}

/// A listener as hosts see it.
#[derive(Clone, Debug)]
pub(crate) struct Listener {
    /// The configured address, or the bound one when it is known.
    pub(crate) address: SocketAddr,
    /// How they talk to it.
    pub(crate) transport: Transport,
    /// What its controllers may use.
    pub(crate) limits: ControllerLimits,
}

#[derive(Debug, Default)]
struct Controllers {
    by_id: BTreeMap<u16, Arc<Controller>>,
    last_id: u16,
}

/// Why a target cannot be made of a configuration.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// The memory of a memory namespace cannot be reserved.
    #[error("cannot reserve {bytes} bytes for namespace {nsid} of {nqn}: {reason}")]
    Memory {
        /// The subsystem.
        nqn: String,
        /// The namespace.
        nsid: u32,
        /// Its size in bytes.
        bytes: u64,
        /// What the system says.
        reason: String,
    },
}

impl Target {
    /// A target of a configuration. Files are not opened here: each core opens them and reports with
    /// [`Namespace::set_ready`].
    ///
    /// # Errors
    /// When the memory of a memory namespace cannot be reserved.
    pub fn new(config: &Config, identity: &Identity) -> Result<Arc<Self>, TargetError> {
        let indexes = Indexes::default();
        let mut subsystems = Vec::new();
        for subsystem in &config.subsystems {
            let mut namespaces = Vec::new();
            for namespace in &subsystem.namespaces {
                namespaces.push(make_namespace(&subsystem.nqn, namespace, indexes.take(), identity)?);
            }
            subsystems.push(Arc::new(Subsystem::new(
                subsystems.len(),
                subsystem.nqn.clone(),
                subsystem.serial.clone(),
                subsystem.model.clone(),
                subsystem.access.clone(),
                &namespaces,
            )));
        }
        Ok(Arc::new(Self {
            subsystems,
            discovery: Arc::new(Subsystem::discovery()),
            indexes,
            listeners: Mutex::new(config.listeners.iter().map(Listener::new).collect()),
            generation: AtomicU64::new(1),
            controllers: Mutex::default(),
            admin_core: AtomicUsize::new(0),
        }))
    }

    /// All active namespaces of all subsystems, in the order of those.
    pub fn namespaces(&self) -> Vec<Arc<Namespace>> {
        self.subsystems.iter().flat_map(|subsystem| subsystem.namespaces()).collect()
    }

    /// A namespace that is not active yet. It has its identifiers from `config`, or from `identity`.
    ///
    /// # Errors
    /// When the memory of a memory namespace cannot be reserved.
    pub(crate) fn make_namespace(
        &self,
        nqn: &str,
        config: &NamespaceConfig,
        identity: &Identity,
    ) -> Result<Arc<Namespace>, TargetError> {
        make_namespace(nqn, config, self.indexes.take(), identity)
    }

    /// The subsystems for I/O.
    pub fn subsystems(&self) -> &[Arc<Subsystem>] {
        &self.subsystems
    }

    /// The controllers that exist now, by identifier.
    pub fn controllers(&self) -> Vec<Arc<Controller>> {
        self.table().by_id.values().cloned().collect()
    }

    /// The core for the next admin queue, of so many: they take turns.
    pub fn next_admin_core(&self, cores: usize) -> usize {
        self.admin_core.fetch_add(1, Ordering::Relaxed) % cores
    }

    /// A listener (by its position in the configuration) is bound: discovery shows this address from now on.
    pub fn set_listener_address(&self, index: usize, address: SocketAddr) {
        let mut listeners = self.lock_listeners();
        let changed = listeners[index].address != address;
        listeners[index].address = address;
        drop(listeners);
        if changed {
            self.generation.fetch_add(1, Ordering::Relaxed);
            let controllers = self.controllers();
            controllers.iter().filter(|one| one.is_discovery()).for_each(|one| one.discovery_changed());
        }
    }

    /// A namespace appeared, vanished or changed size: the hosts of its subsystem are told. Calls the wakes of
    /// controllers.
    pub fn namespace_changed(&self, subsystem: &Arc<Subsystem>, nsid: u32) {
        let sees = |controller: &&Arc<Controller>| Arc::ptr_eq(controller.subsystem(), subsystem);
        self.controllers().iter().filter(sees).for_each(|controller| controller.namespace_changed(nsid));
    }

    /// How often what discovery shows has changed.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    pub(crate) fn listeners(&self) -> Vec<Listener> {
        self.lock_listeners().clone()
    }

    pub(crate) fn remove(&self, controller_id: u16) {
        // The controller is dropped after the lock: its drop takes the subsystem's.
        let removed = self.table().by_id.remove(&controller_id);
        drop(removed);
    }

    fn table(&self) -> MutexGuard<'_, Controllers> {
        self.controllers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_listeners(&self) -> MutexGuard<'_, Vec<Listener>> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Controllers {
    /// An identifier that is not in use; the one used last comes again last, so that a late command of an old
    /// association does not meet a new controller.
    fn next_id(&mut self) -> Option<u16> {
        if self.by_id.len() >= CONTROLLERS_MAX {
            return None;
        }
        loop {
            self.last_id = if self.last_id >= CONTROLLER_ID_MAX { 1 } else { self.last_id + 1 };
            if !self.by_id.contains_key(&self.last_id) {
                return Some(self.last_id);
            }
        }
    }
}

impl Listener {
    fn new(config: &ListenerConfig) -> Self {
        let limits = ControllerLimits {
            transport: config.transport,
            queue_entries_max: config.queue_depth_max,
            io_queues_max: config.io_queues_max,
            in_capsule_bytes: config.in_capsule_bytes,
        };
        Self { address: config.address, transport: config.transport, limits }
    }

    /// Whether a connection with this local address came in here.
    pub(crate) fn covers(&self, local: SocketAddr) -> bool {
        let any = self.address.ip().is_unspecified();
        self.address.port() == local.port() && (any || self.address.ip() == local.ip())
    }
}

fn make_namespace(
    nqn: &str,
    config: &NamespaceConfig,
    index: Index,
    identity: &Identity,
) -> Result<Arc<Namespace>, TargetError> {
    let nsid = config.nsid;
    let parameters = NamespaceParameters {
        nsid,
        index,
        block_bytes: config.block_bytes,
        backing: backing(nqn, config)?,
        read_only: config.read_only,
        shared: config.shared,
        nguid: config.nguid.unwrap_or_else(|| identity.nguid(nqn, nsid)),
        uuid: config.uuid.unwrap_or_else(|| identity.uuid(nqn, nsid)),
    };
    Ok(Arc::new(Namespace::new(parameters)))
}

fn backing(nqn: &str, config: &NamespaceConfig) -> Result<Backing, TargetError> {
    Ok(match &config.source {
        Source::File { path, direct } => {
            Backing::File { path: path.clone(), direct: *direct, read_only: config.read_only }
        }
        Source::Null(bytes) => Backing::Null { bytes: *bytes },
        Source::Memory(bytes) => {
            let refused = |reason: String| TargetError::Memory {
                nqn: nqn.to_owned(),
                nsid: config.nsid,
                bytes: *bytes,
                reason,
            };
            let size = usize::try_from(*bytes).map_err(|error| refused(error.to_string()))?;
            let memory = SharedMemory::new(size).map_err(|error| refused(error.to_string()))?;
            Backing::Memory(Arc::new(memory))
        }
    })
}
