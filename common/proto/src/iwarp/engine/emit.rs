//! The emitting half of a queue pair: which message is next, and its FPDUs.

use ringfab_spec::iwarp::{RdmapOpcode, TaggedHeader};

use super::super::region::{Access, RegionTable};
use super::super::send_queue::EmittedNow;
use super::super::tx::{TxSink, emit_tagged, segment_len};
use super::super::work::{Local, SendRef, WriteRequest};
use super::Engine;

/// What may be emitted next. Messages alternate, segments of two messages never mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Work,
    Response,
}

/// Posting and emitting in one step. What is posted to a queue pair with nothing to emit goes to the sink of the next
/// [`Engine::transmit`] without being described, stored and looked up.
impl<H: Copy> Engine<H> {
    /// Whether a Send of `len` bytes posted now may be emitted at once, by [`Self::send_now`]: it takes one FPDU, and
    /// nothing comes before it.
    #[must_use]
    #[inline(always)]
    pub fn sends_now(&self, len: u64) -> bool {
        self.is_clear() && len <= u64::from(self.config.framing().untagged_payload_max())
    }

    /// Whether an RDMA Write of `len` bytes to `to` posted now may be emitted at once, by [`Self::write_now`].
    #[must_use]
    #[inline(always)]
    pub fn writes_now(&self, to: u64, len: u32) -> bool {
        self.is_clear()
            && len <= self.config.framing().tagged_payload_max()
            && to.checked_add(u64::from(len)).is_some()
    }

    fn is_clear(&self) -> bool {
        let open = self.error.is_none() && !self.released && !self.awaiting_first;
        open && self.responses.is_empty() && self.send_queue.is_clear()
    }

    /// Posts a Send and emits its FPDU to the sink of the next [`Self::transmit`]. Call only when [`Self::sends_now`]
    /// and the sink has room. The payload's range must not wrap. Returns whether it shares the completion of the work
    /// request before it, which then bears this number.
    #[inline(always)]
    pub fn send_now(&mut self, wr_id: u64, send: &SendRef<'_, H>, sink: &mut impl TxSink<H>) -> bool {
        let wire = self.config.framing();
        let emitted = self.send_queue.send_now(wr_id, send, sink, wire, self.emitted);
        self.count_now(emitted)
    }

    /// Posts an RDMA Write and emits its FPDU, as [`Self::send_now`] does. Call only when [`Self::writes_now`].
    #[inline(always)]
    pub fn write_now(&mut self, wr_id: u64, write: &WriteRequest<H>, sink: &mut impl TxSink<H>) -> bool {
        let wire = self.config.framing();
        let emitted = self.send_queue.write_now(wr_id, write, sink, wire, self.emitted);
        self.count_now(emitted)
    }

    #[inline(always)]
    fn count_now(&mut self, EmittedNow { fpdu_len, joined }: EmittedNow) -> bool {
        self.emitted += fpdu_len as u64;
        self.emitted_now += fpdu_len;
        self.counts.emitted += 1;
        self.turn = Source::Response;
        joined
    }
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
        let fpdu_len = self.send_queue.emit(sink, self.config.framing(), self.emitted);
        self.turn = if self.send_queue.mid_message() { Source::Work } else { Source::Response };
        fpdu_len
    }

    /// Emits a segment of the oldest read response. Its source is checked again, because the owner may have ended the
    /// region in the meantime.
    fn emit_response(&mut self, regions: &RegionTable<H>, sink: &mut impl TxSink<H>) -> usize {
        let (wire, requester) = (self.config.framing(), self.config.requester);
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
}
