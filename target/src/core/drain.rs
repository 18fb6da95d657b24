//! The end of a core: nothing new is taken, what is in flight ends, disks are flushed and closed.

use std::io;
use std::time::Duration;

use ringfab_base::counted;
use ringfab_block::{BlockError, DiskTokens, Finished, Operation, Started, Tag};
use ringfab_reactor::{Completion, Token, Wait};

use super::{Core, CoreMessage, owner};
use crate::model::disk_failures::{DiskAction, DiskFailure};
use crate::resources::Resources;

/// The tag of a disk's last flush, beside its number: no request has that kind and generation at once.
const LAST_FLUSH: (u8, u16) = (u8::MAX, u16::MAX);

/// What a last flush of all disks gets at least, when a drain has used up its time.
const FLUSH_TIME_MIN: Duration = Duration::from_secs(1);

impl Core {
    /// Takes nothing new from now on, and ends what there is within a limit.
    pub(super) fn drain(&mut self, limit: Duration) {
        self.draining = Some(self.resources.reactor.now() + limit);
        self.listeners.close_all(&mut self.resources);
        for queue in self.queues.iter_mut().flatten() {
            queue.end(&mut self.resources);
        }
        self.arm_housekeeping();
    }

    /// Whether a drain was asked for and nothing is left on any core, or its time is over. Cores end together: until
    /// then one may need another's word.
    pub fn is_drained(&self) -> bool {
        let all_idle = self.idle && self.others_idle + 1 >= self.cores.len();
        self.draining.is_some_and(|deadline| all_idle || self.resources.reactor.now() >= deadline)
    }

    /// Tells the other cores once that nothing is left here.
    pub(super) fn report_idle(&mut self) {
        if self.idle || self.draining.is_none() || self.queues.iter().any(Option::is_some) {
            return;
        }
        self.idle = true;
        let others = self.cores.iter().enumerate().filter(|(number, _)| *number != self.resources.core);
        others.for_each(|(_, core)| core.send(CoreMessage::Idle));
    }

    /// Flushes and closes the disks, within a limit.
    pub(super) fn close(mut self) -> io::Result<()> {
        let deadline = (self.resources.reactor.now() + FLUSH_TIME_MIN).max(self.draining.unwrap_or_default());
        self.resources.reactor.set_timer(deadline, Token::new(owner::CORE, 0, 0, 0));
        let (mut pending, mut unsafe_disks) = self.start_flushes();
        while pending > 0 && self.resources.reactor.now() < deadline {
            self.resources.reactor.turn(Wait::Event)?;
            while let Some(completion) = self.resources.reactor.next_completion() {
                if completion.token.owner == owner::DISK {
                    let (ended, failed) = last_flushes_ended(&mut self.resources, completion);
                    pending -= ended;
                    unsafe_disks += failed;
                }
            }
        }
        unsafe_disks += pending;
        let Resources { mut reactor, disks, .. } = self.resources;
        for open in disks.into_iter().flatten() {
            open.disk.close(&mut reactor);
        }
        match unsafe_disks {
            0 => Ok(()),
            count => Err(io::Error::other(format!(
                "{} could not be flushed; what was written may be lost",
                counted(count, "disk")
            ))),
        }
    }

    /// How many flushes are under way, and how many disks are known not to be safe.
    fn start_flushes(&mut self) -> (usize, usize) {
        let Resources { reactor, disks, .. } = &mut self.resources;
        let (mut pending, mut unsafe_disks) = (0, 0);
        for (index, open) in disks.iter_mut().enumerate() {
            let Some(open) = open.as_mut().filter(|open| open.disk.properties().volatile_cache) else {
                continue;
            };
            let tag = Tag { kind: LAST_FLUSH.0, generation: LAST_FLUSH.1, index: index as u32 };
            match open.disk.start(reactor, Operation::Flush, tag) {
                Started::Pending => pending += 1,
                Started::Finished(finished) => unsafe_disks += usize::from(finished.result.is_err()),
            }
        }
        (pending, unsafe_disks)
    }
}

/// A completion of a disk. Returns how many last flushes have ended with it, and how many of them have failed.
fn last_flushes_ended(resources: &mut Resources, completion: Completion) -> (usize, usize) {
    let Resources { reactor, disks, .. } = resources;
    let disk = usize::from(DiskTokens::disk_of(completion.token));
    let Some(open) = disks.get_mut(disk).and_then(Option::as_mut) else { return (0, 0) };
    let (mut ended, mut failed) = (0, 0);
    let mut next = open.disk.on_completion(reactor, completion);
    while let Some(Finished { tag, result, errno, .. }) = next {
        if (tag.kind, tag.generation) == LAST_FLUSH {
            ended += 1;
            if result.is_err() {
                failed += 1;
                let failure = DiskFailure { what: DiskAction::Flush, error: BlockError::Write, errno };
                open.note_failure(reactor.now(), failure);
            }
        }
        next = open.disk.next_finished(reactor);
    }
    (ended, failed)
}
