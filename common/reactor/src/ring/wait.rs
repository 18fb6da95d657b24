//! One turn of the loop: submit, collect, and wait by spinning first and sleeping then.

use std::io;

use super::clock::clock;
use super::{Ring, descriptor};
use crate::{Time, Wait};

/// Looks at shared memory between two looks at the clock while spinning.
const SPINS_PER_CLOCK: u32 = 32;

/// The same where each look is a system call, too.
const TRIES_PER_CLOCK: u32 = 2;

impl Ring {
    pub(crate) fn turn(&mut self, wait: Wait) -> io::Result<()> {
        self.pace.turns += 1;
        self.pace.spin.begin(wait);
        let waits = wait != Wait::No;
        if !waits {
            // A program that waited on the descriptor has announced sleep.
            self.wake.flags().end_sleep();
        }
        self.wake.set_turns(self.pace.turns);
        let spins = !self.pace.spin.time().is_zero() && !self.in_flight.draining;
        self.in_flight.sort_transfers(spins);
        if waits && self.is_time_to_sleep() {
            // One system call submits and waits.
            self.sleep()?;
        }
        self.collect()?;
        self.in_flight.try_receives();
        // A wake-up is answered by any turn that returns, so it is taken even when there are completions.
        let mut woken = self.wake.flags().take();
        while waits && self.in_flight.ready.is_empty() && !woken {
            self.pause()?;
            self.collect()?;
            woken = self.wake.flags().take();
        }
        if woken || !self.in_flight.ready.is_empty() {
            if waits {
                self.pace.spin.waited(self.pace.now - self.pace.last_event);
            }
            self.pace.last_event = self.pace.now;
        }
        Ok(())
    }

    /// Whether there is nothing to collect now and has been nothing for as long as is spun.
    fn is_time_to_sleep(&mut self) -> bool {
        if !self.in_flight.ready.is_empty()
            || self.in_flight.queues.wants_enter()
            || self.in_flight.queues.has_completions()
        {
            return false;
        }
        self.pace.now = clock();
        self.pace.now >= self.pace.spin_end() && self.pace.now < self.in_flight.timers.next()
    }

    /// Submits what is queued, lets the kernel run its deferred work, and takes all completions and due timers.
    fn collect(&mut self) -> io::Result<()> {
        if self.in_flight.queues.has_submissions() || self.in_flight.queues.wants_enter() {
            self.in_flight.queues.enter(0, None)?;
        }
        self.in_flight.reap();
        self.pace.now = clock();
        self.in_flight.fire_timers(self.pace.now);
        Ok(())
    }

    pub(crate) fn submit_now(&mut self) {
        if self.in_flight.queues.has_submissions() {
            // A failure shows again at the next turn, which reports it.
            let _ = self.in_flight.queues.enter(0, None);
        }
    }

    /// Submits what is queued, and has the descriptor become readable with the next completion, wake-up or timer.
    /// Returns whether there is nothing to take already.
    pub(crate) fn prepare_to_wait(&mut self) -> io::Result<bool> {
        descriptor(self)?;
        self.in_flight.queue_sends();
        self.in_flight.queue_receives();
        self.pace.now = clock();
        self.in_flight.set_alarm(self.pace.now);
        if self.in_flight.queues.has_submissions() {
            self.in_flight.queues.enter(0, None)?;
        }
        // Before the look: what comes after it is signaled again.
        self.wake.clear_outside()?;
        let is_quiet = self.in_flight.ready.is_empty()
            && !self.in_flight.queues.wants_enter()
            && !self.in_flight.queues.has_completions()
            && self.in_flight.timers.next() > self.pace.now;
        // From here on, who wakes the loop writes to its eventfds.
        if is_quiet && self.wake.flags().prepare_sleep() {
            self.pace.sleeps += 1;
            return Ok(true);
        }
        self.wake.flags().end_sleep();
        Ok(false)
    }

    /// Waits until something may have happened. Continuations that completions queued are submitted first.
    fn pause(&mut self) -> io::Result<()> {
        if self.in_flight.queues.has_submissions() {
            return Ok(());
        }
        if self.pace.now < self.pace.spin_end() {
            self.spin_for_a_while();
            return Ok(());
        }
        self.sleep()
    }

    /// Looks at shared memory and at busy sockets until there is something to collect, a wake-up, a due timer or the
    /// end of the spin.
    fn spin_for_a_while(&mut self) {
        let start = self.pace.now;
        let mut offered = start;
        let mut end = self.pace.spin_end().min(self.in_flight.timers.next());
        let looks = if self.in_flight.receives.is_empty() { SPINS_PER_CLOCK } else { TRIES_PER_CLOCK };
        'spin: while self.pace.now < end {
            for _ in 0..looks {
                let due = self.in_flight.queues.wants_enter()
                    || self.in_flight.queues.has_completions()
                    || self.wake.flags().is_pending();
                if due || self.in_flight.try_receives() {
                    break 'spin;
                }
                std::hint::spin_loop();
            }
            self.pace.now = clock();
            if self.pace.now - offered >= self.pace.yields.pause() {
                std::thread::yield_now();
                offered = clock();
                self.pace.yields.made(offered, offered - self.pace.now);
                self.pace.now = offered;
                end = end.min(self.pace.spin_end());
            }
        }
        self.wake.add_spun(self.pace.now - start);
    }

    /// Sleeps in the kernel until a completion, a wake-up or the next timer.
    fn sleep(&mut self) -> io::Result<()> {
        self.in_flight.queue_receives();
        let deadline = self.in_flight.timers.next();
        let timeout = (deadline != Time::MAX).then(|| deadline - self.pace.now);
        if self.wake.flags().prepare_sleep() {
            let start = self.pace.now;
            self.pace.sleeps += 1;
            let result = self.in_flight.queues.enter(1, timeout);
            self.wake.add_slept(clock() - start);
            self.wake.flags().end_sleep();
            return result;
        }
        self.wake.flags().end_sleep();
        Ok(())
    }
}
