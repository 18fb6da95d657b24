//! Commands that were told to come again: they wait here, and hold nothing else up.

use ringfab_reactor::Time;
use ringfab_spec::Status;

use super::Controller;
use crate::command::{Command, Owner};
use crate::core::Core;
use crate::error::IoError;
use crate::retry::{Verdict, judge};

impl Controller {
    /// A command of the caller was answered with something else than success: it is held for another try, or that is its end.
    pub(super) fn failed(&mut self, core: &mut Core, mut command: Box<Command>, status: Status) {
        let verdict = judge(status);
        let (pace, policy) = (self.pace, self.options.reconnect);
        if let Some(delay) = command.tries.next(verdict, status, &pace, &policy) {
            tracing::debug!(peer = self.peer, %status, ?delay, sent = command.tries.sent(), "tried again");
            self.say_held(core, &command, status, verdict, delay);
            command.deadline = core.now() + delay;
            self.timers.retry = self.timers.retry.min(command.deadline);
            self.put_off += u64::from(matches!(command.owner, Owner::Io(_)));
            return self.held.push(command);
        }
        let bounded = matches!(verdict, Verdict::Retry | Verdict::WaitForPath);
        let error = match command.tries.sent() {
            tries if bounded && tries > 1 => IoError::Exhausted { status, tries },
            _ => IoError::Status(status),
        };
        core.done(self.id, command, Err(error));
    }

    /// Those whose delay is over get another try.
    pub(super) fn release_due(&mut self, core: &mut Core, now: Time) {
        self.release(|command| command.deadline <= now);
        self.dispatch(core);
        self.admin_room(core);
    }

    /// All of them go back to the others, without waiting any longer.
    pub(super) fn release_held(&mut self) {
        self.release(|_| true);
    }

    /// They go back into the order in which they were submitted.
    fn release(&mut self, due: impl Fn(&Command) -> bool) {
        let mut index = 0;
        while index < self.held.len() {
            if !due(&self.held[index]) {
                index += 1;
                continue;
            }
            let command = self.held.swap_remove(index);
            match command.owner {
                Owner::Io(_) => self.waiting.push_back(command),
                _ => self.admin_waiting.push_back(command),
            }
        }
        self.waiting.make_contiguous().sort_unstable_by_key(|command| command.order);
        self.timers.retry = self.held.iter().map(|command| command.deadline).min().unwrap_or(Time::MAX);
    }
}
