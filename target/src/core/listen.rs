//! From a connection request to a queue on the right core.

use ringfab_fabric::rdma::{ConnectRequest, ListenerId, QueuePairAttributes};
use ringfab_spec::{IntoBytes, rdma_cm};

use super::{Core, CoreMessage, Line};
use crate::queue::{Queue, QueueParameters};
use crate::transport::rdma::Link;

/// The most RDMA READs of one queue that are outstanding.
const INITIATOR_DEPTH: u16 = 64;

/// A listener of this core.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listener {
    pub(crate) id: ListenerId,
    pub(crate) in_capsule_bytes: u32,
    pub(crate) entries_max: u16,
    pub(crate) io_queues_max: u16,
}

impl Core {
    /// A connection request on a listener of this core: reads what the host wants and hands it to the core that
    /// shall serve it.
    pub(super) fn route(&mut self, request: ConnectRequest) {
        let Some(listener) = self.listeners.iter().find(|listener| listener.id == request.listener).copied()
        else {
            return;
        };
        match wanted_queue(&request.private_data, &listener) {
            Ok(queue) => {
                let core = self.core_for(queue.qid.get());
                let in_capsule_bytes = listener.in_capsule_bytes;
                let message = CoreMessage::Accept { request, queue, in_capsule_bytes };
                self.env.cores[core].send(message);
            }
            Err(status) => {
                tracing::warn!(peer = %request.peer, %status, "connection rejected");
                self.reject(request, status);
            }
        }
    }

    /// I/O queues spread over the cores by their identifier, so that the queues of one host use all of them.
    /// Admin queues do little and take turns.
    fn core_for(&mut self, queue_id: u16) -> usize {
        let cores = self.env.cores.len();
        if queue_id == 0 { self.env.target.next_admin_core(cores) } else { usize::from(queue_id - 1) % cores }
    }

    /// Serves a connection on this core.
    pub(super) fn accept(
        &mut self,
        request: ConnectRequest,
        queue: &rdma_cm::Request,
        in_capsule_bytes: u32,
    ) {
        let Some(number) = self.free_number().filter(|_| self.draining.is_none()) else {
            return self.reject(request, rdma_cm::RejectStatus::NO_RESOURCES);
        };
        let entries = queue.hsqsize_z.get().saturating_add(1);
        let (peer, listener) = (request.peer, request.local);
        let host = self.env.hosts.enter(peer.ip());
        let line = if queue.qid.get() == 0 { Line::Admin } else { Line::Io };
        let attributes = QueuePairAttributes {
            domain: self.env.domain,
            send_depth: Link::send_depth(entries),
            receive_depth: u32::from(entries),
            receive_bytes_max: 64 + in_capsule_bytes,
            pool: self.env.hosts.pool(host, line).clone(),
            initiator_depth: INITIATOR_DEPTH,
            responder_resources: 0,
        };
        let answer = rdma_cm::Accept::new(entries);
        let accepted = self.env.rnic.accept(&mut self.env.reactor, request, &attributes, answer.as_bytes());
        let queue_pair = match accepted {
            Ok(queue_pair) => queue_pair,
            Err(error) => {
                self.env.hosts.leave(host);
                return tracing::warn!(%peer, %error, "a connection could not be accepted");
            }
        };
        let id = queue.qid.get();
        let parameters = QueueParameters { number, queue_pair, id, entries, peer, listener, host };
        let queue = Queue::new(parameters, self.env.reactor.now());
        self.insert(number, queue);
    }

    fn insert(&mut self, number: u16, queue: Queue) {
        let index = queue.queue_pair().index as usize;
        if self.by_queue_pair.len() <= index {
            self.by_queue_pair.resize(index + 1, None);
        }
        self.by_queue_pair[index] = Some(number);
        self.queues[usize::from(number)] = Some(Box::new(queue));
        self.arm_housekeeping();
    }

    /// A free slot for a queue, in the table or at its end.
    fn free_number(&mut self) -> Option<u16> {
        if let Some(index) = self.queues.iter().position(Option::is_none) {
            return Some(index as u16);
        }
        let number = u16::try_from(self.queues.len()).ok()?;
        self.queues.push(None);
        Some(number)
    }

    fn reject(&mut self, request: ConnectRequest, status: rdma_cm::RejectStatus) {
        let answer = rdma_cm::Reject::new(status);
        self.env.rnic.reject(&mut self.env.reactor, request, answer.as_bytes());
    }
}

/// What the private data of a connection request asks for, if we can give it.
fn wanted_queue(private_data: &[u8], listener: &Listener) -> Result<rdma_cm::Request, rdma_cm::RejectStatus> {
    let queue = rdma_cm::Request::parse(private_data)?;
    if queue.qid.get() > listener.io_queues_max {
        return Err(rdma_cm::RejectStatus::INVALID_QID);
    }
    let (send_entries_z, receive_entries) = (queue.hsqsize_z.get(), queue.hrqsize.get());
    // HSQSIZE counts from zero; a queue has at least two entries. HRQSIZE must hold a response for each.
    if send_entries_z == 0 || send_entries_z >= listener.entries_max {
        return Err(rdma_cm::RejectStatus::INVALID_HSQSIZE);
    }
    if receive_entries < send_entries_z {
        return Err(rdma_cm::RejectStatus::INVALID_HRQSIZE);
    }
    Ok(queue)
}
