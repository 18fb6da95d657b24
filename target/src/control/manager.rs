//! Adds, removes and resizes namespaces while hosts use the others.
//!
//! A namespace is added on every core before any host is told of it, and is not told of any more before the cores take
//! no more commands for it: whatever a host is told of, every queue of it can reach.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ringfab_block::{Backing, OpenedFile};
use serde_json::{Map, Value};

use super::status::{NamespaceState, Status, View};
use crate::config::{Config, ConfigError, NamespaceConfig, Source, SubsystemConfig};
use crate::core::{Cores, NamespaceMessage};
use crate::disks::grow::grow;
use crate::disks::keeper::Seen;
use crate::disks::open::Wanted;
use crate::disks::{Keeper, Keepers};
use crate::identity::Identity;
use crate::limits::NSID_MAX;
use crate::model::Namespace;
use crate::model::Subsystem;
use crate::model::disk_failures;
use crate::target::Target;
use crate::worker;

/// How long a request waits for a file that hangs.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);

/// How long a look from time to time waits for it; the next look tries again.
const POLL_LIMIT: Duration = Duration::from_secs(1);

/// Manages the namespaces of a target that runs.
#[derive(Debug)]
pub struct Manager {
    view: View,
    identity: Identity,
    /// What the configuration said at the start.
    configured: Vec<SubsystemConfig>,
}

impl Manager {
    /// Manages a target whose cores run.
    pub fn new(target: Arc<Target>, cores: Cores, identity: Identity, config: &Config) -> Self {
        Self { view: View::new(target, cores), identity, configured: config.subsystems.clone() }
    }

    /// What there is to see of it, also while it is busy.
    pub fn view(&self) -> View {
        self.view.clone()
    }

    /// Serves one more namespace, which `table` describes as `[[subsystem.namespace]]` does.
    ///
    /// # Errors
    /// What is wrong with it, or why it cannot be opened; nothing has changed then.
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
        self.identify(&subsystem, &mut config)?;
        let namespace = self.target().make_namespace(subsystem.nqn(), &config, &self.identity);
        let namespace = namespace.map_err(|error| error.to_string())?;
        let keeper = self.wanted(&subsystem, &namespace).map(|wanted| wanted.open_patiently(REQUEST_LIMIT));
        let keeper = keeper.transpose().map_err(|error| error.to_string())?;
        self.open(&subsystem, &namespace, keeper)?;
        subsystem.add(&namespace);
        self.target().namespace_changed(&subsystem, namespace.nsid());
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
        let closed = self.close(&subsystem, &namespace);
        self.target().namespace_changed(&subsystem, nsid);
        let state = NamespaceState::of(subsystem.nqn(), &namespace, true);
        self.keepers().note_removed(&subsystem, &namespace);
        tracing::info!(nqn = state.subsystem, nsid, "namespace removed");
        closed.map(|()| state)
    }

    /// Looks at the size of a namespace's file or device, and makes a regular file `bytes` long before, if so asked.
    /// Tells hosts when it has changed.
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

    /// Opens a namespace's disk anew on every core. What was lost is given up with that: Flush may succeed again.
    ///
    /// # Errors
    /// When it cannot be opened or still fails, or is another disk by now than the one that hosts use.
    pub fn reopen(&mut self, subsystem: Option<&str>, nsid: u32) -> Result<NamespaceState, String> {
        let (subsystem, namespace) = self.namespace(subsystem, nsid)?;
        let why = namespace.needs_reopen();
        if let Some(mut wanted) = self.wanted(&subsystem, &namespace) {
            wanted.hold = self.with_keeper(&subsystem, nsid, Keeper::hold);
            let keeper = wanted.open_patiently(REQUEST_LIMIT).map_err(|error| error.to_string())?;
            self.exchange(&subsystem, &namespace, keeper)?;
        }
        namespace.reopened();
        tracing::warn!(
            subsystem = subsystem.nqn(),
            nsid,
            needed = why.unwrap_or_default(),
            "namespace opened anew"
        );
        self.target().namespace_changed(&subsystem, nsid);
        Ok(NamespaceState::of(subsystem.nqn(), &namespace, false))
    }

    /// Looks at the sizes of all files and devices, and whether those that were missing are there now.
    pub fn poll(&mut self) {
        for subsystem in self.target().subsystems().to_vec() {
            for namespace in subsystem.namespaces() {
                if let Err(error) = self.look(&subsystem, &namespace) {
                    tracing::debug!(nsid = namespace.nsid(), error, "cannot look at a namespace");
                }
            }
        }
    }

    /// All namespaces, also those that were removed and are not closed yet.
    pub fn list(&self) -> Vec<NamespaceState> {
        self.view.list()
    }

    /// What the target is doing now.
    ///
    /// # Errors
    /// When a core does not answer.
    pub fn status(&self) -> Result<Status, String> {
        self.view.status()
    }

    fn target(&self) -> &Target {
        self.view.target()
    }

    fn cores(&self) -> &Cores {
        self.view.cores()
    }

    fn keepers(&self) -> &Arc<Keepers> {
        self.cores().keepers()
    }

    fn with_keeper<R>(&self, subsystem: &Subsystem, nsid: u32, act: impl FnOnce(&Keeper) -> R) -> Option<R> {
        self.keepers().with((subsystem.index(), nsid), act)
    }

    fn wanted(&self, subsystem: &Subsystem, namespace: &Namespace) -> Option<Wanted> {
        Wanted::of(namespace, subsystem.nqn(), self.cores().count())
    }

    fn subsystem(&self, nqn: Option<&str>) -> Result<Arc<Subsystem>, String> {
        match (nqn, self.target().subsystems()) {
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
            Source::Memory(_) | Source::Null(_) | Source::Device(_) => {
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

    /// Has the cores serve a namespace; when one cannot, none does.
    fn open(
        &self,
        subsystem: &Arc<Subsystem>,
        namespace: &Arc<Namespace>,
        keeper: Option<Keeper>,
    ) -> Result<(), String> {
        let files = keeper.as_ref().map(Keeper::files).unwrap_or_default();
        if let Some(keeper) = keeper {
            self.keepers().serve(subsystem, namespace, keeper);
        }
        let opened = self.tell_all(&Arc::new(files), |files, reply| NamespaceMessage::Open {
            subsystem: subsystem.index(),
            namespace: Arc::clone(namespace),
            files,
            reply,
        });
        if let Err(error) = opened {
            namespace.set_not_ready(error.as_str());
            self.close(subsystem, namespace)?;
            return Err(error);
        }
        Ok(())
    }

    fn tell_all(
        &self,
        files: &Arc<Vec<OpenedFile>>,
        message: impl Fn(Arc<Vec<OpenedFile>>, crate::core::Reply) -> NamespaceMessage,
    ) -> Result<(), String> {
        self.cores().manage(|reply| message(Arc::clone(files), reply))
    }

    fn close(&self, subsystem: &Arc<Subsystem>, namespace: &Arc<Namespace>) -> Result<(), String> {
        let (index, nsid) = (subsystem.index(), namespace.nsid());
        let closed = self.cores().manage(|reply| NamespaceMessage::Remove { subsystem: index, nsid, reply });
        self.keepers().stop(subsystem, namespace);
        closed
    }

    /// Has the cores go on with a disk that was opened anew.
    fn exchange(
        &self,
        subsystem: &Arc<Subsystem>,
        namespace: &Arc<Namespace>,
        keeper: Keeper,
    ) -> Result<(), String> {
        let served = self.with_keeper(subsystem, namespace.nsid(), Keeper::identity);
        if namespace.is_ready() && served.is_some_and(|served| served != keeper.identity()) {
            let path = keeper.path().display();
            return Err(format!(
                "{path} is another disk by now than the one that is served: put that back, or remove the namespace and add it"
            ));
        }
        // What fails only now would be told once, too.
        let synced = keeper.sync(REQUEST_LIMIT).map_err(|error| error.to_string())?;
        synced.map_err(|error| format!("{} still fails: {error}", keeper.path().display()))?;
        keeper.drop_cache();
        let files = Arc::new(keeper.files());
        let (bytes, was_ready) = (keeper.bytes(), namespace.is_ready());
        let told = self.tell_all(&files, |files, reply| NamespaceMessage::Reopen {
            subsystem: subsystem.index(),
            namespace: Arc::clone(namespace),
            files,
            reply,
        });
        drop(files);
        if let Err(error) = told {
            self.keepers().close_later(subsystem, namespace, keeper);
            return Err(error);
        }
        self.keepers().serve(subsystem, namespace, keeper);
        let changed = namespace.set_ready(bytes, namespace.volatile_cache() || !was_ready);
        if changed {
            self.changed(subsystem, namespace);
        }
        Ok(())
    }

    /// Makes a regular file longer: the very one that is served, whatever its name is by now.
    fn grow(
        &self,
        subsystem: &Subsystem,
        namespace: &Namespace,
        path: &Path,
        bytes: u64,
    ) -> Result<(), String> {
        let served = self.with_keeper(subsystem, namespace.nsid(), Keeper::identity);
        let served = served.ok_or("the namespace is not ready")?;
        let at = path.to_owned();
        let grown = worker::within("resizing", path, REQUEST_LIMIT, move || grow(&at, served, bytes));
        grown.map_err(|error| error.to_string())?
    }

    /// Looks at the size of a namespace's file, or whether it can be opened now.
    fn look(&self, subsystem: &Arc<Subsystem>, namespace: &Arc<Namespace>) -> Result<(), String> {
        let Some(wanted) = self.wanted(subsystem, namespace) else { return Ok(()) };
        if !namespace.is_ready() {
            return self.try_again(subsystem, namespace, &wanted);
        }
        let Some(look) = self.with_keeper(subsystem, namespace.nsid(), Keeper::look) else { return Ok(()) };
        let seen = look().map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
        self.note_name(subsystem, namespace, seen.detached.as_deref());
        self.note_size(subsystem, namespace, &seen)
    }

    /// A disk that was missing may be there now. One that an administrator has to look after is not touched.
    fn try_again(
        &self,
        subsystem: &Arc<Subsystem>,
        namespace: &Arc<Namespace>,
        wanted: &Wanted,
    ) -> Result<(), String> {
        if let Some(why) = namespace.needs_reopen() {
            return Err(why);
        }
        match wanted.open_within(POLL_LIMIT) {
            Ok(keeper) => {
                let files = Arc::new(keeper.files());
                self.keepers().serve(subsystem, namespace, keeper);
                self.tell_all(&files, |files, reply| NamespaceMessage::Open {
                    subsystem: subsystem.index(),
                    namespace: Arc::clone(namespace),
                    files,
                    reply,
                })?;
                self.changed(subsystem, namespace);
                Ok(())
            }
            Err(error) => {
                let error = error.to_string();
                namespace.set_not_ready(error.as_str());
                Err(error)
            }
        }
    }

    fn note_name(&self, subsystem: &Subsystem, namespace: &Namespace, detached: Option<&str>) {
        if !namespace.set_detached(detached.map(str::to_owned)) {
            return;
        }
        let (subsystem, nsid) = (subsystem.nqn(), namespace.nsid());
        match detached {
            Some(what) => tracing::warn!(subsystem, nsid, what, "a disk has lost its name"),
            None => tracing::info!(subsystem, nsid, "a disk has its name again"),
        }
    }

    fn note_size(
        &self,
        subsystem: &Arc<Subsystem>,
        namespace: &Arc<Namespace>,
        seen: &Seen,
    ) -> Result<(), String> {
        let (bytes, known) = (seen.bytes, namespace.disk_bytes());
        if bytes == known {
            return Ok(());
        }
        if bytes < known && !seen.block_device {
            let why = format!("its file was cut off, from {known} to {bytes} bytes");
            disk_failures::fail_closed(namespace, subsystem.nqn(), &why);
            self.target().namespace_changed(subsystem, namespace.nsid());
            return Ok(());
        }
        // No command may pass the check against the namespace's size and then not fit the disk.
        let growing = bytes > known;
        if !growing {
            namespace.set_ready(bytes, namespace.volatile_cache());
        }
        let index = namespace.index();
        self.cores().manage(|reply| NamespaceMessage::Resize { index, bytes, reply })?;
        if growing {
            namespace.set_ready(bytes, namespace.volatile_cache());
        }
        self.changed(subsystem, namespace);
        Ok(())
    }

    fn changed(&self, subsystem: &Arc<Subsystem>, namespace: &Namespace) {
        let (nsid, blocks) = (namespace.nsid(), namespace.blocks());
        let unused_bytes = namespace.health().unused_bytes;
        tracing::info!(nqn = subsystem.nqn(), nsid, blocks, unused_bytes, "a namespace has another size");
        self.target().namespace_changed(subsystem, nsid);
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
