//! What is served, and which hosts are connected.

mod connect;
mod end_watch;
mod generated;
mod make;
mod pools;
mod psk;
mod refusal;
mod resets;
mod rights;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringfab_auth::{SequenceNumbers, system_random};

pub use connect::{Attached, ConnectRequest};
pub use make::TargetError;
pub use psk::NoPsk;
pub(crate) use psk::tls_key_age;
pub(crate) use refusal::Refusal;

use crate::backings::Backings;
use crate::config::Config;
use crate::controller::{Access, Controller, Event};
use crate::identity::Identity;
use crate::known_disks::KnownDisks;
use crate::model::namespace::Indexes;
use crate::model::{Difference, Epoch, Namespace, Served, ServedError, ServedSubsystem, Subsystem};
use crate::placement::Placement;
use end_watch::EndWatch;
use generated::GeneratedPsks;
use pools::Controllers;
pub(crate) use resets::Instances;

/// Everything that is served, and who is connected to it.
#[derive(Debug)]
pub struct Target {
    /// What is served now. Each core has its own share of it: see [`Target::publish`].
    served: Mutex<Arc<Served>>,
    discovery: Arc<Subsystem>,
    namespace_indexes: Indexes,
    /// In which commands are judged.
    pub(crate) epoch: Arc<Epoch>,
    subsystem_indexes: Indexes,
    controllers: Mutex<Controllers>,
    pub(crate) end_watch: EndWatch,
    admin_core: AtomicUsize,
    placement: Arc<Placement>,
    generated: GeneratedPsks,
    /// Of all challenges.
    pub(crate) sequence_numbers: SequenceNumbers,
    known_disks: Arc<KnownDisks>,
    pub(crate) backings: Backings,
}

impl Target {
    /// A target of a configuration. Files are not opened here: each core opens them and reports with
    /// [`Namespace::set_ready`].
    ///
    /// # Errors
    /// When the memory of a memory namespace cannot be reserved, or the configuration contradicts itself.
    pub fn new(config: &Config, identity: &Identity) -> Result<Arc<Self>, TargetError> {
        let this = Self {
            served: Mutex::default(),
            discovery: Arc::new(Subsystem::discovery(config.discovery.nqn.clone())),
            namespace_indexes: Indexes::default(),
            epoch: Arc::default(),
            subsystem_indexes: Indexes::default(),
            controllers: Mutex::default(),
            end_watch: EndWatch::default(),
            admin_core: AtomicUsize::new(0),
            placement: Arc::default(),
            generated: GeneratedPsks::default(),
            sequence_numbers: SequenceNumbers::new(&mut system_random()),
            known_disks: Arc::clone(identity.known_disks()),
            backings: Backings::new(config),
        };
        let mut draft = this.served().draft();
        for subsystem in &config.subsystems {
            this.add_subsystem(&mut draft, subsystem, identity)?;
        }
        for listener in &config.listeners {
            draft.add_listener(listener.clone());
        }
        config.hosts.iter().for_each(|host| draft.set_host(host));
        draft.set_discovery_authenticates(config.discovery.requires_authentication);
        config.discovery.referrals.iter().for_each(|referral| draft.add_referral(referral.clone()));
        this.publish(draft.check()?)?;
        Ok(Arc::new(this))
    }

    /// Which disk was served under which identifiers.
    pub(crate) fn known_disks(&self) -> &KnownDisks {
        &self.known_disks
    }

    /// What is served now, for the control side. Whoever runs on a core reads the core's own.
    pub fn served(&self) -> Arc<Served> {
        Arc::clone(&self.lock_served())
    }

    /// All active namespaces of all subsystems, in the order of those.
    pub fn namespaces(&self) -> Vec<Arc<Namespace>> {
        self.served().namespaces().map(|(_, namespace)| Arc::clone(namespace)).collect()
    }

    /// The controllers that exist now, by identifier.
    pub fn controllers(&self) -> Vec<Arc<Controller>> {
        self.table().all().cloned().collect()
    }

    /// The core for the next admin queue, of so many: they take turns.
    pub fn next_admin_core(&self, cores: usize) -> usize {
        self.admin_core.fetch_add(1, Ordering::Relaxed) % cores
    }

    /// Something else is served from now on. The cores are still to be told, and then the hosts: see
    /// [`Target::tell_hosts`]. Returns what the cores need, and what is different.
    ///
    /// # Errors
    /// When `next` was made of something that is not served any more.
    pub fn publish(&self, next: Served) -> Result<(Arc<Served>, Difference), ServedError> {
        let mut served = self.lock_served();
        let (next, difference) = served.followed_by(next)?;
        *served = Arc::new(next);
        difference.revoked.keys().chain(&difference.narrowed).for_each(|host| self.generated.forget(host));
        for (subsystem, namespace) in &difference.closed {
            subsystem.keep_media_errors(namespace.media_errors());
        }
        Ok((Arc::clone(&served), difference))
    }

    /// Tells the hosts that are concerned what is different: all cores serve it. Calls the wakes of controllers.
    pub fn tell_hosts(&self, difference: &Difference) {
        let controllers = self.controllers();
        let tell = |subsystem: &Arc<Subsystem>, nsid, sees: &dyn Fn(&str) -> bool| {
            let own = controllers.iter().filter(|one| Arc::ptr_eq(one.subsystem(), subsystem));
            own.filter(|one| sees(&one.host().nqn)).for_each(|one| one.events().namespace_changed(nsid));
        };
        for (subsystem, namespace) in difference.opened.iter().chain(&difference.closed) {
            tell(subsystem, namespace.nsid(), &|host| difference.concerns(namespace, host));
        }
        for shown in &difference.shown {
            tell(shown.after.subsystem(), shown.nsid, &|host| shown.concerns(host));
        }
        if difference.changes_access_logs() {
            self.access_may_have_changed(|_| true);
        }
        if difference.discovery {
            let discovery = controllers.iter().filter(|one| one.is_discovery());
            discovery.for_each(|one| one.events().post(Event::DiscoveryLogChanged));
        }
    }

    /// A namespace has another size or state: the hosts of its subsystem are told. Calls the wakes of controllers.
    pub fn namespace_changed(&self, subsystem: &Arc<Subsystem>, nsid: u32) {
        let served = self.served();
        let sees = |controller: &&Arc<Controller>| {
            let shown = served.of(subsystem).is_none_or(|one| one.shows(nsid, &controller.host().nqn));
            Arc::ptr_eq(controller.subsystem(), subsystem) && shown
        };
        self.controllers()
            .iter()
            .filter(sees)
            .for_each(|controller| controller.events().namespace_changed(nsid));
        self.groups_follow_disks();
    }

    /// Groups that follow their disks may be in another state: hosts are told if they are. Calls the wakes of
    /// controllers.
    pub(crate) fn groups_follow_disks(&self) {
        self.access_may_have_changed(|one| one.groups().follow_disks());
    }

    /// The controllers whose hosts can leave these listeners: those that hear of access groups, and have another
    /// controller by a way that stays, or may have one in another process.
    pub(crate) fn who_can_leave(&self, served: &Served, ports: &BTreeSet<u16>) -> Vec<Arc<Controller>> {
        let all = self.controllers();
        let stays = |one: &Controller| {
            let port_id = served.listener_of(&one.way()).port_id();
            !Access(one).is_leaving() && !ports.contains(&port_id)
        };
        let can = |one: &&Arc<Controller>| {
            let elsewhere = |other: &Arc<Controller>| {
                let same = Arc::ptr_eq(other.subsystem(), one.subsystem());
                same && (&other.host().nqn, other.host().id) == (&one.host().nqn, one.host().id)
                    && stays(other)
            };
            let served = served.of(one.subsystem());
            let shared = served.is_some_and(|served| served.controller_ids().is_some());
            served.is_some()
                && Access(one).hears_of_it()
                && !stays(one)
                && (shared || all.iter().any(elsewhere))
        };
        all.iter().filter(can).cloned().collect()
    }

    /// Hosts that can leave are asked to by what is served from now on. Returns which controllers may do no more, and
    /// on which disks. The cores are still to be told.
    pub(crate) fn begin_access(
        &self,
        old: &Served,
        next: &Served,
        difference: &Difference,
    ) -> Vec<(Arc<Controller>, Vec<usize>)> {
        if !difference.access_groups {
            return Vec::new();
        }
        let ports = next.listeners().iter().filter(|one| next.is_closing(one)).map(|one| one.port_id());
        self.who_can_leave(next, &ports.collect()).iter().for_each(|one| Access(one).set_leaving());
        let taken = |controller: Arc<Controller>| {
            let (before, after) = (old.of(controller.subsystem())?, next.of(controller.subsystem())?);
            let way = controller.way();
            let lost = |one: &&Arc<Namespace>| {
                let (was, is) = (before.groups().of(one.nsid()), after.groups().of(one.nsid()));
                let had = before.access_state(was, &way).allows_io();
                had && !Access(&controller).state(after, is).allows_io()
            };
            let disks: Vec<usize> = after.namespaces().filter(lost).map(|one| one.index()).collect();
            (!disks.is_empty()).then_some((controller, disks))
        };
        self.controllers().into_iter().filter_map(taken).collect()
    }

    /// The log page of access groups may be another one for controllers of these subsystems: their hosts are told if it
    /// is. Calls the wakes of controllers.
    fn access_may_have_changed(&self, concerns: impl Fn(&ServedSubsystem) -> bool) {
        let served = self.served();
        for controller in self.controllers() {
            if let Some(own) = served.of(controller.subsystem()).filter(|own| concerns(own)) {
                Access(&controller).may_have_changed(own);
            }
        }
    }

    /// The admin queue of a controller has ended: it takes no further queue, and its identifier is free. Its I/O queues
    /// are still to be ended by their cores.
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

    fn lock_served(&self) -> MutexGuard<'_, Arc<Served>> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<ServedError> for TargetError {
    fn from(error: ServedError) -> Self {
        Self::Served(error)
    }
}
