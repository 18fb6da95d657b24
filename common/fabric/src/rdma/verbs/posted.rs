//! Requests of a send queue, from posting to completion.

use std::collections::VecDeque;

use ringfab_memory::{Buffer, Lease};

use super::domain::Domain;
use super::exposure::Exposures;
use super::sys::{Operation, Piece, WorkRequest};
use crate::rdma::table::Key;
use crate::rdma::{Event, QueuePairId};

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
    Lease(#[expect(dead_code, reason = "held until the device has let go of it")] Lease),
    Sink(Buffer),
}

impl Posted {
    pub(super) fn succeed(self, queue_pair: QueuePairId, events: &mut VecDeque<Event>) {
        let Some(id) = self.id.filter(|_| self.reported) else { return };
        events.push_back(match self.held {
            Held::Sink(sink) => Event::Read { queue_pair, id, sink },
            Held::Nothing | Held::Lease(_) => Event::Sent { queue_pair, id },
        });
    }

    pub(super) fn flush(self, queue_pair: QueuePairId, events: &mut VecDeque<Event>) {
        let Some(id) = self.id else { return };
        let sink = match self.held {
            Held::Sink(sink) => Some(sink),
            Held::Nothing | Held::Lease(_) => None,
        };
        events.push_back(Event::Flushed { queue_pair, id, sink });
    }
}

/// The request that opens an exposure's window; none when the exposure has ended meanwhile.
pub(super) fn bind(id: u64, exposure: Key, domain: &Domain, exposures: &Exposures) -> Option<WorkRequest> {
    let exposure = exposures.get(exposure)?;
    let window = exposure.window.as_ref()?;
    let (address, length) = exposure.range;
    let buffer = exposure.lease.slot().0.as_ptr() as u64;
    let region = domain.region(buffer, exposure.range)?;
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
