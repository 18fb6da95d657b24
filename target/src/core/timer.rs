//! A timer of the core itself, which runs once at a time.

use std::time::Duration;

use ringfab_reactor::{Reactor, Token};

use crate::resources::owner;

/// How often deadlines are looked at while there are queues.
pub(super) const HOUSEKEEPING: Duration = Duration::from_millis(250);

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

#[cfg(test)]
mod tests {
    use ringfab_reactor::Wait;
    use ringfab_reactor::sim::World;

    use super::*;

    #[test]
    fn a_timer_that_runs_is_not_set_again_until_it_has_fired() {
        let world = World::new(1);
        let host = world.add_host("core");
        let mut reactor = Reactor::simulated(&world, host);
        let mut timer = CoreTimer::new(owner::timer::EVICTION);
        let mut fired = Vec::new();
        for _ in 0..2 {
            (1..=3).for_each(|second| timer.arm(&mut reactor, Duration::from_secs(second)));
            while world.advance() {
                reactor.turn(Wait::No).expect("a turn");
                fired.extend(std::iter::from_fn(|| reactor.next_completion()).map(|one| one.token.kind));
            }
            timer.fired();
        }
        assert_eq!(fired, [owner::timer::EVICTION; 2]);
    }
}
