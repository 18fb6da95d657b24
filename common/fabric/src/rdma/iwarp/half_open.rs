//! Connections without a queue pair: an accepted socket until its MPA request is complete, and a socket that delivers a
//! rejection.

use std::net::SocketAddr;
use std::ops::Range;

use bytes::Bytes;
use ringfab_memory::SharedBuffer;
use ringfab_proto::iwarp::mpa::{MpaConfig, MpaError, Responder};
use ringfab_reactor::{DetachedSocket, Reactor};

use crate::rdma::{ConnectRequest, DisconnectReason, ListenerId, RnicEvent};
use crate::stream::{self, End, Fault, Gather, Protocol, ReceiveTarget, Shared};
use crate::table::Key;

/// An accepted socket after the peer's MPA request. It may travel to another core.
#[derive(Debug)]
pub(crate) struct PendingAccept {
    pub(super) socket: DetachedSocket,
    /// The two ends (local, peer).
    pub(super) addresses: (SocketAddr, SocketAddr),
    pub(super) responder: Responder,
    /// The bytes of the request, for a capture.
    pub(super) request: Vec<u8>,
}

/// A connection that is no queue pair, yet or ever.
#[derive(Debug)]
pub(super) enum HalfOpen {
    /// The peer's request, as far as it has come.
    Request(Request),
    /// Our refusal, until it is gathered.
    Rejection(Option<Vec<u8>>),
}

#[derive(Debug)]
pub(super) struct Request {
    responder: Responder,
    bytes: Vec<u8>,
    complete: bool,
}

impl Request {
    /// Takes bytes of it. On an error there is an answer to the peer, if it deserves one.
    fn take(&mut self, bytes: &[u8]) -> Result<(), (Option<Vec<u8>>, String)> {
        let received = self.responder.receive(bytes);
        let (consumed, complete) =
            received.map_err(|error| (self.refusal(error), format!("bad MPA request: {error}")))?;
        if consumed < bytes.len() {
            return Err((None, "bytes follow an MPA request before its reply".to_owned()));
        }
        self.bytes.extend_from_slice(bytes);
        self.complete = complete;
        Ok(())
    }

    /// A peer that speaks MPA but asks for what we cannot do is told so.
    fn refusal(&self, error: MpaError) -> Option<Vec<u8>> {
        let spoke_mpa = matches!(
            error,
            MpaError::Revision(_) | MpaError::Markers | MpaError::EnhancedLen(_) | MpaError::NoMatchingReady
        );
        self.responder.reject(&[]).ok().filter(|_| spoke_mpa)
    }
}

impl Protocol for HalfOpen {
    type Core = ();
    type Event = RnicEvent;
    type Terms = MpaConfig;

    /// Behind those of the queue pairs, on the same core.
    const KIND_FIRST: u8 = stream::KINDS;

    /// A request with the most private data, and a byte that must not follow it.
    const STAGING_BYTES: usize = 20 + 512 + 1;

    fn accepted(_: Key, mpa: MpaConfig) -> Self {
        let bytes = Vec::with_capacity(Self::STAGING_BYTES);
        Self::Request(Request { responder: Responder::new(mpa), bytes, complete: false })
    }

    /// A refusal is all that there is to agree on.
    fn is_established(&self) -> bool {
        matches!(self, Self::Rejection(_))
    }

    fn is_adoptable(&self, _: &[u8]) -> bool {
        matches!(self, Self::Request(request) if request.complete)
    }

    fn offer(self, offered: stream::Offered<'_>) -> Option<RnicEvent> {
        let Self::Request(Request { responder, bytes, .. }) = self else { return None };
        let stream::Offered { listener, socket, addresses, .. } = offered;
        Some(RnicEvent::ConnectRequest(ConnectRequest {
            listener: ListenerId::Iwarp(listener),
            local: addresses.0,
            peer: addresses.1,
            private_data: Bytes::copy_from_slice(responder.private_data()),
            initiator_depth_max: responder.peer_depths().map(|(ird, _)| ird),
            pending: Box::new(PendingAccept { socket, addresses, responder, request: bytes }),
        }))
    }

    fn receive(
        &mut self,
        _: &mut Shared<Self>,
        staging: &[u8],
        unread: &mut Range<usize>,
    ) -> Result<ReceiveTarget, Fault> {
        let bytes = &staging[unread.clone()];
        unread.start = unread.end;
        let Self::Request(request) = self else {
            return Ok(ReceiveTarget::Staging { bytes_max: usize::MAX });
        };
        match request.take(bytes) {
            // Nothing may come before the answer.
            Ok(()) if request.complete => Ok(ReceiveTarget::Staging { bytes_max: 0 }),
            Ok(()) => Ok(ReceiveTarget::Staging { bytes_max: usize::MAX }),
            Err((None, what)) => Err(Fault::Ended(DisconnectReason::Violation(what))),
            Err((refusal, what)) => {
                *self = Self::Rejection(refusal);
                Err(Fault::Violation(what))
            }
        }
    }

    fn placed(&mut self, _: &SharedBuffer, _: Range<usize>) {}

    fn wants_transmit(&self) -> bool {
        matches!(self, Self::Rejection(Some(_)))
    }

    fn transmit(&mut self, _: &mut Shared<Self>, _: &Reactor, gather: &mut Gather<'_>) -> usize {
        if let Self::Rejection(refusal) = self
            && let Some(frame) = refusal.take()
        {
            gather.push(&frame);
        }
        0
    }

    fn transmitted(&mut self, _: &mut Shared<Self>, _: usize) {}

    /// Nobody has heard of it, or nobody wants to hear more.
    fn has_owner(&self) -> bool {
        false
    }

    fn finish(&mut self, _: &mut Shared<Self>, _: &Reactor, _: End) {}
}
