//! What a host has set by Set Features, per controller, until the next reset.

use std::collections::BTreeMap;

use ringfab_reactor::Time;

/// Where a timestamp comes from (NVM Express Base 2.0, figure "Timestamp").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timestamp {
    /// Counts from the last reset.
    SinceReset,
    /// The host set so many milliseconds since 1970 at a point in time.
    Set {
        /// Milliseconds, 48 bits.
        ms: u64,
        /// When.
        at: Time,
    },
}

/// The features of one controller. Fields hold command dword 11 unless they say something else.
#[derive(Clone, Debug)]
pub(crate) struct Features {
    /// Arbitration burst and weights; they are kept, and have no effect with round robin.
    pub(crate) arbitration: u32,
    /// Power state and workload hint; there is one power state.
    pub(crate) power_management: u32,
    /// Over and under threshold of the composite temperature, in kelvins.
    pub(crate) temperature: [u16; 2],
    /// Time limited error recovery, by namespace.
    pub(crate) error_recovery: BTreeMap<u32, u16>,
    /// Whether the host does without write atomicity beyond a power failure's.
    pub(crate) write_atomicity: u32,
    /// The clock that the host set.
    pub(crate) timestamp: Timestamp,
    /// When the last reset was.
    pub(crate) reset_at: Time,
    io_queues_max: u16,
    io_queues: u16,
}

impl Features {
    pub(crate) fn new(io_queues_max: u16, now: Time) -> Self {
        Self {
            arbitration: 0,
            power_management: 0,
            temperature: [u16::MAX, 0],
            error_recovery: BTreeMap::new(),
            write_atomicity: 0,
            timestamp: Timestamp::SinceReset,
            reset_at: now,
            io_queues_max,
            io_queues: io_queues_max,
        }
    }

    /// The most I/O queues that this host may connect; all that there are until it has said how many it wants.
    pub(crate) fn io_queues(&self) -> u16 {
        self.io_queues
    }

    /// The most I/O queues that any host could have.
    pub(crate) fn io_queues_max(&self) -> u16 {
        self.io_queues_max
    }

    /// The host wants so many queues, at least one; returns how many it gets.
    pub(crate) fn grant_io_queues(&mut self, wanted: u16) -> u16 {
        self.io_queues = wanted.min(self.io_queues_max);
        self.io_queues
    }

    /// The clock in milliseconds, 48 bits.
    pub(crate) fn timestamp_ms(&self, now: Time) -> u64 {
        let (base_ms, since) = match self.timestamp {
            Timestamp::SinceReset => (0, self.reset_at),
            Timestamp::Set { ms, at } => (ms, at),
        };
        let elapsed_ms = u64::try_from(now.since(since).as_millis()).unwrap_or(u64::MAX);
        base_ms.saturating_add(elapsed_ms) & ((1 << 48) - 1)
    }
}
