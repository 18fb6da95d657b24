//! What hosts have done so far, and what they do each second: counters are looked at once a second, and two looks
//! make a rate.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ringfab_reactor::{Time, clock};
use serde::Serialize;

use crate::controller::Controller;
use crate::model::latency::{Histogram, Latency, Phase};
use crate::model::{IoCounters, IoSum, Namespace};

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

impl From<IoCounters> for Work {
    fn from(counters: IoCounters) -> Self {
        let IoCounters { commands_read, commands_write, commands_other, .. } = counters;
        Self {
            commands: Commands { read: commands_read, write: commands_write, other: commands_other },
            bytes: Bytes { read: counters.bytes_read, written: counters.bytes_written },
        }
    }
}

impl Work {
    /// Something of both, number by number.
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

/// How long sampled commands took, from their arrival until their answer was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LatencyState {
    /// How many were sampled: one in 64.
    pub sampled: u64,
    /// The mean, in microseconds.
    pub mean_us: u64,
    /// Half of them took no longer than this, in microseconds.
    pub p50_us: u64,
    /// 99 of a hundred took no longer than this, in microseconds.
    pub p99_us: u64,
    /// The mean time in each phase, in microseconds.
    pub phases_mean_us: PhasesState,
}

/// The phases of commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PhasesState {
    /// They waited in the target: for buffers, limits, or other commands.
    pub wait: u64,
    /// Their data came from the host.
    pub receive: u64,
    /// The disk worked.
    pub disk: u64,
    /// Data and answer went to the host.
    pub send: u64,
}

impl LatencyState {
    pub(super) fn of(latency: Option<&Latency>) -> Self {
        let Some(Latency { total, phases }) = latency else { return Self::default() };
        let mean = |phase: Phase| mean_us(&phases[phase as usize]);
        Self {
            sampled: total.count(),
            mean_us: mean_us(total),
            p50_us: total.quantile_us(0.5).unwrap_or(0),
            p99_us: total.quantile_us(0.99).unwrap_or(0),
            phases_mean_us: PhasesState {
                wait: mean(Phase::Wait),
                receive: mean(Phase::Receive),
                disk: mean(Phase::Disk),
                send: mean(Phase::Send),
            },
        }
    }
}

fn mean_us(histogram: &Histogram) -> u64 {
    (histogram.sum_ns + 500 * histogram.count()).checked_div(1000 * histogram.count()).unwrap_or(0)
}

/// What the connected queues of a controller have done.
pub(super) fn of_controller(controller: &Controller) -> IoSum {
    let mut sum = IoSum::default();
    controller.queues().iter().for_each(|queue| sum.add(queue.io()));
    sum
}

/// Whose work it is. Numbers of controllers and positions of namespaces are used again, but not at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Controller(u16, Time),
    Namespace(usize),
}

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
    /// Looks at all controllers and namespaces.
    pub(super) fn take(&self, controllers: &[Arc<Controller>], namespaces: &[Arc<Namespace>]) {
        let controllers = controllers.iter().map(|one| (key(one), of_controller(one).counters.into()));
        let namespaces = namespaces.iter().map(|one| (Key::Namespace(one.index()), one.io().counters.into()));
        let sample = Arc::new(Sample { at: clock(), work: controllers.chain(namespaces).collect() });
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
    pub(super) fn of_controller(&self, controller: &Controller, work: Work) -> Work {
        self.since_sample(key(controller), work, controller.created())
    }

    /// What hosts do with a namespace each second. Before the first look, nobody knows.
    pub(super) fn of_namespace(&self, namespace: &Namespace, work: Work) -> Work {
        let began = self.sample.as_ref().map_or(Time::ZERO, |sample| sample.at);
        self.since_sample(Key::Namespace(namespace.index()), work, began)
    }

    fn since_sample(&self, key: Key, work: Work, began: Time) -> Work {
        let before = self.sample.as_ref().and_then(|sample| Some((sample.at, *sample.work.get(&key)?)));
        let (since, before) = before.unwrap_or((began, Work::default()));
        work.per_second_since(before, self.now.since(since).max(RATE_TIME_MIN))
    }
}

fn key(controller: &Controller) -> Key {
    Key::Controller(controller.id(), controller.created())
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
