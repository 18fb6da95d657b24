//! Queues whose host has yet to prove who it is.
//!
//! An admin queue has a controller, which counts as nobody's until then. An I/O queue has no identifier: whoever proves
//! first who it is gets that. So a stranger, who may know all that a Connect has to say, keeps nobody out. It is a
//! candidate if it comes from where the controller's host is. There may be one for each identifier, and it counts as
//! one of that host's connections. All others count among those without a Connect.

use std::net::IpAddr;
use std::sync::Arc;

use ringfab_auth::Authenticated;
use ringfab_fabric::network_of;

use super::Controller;

/// The host of a controller has proved on its admin queue who it is. Its queue counts as one of that host's from now
/// on.
pub(crate) fn proved(controller: &Controller, authenticated: Authenticated) {
    let mut state = controller.state();
    state.authenticated = Some(authenticated);
    if std::mem::take(&mut state.awaits_proof) {
        for queue in state.queues.iter() {
            let (queue, host) = (Arc::clone(queue), &controller.host().nqn);
            controller.subsystem().queue_connected(queue, host, controller.created());
        }
    }
}

/// The place of an I/O queue among those of a host that has proved on its admin queue who it is, until this is dropped.
#[derive(Debug)]
pub(crate) struct Candidate {
    controller: Arc<Controller>,
    queue_id: u16,
}

impl Candidate {
    /// The place of a queue that was connected from an address, unless another one has it.
    pub(crate) fn new(controller: &Arc<Controller>, queue_id: u16, address: IpAddr) -> Option<Self> {
        if network_of(address) != network_of(controller.address()) {
            return None;
        }
        let mut state = controller.state();
        let is_free = state.authenticated.is_some() && state.queues.add_candidate(queue_id);
        is_free.then(|| Self { controller: Arc::clone(controller), queue_id })
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        self.controller.state().queues.remove_candidate(self.queue_id);
    }
}
