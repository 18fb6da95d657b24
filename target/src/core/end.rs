//! The end of a core: nothing new is taken, what is in flight ends, disks are flushed and closed.

use std::io;
use std::time::Duration;

use ringfab_base::counted;
use ringfab_reactor::{Token, Wait};

use super::Core;
use super::drain::LastFlushes;
use super::message::CoreMessage;
use crate::resources::{Resources, owner};

/// What a last flush of all disks gets at least, when a drain has used up its time.
const FLUSH_TIME_MIN: Duration = Duration::from_secs(1);

impl Core {
    /// Takes nothing new from now on, and ends what there is within a limit.
    pub(super) fn begin_drain(&mut self, limit: Duration) {
        self.drain.begin(self.resources.reactor.now() + limit);
        self.listeners.close_all(&mut self.resources);
        self.queues.iter_mut().for_each(|queue| queue.end(&mut self.resources));
        self.arm_housekeeping();
    }

    /// Whether a drain was asked for and nothing is left on any core, or its time is over.
    pub fn is_drained(&self) -> bool {
        self.drain.is_over(self.cores.len(), self.resources.reactor.now())
    }

    /// Tells the other cores once that nothing is left here.
    pub(super) fn report_idle(&mut self) {
        if self.drain.becomes_idle(|| self.queues.is_empty()) {
            let others = self.cores.iter().enumerate().filter(|(number, _)| *number != self.resources.core);
            others.for_each(|(_, core)| core.send(CoreMessage::Idle));
        }
    }

    /// Flushes and closes the disks, within a limit.
    pub(super) fn close(self) -> io::Result<()> {
        let Resources { mut reactor, mut disks, .. } = self.resources;
        let deadline = (reactor.now() + FLUSH_TIME_MIN).max(self.drain.deadline());
        reactor.set_timer(deadline, Token::new(owner::CORE, owner::timer::END, 0, 0));
        let mut flushes = LastFlushes::start(&mut disks, &mut reactor);
        while flushes.pending > 0 && reactor.now() < deadline {
            reactor.turn(Wait::Event)?;
            while let Some(completion) = reactor.next_completion() {
                if completion.token.owner == owner::DISK {
                    flushes.on_completion(&mut disks, &mut reactor, completion);
                }
            }
        }
        disks.take_all().for_each(|open| open.disk.close(&mut reactor));
        match flushes.unsafe_disks() {
            0 => Ok(()),
            count => Err(io::Error::other(format!(
                "{} could not be flushed; what was written may be lost",
                counted(count, "disk")
            ))),
        }
    }
}
