//! Requests that wait for a disk that does not answer, or that still works on what their host left behind.

use std::collections::VecDeque;

use ringfab_reactor::Time;

use super::RequestId;

/// A command that waits for a disk that is hung or fenced.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldBack {
    pub(crate) request: RequestId,
    pub(crate) since: Time,
}

/// The commands of a core that wait for disks.
#[derive(Debug, Default)]
pub(crate) struct HeldBackCommands {
    pub(crate) waiting: VecDeque<HeldBack>,
    /// Disks that are hung. While there is none, no command looks further.
    pub(crate) hung_disks: usize,
    /// When the disks were last checked.
    pub(crate) checked: Time,
}

impl HeldBackCommands {
    /// Whether a disk of this core is hung.
    #[inline]
    pub(crate) fn any_disk_hung(&self) -> bool {
        self.hung_disks != 0
    }

    /// A command waits from now on.
    pub(crate) fn push(&mut self, request: RequestId, now: Time) {
        self.waiting.push_back(HeldBack { request, since: now });
    }
}
