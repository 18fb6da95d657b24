//! The emitting half of a queue pair: which message is next, and its FPDUs.

use ringfab_spec::iwarp::{RdmapOpcode, TaggedHeader};

use super::super::messages::Wire;
use super::super::region::{Access, RegionTable};
use super::super::tx::{TxSink, emit_tagged, segment_len};
use super::super::work::Local;
use super::Engine;

/// What may be emitted next. Messages alternate, segments of two messages never mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Work,
    Response,
}

impl<H: Copy> Engine<H> {
    pub(super) fn next_source(&self) -> Option<Source> {
        if self.error.is_some() || self.awaiting_first {
            return None;
        }
        let (work, response) = (self.send_queue.can_emit(), !self.responses.is_empty());
        match (work, response) {
            (false, false) => None,
            (true, false) => Some(Source::Work),
            (false, true) => Some(Source::Response),
            (true, true) => Some(self.turn),
        }
    }

    pub(super) fn emit_next(&mut self, regions: &RegionTable<H>, sink: &mut impl TxSink<H>) -> usize {
        if let Some(terminate) = self.terminate.take() {
            return terminate.emit(sink, self.config.negotiated.crc);
        }
        match self.next_source() {
            None => 0,
            Some(Source::Work) => self.emit_work(sink),
            Some(Source::Response) => self.emit_response(regions, sink),
        }
    }

    #[inline]
    fn emit_work(&mut self, sink: &mut impl TxSink<H>) -> usize {
        let fpdu_len = self.send_queue.emit(sink, self.wire(), self.emitted);
        self.turn = if self.send_queue.mid_message() { Source::Work } else { Source::Response };
        fpdu_len
    }

    /// Emits a segment of the oldest read response. Its source is checked again, because the owner may have ended the
    /// region in the meantime.
    fn emit_response(&mut self, regions: &RegionTable<H>, sink: &mut impl TxSink<H>) -> usize {
        let (wire, requester) = (self.wire(), self.config.requester);
        let Some(response) = self.responses.front_mut() else { return 0 };
        let left = response.len() - response.sent;
        let segment = segment_len(u64::from(response.len()), wire.tagged_payload_max()).min(left);
        let sent = u64::from(response.sent);
        let payload = if segment == 0 {
            None
        } else {
            let (stag, to) = (response.source_stag, response.source_to + sent);
            match regions.check(stag, to, u64::from(segment), Access::RemoteRead, requester) {
                Ok(place) => Some(Local { handle: place.handle, offset: place.offset, len: segment }),
                Err(error) => {
                    self.fail(error.into(), &[]);
                    return self.emit_next(regions, sink);
                }
            }
        };
        let (last, to) = (segment == left, response.sink_to.wrapping_add(sent));
        let header = TaggedHeader::new(RdmapOpcode::RDMA_READ_RESPONSE, last, response.sink_stag, to);
        let fpdu_len = emit_tagged(sink, &header, payload, wire.crc_used);
        response.sent += segment;
        if last {
            self.responses.pop();
        }
        self.turn = if last { Source::Work } else { Source::Response };
        fpdu_len
    }

    fn wire(&self) -> Wire {
        Wire { ulpdu_len_max: self.config.ulpdu_len_max, crc_used: self.config.negotiated.crc }
    }
}
