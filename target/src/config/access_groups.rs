//! The access groups of a subsystem: in which state (ANA) each is, by which way.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use ringfab_spec::log::AnaState;

/// The highest identifier of an access group (ANAGRPMAX).
pub const ANA_GROUP_MAX: u32 = 128;

/// The group of a namespace of which nothing is said.
pub const DEFAULT_ANA_GROUP: u32 = 1;

/// The states by their words in configurations.
pub const ANA_STATES: [(&str, AnaState); 5] = [
    ("optimized", AnaState::OPTIMIZED),
    ("non-optimized", AnaState::NON_OPTIMIZED),
    ("inaccessible", AnaState::INACCESSIBLE),
    ("persistent-loss", AnaState::PERSISTENT_LOSS),
    ("change", AnaState::CHANGE),
];

/// The word for a state.
pub fn state_word(state: AnaState) -> &'static str {
    ANA_STATES.iter().find(|(_, one)| *one == state).map_or("unknown", |(word, _)| word)
}

/// What becomes of a group whose disks are all gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnLostDisk {
    /// Nothing: commands end with Namespace Not Ready.
    #[default]
    Error,
    /// It is inaccessible until a disk is back.
    Inaccessible,
    /// It is persistently lost until a disk is back.
    PersistentLoss,
}

impl OnLostDisk {
    /// All of them by their words in configurations.
    pub const ALL: [(&'static str, Self); 3] = [
        ("error", Self::Error),
        ("inaccessible", Self::Inaccessible),
        ("persistent-loss", Self::PersistentLoss),
    ];

    /// The word for it.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, one)| *one == self).map_or("error", |(word, _)| word)
    }

    /// The state of the group then, if that is another.
    pub fn state(self) -> Option<AnaState> {
        match self {
            Self::Error => None,
            Self::Inaccessible => Some(AnaState::INACCESSIBLE),
            Self::PersistentLoss => Some(AnaState::PERSISTENT_LOSS),
        }
    }
}

/// An access group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessGroup {
    /// Its state by every way of which nothing else is said.
    pub state: AnaState,
    /// Its state by some ways: the address of a listener, or a local address of one on all addresses.
    pub ways: BTreeMap<SocketAddr, AnaState>,
    /// What becomes of it when its disks are gone.
    pub on_lost_disk: OnLostDisk,
}

impl Default for AccessGroup {
    fn default() -> Self {
        Self { state: AnaState::OPTIMIZED, ways: BTreeMap::new(), on_lost_disk: OnLostDisk::Error }
    }
}

/// The access groups of which something is said, by identifier.
pub type AccessGroups = BTreeMap<u32, AccessGroup>;

/// Changes the state of a group: by these ways, or by all when there is none.
pub(crate) fn set_state(groups: &mut AccessGroups, group: u32, state: AnaState, ways: &[SocketAddr]) {
    let found = groups.entry(group).or_default();
    if ways.is_empty() {
        found.state = state;
        found.ways.clear();
    }
    for way in ways {
        if state == found.state {
            found.ways.remove(way);
        } else {
            found.ways.insert(*way, state);
        }
    }
    if *found == AccessGroup::default() {
        groups.remove(&group);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, ConfigError};

    const MINIMAL: &str = include_str!("../../../configs/minimal.toml");

    fn with(lines: &str) -> Result<Config, Vec<ConfigError>> {
        let text = MINIMAL.replace("[[subsystem.namespace]]", &format!("{lines}\n[[subsystem.namespace]]"));
        Config::parse(&text, "test.toml").map_err(|errors| errors.errors().to_vec())
    }

    #[test]
    fn groups_ways_and_ranges_are_read_and_written_as_they_are() {
        let config = with(
            "controller_ids = \"1-65519\"\ndiscovery_listeners = [\"192.0.2.1:4420\"]\n[[subsystem.ana]]\ngroup = 128\n\
             state = \"change\"\non_lost_disk = \"persistent-loss\"\n\
             way = [{ listener = \"[2001:db8::1]:4420\", state = \"optimized\" }]",
        )
        .unwrap();
        let subsystem = &config.subsystems[0];
        assert_eq!(subsystem.controller_ids, Some((1, 65519)));
        let group = &subsystem.ana_groups[&128];
        assert_eq!((group.state, group.on_lost_disk), (AnaState::CHANGE, OnLostDisk::PersistentLoss));
        assert_eq!(group.ways, [("[2001:db8::1]:4420".parse().unwrap(), AnaState::OPTIMIZED)].into());
        assert_eq!(Config::parse(&config.to_toml(), "resolved").unwrap(), config);
    }

    #[test]
    fn what_is_no_group_state_way_or_range_is_told_with_its_key() {
        for (lines, key, message) in [
            ("[[subsystem.ana]]\nstate = \"change\"", "subsystem[0].ana[0].group", "is missing"),
            ("[[subsystem.ana]]\ngroup = 129", "subsystem[0].ana[0].group", ""),
            ("[[subsystem.ana]]\ngroup = 0", "subsystem[0].ana[0].group", ""),
            (
                "[[subsystem.ana]]\ngroup = 1\n[[subsystem.ana]]\ngroup = 1",
                "subsystem[0].ana[1].group",
                "is the same",
            ),
            ("[[subsystem.ana]]\ngroup = 1\nstate = \"fine\"", "subsystem[0].ana[0].state", "is \"fine\""),
            (
                "[[subsystem.ana]]\ngroup = 1\nway = [{ listener = \"here\", state = \"change\" }]",
                "subsystem[0].ana[0].way[0].listener",
                "must be an address",
            ),
            ("controller_ids = \"9-3\"", "subsystem[0].controller_ids", "must be \"FIRST-LAST\""),
            ("controller_ids = \"0-3\"", "subsystem[0].controller_ids", "must be \"FIRST-LAST\""),
            ("controller_ids = \"1-65520\"", "subsystem[0].controller_ids", "must be \"FIRST-LAST\""),
            ("discovery_listeners = []", "subsystem[0].discovery_listeners", "is empty"),
        ] {
            let errors = with(lines).unwrap_err();
            let told = errors.iter().any(|one| one.key == key && one.message.starts_with(message));
            assert!(told, "{lines}: {errors:?}");
        }
    }

    #[test]
    fn a_state_that_is_as_by_default_is_not_kept() {
        let (mut groups, way) = (AccessGroups::new(), "192.0.2.1:4420".parse().unwrap());
        set_state(&mut groups, 1, AnaState::CHANGE, &[way]);
        assert_eq!(groups[&1].ways[&way], AnaState::CHANGE);
        set_state(&mut groups, 1, AnaState::OPTIMIZED, &[way]);
        assert!(groups.is_empty());
        set_state(&mut groups, 1, AnaState::INACCESSIBLE, &[]);
        set_state(&mut groups, 1, AnaState::OPTIMIZED, &[way]);
        assert_eq!((groups[&1].state, groups[&1].ways.len()), (AnaState::INACCESSIBLE, 1));
    }
}
