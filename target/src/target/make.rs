//! Subsystems and namespaces from their configurations.

use std::sync::Arc;

use ringfab_block::Backing;
use ringfab_memory::SharedMemory;

use super::Target;
use crate::backings::Backings;
use crate::config::{NamespaceConfig, Source, SubsystemConfig};
use crate::identity::Identity;
use crate::known_disks::{Content, Identifiers, KnownDisk};
use crate::model::namespace::NamespaceParameters;
use crate::model::{Draft, Namespace, ServedError, Subsystem};

/// Why something that is configured cannot be served.
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
    /// It contradicts what is served beside it.
    #[error(transparent)]
    Served(ServedError),
}

impl Target {
    /// Adds a subsystem to a draft, with its namespaces and hosts.
    ///
    /// # Errors
    /// When the memory of a memory namespace cannot be reserved, or two namespaces have one identifier.
    pub fn add_subsystem(
        &self,
        draft: &mut Draft,
        config: &SubsystemConfig,
        identity: &Identity,
    ) -> Result<(), TargetError> {
        let SubsystemConfig { nqn, serial, model, access, demands, namespaces, .. } = config;
        let index = self.subsystem_indexes.take();
        let subsystem = Subsystem::new(index, nqn.clone(), serial.clone(), model.clone());
        draft.add_subsystem(Arc::new(subsystem), access.clone());
        draft.set_demands(nqn, *demands)?;
        draft.set_controller_ids(nqn, config.controller_ids)?;
        draft.set_discovery_listeners(nqn, &config.discovery_listeners)?;
        draft.set_access_groups(nqn, |groups| groups.clone_from(&config.ana_groups))?;
        for namespace in namespaces {
            self.add_namespace(draft, nqn, namespace, identity)?;
        }
        Ok(())
    }

    /// Adds a namespace to a draft, for the hosts that are to see it.
    ///
    /// # Errors
    /// When the memory of a memory namespace cannot be reserved, or its subsystem has one with its identifier.
    pub fn add_namespace(
        &self,
        draft: &mut Draft,
        nqn: &str,
        config: &NamespaceConfig,
        identity: &Identity,
    ) -> Result<(), TargetError> {
        draft.add_namespace(nqn, self.make_namespace(nqn, config, identity)?)?;
        draft.show_namespace(nqn, config.nsid, &config.hosts)?;
        draft.group_namespace(nqn, config.nsid, config.ana_group)?;
        Ok(draft.limit_namespace(nqn, config.nsid, &config.limits)?)
    }

    /// A namespace that is not served yet. It has its identifiers from `config`, or from `identity`.
    ///
    /// # Errors
    /// When the memory of a memory namespace cannot be reserved.
    pub fn make_namespace(
        &self,
        nqn: &str,
        config: &NamespaceConfig,
        identity: &Identity,
    ) -> Result<Arc<Namespace>, TargetError> {
        let nsid = config.nsid;
        let backing = backing(nqn, config, &self.backings)?;
        let given = (config.nguid, config.uuid);
        let content = match given {
            (Some(_), Some(_)) => Content::made(&backing, None),
            _ => Content::look(&self.known_disks, &backing),
        };
        let disk = KnownDisk::new(nqn, nsid, config.block_bytes, content);
        let Identifiers { nguid, uuid } = identity.identifiers(&disk, given, true);
        let parameters = NamespaceParameters {
            nsid,
            index: self.namespace_indexes.take(),
            epoch: Arc::clone(&self.epoch),
            block_bytes: config.block_bytes,
            backing,
            read_only: config.read_only,
            shared: config.shared,
            nguid,
            uuid,
        };
        Ok(Arc::new(Namespace::new(parameters)))
    }
}

fn backing(nqn: &str, config: &NamespaceConfig, backings: &Backings) -> Result<Backing, TargetError> {
    if let Some(driver) = backings.driver_of(config) {
        return Ok(Backing::Device(driver));
    }
    Ok(match &config.source {
        Source::File { path, direct } => {
            Backing::File { path: path.clone(), direct: *direct, read_only: config.read_only }
        }
        Source::Nbd(_) | Source::Rbd(_) | Source::Device(_) => unreachable!("they have drivers"),
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
