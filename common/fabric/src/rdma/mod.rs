//! The verbs-shaped interface: protection domains, memory regions, queue pairs, work requests, completions
//! and connection management with private data. One [`Rnic`] per core; nothing of it is shared.
//!
//! Rules of the house, which both providers keep:
//! - A work request owns its buffers from [`Rnic::post_send`] until its completion event.
//! - Work requests of a queue pair complete in the order in which they were posted.
//! - [`RnicEvent::Disconnected`] (or [`RnicEvent::ConnectFailed`], [`RnicEvent::Rejected`]) is the last event of a
//!   queue pair: before it, every outstanding work request came back as [`RnicEvent::Flushed`], and nothing of it is in
//!   flight any more.
//! - A peer reaches only what was exposed in the queue pair's protection domain, within its bounds and rights; on a
//!   verbs device without memory windows, the whole pools that something was exposed of.

#[cfg(feature = "verbs")]
pub mod devices;
mod event;
pub mod iwarp;
mod parameters;
mod provider;
mod rnic;
#[cfg(feature = "verbs")]
mod verbs;
mod work;

pub use crate::stream::DisconnectReason;
pub use event::{ConnectError, ConnectRequest, ReceivedHead, RnicEvent};
pub use parameters::{
    ConnectParameters, LinkProtocol, ListenParameters, ListenerId, ProviderChoice, QueuePairAttributes,
    RnicConfig, RnicCounters, UnknownProvider,
};
pub use rnic::Rnic;
pub use work::{
    Access, Capsule, Inline, PostError, ProtectionDomain, QueuePairId, RegionId, RemoteBuffer, Scope,
    SendRequest, Slice, Work,
};
