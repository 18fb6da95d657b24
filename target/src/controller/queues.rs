//! The queues of a controller that are connected, by identifier. The admin queue is the first.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::Arc;

use crate::model::QueueRecord;

/// The connected queues of one controller.
#[derive(Debug, Default)]
pub(crate) struct ConnectedQueues {
    by_id: BTreeMap<u16, Arc<QueueRecord>>,
    /// The identifiers that a [`Candidate`](super::Candidate) has.
    candidates: BTreeSet<u16>,
    io_joined: u32,
}

impl ConnectedQueues {
    /// Takes a queue whose identifier is free.
    pub(crate) fn join(&mut self, queue: &Arc<QueueRecord>) {
        self.by_id.insert(queue.id(), Arc::clone(queue));
        self.io_joined += u32::from(queue.id() != 0);
    }

    /// A queue has left. Its identifier is free again, unless another queue has it.
    pub(crate) fn leave(&mut self, queue: &Arc<QueueRecord>) {
        if self.by_id.get(&queue.id()).is_some_and(|known| Arc::ptr_eq(known, queue)) {
            self.by_id.remove(&queue.id());
        }
    }

    /// The admin queue has ended.
    pub(crate) fn end_admin(&mut self) {
        self.by_id.remove(&0);
    }

    /// The admin queue.
    pub(crate) fn admin(&self) -> Option<&Arc<QueueRecord>> {
        self.by_id.get(&0)
    }

    /// All, the admin queue first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<QueueRecord>> {
        self.by_id.values()
    }

    /// Whether a queue is connected.
    pub(crate) fn has(&self, queue_id: u16) -> bool {
        self.by_id.contains_key(&queue_id)
    }

    /// How many I/O queues are connected now.
    pub(crate) fn io_count(&self) -> usize {
        self.by_id.len() - usize::from(self.has(0))
    }

    /// How many I/O queues have connected so far.
    pub(crate) fn io_joined(&self) -> u32 {
        self.io_joined
    }

    /// The core that serves a connected queue.
    pub(crate) fn core_of(&self, queue_id: u16) -> Option<usize> {
        self.by_id.get(&queue_id).map(|queue| queue.core())
    }

    /// Whether any of them had traffic since the last look. All flags are taken: traffic on one queue must not count
    /// again at the next look.
    pub(crate) fn take_traffic(&self) -> bool {
        self.iter().fold(false, |seen, queue| queue.take_traffic() | seen)
    }

    /// An identifier gets a candidate, unless it has one.
    pub(super) fn add_candidate(&mut self, queue_id: u16) -> bool {
        self.candidates.insert(queue_id)
    }

    /// An identifier has no candidate any more.
    pub(super) fn remove_candidate(&mut self, queue_id: u16) {
        self.candidates.remove(&queue_id);
    }

    /// All leave.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Arc<QueueRecord>> + use<> {
        mem::take(&mut self.by_id).into_values()
    }
}
