//! Whether the I/O commands of a controller may run.
//!
//! Every core reads it for each command, without a lock. It is set under the lock of the controller's state, except at
//! the end of the controller, which is final. `tests/tests/interleavings.rs` runs this file under every interleaving.

use crate::sync::{AtomicU8, Ordering};

/// What I/O commands of a controller may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IoAccess {
    /// They end with Command Sequence Error: the host has not enabled the controller, or has shut it down.
    Refused,
    /// The controller has ended, and its connections are ending. The host did nothing wrong: it may try again
    /// elsewhere.
    Ended,
    /// They run.
    Allowed,
    /// They run, except on disks that still work for earlier connections of the host. See `Controller::is_fenced`.
    Fenced,
}

const REFUSED: u8 = 0;
const ALLOWED: u8 = 1;
const FENCED: u8 = 2;
/// Refused for good.
const ENDED: u8 = 3;

/// The access of a controller's I/O commands.
#[derive(Debug)]
pub(crate) struct IoGate(AtomicU8);

impl IoGate {
    /// All are refused.
    pub(crate) fn new() -> Self {
        Self(AtomicU8::new(REFUSED))
    }

    /// What they may do now. Who finds that they may run finds everything that was set up before.
    #[inline]
    pub(crate) fn get(&self) -> IoAccess {
        match self.0.load(Ordering::Acquire) {
            ALLOWED => IoAccess::Allowed,
            FENCED => IoAccess::Fenced,
            ENDED => IoAccess::Ended,
            _ => IoAccess::Refused,
        }
    }

    /// Sets it, unless the controller has ended.
    pub(crate) fn set(&self, allowed: bool, fenced: bool) {
        let access = match (allowed, fenced) {
            (false, _) => REFUSED,
            (true, false) => ALLOWED,
            (true, true) => FENCED,
        };
        // An exchange, since a controller may end between a look at it and a store.
        let _ended =
            self.0.fetch_update(Ordering::Release, Ordering::Relaxed, |old| (old != ENDED).then_some(access));
    }

    /// Whether they are refused for good.
    pub(crate) fn has_ended(&self) -> bool {
        self.0.load(Ordering::Acquire) == ENDED
    }

    /// They are refused from now on, whatever is set later.
    pub(crate) fn end(&self) {
        let _before = self.0.swap(ENDED, Ordering::AcqRel);
    }

    /// Ends the fence if the host has no orphans: commands of earlier connections that still run. Returns whether it
    /// has. `lock` takes the lock under which [`IoGate::set`] is called. It is taken before the question: otherwise the
    /// answer could be older than a fence that was set meanwhile, and would end it.
    pub(crate) fn end_fence<G>(
        &self,
        lock: impl FnOnce() -> G,
        has_orphans: impl FnOnce() -> bool,
        io_allowed: impl FnOnce(&G) -> bool,
    ) -> bool {
        let state = lock();
        let has_orphans = has_orphans();
        if !has_orphans {
            self.set(io_allowed(&state), false);
        }
        has_orphans
    }
}
