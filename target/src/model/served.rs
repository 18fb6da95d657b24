//! What is served, as a value: subsystems with their hosts and namespaces, and listeners.
//!
//! A [`Served`] never changes. A change edits a [`Draft`] of it. The draft is checked as a whole and becomes the next
//! [`Served`]. Cores and hosts get the [`Difference`] of the two: what both have is not disturbed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ringfab_auth::{ConfiguredPsk, Derivation, KeyFingerprint};
use ringfab_spec::log::AnaState;

use super::access_groups::{ServedGroups, is_same};
use super::listener::{Listener, Way};
use super::rate::{Direction, LimitedHost, LimitedNamespace, Rate};
use super::{Namespace, Subsystem};
use crate::config::{
    Access, AccessGroups, DEFAULT_SHARES, Demands, HostConfig, ListenerConfig, NamespaceLimits, Referral,
};
use crate::limits::{CONTROLLER_ID_MAX, NSID_MAX, SUBSYSTEMS_MAX};

/// Everything that is served, at one moment.
#[derive(Debug, Default)]
pub struct Served {
    generation: u64,
    discovery_generation: u64,
    /// In the order in which they came.
    subsystems: Vec<Arc<ServedSubsystem>>,
    listeners: Vec<Arc<Listener>>,
    /// The numbers of those that hosts are asked to leave.
    closing: BTreeSet<u16>,
    /// Other discovery subsystems that hosts are told of.
    referrals: Vec<Referral>,
    /// Whether discovery refuses hosts without a key for authentication.
    discovery_authenticates: bool,
    /// Hosts with shares or limits, by NQN.
    hosts: BTreeMap<String, Arc<LimitedHost>>,
}

/// A subsystem, who may use it, and its active namespaces.
#[derive(Clone, Debug)]
pub struct ServedSubsystem {
    subsystem: Arc<Subsystem>,
    access: Access,
    demands: Demands,
    /// The identifiers that controllers get; any where other processes do not serve it, too.
    controller_ids: Option<(u16, u16)>,
    /// The listeners that discovery names; all where there is none.
    discovery_listeners: Arc<Vec<SocketAddr>>,
    groups: Arc<ServedGroups>,
    /// By identifier.
    namespaces: BTreeMap<u32, Arc<Namespace>>,
    /// The hosts of those namespaces that only some hosts see, by identifier.
    shown: BTreeMap<u32, Arc<BTreeSet<String>>>,
    /// The limits of those namespaces that have any, by identifier.
    limited: BTreeMap<u32, Arc<LimitedNamespace>>,
}

/// Why something cannot be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServedError {
    /// Two subsystems have one name.
    #[error("there are two subsystems {0}")]
    TwoSubsystems(String),
    /// There is none with this name.
    #[error("there is no subsystem {0}")]
    NoSubsystem(String),
    /// There are more than fit the tables of the cores.
    #[error("{0} subsystems are more than {SUBSYSTEMS_MAX}")]
    ManySubsystems(usize),
    /// Two namespaces of a subsystem have one identifier.
    #[error("namespace {nsid} is there already in {nqn}")]
    TwoNamespaces {
        /// The subsystem.
        nqn: String,
        /// The identifier.
        nsid: u32,
    },
    /// The subsystem has none with this identifier.
    #[error("there is no namespace {nsid} in {nqn}")]
    NoNamespace {
        /// The subsystem.
        nqn: String,
        /// The identifier.
        nsid: u32,
    },
    /// An identifier that no namespace can have.
    #[error("{0} is no namespace identifier: these are 1 to {NSID_MAX}")]
    Nsid(u32),
    /// Two namespaces would be one disk to hosts.
    #[error(
        "namespace {nsid} of {nqn} has the NGUID or the UUID of another namespace: hosts would take both for one disk"
    )]
    TwoIdentifiers {
        /// The subsystem of the second.
        nqn: String,
        /// The identifier of the second.
        nsid: u32,
    },
    /// Two listeners have one address.
    #[error("there are two listeners on {0}")]
    TwoListeners(SocketAddr),
    /// There is none with this number.
    #[error("there is no listener {0}")]
    NoListener(u16),
    /// The draft was made of something that is not served any more.
    #[error("what is served has changed in the meantime: try again")]
    Outdated,
}

impl Served {
    /// How many changes there have been.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The same for those changes that discovery shows.
    pub fn discovery_generation(&self) -> u64 {
        self.discovery_generation
    }

    /// The subsystems for I/O.
    pub fn subsystems(&self) -> &[Arc<ServedSubsystem>] {
        &self.subsystems
    }

    /// The subsystem with a name.
    pub fn find(&self, nqn: &str) -> Option<&Arc<ServedSubsystem>> {
        self.subsystems.iter().find(|one| one.nqn() == nqn)
    }

    /// How a subsystem is served, if it still is.
    pub fn of(&self, subsystem: &Arc<Subsystem>) -> Option<&Arc<ServedSubsystem>> {
        self.subsystems.iter().find(|one| Arc::ptr_eq(&one.subsystem, subsystem))
    }

    /// A subsystem's namespaces that are active for a host, by ascending identifier. The discovery subsystem has none.
    pub fn namespaces_for(
        &self,
        subsystem: &Arc<Subsystem>,
        host_nqn: &str,
    ) -> impl Iterator<Item = &Arc<Namespace>> {
        let shown = move |one: &ServedSubsystem, nsid| one.shows(nsid, host_nqn);
        let of = move |one| move |namespace: &&Arc<Namespace>| shown(one, namespace.nsid());
        self.of(subsystem).into_iter().flat_map(move |one| one.namespaces().filter(of(one)))
    }

    /// A namespace that is active for a host.
    pub fn namespace_for(
        &self,
        subsystem: &Arc<Subsystem>,
        nsid: u32,
        host_nqn: &str,
    ) -> Option<&Arc<Namespace>> {
        let served = self.of(subsystem).filter(|one| one.shows(nsid, host_nqn))?;
        served.namespace(nsid)
    }

    /// Whether a namespace is active, but not for this host.
    pub fn hides(&self, subsystem: &Arc<Subsystem>, namespace: &Arc<Namespace>, host_nqn: &str) -> bool {
        let nsid = namespace.nsid();
        let served = self.of(subsystem).filter(|one| !one.shows(nsid, host_nqn));
        let active = served.and_then(|one| one.namespace(nsid));
        active.is_some_and(|active| Arc::ptr_eq(active, namespace))
    }

    /// All active namespaces with their subsystems.
    pub fn namespaces(&self) -> impl Iterator<Item = (&Arc<ServedSubsystem>, &Arc<Namespace>)> {
        self.subsystems.iter().flat_map(|one| one.namespaces().map(move |namespace| (one, namespace)))
    }

    /// Where hosts connect.
    pub fn listeners(&self) -> &[Arc<Listener>] {
        &self.listeners
    }

    /// Whether hosts are asked to leave a listener.
    pub fn is_closing(&self, listener: &Listener) -> bool {
        self.closing.contains(&listener.port_id())
    }

    /// Other discovery subsystems that hosts are told of.
    pub fn referrals(&self) -> &[Referral] {
        &self.referrals
    }

    /// Whether discovery refuses hosts without a key for authentication, and has the others authenticate.
    pub fn discovery_authenticates(&self) -> bool {
        self.discovery_authenticates
    }

    /// Hosts with shares or limits, by NQN.
    pub fn limited_hosts(&self) -> impl Iterator<Item = &LimitedHost> {
        self.hosts.values().map(|host| &**host)
    }

    /// What is said of a host.
    pub fn limited_host(&self, host_nqn: &str) -> Option<&LimitedHost> {
        self.hosts.get(host_nqn).map(|host| &**host)
    }

    /// How much a host gets in relation to others.
    pub fn shares(&self, host_nqn: &str) -> u32 {
        self.hosts.get(host_nqn).map_or(DEFAULT_SHARES, |host| host.config().shares)
    }

    /// Whether anything is limited.
    pub fn has_limits(&self) -> bool {
        let hosts = self.hosts.values().any(|host| !host.config().limits.is_unlimited());
        hosts || self.subsystems.iter().any(|one| !one.limited.is_empty())
    }

    /// What limits a host on a namespace.
    pub fn rates(
        &self,
        subsystem: &Arc<Subsystem>,
        nsid: u32,
        host_nqn: &str,
        direction: Direction,
    ) -> Vec<Arc<Rate>> {
        let namespace = self.of(subsystem).and_then(|one| one.limited.get(&nsid));
        let namespace = namespace.into_iter().flat_map(|one| one.rates(host_nqn, direction));
        let host = self.hosts.get(host_nqn).into_iter().flat_map(|one| one.rates(direction));
        namespace.chain(host).cloned().collect()
    }

    /// The listener by which a host came, or the one that has taken its place.
    pub fn listener_of<'a>(&'a self, way: &'a Way) -> &'a Arc<Listener> {
        let same = self.listeners.iter().find(|one| Arc::ptr_eq(one, &way.listener));
        // One that was bound for the next change takes hosts a moment before it is served.
        same.or_else(|| self.successor_of(way)).unwrap_or(&way.listener)
    }

    /// The listener that takes hosts which come as this one came, where theirs is gone.
    pub fn successor_of(&self, way: &Way) -> Option<&Arc<Listener>> {
        let transport = way.listener.transport();
        self.listeners.iter().find(|one| one.transport() == transport && one.covers(way.local))
    }

    /// Whether a controller of a subsystem may get an identifier: one of its own, if other processes serve it, too, and
    /// none that is another subsystem's own.
    pub fn may_give(&self, subsystem: &Arc<Subsystem>, cntlid: u16) -> bool {
        if !(1..=CONTROLLER_ID_MAX).contains(&cntlid) {
            return false;
        }
        match self.of(subsystem) {
            Some(own) if own.controller_ids.is_some() => own.gives(cntlid),
            _ => !self.subsystems.iter().any(|one| one.controller_ids.is_some() && one.gives(cntlid)),
        }
    }

    /// A draft of the next one, which is the same so far.
    pub fn draft(&self) -> Draft {
        Draft {
            generation: self.generation,
            discovery_generation: self.discovery_generation,
            subsystems: self.subsystems.clone(),
            listeners: self.listeners.clone(),
            closing: self.closing.clone(),
            referrals: self.referrals.clone(),
            discovery_authenticates: self.discovery_authenticates,
            hosts: self.hosts.clone(),
        }
    }
}

impl ServedSubsystem {
    /// What stays the same as long as it is served.
    pub fn subsystem(&self) -> &Arc<Subsystem> {
        &self.subsystem
    }

    /// NVMe Qualified Name.
    pub fn nqn(&self) -> &str {
        self.subsystem.nqn()
    }

    /// Which hosts may connect.
    pub fn access(&self) -> &Access {
        &self.access
    }

    /// What its hosts have to do.
    pub fn demands(&self) -> Demands {
        self.demands
    }

    /// The first and the last identifier of its controllers, where other processes serve it, too.
    pub fn controller_ids(&self) -> Option<(u16, u16)> {
        self.controller_ids
    }

    /// Whether a controller identifier is one that this process gives for it.
    pub fn gives(&self, cntlid: u16) -> bool {
        let (first, last) = self.controller_ids.unwrap_or((1, CONTROLLER_ID_MAX));
        (first..=last).contains(&cntlid)
    }

    /// Whether discovery names a listener for it, which is reached at `address`.
    pub fn is_discovered_at(&self, listener: &Listener, address: SocketAddr) -> bool {
        let named =
            |written: &SocketAddr| is_same(*written, address) || is_same(*written, listener.address());
        self.discovery_listeners.is_empty() || self.discovery_listeners.iter().any(named)
    }

    /// Its access groups.
    pub fn groups(&self) -> &ServedGroups {
        &self.groups
    }

    /// The ways of a listener that are told apart: its own address, and local addresses of which something is said.
    pub fn ways(&self, listener: &Arc<Listener>, group: u32) -> Vec<Way> {
        if listener.limits().discovery_only {
            return Vec::new();
        }
        let said = self.groups.configured().get(&group).into_iter().flat_map(|one| one.ways.keys());
        let own = said.copied().filter(|local| listener.covers(*local));
        let own = own.filter(|local| !is_same(*local, listener.address()));
        let locals: BTreeSet<SocketAddr> = own.chain([listener.address()]).collect();
        locals.into_iter().map(|local| Way { local, listener: Arc::clone(listener) }).collect()
    }

    /// The state of an access group by a way: the configured one, unless its disks are gone. They are gone when none of
    /// the group's namespaces can be read, of all that are served, whoever sees them.
    pub fn access_state(&self, group: u32, way: &Way) -> AnaState {
        let configured = self.groups.state(group, way);
        match self.lost_state(group) {
            Some(lost) if configured.allows_io() => lost,
            _ => configured,
        }
    }

    /// The state of a group that has lost its disks, if it follows them.
    pub fn lost_state(&self, group: u32) -> Option<AnaState> {
        let lost = self.groups.on_lost_disk(group).state()?;
        let own = self.namespaces().filter(|one| self.groups.of(one.nsid()) == group);
        let mut ready = own.map(|one| one.is_ready()).peekable();
        (ready.peek().is_some() && !ready.any(|ready| ready)).then_some(lost)
    }

    /// Whether a host may connect to it and see it by discovery.
    pub fn allows(&self, host_nqn: &str) -> bool {
        match &self.access {
            Access::AnyHost => true,
            Access::Hosts(hosts) => hosts.contains(host_nqn),
        }
    }

    /// The active namespace with an identifier.
    pub fn namespace(&self, nsid: u32) -> Option<&Arc<Namespace>> {
        self.namespaces.get(&nsid)
    }

    /// All active namespaces, by ascending identifier.
    pub fn namespaces(&self) -> impl ExactSizeIterator<Item = &Arc<Namespace>> {
        self.namespaces.values()
    }

    /// The limits of a namespace, if it has any.
    pub fn limits_of(&self, nsid: u32) -> Option<&NamespaceLimits> {
        self.limited.get(&nsid).map(|one| one.limits())
    }

    /// Which of the subsystem's hosts see a namespace.
    pub fn shown_to(&self, nsid: u32) -> Access {
        self.shown.get(&nsid).map_or(Access::AnyHost, |hosts| Access::Hosts((**hosts).clone()))
    }

    /// Whether all hosts of the subsystem see a namespace.
    pub fn shows_to_all(&self, nsid: u32) -> bool {
        !self.shown.contains_key(&nsid)
    }

    /// Whether a host of the subsystem sees a namespace, if there is one with this identifier.
    pub fn shows(&self, nsid: u32, host_nqn: &str) -> bool {
        self.shown.get(&nsid).is_none_or(|hosts| hosts.contains(host_nqn))
    }

    /// The namespaces that this host sees and others do not, by ascending identifier.
    pub fn shown_only_to_some(&self, host_nqn: &str) -> impl Iterator<Item = &Arc<Namespace>> {
        let seen = self.shown.iter().filter(move |(_, hosts)| hosts.contains(host_nqn));
        seen.filter_map(|(nsid, _)| self.namespaces.get(nsid))
    }
}

/// What may be served next. Each step may make it wrong for a while: [`Draft::check`] looks at the whole.
#[derive(Debug)]
pub struct Draft {
    generation: u64,
    discovery_generation: u64,
    subsystems: Vec<Arc<ServedSubsystem>>,
    listeners: Vec<Arc<Listener>>,
    closing: BTreeSet<u16>,
    referrals: Vec<Referral>,
    discovery_authenticates: bool,
    hosts: BTreeMap<String, Arc<LimitedHost>>,
}

impl Draft {
    /// One more subsystem, without namespaces.
    pub fn add_subsystem(&mut self, subsystem: Arc<Subsystem>, access: Access) {
        self.subsystems.push(Arc::new(ServedSubsystem {
            subsystem,
            access,
            demands: Demands::default(),
            controller_ids: None,
            discovery_listeners: Arc::default(),
            groups: Arc::default(),
            namespaces: BTreeMap::new(),
            shown: BTreeMap::new(),
            limited: BTreeMap::new(),
        }));
    }

    /// A subsystem is not served any more, nor are its namespaces.
    ///
    /// # Errors
    /// When there is none with this name.
    pub fn remove_subsystem(&mut self, nqn: &str) -> Result<(), ServedError> {
        let index = self.subsystems.iter().position(|one| one.nqn() == nqn);
        self.subsystems.remove(index.ok_or_else(|| ServedError::NoSubsystem(nqn.to_owned()))?);
        Ok(())
    }

    /// Other hosts may use a subsystem.
    ///
    /// # Errors
    /// When there is none with this name.
    pub fn set_access(&mut self, nqn: &str, access: Access) -> Result<(), ServedError> {
        self.subsystem(nqn)?.access = access;
        Ok(())
    }

    /// A subsystem demands this of its hosts from now on.
    ///
    /// # Errors
    /// When there is none with this name.
    pub fn set_demands(&mut self, nqn: &str, demands: Demands) -> Result<(), ServedError> {
        self.subsystem(nqn)?.demands = demands;
        Ok(())
    }

    /// One more namespace.
    ///
    /// # Errors
    /// When there is no such subsystem, or it has one with the same identifier.
    pub fn add_namespace(&mut self, nqn: &str, namespace: Arc<Namespace>) -> Result<(), ServedError> {
        let nsid = namespace.nsid();
        match self.subsystem(nqn)?.namespaces.insert(nsid, namespace) {
            None => Ok(()),
            Some(_) => Err(ServedError::TwoNamespaces { nqn: nqn.to_owned(), nsid }),
        }
    }

    /// Only these of the subsystem's hosts see a namespace from now on.
    ///
    /// # Errors
    /// When there is none with this identifier.
    pub fn show_namespace(&mut self, nqn: &str, nsid: u32, hosts: &Access) -> Result<(), ServedError> {
        let subsystem = self.subsystem(nqn)?;
        if !subsystem.namespaces.contains_key(&nsid) {
            return Err(ServedError::NoNamespace { nqn: nqn.to_owned(), nsid });
        }
        match hosts {
            Access::AnyHost => subsystem.shown.remove(&nsid),
            Access::Hosts(hosts) => subsystem.shown.insert(nsid, Arc::new(hosts.clone())),
        };
        Ok(())
    }

    /// Controllers of a subsystem get these identifiers, from the first to the last.
    ///
    /// # Errors
    /// When there is none with this name.
    pub fn set_controller_ids(&mut self, nqn: &str, ids: Option<(u16, u16)>) -> Result<(), ServedError> {
        self.subsystem(nqn)?.controller_ids = ids;
        Ok(())
    }

    /// Discovery names these listeners for a subsystem from now on; all if there is none.
    ///
    /// # Errors
    /// When there is none with this name.
    pub fn set_discovery_listeners(
        &mut self,
        nqn: &str,
        listeners: &[SocketAddr],
    ) -> Result<(), ServedError> {
        self.subsystem(nqn)?.discovery_listeners = Arc::new(listeners.to_vec());
        Ok(())
    }

    /// The access groups of a subsystem are in other states from now on.
    ///
    /// # Errors
    /// When there is none with this name.
    pub fn set_access_groups(
        &mut self,
        nqn: &str,
        edit: impl FnOnce(&mut AccessGroups),
    ) -> Result<(), ServedError> {
        let groups = &mut self.subsystem(nqn)?.groups;
        let mut configured = groups.configured().clone();
        edit(&mut configured);
        Arc::make_mut(groups).configure(configured);
        Ok(())
    }

    /// A namespace is in this access group from now on.
    ///
    /// # Errors
    /// When there is none with this identifier.
    pub fn group_namespace(&mut self, nqn: &str, nsid: u32, group: u32) -> Result<(), ServedError> {
        let subsystem = self.subsystem(nqn)?;
        if !subsystem.namespaces.contains_key(&nsid) {
            return Err(ServedError::NoNamespace { nqn: nqn.to_owned(), nsid });
        }
        Arc::make_mut(&mut subsystem.groups).place(nsid, group);
        Ok(())
    }

    /// A namespace has these limits from now on.
    ///
    /// # Errors
    /// When there is none with this identifier.
    pub fn limit_namespace(
        &mut self,
        nqn: &str,
        nsid: u32,
        limits: &NamespaceLimits,
    ) -> Result<(), ServedError> {
        let subsystem = self.subsystem(nqn)?;
        if !subsystem.namespaces.contains_key(&nsid) {
            return Err(ServedError::NoNamespace { nqn: nqn.to_owned(), nsid });
        }
        subsystem.limited.remove(&nsid);
        if !limits.is_unlimited() {
            subsystem.limited.insert(nsid, Arc::new(LimitedNamespace::new(limits.clone())));
        }
        Ok(())
    }

    /// A host has these shares and limits from now on.
    pub fn set_host(&mut self, host: &HostConfig) {
        self.hosts.remove(&host.nqn);
        if !host.is_default() {
            self.hosts.insert(host.nqn.clone(), Arc::new(LimitedHost::new(host.clone())));
        }
    }

    /// A namespace is not active any more.
    ///
    /// # Errors
    /// When there is none with this identifier.
    pub fn remove_namespace(&mut self, nqn: &str, nsid: u32) -> Result<Arc<Namespace>, ServedError> {
        let subsystem = self.subsystem(nqn)?;
        subsystem.shown.remove(&nsid);
        subsystem.limited.remove(&nsid);
        Arc::make_mut(&mut subsystem.groups).forget(nsid);
        let removed = subsystem.namespaces.remove(&nsid);
        removed.ok_or_else(|| ServedError::NoNamespace { nqn: nqn.to_owned(), nsid })
    }

    /// One more listener, with the first number that is free. Returns that.
    pub fn add_listener(&mut self, config: ListenerConfig) -> u16 {
        let taken: BTreeSet<u16> = self.listeners.iter().map(|one| one.port_id()).collect();
        let port_id = (1..=u16::MAX).find(|id| !taken.contains(id)).unwrap_or(u16::MAX);
        self.listeners.push(Arc::new(Listener::new(config, port_id)));
        port_id
    }

    /// The number of a listener that was made from this.
    pub fn listener(&self, config: &ListenerConfig) -> Option<u16> {
        self.listeners.iter().find(|one| one.config() == config).map(|one| one.port_id())
    }

    /// A listener has other parameters, and keeps its number.
    ///
    /// # Errors
    /// When there is none with this number.
    pub fn replace_listener(&mut self, port_id: u16, config: ListenerConfig) -> Result<(), ServedError> {
        let found = self.listeners.iter_mut().find(|one| one.port_id() == port_id);
        *found.ok_or(ServedError::NoListener(port_id))? = Arc::new(Listener::new(config, port_id));
        Ok(())
    }

    /// Hosts do not connect there any more.
    ///
    /// # Errors
    /// When there is none with this number.
    pub fn remove_listener(&mut self, port_id: u16) -> Result<(), ServedError> {
        let index = self.listeners.iter().position(|one| one.port_id() == port_id);
        self.listeners.remove(index.ok_or(ServedError::NoListener(port_id))?);
        self.closing.remove(&port_id);
        Ok(())
    }

    /// Hosts that can go elsewhere are asked to leave these listeners.
    pub fn close_ways(&mut self, ports: &BTreeSet<u16>) {
        self.closing.extend(ports);
    }

    /// Hosts are told of one more discovery subsystem.
    pub fn add_referral(&mut self, referral: Referral) {
        self.referrals.push(referral);
    }

    /// Hosts are told of a discovery subsystem no longer.
    pub fn remove_referral(&mut self, referral: &Referral) {
        self.referrals.retain(|one| one != referral);
    }

    /// Discovery refuses hosts without a key for authentication from now on, or does not.
    pub fn set_discovery_authenticates(&mut self, authenticates: bool) {
        self.discovery_authenticates = authenticates;
    }

    /// What is served next, if it can be.
    ///
    /// # Errors
    /// The first contradiction.
    pub fn check(self) -> Result<Served, ServedError> {
        let Self { subsystems, listeners, .. } = &self;
        if subsystems.len() > SUBSYSTEMS_MAX {
            return Err(ServedError::ManySubsystems(subsystems.len()));
        }
        let mut names = BTreeSet::new();
        let mut identifiers = BTreeSet::new();
        for one in subsystems {
            if !names.insert(one.nqn()) {
                return Err(ServedError::TwoSubsystems(one.nqn().to_owned()));
            }
            for namespace in one.namespaces() {
                let nsid = namespace.nsid();
                if !(1..=NSID_MAX).contains(&nsid) {
                    return Err(ServedError::Nsid(nsid));
                }
                // The two kinds are told from each other by the flag.
                let nguid = identifiers.insert((false, *namespace.nguid()));
                let uuid = identifiers.insert((true, *namespace.uuid().as_bytes()));
                if !nguid || !uuid {
                    return Err(ServedError::TwoIdentifiers { nqn: one.nqn().to_owned(), nsid });
                }
            }
        }
        let mut addresses = BTreeSet::new();
        for address in listeners.iter().map(|one| one.address()).filter(|one| one.port() != 0) {
            if !addresses.insert(address) {
                return Err(ServedError::TwoListeners(address));
            }
        }
        Ok(Served {
            generation: self.generation + 1,
            discovery_generation: self.discovery_generation,
            subsystems: self.subsystems,
            listeners: self.listeners,
            closing: self.closing,
            referrals: self.referrals,
            discovery_authenticates: self.discovery_authenticates,
            hosts: self.hosts,
        })
    }

    fn subsystem(&mut self, nqn: &str) -> Result<&mut ServedSubsystem, ServedError> {
        let found = self.subsystems.iter_mut().find(|one| one.nqn() == nqn);
        found.map(Arc::make_mut).ok_or_else(|| ServedError::NoSubsystem(nqn.to_owned()))
    }
}

/// What is served newly, and what is not any more.
#[derive(Debug, Default)]
pub struct Difference {
    /// Namespaces that come.
    pub opened: Vec<(Arc<Subsystem>, Arc<Namespace>)>,
    /// Namespaces that go.
    pub closed: Vec<(Arc<Subsystem>, Arc<Namespace>)>,
    /// Listeners that come.
    pub bound: Vec<Arc<Listener>>,
    /// Listeners that go.
    pub unbound: Vec<Arc<Listener>>,
    /// Whether discovery shows something else.
    pub discovery: bool,
    /// Namespaces that stay, and that other hosts see.
    pub shown: Vec<ShownNamespace>,
    /// Keys for authentication that count no more, by host, where no newer one has come.
    pub revoked: BTreeMap<String, BTreeSet<KeyFingerprint>>,
    /// Hosts that have a key for authentication, and had none.
    pub first_keys: BTreeSet<String>,
    /// Hosts that may not use a hash function or a group for authentication any more which they could use.
    pub narrowed: BTreeSet<String>,
    /// Keys for TLS that count no more, by host, where no newer one has come.
    pub revoked_tls: BTreeMap<String, Vec<(ConfiguredPsk, Derivation)>>,
    /// Whether subsystems, or discovery, demand something else of their hosts.
    pub demands: bool,
    /// Whether namespaces or hosts have other limits, or hosts other shares.
    pub limits: bool,
    /// Whether access groups have other states or namespaces.
    pub access_groups: bool,
    /// Of those that come or go, those that only some hosts of their subsystem see, with these.
    pub of_some: Vec<(Arc<Namespace>, Arc<BTreeSet<String>>)>,
}

/// A namespace that other hosts see.
#[derive(Clone, Debug)]
pub struct ShownNamespace {
    /// Its subsystem, as it was served.
    pub before: Arc<ServedSubsystem>,
    /// Its subsystem, as it is served.
    pub after: Arc<ServedSubsystem>,
    /// Its identifier.
    pub nsid: u32,
}

impl ShownNamespace {
    /// Whether a host sees the one of two states and not the other.
    pub fn concerns(&self, host_nqn: &str) -> bool {
        self.before.shows(self.nsid, host_nqn) != self.after.shows(self.nsid, host_nqn)
    }
}

impl Difference {
    /// Whether both serve the same to the same hosts.
    pub fn is_empty(&self) -> bool {
        let none = self.opened.is_empty() && self.closed.is_empty();
        let revoked = !self.revoked.is_empty() || !self.revoked_tls.is_empty();
        let keys = !revoked && self.narrowed.is_empty() && self.first_keys.is_empty();
        let same = self.shown.is_empty() && !self.discovery && !self.limits && !self.demands && keys;
        let same = same && !self.access_groups;
        none && same && self.bound.is_empty() && self.unbound.is_empty()
    }

    /// Whether a host of the subsystem sees a namespace that comes, or saw one that goes.
    pub fn concerns(&self, namespace: &Arc<Namespace>, host_nqn: &str) -> bool {
        let only = self.of_some.iter().find(|(known, _)| Arc::ptr_eq(known, namespace));
        only.is_none_or(|(_, hosts)| hosts.contains(host_nqn))
    }

    /// Whether a host may read something else of access groups.
    pub fn changes_access_logs(&self) -> bool {
        let namespaces = !self.opened.is_empty() || !self.closed.is_empty() || !self.shown.is_empty();
        namespaces || self.access_groups
    }

    /// Whether it is about a namespace that only some hosts of its subsystem see, or saw.
    pub fn is_restricted(&self) -> bool {
        !self.shown.is_empty() || !self.of_some.is_empty()
    }

    /// The listeners that go and have an address without which this one, which comes, cannot be bound.
    pub fn replaced_by(&self, listener: &Listener) -> impl Iterator<Item = &Arc<Listener>> {
        let address = listener.address();
        self.unbound.iter().filter(move |old| exclude_each_other(old.address(), address))
    }

    /// All listeners that go before others can be bound.
    pub fn replaced(&self) -> impl Iterator<Item = &Arc<Listener>> {
        let gives_way = |old: &&Arc<Listener>| {
            self.bound.iter().any(|new| exclude_each_other(old.address(), new.address()))
        };
        self.unbound.iter().filter(gives_way)
    }

    /// What is different in `next`.
    pub fn between(old: &Served, next: &Served) -> Self {
        let listeners = |one: &Served, other: &Served| -> Vec<Arc<Listener>> {
            let missing =
                |listener: &&Arc<Listener>| !other.listeners.iter().any(|it| Arc::ptr_eq(it, listener));
            one.listeners.iter().filter(missing).cloned().collect()
        };
        let (bound, unbound) = (listeners(next, old), listeners(old, next));
        let seen = |served: &Served| -> Vec<(*const Subsystem, Access, bool, Arc<Vec<SocketAddr>>)> {
            let of = |one: &Arc<ServedSubsystem>| {
                let named = Arc::clone(&one.discovery_listeners);
                (Arc::as_ptr(&one.subsystem), one.access.clone(), one.demands.tls, named)
            };
            served.subsystems.iter().map(of).collect()
        };
        let listeners = !bound.is_empty() || !unbound.is_empty();
        let discovery = listeners
            || old.referrals != next.referrals
            || seen(old) != seen(next)
            || have_tls(old) != have_tls(next);
        let (opened, closed) = (only_in(next, old), only_in(old, next));
        Self {
            of_some: of_some(next, &opened).chain(of_some(old, &closed)).collect(),
            opened,
            closed,
            bound,
            unbound,
            discovery,
            shown: shown(old, next),
            revoked: each_host(old, |host| {
                let keys = host.authentication.as_ref()?;
                Some(keys.revoked_by(next.authentication_of(&host.nqn))).filter(|keys| !keys.is_empty())
            }),
            first_keys: hosts_that(next, |host| {
                host.authentication.is_some() && old.authentication_of(&host.nqn).is_none()
            }),
            narrowed: hosts_that(old, |host| {
                let next = next.authentication_of(&host.nqn);
                host.authentication.as_ref().zip(next).is_some_and(|(old, next)| !next.allows_all_of(old))
            }),
            revoked_tls: each_host(old, |host| {
                let tls = host.tls.as_ref()?;
                let keys = tls.revoked_by(next.tls_of(&host.nqn)).into_iter();
                let keys: Vec<_> = keys.map(|key| (key.clone(), tls.derivation)).collect();
                Some(keys).filter(|keys| !keys.is_empty())
            }),
            demands: demands(old) != demands(next),
            limits: limits_differ(old, next),
            access_groups: groups_differ(old, next) || old.closing != next.closing,
        }
    }
}

/// Whether the system gives only one of two addresses at a time. All addresses of IPv6 have those of IPv4 among them.
fn exclude_each_other(one: SocketAddr, other: SocketAddr) -> bool {
    let has = |all: IpAddr, one: IpAddr| all.is_unspecified() && (all.is_ipv6() || one.is_ipv4());
    let overlap = one == other || has(one.ip(), other.ip()) || has(other.ip(), one.ip());
    overlap && one.port() == other.port() && one.port() != 0
}

/// What discovery and all subsystems demand.
fn demands(served: &Served) -> (bool, Vec<Demands>) {
    (served.discovery_authenticates, served.subsystems.iter().map(|one| one.demands).collect())
}

/// Hosts with a key for TLS: discovery tells them that TLS may be had.
fn have_tls(served: &Served) -> BTreeSet<String> {
    hosts_that(served, |host| host.tls.is_some())
}

/// The hosts of which something holds.
fn hosts_that(served: &Served, holds: impl Fn(&HostConfig) -> bool) -> BTreeSet<String> {
    each_host(served, |host| holds(host).then_some(())).into_keys().collect()
}

/// Of these namespaces of `served`, those that only some hosts of their subsystem see, with these.
fn of_some<'a>(
    served: &'a Served,
    all: &'a [(Arc<Subsystem>, Arc<Namespace>)],
) -> impl Iterator<Item = (Arc<Namespace>, Arc<BTreeSet<String>>)> + 'a {
    all.iter().filter_map(|(subsystem, namespace)| {
        let hosts = served.of(subsystem)?.shown.get(&namespace.nsid())?;
        Some((Arc::clone(namespace), Arc::clone(hosts)))
    })
}

/// The hosts of which there is something to say.
fn each_host<T>(served: &Served, of: impl Fn(&HostConfig) -> Option<T>) -> BTreeMap<String, T> {
    let hosts = served.hosts.values().map(|host| host.config());
    hosts.filter_map(|host| Some((host.nqn.clone(), of(host)?))).collect()
}

/// Whether hosts or namespaces have other limits. What is the same is the same value in both.
fn limits_differ(old: &Served, next: &Served) -> bool {
    let hosts = |one: &Served| one.hosts.values().map(Arc::as_ptr).collect::<Vec<_>>();
    let namespaces = |one: &Served| {
        let limited = one.subsystems.iter().flat_map(|one| one.limited.values());
        limited.map(Arc::as_ptr).collect::<Vec<_>>()
    };
    hosts(old) != hosts(next) || namespaces(old) != namespaces(next)
}

/// Whether access groups have other states or namespaces, in subsystems that both have.
fn groups_differ(old: &Served, next: &Served) -> bool {
    let differs = |after: &Arc<ServedSubsystem>| {
        let before = old.of(&after.subsystem).filter(|before| !Arc::ptr_eq(&before.groups, &after.groups));
        before.is_some_and(|before| before.groups != after.groups)
    };
    next.subsystems.iter().any(differs)
}

/// The namespaces that both have, and that other hosts see.
fn shown(old: &Served, next: &Served) -> Vec<ShownNamespace> {
    let mut all = Vec::new();
    for after in &next.subsystems {
        let before = old.of(&after.subsystem).filter(|before| before.shown != after.shown);
        let Some(before) = before else { continue };
        for (nsid, namespace) in &after.namespaces {
            let stays = before.namespace(*nsid).is_some_and(|old| Arc::ptr_eq(old, namespace));
            if stays && before.shown.get(nsid) != after.shown.get(nsid) {
                let (before, after) = (Arc::clone(before), Arc::clone(after));
                all.push(ShownNamespace { before, after, nsid: *nsid });
            }
        }
    }
    all
}

/// The namespaces of one that the other does not have.
fn only_in(one: &Served, other: &Served) -> Vec<(Arc<Subsystem>, Arc<Namespace>)> {
    let mut all = Vec::new();
    for served in &one.subsystems {
        let counterpart = other.of(&served.subsystem);
        // Most subsystems are the same value in both.
        if counterpart.is_some_and(|counterpart| Arc::ptr_eq(counterpart, served)) {
            continue;
        }
        for namespace in served.namespaces() {
            let same = counterpart.and_then(|counterpart| counterpart.namespace(namespace.nsid()));
            if !same.is_some_and(|same| Arc::ptr_eq(same, namespace)) {
                all.push((Arc::clone(&served.subsystem), Arc::clone(namespace)));
            }
        }
    }
    all
}

impl Served {
    /// The one that follows `self`, which discovery shows as another when it is.
    ///
    /// # Errors
    /// When `next` was made of another one.
    pub(crate) fn followed_by(&self, next: Self) -> Result<(Self, Difference), ServedError> {
        if next.generation != self.generation + 1 {
            return Err(ServedError::Outdated);
        }
        let difference = Difference::between(self, &next);
        let discovery_generation = self.discovery_generation + u64::from(difference.discovery);
        Ok((Self { discovery_generation, ..next }, difference))
    }
}

#[cfg(test)]
mod tests {
    use ringfab_block::Backing;
    use uuid::Uuid;

    use super::super::namespace::{Indexes, NamespaceParameters};
    use super::*;
    use crate::config::Config;

    const A: &str = "nqn.2026-11.org.ringfab:a";
    const B: &str = "nqn.2026-11.org.ringfab:b";

    struct Made {
        subsystems: Indexes,
        namespaces: Indexes,
    }

    impl Made {
        fn new() -> Self {
            Self { subsystems: Indexes::default(), namespaces: Indexes::default() }
        }

        fn subsystem(&self, nqn: &str) -> Arc<Subsystem> {
            let text = str::to_owned;
            Arc::new(Subsystem::new(self.subsystems.take(), text(nqn), text("S1"), text("M")))
        }

        fn namespace(&self, nsid: u32, identifier: u8) -> Arc<Namespace> {
            Arc::new(Namespace::new(NamespaceParameters {
                nsid,
                index: self.namespaces.take(),
                epoch: Arc::default(),
                block_bytes: 512,
                backing: Backing::Null { bytes: 1 << 20 },
                read_only: false,
                shared: false,
                nguid: [identifier; 16],
                uuid: Uuid::from_bytes([identifier; 16]),
            }))
        }

        /// Subsystem A with namespace 1, B without any, and a listener.
        fn served(&self) -> Served {
            let mut draft = Served::default().draft();
            draft.add_subsystem(self.subsystem(A), Access::AnyHost);
            draft.add_subsystem(self.subsystem(B), Access::AnyHost);
            draft.add_namespace(A, self.namespace(1, 1)).unwrap();
            draft.add_listener(listener(4420));
            let (served, difference) = Served::default().followed_by(draft.check().unwrap()).unwrap();
            assert!(difference.discovery && difference.closed.is_empty() && difference.unbound.is_empty());
            assert_eq!((difference.opened.len(), difference.bound.len()), (1, 1));
            served
        }
    }

    fn listener(port: u16) -> ListenerConfig {
        let text = format!(
            "[[listener]]\naddress = \"127.0.0.1\"\nport = {port}\n[[subsystem]]\nnqn = {A:?}\n\
             allow_any_host = true\n[[subsystem.namespace]]\nnull = \"1MiB\"\n"
        );
        Config::parse(&text, "test").unwrap().listeners.remove(0)
    }

    fn next(served: &Served, edit: impl FnOnce(&mut Draft)) -> Result<(Served, Difference), ServedError> {
        let mut draft = served.draft();
        edit(&mut draft);
        served.followed_by(draft.check()?)
    }

    fn nsids(all: &[(Arc<Subsystem>, Arc<Namespace>)]) -> Vec<(&str, u32)> {
        all.iter().map(|(subsystem, namespace)| (subsystem.nqn(), namespace.nsid())).collect()
    }

    #[test]
    fn a_draft_that_contradicts_itself_is_not_served() {
        let made = Made::new();
        let served = made.served();
        let wrong = |edit: &dyn Fn(&mut Draft)| next(&served, edit).map(drop).unwrap_err();
        let twice = wrong(&|draft| draft.add_subsystem(made.subsystem(A), Access::AnyHost));
        assert_eq!(twice, ServedError::TwoSubsystems(A.to_owned()));
        let identifiers = wrong(&|draft| draft.add_namespace(B, made.namespace(7, 1)).unwrap());
        assert_eq!(identifiers, ServedError::TwoIdentifiers { nqn: B.to_owned(), nsid: 7 });
        let nsid = wrong(&|draft| draft.add_namespace(B, made.namespace(NSID_MAX + 1, 2)).unwrap());
        assert_eq!(nsid, ServedError::Nsid(NSID_MAX + 1));
        let address = wrong(&|draft| drop_id(draft.add_listener(listener(4420))));
        assert_eq!(address, ServedError::TwoListeners("127.0.0.1:4420".parse().unwrap()));
        let many = wrong(&|draft| {
            let subsystem = |number: usize| made.subsystem(&format!("{A}{number}"));
            (0..SUBSYSTEMS_MAX).for_each(|number| draft.add_subsystem(subsystem(number), Access::AnyHost));
        });
        assert_eq!(many, ServedError::ManySubsystems(SUBSYSTEMS_MAX + 2));
    }

    fn drop_id(_port_id: u16) {}

    #[test]
    fn what_is_not_there_cannot_be_changed() {
        let made = Made::new();
        let mut draft = made.served().draft();
        let none = || ServedError::NoSubsystem("nqn.c".to_owned());
        assert_eq!(draft.remove_subsystem("nqn.c"), Err(none()));
        assert_eq!(draft.set_access("nqn.c", Access::AnyHost), Err(none()));
        assert_eq!(draft.add_namespace("nqn.c", made.namespace(2, 2)), Err(none()));
        let two = ServedError::TwoNamespaces { nqn: A.to_owned(), nsid: 1 };
        assert_eq!(draft.add_namespace(A, made.namespace(1, 2)), Err(two));
        let no = ServedError::NoNamespace { nqn: B.to_owned(), nsid: 1 };
        assert_eq!(draft.remove_namespace(B, 1).unwrap_err(), no);
        assert_eq!(draft.remove_listener(2), Err(ServedError::NoListener(2)));
    }

    #[test]
    fn addresses_exclude_each_other_if_one_has_the_other() {
        let found = |one: &str, other: &str| {
            let [one, other] = [one, other].map(|text| text.parse().unwrap());
            assert_eq!(exclude_each_other(one, other), exclude_each_other(other, one), "{one} {other}");
            exclude_each_other(one, other)
        };
        for (one, other) in [
            ("127.0.0.1:1", "127.0.0.1:1"),
            ("127.0.0.1:1", "0.0.0.0:1"),
            ("0.0.0.0:1", "[::]:1"),
            ("127.0.0.1:1", "[::]:1"),
            ("[fe80::1%2]:1", "[::]:1"),
        ] {
            assert!(found(one, other), "{one} {other}");
        }
        for (one, other) in [
            ("127.0.0.1:1", "127.0.0.2:1"),
            ("127.0.0.1:1", "0.0.0.0:2"),
            ("127.0.0.1:0", "0.0.0.0:0"),
            ("[::1]:1", "0.0.0.0:1"),
            ("[fe80::1%2]:1", "[fe80::1%3]:1"),
        ] {
            assert!(!found(one, other), "{one} {other}");
        }
    }

    #[test]
    fn only_what_differs_is_in_the_difference() {
        let made = Made::new();
        let served = made.served();
        let kept = Arc::clone(&served.subsystems()[0]);
        let (later, difference) = next(&served, |draft| {
            draft.add_namespace(B, made.namespace(3, 3)).unwrap();
        })
        .unwrap();
        assert_eq!((nsids(&difference.opened), nsids(&difference.closed)), (vec![(B, 3)], vec![]));
        assert!(!difference.discovery && difference.bound.is_empty() && difference.unbound.is_empty());
        assert!(Arc::ptr_eq(&later.subsystems()[0], &kept), "what is the same is shared");
        assert_eq!((later.generation(), later.discovery_generation()), (2, 1));
        // Another namespace in the place of one: the old one goes, and the new one comes.
        let (later, difference) = next(&later, |draft| {
            draft.remove_namespace(A, 1).unwrap();
            draft.add_namespace(A, made.namespace(1, 9)).unwrap();
        })
        .unwrap();
        assert_eq!((nsids(&difference.opened), nsids(&difference.closed)), (vec![(A, 1)], vec![(A, 1)]));
        let (later, difference) = next(&later, |draft| {
            draft.remove_subsystem(A).unwrap();
            draft.set_access(B, Access::Hosts(["nqn.h".to_owned()].into())).unwrap();
            draft.remove_listener(1).unwrap();
            assert_eq!(draft.add_listener(listener(4420)), 1, "the number is free again");
        })
        .unwrap();
        assert_eq!((nsids(&difference.opened), nsids(&difference.closed)), (vec![], vec![(A, 1)]));
        assert!(difference.discovery && difference.bound.len() == 1 && difference.unbound.len() == 1);
        assert_eq!((later.generation(), later.discovery_generation()), (4, 2));
        assert!(later.find(A).is_none() && !later.find(B).unwrap().allows("nqn.g"));
    }

    #[test]
    fn a_draft_of_what_is_not_served_any_more_is_outdated() {
        let made = Made::new();
        let served = made.served();
        let (first, second) = (served.draft(), served.draft());
        let (served, _) = served.followed_by(first.check().unwrap()).unwrap();
        assert_eq!(served.followed_by(second.check().unwrap()).map(drop), Err(ServedError::Outdated));
    }

    #[test]
    fn a_position_in_the_tables_is_free_once_nobody_has_the_subsystem() {
        let made = Made::new();
        let served = made.served();
        let gone = Arc::clone(served.subsystems()[0].subsystem());
        let (later, difference) = next(&served, |draft| draft.remove_subsystem(A).unwrap()).unwrap();
        drop((served, difference));
        assert_eq!(made.subsystem(B).index(), 2, "somebody has it");
        drop(gone);
        assert_eq!(made.subsystem(B).index(), 0);
        assert_eq!(later.subsystems().len(), 1);
    }
}
