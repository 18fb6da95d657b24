//! Everything that is served, and who is connected to it.

mod connect;
mod pools;
mod refusal;
#[cfg(test)]
pub(crate) mod tests;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringfab_block::Backing;
use ringfab_fabric::zone_index;
use ringfab_memory::SharedMemory;

pub use connect::{Attached, ConnectRequest};
pub(crate) use refusal::Refusal;

use crate::config::{Config, ListenerConfig, NamespaceConfig, Source, Transport};
use crate::controller::{Controller, ControllerLimits};
use crate::identity::Identity;
use crate::model::Subsystem;
use crate::model::namespace::{Index, Indexes, Namespace, NamespaceParameters};
use crate::placement::Placement;
use pools::Controllers;

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
    placement: Arc<Placement>,
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
            placement: Arc::default(),
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
        self.table().all().cloned().collect()
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

    /// The admin queue of a controller has ended: it takes no further queue, and its identifier is free. Its I/O
    /// queues are still to be ended by their cores.
    pub fn admin_ended(&self, controller: &Controller) {
        controller.admin_ended();
        self.remove(controller);
    }

    /// Forgets a controller, if it is not forgotten already.
    fn remove(&self, controller: &Controller) {
        // The controller is dropped after the lock: its drop takes the subsystem's.
        let removed = self.table().remove(controller);
        drop(removed);
    }

    /// Which cores serve which I/O queues.
    pub(crate) fn placement(&self) -> &Arc<Placement> {
        &self.placement
    }

    fn table(&self) -> MutexGuard<'_, Controllers> {
        self.controllers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_listeners(&self) -> MutexGuard<'_, Vec<Listener>> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
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
        // The interface of a link-local address is known when it is bound.
        let address = SocketAddr::new(config.address.ip(), config.port);
        Self { address, transport: config.transport, limits }
    }

    /// Whether a connection with this local address came in here.
    pub(crate) fn covers(&self, local: SocketAddr) -> bool {
        let any = self.address.ip().is_unspecified();
        let same = self.address.ip() == local.ip() && zone_index(self.address) == zone_index(local);
        self.address.port() == local.port() && (any || same)
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
        Source::Device(driver) => Backing::Device(driver.clone()),
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
