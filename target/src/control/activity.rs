//! What hosts have done so far, and what they do each second: counters are looked at once a second, and two looks
//! make a rate.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ringfab_reactor::{Time, clock};
use serde::Serialize;

use crate::controller::Controller;
use crate::model::QueueCounters;

/// The shortest time that a rate is over. A shorter one would jump.
const RATE_TIME_MIN: Duration = Duration::from_millis(900);

/// Commands by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Commands {
    /// Those that read, Compare and Verify included.
    pub read: u64,
    /// Those that write.
    pub write: u64,
    /// All others.
    pub other: u64,
}

/// Bytes by direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Bytes {
    /// To hosts.
    pub read: u64,
    /// From hosts.
    pub written: u64,
}

/// Commands that completed, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Work {
    /// The commands.
    pub commands: Commands,
    /// The bytes.
    pub bytes: Bytes,
}

impl From<QueueCounters> for Work {
    fn from(counters: QueueCounters) -> Self {
        let QueueCounters { commands_read, commands_write, commands_other, .. } = counters;
        Self {
            commands: Commands { read: commands_read, write: commands_write, other: commands_other },
            bytes: Bytes { read: counters.bytes_read, written: counters.bytes_written },
        }
    }
}

impl Work {
    /// What one thing after the other becomes, for each of the numbers.
    fn each(self, other: Self, of: impl Fn(u64, u64) -> u64) -> Self {
        let (commands, bytes) = (self.commands, self.bytes);
        Self {
            commands: Commands {
                read: of(commands.read, other.commands.read),
                write: of(commands.write, other.commands.write),
                other: of(commands.other, other.commands.other),
            },
            bytes: Bytes {
                read: of(bytes.read, other.bytes.read),
                written: of(bytes.written, other.bytes.written),
            },
        }
    }

    /// How much a second it is since a time when it was `before`. What has become less, because a queue has left,
    /// counts as nothing.
    fn per_second_since(self, before: Self, time: Duration) -> Self {
        let per_second = |now: u64, before: u64| {
            (now.saturating_sub(before) as f64 / time.as_secs_f64().max(1e-9)).round() as u64
        };
        self.each(before, per_second)
    }
}

/// What the connected queues of a controller have done.
pub(super) fn of_controller(controller: &Controller) -> Work {
    let queues = controller.queues();
    let all = queues.iter().map(|queue| Work::from(queue.counters()));
    all.fold(Work::default(), |sum, one| sum.each(one, |a, b| a + b))
}

/// Whose work it is. Numbers of controllers are used again, but not at the same time.
type Key = (u16, Time);

/// What everybody had done at a time.
#[derive(Clone, Debug)]
struct Sample {
    at: Time,
    work: BTreeMap<Key, Work>,
}

/// The last two looks.
#[derive(Clone, Debug, Default)]
pub(super) struct Samples(Arc<Mutex<[Option<Arc<Sample>>; 2]>>);

impl Samples {
    /// Looks at all controllers.
    pub(super) fn take(&self, controllers: &[Arc<Controller>]) {
        let work = controllers.iter().map(|one| (key(one), of_controller(one))).collect();
        let sample = Arc::new(Sample { at: clock(), work });
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *kept = [Some(sample), kept[0].take()];
    }

    /// What to compare with now.
    pub(super) fn rates(&self) -> Rates {
        let now = clock();
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let old_enough = |sample: &&Arc<Sample>| now.since(sample.at) >= RATE_TIME_MIN;
        let sample = kept.iter().flatten().find(old_enough);
        Rates { now, sample: sample.cloned() }
    }
}

/// What there was a moment ago.
pub(super) struct Rates {
    now: Time,
    sample: Option<Arc<Sample>>,
}

impl Rates {
    /// The time now.
    pub(super) fn now(&self) -> Time {
        self.now
    }

    /// What a controller does each second. Of one that has just come: since it came.
    pub(super) fn of(&self, controller: &Controller, work: Work) -> Work {
        let before =
            self.sample.as_ref().and_then(|sample| Some((sample.at, *sample.work.get(&key(controller))?)));
        let (since, before) = before.unwrap_or((controller.created(), Work::default()));
        work.per_second_since(before, self.now.since(since).max(RATE_TIME_MIN))
    }
}

fn key(controller: &Controller) -> Key {
    (controller.id(), controller.created())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_what_was_done_within_its_time() {
        let work = |read: u64, written: u64| Work {
            commands: Commands { read, write: 1, other: 0 },
            bytes: Bytes { read: 0, written },
        };
        let rate = work(3000, 5).per_second_since(work(1000, 9), Duration::from_millis(500));
        assert_eq!((rate.commands.read, rate.commands.write), (4000, 0));
        assert_eq!(rate.bytes.written, 0, "a queue with its counters has left");
    }
}
