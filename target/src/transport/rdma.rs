//! NVMe/RDMA, the controller's side (NVM Express RDMA Transport 1.0): capsules by SEND, data by RDMA READ and
//! RDMA WRITE, each queue on a queue pair of its own.

use ringfab_fabric::rdma::{Capsule, PostError, QueuePairId, Rnic, RnicEvent, SendRequest, Slice, Work};
use ringfab_memory::{Buffer, SharedBuffer};
use ringfab_spec::{CompletionEntry, FromBytes, IntoBytes, SubmissionEntry};

use super::{
    CommandData, Disconnection, Endpoint, FetchId, IncomingConnection, LinkError, Piece, TransportHandler,
};
use crate::nvm::HostMemory;

/// Tells what the RNIC has reported. What comes for each command is looked at where it lies.
#[inline]
pub(crate) fn report(event: &mut Option<RnicEvent>, handler: &mut impl TransportHandler) {
    match event {
        Some(RnicEvent::Received { queue_pair, head, data, .. }) => {
            let command = SubmissionEntry::ref_from_bytes(head.as_slice()).ok();
            handler.on_capsule(Endpoint::Rdma(*queue_pair), command, data.take(), true);
        }
        Some(RnicEvent::Sent { queue_pair, count, .. }) => {
            handler.on_sent(Endpoint::Rdma(*queue_pair), *count);
        }
        _ => event.take().into_iter().for_each(|event| report_rest(event, handler)),
    }
}

fn report_rest(event: RnicEvent, handler: &mut impl TransportHandler) {
    match event {
        RnicEvent::Read { queue_pair, id, sink } => {
            handler.on_fetched(Endpoint::Rdma(queue_pair), FetchId::from_bits(id), Some(sink), true);
        }
        RnicEvent::Flushed { queue_pair, id, sink: Some(_) } => {
            handler.on_fetched(Endpoint::Rdma(queue_pair), FetchId::from_bits(id), None, true);
        }
        RnicEvent::Flushed { .. } | RnicEvent::Established { .. } => {}
        RnicEvent::Received { .. } | RnicEvent::Sent { .. } => unreachable!("they are told where they lie"),
        RnicEvent::ConnectRequest(request) => handler.on_incoming(IncomingConnection::Rdma(request)),
        RnicEvent::Rejected { queue_pair, .. } => {
            handler
                .on_disconnected(Endpoint::Rdma(queue_pair), Disconnection::before_established("rejected"));
        }
        RnicEvent::ConnectFailed { queue_pair, error } => {
            handler.on_disconnected(
                Endpoint::Rdma(queue_pair),
                Disconnection::before_established(&error.to_string()),
            );
        }
        RnicEvent::Disconnected { queue_pair, reason } => {
            Disconnection::report(&reason, Endpoint::Rdma(queue_pair), handler);
        }
    }
}

/// Address and key of the host's memory `offset` bytes on.
fn remote(command: &CommandData, offset: u32) -> (u64, u32) {
    let HostMemory::Registered { address, key, .. } = command.memory else {
        unreachable!("the memory was checked against the link when the command came")
    };
    (address + u64::from(offset), key)
}

/// An RDMA READ for each piece.
pub(super) fn fetch(
    rnic: &mut Rnic,
    queue_pair: QueuePairId,
    command: &CommandData,
    sinks: impl Iterator<Item = Piece<Buffer>>,
) -> (u16, Result<(), LinkError>) {
    let (mut posted, mut outcome) = (0, Ok(()));
    for Piece { index, offset, length, memory: sink } in sinks {
        let (remote_address, remote_key) = remote(command, offset);
        let id = command.fetch_id(index);
        let work = Work::Read { sink, length, remote_key, remote_address };
        match post(rnic, queue_pair, SendRequest { id, work, signaled: true }) {
            Ok(()) => posted += 1,
            Err(error) => outcome = Err(error),
        }
    }
    (posted, outcome)
}

/// An RDMA WRITE for each piece, and the response by SEND.
#[inline(always)]
pub(super) fn answer(
    rnic: &mut Rnic,
    queue_pair: QueuePairId,
    command: &CommandData,
    data: impl Iterator<Item = Piece<SharedBuffer>>,
    entry: &CompletionEntry,
) -> Result<(), LinkError> {
    for Piece { offset, length, memory: shared_buffer, .. } in data {
        let (remote_address, remote_key) = remote(command, offset);
        let source = Slice { shared_buffer, offset: 0, length };
        let work = Work::Write { source, remote_key, remote_address };
        post(rnic, queue_pair, SendRequest { id: 0, work, signaled: false })?;
    }
    let invalidate = match command.memory {
        HostMemory::Registered { key, invalidate: true, .. } => Some(key),
        _ => None,
    };
    let capsule = Capsule { id: 0, head: entry.as_bytes(), data: None, invalidate, signaled: true };
    rnic.post_capsule(queue_pair, capsule).map_err(refusal)
}

#[inline(always)]
fn post(rnic: &mut Rnic, queue_pair: QueuePairId, request: SendRequest) -> Result<(), LinkError> {
    rnic.post_send(queue_pair, request).map_err(refusal)
}

#[cold]
#[expect(clippy::needless_pass_by_value, reason = "what was refused ends here")]
fn refusal(error: PostError) -> LinkError {
    match error {
        // The room was checked before.
        PostError::Full(_) => unreachable!("the send queue is as deep as its room was counted"),
        PostError::Ended(_) => LinkError::Ended,
        PostError::NoReads(_) | PostError::Range(_) | PostError::Unregistered(_) => LinkError::Unreachable,
    }
}
