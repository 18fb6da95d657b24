//! Applies changes of the configuration to a target that runs: all of them, or none.
//!
//! A change is a new configuration. What is different leads to a draft of what is served next (`model/served.rs`).
//! That is checked as a whole, and the disks of namespaces that come are opened. Then the cores are told
//! (`control/change.rs`).

use std::fs;
use std::io;
use std::net::UdpSocket;
use std::path::Path;
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ringfab_base::VisiblePath as _;
use ringfab_block::Backing;
use ringfab_process::log::NEVER_FOLDED;

use super::change::{OpenedDisks, apply};
use super::configured::Configured;
use super::status::View;
use crate::config::{
    AccessGroup, AccessGroups, Change, Config, ListenerConfig, NamespaceConfig, Source, difference, places,
    used_twice, without_cluster,
};
use crate::confinement;
use crate::core::{AllCores as _, Cores};
use crate::disk_identity::{DiskIdentity, Sharing};
use crate::disks::disk_handle::{DiskLock, as_known, with_content};
use crate::disks::open::OpenRequest;
use crate::disks::{DiskHandle, DiskHandles, device};
use crate::identity::Identity;
use crate::known_disks::{Content, KnownDisk};
use crate::model::{Difference, Draft, Namespace, ServedError, ServedSubsystem, Subsystem};
use crate::target::{Target, TargetError};
use crate::worker;

/// How many changes are logged one by one: half of the lines that may wait to be written.
const LOGGED_MAX: usize = 500;

/// How long a request waits for a file that hangs.
pub(super) const REQUEST_LIMIT: Duration = Duration::from_secs(10);

/// Applies changes.
#[derive(Debug)]
pub(super) struct Applier {
    pub(super) view: View,
    pub(super) identity: Identity,
}

impl Applier {
    /// Applies a change of what is configured.
    pub(super) fn edit(
        &mut self,
        edit: impl FnOnce(&mut Config) -> Result<(), String>,
    ) -> Result<Vec<Change>, String> {
        let configured = self.configured();
        let mut next = configured.running.clone();
        edit(&mut next)?;
        let changes = difference(&configured.running, &next);
        // That of a file was compared when it was read.
        if let Some(conflict) = places::conflict_of_changes(&changes, &next, configured.file.as_deref()) {
            return Err(conflict.sentence());
        }
        if let Some(why) = used_twice(&next).or_else(|| without_cluster(&next).next()) {
            return Err(why);
        }
        self.apply(&changes, next)?;
        Ok(changes)
    }

    /// Makes what runs into `next`, to which `changes` lead.
    pub(super) fn apply(&mut self, changes: &[Change], next: Config) -> Result<(), String> {
        self.check(changes)?;
        self.change(next, |this, draft| this.edit_draft(draft, changes))?;
        for change in changes.iter().take(LOGGED_MAX) {
            tracing::info!(name: NEVER_FOLDED, %change, "configuration changed");
        }
        if let Some(more) = changes.len().checked_sub(LOGGED_MAX).filter(|more| *more != 0) {
            tracing::info!(name: NEVER_FOLDED, more, "configuration changed");
        }
        Ok(())
    }

    /// Why changes would be refused, as far as that can be told before anything is opened or bound.
    pub(super) fn refusal(&self, changes: &[Change]) -> Option<String> {
        self.try_out(changes).err()
    }

    fn try_out(&self, changes: &[Change]) -> Result<(), String> {
        self.check(changes)?;
        let now = self.target().served();
        let mut draft = now.draft();
        self.edit_draft(&mut draft, changes)?;
        let served = draft.check().map_err(|error| error.to_string())?;
        let difference = Difference::between(&now, &served);
        difference.bound.iter().try_for_each(|listener| may_listen(listener.config()))?;
        for (_, namespace) in &difference.opened {
            if let Backing::File { path, .. } = namespace.backing() {
                may_open(path).map_err(|error| format!("cannot open {}: {error}", path.visible()))?;
            }
        }
        let known_disks = self.target().known_disks();
        difference.opened.iter().try_for_each(|(subsystem, namespace)| {
            let content = Content::look(known_disks, namespace.backing());
            let known = with_content(subsystem.nqn(), namespace, content);
            known_disks.check(&known).map_err(|other| other.refused())
        })
    }

    /// Whether changes can be applied to a target that runs.
    fn check(&self, changes: &[Change]) -> Result<(), String> {
        applicable(changes)?;
        changes.iter().flat_map(added).try_for_each(answers)?;
        changes.iter().try_for_each(|change| self.check_replaced(change))
    }

    fn edit_draft(&self, draft: &mut Draft, changes: &[Change]) -> Result<(), String> {
        changes.iter().try_for_each(|change| edit_draft(self.target(), &self.identity, draft, change))
    }

    /// Makes a change of what is served: all of it, or nothing. `next` is what is configured then.
    pub(super) fn change(
        &mut self,
        next: Config,
        edit: impl FnOnce(&Self, &mut Draft) -> Result<(), String>,
    ) -> Result<(), String> {
        let now = self.target().served();
        let mut draft = now.draft();
        edit(self, &mut draft)?;
        let served = draft.check().map_err(|error| error.to_string())?;
        let difference = Difference::between(&now, &served);
        if !difference.is_empty() {
            let mut taken = Vec::new();
            let opened = self.open_disks(&difference, &mut taken);
            let found = opened.and_then(|opened| Ok((self.known(&difference, &opened)?, opened)));
            let outcome = found.and_then(|(found, opened)| {
                apply(self.target(), self.cores(), self.disk_handles(), served, opened).map(|()| found)
            });
            match outcome {
                Ok(found) => self.target().known_disks().note(found),
                Err(error) => {
                    give_back(taken);
                    return Err(error);
                }
            }
        }
        let configured = self.configured();
        let since = SystemTime::now();
        self.view.set_configured(Configured { running: next, since, ..(*configured).clone() });
        Ok(())
    }

    /// Opens the files and devices of the namespaces that come. A disk that a namespace has which goes is taken over;
    /// `taken` has what it was held as.
    fn open_disks(&self, difference: &Difference, taken: &mut Vec<TakenOver>) -> Result<OpenedDisks, String> {
        let closed = difference.closed.iter();
        let disk_locks: Vec<_> =
            closed.filter_map(|(_, old)| self.disk_handles().with(old, DiskHandle::disk_lock)).collect();
        let mut opened = OpenedDisks::default();
        let goes =
            |namespace: &Namespace| difference.closed.iter().any(|(_, old)| ptr::eq(&**old, namespace));
        let now = self.target().served();
        for (subsystem, namespace) in &difference.opened {
            if let Some(driver) = namespace.backing().driver() {
                let seen = device::look(driver, REQUEST_LIMIT)?;
                let stay = device::all(&now).filter(|(_, namespace)| !goes(namespace));
                let come = difference.opened.iter().map(|(subsystem, new)| (subsystem.nqn(), &**new));
                device::identify(namespace, seen.identity, stay.chain(come))?;
            }
            let Some(mut open_request) = self.open_request(subsystem, namespace) else { continue };
            open_request.disk_locks = disk_locks.clone();
            let disk_handle =
                open_request.open_patiently(REQUEST_LIMIT).map_err(|error| error.to_string())?;
            let disk_lock = disk_handle.disk_lock();
            if disk_locks.iter().any(|old| Arc::ptr_eq(old, &disk_lock)) {
                let before = open_request.take_over(&disk_lock).map_err(|error| error.to_string())?;
                taken.push(TakenOver { open_request, disk_lock, before });
            }
            opened.disks.push((Arc::clone(namespace), disk_handle));
        }
        Ok(opened)
    }

    /// What hosts find as the namespaces that come. None may have identifiers that were another disk's.
    fn known(&self, difference: &Difference, opened: &OpenedDisks) -> Result<Vec<KnownDisk>, String> {
        let known = difference.opened.iter().map(|(subsystem, namespace)| {
            let known = as_known(subsystem.nqn(), namespace, opened.disk(namespace));
            self.target().known_disks().check(&known).map_err(|other| other.refused())?;
            Ok(known)
        });
        known.collect()
    }

    /// Hosts that are connected would take another disk for the one that they have, if it had its identifiers.
    fn check_replaced(&self, change: &Change) -> Result<(), String> {
        let Change::NamespaceChanged { nqn, old, new } = change else { return Ok(()) };
        let (_, namespace) = self.namespace(Some(nqn), old.nsid)?;
        if let Some(why) = namespace.needs_reopen() {
            return Err(format!("namespace {} of {nqn} needs to be reopened first: {why}", old.nsid));
        }
        if (old.uuid, old.nguid) != (new.uuid, new.nguid) {
            return Ok(());
        }
        let what = if !self.is_same_disk(&namespace, &old.source, &new.source) {
            let new_source = match old.source == new.source {
                true => "another one of this name".to_owned(),
                false => new.source.to_string(),
            };
            format!("be another disk ({new_source} instead of {})", old.source)
        } else if old.block_bytes != new.block_bytes {
            format!("have blocks of {} bytes instead of {}", new.block_bytes, old.block_bytes)
        } else {
            return Ok(());
        };
        Err(format!(
            "namespace {} of {nqn} would {what}, and hosts would take it for the one that they have: give it another \
             nsid, or a uuid and an nguid of its own",
            new.nsid
        ))
    }

    fn is_same_disk(&self, namespace: &Namespace, old: &Source, new: &Source) -> bool {
        match (old, new) {
            (Source::File { path: old, .. }, Source::File { path: new, .. }) => {
                let served = self.disk_handles().with(namespace, DiskHandle::identity);
                let at = new.clone();
                let look = move || DiskIdentity::of_path(&at);
                let found = || worker::within("looking at", new, REQUEST_LIMIT, look).ok()?.ok();
                match (served, found()) {
                    (Some(served), Some(found)) => served == found,
                    // Opening it says why it cannot be looked at.
                    _ => old == new,
                }
            }
            // What was in memory is lost, which is said; its size may change as a file's does.
            (Source::Memory(_), Source::Memory(_)) | (Source::Null(_), Source::Null(_)) => true,
            (old, new) => old == new,
        }
    }

    pub(super) fn target(&self) -> &Target {
        self.view.target()
    }

    pub(super) fn cores(&self) -> &Cores {
        self.view.cores()
    }

    pub(super) fn disk_handles(&self) -> &Arc<DiskHandles> {
        self.cores().disk_handles()
    }

    pub(super) fn open_request(&self, subsystem: &Subsystem, namespace: &Namespace) -> Option<OpenRequest> {
        OpenRequest::of(namespace, subsystem.nqn(), self.cores().count())
    }

    pub(super) fn configured(&self) -> Arc<Configured> {
        self.view.configured()
    }

    pub(super) fn subsystem(&self, nqn: Option<&str>) -> Result<Arc<ServedSubsystem>, String> {
        self.view.subsystem(nqn)
    }

    pub(super) fn namespace(
        &self,
        nqn: Option<&str>,
        nsid: u32,
    ) -> Result<(Arc<Subsystem>, Arc<Namespace>), String> {
        self.view.namespace(nqn, nsid)
    }
}

/// A disk that a namespace takes over from one that goes.
struct TakenOver {
    open_request: OpenRequest,
    disk_lock: Arc<DiskLock>,
    /// What it was held as, and by which namespace.
    before: (Sharing, String),
}

/// The change has failed: the namespaces that were to go have their disks as before.
fn give_back(taken: Vec<TakenOver>) {
    for TakenOver { open_request, disk_lock, before: (sharing, name) } in taken.into_iter().rev() {
        let path = open_request.path.to_string_lossy().into_owned();
        if let Err(error) = (OpenRequest { sharing, name, ..open_request }).take_over(&disk_lock) {
            tracing::error!(path, %error, "others are not kept away from a disk as before");
        }
    }
}

/// Whether changes can be applied to a target that runs.
fn applicable(changes: &[Change]) -> Result<(), String> {
    let stuck: Vec<_> =
        changes.iter().filter(|change| change.needs_restart()).map(ToString::to_string).collect();
    if stuck.is_empty() {
        return Ok(());
    }
    Err(format!(
        "a target that runs cannot take these changes, so it takes none of the file: {}; a restart applies all of it \
         (`systemctl restart ringfab-target`)",
        stuck.join("; ")
    ))
}

/// The namespaces that come with a change.
fn added(change: &Change) -> &[NamespaceConfig] {
    match change {
        Change::SubsystemAdded(subsystem) => &subsystem.namespaces,
        Change::NamespaceAdded { namespace: new, .. } | Change::NamespaceChanged { new, .. } => {
            std::slice::from_ref(new)
        }
        _ => &[],
    }
}

/// Whether what is behind a namespace can be reached, whatever it answers: who opens it says what is wrong with it.
pub(super) fn answers(namespace: &NamespaceConfig) -> Result<(), String> {
    let refused = match &namespace.source {
        Source::File { path, .. } => {
            let at = path.clone();
            let look = move || drop(fs::metadata(at));
            return worker::within("looking at", path, REQUEST_LIMIT, look)
                .map_err(|error| error.to_string());
        }
        Source::Nbd(nbd) => nbd.address.port().and_then(|port| confinement::refused_server(Some(port))),
        Source::Rbd(_) => confinement::refused_server(None),
        Source::Memory(_) | Source::Null(_) | Source::Device(_) => None,
    };
    let refused = refused
        .map(|why| format!("cannot connect to {}: {why}", namespace.source.remote().unwrap_or_default()));
    refused.map_or(Ok(()), Err)
}

/// Whether a listener that comes is one that the target may have.
fn may_listen(config: &ListenerConfig) -> Result<(), String> {
    let refused = |why: String| Err(format!("cannot listen on {}: {why}", config.place()));
    if let Some(why) = confinement::refused_port(config.port) {
        return refused(why);
    }
    // Whether this machine has the address is asked for with a datagram socket, which is in nobody's way.
    let address = config.address.socket_address(0);
    match address.and_then(UdpSocket::bind) {
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
            refused("this machine has no such address".to_owned())
        }
        // What the name of an interface leads to.
        Err(error) if config.address.zone().is_some() => refused(error.to_string()),
        _ => Ok(()),
    }
}

/// Whether a disk that comes is there, and one that the target may have.
fn may_open(path: &Path) -> Result<(), String> {
    let at = path.to_owned();
    let look = move || match confinement::refused_disk(&at) {
        Some(why) => Err(io::Error::new(io::ErrorKind::PermissionDenied, why)),
        None => DiskIdentity::of_path(&at).map(drop),
    };
    let found = worker::within("looking at", path, REQUEST_LIMIT, look).map_err(|error| error.to_string())?;
    found.map_err(|error| error.to_string())
}

/// Does one change to a draft of what is to be served.
fn edit_draft(
    target: &Target,
    identity: &Identity,
    draft: &mut Draft,
    change: &Change,
) -> Result<(), String> {
    let served = |error: ServedError| error.to_string();
    let made = |error: TargetError| error.to_string();
    match change {
        Change::Process { .. } | Change::SubsystemIdentity { .. } => Ok(()),
        Change::ListenerAdded(config) => {
            draft.add_listener(config.clone());
            Ok(())
        }
        Change::ListenerRemoved(config) => draft.remove_listener(port_of(draft, config)?).map_err(served),
        Change::ListenerChanged { old, new } => {
            draft.replace_listener(port_of(draft, old)?, new.clone()).map_err(served)
        }
        Change::SubsystemAdded(config) => target.add_subsystem(draft, config, identity).map_err(made),
        Change::SubsystemRemoved(config) => draft.remove_subsystem(&config.nqn).map_err(served),
        Change::DemandsChanged { nqn, new, .. } => draft.set_demands(nqn, *new).map_err(served),
        Change::DiscoveryDemandsChanged { new, .. } => {
            draft.set_discovery_authenticates(*new);
            Ok(())
        }
        Change::AccessChanged { nqn, new, .. } => draft.set_access(nqn, new.clone()).map_err(served),
        Change::AnaGroupChanged { nqn, group, new, .. } => {
            let set = |groups: &mut AccessGroups| match *new == AccessGroup::default() {
                true => drop(groups.remove(group)),
                false => drop(groups.insert(*group, new.clone())),
            };
            draft.set_access_groups(nqn, set).map_err(served)
        }
        Change::DiscoveryListenersChanged { nqn, new, .. } => {
            draft.set_discovery_listeners(nqn, new).map_err(served)
        }
        Change::HostChanged { new, .. } => {
            draft.set_host(new);
            Ok(())
        }
        Change::ReferralAdded(referral) => {
            draft.add_referral(referral.clone());
            Ok(())
        }
        Change::ReferralRemoved(referral) => {
            draft.remove_referral(referral);
            Ok(())
        }
        of_namespace => edit_namespace(target, identity, draft, of_namespace),
    }
}

/// The same for a change of one namespace.
fn edit_namespace(
    target: &Target,
    identity: &Identity,
    draft: &mut Draft,
    change: &Change,
) -> Result<(), String> {
    let served = |error: ServedError| error.to_string();
    let made = |error: TargetError| error.to_string();
    match change {
        Change::NamespaceRemoved { nqn, namespace } => {
            draft.remove_namespace(nqn, namespace.nsid).map(drop).map_err(served)
        }
        Change::NamespaceAdded { nqn, namespace } => {
            target.add_namespace(draft, nqn, namespace, identity).map_err(made)
        }
        Change::NamespaceChanged { nqn, old, new } => {
            draft.remove_namespace(nqn, old.nsid).map_err(served)?;
            target.add_namespace(draft, nqn, new, identity).map_err(made)
        }
        Change::NamespaceShown { nqn, nsid, new, .. } => {
            draft.show_namespace(nqn, *nsid, new).map_err(served)
        }
        Change::NamespaceGrouped { nqn, nsid, new, .. } => {
            draft.group_namespace(nqn, *nsid, *new).map_err(served)
        }
        Change::NamespaceLimited { nqn, nsid, new, .. } => {
            draft.limit_namespace(nqn, *nsid, new).map_err(served)
        }
        _ => unreachable!("every other change is done before"),
    }
}

/// The number of the listener that was made from this.
fn port_of(draft: &Draft, config: &ListenerConfig) -> Result<u16, String> {
    draft.listener(config).ok_or_else(|| format!("{} is gone already", config.place()))
}
