//! The hosts of a core: what each holds of the core's memory, and which of its requests wait for more.
//!
//! A host that stops in the middle of a transfer holds buffers until its connection is given up. Each host may hold no
//! more of a pool than it leaves free, so the other hosts continue.
//!
//! A host is known by its NQN once it has a Connect, and by its address before. How many connections may come is always
//! counted by address, since a connection is there before its name, and a name can be claimed by anyone.

use std::collections::VecDeque;
use std::net::IpAddr;

use ringfab_fabric::network_of;
use ringfab_memory::{Pool, PoolUsage};

use super::RequestId;

/// What requests wait for: each pool has a line of its own for each host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PoolKind {
    /// Buffers of admin commands.
    Admin,
    /// The second buffers of Compare and Copy commands with data in their capsules, and all those of fused pairs.
    Compare,
    /// Buffers of all other I/O commands.
    Io,
}

impl PoolKind {
    /// In the order in which they are served.
    pub(crate) const ALL: [Self; 3] = [Self::Admin, Self::Compare, Self::Io];
}

/// A host with queues on this core: an address, or the host NQN of a Connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct HostId(usize);

impl HostId {
    /// None of them.
    pub(crate) const NOBODY: Self = Self(usize::MAX);

    #[cfg(test)]
    pub(crate) fn at(index: usize) -> Self {
        Self(index)
    }

    /// Its place in a table of hosts.
    pub(crate) fn index(self) -> usize {
        self.0
    }
}

/// A pool, and how many of its buffers a host may hold however few that leaves: as many as its largest command needs.
#[derive(Debug)]
pub(crate) struct SharedPool {
    pub(crate) pool: Pool,
    pub(crate) least: usize,
}

/// All hosts of a core.
#[derive(Debug)]
pub(crate) struct Hosts {
    /// By [`PoolKind`].
    pools: [SharedPool; PoolKind::ALL.len()],
    hosts: Vec<Option<Host>>,
    /// Hosts of which requests wait, each once: a turn costs nothing for all others.
    queued: VecDeque<HostId>,
    /// Queues of all, and those of them that have no Connect.
    queues: usize,
    opening: usize,
}

/// What a host is known by.
#[derive(Debug, PartialEq, Eq)]
enum Name {
    /// Connections come from it.
    Address(IpAddr),
    /// Their Connect commands have it.
    Nqn(Box<str>),
}

impl Name {
    fn is_address(&self) -> bool {
        matches!(self, Self::Address(_))
    }
}

/// What a host has on this core.
#[derive(Debug)]
pub(crate) struct Host {
    name: Name,
    /// Connections that it has on this core.
    pub(crate) queues: usize,
    /// Those of them that have no Connect.
    pub(crate) opening: usize,
    /// Its share of each pool, by [`PoolKind`].
    pools: [Pool; PoolKind::ALL.len()],
    waiting: [VecDeque<RequestId>; PoolKind::ALL.len()],
    /// Whether it is among those in line.
    queued: bool,
}

impl Hosts {
    /// No host yet. The pools are in the order of [`PoolKind`].
    pub(crate) fn new(pools: [SharedPool; PoolKind::ALL.len()]) -> Self {
        Self { pools, hosts: Vec::new(), queued: VecDeque::new(), queues: 0, opening: 0 }
    }

    /// A connection of the host at an address has come.
    pub(crate) fn enter(&mut self, address: IpAddr) -> HostId {
        let id = self.join(Name::Address(network_of(address)));
        self.host_mut(id).opening += 1;
        self.queues += 1;
        self.opening += 1;
        id
    }

    /// A connection from an address counts no longer among those without a Connect.
    pub(crate) fn opened(&mut self, address: HostId) {
        self.host_mut(address).opening -= 1;
        self.opening -= 1;
    }

    /// The host with a name, which has a connection more.
    pub(crate) fn named_host(&mut self, host_nqn: &str) -> HostId {
        self.join(Name::Nqn(host_nqn.into()))
    }

    /// A host has a connection more.
    fn join(&mut self, name: Name) -> HostId {
        let known = self.hosts.iter().position(|host| host.as_ref().is_some_and(|host| host.name == name));
        let id = HostId(known.unwrap_or_else(|| self.add(name)));
        self.host_mut(id).queues += 1;
        id
    }

    /// All connections.
    pub(crate) fn queues(&self) -> usize {
        self.queues
    }

    /// All connections without a Connect.
    pub(crate) fn opening(&self) -> usize {
        self.opening
    }

    /// The address that has most of something, if it has more than a newcomer's address would.
    pub(crate) fn eviction_candidate(
        &self,
        newcomer: IpAddr,
        held: impl Fn(&Host) -> usize,
    ) -> Option<HostId> {
        let newcomer = Name::Address(network_of(newcomer));
        let all = self.hosts.iter().enumerate().filter_map(|(index, host)| Some((index, host.as_ref()?)));
        let all = all.filter(|(_, host)| host.name.is_address());
        let own = all.clone().find(|(_, host)| host.name == newcomer).map_or(0, |(_, host)| held(host));
        let (index, most) = all.max_by_key(|(_, host)| held(host))?;
        (held(most) > own + 1).then_some(HostId(index))
    }

    /// A connection from an address has gone, with everything that it held. `host` is whose it was; the same if it was
    /// let in by nobody. `opening` says whether it counted among those without a Connect.
    pub(crate) fn leave(&mut self, address: HostId, host: HostId, opening: bool) {
        self.queues -= 1;
        self.opening -= usize::from(opening);
        self.host_mut(address).opening -= usize::from(opening);
        self.part(address);
        if address != host {
            self.part(host);
        }
    }

    /// A host has a connection less.
    fn part(&mut self, id: HostId) {
        let host = self.host_mut(id);
        host.queues -= 1;
        if host.queues == 0 {
            self.hosts[id.0] = None;
            self.queued.retain(|other| *other != id);
        }
    }

    /// Whether a host has connections here.
    pub(crate) fn is_here(&self, id: HostId) -> bool {
        self.hosts.get(id.0).is_some_and(Option::is_some)
    }

    /// A host's share of a pool.
    pub(crate) fn pool(&self, id: HostId, kind: PoolKind) -> &Pool {
        &self.host(id).pools[kind as usize]
    }

    /// The NQN of a host that has a Connect.
    pub(crate) fn nqn(&self, id: HostId) -> Option<&str> {
        match &self.hosts.get(id.0)?.as_ref()?.name {
            Name::Nqn(nqn) => Some(nqn),
            Name::Address(_) => None,
        }
    }

    /// All hosts with a Connect, and their NQNs.
    pub(crate) fn named(&self) -> impl Iterator<Item = (HostId, &str)> {
        let ids = (0..self.hosts.len()).map(HostId);
        ids.filter_map(|id| Some((id, self.nqn(id)?)))
    }

    /// What a host holds now is with a disk that does not answer. It gets a share of what is left, so that its other
    /// disks go on.
    pub(crate) fn exempt_held(&self, id: HostId) {
        self.host(id).pools.iter().for_each(Pool::exempt_held);
    }

    /// How much of a pool all hosts have.
    pub(crate) fn usage(&self, kind: PoolKind) -> PoolUsage {
        self.pools[kind as usize].pool.usage()
    }

    /// Puts a request in a line.
    pub(crate) fn wait(&mut self, id: HostId, kind: PoolKind, waiter: RequestId) {
        let host = self.host_mut(id);
        host.waiting[kind as usize].push_back(waiter);
        if !std::mem::replace(&mut host.queued, true) {
            self.queued.push_back(id);
        }
    }

    /// The first of a line. A host that has gone has none.
    pub(crate) fn first_waiting(&self, id: HostId, kind: PoolKind) -> Option<RequestId> {
        self.hosts[id.0].as_ref()?.waiting[kind as usize].front().copied()
    }

    /// The first of a line has been served.
    pub(crate) fn drop_waiting(&mut self, id: HostId, kind: PoolKind) {
        if let Some(host) = &mut self.hosts[id.0] {
            host.waiting[kind as usize].pop_front();
        }
    }

    /// Begins to serve the hosts in line, and says how many there are. Each time another one is the first.
    pub(crate) fn begin_round(&mut self) -> usize {
        let count = self.queued.len();
        if count > 1 {
            self.queued.rotate_left(1);
        }
        count
    }

    /// Takes the first host out of the line, to be served now.
    pub(crate) fn take_next(&mut self) -> Option<HostId> {
        let id = self.queued.pop_front()?;
        self.host_mut(id).queued = false;
        Some(id)
    }

    /// A host has been served: it is the last in line if something of it waits still.
    pub(crate) fn served(&mut self, id: HostId) {
        let Some(host) = &mut self.hosts[id.0] else { return };
        if !host.queued && host.waiting.iter().any(|line| !line.is_empty()) {
            host.queued = true;
            self.queued.push_back(id);
        }
    }

    fn add(&mut self, name: Name) -> usize {
        let index = self.hosts.iter().position(Option::is_none).unwrap_or_else(|| {
            self.hosts.push(None);
            self.hosts.len() - 1
        });
        let pools = std::array::from_fn(|line| {
            let SharedPool { pool, least } = &self.pools[line];
            pool.limited(*least)
        });
        let waiting = PoolKind::ALL.map(|_| VecDeque::new());
        self.hosts[index] = Some(Host { name, queues: 0, opening: 0, pools, waiting, queued: false });
        // So that nobody has to allocate who gets in line.
        self.queued.reserve(self.hosts.len());
        index
    }

    fn host(&self, id: HostId) -> &Host {
        self.hosts[id.0].as_ref().expect("a host stays as long as its queues")
    }

    fn host_mut(&mut self, id: HostId) -> &mut Host {
        self.hosts[id.0].as_mut().expect("a host stays as long as its queues")
    }
}

#[cfg(test)]
mod tests {
    use ringfab_memory::ClassLayout;

    use super::*;

    fn hosts() -> Hosts {
        let pool = Pool::new(&[ClassLayout { buffer_bytes: 64, count: 8 }]).expect("a small pool");
        Hosts::new(std::array::from_fn(|_| SharedPool { pool: pool.clone(), least: 1 }))
    }

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn connected(hosts: &mut Hosts, address: HostId, host_nqn: &str) -> HostId {
        hosts.opened(address);
        hosts.named_host(host_nqn)
    }

    fn waiter(queue: u16) -> RequestId {
        RequestId { queue, slot: 0, generation: 0 }
    }

    #[test]
    fn all_connections_of_an_address_are_one_host_and_so_is_a_network_of_ipv6() {
        let mut hosts = hosts();
        let one = hosts.enter(address("10.0.0.1"));
        assert_eq!(hosts.enter(address("::ffff:10.0.0.1")), one);
        assert_ne!(hosts.enter(address("10.0.0.2")), one);
        let other = hosts.enter(address("fd00::1"));
        assert_eq!(hosts.enter(address("fd00::ffff:1")), other);
        assert_ne!(hosts.enter(address("fd00:0:0:1::1")), other);
    }

    #[test]
    fn a_host_is_known_by_its_name_once_it_has_one_wherever_it_comes_from() {
        let mut hosts = hosts();
        let (one, two) = (hosts.enter(address("10.0.0.1")), hosts.enter(address("10.0.0.2")));
        assert_eq!(hosts.enter(address("10.0.0.1")), one);
        let named = connected(&mut hosts, one, "nqn.2024-01.org.example:a");
        assert!(named != one && named != two);
        assert_eq!(connected(&mut hosts, two, "nqn.2024-01.org.example:a"), named);
        assert_ne!(connected(&mut hosts, one, "nqn.2024-01.org.example:b"), named);
        // Names have no connections of their own: it is the address that has most of them.
        let most = hosts.eviction_candidate(address("10.0.0.3"), |host| host.queues);
        assert_eq!((most, hosts.queues(), hosts.opening()), (Some(one), 3, 0));
        hosts.leave(one, named, false);
        assert!(hosts.is_here(named));
        hosts.leave(two, named, false);
        assert!(!hosts.is_here(named) && !hosts.is_here(two) && hosts.is_here(one));
    }

    #[test]
    fn a_host_that_takes_what_it_can_leaves_as_much_to_the_others() {
        let mut hosts = hosts();
        let (greedy, other) = (hosts.enter(address("10.0.0.1")), hosts.enter(address("10.0.0.2")));
        let take_all = |hosts: &Hosts, id| {
            std::iter::from_fn(|| hosts.pool(id, PoolKind::Io).take(64)).collect::<Vec<_>>()
        };
        let held = take_all(&hosts, greedy);
        assert_eq!((held.len(), take_all(&hosts, other).len()), (4, 2));
        // To leave and to come again does not help while it is held.
        hosts.enter(address("10.0.0.1"));
        hosts.leave(greedy, greedy, true);
        assert_eq!(take_all(&hosts, greedy).len(), 0);
    }

    #[test]
    fn the_host_that_has_most_gives_way_unless_the_newcomer_would_have_as_much() {
        let mut hosts = hosts();
        let greedy = hosts.enter(address("10.0.0.1"));
        hosts.enter(address("10.0.0.1"));
        let other = hosts.enter(address("10.0.0.2"));
        let most = |hosts: &Hosts, newcomer| hosts.eviction_candidate(address(newcomer), |host| host.queues);
        assert_eq!(most(&hosts, "10.0.0.3"), Some(greedy));
        assert_eq!(most(&hosts, "10.0.0.2"), None);
        assert_eq!(most(&hosts, "10.0.0.1"), None);
        assert_eq!((hosts.queues(), hosts.opening()), (3, 3));
        let named = connected(&mut hosts, other, "nqn.2024-01.org.example:host");
        hosts.leave(other, named, false);
        hosts.leave(greedy, greedy, true);
        assert_eq!((hosts.queues(), hosts.opening()), (1, 1));
    }

    /// Serves everybody in line, and nobody gets anything.
    fn serve_all(hosts: &mut Hosts) -> Vec<HostId> {
        let serve_one = |hosts: &mut Hosts| {
            let host = hosts.take_next().expect("as many as are in line");
            hosts.served(host);
            host
        };
        (0..hosts.begin_round()).map(|_| serve_one(hosts)).collect()
    }

    #[test]
    fn lines_are_in_order_and_hosts_take_turns_until_they_leave() {
        let mut hosts = hosts();
        let (one, two) = (hosts.enter(address("10.0.0.1")), hosts.enter(address("10.0.0.2")));
        assert_eq!(hosts.begin_round(), 0, "nobody waits");
        for (host, queue) in [(one, 1), (one, 2), (two, 3)] {
            hosts.wait(host, PoolKind::Io, waiter(queue));
        }
        assert_eq!(hosts.first_waiting(one, PoolKind::Io), Some(waiter(1)));
        assert_eq!(hosts.first_waiting(one, PoolKind::Admin), None);
        assert_eq!([serve_all(&mut hosts), serve_all(&mut hosts)], [[two, one], [one, two]]);
        hosts.drop_waiting(one, PoolKind::Io);
        assert_eq!(hosts.first_waiting(one, PoolKind::Io), Some(waiter(2)));
        hosts.leave(one, one, true);
        assert_eq!(hosts.first_waiting(one, PoolKind::Io), None);
        assert_eq!(hosts.begin_round(), 1, "who has left is not in line");
        assert_eq!(hosts.take_next(), Some(two));
        hosts.drop_waiting(two, PoolKind::Io);
        hosts.served(two);
        assert_eq!(hosts.begin_round(), 0, "nobody waits any more");
    }
}
