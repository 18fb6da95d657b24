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
