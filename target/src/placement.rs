//! Which core serves an I/O queue.
//!
//! A queue stays on its core for its life. The queues of one controller go to different cores, if there are enough, and
//! among these to the core with the fewest I/O queues in all. So hosts with one queue each use all cores, too.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringfab_fabric::network_of;

/// Whose queues are kept apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owner {
    /// A controller, by its identifier, as the host says.
    Controller(u16),
    /// All hosts at an address that do not say which controller they mean before their Connect.
    Address(IpAddr),
}

/// The I/O queues of all cores.
#[derive(Debug, Default)]
pub(crate) struct Placement(Mutex<Loads>);

#[derive(Debug, Default)]
struct Loads {
    /// I/O queues of each core.
    all: Vec<u32>,
    /// Those of each owner that has some, by core.
    owners: BTreeMap<Owner, Vec<u32>>,
}

/// The place of a queue on a core, until this is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    placement: Arc<Placement>,
    owner: Owner,
    core: usize,
}

impl Place {
    /// The core.
    pub(crate) fn core(&self) -> usize {
        self.core
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.placement.loads().leave(self.owner, self.core);
    }
}

impl Placement {
    /// A place for a queue that was connected from an address, for a controller if that is known, on one of so many
    /// cores.
    pub(crate) fn place(
        self: &Arc<Self>,
        address: IpAddr,
        controller_id: Option<u16>,
        cores: usize,
    ) -> Place {
        // Zero is what hosts say that know nothing of this field, and no controller has it.
        let owner = match controller_id.filter(|id| *id != 0) {
            Some(id) => Owner::Controller(id),
            None => Owner::Address(network_of(address)),
        };
        let core = self.loads().enter(owner, cores);
        Place { placement: Arc::clone(self), owner, core }
    }

    fn loads(&self) -> MutexGuard<'_, Loads> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Loads {
    fn enter(&mut self, owner: Owner, cores: usize) -> usize {
        self.all.resize(cores.max(self.all.len()), 0);
        let own = self.owners.entry(owner).or_default();
        own.resize(self.all.len(), 0);
        let core = (0..cores).min_by_key(|core| (own[*core], self.all[*core])).unwrap_or(0);
        own[core] += 1;
        self.all[core] += 1;
        core
    }

    fn leave(&mut self, owner: Owner, core: usize) {
        self.all[core] -= 1;
        if let Some(own) = self.owners.get_mut(&owner) {
            own[core] -= 1;
            if own.iter().all(|count| *count == 0) {
                self.owners.remove(&owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn cores(places: &[Place]) -> Vec<usize> {
        places.iter().map(Place::core).collect()
    }

    #[test]
    fn hosts_with_one_queue_each_use_all_cores_whatever_they_say() {
        let placement = Arc::new(Placement::default());
        let named: Vec<Place> = (1..=4).map(|id| placement.place(HOST, Some(id), 4)).collect();
        assert_eq!(cores(&named), [0, 1, 2, 3]);
        let unnamed: Vec<Place> = (0..4).map(|_| placement.place(HOST, None, 4)).collect();
        assert_eq!(cores(&unnamed), [0, 1, 2, 3]);
    }

    #[test]
    fn the_queues_of_one_controller_are_apart_though_another_one_comes_between_them() {
        let placement = Arc::new(Placement::default());
        let ids = [1, 2, 1, 2];
        let places: Vec<Place> = ids.iter().map(|id| placement.place(HOST, Some(*id), 2)).collect();
        assert_eq!(cores(&places), [0, 1, 1, 0]);
    }

    #[test]
    fn a_place_that_was_left_is_the_next_to_be_taken() {
        let placement = Arc::new(Placement::default());
        let mut places: Vec<Place> = (1..=4).map(|id| placement.place(HOST, Some(id), 4)).collect();
        drop(places.remove(2));
        assert_eq!(placement.place(HOST, Some(9), 4).core(), 2);
        drop(places);
        assert!(placement.loads().owners.is_empty() && placement.loads().all.iter().all(|count| *count == 0));
    }
}
