//! What is served, as a value: subsystems with their hosts and namespaces, and listeners.
//!
//! A [`Served`] never changes. A change makes a [`Draft`] of it, which is checked as a whole and becomes the next one. The
//! [`Difference`] of the two is what cores and hosts are told of: what both have is not disturbed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use super::listener::Listener;
use super::{Namespace, Subsystem};
use crate::config::{Access, ListenerConfig};
use crate::limits::{NSID_MAX, SUBSYSTEMS_MAX};

/// Everything that is served, at one moment.
#[derive(Debug, Default)]
pub struct Served {
    generation: u64,
    discovery_generation: u64,
    /// In the order in which they came.
    subsystems: Vec<Arc<ServedSubsystem>>,
    listeners: Vec<Arc<Listener>>,
}

/// A subsystem, who may use it, and its active namespaces.
#[derive(Clone, Debug)]
pub struct ServedSubsystem {
    subsystem: Arc<Subsystem>,
    access: Access,
    /// By identifier.
    namespaces: BTreeMap<u32, Arc<Namespace>>,
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
    #[error("{0} is no namespace identifier: they are 1 to {NSID_MAX}")]
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

    /// A subsystem's active namespaces, by ascending identifier. The discovery subsystem has none.
    pub fn namespaces_of(&self, subsystem: &Arc<Subsystem>) -> impl Iterator<Item = &Arc<Namespace>> {
        self.of(subsystem).into_iter().flat_map(|one| one.namespaces())
    }

    /// An active namespace.
    pub fn namespace(&self, subsystem: &Arc<Subsystem>, nsid: u32) -> Option<&Arc<Namespace>> {
        self.of(subsystem)?.namespace(nsid)
    }

    /// All active namespaces with their subsystems.
    pub fn namespaces(&self) -> impl Iterator<Item = (&Arc<ServedSubsystem>, &Arc<Namespace>)> {
        self.subsystems.iter().flat_map(|one| one.namespaces().map(move |namespace| (one, namespace)))
    }

    /// Where hosts connect.
    pub fn listeners(&self) -> &[Arc<Listener>] {
        &self.listeners
    }

    /// The listener on which a connection with this local address came in. When its address is not known exactly, the first.
    pub fn listener_at(&self, local: SocketAddr) -> Option<&Arc<Listener>> {
        self.listeners.iter().find(|one| one.covers(local)).or(self.listeners.first())
    }

    /// A draft of the next one, which is the same so far.
    pub fn draft(&self) -> Draft {
        Draft {
            generation: self.generation,
            discovery_generation: self.discovery_generation,
            subsystems: self.subsystems.clone(),
            listeners: self.listeners.clone(),
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

    /// Errors of its disks since the start, also of those that are gone.
    pub fn media_errors(&self) -> u64 {
        let now: u64 = self.namespaces().map(|namespace| namespace.media_errors()).sum();
        self.subsystem.media_errors_before() + now
    }
}

/// What may be served next. Each step may make it wrong for a while: [`Draft::check`] looks at the whole.
#[derive(Debug)]
pub struct Draft {
    generation: u64,
    discovery_generation: u64,
    subsystems: Vec<Arc<ServedSubsystem>>,
    listeners: Vec<Arc<Listener>>,
}

impl Draft {
    /// One more subsystem, without namespaces.
    pub fn add_subsystem(&mut self, subsystem: Arc<Subsystem>, access: Access) {
        self.subsystems.push(Arc::new(ServedSubsystem { subsystem, access, namespaces: BTreeMap::new() }));
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

    /// A namespace is not active any more.
    ///
    /// # Errors
    /// When there is none with this identifier.
    pub fn remove_namespace(&mut self, nqn: &str, nsid: u32) -> Result<Arc<Namespace>, ServedError> {
        let removed = self.subsystem(nqn)?.namespaces.remove(&nsid);
        removed.ok_or_else(|| ServedError::NoNamespace { nqn: nqn.to_owned(), nsid })
    }

    /// One more listener, with the first number that is free. Returns that.
    pub fn add_listener(&mut self, config: ListenerConfig) -> u16 {
        let taken: BTreeSet<u16> = self.listeners.iter().map(|one| one.port_id()).collect();
        let port_id = (1..=u16::MAX).find(|id| !taken.contains(id)).unwrap_or(u16::MAX);
        self.listeners.push(Arc::new(Listener::new(config, port_id)));
        port_id
    }

    /// Hosts do not connect there any more.
    ///
    /// # Errors
    /// When there is none with this number.
    pub fn remove_listener(&mut self, port_id: u16) -> Result<(), ServedError> {
        let index = self.listeners.iter().position(|one| one.port_id() == port_id);
        self.listeners.remove(index.ok_or(ServedError::NoListener(port_id))?);
        Ok(())
    }

    /// What is served next, if it can be.
    ///
    /// # Errors
    /// The first contradiction.
    pub fn check(self) -> Result<Served, ServedError> {
        let Self { generation, discovery_generation, subsystems, listeners } = self;
        if subsystems.len() > SUBSYSTEMS_MAX {
            return Err(ServedError::ManySubsystems(subsystems.len()));
        }
        let mut names = BTreeSet::new();
        let mut identifiers = BTreeSet::new();
        for one in &subsystems {
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
        Ok(Served { generation: generation + 1, discovery_generation, subsystems, listeners })
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
}

impl Difference {
    /// What is different in `next`.
    pub fn between(old: &Served, next: &Served) -> Self {
        let listeners = |one: &Served, other: &Served| -> Vec<Arc<Listener>> {
            let missing =
                |listener: &&Arc<Listener>| !other.listeners.iter().any(|it| Arc::ptr_eq(it, listener));
            one.listeners.iter().filter(missing).cloned().collect()
        };
        let (bound, unbound) = (listeners(next, old), listeners(old, next));
        let seen = |served: &Served| -> Vec<(*const Subsystem, Access)> {
            let subsystems = served.subsystems.iter();
            subsystems.map(|one| (Arc::as_ptr(&one.subsystem), one.access.clone())).collect()
        };
        let discovery = !bound.is_empty() || !unbound.is_empty() || seen(old) != seen(next);
        Self { opened: only_in(next, old), closed: only_in(old, next), bound, unbound, discovery }
    }
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
