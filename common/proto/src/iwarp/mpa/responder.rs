//! The side that listens.

use ringfab_spec::iwarp::{MPA_KEY_REPLY, MPA_KEY_REQUEST};

use super::frame::{Collector, Enhanced, Fields, build};
use super::{DEPTH_MAX, MpaConfig, MpaError, Negotiated, ReadySet, ReadyToReceive, Revision, Role};

/// Waits for a Request and answers it.
#[derive(Debug)]
pub struct Responder {
    config: MpaConfig,
    request: Collector,
}

impl Responder {
    /// Waits for a Request.
    #[must_use]
    pub fn new(config: MpaConfig) -> Self {
        let config = MpaConfig { ird: config.ird.min(DEPTH_MAX), ord: config.ord.min(DEPTH_MAX), ..config };
        Self { config, request: Collector::new(MPA_KEY_REQUEST) }
    }

    /// Takes received bytes. Returns how many were consumed, and whether the Request is complete.
    ///
    /// # Errors
    /// The Request is malformed, or asks for what this side cannot do. [`Self::reject`] may have an answer.
    pub fn receive(&mut self, input: &[u8]) -> Result<(usize, bool), MpaError> {
        let consumed = self.request.receive(input)?;
        match self.request.fields() {
            None => Ok((consumed, false)),
            Some(request) => self.check(request).map(|()| (consumed, true)),
        }
    }

    /// The private data of the Request, once it is complete.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        self.request.private_data()
    }

    /// The IRD and ORD that the Request carries, once it is complete; `None` when the initiator does not negotiate
    /// them.
    #[must_use]
    pub fn peer_depths(&self) -> Option<(u16, u16)> {
        let enhanced = self.request.fields()?.enhanced?;
        (enhanced.ird <= DEPTH_MAX && enhanced.ord <= DEPTH_MAX).then_some((enhanced.ird, enhanced.ord))
    }

    /// Replaces this side's limits, for an owner that learns them only from the Request. Call before [`Self::accept`].
    pub fn set_depths(&mut self, ird: u16, ord: u16) {
        self.config.ird = ird.min(DEPTH_MAX);
        self.config.ord = ord.min(DEPTH_MAX);
    }

    /// Accepts the connection: what was agreed, and the Reply frame to send.
    ///
    /// # Errors
    /// The Request is not complete, or the private data does not fit.
    pub fn accept(&self, private_data: &[u8]) -> Result<(Negotiated, Vec<u8>), MpaError> {
        let request = self.request.fields().ok_or(MpaError::State)?;
        self.check(request)?;
        let negotiated = self.negotiate(request)?;
        let enhanced = request.enhanced.map(|_| Enhanced {
            ird: negotiated.ird,
            ord: negotiated.ord,
            peer_to_peer: negotiated.ready.map(ReadySet::from),
        });
        let reply = Fields {
            markers: false,
            crc: negotiated.crc,
            reject: false,
            revision: negotiated.revision,
            enhanced,
        };
        Ok((negotiated, build(MPA_KEY_REPLY, reply, private_data)?))
    }

    /// The Reply frame that rejects the connection. Also answers a Request that [`Self::receive`] refused, once its
    /// header is there.
    ///
    /// # Errors
    /// There is no header to answer, or the private data does not fit.
    pub fn reject(&self, private_data: &[u8]) -> Result<Vec<u8>, MpaError> {
        let asked = self.request.revision_byte().ok_or(MpaError::State)?;
        let revision = if asked == 1 { Revision::One } else { self.config.revision };
        let enhanced = revision == Revision::Two && self.request.is_enhanced();
        let depths = Enhanced { ird: self.config.ird, ord: self.config.ord, peer_to_peer: None };
        let crc = self.config.crc || self.request.fields().is_some_and(|request| request.crc);
        let enhanced = enhanced.then_some(depths);
        build(MPA_KEY_REPLY, Fields { markers: false, crc, reject: true, revision, enhanced }, private_data)
    }

    fn check(&self, request: Fields) -> Result<(), MpaError> {
        if request.revision > self.config.revision {
            return Err(MpaError::Revision(2));
        }
        if request.markers {
            return Err(MpaError::Markers);
        }
        ready(request).map(|_| ())
    }

    fn negotiate(&self, request: Fields) -> Result<Negotiated, MpaError> {
        let limit = |own: u16, peer: u16| if peer > DEPTH_MAX { own } else { own.min(peer) };
        let (ird, ord) = match request.enhanced {
            None => (self.config.ird, self.config.ord),
            Some(peer) => (limit(self.config.ird, peer.ord), limit(self.config.ord, peer.ird)),
        };
        Ok(Negotiated {
            role: Role::Responder,
            revision: request.revision,
            crc: self.config.crc || request.crc,
            ird,
            ord,
            ready: ready(request)?,
        })
    }
}

/// The first message to ask for, when the peer wants peer-to-peer mode.
fn ready(request: Fields) -> Result<Option<ReadyToReceive>, MpaError> {
    match request.enhanced.and_then(|enhanced| enhanced.peer_to_peer) {
        None => Ok(None),
        Some(offered) => offered.cheapest().map(Some).ok_or(MpaError::NoMatchingReady),
    }
}
