//! One turn of the loop: submit, collect, and wait by spinning first and sleeping then.

use std::io;
use std::time::Duration;

use super::{Alarm, Ring};
use crate::{Completion, Payload, Time, Wait};

/// Looks at shared memory between two looks at the clock while spinning.
const SPINS_PER_CLOCK: u32 = 32;

/// The same where each look is a system call, too.
const TRIES_PER_CLOCK: u32 = 2;

/// The clock of [`Time`]: CLOCK_MONOTONIC.
pub fn clock() -> Time {
    Time::from_nanos(read_clock(libc::CLOCK_MONOTONIC).as_nanos() as u64)
}

/// Seconds since the Unix epoch.
pub(crate) fn wall_clock() -> Duration {
    read_clock(libc::CLOCK_REALTIME)
}

fn read_clock(which: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel fills the structure that lives in this frame.
    let result = unsafe { libc::clock_gettime(which, &raw mut time) };
    assert_eq!(result, 0, "a clock that every Linux has");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

impl Ring {
    pub(crate) fn turn(&mut self, wait: Wait) -> io::Result<()> {
        self.turns += 1;
        self.spin.begin(wait);
        let waits = wait != Wait::No;
        self.wake.set_turns(self.turns);
        self.sort_transfers();
        if waits && self.is_time_to_sleep() {
            // One system call submits and waits.
            self.sleep()?;
        }
        self.collect()?;
        self.try_receives();
        // A wake-up is answered by any turn that returns, so it is taken even when there are completions.
        let mut woken = self.wake.flags().take();
        while waits && self.ready.is_empty() && !woken {
            self.pause()?;
            self.collect()?;
            woken = self.wake.flags().take();
        }
        if woken || !self.ready.is_empty() {
            if waits {
                self.spin.waited(self.now - self.last_event);
            }
            self.last_event = self.now;
        }
        Ok(())
    }

    /// Whether there is nothing to collect now and has been nothing for as long as is spun.
    fn is_time_to_sleep(&mut self) -> bool {
        if !self.ready.is_empty() || self.queues.wants_enter() || self.queues.has_completions() {
            return false;
        }
        self.now = clock();
        self.now >= self.spin_end() && self.now < self.timers.next()
    }

    /// Until when to spin for what comes next. Who waits for an answer spins on a shared processor, too, and offers
    /// it: if all sleep that share it, each answer takes a wake-up at either end.
    fn spin_end(&self) -> Time {
        if self.yields.is_shared(self.now) && !self.spin.is_for_answer() {
            return self.last_event;
        }
        self.last_event + self.spin.time()
    }

    /// Submits what is queued, lets the kernel run its deferred work, and takes all completions and due timers.
    fn collect(&mut self) -> io::Result<()> {
        if self.queues.has_submissions() || self.queues.wants_enter() {
            self.queues.enter(0, None)?;
        }
        self.reap();
        self.now = clock();
        self.fire_timers();
        Ok(())
    }

    pub(crate) fn submit_now(&mut self) {
        if self.queues.has_submissions() {
            // A failure shows again at the next turn, which reports it.
            let _ = self.queues.enter(0, None);
        }
    }

    fn fire_timers(&mut self) {
        if self.timers.next() > self.now {
            return;
        }
        while let Some(alarm) = self.timers.pop_due(self.now) {
            match alarm {
                Alarm::User(token) => {
                    self.ready.push_back(Completion { token, result: Ok(0), payload: Payload::None });
                }
                Alarm::Accept(listener) => self.resume_accept(listener),
            }
        }
    }

    /// Waits until something may have happened. Continuations that completions queued are submitted first.
    fn pause(&mut self) -> io::Result<()> {
        if self.queues.has_submissions() {
            return Ok(());
        }
        if self.now < self.spin_end() {
            self.spin_for_a_while();
            return Ok(());
        }
        self.sleep()
    }

    /// Looks at shared memory and at busy sockets until there is something to collect, a wake-up, a due timer or the
    /// end of the spin.
    fn spin_for_a_while(&mut self) {
        let start = self.now;
        let mut offered = start;
        let mut end = self.spin_end().min(self.timers.next());
        let looks = if self.receives.is_empty() { SPINS_PER_CLOCK } else { TRIES_PER_CLOCK };
        'spin: while self.now < end {
            for _ in 0..looks {
                let due = self.queues.wants_enter()
                    || self.queues.has_completions()
                    || self.wake.flags().is_pending();
                if due || self.try_receives() {
                    break 'spin;
                }
                std::hint::spin_loop();
            }
            self.now = clock();
            if self.now - offered >= self.yields.pause() {
                std::thread::yield_now();
                offered = clock();
                self.yields.made(offered, offered - self.now);
                self.now = offered;
                end = end.min(self.spin_end());
            }
        }
        self.wake.add_spun(self.now - start);
    }

    /// Sleeps in the kernel until a completion, a wake-up or the next timer.
    fn sleep(&mut self) -> io::Result<()> {
        self.queue_receives();
        let deadline = self.timers.next();
        let timeout = (deadline != Time::MAX).then(|| deadline - self.now);
        if self.wake.flags().prepare_sleep() {
            let start = self.now;
            self.sleeps += 1;
            let result = self.queues.enter(1, timeout);
            self.wake.add_slept(clock() - start);
            self.wake.flags().end_sleep();
            return result;
        }
        self.wake.flags().end_sleep();
        Ok(())
    }
}
