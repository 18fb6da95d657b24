//! What protects data when a host loses a path. A test that switches a part off has to find what goes wrong then.

use std::sync::OnceLock;

/// Parts of the protection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protections {
    /// Cross-Controller Reset ends the connections of the lost controller, whatever still lies in them.
    pub ends_connections: bool,
    /// Nothing is over while a disk works for it.
    pub waits_for_disks: bool,
}

impl Protections {
    /// All of them.
    pub const ALL: Self = Self { ends_connections: true, waits_for_disks: true };
}

/// Those of a subsystem: all, unless a test has said otherwise.
#[derive(Debug, Default)]
pub(crate) struct Switches(OnceLock<Protections>);

impl Switches {
    /// From now on.
    pub(crate) fn set(&self, protections: Protections) {
        self.0.get_or_init(|| protections);
    }

    /// What is on.
    pub(crate) fn get(&self) -> Protections {
        self.0.get().copied().unwrap_or(Protections::ALL)
    }
}
