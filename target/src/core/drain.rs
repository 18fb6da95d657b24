//! The end of a core: nothing new is taken, what is in flight ends, disks are flushed and closed.

use std::io;
use std::time::Duration;

use ringfab_block::{Disk, Operation, Started, Tag};
use ringfab_reactor::{Token, Wait};

use super::{Core, CoreMessage, Env, owner};
use crate::transport;

/// What a last flush of all disks gets at least, when a drain has used up its time.
const FLUSH_TIME_MIN: Duration = Duration::from_secs(1);

impl Core {
    /// Takes nothing new from now on, and ends what there is within a limit.
    pub(super) fn drain(&mut self, limit: Duration) {
        self.draining = Some(self.env.reactor.now() + limit);
        for listener in self.listeners.drain(..) {
            transport::close_listener(&mut self.env.transports, &mut self.env.reactor, listener.id);
        }
        for queue in self.queues.iter_mut().flatten() {
            queue.end(&mut self.env);
        }
        self.arm_housekeeping();
    }

    /// Whether a drain was asked for and nothing is left on any core, or its time is over. Cores end together: until
    /// then one may need another's word.
    pub fn is_drained(&self) -> bool {
        let all_quiet = self.quiet && self.others_quiet + 1 >= self.env.cores.len();
        self.draining.is_some_and(|deadline| all_quiet || self.env.reactor.now() >= deadline)
    }

    /// Tells the other cores once that nothing is left here.
    pub(super) fn tell_quiet(&mut self) {
        if self.quiet || self.draining.is_none() || self.queues.iter().any(Option::is_some) {
            return;
        }
        self.quiet = true;
        let others = self.env.cores.iter().enumerate().filter(|(number, _)| *number != self.env.core);
        others.for_each(|(_, core)| core.send(CoreMessage::Quiet));
    }

    /// Flushes and closes the disks, within a limit.
    pub(super) fn close(mut self) -> io::Result<()> {
        let deadline = (self.env.reactor.now() + FLUSH_TIME_MIN).max(self.draining.unwrap_or_default());
        self.env.reactor.set_timer(deadline, Token::new(owner::CORE, 0, 0, 0));
        let mut pending = self.start_flushes();
        while pending > 0 && self.env.reactor.now() < deadline {
            self.env.reactor.turn(Wait::Event)?;
            while let Some(completion) = self.env.reactor.next_completion() {
                pending -= usize::from(completion.token.owner == owner::DISK);
            }
        }
        let Env { mut reactor, disks, .. } = self.env;
        for open in disks.into_iter().flatten() {
            open.disk.close(&mut reactor);
        }
        Ok(())
    }

    fn start_flushes(&mut self) -> usize {
        let Env { reactor, disks, .. } = &mut self.env;
        let mut pending = 0;
        let volatile = |disk: &Disk| disk.properties().volatile_cache;
        for disk in disks.iter_mut().flatten().map(|open| &mut open.disk).filter(|disk| volatile(disk)) {
            let tag = Tag { kind: 0, generation: 0, index: u32::MAX };
            pending += usize::from(matches!(disk.start(reactor, Operation::Flush, tag), Started::Pending));
        }
        pending
    }
}
