//! Changes what is served while hosts use it: namespaces, subsystems, who may use them, and where hosts connect.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use ringfab_block::Backing;
use ringfab_process::log::{self, FilterError, NEVER_FOLDED};
use ringfab_spec::log::AnaState;
use serde_json::{Map, Value};

use super::apply::{Applier, REQUEST_LIMIT, answers};
use super::configured::{Configured, Current};
use super::disk_watch::DiskWatch;
use super::exchange::Exchange;
use super::leave::{LEAVE_LIMIT, leave};
use super::status::{NamespaceState, Status, View};
use crate::config::{
    Access, Change, Config, ConfigError, Doubt, HostConfig, ListenerConfig, NamespaceConfig, RateLimits,
    Source, SubsystemConfig, difference, doubts, set_state,
};
use crate::controller::Controller;
use crate::core::{AllCores, Cores};
use crate::disks::disk_handle::as_known;
use crate::disks::{DiskHandle, DiskHandles};
use crate::identity::Identity;
use crate::known_disks::{Content, KnownDisk};
use crate::limits::NSID_MAX;
use crate::model::{Listener, Namespace, ServedError, ServedSubsystem, Subsystem, is_same_address};
use crate::nqn::check_host_nqn;
use crate::target::Target;

/// Manages what a target that runs serves.
#[derive(Debug)]
pub struct Manager {
    applier: Applier,
}

impl Manager {
    /// Manages a target whose cores run. `file` is the file that `config` comes from, if any.
    pub fn new(
        target: Arc<Target>,
        cores: Cores,
        identity: Identity,
        config: &Config,
        file: Option<PathBuf>,
    ) -> Self {
        Self { applier: Applier { view: View::new(target, cores, Current::new(file, config)), identity } }
    }

    /// What there is to see of it, also while it is busy.
    pub fn view(&self) -> View {
        self.applier.view.clone()
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
        let mut config = fragment("a namespace", &table, Config::parse_namespace)?;
        let (nqn, nsid) = (subsystem.nqn(), config.nsid);
        if subsystem.namespace(nsid).is_some() {
            return Err(format!("namespace {nsid} is there already"));
        }
        self.identify(nqn, &mut config)?;
        self.edit(|next| {
            let namespaces = &mut subsystem_of(next, nqn)?.namespaces;
            namespaces.push(config);
            namespaces.sort_by_key(|one| one.nsid);
            Ok(())
        })?;
        let (subsystem, namespace) = self.namespace(Some(nqn), nsid)?;
        Ok(self.state(&subsystem, &namespace))
    }

    /// Serves a namespace no longer. Commands that have begun go on; its disks are closed when they have ended. That is
    /// waited for, unless it takes long.
    ///
    /// # Errors
    /// When there is no such namespace.
    pub fn remove(&mut self, subsystem: Option<&str>, nsid: u32) -> Result<NamespaceState, String> {
        let (subsystem, namespace) = self.namespace(subsystem, nsid)?;
        self.edit(|next| {
            subsystem_of(next, subsystem.nqn())?.namespaces.retain(|one| one.nsid != nsid);
            Ok(())
        })?;
        Ok(NamespaceState::of(subsystem.nqn(), &namespace, None))
    }

    /// Only these of the subsystem's hosts see a namespace from now on.
    ///
    /// # Errors
    /// When there is no such namespace, or that is not a name of a host.
    pub fn set_hosts(
        &mut self,
        subsystem: Option<&str>,
        nsid: u32,
        hosts: Access,
    ) -> Result<Vec<Change>, String> {
        let (subsystem, _) = self.namespace(subsystem, nsid)?;
        let names = match &hosts {
            Access::AnyHost => None,
            Access::Hosts(names) if names.is_empty() => return Err("name one host at least".to_owned()),
            Access::Hosts(names) => Some(names),
        };
        names.into_iter().flatten().try_for_each(|name| check_host_nqn(name))?;
        self.edit(|next| {
            namespace_of(next, subsystem.nqn(), nsid)?.hosts = hosts;
            Ok(())
        })
    }

    /// All hosts together, or one of them, may do as much with a namespace from now on.
    ///
    /// # Errors
    /// When there is no such namespace, or that is not a name of a host.
    pub fn limit_namespace(
        &mut self,
        subsystem: Option<&str>,
        nsid: u32,
        host: Option<String>,
        limits: RateLimits,
    ) -> Result<Vec<Change>, String> {
        host.as_deref().map_or(Ok(()), check_host_nqn)?;
        let (subsystem, _) = self.namespace(subsystem, nsid)?;
        self.edit(|next| {
            let all = &mut namespace_of(next, subsystem.nqn(), nsid)?.limits;
            match host {
                None => all.all = limits,
                Some(host) if limits.is_unlimited() => drop(all.hosts.remove(&host)),
                Some(host) => drop(all.hosts.insert(host, limits)),
            }
            Ok(())
        })
    }

    /// A host has these shares and limits from now on, and no others. It keeps its key unless it gets another: only the
    /// file takes one away, so that nobody lets a host in without a proof in passing.
    ///
    /// # Errors
    /// When the change cannot be made.
    pub fn set_host(&mut self, mut host: HostConfig) -> Result<Vec<Change>, String> {
        self.edit(|next| {
            let before = next.host(&host.nqn);
            host.authentication = host.authentication.or(before.authentication);
            host.tls = host.tls.or(before.tls);
            host.old_keys_until = host.old_keys_until.or(before.old_keys_until);
            next.hosts.retain(|one| one.nqn != host.nqn);
            if !host.is_default() {
                next.hosts.push(host);
            }
            Ok(())
        })
    }

    /// Lets a host use a subsystem, with what `[[host]]` says of it: keys that it did not have.
    ///
    /// # Errors
    /// When it has keys, or the change cannot be made.
    pub fn add_host(
        &mut self,
        subsystem: Option<&str>,
        host: HostConfig,
        tls_required: bool,
    ) -> Result<Vec<Change>, String> {
        let subsystem = self.subsystem(subsystem)?;
        self.edit(|next| next.add_host(subsystem.nqn(), host, tls_required))
    }

    /// Gives a host other keys. Those that it has are named as its old ones.
    ///
    /// # Errors
    /// When it has none, or old ones already.
    pub fn rekey_host(&mut self, host: HostConfig) -> Result<Vec<Change>, String> {
        self.edit(|next| next.rekey_host(host))
    }

    /// The keys that a host had before count no more, and connections that use them end.
    ///
    /// # Errors
    /// When there are none: nobody may come without a proof because its only key is taken away.
    pub fn revoke_old_keys(&mut self, nqn: &str) -> Result<Vec<Change>, String> {
        self.edit(|next| {
            let host = next.hosts.iter_mut().find(|host| host.nqn == nqn && host.has_old_keys());
            let host = host.ok_or_else(|| {
                format!(
                    "{nqn} has no old key; `host deny` keeps a host away, and dhchap_keys = [new, old] in the \
                     configuration replaces a key"
                )
            })?;
            host.authentication.iter_mut().for_each(|keys| keys.old = None);
            host.tls.iter_mut().for_each(|keys| keys.old = None);
            host.old_keys_until = None;
            Ok(())
        })
    }

    /// Serves one more subsystem, with its namespaces.
    ///
    /// # Errors
    /// What is wrong with it, or why a disk cannot be opened; nothing has changed then.
    pub fn add_subsystem(&mut self, config: SubsystemConfig) -> Result<Vec<Change>, String> {
        self.edit(|next| {
            if next.subsystem(&config.nqn).is_some() {
                return Err(ServedError::TwoSubsystems(config.nqn).to_string());
            }
            next.subsystems.push(config);
            Ok(())
        })
    }

    /// Serves a subsystem no longer: its controllers are ended. Commands that have begun go on at the disks.
    ///
    /// # Errors
    /// When there is no such subsystem.
    pub fn remove_subsystem(&mut self, nqn: &str) -> Result<Vec<Change>, String> {
        self.edit(|next| {
            subsystem_of(next, nqn)?;
            if next.subsystems.len() == 1 {
                return Err(format!("{nqn} is the only subsystem: add another first, or stop the target"));
            }
            next.subsystems.retain(|one| one.nqn != nqn);
            Ok(())
        })
    }

    /// Lets these hosts use a subsystem and no others. The controllers of others are ended.
    ///
    /// # Errors
    /// When there is no such subsystem.
    pub fn set_access(&mut self, nqn: &str, access: Access) -> Result<Vec<Change>, String> {
        self.edit(|next| {
            subsystem_of(next, nqn)?.access = access;
            Ok(())
        })
    }

    /// Lets one more host use a subsystem.
    ///
    /// # Errors
    /// When there is no such subsystem, every host may use it already, or that is not a name of a host.
    pub fn allow_host(&mut self, subsystem: Option<&str>, host: &str) -> Result<Vec<Change>, String> {
        check_host_nqn(host)?;
        let subsystem = self.subsystem(subsystem)?;
        let nqn = subsystem.nqn();
        match subsystem.access().clone() {
            Access::AnyHost => Err(format!("every host may use {nqn} already")),
            Access::Hosts(mut hosts) => {
                if !hosts.insert(host.to_owned()) {
                    return Err(format!("{host} may use {nqn} already"));
                }
                self.set_access(nqn, Access::Hosts(hosts))
            }
        }
    }

    /// Lets a host use a subsystem no longer: its controllers are ended.
    ///
    /// # Errors
    /// When there is no such subsystem, or the host may not use it.
    pub fn deny_host(&mut self, subsystem: Option<&str>, host: &str) -> Result<Vec<Change>, String> {
        let subsystem = self.subsystem(subsystem)?;
        let nqn = subsystem.nqn();
        match subsystem.access().clone() {
            Access::AnyHost => Err(format!(
                "every host may use {nqn}: list those that may in allowed_hosts first, and reload"
            )),
            Access::Hosts(mut hosts) => {
                if !hosts.remove(host) {
                    return Err(format!("{host} may not use {nqn} anyway"));
                }
                self.set_access(nqn, Access::Hosts(hosts))
            }
        }
    }

    /// Ends all controllers of a host, of one subsystem or of all. It may come back. Returns how many there were.
    ///
    /// # Errors
    /// When there is no such subsystem, or none of its controllers is this host's.
    pub fn kick_host(&mut self, subsystem: Option<&str>, host: &str) -> Result<usize, String> {
        let subsystem = subsystem.map(|nqn| self.subsystem(Some(nqn))).transpose()?;
        let is_meant = |one: &Arc<Controller>| {
            let there = subsystem.as_ref().is_none_or(|it| Arc::ptr_eq(it.subsystem(), one.subsystem()));
            one.host().nqn == host && there
        };
        let meant: Vec<_> = self.target().controllers().into_iter().filter(is_meant).collect();
        if meant.is_empty() {
            return Err(format!("{host} is not connected"));
        }
        for controller in &meant {
            self.cores().end_controller(controller, "an administrator has ended it");
        }
        Ok(meant.len())
    }

    /// Takes connections at one more address. Returns the number of the listener, and the address that it is bound to.
    ///
    /// # Errors
    /// When it cannot be bound.
    pub fn add_listener(&mut self, config: ListenerConfig) -> Result<(u16, SocketAddr), String> {
        let known: Vec<u16> = self.target().served().listeners().iter().map(|one| one.port_id()).collect();
        self.edit(|next| {
            next.listeners.push(config);
            Ok(())
        })?;
        let served = self.target().served();
        let new = served.listeners().iter().find(|one| !known.contains(&one.port_id()));
        let new = new.ok_or("the listener is gone already")?;
        Ok((new.port_id(), new.address()))
    }

    /// Takes no more connections at an address. The controllers that came there are ended.
    ///
    /// # Errors
    /// When there is no such listener.
    pub fn remove_listener(&mut self, port_id: u16) -> Result<(), String> {
        let served = self.target().served();
        let found = served.listeners().iter().find(|one| one.port_id() == port_id);
        let config = found.ok_or(ServedError::NoListener(port_id).to_string())?.config().clone();
        let mut next = self.configured().running.clone();
        if next.listeners.len() == 1 {
            let place = config.place();
            return Err(format!("{place} is the only listener: add another first, or stop the target"));
        }
        if let Some(index) = next.listeners.iter().position(|one| *one == config) {
            next.listeners.remove(index);
        }
        // By its number: several listeners may have asked for any free port in the same words.
        self.applier
            .change(next, |_, draft| draft.remove_listener(port_id).map_err(|error| error.to_string()))?;
        tracing::info!(name: NEVER_FOLDED, listener = config.place(), "listener removed");
        Ok(())
    }

    /// Asks the hosts that came by a listener to go elsewhere, waits for a while until they have, and removes it.
    ///
    /// # Errors
    /// When there is no such listener, or it is the only one.
    pub fn drain_listener(&mut self, port_id: u16) -> Result<(), String> {
        if self.configured().running.listeners.len() > 1 {
            leave(self.target(), self.cores(), &[port_id].into(), LEAVE_LIMIT, || false);
        }
        self.remove_listener(port_id)
    }

    /// Puts an access group of a subsystem into another state: by these ways, or by all if there is none.
    ///
    /// # Errors
    /// When there is no such subsystem, group or way.
    pub fn set_access_state(
        &mut self,
        subsystem: Option<&str>,
        group: u32,
        state: AnaState,
        ways: &[SocketAddr],
    ) -> Result<Vec<Change>, String> {
        let subsystem = self.subsystem(subsystem)?;
        let known = subsystem.groups().ids();
        if !known.contains(&group) {
            let known: Vec<String> = known.iter().map(ToString::to_string).collect();
            let (nqn, known) = (subsystem.nqn(), known.join(", "));
            return Err(format!("there is no access group {group} in {nqn}; there are: {known}"));
        }
        ways.iter().try_for_each(|way| self.has_way(*way))?;
        self.edit(|next| {
            set_state(&mut subsystem_of(next, subsystem.nqn())?.ana_groups, group, state, ways);
            Ok(())
        })
    }

    /// Whether hosts come by an address.
    fn has_way(&self, way: SocketAddr) -> Result<(), String> {
        let served = self.target().served();
        let is_one = |one: &Arc<Listener>| one.covers(way) || is_same_address(way, one.address());
        match served.listeners().iter().any(is_one) {
            true => Ok(()),
            false => self.listener_at(way).map(drop),
        }
    }

    /// The listener at an address, by its number.
    ///
    /// # Errors
    /// When there is none, with those that there are.
    pub fn listener_at(&self, address: SocketAddr) -> Result<u16, String> {
        let served = self.target().served();
        let found = served.listeners().iter().find(|one| one.address() == address);
        found.map(|one| one.port_id()).ok_or_else(|| {
            let known: Vec<_> = served.listeners().iter().map(|one| one.address().to_string()).collect();
            format!("there is no listener at {address}; there are {}", known.join(", "))
        })
    }

    /// Logs other events from now on, until the configuration file is read again. What is different is what is
    /// configured, or else what was logged until now: `RUST_LOG` may have said something else.
    ///
    /// # Errors
    /// When that is no filter.
    pub fn set_log(&mut self, filter: &str) -> Result<Vec<Change>, String> {
        log::check_filter(filter).map_err(|error| error.to_string())?;
        let before = log::in_force();
        let mut changes = self.edit(|next| {
            filter.clone_into(&mut next.target.log);
            Ok(())
        })?;
        tell_filter(|| log::set_filter(filter))?;
        if let Some(before) = before.filter(|before| changes.is_empty() && before.filter != filter) {
            let old = format!("{:?} ({})", before.filter, before.from.name());
            changes.push(Change::Process { key: "target.log".to_owned(), old, new: format!("{filter:?}") });
        }
        Ok(changes)
    }

    /// What is configured now.
    pub fn configured(&self) -> Arc<Configured> {
        self.applier.configured()
    }

    /// Reads the configuration file again and applies what is different: all of it, or nothing. Returns that.
    ///
    /// # Errors
    /// What is wrong with the file, what needs a restart, or why something cannot be applied; nothing has changed then.
    pub fn reload(&mut self) -> Result<Vec<Change>, String> {
        let configured = self.configured();
        let file = configured.file.as_ref().ok_or("this target has no configuration file")?;
        let filed = Config::load_again(file).map_err(|error| error.to_string())?;
        let changes = difference(&configured.running, &filed);
        self.applier.apply(&changes, filed.clone())?;
        tell_filter(|| log::configure(&filed.target.log))?;
        let configured = self.configured();
        self.applier.view.set_configured(Configured { filed, ..(*configured).clone() });
        Ok(changes)
    }

    /// What a reload would do now. Nothing changes.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub fn preview(&self) -> Result<Preview, String> {
        let configured = self.configured();
        let file = configured.file.as_ref().ok_or("this target has no configuration file")?;
        let now = Config::load_again(file).map_err(|error| error.to_string())?;
        let changes = difference(&configured.running, &now);
        let refused = self.applier.refusal(&changes);
        let (edited, doubts) = (difference(&configured.filed, &now), doubts(&now));
        Ok(Preview { changes, edited, refused, doubts })
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
            Exchange(&self.applier).grow(&namespace, path, bytes)?;
        }
        DiskWatch(&self.applier.view).inspect(&subsystem, &namespace)?;
        Ok(self.state(&subsystem, &namespace))
    }

    /// Opens a namespace's disk anew on every core. What was lost is given up with that: Flush may succeed again.
    ///
    /// # Errors
    /// When it cannot be opened or still fails, or is another disk by now than the one that hosts use.
    pub fn reopen(&mut self, subsystem: Option<&str>, nsid: u32) -> Result<NamespaceState, String> {
        let (subsystem, namespace) = self.namespace(subsystem, nsid)?;
        let why = namespace.needs_reopen();
        if let Some(mut open_request) = self.applier.open_request(&subsystem, &namespace) {
            open_request.disk_locks.extend(self.disk_handles().with(&namespace, DiskHandle::disk_lock));
            let disk_handle =
                open_request.open_patiently(REQUEST_LIMIT).map_err(|error| error.to_string())?;
            Exchange(&self.applier).disk(&subsystem, &namespace, disk_handle)?;
        } else if let Some(driver) = namespace.backing().driver() {
            Exchange(&self.applier).device(&subsystem, &namespace, driver)?;
        } else {
            self.target().known_disks().note(vec![as_known(subsystem.nqn(), &namespace, None)]);
            if !namespace.is_ready() {
                DiskWatch(&self.applier.view).open(&subsystem, &namespace, Vec::new())?;
            }
        }
        namespace.reopened();
        tracing::warn!(
            name: NEVER_FOLDED,
            subsystem = subsystem.nqn(),
            nsid,
            needed = why.unwrap_or_default(),
            "namespace reopened"
        );
        self.target().namespace_changed(&subsystem, nsid);
        Ok(self.state(&subsystem, &namespace))
    }

    /// Looks at the sizes of all files and devices, and whether those that were missing are there now.
    pub fn poll(&mut self) {
        DiskWatch(&self.applier.view).poll();
    }

    /// All namespaces, also those that were removed and are not closed yet.
    pub fn list(&self) -> Vec<NamespaceState> {
        self.applier.view.list()
    }

    /// What the target is doing now.
    ///
    /// # Errors
    /// When a core does not answer.
    pub fn status(&self) -> Result<Status, String> {
        self.applier.view.status()
    }

    fn edit(&mut self, edit: impl FnOnce(&mut Config) -> Result<(), String>) -> Result<Vec<Change>, String> {
        self.applier.edit(edit)
    }

    fn target(&self) -> &Target {
        self.applier.target()
    }

    fn cores(&self) -> &Cores {
        self.applier.cores()
    }

    fn disk_handles(&self) -> &Arc<DiskHandles> {
        self.applier.disk_handles()
    }

    fn state(&self, subsystem: &Subsystem, namespace: &Namespace) -> NamespaceState {
        let served = self.target().served();
        let served = served.find(subsystem.nqn()).map(|one| &**one);
        NamespaceState::of(subsystem.nqn(), namespace, served)
    }

    fn subsystem(&self, nqn: Option<&str>) -> Result<Arc<ServedSubsystem>, String> {
        self.applier.subsystem(nqn)
    }

    fn namespace(&self, nqn: Option<&str>, nsid: u32) -> Result<(Arc<Subsystem>, Arc<Namespace>), String> {
        self.applier.namespace(nqn, nsid)
    }

    /// Gives a namespace its identifiers: those that it had, if it is the same disk, and otherwise others than any
    /// namespace of this number has ever had. Those of the configuration are those of the number.
    fn identify(&self, nqn: &str, config: &mut NamespaceConfig) -> Result<(), String> {
        answers(config)?;
        let configured = self.configured();
        let known = configured.filed.subsystem(nqn).and_then(|one| one.namespace(config.nsid));
        let given = (config.nguid, config.uuid);
        let (nguid, uuid) = match &config.source {
            Source::File { .. } | Source::Nbd(_) | Source::Rbd(_) => {
                if let Some(known) = known.filter(|known| known.source == config.source) {
                    config.nguid = config.nguid.or(known.nguid);
                    config.uuid = config.uuid.or(known.uuid);
                    return Ok(());
                }
                let content = Content::of_source(self.target().known_disks(), config);
                let disk = KnownDisk::new(nqn, config.nsid, config.block_bytes, content);
                let found = self.applier.identity.identifiers(&disk, given, false);
                (found.nguid, found.uuid)
            }
            Source::Memory(_) | Source::Null(_) | Source::Device(_) => {
                let mut once = [0; 32];
                getrandom::fill(&mut once).map_err(|error| error.to_string())?;
                self.applier.identity.of_added(nqn, config.nsid, &once)
            }
        };
        config.nguid = config.nguid.or(Some(nguid));
        config.uuid = config.uuid.or(Some(uuid));
        Ok(())
    }
}

/// What a reload would do.
#[derive(Clone, Debug)]
pub struct Preview {
    /// What is different between what runs and the file.
    pub changes: Vec<Change>,
    /// What has become different in the file since it was read.
    pub edited: Vec<Change>,
    /// Why it would be refused, as far as that can be told beforehand.
    pub refused: Option<String>,
    /// What in the file will not work as meant.
    pub doubts: Vec<Doubt>,
}

/// A subsystem of a configuration that is being changed.
fn subsystem_of<'a>(config: &'a mut Config, nqn: &str) -> Result<&'a mut SubsystemConfig, String> {
    let found = config.subsystems.iter_mut().find(|one| one.nqn == nqn);
    found.ok_or_else(|| ServedError::NoSubsystem(nqn.to_owned()).to_string())
}

/// A namespace of a configuration that is being changed.
fn namespace_of<'a>(config: &'a mut Config, nqn: &str, nsid: u32) -> Result<&'a mut NamespaceConfig, String> {
    let found = subsystem_of(config, nqn)?.namespaces.iter_mut().find(|one| one.nsid == nsid);
    found.ok_or_else(|| ServedError::NoNamespace { nqn: nqn.to_owned(), nsid }.to_string())
}

/// A part of a configuration from its table, as it would stand in a file.
pub(super) fn fragment<T>(
    what: &str,
    table: &Map<String, Value>,
    parse: impl FnOnce(&str) -> Result<T, Vec<ConfigError>>,
) -> Result<T, String> {
    let text = toml::to_string(table).map_err(|error| format!("not {what}: {error}"))?;
    parse(&text).map_err(|errors| explain(&errors))
}

/// Exchanges the filter of the log, which says so if it is another one.
fn tell_filter(exchange: impl FnOnce() -> Result<(), FilterError>) -> Result<(), String> {
    let before = log::in_force();
    exchange().map_err(|error| format!("the log stays as it is: {error}"))?;
    if let Some(now) = log::in_force().filter(|now| Some(now) != before.as_ref()) {
        let (filter, from) = (now.filter, now.from.name());
        tracing::info!(name: NEVER_FOLDED, filter, from, "the log has another filter");
    }
    Ok(())
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
