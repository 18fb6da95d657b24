//! The access groups of a subsystem as they are served: which namespaces they have, and in which state they are by
//! which way (Asymmetric Namespace Access).

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use ringfab_fabric::zone_index;
use ringfab_spec::Status;
use ringfab_spec::log::AnaState;

use super::listener::Way;
use crate::config::{AccessGroups, DEFAULT_ANA_GROUP, OnLostDisk};

/// The access groups of a subsystem. What is not said of a group or a namespace is as by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServedGroups {
    configured: AccessGroups,
    /// The groups of namespaces that are not in the default one.
    members: BTreeMap<u32, u32>,
}

impl ServedGroups {
    /// What is configured of groups.
    pub fn configured(&self) -> &AccessGroups {
        &self.configured
    }

    /// Something else is configured.
    pub(super) fn configure(&mut self, groups: AccessGroups) {
        self.configured = groups;
    }

    /// A namespace is in this group from now on.
    pub(super) fn place(&mut self, nsid: u32, group: u32) {
        match group {
            DEFAULT_ANA_GROUP => drop(self.members.remove(&nsid)),
            group => drop(self.members.insert(nsid, group)),
        }
    }

    /// A namespace is in none any more.
    pub(super) fn forget(&mut self, nsid: u32) {
        self.members.remove(&nsid);
    }

    /// The group of a namespace.
    pub fn of(&self, nsid: u32) -> u32 {
        self.members.get(&nsid).copied().unwrap_or(DEFAULT_ANA_GROUP)
    }

    /// All groups: those of namespaces, those of which something is said, and the default one.
    pub fn ids(&self) -> BTreeSet<u32> {
        self.configured.keys().chain(self.members.values()).copied().chain([DEFAULT_ANA_GROUP]).collect()
    }

    /// The configured state of a group by a way.
    pub fn state(&self, group: u32, way: &Way) -> AnaState {
        let Some(group) = self.configured.get(&group) else { return AnaState::OPTIMIZED };
        let at = |address: SocketAddr| {
            let found = group.ways.iter().find(|(known, _)| is_same(**known, address));
            found.map(|(_, state)| *state)
        };
        // What is said of a local address goes before what is said of all addresses.
        at(way.local).or_else(|| at(way.listener.address())).unwrap_or(group.state)
    }

    /// What becomes of a group when its disks are gone.
    pub fn on_lost_disk(&self, group: u32) -> OnLostDisk {
        self.configured.get(&group).map_or(OnLostDisk::Error, |group| group.on_lost_disk)
    }

    /// Whether some group follows its disks.
    pub fn follow_disks(&self) -> bool {
        self.configured.values().any(|group| group.on_lost_disk != OnLostDisk::Error)
    }

    /// Whether some group is inaccessible by some way, whatever its disks do.
    pub fn may_restrict(&self) -> bool {
        let mut all = self.configured.values().flat_map(|group| group.ways.values().chain([&group.state]));
        all.any(|state| !state.allows_io())
    }
}

/// The status of a command for a namespace whose group is in this state.
pub fn status_of(state: AnaState) -> Option<Status> {
    match state {
        AnaState::OPTIMIZED | AnaState::NON_OPTIMIZED => None,
        AnaState::PERSISTENT_LOSS => Some(Status::ANA_PERSISTENT_LOSS),
        AnaState::CHANGE => Some(Status::ANA_TRANSITION),
        _ => Some(Status::ANA_INACCESSIBLE),
    }
}

/// Whether an address that somebody wrote is the one of a socket. Without an interface it is on any.
pub fn is_same(written: SocketAddr, address: SocketAddr) -> bool {
    let zone = zone_index(written);
    let same_zone = zone == 0 || zone == zone_index(address);
    written.ip() == address.ip().to_canonical() && written.port() == address.port() && same_zone
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::AccessGroup;

    fn groups(ways: &[(&str, AnaState)]) -> ServedGroups {
        let ways = ways.iter().map(|(address, state)| (address.parse().unwrap(), *state)).collect();
        let group = AccessGroup { state: AnaState::NON_OPTIMIZED, ways, ..AccessGroup::default() };
        ServedGroups { configured: [(3, group)].into(), members: [(7, 3)].into() }
    }

    #[test]
    fn without_a_word_there_is_one_group_that_is_optimized_everywhere() {
        let groups = ServedGroups::default();
        assert_eq!((groups.of(5), groups.ids()), (1, [1].into()));
        assert_eq!(groups.state(1, &Way::at("192.0.2.1:4420")), AnaState::OPTIMIZED);
        assert!(!groups.may_restrict());
    }

    #[test]
    fn a_group_has_a_state_for_each_way() {
        let ways = [("192.0.2.1:4420", AnaState::CHANGE), ("[2001:db8::1]:4420", AnaState::PERSISTENT_LOSS)];
        let groups = groups(&ways);
        assert_eq!((groups.of(7), groups.of(8), groups.ids()), (3, 1, [1, 3].into()));
        for (way, state) in ways {
            assert_eq!(groups.state(3, &Way::at(way)), state);
        }
        assert_eq!(groups.state(3, &Way::at("192.0.2.1:4421")), AnaState::NON_OPTIMIZED);
        assert_eq!(groups.state(1, &Way::at("192.0.2.1:4420")), AnaState::OPTIMIZED);
        assert!(groups.may_restrict());
    }

    #[test]
    fn a_local_address_of_a_listener_on_all_addresses_is_a_way_of_its_own() {
        let groups =
            groups(&[("0.0.0.0:4420", AnaState::INACCESSIBLE), ("192.0.2.1:4420", AnaState::OPTIMIZED)]);
        let listener = Way::at("0.0.0.0:4420").listener;
        let by = |local: &str| Way { local: local.parse().unwrap(), listener: listener.clone() };
        assert_eq!(groups.state(3, &by("192.0.2.1:4420")), AnaState::OPTIMIZED);
        assert_eq!(groups.state(3, &by("192.0.2.2:4420")), AnaState::INACCESSIBLE);
        assert_eq!(groups.state(3, &by("[::ffff:192.0.2.1]:4420")), AnaState::OPTIMIZED);
    }
}
