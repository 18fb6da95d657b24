//! The provider over libibverbs and librdmacm: cards for InfiniBand, RoCE and iWARP, and the kernel's software ones.
//!
//! - `sys`: the two libraries, behind types that own what they name. All calls are there.
//! - `device`: one core's provider, and its interface to the rest.
//! - `queue_pairs`: the queue pairs of a core, and what of its devices they use.
//! - `adapter`: what a core has on one RDMA device: two completion queues and the channel that wakes the core.
//!   `adapters`, all of them.
//! - `domain`: a protection domain on a device: registered pools, shared receives, memory windows.
//! - `exposure`: memory that a peer may reach, and how that ends.
//! - `connection`: a queue pair and its phases. `send_queue`: what is posted to it; `posted`, the requests themselves.
//! - `life`: from a queue pair's making on a device to its end.
//! - `events`: what connection managers report; `completions`, what devices say of requests that are over.
//! - `listener`: listeners, and requests that wait for an answer.
//! - `numbers`: how queue pairs are found by their numbers.
//! - `watch`: what a device reports of its own accord, from a thread of its own.
//! - `removal`: devices that go away, and come back.
//! - `devices`: the devices of this machine, for people.
//!
//! The completion queues are polled while they are busy. Before the core sleeps the queue of receives is armed, and the
//! channel is polled through the core's ring, as is the channel with the events of connections. The queue of what was
//! sent is armed only when somebody waits for it: a READ, or much memory. A few responses whose completions nobody
//! needs would otherwise wake the core once for each.
#![allow(unsafe_code, reason = "the boundary to two C libraries; every block is argued")]

mod adapter;
mod adapters;
mod completions;
mod connection;
mod device;
pub(crate) mod devices;
mod domain;
mod events;
mod exposure;
mod life;
mod listener;
mod numbers;
mod posted;
mod queue_pairs;
mod removal;
mod send_queue;
mod sys;
mod watch;

pub(crate) use device::Device;
pub(crate) use listener::PendingAccept;

/// What an operation of the reactor was started for: the `kind` of its token. Those of the software RNIC are smaller.
pub(crate) mod kind {
    /// The first of them.
    pub(crate) const FIRST: u8 = 64;
    /// The channel with the events of connections is readable.
    pub(super) const CONNECTIONS: u8 = FIRST;
    /// The channel of an adapter's completion queue is readable.
    pub(super) const COMPLETIONS: u8 = FIRST + 1;
    /// A queue pair's phase took too long.
    pub(super) const TIMER: u8 = FIRST + 2;
    /// Completions that notify nobody are due.
    pub(super) const REAP: u8 = FIRST + 3;
    /// Listeners look for the return of their device.
    pub(super) const RETURN: u8 = FIRST + 4;
}
