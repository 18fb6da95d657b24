//! How far the end of a core is, and the last flushes of its disks.

use std::num::NonZeroI32;

use ringfab_block::{BlockError, DiskTokens, Finished, Operation, Started, Tag};
use ringfab_reactor::{Completion, Reactor, Time};

use crate::model::disk_failure::{DiskAction, DiskFailure};
use crate::resources::disks::Disks;

/// How far a drain is. Cores end together: until then one may need another's word.
#[derive(Debug, Default)]
pub(super) struct Drain {
    /// When it is over in any case, once it was asked for.
    deadline: Option<Time>,
    /// Whether this core has nothing left to do, and how many others have said so.
    idle: bool,
    others_idle: usize,
}

impl Drain {
    /// Takes nothing new from now on.
    pub(super) fn begin(&mut self, deadline: Time) {
        self.deadline = Some(deadline);
    }

    /// Whether it was asked for.
    pub(super) fn is_on(&self) -> bool {
        self.deadline.is_some()
    }

    /// When it is over in any case; the beginning of time if it was not asked for.
    pub(super) fn deadline(&self) -> Time {
        self.deadline.unwrap_or_default()
    }

    /// Whether it was asked for and nothing is left on any of so many cores, or its time is over.
    pub(super) fn is_over(&self, cores: usize, now: Time) -> bool {
        let all_idle = self.idle && self.others_idle + 1 >= cores;
        self.deadline.is_some_and(|deadline| all_idle || now >= deadline)
    }

    /// Nothing may be left on this core, as `none_left` says. Returns whether that is news, while there is a drain.
    pub(super) fn becomes_idle(&mut self, none_left: impl FnOnce() -> bool) -> bool {
        let news = !self.idle && self.is_on() && none_left();
        self.idle |= news;
        news
    }

    /// Another core has nothing left.
    pub(super) fn other_is_idle(&mut self) {
        self.others_idle += 1;
    }
}

/// The tag of a disk's last flush, beside its number: no request has that kind and generation at once.
const LAST_FLUSH: (u8, u16) = (u8::MAX, u16::MAX);

/// The last flushes of the disks.
#[derive(Debug, Default)]
pub(super) struct LastFlushes {
    /// How many are under way.
    pub(super) pending: usize,
    /// How many have failed.
    failed: usize,
}

impl LastFlushes {
    /// Flushes all disks that need it.
    pub(super) fn start(disks: &mut Disks, reactor: &mut Reactor) -> Self {
        let mut flushes = Self::default();
        for (index, open) in disks.iter_mut().filter(|(_, open)| open.disk.properties().volatile_cache) {
            let tag = Tag { kind: LAST_FLUSH.0, generation: LAST_FLUSH.1, index: index as u32 };
            match open.disk.start(reactor, Operation::Flush, tag) {
                Started::Pending => flushes.pending += 1,
                Started::Finished(finished) => flushes.failed += usize::from(finished.result.is_err()),
            }
        }
        flushes
    }

    /// A completion of a disk, with which flushes may end.
    pub(super) fn on_completion(&mut self, disks: &mut Disks, reactor: &mut Reactor, completion: Completion) {
        let disk = usize::from(DiskTokens::disk_of(completion.token));
        let Some(open) = disks.get_mut(disk) else { return };
        let mut next = open.disk.on_completion(reactor, completion);
        while let Some(Finished { tag, result, errno, .. }) = next {
            if (tag.kind, tag.generation) == LAST_FLUSH {
                self.pending -= 1;
                if result.is_err() {
                    self.failed += 1;
                    let failure = DiskFailure {
                        what: DiskAction::Flush,
                        error: BlockError::Write,
                        errno: errno.map(NonZeroI32::get),
                    };
                    open.note_failure(reactor.now(), failure);
                }
            }
            next = open.disk.next_finished(reactor);
        }
    }

    /// How many disks are not known to be safe.
    pub(super) fn unsafe_disks(&self) -> usize {
        self.pending + self.failed
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn cores_end_together() {
        let mut drain = Drain::default();
        drain.begin(Time::ZERO + SECOND);
        assert!(!drain.becomes_idle(|| false));
        drain.other_is_idle();
        assert!(!drain.is_over(2, Time::ZERO), "something is left here");
        assert!(drain.becomes_idle(|| true));
        assert!(drain.is_over(2, Time::ZERO));
        assert!(!drain.is_over(3, Time::ZERO), "a third core is not done");
        assert!(!drain.becomes_idle(|| true), "the others are told once");
    }

    #[test]
    fn a_drain_is_over_when_its_time_is() {
        let mut drain = Drain::default();
        assert!(!drain.becomes_idle(|| true) && !drain.is_over(1, Time::ZERO + SECOND), "none was asked for");
        drain.begin(Time::ZERO + SECOND);
        assert!(!drain.is_over(1, Time::ZERO));
        assert!(drain.is_over(1, Time::ZERO + SECOND));
    }
}
