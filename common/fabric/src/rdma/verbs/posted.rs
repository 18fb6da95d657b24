//! Requests of a send queue, from posting to completion.

use std::mem;

use ringfab_memory::{Buffer, SharedBuffer};

use super::domain::Domain;
use super::exposure::Exposures;
use super::sys::{Operation, Piece, WorkRequest};
use crate::events::Events;
use crate::rdma::{QueuePairId, RnicEvent};
use crate::table::Key;

/// A request on its way to the doorbell.
#[derive(Debug)]
pub(super) enum Chained {
    Request(WorkRequest),
    /// Opens the window of an exposure, if that is still wanted.
    Bind {
        id: u64,
        exposure: Key,
    },
}

/// A request that was posted, and what it holds.
#[derive(Debug)]
pub(super) struct Posted {
    /// The caller's name for it; `None` for one of our own.
    pub(super) id: Option<u64>,
    /// Whether the caller wants to hear of it.
    pub(super) reported: bool,
    /// Whether it has a completion of its own.
    pub(super) signaled: bool,
    pub(super) held: Held,
    /// How it ended, while others before it have not.
    pub(super) outcome: Option<Outcome>,
}

/// What is still to be reported of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Outstanding {
    /// Requests that report.
    completions: u32,
    /// READs among them: commands wait for their data.
    reads: u32,
    /// Memory that comes back with them, in bytes.
    bytes: u64,
}

impl Outstanding {
    /// The most that a core leaves unreported while it sleeps: so little that nothing else lacks it.
    const IDLE: Self = Self { completions: 8, reads: 0, bytes: 64 << 10 };

    pub(super) fn add(&mut self, other: Self) {
        self.completions += other.completions;
        self.reads += other.reads;
        self.bytes += other.bytes;
    }

    pub(super) fn subtract(&mut self, other: Self) {
        self.completions -= other.completions;
        self.reads -= other.reads;
        self.bytes -= other.bytes;
    }

    pub(super) fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    /// Whether nobody is kept waiting when all of this is reported a little later.
    pub(super) fn can_wait(&self) -> bool {
        let most = Self::IDLE;
        self.completions <= most.completions && self.reads <= most.reads && self.bytes <= most.bytes
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum Outcome {
    Done,
    Failed,
}

/// Memory of a request.
#[derive(Debug)]
pub(super) enum Held {
    Nothing,
    /// Bytes of memory that are sent from.
    SharedBuffer(#[expect(dead_code, reason = "held until the device has let go of it")] SharedBuffer, u32),
    Sink(Buffer),
}

impl Posted {
    pub(super) fn outstanding(&self) -> Outstanding {
        let bytes = match &self.held {
            Held::SharedBuffer(_, bytes) => u64::from(*bytes),
            Held::Nothing | Held::Sink(_) => 0,
        };
        let reads = u32::from(matches!(self.held, Held::Sink(_)));
        Outstanding { completions: u32::from(self.signaled), reads, bytes }
    }

    /// `untold` counts the SENDs and WRITEs before it of which no event has told.
    pub(super) fn succeed(self, queue_pair: QueuePairId, untold: &mut u32, events: &mut Events<RnicEvent>) {
        let Some(id) = self.id else { return };
        match self.held {
            Held::Sink(sink) => events.push_with(|| RnicEvent::Read { queue_pair, id, sink }),
            Held::Nothing | Held::SharedBuffer(..) => {
                *untold += 1;
                if self.reported {
                    let count = mem::take(untold);
                    events.push_with(|| RnicEvent::Sent { queue_pair, id, count });
                }
            }
        }
    }

    pub(super) fn flush(self, queue_pair: QueuePairId, events: &mut Events<RnicEvent>) {
        let Some(id) = self.id else { return };
        let sink = match self.held {
            Held::Sink(sink) => Some(sink),
            Held::Nothing | Held::SharedBuffer(..) => None,
        };
        events.push_with(|| RnicEvent::Flushed { queue_pair, id, sink });
    }
}

/// The request that opens an exposure's window; none when the exposure has ended meanwhile.
pub(super) fn bind(id: u64, exposure: Key, domain: &Domain, exposures: &Exposures) -> Option<WorkRequest> {
    let exposure = exposures.get(exposure)?;
    let window = exposure.window.as_ref()?;
    let (address, length) = exposure.range;
    let buffer = exposure.shared_buffer.slot().0.as_ptr() as u64;
    let region = domain.region(buffer, address, length)?;
    Some(WorkRequest {
        id,
        operation: Operation::bind(window, region, address, length, exposure.writable),
        pieces: [Piece::default(); 2],
        piece_count: 0,
        signaled: false,
        inline: false,
        solicited: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_or_much_memory_does_not_wait() {
        let response = Outstanding { completions: 1, reads: 0, bytes: 4096 };
        let mut outstanding = Outstanding::default();
        for _ in 0..Outstanding::IDLE.completions {
            outstanding.add(response);
            assert!(outstanding.can_wait());
        }
        outstanding.add(response);
        assert!(!outstanding.can_wait(), "more than a few");
        for _ in 0..=Outstanding::IDLE.completions {
            outstanding.subtract(response);
        }
        assert!(outstanding.is_nothing());
        assert!(
            !Outstanding { completions: 1, reads: 1, bytes: 0 }.can_wait(),
            "a command waits for its data"
        );
        assert!(
            !Outstanding { completions: 1, reads: 0, bytes: 128 << 10 }.can_wait(),
            "others may lack the memory"
        );
    }
}
