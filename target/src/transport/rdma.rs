//! NVMe/RDMA, the controller's side (NVM Express RDMA Transport 1.0): capsules by SEND, data by RDMA READ and
//! RDMA WRITE, each queue on a queue pair of its own.

use ringfab_fabric::rdma::{
    Capsule, Event as RnicEvent, PostError, QueuePairId, Rnic, SendRequest, Slice, Work,
};
use ringfab_memory::{Buffer, SharedBuffer};
use ringfab_spec::{CompletionEntry, FromBytes, IntoBytes, SubmissionEntry};

use super::{Arrival, Endpoint, Gone, Hears, Piece, Refused, Transfer, WorkId};
use crate::nvm::HostMemory;

/// Tells what the RNIC has reported. What comes for each command is looked at where it lies.
#[inline]
pub(crate) fn tell(event: &mut Option<RnicEvent>, to: &mut impl Hears) {
    match event {
        Some(RnicEvent::Received { queue_pair, head, data, .. }) => {
            let command = SubmissionEntry::ref_from_bytes(head.as_slice()).ok();
            to.capsule(Endpoint::Rdma(*queue_pair), command, data.take(), true);
        }
        Some(RnicEvent::Sent { queue_pair, count, .. }) => to.sent(Endpoint::Rdma(*queue_pair), *count),
        _ => event.take().into_iter().for_each(|event| tell_rest(event, to)),
    }
}

fn tell_rest(event: RnicEvent, to: &mut impl Hears) {
    match event {
        RnicEvent::Read { queue_pair, id, sink } => {
            to.fetched(Endpoint::Rdma(queue_pair), WorkId::from_bits(id), Some(sink), true);
        }
        RnicEvent::Flushed { queue_pair, id, sink: Some(_) } => {
            to.fetched(Endpoint::Rdma(queue_pair), WorkId::from_bits(id), None, true);
        }
        RnicEvent::Flushed { .. } | RnicEvent::Established { .. } => {}
        RnicEvent::Received { .. } | RnicEvent::Sent { .. } => unreachable!("they are told where they lie"),
        RnicEvent::ConnectRequest(request) => to.arrived(Arrival::Rdma(request)),
        RnicEvent::Rejected { queue_pair, .. } => {
            to.gone(Endpoint::Rdma(queue_pair), Gone::before("rejected"));
        }
        RnicEvent::ConnectFailed { queue_pair, error } => {
            to.gone(Endpoint::Rdma(queue_pair), Gone::before(&error.to_string()));
        }
        RnicEvent::Disconnected { queue_pair, reason } => {
            Gone::tell(&reason, Endpoint::Rdma(queue_pair), to);
        }
    }
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
        let id = transfer.work(index);
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
    data: impl Iterator<Item = Piece<SharedBuffer>>,
    entry: &CompletionEntry,
) -> Result<(), Refused> {
    for Piece { offset, length, memory: shared_buffer, .. } in data {
        let (remote_address, remote_key) = remote(transfer, offset);
        let source = Slice { shared_buffer, offset: 0, length };
        let work = Work::Write { source, remote_key, remote_address };
        post(rnic, queue_pair, SendRequest { id: 0, work, signaled: false })?;
    }
    let invalidate = match transfer.memory {
        HostMemory::Registered { key, invalidate: true, .. } => Some(key),
        _ => None,
    };
    let capsule = Capsule { id: 0, head: entry.as_bytes(), data: None, invalidate, signaled: true };
    rnic.post_capsule(queue_pair, capsule).map_err(refusal)
}

#[inline(always)]
fn post(rnic: &mut Rnic, queue_pair: QueuePairId, request: SendRequest) -> Result<(), Refused> {
    rnic.post_send(queue_pair, request).map_err(refusal)
}

#[cold]
#[expect(clippy::needless_pass_by_value, reason = "what was refused ends here")]
fn refusal(error: PostError) -> Refused {
    match error {
        // The room was checked before.
        PostError::Full(_) => unreachable!("the send queue is as deep as its room was counted"),
        PostError::Ended(_) => Refused::Ended,
        PostError::NoReads(_) | PostError::Range(_) | PostError::Unregistered(_) => Refused::Unusable,
    }
}
