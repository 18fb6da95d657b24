//! Adds, removes and resizes namespaces while hosts use the others.
//!
//! A namespace is added on every core before any host is told of it, and is not told of any more before the cores take
//! no more commands for it: whatever a host is told of, every queue of it can reach.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Weak};

use ringfab_block::Backing;
use serde_json::{Map, Value};

use super::status::NamespaceState;
use crate::config::{Config, ConfigError, NamespaceConfig, Source, SubsystemConfig};
use crate::core::{Cores, NamespaceMessage};
use crate::identity::Identity;
use crate::namespace::Namespace;
use crate::subsystem::{NSID_MAX, Subsystem};
use crate::target::Target;

/// Manages the namespaces of a target that runs.
#[derive(Debug)]
pub struct Manager {
    target: Arc<Target>,
    cores: Cores,
    identity: Identity,
    /// What the configuration said at the start.
    configured: Vec<SubsystemConfig>,
    /// Files to look at for their sizes, by subsystem and namespace. The disks of the cores are no business of this thread.
    files: BTreeMap<(usize, u32), File>,
    /// Namespaces that were removed while commands ran, and their subsystems.
    removed: Vec<(Arc<Subsystem>, Weak<Namespace>)>,
}

impl Manager {
    /// Manages a target whose cores run.
    pub fn new(target: Arc<Target>, cores: Cores, identity: Identity, config: &Config) -> Self {
        let configured = config.subsystems.clone();
        let (files, removed) = (BTreeMap::new(), Vec::new());
        let mut manager = Self { target, cores, identity, configured, files, removed };
        for subsystem in manager.target.subsystems().to_vec() {
            for namespace in subsystem.namespaces().iter().filter(|one| one.is_ready()) {
                // One that cannot be opened here is looked at again by the next poll.
                let _unseen = manager.watch(&subsystem, namespace);
            }
        }
        manager
    }

    /// Serves one more namespace, which `table` describes as `[[subsystem.namespace]]` does.
    ///
    /// # Errors
    /// What is wrong with it, or why the cores cannot open it; nothing has changed then.
    pub fn add(
        &mut self,
        subsystem: Option<&str>,
        mut table: Map<String, Value>,
    ) -> Result<NamespaceState, String> {
        let subsystem = self.subsystem(subsystem)?;
        if !table.contains_key("nsid") {
            table.insert("nsid".to_owned(), Value::from(free_nsid(&subsystem)?));
        }
        let text = toml::to_string(&table).map_err(|error| format!("not a namespace: {error}"))?;
        let mut config = Config::parse_namespace(&text).map_err(|errors| explain(&errors))?;
        if subsystem.namespace(config.nsid).is_some() {
            return Err(format!("namespace {} is there already", config.nsid));
        }
        if let Source::File { path, .. } = &config.source {
            self.check_unused(path)?;
        }
        self.identify(&subsystem, &mut config)?;
        let namespace = self.target.make_namespace(subsystem.nqn(), &config, &self.identity);
        let namespace = namespace.map_err(|error| error.to_string())?;
        self.watch(&subsystem, &namespace)?;
        if let Err(error) = self.open(&subsystem, &namespace) {
            self.close(&subsystem, namespace.nsid())?;
            return Err(error);
        }
        subsystem.add(&namespace);
        self.target.namespace_changed(&subsystem, namespace.nsid());
        let state = NamespaceState::of(subsystem.nqn(), &namespace, false);
        tracing::info!(nqn = state.subsystem, nsid = state.nsid, source = state.source, "namespace added");
        Ok(state)
    }

    /// Serves a namespace no longer. Commands that have begun go on; its disks are closed when they have ended.
    ///
    /// # Errors
    /// When there is no such namespace.
    pub fn remove(&mut self, subsystem: Option<&str>, nsid: u32) -> Result<NamespaceState, String> {
        let (subsystem, namespace) = self.namespace(subsystem, nsid)?;
        subsystem.remove(nsid);
        let closed = self.close(&subsystem, nsid);
        self.target.namespace_changed(&subsystem, nsid);
        let state = NamespaceState::of(subsystem.nqn(), &namespace, true);
        self.removed.push((subsystem, Arc::downgrade(&namespace)));
        tracing::info!(nqn = state.subsystem, nsid, "namespace removed");
        closed.map(|()| state)
    }

    /// Looks at the size of a namespace's file or device, and makes a regular file `bytes` long before, if so asked. Tells
    /// hosts when it has changed.
    ///
    /// # Errors
    /// When there is no such namespace, it has no file, or the file cannot grow.
    pub fn resize(
        &mut self,
        subsystem: Option<&str>,
        nsid: u32,
        bytes: Option<u64>,
    ) -> Result<NamespaceState, String> {
        let (subsystem, namespace) = self.namespace(subsystem, nsid)?;
        let Backing::File { path, .. } = namespace.backing() else {
            return Err("only files and devices change their size".to_owned());
        };
        if let Some(bytes) = bytes {
            self.grow(&subsystem, &namespace, path, bytes)?;
        }
        self.look(&subsystem, &namespace)?;
        Ok(NamespaceState::of(subsystem.nqn(), &namespace, false))
    }

    /// Looks at the sizes of all files and devices, and whether those that were missing are there now.
    pub fn poll(&mut self) {
        self.removed.retain(|(_, namespace)| namespace.strong_count() != 0);
        for subsystem in self.target.subsystems().to_vec() {
            for namespace in subsystem.namespaces() {
                if let Err(error) = self.look(&subsystem, &namespace) {
                    tracing::debug!(nsid = namespace.nsid(), error, "cannot look at a namespace");
                }
            }
        }
    }

    /// All namespaces, also those that were removed and are not closed yet.
    pub fn list(&self) -> Vec<NamespaceState> {
        let mut all = Vec::new();
        for subsystem in self.target.subsystems() {
            let states = subsystem.namespaces();
            all.extend(states.iter().map(|one| NamespaceState::of(subsystem.nqn(), one, false)));
        }
        for (subsystem, namespace) in &self.removed {
            all.extend(namespace.upgrade().map(|one| NamespaceState::of(subsystem.nqn(), &one, true)));
        }
        all
    }

    pub(super) fn target(&self) -> &Target {
        &self.target
    }

    pub(super) fn cores(&self) -> &Cores {
        &self.cores
    }

    fn subsystem(&self, nqn: Option<&str>) -> Result<Arc<Subsystem>, String> {
        match (nqn, self.target.subsystems()) {
            (None, [only]) => Ok(Arc::clone(only)),
            (None, _) => Err("there are several subsystems: name one".to_owned()),
            (Some(nqn), all) => {
                let found = all.iter().find(|subsystem| subsystem.nqn() == nqn);
                found.cloned().ok_or_else(|| format!("there is no subsystem {nqn}"))
            }
        }
    }

    fn namespace(&self, nqn: Option<&str>, nsid: u32) -> Result<(Arc<Subsystem>, Arc<Namespace>), String> {
        let subsystem = self.subsystem(nqn)?;
        let namespace = subsystem.namespace(nsid);
        let namespace =
            namespace.ok_or_else(|| format!("there is no namespace {nsid} in {}", subsystem.nqn()))?;
        Ok((subsystem, namespace))
    }

    /// Two namespaces with the same file would spoil each other, also while one is still closing.
    fn check_unused(&self, path: &Path) -> Result<(), String> {
        let closing = self.removed.iter().filter_map(|(_, namespace)| namespace.upgrade());
        let uses = |namespace: &Arc<Namespace>| match namespace.backing() {
            Backing::File { path: other, .. } => other.components().eq(path.components()),
            _ => false,
        };
        match self.target.namespaces().into_iter().chain(closing).find(uses) {
            Some(other) => Err(format!("{} is namespace {} already", path.display(), other.nsid())),
            None => Ok(()),
        }
    }

    /// Gives a namespace its identifiers: those that it had, if it comes from the configuration with the same file, and
    /// otherwise others than any namespace of this number has ever had.
    fn identify(&self, subsystem: &Subsystem, config: &mut NamespaceConfig) -> Result<(), String> {
        let configured = self.configured.iter().find(|one| one.nqn == subsystem.nqn());
        let known = configured.and_then(|one| one.namespaces.iter().find(|known| known.nsid == config.nsid));
        let what = match &config.source {
            Source::File { path, .. } => {
                if let Some(known) = known.filter(|known| known.source == config.source) {
                    config.nguid = config.nguid.or(known.nguid);
                    config.uuid = config.uuid.or(known.uuid);
                    return Ok(());
                }
                path.as_os_str().as_encoded_bytes().to_vec()
            }
            Source::Memory(_) | Source::Null(_) => {
                let mut once = [0; 32];
                getrandom::fill(&mut once).map_err(|error| error.to_string())?;
                once.to_vec()
            }
        };
        let (nguid, uuid) = self.identity.of_added(subsystem.nqn(), config.nsid, &what);
        config.nguid = config.nguid.or(Some(nguid));
        config.uuid = config.uuid.or(Some(uuid));
        Ok(())
    }

    /// Opens a namespace's file, to see its size.
    fn watch(&mut self, subsystem: &Subsystem, namespace: &Namespace) -> Result<(), String> {
        if let Backing::File { path, .. } = namespace.backing() {
            let file =
                File::open(path).map_err(|error| format!("cannot open {}: {error}", path.display()))?;
            self.files.insert((subsystem.index(), namespace.nsid()), file);
        }
        Ok(())
    }

    fn open(&self, subsystem: &Subsystem, namespace: &Arc<Namespace>) -> Result<(), String> {
        let subsystem = subsystem.index();
        self.cores.manage(|reply| NamespaceMessage::Open {
            subsystem,
            namespace: Arc::clone(namespace),
            reply,
        })
    }

    fn close(&mut self, subsystem: &Subsystem, nsid: u32) -> Result<(), String> {
        let subsystem = subsystem.index();
        self.files.remove(&(subsystem, nsid));
        self.cores.manage(|reply| NamespaceMessage::Remove { subsystem, nsid, reply })
    }

    /// Makes a regular file longer: the very one that is served, whatever its name is by now.
    fn grow(
        &self,
        subsystem: &Subsystem,
        namespace: &Namespace,
        path: &Path,
        bytes: u64,
    ) -> Result<(), String> {
        let served = self.files.get(&(subsystem.index(), namespace.nsid()));
        let served =
            served.ok_or("the namespace is not ready")?.metadata().map_err(|error| error.to_string())?;
        let refused = |error: io::Error| format!("cannot resize {}: {error}", path.display());
        let file = OpenOptions::new().write(true).open(path).map_err(refused)?;
        let found = file.metadata().map_err(refused)?;
        if !found.is_file() {
            return Err(format!("{} is not a regular file: resize it yourself", path.display()));
        }
        if (found.dev(), found.ino()) != (served.dev(), served.ino()) {
            return Err(format!("{} is another file than the one that is served", path.display()));
        }
        if bytes < found.len() {
            return Err(format!("{bytes} bytes are less than the {} that there are", found.len()));
        }
        file.set_len(bytes).map_err(refused)
    }

    /// Looks at the size of a namespace's file, or whether it can be opened now.
    fn look(&mut self, subsystem: &Arc<Subsystem>, namespace: &Arc<Namespace>) -> Result<(), String> {
        if !matches!(namespace.backing(), Backing::File { .. }) {
            return Ok(());
        }
        if !namespace.is_ready() {
            self.watch(subsystem, namespace)?;
            self.open(subsystem, namespace)?;
            return self.changed(subsystem, namespace);
        }
        let key = (subsystem.index(), namespace.nsid());
        let Some(mut file) = self.files.get(&key) else { return self.watch(subsystem, namespace) };
        let bytes = file.seek(SeekFrom::End(0)).map_err(|error| error.to_string())?;
        let blocks = bytes >> namespace.block_shift();
        if blocks == namespace.blocks() {
            return Ok(());
        }
        // No command may pass the check against the namespace's size and then not fit the disk.
        let growing = blocks > namespace.blocks();
        if !growing {
            namespace.set_ready(bytes, namespace.volatile_cache());
        }
        let index = namespace.index();
        self.cores.manage(|reply| NamespaceMessage::Resize { index, bytes, reply })?;
        if growing {
            namespace.set_ready(bytes, namespace.volatile_cache());
        }
        self.changed(subsystem, namespace)
    }

    fn changed(&self, subsystem: &Arc<Subsystem>, namespace: &Namespace) -> Result<(), String> {
        let (nsid, blocks) = (namespace.nsid(), namespace.blocks());
        tracing::info!(nqn = subsystem.nqn(), nsid, blocks, "a namespace has another size");
        self.target.namespace_changed(subsystem, nsid);
        Ok(())
    }
}

/// The identifier after the largest one that is in use, as in a configuration, or else the smallest that is free.
fn free_nsid(subsystem: &Subsystem) -> Result<u32, String> {
    let used: Vec<u32> = subsystem.namespaces().iter().map(|namespace| namespace.nsid()).collect();
    let next = used.last().map_or(1, |last| last + 1);
    let free = (next..=NSID_MAX).chain(1..=NSID_MAX).find(|nsid| !used.contains(nsid));
    free.ok_or_else(|| format!("{} has as many namespaces as it may", subsystem.nqn()))
}

/// Mistakes without the places of a file that there is not.
fn explain(errors: &[ConfigError]) -> String {
    let explained = errors.iter().map(|error| format!("{} {}", error.key, error.message).trim().to_owned());
    explained.collect::<Vec<_>>().join("; ")
}
