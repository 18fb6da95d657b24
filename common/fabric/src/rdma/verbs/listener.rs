//! Listeners, and requests that wait for an answer.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use super::device::Device;
use super::devices;
use super::sys::{CmId, EventChannel};
use crate::rdma::LinkProtocol;

/// A listening identifier.
#[derive(Debug)]
pub(super) struct Listener {
    /// Dropping it stops listening. There is none while the device of the address is gone.
    pub(super) cm: Option<CmId>,
    pub(super) address: SocketAddr,
    /// Connection requests that may wait.
    pub(super) backlog: u32,
}

/// An identifier that listens.
pub(super) fn listen(channel: &Arc<EventChannel>, address: SocketAddr, backlog: u32) -> io::Result<CmId> {
    let cm = CmId::new(channel)?;
    cm.bind(address)?;
    cm.listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
    Ok(cm)
}

/// What a listener speaks; `None` for one that is bound to no device.
pub(crate) fn link_protocol(device: &Device, listener: u32) -> Option<LinkProtocol> {
    let key = device.listeners.keys().into_iter().find(|key| key.index == listener)?;
    let cm = device.listeners.get(key)?.cm.as_ref()?;
    devices::link_protocol(cm.context()?, cm.port())
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
