//! The messages of a send queue, segment by segment.

use ringfab_spec::IntoBytes;
use ringfab_spec::iwarp::{self, QueueNumber, RdmapOpcode, TaggedHeader, UntaggedHeader};

use super::mpa::ReadyToReceive;
use super::tx::{TxSink, emit_tagged, emit_untagged, segment_len};
use super::work::{Local, ReadRequest, SendRef, WriteRequest};

/// What the emitting side needs to know about the connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FramingParameters {
    pub(crate) ulpdu_len_max: u16,
    pub(crate) crc_used: bool,
}

impl FramingParameters {
    pub(crate) fn tagged_payload_max(self) -> u32 {
        u32::from(self.ulpdu_len_max) - TaggedHeader::SIZE as u32
    }

    pub(crate) fn untagged_payload_max(self) -> u32 {
        u32::from(self.ulpdu_len_max) - UntaggedHeader::SIZE as u32
    }
}

/// Emits the messages of a queue, one after the other, and knows how far they have come.
#[derive(Debug)]
pub(crate) struct Emitter {
    /// Bytes of the message at hand that are out.
    pub(crate) emitted: u64,
    /// The sequence numbers of the next Send and the next Read Request (RFC 5041, section 4.3).
    send_msn: u32,
    read_msn: u32,
}

/// One FPDU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Emitted {
    /// In bytes.
    pub(crate) fpdu_len: usize,
    /// Whether it ended its message.
    pub(crate) last: bool,
}

/// The piece of a message that its next FPDU carries.
#[derive(Clone, Copy, Debug)]
struct Segment {
    start: u64,
    len: u64,
    last: bool,
}

impl Segment {
    fn whole(len: u64) -> Self {
        Self { start: 0, len, last: true }
    }
}

impl Default for Emitter {
    fn default() -> Self {
        Self { emitted: 0, send_msn: 1, read_msn: 1 }
    }
}

impl Emitter {
    /// Emits the next segment of a Send.
    #[inline]
    pub(crate) fn send<H: Copy>(
        &mut self,
        sink: &mut impl TxSink<H>,
        wire: FramingParameters,
        send: &SendRef<'_, H>,
    ) -> Emitted {
        let segment = self.next_segment(send.message_len(), wire.untagged_payload_max());
        self.send_segment(sink, wire, send, segment)
    }

    /// Emits a Send that one segment carries, while no other message is at hand.
    #[inline(always)]
    pub(crate) fn send_whole<H: Copy>(
        &mut self,
        sink: &mut impl TxSink<H>,
        wire: FramingParameters,
        send: &SendRef<'_, H>,
    ) -> Emitted {
        self.send_segment(sink, wire, send, Segment::whole(send.message_len()))
    }

    #[inline(always)]
    fn send_segment<H: Copy>(
        &mut self,
        sink: &mut impl TxSink<H>,
        wire: FramingParameters,
        send: &SendRef<'_, H>,
        segment: Segment,
    ) -> Emitted {
        let (inline, inline_len) = (send.inline, send.inline.len() as u64);
        let (opcode, mo) = (send_opcode(send), low_word(segment.start));
        let header = UntaggedHeader::new(opcode, segment.last, QueueNumber::SEND, self.send_msn, mo);
        let header = header.with_invalidate_stag(send.invalidate.unwrap_or(0));
        // All that is inline fits the first segment.
        let inline = if segment.start == 0 { inline } else { &[] };
        let (skip, rest) = (segment.start.saturating_sub(inline_len), segment.len - inline.len() as u64);
        let payload = send.payload.map(|local| slice(local, skip, low_word(rest)));
        let fpdu_len = emit_untagged(sink, &header, inline, payload, wire.crc_used);
        self.send_msn = self.send_msn.wrapping_add(u32::from(segment.last));
        Emitted { fpdu_len, last: segment.last }
    }

    /// Emits the next segment of an RDMA Write.
    #[inline]
    pub(crate) fn write<H: Copy>(
        &mut self,
        sink: &mut impl TxSink<H>,
        wire: FramingParameters,
        write: &WriteRequest<H>,
    ) -> Emitted {
        let segment = self.next_segment(u64::from(write.payload.len), wire.tagged_payload_max());
        write_segment(sink, wire, write, segment)
    }

    /// Emits an RDMA Write that one segment carries, while no other message is at hand.
    #[inline(always)]
    pub(crate) fn write_whole<H: Copy>(
        sink: &mut impl TxSink<H>,
        wire: FramingParameters,
        write: &WriteRequest<H>,
    ) -> Emitted {
        write_segment(sink, wire, write, Segment::whole(u64::from(write.payload.len)))
    }

    /// Emits a Read Request.
    pub(crate) fn read<H: Copy>(
        &mut self,
        sink: &mut impl TxSink<H>,
        wire: FramingParameters,
        read: &ReadRequest<H>,
    ) -> Emitted {
        let (sink_end, source) = ((read.sink_stag, read.sink_to), (read.stag, read.to));
        self.read_request(sink, wire, &iwarp::ReadRequest::new(sink_end, read.sink.len, source))
    }

    /// Emits the message that says "ready to receive" (RFC 6581, section 4.1). It has no bytes; STag and offset 0 are
    /// never checked.
    pub(crate) fn ready<H: Copy>(
        &mut self,
        sink: &mut impl TxSink<H>,
        wire: FramingParameters,
        ready: ReadyToReceive,
    ) -> Emitted {
        let fpdu_len = match ready {
            ReadyToReceive::Read => {
                return self.read_request(sink, wire, &iwarp::ReadRequest::zeroed());
            }
            ReadyToReceive::Write => {
                let header = TaggedHeader::new(RdmapOpcode::RDMA_WRITE, true, 0, 0);
                emit_tagged(sink, &header, None, wire.crc_used)
            }
            ReadyToReceive::Send => {
                let (opcode, qn) = (RdmapOpcode::SEND, QueueNumber::SEND);
                let header = UntaggedHeader::new(opcode, true, qn, self.send_msn, 0);
                self.send_msn = self.send_msn.wrapping_add(1);
                emit_untagged(sink, &header, &[], None, wire.crc_used)
            }
        };
        Emitted { fpdu_len, last: true }
    }

    fn read_request<H: Copy>(
        &mut self,
        sink: &mut impl TxSink<H>,
        wire: FramingParameters,
        request: &iwarp::ReadRequest,
    ) -> Emitted {
        let (opcode, qn) = (RdmapOpcode::RDMA_READ_REQUEST, QueueNumber::READ_REQUEST);
        let header = UntaggedHeader::new(opcode, true, qn, self.read_msn, 0);
        self.read_msn = self.read_msn.wrapping_add(1);
        let fpdu_len = emit_untagged(sink, &header, request.as_bytes(), None, wire.crc_used);
        Emitted { fpdu_len, last: true }
    }

    /// Goes on to the next segment of the message at hand, which has `len` bytes, of which a segment carries up to
    /// `max`.
    #[inline]
    fn next_segment(&mut self, len: u64, max: u32) -> Segment {
        let start = self.emitted;
        let segment_len = u64::from(segment_len(len, max)).min(len - start);
        let last = start + segment_len == len;
        self.emitted = if last { 0 } else { start + segment_len };
        Segment { start, len: segment_len, last }
    }
}

#[inline(always)]
fn write_segment<H: Copy>(
    sink: &mut impl TxSink<H>,
    wire: FramingParameters,
    write: &WriteRequest<H>,
    segment: Segment,
) -> Emitted {
    let to = write.to.wrapping_add(segment.start);
    let header = TaggedHeader::new(RdmapOpcode::RDMA_WRITE, segment.last, write.stag, to);
    let payload = slice(write.payload, segment.start, low_word(segment.len));
    let fpdu_len = emit_tagged(sink, &header, Some(payload), wire.crc_used);
    Emitted { fpdu_len, last: segment.last }
}

fn send_opcode<H>(send: &SendRef<'_, H>) -> RdmapOpcode {
    match (send.solicited, send.invalidate.is_some()) {
        (false, false) => RdmapOpcode::SEND,
        (false, true) => RdmapOpcode::SEND_INVALIDATE,
        (true, false) => RdmapOpcode::SEND_SE,
        (true, true) => RdmapOpcode::SEND_SE_INVALIDATE,
    }
}

fn slice<H: Copy>(local: Local<H>, skip: u64, len: u32) -> Local<H> {
    Local { handle: local.handle, offset: local.offset + skip, len }
}

/// Message lengths were checked to fit 32 bits when they were posted.
fn low_word(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}
