//! What a claim is about: see [`claims`](super::claims).

use crate::nvm::{Access, Action, Extent, Place};

/// What a claim keeps others from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Some blocks of a disk: whatever reads or changes one of them.
    Blocks(Extent),
    /// A disk, by its position: whatever it does, flushes too.
    Disk(usize),
    /// Whatever changes a disk.
    ChangesOf(usize),
    /// What one host, by its Host Identifier, has a disk do, by whichever of its controllers.
    HostOnDisk { host: [u8; 16], disk: usize },
}

impl Scope {
    /// The disk that it is on.
    pub(super) fn disk(&self) -> usize {
        match *self {
            Self::Blocks(Extent { disk, .. }) | Self::Disk(disk) => disk,
            Self::ChangesOf(disk) | Self::HostOnDisk { disk, .. } => disk,
        }
    }

    /// Whether a command may be in both. Then one claim waits for the end of the other.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Blocks(one), Self::Blocks(two)) => one.overlaps(two),
            (Self::HostOnDisk { host: one, .. }, Self::HostOnDisk { host: two, .. }) if one != two => false,
            _ => self.disk() == other.disk(),
        }
    }

    /// Whether it is about what a host wants to be done.
    pub(crate) fn covers(&self, action: &Action, host: &[u8; 16]) -> bool {
        match self {
            Self::Blocks(extent) => action.extent().is_some_and(|own| own.overlaps(extent)),
            Self::Disk(disk) => uses(action, *disk),
            Self::ChangesOf(disk) => {
                matches!(action.access(), Access::Writes | Access::Changes) && uses(action, *disk)
            }
            Self::HostOnDisk { host: only, disk } => only == host && uses(action, *disk),
        }
    }
}

/// Whether a command may have a disk do something.
fn uses(action: &Action, disk: usize) -> bool {
    match action.place() {
        Place::Blocks(Extent { disk: own, .. }) | Place::Disk(own) => own == disk,
        // Of the disks of its subsystem, it may have come to this one.
        Place::AllDisks { .. } => true,
        Place::Nowhere => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvm::DiskBytes;

    const HOST: [u8; 16] = [1; 16];
    const OTHER: [u8; 16] = [2; 16];

    fn blocks(disk: usize, offset: u64) -> Extent {
        Extent { disk, offset, length: DiskBytes(4096) }
    }

    #[test]
    fn blocks_are_of_those_who_read_or_change_them_and_a_disk_of_all_that_it_does() {
        let (some, disk) = (Scope::Blocks(blocks(3, 4096)), Scope::Disk(3));
        let changes = Scope::ChangesOf(3);
        let of_host = Scope::HostOnDisk { host: HOST, disk: 3 };
        let read = Action::Read(blocks(3, 4096));
        assert!(some.covers(&read, &HOST) && disk.covers(&read, &HOST) && of_host.covers(&read, &HOST));
        assert!(some.covers(&read, &OTHER) && !of_host.covers(&read, &OTHER));
        for elsewhere in [Action::Read(blocks(3, 8192)), Action::Flush { disk: 3 }] {
            assert!(!some.covers(&elsewhere, &HOST), "{elsewhere:?}");
            assert!(disk.covers(&elsewhere, &HOST) && of_host.covers(&elsewhere, &HOST), "{elsewhere:?}");
        }
        let list = Action::Discard { disk: 3, ranges: 1, next: 0, begun: 0 };
        assert!(some.covers(&list, &HOST), "nobody knows yet which blocks it names");
        assert!(disk.covers(&Action::FlushAll { rounds: 0 }, &HOST));
        for action in [Action::Write { extent: blocks(3, 0), durable: false }, list] {
            assert!(
                changes.covers(&action, &HOST) && !Scope::ChangesOf(2).covers(&action, &HOST),
                "{action:?}"
            );
        }
        for action in [read, Action::Flush { disk: 3 }, Action::FlushAll { rounds: 0 }] {
            assert!(!changes.covers(&action, &HOST), "{action:?}");
        }
        for other in [Action::Read(blocks(2, 4096)), Action::Controller, Action::Nothing] {
            assert!([some, disk, of_host].iter().all(|scope| !scope.covers(&other, &HOST)), "{other:?}");
        }
    }

    #[test]
    fn claims_wait_for_each_other_when_a_command_may_be_in_both() {
        let of = |host, disk| Scope::HostOnDisk { host, disk };
        let scopes = [Scope::Blocks(blocks(1, 0)), Scope::Disk(1), Scope::ChangesOf(1), of(HOST, 1)];
        for one in scopes {
            assert!(scopes.iter().all(|two| one.overlaps(two)), "{one:?}");
            assert!(!one.overlaps(&Scope::Disk(2)) && !one.overlaps(&Scope::Blocks(blocks(2, 0))));
        }
        assert!(!of(HOST, 1).overlaps(&of(OTHER, 1)));
        assert!(!Scope::Blocks(blocks(1, 0)).overlaps(&Scope::Blocks(blocks(1, 4096))));
    }
}
