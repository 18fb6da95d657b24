//! Whether a path works, and how long it has not.

use std::time::Duration;

use ringfab_reactor::Time;

use super::Path;
use crate::error::ConnectError;
use crate::reconnect::Loss;

/// An idle connection that stays for this long has come back.
const STEADY: Duration = Duration::from_secs(10);

/// What is known of a path's last loss, and of its work since it was ready last.
#[derive(Debug, Default)]
pub(super) struct Liveness {
    /// The course of the last loss. It is over when the path has worked since: see [`Path::has_worked`].
    pub(super) loss: Option<Loss>,
    /// Why the last attempt to reconnect failed.
    pub(super) last_error: Option<ConnectError>,
    /// Whether I/O was told not to wait for it.
    pub(super) failing_fast: bool,
    /// When it was ready last.
    live_since: Time,
    /// I/O commands since then that were answered with "try again".
    put_off: u64,
    /// Those that wait for their next try.
    delayed: usize,
    /// Whether an admin command was answered since then, or a Keep Alive while nothing else waited.
    pub(super) admin_worked: bool,
}

impl Liveness {
    /// It is ready.
    pub(super) fn begin(&mut self, now: Time) {
        (self.live_since, self.put_off, self.delayed, self.admin_worked) = (now, 0, 0, false);
        self.failing_fast = false;
    }

    /// Whether it has been ready for a while.
    fn has_stayed(&self, now: Time) -> bool {
        now.since(self.live_since) >= STEADY
    }
}

impl Path {
    /// An I/O command was answered with "try again"; so many wait for that.
    pub(crate) fn put_off(&mut self, delayed: usize) {
        self.liveness.put_off += 1;
        self.liveness.delayed = delayed;
    }

    /// So many I/O commands wait for another try.
    pub(crate) fn set_delayed(&mut self, delayed: usize) {
        self.liveness.delayed = delayed;
    }

    /// Whether nothing of the caller's is outstanding here.
    pub(super) fn is_idle(&self) -> bool {
        self.outstanding() == 0 && self.liveness.delayed == 0
    }

    /// Whether I/O was answered since it was ready, with more than "try again".
    pub(super) fn has_answered(&self) -> bool {
        self.io.answered() > self.liveness.put_off
    }

    /// Whether the controller has done any work since it was ready: an attachment alone ends no loss, or one that answers
    /// nothing else would be tried for ever. An idle one need only have stayed for a while.
    pub(super) fn has_worked(&self, now: Time) -> bool {
        self.has_answered() || self.liveness.admin_worked || self.liveness.has_stayed(now) && self.is_idle()
    }
}
