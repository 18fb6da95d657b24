//! What a disk works on for a queue.

use crate::nvm::Action;

/// What a disk works on, for people.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AtDisk {
    /// The command.
    pub(crate) name: &'static str,
    /// Whether it moves blocks of a bounded size: a disk that works ends it soon.
    pub(crate) is_transfer: bool,
}

impl AtDisk {
    pub(super) fn of(action: &Action) -> Self {
        let (name, is_transfer) = match action {
            Action::Read(_) => ("Read", true),
            Action::Write { .. } => ("Write", true),
            Action::Compare(_) => ("Compare", true),
            Action::WriteZeroes { .. } => ("Write Zeroes", false),
            Action::Flush { .. } | Action::FlushAll { .. } => ("Flush", false),
            Action::Discard { .. } => ("Dataset Management", false),
            Action::Verify { .. } => ("Verify", true),
            Action::Copy(_) => ("Copy", true),
            Action::Controller | Action::Nothing => ("an admin command", false),
        };
        Self { name, is_transfer }
    }
}
