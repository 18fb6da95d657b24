//! NVMe/RDMA, the controller's side (NVM Express RDMA Transport 1.0): capsules by SEND, data by RDMA READ and
//! RDMA WRITE, each queue on a queue pair of its own.

use ringfab_fabric::rdma::{
    Event as RnicEvent, Inline, PostError, QueuePairId, Rnic, SendRequest, Slice, Work,
};
use ringfab_memory::{Buffer, Lease};
use ringfab_spec::{CompletionEntry, FromBytes, IntoBytes, SubmissionEntry};

use super::{Arrival, Endpoint, Event, Piece, Refused, Transfer, WorkId};
use crate::queue::HostMemory;

/// The next event, in the order of each connection: what the RNIC reports, in the transports' words.
#[inline]
pub(crate) fn next_event(rnic: &mut Rnic) -> Option<Event> {
    loop {
        return Some(match rnic.next_event()? {
            RnicEvent::Received { queue_pair, head, data, .. } => Event::Capsule {
                endpoint: Endpoint::Rdma(queue_pair),
                command: SubmissionEntry::read_from_bytes(head.as_slice()).ok(),
                data,
                intact: true,
            },
            RnicEvent::Sent { queue_pair, id } => {
                Event::Sent { endpoint: Endpoint::Rdma(queue_pair), id: WorkId::from_bits(id) }
            }
            RnicEvent::Read { queue_pair, id, sink } => fetched(queue_pair, id, Some(sink)),
            RnicEvent::Flushed { queue_pair, id, sink: Some(_) } => fetched(queue_pair, id, None),
            RnicEvent::Flushed { .. } | RnicEvent::Established { .. } => continue,
            RnicEvent::ConnectRequest(request) => Event::Arrived(Arrival::Rdma(request)),
            RnicEvent::Rejected { queue_pair, .. } => gone(queue_pair, &"rejected"),
            RnicEvent::ConnectFailed { queue_pair, error } => gone(queue_pair, &error),
            RnicEvent::Disconnected { queue_pair, reason } => gone(queue_pair, &reason),
        });
    }
}

fn fetched(queue_pair: QueuePairId, id: u64, sink: Option<Buffer>) -> Event {
    Event::Fetched { endpoint: Endpoint::Rdma(queue_pair), id: WorkId::from_bits(id), sink, intact: true }
}

fn gone(queue_pair: QueuePairId, why: &impl ToString) -> Event {
    Event::Gone { endpoint: Endpoint::Rdma(queue_pair), why: why.to_string() }
}

/// Address and key of the host's memory `offset` bytes on.
fn remote(transfer: &Transfer, offset: u32) -> (u64, u32) {
    let HostMemory::Registered { address, key, .. } = transfer.memory else {
        unreachable!("the memory was checked against the link when the command came")
    };
    (address + u64::from(offset), key)
}

/// An RDMA READ for each piece.
pub(super) fn fetch(
    rnic: &mut Rnic,
    queue_pair: QueuePairId,
    transfer: &Transfer,
    sinks: impl Iterator<Item = Piece<Buffer>>,
) -> (u16, Result<(), Refused>) {
    let (mut posted, mut outcome) = (0, Ok(()));
    for Piece { index, offset, length, memory: sink } in sinks {
        let (remote_address, remote_key) = remote(transfer, offset);
        let id = transfer.work(index, 1);
        let work = Work::Read { sink, length, remote_key, remote_address };
        match post(rnic, queue_pair, SendRequest { id, work, signaled: true }) {
            Ok(()) => posted += 1,
            Err(refused) => outcome = Err(refused),
        }
    }
    (posted, outcome)
}

/// An RDMA WRITE for each piece, and the response by SEND.
pub(super) fn answer(
    rnic: &mut Rnic,
    queue_pair: QueuePairId,
    transfer: &Transfer,
    data: impl Iterator<Item = Piece<Lease>>,
    (entry, id): (&CompletionEntry, u64),
) -> Result<(), Refused> {
    for Piece { offset, length, memory: lease, .. } in data {
        let (remote_address, remote_key) = remote(transfer, offset);
        let source = Slice { lease, offset: 0, length };
        let work = Work::Write { source, remote_key, remote_address };
        post(rnic, queue_pair, SendRequest { id: 0, work, signaled: false })?;
    }
    let invalidate = match transfer.memory {
        HostMemory::Registered { key, invalidate: true, .. } => Some(key),
        _ => None,
    };
    let head = Inline::new(entry.as_bytes());
    let work = Work::Send { head, data: None, invalidate, solicited: false };
    post(rnic, queue_pair, SendRequest { id, work, signaled: true })
}

fn post(rnic: &mut Rnic, queue_pair: QueuePairId, request: SendRequest) -> Result<(), Refused> {
    match rnic.post_send(queue_pair, request) {
        Ok(()) => Ok(()),
        // The room was checked before.
        Err(PostError::Full(_)) => unreachable!("the send queue is as deep as its room was counted"),
        Err(PostError::Ended(_)) => Err(Refused::Ended),
        Err(PostError::NoReads(_) | PostError::Range(_) | PostError::Unregistered(_)) => {
            Err(Refused::Unusable)
        }
    }
}
