//! The controllers of all hosts, in two pools of fixed size: one for discovery and one for I/O.
//!
//! When a pool is full, a new controller replaces another:
//!
//! | the newcomer's address | who gives way |
//! | --- | --- |
//! | has fewer controllers than another one | of the address that has most: who has no I/O queue, the oldest first; then who came last |
//! | has most | of the same address: who has had no I/O queue for a while; then who came last of the host name that has more than the newcomer's |
//!
//! Any host can claim any name, so a name decides only among hosts at one address. Who has proved who it is gives way
//! after all others of its address, and never to a newcomer that has yet to do so.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ringfab_fabric::{PeerCounts, network_of};
use ringfab_reactor::Time;
use ringfab_spec::Status;

use crate::controller::Controller;
use crate::failure::Failure;
use crate::limits::CONTROLLER_ID_MAX;

/// The most controllers of each pool, so that hosts cannot take all memory; each is a few kilobytes.
pub(super) const CONTROLLERS_MAX: u32 = 1024;

/// How long a controller may have no I/O queue before it gives way to another one of the same address.
const GRACE: Duration = Duration::from_secs(1);

/// All controllers.
#[derive(Debug, Default)]
pub(super) struct Controllers {
    by_id: BTreeMap<u16, Arc<Controller>>,
    last_id: u16,
    /// Who has how many for I/O, and for discovery.
    pools: [Pool; 2],
}

#[derive(Debug, Default)]
struct Pool {
    count: u32,
    shares: PeerCounts,
}

/// Whether the host of a controller has proved who it is.
fn is_proved(controller: &Controller) -> bool {
    controller.state().authenticated.is_some()
}

/// A host that wants a controller.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewController<'a> {
    pub(super) address: IpAddr,
    pub(super) nqn: &'a str,
    pub(super) discovery: bool,
    /// Whether it has yet to prove who it is.
    pub(super) unproved: bool,
}

impl Controllers {
    /// All, by identifier.
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Controller>> {
        self.by_id.values()
    }

    /// The one with an identifier.
    pub(super) fn find(&self, id: u16) -> Option<Arc<Controller>> {
        self.by_id.get(&id).cloned()
    }

    /// An identifier that is not in use; the one used last comes again last, so that a late command of an old
    /// association does not meet a new controller. None that `allowed` refuses is given out.
    ///
    /// # Errors
    /// All that are allowed are in use.
    pub(super) fn next_id(&mut self, allowed: impl Fn(u16) -> bool) -> Result<u16, Failure> {
        let after = self.last_id.saturating_add(1)..=CONTROLLER_ID_MAX;
        let is_free = |id: &u16| allowed(*id) && !self.by_id.contains_key(id);
        let free = after.chain(1..=self.last_id).find(is_free);
        self.last_id = free.ok_or(Failure::transient(Status::CONNECT_CONTROLLER_BUSY))?;
        Ok(self.last_id)
    }

    pub(super) fn insert(&mut self, controller: Arc<Controller>) {
        let pool = &mut self.pools[usize::from(controller.is_discovery())];
        pool.count += 1;
        pool.shares.enter(controller.address());
        self.by_id.insert(controller.id(), controller);
    }

    /// Takes out a controller, unless it was before: its identifier may be another's by now.
    pub(super) fn remove(&mut self, controller: &Controller) -> Option<Arc<Controller>> {
        let known = self.by_id.get(&controller.id())?;
        if !std::ptr::eq(&raw const **known, controller) {
            return None;
        }
        let pool = &mut self.pools[usize::from(controller.is_discovery())];
        pool.count -= 1;
        pool.shares.leave(controller.address());
        self.by_id.remove(&controller.id())
    }

    /// Makes room for a newcomer. Returns who had to leave for it, if anybody had to.
    ///
    /// # Errors
    /// The pool is full, and nobody has to give way to this one.
    pub(super) fn make_room(
        &mut self,
        newcomer: &NewController<'_>,
        now: Time,
    ) -> Result<Option<Arc<Controller>>, Failure> {
        let pool = &self.pools[usize::from(newcomer.discovery)];
        if pool.count < CONTROLLERS_MAX {
            return Ok(None);
        }
        let least_missed = match pool.shares.eviction_candidate(newcomer.address) {
            Some(network) => self.least_missed(newcomer, network),
            None => self.idle(newcomer, now).or_else(|| self.of_greedier_name(newcomer)),
        };
        let evicted = least_missed.ok_or(Failure::transient(Status::CONNECT_CONTROLLER_BUSY))?;
        Ok(self.remove(&evicted))
    }

    /// Those of a network that may give way to a newcomer.
    fn of_network(
        &self,
        newcomer: &NewController<'_>,
        network: IpAddr,
    ) -> impl Iterator<Item = &Arc<Controller>> {
        let (discovery, unproved) = (newcomer.discovery, newcomer.unproved);
        let here = move |one: &&Arc<Controller>| {
            one.is_discovery() == discovery && network_of(one.address()) == network
        };
        self.by_id.values().filter(here).filter(move |one| !unproved || !is_proved(one))
    }

    fn least_missed(&self, newcomer: &NewController<'_>, network: IpAddr) -> Option<Arc<Controller>> {
        let idle = self.of_network(newcomer, network).filter(|one| one.io_queues() == 0);
        let oldest = idle.min_by_key(|one| (is_proved(one), one.created()));
        let last = || self.of_network(newcomer, network).max_by_key(|one| (!is_proved(one), one.created()));
        oldest.or_else(last).cloned()
    }

    /// The oldest at the newcomer's address that has had no I/O queue for a while.
    fn idle(&self, newcomer: &NewController<'_>, now: Time) -> Option<Arc<Controller>> {
        let own = self.of_network(newcomer, network_of(newcomer.address));
        let idle = own.filter(|one| one.io_queues() == 0 && now >= one.created() + GRACE);
        idle.min_by_key(|one| (is_proved(one), one.created())).cloned()
    }

    /// The last at the newcomer's address of the name that has most, if the newcomer's has less.
    fn of_greedier_name(&self, newcomer: &NewController<'_>) -> Option<Arc<Controller>> {
        let mut names: BTreeMap<&str, u32> = BTreeMap::new();
        for one in self.of_network(newcomer, network_of(newcomer.address)) {
            *names.entry(one.host().nqn.as_str()).or_default() += 1;
        }
        let (greediest, count) = names.iter().max_by_key(|(_, count)| **count)?;
        if *count <= names.get(newcomer.nqn).copied().unwrap_or(0) + 1 {
            return None;
        }
        let own = self.of_network(newcomer, network_of(newcomer.address));
        own.filter(|one| one.host().nqn == *greediest).max_by_key(|one| one.created()).cloned()
    }
}
