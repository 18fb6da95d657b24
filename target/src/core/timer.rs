//! A timer of the core itself, which runs once at a time.

use std::time::Duration;

use ringfab_reactor::{Reactor, Token};

use crate::resources::owner;

/// One of the core's timers.
#[derive(Debug)]
pub(super) struct CoreTimer {
    /// Its kind, one of [`owner::timer`].
    kind: u8,
    is_armed: bool,
}

impl CoreTimer {
    /// It does not run yet.
    pub(super) fn new(kind: u8) -> Self {
        Self { kind, is_armed: false }
    }

    /// Lets it run for so long, unless it runs already.
    pub(super) fn arm(&mut self, reactor: &mut Reactor, after: Duration) {
        if !self.is_armed {
            self.is_armed = true;
            let at = reactor.now() + after;
            reactor.set_timer(at, Token::new(owner::CORE, self.kind, 0, 0));
        }
    }

    /// It has fired.
    pub(super) fn fired(&mut self) {
        self.is_armed = false;
    }
}
