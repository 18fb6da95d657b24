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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::queue_record::QueueParameters;

    fn record(id: u16, core: usize) -> Arc<QueueRecord> {
        let listener = "192.0.2.1:4420".parse().unwrap();
        let peer = "192.0.2.2:40000".parse().unwrap();
        Arc::new(QueueRecord::new(QueueParameters {
            id,
            entries: 32,
            flow_control: true,
            core,
            listener,
            peer,
            host_id: [9; 16],
            protected_by: None,
        }))
    }

    #[test]
    fn the_admin_queue_is_the_first_and_no_io_queue() {
        let mut queues = ConnectedQueues::default();
        let (io, admin) = (record(1, 3), record(0, 0));
        queues.join(&io);
        assert!(queues.admin().is_none());
        queues.join(&admin);
        assert_eq!(queues.iter().map(|queue| queue.id()).collect::<Vec<_>>(), [0, 1]);
        assert_eq!((queues.io_count(), queues.io_joined(), queues.core_of(1)), (1, 1, Some(3)));
        queues.end_admin();
        assert!(queues.admin().is_none() && !queues.has(0) && queues.has(1));
        assert_eq!(queues.io_count(), 1);
    }

    #[test]
    fn a_queue_that_leaves_late_does_not_take_its_successor_along() {
        let mut queues = ConnectedQueues::default();
        let (first, second) = (record(1, 0), record(1, 1));
        queues.join(&first);
        queues.leave(&first);
        queues.join(&second);
        queues.leave(&first);
        assert_eq!((queues.core_of(1), queues.io_joined()), (Some(1), 2));
        assert_eq!(queues.take_all().count(), 1);
        assert_eq!(queues.io_count(), 0);
    }

    #[test]
    fn traffic_of_all_queues_counts_once() {
        let mut queues = ConnectedQueues::default();
        let (one, other) = (record(1, 0), record(2, 0));
        queues.join(&one);
        queues.join(&other);
        one.note_traffic();
        other.note_traffic();
        assert!(queues.take_traffic());
        assert!(!queues.take_traffic());
    }

    #[test]
    fn an_identifier_has_one_candidate_at_a_time() {
        let mut queues = ConnectedQueues::default();
        assert!(queues.add_candidate(1) && queues.add_candidate(2));
        assert!(!queues.add_candidate(1));
        queues.remove_candidate(1);
        assert!(queues.add_candidate(1));
    }
}
