//! The MPA exchange of a queue pair.

use std::io;
use std::ops::Range;

use bytes::Bytes;
use ringfab_proto::iwarp::mpa::{Initiator, MpaConfig, MpaError, Negotiated, Outcome, Revision};

use crate::rdma::{DisconnectReason, QueuePairAttributes, RnicConfig};
use crate::stream::Fault;

/// An exchange that is not over.
#[derive(Debug)]
pub(super) struct Opening {
    /// Our frame, until it is gathered.
    frame: Option<Vec<u8>>,
    side: Side,
}

#[derive(Debug)]
enum Side {
    /// We connect: the reply is awaited.
    Active(Dial),
    /// We accept: with our reply it is over.
    Passive(Accept),
}

#[derive(Debug)]
struct Dial {
    private_data: Vec<u8>,
    revision: Revision,
    mpa: Initiator,
    /// Whether anything of a reply has come.
    answered: bool,
    /// What the peer said when it refused.
    rejection: Option<Bytes>,
}

/// A request that we accept.
#[derive(Debug)]
pub(super) struct Accept {
    pub(super) negotiated: Negotiated,
    /// What the peer said.
    pub(super) said: Bytes,
    /// The bytes of its request, for a capture.
    pub(super) request: Vec<u8>,
}

/// The highest revision that we speak.
pub(super) fn revision(highest: u8) -> Revision {
    if highest <= 1 { Revision::One } else { Revision::Two }
}

/// Starts a request.
fn initiator(
    config: &RnicConfig,
    attributes: &QueuePairAttributes,
    revision: Revision,
    private_data: &[u8],
) -> io::Result<Initiator> {
    let config = MpaConfig {
        revision,
        crc: config.crc,
        ird: attributes.responder_resources,
        ord: attributes.initiator_depth,
        peer_to_peer: None,
    };
    Initiator::new(config, private_data).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))
}

impl Opening {
    /// Of a connection that we make.
    ///
    /// # Errors
    /// When the private data does not fit.
    pub(super) fn connect(
        config: &RnicConfig,
        attributes: &QueuePairAttributes,
        private_data: &[u8],
    ) -> io::Result<Self> {
        let revision = revision(config.mpa_revision);
        let mpa = initiator(config, attributes, revision, private_data)?;
        let (frame, private_data) = (Some(mpa.request().to_vec()), private_data.to_vec());
        let side = Side::Active(Dial { private_data, revision, mpa, answered: false, rejection: None });
        Ok(Self { frame, side })
    }

    /// Of a connection that we accept with this reply.
    pub(super) fn accept(accept: Accept, reply: Vec<u8>) -> Self {
        Self { frame: Some(reply), side: Side::Passive(accept) }
    }

    /// Whether we connect.
    pub(super) fn is_active(&self) -> bool {
        matches!(self.side, Side::Active(_))
    }

    /// What has been received already.
    pub(super) fn received(&self) -> &[u8] {
        match &self.side {
            Side::Active(_) => &[],
            Side::Passive(accept) => &accept.request,
        }
    }

    pub(super) fn has_frame(&self) -> bool {
        self.frame.is_some()
    }

    pub(super) fn take_frame(&mut self) -> Option<Vec<u8>> {
        self.frame.take()
    }

    pub(super) fn take_rejection(&mut self) -> Option<Bytes> {
        match &mut self.side {
            Side::Active(dial) => dial.rejection.take(),
            Side::Passive(_) => None,
        }
    }

    /// Whether the lower revision may get an answer. Some peers close when they do not know the higher one.
    pub(super) fn may_retry(&self) -> bool {
        matches!(&self.side, Side::Active(dial) if !dial.answered && dial.revision == Revision::Two)
    }

    /// Starts again with revision 1.
    ///
    /// # Errors
    /// When the private data does not fit.
    pub(super) fn restart(
        &mut self,
        config: &RnicConfig,
        attributes: &QueuePairAttributes,
    ) -> io::Result<()> {
        let Side::Active(dial) = &mut self.side else { return Err(io::ErrorKind::NotConnected.into()) };
        dial.revision = Revision::One;
        dial.mpa = initiator(config, attributes, dial.revision, &dial.private_data)?;
        self.frame = Some(dial.mpa.request().to_vec());
        Ok(())
    }

    /// Takes bytes of the reply: what was negotiated and what the peer said, when the connection is established by it.
    pub(super) fn take_reply(
        &mut self,
        staging: &[u8],
        unread: &mut Range<usize>,
    ) -> Result<Option<(Negotiated, Bytes)>, Fault> {
        let Side::Active(dial) = &mut self.side else { return Ok(None) };
        let (consumed, outcome) = match dial.mpa.receive(&staging[unread.clone()]) {
            Ok(received) => received,
            Err(MpaError::OnlyRevisionOne) => return Err(Fault::Retry),
            Err(error) => return Err(Fault::Ended(DisconnectReason::Violation(error.to_string()))),
        };
        unread.start += consumed;
        dial.answered |= consumed > 0;
        let private_data = Bytes::copy_from_slice(dial.mpa.private_data());
        match outcome {
            None => Ok(None),
            Some(Outcome::Accepted(negotiated)) => Ok(Some((negotiated, private_data))),
            Some(Outcome::Rejected) => {
                dial.rejection = Some(private_data);
                Err(Fault::Ended(DisconnectReason::PeerClosed))
            }
        }
    }

    /// Our frame is sent: for the accepting side the exchange is over with it, as for the other with the reply.
    pub(super) fn frame_sent(&mut self) -> Option<(Negotiated, Bytes)> {
        match &mut self.side {
            Side::Passive(accept) => Some((accept.negotiated, std::mem::take(&mut accept.said))),
            Side::Active(_) => None,
        }
    }
}
