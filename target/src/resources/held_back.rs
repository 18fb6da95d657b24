//! Requests that something holds back from their disk: it does not answer, or still works on what their host left
//! behind, or somebody has claimed their blocks.

use std::collections::VecDeque;

use ringfab_reactor::Time;

use super::RequestId;

/// A command that is held back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldBack {
    pub(crate) request: RequestId,
    pub(crate) since: Time,
}

/// The commands of a core that are held back.
#[derive(Debug, Default)]
pub(crate) struct HeldBackCommands(VecDeque<HeldBack>);

impl HeldBackCommands {
    /// A command waits from now on.
    pub(crate) fn push(&mut self, request: RequestId, now: Time) {
        self.0.push_back(HeldBack { request, since: now });
    }

    /// How many wait.
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// The one at the head of the line.
    pub(crate) fn take_next(&mut self) -> Option<HeldBack> {
        self.0.pop_front()
    }

    /// It waits on, at the end of the line.
    pub(crate) fn put_back(&mut self, held: HeldBack) {
        self.0.push_back(held);
    }
}
