//! What a request is called outside its queue.

/// Names a request among those of all queues of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestId {
    /// Position of its queue in the core's table.
    pub(crate) queue: u16,
    /// Its slot in the queue's table.
    pub(crate) slot: u16,
    /// Which life of the slot.
    pub(crate) generation: u16,
}

/// Names a request among those of all cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CoreRequestId {
    pub(crate) core: usize,
    pub(crate) request: RequestId,
}
