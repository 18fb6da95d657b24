//! Listeners, and requests that wait for an answer.

use std::net::SocketAddr;

use super::sys::CmId;

/// A listening identifier.
#[derive(Debug)]
pub(super) struct Listener {
    /// Kept: dropping it stops listening.
    pub(super) _cm: CmId,
    pub(super) address: SocketAddr,
}

/// A connection request. It may travel to another core; dropping it refuses the connection.
#[derive(Debug)]
pub(crate) struct PendingAccept {
    pub(super) cm: CmId,
    /// READs that the peer lets us have outstanding.
    pub(super) initiator_depth: u8,
}

impl PendingAccept {
    /// Refuses it and tells the peer why.
    pub(crate) fn reject(&self, private_data: &[u8]) {
        if let Err(error) = self.cm.reject(private_data) {
            tracing::debug!(%error, "a rejection could not be sent");
        }
    }
}

/// The bit that tells what events of a listener bear from what those of a queue pair do.
const LISTENER: u64 = 1 << 63;

/// What events of a listener bear.
pub(super) fn context(index: u32) -> u64 {
    LISTENER | u64::from(index)
}

/// The listener of an event, unless it is of a queue pair.
pub(super) fn listener_of(context: u64) -> Option<u32> {
    (context & LISTENER != 0).then_some(context as u32)
}
