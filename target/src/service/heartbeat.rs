//! Checks that the cores' loops turn. A thread may exist and still hang, in a system call or in an endless loop.

use std::time::{Duration, Instant};

use ringfab_reactor::Monitor;

/// No turn takes as long: disks and hosts are never waited for, and a spin ends after a second at the latest.
const TURN_MAX: Duration = Duration::from_secs(5);

/// The loops of all cores.
#[derive(Debug)]
pub(super) struct Heartbeats(Vec<Heartbeat>);

#[derive(Debug)]
struct Heartbeat {
    monitor: Monitor,
    turns: u64,
    /// When it was last seen to sleep, or to have turned since the look before.
    beat_at: Instant,
    hangs: bool,
}

impl Heartbeats {
    pub(super) fn new(monitors: &[Monitor], now: Instant) -> Self {
        let heartbeat = |monitor: &Monitor| Heartbeat {
            monitor: monitor.clone(),
            turns: monitor.turns(),
            beat_at: now,
            hangs: false,
        };
        Self(monitors.iter().map(heartbeat).collect())
    }

    /// Looks at every core; false while one has not turned for too long. Its begin and its end are logged.
    pub(super) fn all_alive(&mut self, now: Instant) -> bool {
        for (core, heartbeat) in self.0.iter_mut().enumerate() {
            let hung = heartbeat.hangs;
            heartbeat.look(now);
            match (hung, heartbeat.hangs) {
                (false, true) => tracing::error!(core, loop_state = ?heartbeat.monitor, "a core hangs"),
                (true, false) => tracing::warn!(core, "a core that hung works again"),
                _ => {}
            }
        }
        !self.0.iter().any(|heartbeat| heartbeat.hangs)
    }
}

impl Heartbeat {
    fn look(&mut self, now: Instant) {
        let turns = self.monitor.turns();
        if self.monitor.is_sleeping() || turns != self.turns {
            (self.turns, self.beat_at) = (turns, now);
        }
        self.hangs = now.duration_since(self.beat_at) > TURN_MAX;
    }
}

#[cfg(test)]
mod tests {
    use ringfab_reactor::{Reactor, ReactorConfig, Wait};

    use super::*;

    fn reactor() -> Reactor {
        let config = ReactorConfig { entries: 8, spin: Duration::ZERO, descriptors_max: 8 };
        Reactor::new(&config).expect("a ring")
    }

    #[test]
    fn a_loop_that_does_not_turn_is_noticed_and_so_is_its_return() {
        let (mut hanging, mut turning) = (reactor(), reactor());
        let begin = Instant::now();
        let mut heartbeats = Heartbeats::new(&[hanging.monitor(), turning.monitor()], begin);
        let mut beats_after = |elapsed: Duration| {
            turning.turn(Wait::No).expect("a turn");
            heartbeats.all_alive(begin + elapsed)
        };
        assert!(beats_after(TURN_MAX), "a long turn");
        assert!(!beats_after(TURN_MAX + Duration::from_millis(1)), "too long a turn");
        assert!(!beats_after(3 * TURN_MAX));
        hanging.turn(Wait::No).expect("a turn");
        assert!(beats_after(3 * TURN_MAX + Duration::from_millis(1)));
    }

    #[test]
    fn a_loop_that_sleeps_is_well_however_long() {
        let (sender, receiver) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut reactor = reactor();
            sender.send((reactor.monitor(), reactor.waker())).expect("the test waits");
            reactor.turn(Wait::Event).expect("a turn");
        });
        let (monitor, waker) = receiver.recv().expect("the thread runs");
        let begin = Instant::now();
        while !monitor.is_sleeping() {
            assert!(begin.elapsed() < Duration::from_secs(10), "it never sleeps");
            std::thread::yield_now();
        }
        let mut heartbeats = Heartbeats::new(std::slice::from_ref(&monitor), begin);
        assert!(heartbeats.all_alive(begin + 100 * TURN_MAX));
        waker.wake();
        thread.join().expect("the loop");
        assert!(heartbeats.all_alive(begin + 100 * TURN_MAX + TURN_MAX));
        assert!(!heartbeats.all_alive(begin + 200 * TURN_MAX), "its thread is gone");
    }
}
