//! The TLS handshake of a stream, and what follows it. One record is sent or received at a time, and no byte of the
//! next one leaves the socket: that may be the kernel's.

use std::io;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use ringfab_reactor::{Reactor, TlsKeys, TlsRefusal};
use ringfab_tls::{IV_BYTES, SALT_BYTES, Session, TrafficKeys};

use super::life::{Phase, Stream};
use super::wire::{Step, Wire};
use super::{DisconnectReason, End, ProtectedBy, Protocol, Shared};

impl<P: Protocol> Stream<P> {
    /// Goes on with the handshake, when nothing is in flight.
    pub(super) fn secure(&mut self, shared: &mut Shared<P>, reactor: &mut Reactor) {
        while self.phase == Phase::Securing && !self.outbox.sending && !self.receiving {
            if self.wire.tls.is_none() {
                return self.open(shared, reactor);
            }
            if !self.ensure_receive(shared, reactor) {
                return;
            }
            let (Some(receive), Some(tls)) = (&mut self.staging.receive, &mut self.wire.tls) else { return };
            match tls.step(shared, &mut receive.staging_mut()[self.staging.unread.clone()]) {
                Step::Send(bytes) => {
                    let mut batch = shared.take_batch();
                    batch.push_bytes(&bytes);
                    self.send(shared, reactor, batch);
                }
                Step::Receive(length) => {
                    receive.set_target(None, self.staging.unread.end, self.staging.unread.end + length);
                    self.arm(shared, reactor);
                }
                Step::Consumed => self.staging.unread = 0..0,
                Step::Clear => self.wire.tls = None,
                Step::Complete => match protect(&mut self.wire, shared, reactor, self.origin.is_some()) {
                    Ok(()) => self.open(shared, reactor),
                    Err(error) => self.on_broken(shared, reactor, &error),
                },
                Step::Failed(reason) => self.fail_tls(shared, reactor, DisconnectReason::Insecure(reason)),
            }
        }
    }

    /// There is no TLS, or none any more: the peer is told so, if it shall be, and the connection ends.
    #[cold]
    pub(super) fn fail_tls(
        &mut self,
        shared: &mut Shared<P>,
        reactor: &mut Reactor,
        reason: DisconnectReason,
    ) {
        let is_handshake = self.phase == Phase::Securing;
        let reason = match reason {
            reason @ DisconnectReason::Insecure(_) => reason,
            // Somebody who looks who is here. Nobody has heard of it.
            reason if self.wire.tls.as_ref().is_some_and(|tls| tls.awaits_first_byte()) => {
                return self.close(shared, reactor, End::Disconnected(reason));
            }
            reason if is_handshake && self.origin.is_some() => {
                DisconnectReason::Insecure(format!("{reason} during the handshake"))
            }
            reason => DisconnectReason::Insecure(format!("{reason} during the handshake{HINT}")),
        };
        if !self.protocol.has_owner() {
            let (host, subsystem) = self.wire.names();
            tracing::warn!(peer = %self.addresses.1, host, subsystem, %reason, "connection ended");
        }
        let end = self.phase.end(reason);
        self.note_end(end);
        if let Some(tls) = &mut self.wire.tls {
            tls.fail();
        }
        self.terminate(shared, reactor);
    }
}

/// Why a controller may end a handshake without an alert.
const HINT: &str = ": TLS may be off there, or this host may have no key there";

/// The kernel has protected one direction of a connection and refused the other, which would be so the next time.
static IS_HALF: AtomicBool = AtomicBool::new(false);

/// Has the kernel protect what comes behind a handshake, or else this process.
fn protect<P: Protocol>(
    wire: &mut Wire,
    shared: &mut Shared<P>,
    reactor: &mut Reactor,
    exact: bool,
) -> io::Result<()> {
    let Some(tls) = &mut wire.tls else { return Ok(()) };
    let (session, role) = tls.session().map_err(io::Error::other)?;
    let by = if !shared.uses_kernel_tls() || reactor.is_simulated() || IS_HALF.load(Ordering::Relaxed) {
        ProtectedBy::Process
    } else {
        protect_in_kernel(wire, reactor, &session)?
    };
    if let Some(tls) = &mut wire.tls {
        tls.protect(shared, session, role, by, exact);
    }
    Ok(())
}

fn protect_in_kernel(wire: &mut Wire, reactor: &mut Reactor, session: &Session) -> io::Result<ProtectedBy> {
    static TOLD: [Once; 2] = [const { Once::new() }; 2];
    let Some(socket) = wire.socket.take() else { return Err(io::ErrorKind::NotConnected.into()) };
    let mut socket = reactor.detach_socket(socket);
    let result = socket.protect(&keys(&session.send), &keys(&session.receive));
    wire.socket = Some(reactor.attach_socket(socket)?);
    match result {
        Ok(()) => {
            TOLD[0].call_once(|| tracing::info!("the kernel protects connections over TLS"));
            Ok(ProtectedBy::Kernel)
        }
        Err(TlsRefusal::Unavailable(error)) => {
            TOLD[1].call_once(|| {
                tracing::info!(%error, "this process protects connections over TLS, since the kernel does not");
            });
            Ok(ProtectedBy::Process)
        }
        Err(TlsRefusal::Half(error)) => {
            IS_HALF.store(true, Ordering::Relaxed);
            let what =
                "the kernel protects only one direction of TLS, so that this process will do it from now on";
            Err(io::Error::new(error.kind(), format!("{what}: {error}")))
        }
    }
}

fn keys(keys: &TrafficKeys) -> TlsKeys<'_> {
    let mut iv = [0; SALT_BYTES + IV_BYTES];
    iv[..SALT_BYTES].copy_from_slice(keys.salt());
    iv[SALT_BYTES..].copy_from_slice(keys.iv());
    TlsKeys { key: keys.key(), iv, sequence: u64::from_be_bytes(keys.sequence()) }
}
