//! A wrapper that holds operations back: for a time that varies, or until a rate allows them.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use ringfab_base::{SlotId, Slots, SplitMix64};
use ringfab_reactor::{Completion, Reactor, Time};

use crate::device::{BlockDevice, OpenedFile};
use crate::operation::{DiskProperties, Finished, Operation, Started, Tag};
use crate::{BlockError, DiskTokens, OpenError};

/// When a disk starts what it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Each operation after a time of its own between two bounds, so that they finish in another order than they came.
    Delay {
        /// Seed of the times.
        seed: u64,
        /// The shortest.
        min: Duration,
        /// The longest.
        max: Duration,
    },
    /// In order, and no faster than so many operations a second. Whoever was idle saves nothing.
    Limit {
        /// Operations a second, at least one.
        operations_per_second: u32,
    },
}

/// A device whose operations start when their time has come.
#[derive(Debug)]
pub(crate) struct PacedDevice {
    inner: Box<dyn BlockDevice>,
    tokens: DiskTokens,
    clock: PaceClock,
    /// Operations whose time has not come, and when it does. Those of the same time start in the order in which they
    /// came.
    held: Slots<(Operation, Tag)>,
    due: BinaryHeap<Reverse<(Time, u64, SlotId)>>,
    sequence: u64,
    /// What has finished and is still to be reported.
    finished: VecDeque<Finished>,
}

/// Says when the next operation starts.
#[derive(Debug)]
enum PaceClock {
    Delay { random: SplitMix64, min: Duration, span_nanos: u64 },
    Limit { interval: Duration, next: Time },
}

impl PaceClock {
    fn new(pace: Pace) -> Self {
        match pace {
            Pace::Delay { seed, min, max } => {
                let span_nanos = max.saturating_sub(min).as_nanos() as u64;
                Self::Delay { random: SplitMix64::new(seed), min, span_nanos }
            }
            Pace::Limit { operations_per_second } => {
                let interval = Duration::from_secs(1) / operations_per_second.max(1);
                Self::Limit { interval, next: Time::ZERO }
            }
        }
    }

    fn next_start(&mut self, now: Time) -> Time {
        match self {
            Self::Delay { random, min, span_nanos } => {
                now + *min + Duration::from_nanos(random.below(*span_nanos + 1))
            }
            Self::Limit { interval, next } => {
                let at = now.max(*next);
                *next = at + *interval;
                at
            }
        }
    }
}

impl PacedDevice {
    /// Puts a pace around `inner`, which has the tokens inside of `tokens`.
    pub(crate) fn new(inner: Box<dyn BlockDevice>, tokens: DiskTokens, pace: Pace) -> Self {
        Self {
            inner,
            tokens,
            clock: PaceClock::new(pace),
            held: Slots::new(),
            due: BinaryHeap::new(),
            sequence: 0,
            finished: VecDeque::new(),
        }
    }

    /// Starts everything whose time has come.
    fn start_due(&mut self, reactor: &mut Reactor) {
        while let Some(Reverse((at, _, id))) = self.due.peek().copied() {
            if at > reactor.now() {
                return;
            }
            self.due.pop();
            let Some((operation, tag)) = self.held.remove(id) else { continue };
            if let Started::Finished(finished) = self.inner.start(reactor, operation, tag) {
                self.finished.push_back(finished);
            }
        }
    }
}

impl BlockDevice for PacedDevice {
    fn properties(&self) -> DiskProperties {
        self.inner.properties()
    }

    fn start(&mut self, reactor: &mut Reactor, operation: Operation, tag: Tag) -> Started {
        let id = match self.held.try_insert((operation, tag), DiskTokens::SLOTS) {
            Ok(id) => id,
            Err((operation, tag)) => return Started::Finished(operation.finish(tag, Err(BlockError::Busy))),
        };
        let at = self.clock.next_start(reactor.now());
        self.sequence += 1;
        self.due.push(Reverse((at, self.sequence, id)));
        reactor.set_timer(at, self.tokens.token(0, id));
        Started::Pending
    }

    fn on_completion(&mut self, reactor: &mut Reactor, completion: Completion) -> Option<Finished> {
        if !self.tokens.is_own(completion.token) {
            return self.inner.on_completion(reactor, completion);
        }
        self.start_due(reactor);
        self.finished.pop_front()
    }

    fn next_finished(&mut self, reactor: &mut Reactor) -> Option<Finished> {
        self.finished.pop_front().or_else(|| self.inner.next_finished(reactor))
    }

    fn close(&mut self, reactor: &mut Reactor) {
        self.inner.close(reactor);
    }

    fn resize(&mut self, bytes: u64) {
        self.inner.resize(bytes);
    }

    fn replace(&mut self, opened: &OpenedFile, reactor: &mut Reactor) -> std::io::Result<()> {
        self.inner.replace(opened, reactor)
    }

    fn reopen(&mut self, reactor: &mut Reactor) -> Result<(), OpenError> {
        self.inner.reopen(reactor)
    }

    fn copied_bytes(&self) -> u64 {
        self.inner.copied_bytes()
    }
}
