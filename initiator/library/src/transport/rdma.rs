//! NVMe/RDMA, the host's end of one queue (RDMA Transport 1.0), written against the verbs-shaped interface only.
//!
//! A command is one SEND: 64 bytes, followed by the data of a short write. Longer data is exposed to the controller for
//! this command only, under a key that ends with the answer. We ask the controller to invalidate the key with its
//! response (SEND with Invalidate), and revoke the key if the controller does not.

use std::io;

use ringfab_fabric::rdma::{
    Access, Capsule, ConnectError, ConnectParameters, PostError, QueuePairAttributes, QueuePairId, Rnic,
    RnicEvent, Slice,
};
use ringfab_reactor::Reactor;
use ringfab_spec::{CompletionEntry, FromBytes, IntoBytes};

use super::{Arrival, Connect, ConnectionEvent, Endpoint, NotSent, TransportHandler};
use crate::command::{Command, Direction};
use crate::error::{Cause, Step};
use crate::wire::{self, answers};

/// The RDMA queue pair of an NVMe queue.
#[derive(Debug)]
pub(crate) struct RdmaQueue {
    queue_pair: QueuePairId,
    /// Data of a command that travel in its capsule, in bytes at most; zero for none.
    in_capsule_bytes_max: u32,
}

/// Reports what the RNIC has reported. A response is looked at where it lies.
#[inline]
pub(crate) fn report(event: &mut Option<RnicEvent>, to: &mut impl TransportHandler) {
    if let Some(RnicEvent::Received { queue_pair, head, data, invalidated }) = event {
        let entry = CompletionEntry::ref_from_bytes(head.as_slice()).ok().filter(|_| data.is_none());
        // How much of its data a controller has written, nobody says.
        let arrival = Arrival { invalidated: *invalidated, received: None };
        to.on_response(Endpoint::Rdma(*queue_pair), entry, arrival);
    } else if let Some(event) = event.take() {
        report_rest(event, to);
    }
}

fn report_rest(event: RnicEvent, to: &mut impl TransportHandler) {
    match event {
        RnicEvent::Established { queue_pair, private_data } => {
            let credits = answers::accept_queue_size(&private_data);
            to.on_event(Endpoint::Rdma(queue_pair), ConnectionEvent::Established { credits });
        }
        RnicEvent::Rejected { queue_pair, private_data } => {
            to.on_event(
                Endpoint::Rdma(queue_pair),
                ConnectionEvent::Rejected(answers::reject_text(&private_data)),
            );
        }
        RnicEvent::ConnectFailed { queue_pair, error } => {
            to.on_event(Endpoint::Rdma(queue_pair), failed(&error));
        }
        RnicEvent::Disconnected { queue_pair, reason } => {
            to.on_event(Endpoint::Rdma(queue_pair), ConnectionEvent::Disconnected(reason));
        }
        // Responses are told where they lie. Capsules hold nothing that a flush would have to give back: commands keep
        // their memory themselves.
        RnicEvent::Received { .. }
        | RnicEvent::Sent { .. }
        | RnicEvent::Read { .. }
        | RnicEvent::Flushed { .. }
        | RnicEvent::ConnectRequest(_) => {}
    }
}

fn failed(error: &ConnectError) -> ConnectionEvent {
    let step = match error {
        ConnectError::Connect(_) | ConnectError::TimedOut { step: "resolve" | "connect", .. } => {
            Step::Connect
        }
        _ => Step::Mpa,
    };
    if let ConnectError::MpaEnded(what) = error {
        return ConnectionEvent::ConnectFailed { step, cause: Cause::Unanswered(what.clone()) };
    }
    // The step is shown anyway, so its name in front of the text is cut.
    let text = error.to_string();
    let text = text.strip_prefix("connect: ").or_else(|| text.strip_prefix("MPA: ")).unwrap_or(&text);
    ConnectionEvent::ConnectFailed { step, cause: Cause::Fabric(text.to_owned()) }
}

impl RdmaQueue {
    /// Starts to connect.
    ///
    /// # Errors
    /// When the RNIC has no queue pair left or the system no socket.
    pub(super) fn connect(rnic: &mut Rnic, reactor: &mut Reactor, to: &Connect<'_>) -> io::Result<Self> {
        let size = u32::from(to.size);
        let attributes = QueuePairAttributes {
            domain: to.domain,
            // A send may complete after its response has arrived, so its slot can be needed a second time.
            send_depth: 2 * size,
            receive_depth: u32::from(responses(to.size)) + 1,
            receive_bytes_max: wire::RESPONSE_BYTES as u32,
            pool: to.pool.clone(),
            initiator_depth: 0,
            responder_resources: to.size.min(READS_MAX),
        };
        let private_data = wire::cm_request(to.qid, to.size, responses(to.size));
        let parameters = ConnectParameters {
            address: to.address,
            provider: to.url.rdma.provider,
            attributes,
            private_data: private_data.as_bytes(),
            timeout: to.timeout,
            socket: to.socket_options(),
        };
        let queue_pair = rnic.connect(reactor, &parameters)?;
        Ok(Self { queue_pair, in_capsule_bytes_max: 0 })
    }

    /// The queue pair, by which its events are told from others.
    pub(super) fn queue_pair(&self) -> QueuePairId {
        self.queue_pair
    }

    /// Lets short writes travel in the capsule.
    pub(super) fn set_in_capsule(&mut self, bytes_max: u32) {
        self.in_capsule_bytes_max = bytes_max;
    }

    /// Sends a command under an identifier. On an error nothing of it is exposed or in flight.
    pub(super) fn send(&self, rnic: &mut Rnic, command: &mut Command, cid: u16) -> Result<(), NotSent> {
        wire::set_identifier(&mut command.entry, cid);
        let data = self.attach_data(rnic, command)?;
        let (id, head) = (u64::from(cid), command.entry.as_bytes());
        let capsule = Capsule { id, head, data, invalidate: None, signaled: false };
        rnic.post_capsule(self.queue_pair, capsule).map_err(|error| {
            Self::withdraw(rnic, command);
            match error {
                PostError::Full(_) => NotSent::Busy,
                PostError::Ended(_)
                | PostError::NoReads(_)
                | PostError::Range(_)
                | PostError::Unregistered(_) => NotSent::Ended,
            }
        })
    }

    /// Takes the memory of an answered command back. The response may have come with an invalidation by our RNIC at
    /// the controller's word, which must be that of this command's key: of another key it would have taken the
    /// memory of a command in flight.
    ///
    /// Returns whether it was right.
    #[must_use]
    pub(super) fn reclaim(rnic: &mut Rnic, command: &mut Command, invalidated: Option<u32>) -> bool {
        let right = invalidated.is_none() || invalidated == command.exposed.map(|exposed| exposed.key);
        Self::withdraw(rnic, command);
        right
    }

    /// Ends the controller's access to the command's memory.
    pub(super) fn withdraw(rnic: &mut Rnic, command: &mut Command) {
        if let Some(exposed) = command.exposed.take() {
            command.memory = rnic.revoke(exposed.region);
        }
    }

    /// Gives the controller the right to send one more response.
    pub(super) fn replenish(&self, rnic: &mut Rnic) {
        rnic.post_receive(self.queue_pair, 1);
    }

    /// Fills in the data pointer: nothing, in-capsule data, or a region exposed for this command.
    fn attach_data(&self, rnic: &mut Rnic, command: &mut Command) -> Result<Option<Slice>, NotSent> {
        let (offset, length) = (command.offset, command.length);
        let Some(shared_buffer) = command.memory.take() else {
            wire::set_no_data(&mut command.entry);
            return Ok(None);
        };
        if command.direction == Direction::ToController && length <= self.in_capsule_bytes_max {
            wire::set_in_capsule_data(&mut command.entry, length);
            let slice = Slice { shared_buffer: shared_buffer.clone(), offset, length };
            command.memory = Some(shared_buffer);
            return Ok(Some(slice));
        }
        let access = match command.direction {
            Direction::ToHost | Direction::AllocatedToHost => Access::RemoteWrite,
            _ => Access::RemoteRead,
        };
        let Some(exposed) = rnic.expose(self.queue_pair, shared_buffer.clone(), offset, length, access)
        else {
            command.memory = Some(shared_buffer);
            return Err(NotSent::Busy);
        };
        command.exposed = Some(exposed);
        wire::set_keyed_data(&mut command.entry, &exposed);
        Ok(None)
    }
}

/// Responses that we can receive on a queue of `size` entries (HRQSIZE). A controller may take that for the size of its
/// own send queue, and Linux's does: when one command needs more work requests than that, it waits for them for ever,
/// and so does whoever ends the controller. Over siw, a read of 1 MiB needs 44 where 4 are counted for each response.
/// Hosts that offer no less than 16, as Linux's does, never meet this.
fn responses(size: u16) -> u16 {
    const RESPONSES_MIN: u16 = 16;
    size.max(RESPONSES_MIN)
}

/// RDMA READs that a controller may have outstanding on one queue (IRD).
const READS_MAX: u16 = 128;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_queue_offers_room_for_more_responses_than_it_needs() {
        assert_eq!([2, 9, 15, 16, 17, 1025].map(responses), [16, 16, 16, 16, 17, 1025]);
    }
}
