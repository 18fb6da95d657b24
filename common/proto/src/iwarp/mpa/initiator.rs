//! The side that connects.

use ringfab_spec::iwarp::{MPA_KEY_REPLY, MPA_KEY_REQUEST};

use super::frame::{Collector, Enhanced, Fields, build};
use super::{DEPTH_MAX, MpaConfig, MpaError, Negotiated, ReadyToReceive, Revision, Role};

/// How the exchange ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The connection is established.
    Accepted(Negotiated),
    /// The peer's upper layer rejected it; [`Initiator::private_data`] may say why.
    Rejected,
}

/// Sends a Request and waits for the Reply.
#[derive(Debug)]
pub struct Initiator {
    config: MpaConfig,
    request: Vec<u8>,
    reply: Collector,
}

impl Initiator {
    /// Prepares a Request with private data of the upper layer.
    ///
    /// # Errors
    /// The private data does not fit.
    pub fn new(config: MpaConfig, private_data: &[u8]) -> Result<Self, MpaError> {
        let config = MpaConfig { ird: config.ird.min(DEPTH_MAX), ord: config.ord.min(DEPTH_MAX), ..config };
        let enhanced = Enhanced { ird: config.ird, ord: config.ord, peer_to_peer: config.peer_to_peer };
        let fields = Fields {
            markers: false,
            crc: config.crc,
            reject: false,
            revision: config.revision,
            enhanced: (config.revision == Revision::Two).then_some(enhanced),
        };
        let request = build(MPA_KEY_REQUEST, fields, private_data)?;
        Ok(Self { config, request, reply: Collector::new(MPA_KEY_REPLY) })
    }

    /// The Request frame to send.
    #[must_use]
    pub fn request(&self) -> &[u8] {
        &self.request
    }

    /// Takes received bytes. Returns how many were consumed, and the outcome once the Reply is complete.
    ///
    /// # Errors
    /// The Reply is malformed, or asks for what this side cannot do.
    pub fn receive(&mut self, input: &[u8]) -> Result<(usize, Option<Outcome>), MpaError> {
        let consumed = self.reply.receive(input)?;
        match self.reply.fields() {
            None => Ok((consumed, None)),
            Some(reply) => Ok((consumed, Some(self.outcome(reply)?))),
        }
    }

    /// The private data of the Reply, once it is complete.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        self.reply.private_data()
    }

    fn outcome(&self, reply: Fields) -> Result<Outcome, MpaError> {
        if reply.revision > self.config.revision {
            return Err(MpaError::Revision(2));
        }
        if reply.revision < self.config.revision {
            return Err(MpaError::OnlyRevisionOne);
        }
        if reply.reject {
            return Ok(Outcome::Rejected);
        }
        if reply.markers {
            return Err(MpaError::Markers);
        }
        if reply.revision == Revision::Two && reply.enhanced.is_none() {
            return Err(MpaError::NotEnhanced);
        }
        let (ird, ord) = self.depths(reply.enhanced)?;
        let ready = self.ready(reply.enhanced)?;
        let crc = self.config.crc || reply.crc;
        Ok(Outcome::Accepted(Negotiated {
            role: Role::Initiator,
            revision: reply.revision,
            crc,
            ird,
            ord,
            ready,
        }))
    }

    /// A peer that does not negotiate depths leaves them to the upper layer.
    fn depths(&self, enhanced: Option<Enhanced>) -> Result<(u16, u16), MpaError> {
        let Some(peer) = enhanced else { return Ok((self.config.ird, self.config.ord)) };
        let ord = if peer.ird > DEPTH_MAX { self.config.ord } else { self.config.ord.min(peer.ird) };
        if peer.ord > DEPTH_MAX {
            return Ok((self.config.ird, ord));
        }
        if peer.ord > self.config.ird {
            return Err(MpaError::InsufficientIrd { wanted: peer.ord, ird: self.config.ird });
        }
        Ok((peer.ord, ord))
    }

    fn ready(&self, enhanced: Option<Enhanced>) -> Result<Option<ReadyToReceive>, MpaError> {
        let offered = enhanced.and_then(|peer| peer.peer_to_peer);
        let (Some(wanted), Some(offered)) = (self.config.peer_to_peer, offered) else { return Ok(None) };
        wanted.intersection(offered).cheapest().map(Some).ok_or(MpaError::NoMatchingReady)
    }
}
