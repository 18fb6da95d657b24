//! How a queue's capsules and data move. A transport moves bytes and nothing else: the life of a request is
//! the queue's.

pub(crate) mod rdma;
