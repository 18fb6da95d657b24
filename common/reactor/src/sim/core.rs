//! Clock, chance and the order of events.

use std::collections::BTreeMap;
use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

use crate::Time;

/// When a world starts: not at zero, so that code which confuses "no time" with "time zero" is found.
const START: Time = Time::from_nanos(1_000_000_000);

/// Number of a port in its world; never used again.
pub(super) type PortKey = usize;

/// Place of an event in the order: its time, then its sequence number.
pub(super) type EventKey = (Time, u64);

/// Something that happens to the world at a point in time.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// The first segment on the wire towards an end of a connection arrives.
    Wire { connection: u64, side: usize },
    /// A part of a write in flight becomes visible before the write completes.
    DiskPart { operation: u64 },
    /// A disk operation completes.
    DiskDone { operation: u64 },
    /// A datagram arrives.
    Datagram { datagram: u64 },
    /// A message between cores arrives.
    Letter { letter: u64 },
}

/// The clock, the generator, the queue of events and the trace.
pub(super) struct Core {
    pub(super) now: Time,
    random: ChaCha8Rng,
    events: BTreeMap<EventKey, Event>,
    sequence: u64,
    trace: u64,
}

impl Core {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            now: START,
            random: ChaCha8Rng::seed_from_u64(seed),
            events: BTreeMap::new(),
            sequence: 0,
            // The offset basis of FNV-1a.
            trace: 0xcbf2_9ce4_8422_2325,
        }
    }

    /// A number that is larger than every one before it.
    pub(super) fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    pub(super) fn schedule(&mut self, at: Time, event: Event) -> EventKey {
        let key = (at, self.next_sequence());
        self.events.insert(key, event);
        key
    }

    pub(super) fn unschedule(&mut self, key: EventKey) {
        self.events.remove(&key);
    }

    /// Takes the first event whose time has come.
    pub(super) fn pop_due(&mut self) -> Option<Event> {
        let entry = self.events.first_entry()?;
        (entry.key().0 <= self.now).then(|| entry.remove())
    }

    pub(super) fn next_event_time(&self) -> Option<Time> {
        self.events.first_key_value().map(|(key, _)| key.0)
    }

    pub(super) fn next_u64(&mut self) -> u64 {
        self.random.next_u64()
    }

    /// A number below `bound`, which is not zero. The bias of the multiplication is below 2^-32 for the bounds
    /// of this module, which no test can see.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "no number is below zero");
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// A length from one to `length_max`.
    pub(super) fn part_of(&mut self, length_max: usize) -> usize {
        1 + self.below(length_max as u64) as usize
    }

    /// True with this probability. Certainties draw nothing.
    pub(super) fn chance(&mut self, probability: f64) -> bool {
        if probability <= 0.0 {
            return false;
        }
        // The upper 53 bits are all that a double can hold.
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64 <= probability
    }

    /// The time after a delay between the two.
    pub(super) fn after(&mut self, delay_min: Duration, delay_max: Duration) -> Time {
        let spread = u64::try_from(delay_max.saturating_sub(delay_min).as_nanos()).unwrap_or(u64::MAX - 1);
        let extra = if spread == 0 { 0 } else { self.below(spread + 1) };
        self.now + delay_min + Duration::from_nanos(extra)
    }

    /// Folds what happened into the trace.
    pub(super) fn record(&mut self, parts: &[u64]) {
        let now = self.now.as_nanos();
        for byte in [now].iter().chain(parts).flat_map(|part| part.to_le_bytes()) {
            // The prime of FNV-1a.
            self.trace = (self.trace ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    pub(super) fn trace(&self) -> u64 {
        self.trace
    }
}
