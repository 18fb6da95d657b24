//! The log lines of a queue. Each line names the host, its address, and the subsystem that it uses.

use std::mem;
use std::net::SocketAddr;

use ringfab_auth::{Authenticated, KeyFingerprint, TlsPsk};
use ringfab_spec::log::ControllerInstance;
use ringfab_spec::{AdminOpcode, IoOpcode, Status, SubmissionEntry};

use super::attachment::Attachment;
use super::connection::Connection;
use super::early::EARLY_MAX;
use crate::config::Until;
use crate::controller::Controller;
use crate::target::{ConnectRequest, Refusal};
use crate::transport::Disconnection;
use crate::worker::WorkError;

impl Connection {
    /// A host has a controller, or one more queue of it.
    pub(super) fn log_connected(&self, controller: &Controller, entries: u32) {
        let (host, subsystem) = names(controller);
        let (peer, tls) = (self.peer, controller.host().tls.as_ref());
        let controller = controller.id();
        if self.id == 0 {
            let tls = tls.map(|tls| tls.to_string());
            tracing::info!(%peer, host, subsystem, controller, entries, tls, "connected");
        } else {
            tracing::debug!(%peer, host, subsystem, controller, queue = self.id, entries, "I/O queue connected");
        }
    }

    /// A command has failed.
    pub(super) fn log_failed(&self, command: &SubmissionEntry, status: Status) {
        if !tracing::enabled!(tracing::Level::DEBUG) {
            return;
        }
        let (peer, queue, cid, nsid) = (self.peer, self.id, command.cid.get(), command.nsid.get());
        let command = self.name_of(command);
        match self.controller() {
            Some(controller) => {
                let (host, subsystem) = names(controller);
                let controller = controller.id();
                tracing::debug!(
                    %peer, host, subsystem, controller, queue, command, cid, nsid, %status,
                    "command failed"
                );
            }
            None => tracing::debug!(%peer, queue, command, cid, %status, "command failed before Connect"),
        }
    }

    /// The host broke the protocol in a way that no status can tell it.
    pub(super) fn log_violation(&self, what: &str) {
        let (peer, queue) = (self.peer, self.id);
        match self.controller() {
            Some(controller) => {
                let (host, subsystem) = names(controller);
                tracing::warn!(%peer, host, subsystem, queue, "protocol violation: {what}");
            }
            None => tracing::warn!(%peer, queue, "protocol violation: {what}"),
        }
    }

    /// The host does nothing any more: once, however many of its queues wait for it.
    pub(super) fn log_stalled(&self) {
        let what = "the host neither receives nor sends data";
        let told = self
            .controller()
            .filter(|_| self.has_joined())
            .is_some_and(|one| mem::replace(&mut one.state().stall_is_told, true));
        if told {
            tracing::debug!(peer = %self.peer, queue = self.id, "protocol violation: {what}");
        } else {
            self.log_violation(what);
        }
    }

    /// Its connection has gone. `has_left`: nobody has wanted that here. `is_idle`: nothing was outstanding.
    pub(super) fn log_disconnected(&self, disconnection: Disconnection<'_>, has_left: bool, is_idle: bool) {
        let (peer, queue, why) = (self.peer, self.id, disconnection.why);
        let Some(Attachment { controller, .. }) = &self.attached else {
            if disconnection.broken {
                tracing::warn!(%peer, queue, why, "the connection has ended");
            } else {
                tracing::debug!(%peer, queue, why, "the connection has ended before Connect");
            }
            return;
        };
        let (host, subsystem) = names(controller);
        let id = controller.id();
        let awaits_proof = self.authentication.as_deref().filter(|one| !one.is_proved());
        if let Some(awaited) = awaits_proof.filter(|_| !disconnection.broken) {
            if has_left && awaited.only_makes_key() {
                tracing::warn!(%peer, host, subsystem, queue, why = NO_TLS, end = why, "not over TLS");
            } else if has_left {
                tracing::warn!(%peer, host, subsystem, queue, why = NO_PROOF, end = why, "not authenticated");
            } else {
                tracing::debug!(%peer, host, subsystem, queue, why, "disconnected without authentication");
            }
            return;
        }
        let (is_left, end_is_told) = {
            let mut state = controller.state();
            let end_is_told = state.end_is_told;
            // With its admin queue the controller ends.
            state.end_is_told |= queue == 0;
            (state.registers.is_left(), end_is_told)
        };
        if disconnection.truncated {
            tracing::debug!(%peer, queue, is_left, is_idle, "there was no close_notify");
        }
        let is_cut = disconnection.truncated && matters(queue, is_left, is_idle);
        let cut_is_told =
            is_cut && self.has_joined() && mem::replace(&mut controller.state().cut_is_told, true);
        if disconnection.broken || is_cut && queue != 0 && !cut_is_told {
            tracing::warn!(%peer, host, subsystem, controller = id, queue, why, "the connection has ended");
        } else if queue == 0 && !end_is_told {
            let io_queues = controller.state().queues.io_joined();
            let why = if disconnection.truncated && !is_cut { LEFT } else { why };
            tracing::info!(%peer, host, subsystem, controller = id, io_queues, why, "disconnected");
        } else {
            tracing::debug!(%peer, host, subsystem, controller = id, queue, why, "queue disconnected");
        }
    }

    fn name_of(&self, command: &SubmissionEntry) -> String {
        match self.id {
            _ if command.is_fabrics() => command.fabrics_type().to_string(),
            0 => AdminOpcode(command.opcode).to_string(),
            _ => IoOpcode(command.opcode).to_string(),
        }
    }
}

/// What is said of a host that goes once it is asked to authenticate, as those do that have no key.
const NO_PROOF: &str = "the host was asked to authenticate and has left without doing so: it may have no key";

/// The same where the subsystem requires TLS, and the host came in clear text. It could have had authentication make a
/// key for TLS, so it was asked for that; its own key would have done.
const NO_TLS: &str = "the subsystem requires TLS, and the host came in clear text: it has not used its tls_key \
                      (ringfab: --tls-key, Linux: nvme connect --tls), nor had authentication make a key (--concat)";

/// What is said of a host that has shut its controller down, or disabled it, and then ends the connection without
/// TLS's close_notify, as Linux hosts do.
const LEFT: &str = "the host has left";

/// Whether it matters that a stream has ended without TLS's close_notify: whoever cuts it off then keeps something
/// back. `is_left`: the host has shut its controller down, or disabled it; before that, it may leave idle I/O queues.
const fn matters(queue: u16, is_left: bool, is_idle: bool) -> bool {
    !is_left && (queue == 0 || !is_idle)
}

/// A host has sent more commands than anybody needs who only wants to be let in.
pub(super) fn too_many_commands(connection: &Connection) {
    let (peer, queue) = (connection.peer, connection.id);
    match connection.controller() {
        Some(controller) => {
            let (host, subsystem) = names(controller);
            let why = format!("the host has sent {EARLY_MAX} commands, and has not authenticated by them");
            tracing::warn!(%peer, host, subsystem, queue, why, "not authenticated");
        }
        None => tracing::warn!(%peer, queue, "no Connect among {EARLY_MAX} commands that has succeeded"),
    }
}

/// A Connect was refused.
pub(super) fn refused(request: &ConnectRequest<'_>, refusal: &Refusal<'_>) {
    tracing::warn!(
        peer = %request.peer,
        host = refusal.host(),
        subsystem = refusal.subsystem(),
        queue = request.queue_id,
        reason = %refusal,
        "Connect refused"
    );
}

/// A host's controller has been silent for too long.
pub(crate) fn keep_alive_expired(controller: &Controller) {
    controller.state().end_is_told = true;
    let (host, subsystem) = names(controller);
    let peer = controller.state().queues.admin().map(|admin| admin.peer().to_string());
    tracing::warn!(
        peer,
        host,
        subsystem,
        controller = controller.id(),
        "keep-alive expired: the host is given up"
    );
}

/// A host has gone from an I/O queue with commands outstanding, and from its controller with that: once, however many
/// queues it has gone from.
pub(super) fn io_queue_lost(controller: &Controller, queue: u16) {
    if mem::replace(&mut controller.state().end_is_told, true) {
        return;
    }
    let ((host, subsystem), peer) = (names(controller), controller.address());
    tracing::warn!(
        %peer, host, subsystem, controller = controller.id(), queue,
        "controller ended: the connection of an I/O queue was lost with commands outstanding"
    );
}

/// A host has another controller of its own end this one.
pub(super) fn reset_by_another(controller: &Controller, asker: &Controller) {
    controller.state().end_is_told = true;
    let ((host, subsystem), peer) = (names(controller), controller.address());
    tracing::warn!(
        %peer, host, subsystem, controller = controller.id(), asked_by = asker.id(), asked_from = %asker.address(),
        "controller ended: its host has asked for that (Cross-Controller Reset)"
    );
}

/// Nothing of such a controller can be executed any more, which its host is told now.
pub(super) fn reset_is_over(asker: &Controller, impacted: ControllerInstance) {
    let (host, subsystem) = names(asker);
    tracing::info!(
        host,
        subsystem,
        controller = impacted.cntlid,
        asked_by = asker.id(),
        "nothing is left of a controller that its host had ended"
    );
}

/// What a host has written may be lost.
pub(super) fn shutdown_failed(controller: &Controller) {
    let ((host, subsystem), peer) = (names(controller), controller.address());
    tracing::error!(%peer, host, subsystem, controller = controller.id(), "shutdown: a disk could not be flushed");
}

/// A host resets or shuts down its controller.
pub(super) fn controller(controller: &Controller, what: &'static str) {
    let ((host, subsystem), peer) = (names(controller), controller.address());
    tracing::info!(%peer, host, subsystem, controller = controller.id(), "{what}");
}

/// A host has proved who it is.
pub(super) fn authenticated(
    controller: &Controller,
    peer: SocketAddr,
    queue: u16,
    authenticated: &Authenticated,
    psk: Option<&TlsPsk>,
) {
    let (host, subsystem) = names(controller);
    let Authenticated { hash, group, controller_too, .. } = authenticated;
    let controller = controller.id();
    if let Some(psk) = psk {
        let both_ways = controller_too;
        tracing::info!(
            %peer, host, subsystem, controller, %hash, %group, both_ways, suite = %psk.suite(),
            "authenticated, and made a key for TLS"
        );
    } else if queue == 0 {
        tracing::info!(%peer, host, subsystem, controller, %hash, %group, both_ways = controller_too, "authenticated");
    } else {
        tracing::debug!(%peer, host, subsystem, controller, queue, %hash, %group, "I/O queue authenticated");
    }
}

/// A host has shown the key that it had before.
pub(super) fn old_key(controller: &Controller, key: KeyFingerprint, until: Option<Until>) {
    let (host, subsystem) = names(controller);
    let ends = until.map_or_else(|| "when it is taken away".to_owned(), |until| until.to_string());
    tracing::info!(
        host, subsystem, controller = controller.id(), %key, ends,
        "the host still has its old key: give it the new one"
    );
}

/// A host has done so again.
pub(super) fn authenticated_again(controller: &Controller, queue: u16) {
    let (host, subsystem) = names(controller);
    tracing::debug!(host, subsystem, controller = controller.id(), queue, "authenticated again");
}

/// A host could not prove who it is, or has not found us to be who it wants.
pub(super) fn not_authenticated(
    controller: &Controller,
    peer: SocketAddr,
    queue: u16,
    why: &ringfab_auth::Refusal,
) {
    let (host, subsystem) = names(controller);
    tracing::warn!(%peer, host, subsystem, queue, %why, "not authenticated");
}

/// A worker did not do what an admin command asks for.
pub(super) fn admin_failed(controller: &Controller, error: &WorkError) {
    let ((host, subsystem), peer) = (names(controller), controller.address());
    tracing::warn!(%peer, host, subsystem, controller = controller.id(), %error, "an admin command has failed");
}

/// What proves who a host is could not be computed.
pub(super) fn cannot_authenticate(controller: &Controller, peer: SocketAddr, queue: u16, error: &WorkError) {
    let (host, subsystem) = names(controller);
    tracing::warn!(%peer, host, subsystem, queue, %error, "a host cannot be authenticated");
}

/// A host has proved who it is on a queue that its controller does not take any more.
pub(super) fn is_too_late(controller: &Controller, peer: SocketAddr, queue: u16) {
    let (host, subsystem) = names(controller);
    let why = "meanwhile another connection has become this queue, or the controller was reset";
    tracing::warn!(%peer, host, subsystem, controller = controller.id(), queue, why, "not authenticated in time");
}

/// A host takes too long.
pub(super) fn authentication_overdue(connection: &Connection) {
    let (peer, queue) = (connection.peer, connection.id);
    if let Some(controller) = connection.controller() {
        let (host, subsystem) = names(controller);
        tracing::warn!(%peer, host, subsystem, queue, "not authenticated in time");
    }
}

fn names(controller: &Controller) -> (&str, &str) {
    (&controller.host().nqn, controller.subsystem().nqn())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_that_was_cut_off_matters_until_the_host_has_left() {
        // A queue, whether the host has left, whether nothing is outstanding.
        let rows = [
            ((0, false, true), true),
            ((0, true, true), false),
            // Requests for asynchronous events wait as long as the controller is there.
            ((0, true, false), false),
            ((3, false, true), false),
            ((3, false, false), true),
            ((3, true, false), false),
        ];
        for ((queue, is_left, is_idle), expected) in rows {
            assert_eq!(matters(queue, is_left, is_idle), expected, "{queue} {is_left} {is_idle}");
        }
    }
}
