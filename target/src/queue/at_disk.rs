//! What a disk works on for a queue.

use crate::io_command::Work;

/// What a disk works on, for people.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AtDisk {
    /// The command.
    pub(crate) name: &'static str,
    /// Whether it moves blocks of a bounded size: a disk that works ends it soon.
    pub(crate) is_transfer: bool,
}

impl AtDisk {
    pub(super) fn of(work: &Work) -> Self {
        let (name, is_transfer) = match work {
            Work::Read(_) => ("Read", true),
            Work::Write { .. } => ("Write", true),
            Work::Compare(_) => ("Compare", true),
            Work::WriteZeroes { .. } => ("Write Zeroes", false),
            Work::Flush { .. } | Work::FlushAll { .. } => ("Flush", false),
            Work::Discard { .. } => ("Dataset Management", false),
            Work::Verify { .. } => ("Verify", true),
            Work::Copy(_) => ("Copy", true),
            Work::Controller | Work::Nothing => ("an admin command", false),
        };
        Self { name, is_transfer }
    }
}
