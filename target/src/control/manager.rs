//! Changes what is served while hosts use it: namespaces, subsystems, who may use them, and where hosts connect.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ringfab_block::Backing;
use serde_json::{Map, Value};

use super::change::{OpenedDisks, apply};
use super::disk_watch::DiskWatch;
use super::status::{NamespaceState, Status, View};
use crate::config::{Access, Config, ConfigError, ListenerConfig, NamespaceConfig, Source, SubsystemConfig};
use crate::core::{AllCores, Cores, ServeMessage};
use crate::disks::grow::grow;
use crate::disks::open::OpenRequest;
use crate::disks::{DiskHandle, DiskHandles};
use crate::identity::Identity;
use crate::limits::NSID_MAX;
use crate::model::{Difference, Draft, Namespace, ServedError, ServedSubsystem, Subsystem};
use crate::target::Target;
use crate::worker;

/// How long a request waits for a file that hangs.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);

/// Manages what a target that runs serves.
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
        self.identify(subsystem.nqn(), &mut config)?;
        let namespace = self.target().make_namespace(subsystem.nqn(), &config, &self.identity);
        let namespace = namespace.map_err(|error| error.to_string())?;
        self.change(|_, draft| draft.add_namespace(subsystem.nqn(), Arc::clone(&namespace)))?;
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
        self.change(|_, draft| draft.remove_namespace(subsystem.nqn(), nsid).map(drop))?;
        let state = NamespaceState::of(subsystem.nqn(), &namespace, true);
        tracing::info!(nqn = state.subsystem, nsid, "namespace removed");
        Ok(state)
    }

    /// Serves one more subsystem, with its namespaces.
    ///
    /// # Errors
    /// What is wrong with it, or why a disk cannot be opened; nothing has changed then.
    pub fn add_subsystem(&mut self, config: &SubsystemConfig) -> Result<(), String> {
        self.change(|this, draft| this.target().add_subsystem(draft, config, &this.identity))?;
        tracing::info!(nqn = config.nqn, namespaces = config.namespaces.len(), "subsystem added");
        Ok(())
    }

    /// Serves a subsystem no longer: its controllers are ended. Commands that have begun go on at the disks.
    ///
    /// # Errors
    /// When there is no such subsystem.
    pub fn remove_subsystem(&mut self, nqn: &str) -> Result<(), String> {
        self.change(|_, draft| draft.remove_subsystem(nqn))?;
        tracing::info!(nqn, "subsystem removed");
        Ok(())
    }

    /// Lets these hosts use a subsystem and no others. The controllers of others are ended.
    ///
    /// # Errors
    /// When there is no such subsystem.
    pub fn set_access(&mut self, nqn: &str, access: Access) -> Result<(), String> {
        self.change(|_, draft| draft.set_access(nqn, access))?;
        tracing::info!(nqn, "the allowed hosts of a subsystem have changed");
        Ok(())
    }

    /// Takes connections at one more address. Returns the number of the listener, and the address that it is bound to.
    ///
    /// # Errors
    /// When it cannot be bound.
    pub fn add_listener(&mut self, config: ListenerConfig) -> Result<(u16, SocketAddr), String> {
        let mut port_id = 0;
        self.change(|_, draft| {
            port_id = draft.add_listener(config);
            Ok::<_, ServedError>(())
        })?;
        let served = self.target().served();
        let listener = served.listeners().iter().find(|one| one.port_id() == port_id);
        let address = listener.ok_or("the listener is gone already")?.address();
        tracing::info!(%address, "listening");
        Ok((port_id, address))
    }

    /// Takes no more connections at an address. The controllers that came there are ended.
    ///
    /// # Errors
    /// When there is no such listener.
    pub fn remove_listener(&mut self, port_id: u16) -> Result<(), String> {
        self.change(|_, draft| draft.remove_listener(port_id))?;
        tracing::info!(port_id, "a listener is closed");
        Ok(())
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
            self.grow(&namespace, path, bytes)?;
        }
        DiskWatch(&self.view).inspect(&subsystem, &namespace)?;
        Ok(NamespaceState::of(subsystem.nqn(), &namespace, false))
    }

    /// Opens a namespace's disk anew on every core. What was lost is given up with that: Flush may succeed again.
    ///
    /// # Errors
    /// When it cannot be opened or still fails, or is another disk by now than the one that hosts use.
    pub fn reopen(&mut self, subsystem: Option<&str>, nsid: u32) -> Result<NamespaceState, String> {
        let (subsystem, namespace) = self.namespace(subsystem, nsid)?;
        let why = namespace.needs_reopen();
        if let Some(mut open_request) = self.open_request(&subsystem, &namespace) {
            open_request.disk_lock = self.disk_handles().with(&namespace, DiskHandle::disk_lock);
            let disk_handle =
                open_request.open_patiently(REQUEST_LIMIT).map_err(|error| error.to_string())?;
            self.exchange(&subsystem, &namespace, disk_handle)?;
        }
        namespace.reopened();
        tracing::warn!(
            subsystem = subsystem.nqn(),
            nsid,
            needed = why.unwrap_or_default(),
            "namespace reopened"
        );
        self.target().namespace_changed(&subsystem, nsid);
        Ok(NamespaceState::of(subsystem.nqn(), &namespace, false))
    }

    /// Looks at the sizes of all files and devices, and whether those that were missing are there now.
    pub fn poll(&mut self) {
        DiskWatch(&self.view).poll();
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

    fn disk_handles(&self) -> &Arc<DiskHandles> {
        self.cores().disk_handles()
    }

    fn open_request(&self, subsystem: &Subsystem, namespace: &Namespace) -> Option<OpenRequest> {
        OpenRequest::of(namespace, subsystem.nqn(), self.cores().count())
    }

    /// Makes a change of what is served: all of it, or nothing.
    fn change<E: ToString>(
        &self,
        edit: impl FnOnce(&Self, &mut Draft) -> Result<(), E>,
    ) -> Result<(), String> {
        let now = self.target().served();
        let mut draft = now.draft();
        edit(self, &mut draft).map_err(|error| error.to_string())?;
        let next = draft.check().map_err(|error| error.to_string())?;
        let opened = self.open_disks(&Difference::between(&now, &next))?;
        apply(self.target(), self.cores(), self.disk_handles(), next, opened)
    }

    /// Opens the files and devices of the namespaces that come.
    fn open_disks(&self, difference: &Difference) -> Result<OpenedDisks, String> {
        let mut opened = OpenedDisks::default();
        for (subsystem, namespace) in &difference.opened {
            if let Some(open_request) = self.open_request(subsystem, namespace) {
                let disk_handle =
                    open_request.open_patiently(REQUEST_LIMIT).map_err(|error| error.to_string())?;
                opened.disks.push((Arc::clone(namespace), disk_handle));
            }
        }
        Ok(opened)
    }

    fn subsystem(&self, nqn: Option<&str>) -> Result<Arc<ServedSubsystem>, String> {
        let served = self.target().served();
        match (nqn, served.subsystems()) {
            (None, [only]) => Ok(Arc::clone(only)),
            (None, _) => Err("there are several subsystems: name one".to_owned()),
            (Some(nqn), _) => served.find(nqn).cloned().ok_or_else(|| format!("there is no subsystem {nqn}")),
        }
    }

    fn namespace(&self, nqn: Option<&str>, nsid: u32) -> Result<(Arc<Subsystem>, Arc<Namespace>), String> {
        let served = self.subsystem(nqn)?;
        let namespace = served.namespace(nsid);
        let namespace =
            namespace.ok_or_else(|| format!("there is no namespace {nsid} in {}", served.nqn()))?;
        Ok((Arc::clone(served.subsystem()), Arc::clone(namespace)))
    }

    /// Gives a namespace its identifiers: those that it had, if it comes from the configuration with the same file, and
    /// otherwise others than any namespace of this number has ever had.
    fn identify(&self, nqn: &str, config: &mut NamespaceConfig) -> Result<(), String> {
        let configured = self.configured.iter().find(|one| one.nqn == nqn);
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
        let (nguid, uuid) = self.identity.of_added(nqn, config.nsid, &what);
        config.nguid = config.nguid.or(Some(nguid));
        config.uuid = config.uuid.or(Some(uuid));
        Ok(())
    }

    /// Has the cores go on with a disk that was opened anew.
    fn exchange(
        &self,
        subsystem: &Arc<Subsystem>,
        namespace: &Arc<Namespace>,
        disk_handle: DiskHandle,
    ) -> Result<(), String> {
        let served = self.disk_handles().with(namespace, DiskHandle::identity);
        if namespace.is_ready() && served.is_some_and(|served| served != disk_handle.identity()) {
            let path = disk_handle.path().display();
            return Err(format!(
                "{path} is another disk by now than the one that is served: put that back, or remove the \
                 namespace and add it"
            ));
        }
        // What fails only now would be told once, too.
        let synced = disk_handle.sync(REQUEST_LIMIT).map_err(|error| error.to_string())?;
        synced.map_err(|error| format!("{} still fails: {error}", disk_handle.path().display()))?;
        disk_handle.drop_cache();
        let files = Arc::new(disk_handle.files());
        let (bytes, was_ready) = (disk_handle.bytes(), namespace.is_ready());
        let told = self.cores().broadcast(ServeMessage::Reopen {
            subsystem: Arc::clone(subsystem),
            namespace: Arc::clone(namespace),
            files,
        });
        if let Err(error) = told {
            self.disk_handles().close_later(subsystem, namespace, disk_handle);
            return Err(error);
        }
        self.disk_handles().serve(subsystem, namespace, disk_handle);
        let changed = namespace.set_ready(bytes, namespace.volatile_cache() || !was_ready);
        if changed {
            DiskWatch(&self.view).changed(subsystem, namespace);
        }
        Ok(())
    }

    /// Makes a regular file longer: the very one that is served, whatever its name is by now.
    fn grow(&self, namespace: &Namespace, path: &Path, bytes: u64) -> Result<(), String> {
        let served = self.disk_handles().with(namespace, DiskHandle::identity);
        let served = served.ok_or("the namespace is not ready")?;
        let at = path.to_owned();
        let grown = worker::within("resizing", path, REQUEST_LIMIT, move || grow(&at, served, bytes));
        grown.map_err(|error| error.to_string())?
    }
}

/// The identifier after the largest one that is in use, as in a configuration, or else the smallest that is free.
fn free_nsid(subsystem: &ServedSubsystem) -> Result<u32, String> {
    let used: Vec<u32> = subsystem.namespaces().map(|namespace| namespace.nsid()).collect();
    let next = used.last().map_or(1, |last| last + 1);
    let free = (next..=NSID_MAX).chain(1..=NSID_MAX).find(|nsid| !used.contains(nsid));
    free.ok_or_else(|| format!("{} has as many namespaces as it may", subsystem.nqn()))
}

/// Mistakes without the places of a file that there is not.
fn explain(errors: &[ConfigError]) -> String {
    let explained = errors.iter().map(|error| format!("{} {}", error.key, error.message).trim().to_owned());
    explained.collect::<Vec<_>>().join("; ")
}
