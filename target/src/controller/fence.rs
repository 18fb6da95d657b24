//! What keeps a host that comes back from being undone by what it has left behind.
//!
//! Commands may outlive the connection that they came on, as long as a disk works on them. Their host sends them again,
//! and then others, which an old one that the disk takes its time with would undo. So a controller waits for them
//! before it is ready. It does not wait for ever: after a while it is ready, and only the disks that still work are
//! fenced. The same holds for the host's other controllers, which are ready already: their commands for these disks
//! wait, so that a host that sends again on another path is not undone either.

use std::sync::Arc;

use ringfab_reactor::Time;

use super::{Controller, IoAccess};
use crate::model::{Namespace, Served};

impl Controller {
    /// Whether I/O commands may run, and all of them. For every I/O command: no lock.
    #[inline]
    pub(crate) fn io_access(&self) -> IoAccess {
        self.io_access.get()
    }

    /// Another controller of this host has ended, or is reset, and disks still work for it: what the host sends to
    /// these disks has to wait, on whichever way it comes.
    pub(crate) fn begin_fence(&self) {
        let state = self.state();
        if state.registers.io_allowed() {
            self.io_access.set(true, true);
        }
    }

    /// Whether commands of earlier connections of this host still run on a disk, by its position. What they write could
    /// come after what the host writes now, so that its commands for this disk have to wait. Ends the fence when
    /// nothing is left behind any more.
    pub(crate) fn is_fenced(&self, disk: usize) -> bool {
        let has_orphans = self.io_access.end_fence(
            || self.state(),
            || self.subsystem.has_orphans(&self.host.id),
            |state| state.registers.io_allowed(),
        );
        has_orphans && self.subsystem.has_orphans_on(&self.host.id, disk)
    }

    /// Before a host looks whether its controller is ready: it is not while commands still run that the host sent on
    /// connections which have ended. The host sends them again, and then others, which an old one that the disk takes
    /// its time with would undo. A disk that takes too long is fenced, and the controller is ready for all others.
    pub fn refresh_ready(&self, served: &Served, now: Time) {
        let mut state = self.state();
        let Some(held_until) = state.registers.held_until() else { return };
        let left_behind = self.subsystem.has_orphans(&self.host.id);
        if left_behind && now < held_until {
            return;
        }
        state.registers.release_ready();
        state.begin_instance();
        state.keep_alive.set_enabled(true, now);
        self.io_access.set(state.registers.io_allowed(), left_behind);
        drop(state);
        if left_behind {
            self.warn_of_fence(served);
        }
    }

    fn warn_of_fence(&self, served: &Served) {
        let fenced = |one: &&Arc<Namespace>| self.subsystem.has_orphans_on(&self.host.id, one.index());
        let shown = served.namespaces_for(&self.subsystem, &self.host.nqn);
        let nsids: Vec<u32> = shown.filter(fenced).map(|one| one.nsid()).collect();
        tracing::warn!(
            controller = self.id,
            host = self.host.nqn,
            subsystem = self.subsystem.nqn(),
            ?nsids,
            "disks still work on commands of earlier connections: commands for these namespaces wait until that ends"
        );
    }
}
