//! The receiving half of a queue pair: from FPDUs to events.

use core::ops::{ControlFlow, Range};

use ringfab_spec::iwarp::{
    FPDU_CRC_SIZE, FPDU_LENGTH_SIZE, QueueNumber, RdmapOpcode, TaggedHeader, UntaggedHeader,
};

use super::super::crc;
use super::super::error::{TerminateReceived, Violation};
use super::super::inbound::in_sequence;
use super::super::region::{Placement, RegionTable};
use super::super::rx::{
    Framed, Tagged, TaggedKind, Untagged, frame, is_tagged, parse_tagged, parse_untagged, verify,
};
use super::{Continuation, Engine, Pause, Receiver, SendSegment};

/// A tagged FPDU whose front has been consumed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Body<H> {
    pub(super) to: Placement<H>,
    pub(super) remaining: usize,
    pub(super) pad: usize,
    pub(super) crc: u32,
    pub(super) kind: TaggedKind,
    pub(super) last: bool,
    pub(super) len: u32,
    pub(super) continuation: Option<Continuation>,
}

/// Where a tagged segment goes.
struct Destination<H> {
    to: Placement<H>,
    /// How many bytes may follow there, if nothing has been placed among them.
    fresh: Option<u64>,
}

/// What one FPDU, or one piece of a large one, came to.
pub(super) enum Progress<H> {
    /// So many bytes are done with.
    Consumed(usize, ControlFlow<()>),
    Pause(Pause<H>),
    Terminated(TerminateReceived),
}

/// The input that is not done with.
#[derive(Clone, Copy)]
pub(super) struct Rest<'a> {
    pub(super) input: &'a [u8],
    /// Where it begins.
    pub(super) at: usize,
}

impl<'a> Rest<'a> {
    #[inline]
    fn bytes(self) -> &'a [u8] {
        &self.input[self.at..]
    }

    /// A range of it, as one of all input.
    #[inline]
    fn of_input(self, range: Range<usize>) -> Range<usize> {
        range.start + self.at..range.end + self.at
    }
}

impl<H: Copy> Engine<H> {
    #[inline]
    pub(super) fn next_fpdu(
        &mut self,
        rest: Rest<'_>,
        regions: &mut RegionTable<H>,
        receiver: &mut impl Receiver<H>,
    ) -> Result<Progress<H>, Violation> {
        let input = rest.bytes();
        match frame(input, self.config.negotiated.crc, self.config.direct_min)? {
            Framed::NeedMore(want) => Ok(Progress::need(want)),
            Framed::Whole { ulpdu_end, fpdu_len } => {
                let ulpdu = &input[FPDU_LENGTH_SIZE..ulpdu_end];
                if is_tagged(ulpdu)? {
                    let payload = FPDU_LENGTH_SIZE + TaggedHeader::SIZE..ulpdu_end;
                    let flow =
                        self.whole_tagged(parse_tagged(ulpdu)?, rest.of_input(payload), regions, receiver)?;
                    Ok(Progress::Consumed(fpdu_len, flow))
                } else {
                    let header = parse_untagged(ulpdu)?;
                    let payload = FPDU_LENGTH_SIZE + UntaggedHeader::SIZE..ulpdu_end;
                    if header.qn == QueueNumber::SEND {
                        let flow = self.receive_send(header, rest.of_input(payload), regions, receiver)?;
                        return Ok(Progress::Consumed(fpdu_len, flow));
                    }
                    self.receive_control(header, &input[payload], fpdu_len, regions)
                }
            }
            Framed::Front { header, payload, payload_len, pad } => {
                self.begin_body(header, &input[..payload.start], payload_len, pad, regions)
            }
        }
    }

    /// Where a tagged segment goes; `None` when it is an empty RDMA Write, which must not be checked.
    #[inline(always)]
    fn place(
        &self,
        header: Tagged,
        len: u32,
        regions: &mut RegionTable<H>,
    ) -> Result<Option<Destination<H>>, Violation> {
        match header.kind {
            TaggedKind::Write if len == 0 => Ok(None),
            TaggedKind::Write => {
                let requester = self.config.requester;
                let (to, fresh) = regions.check_write(header.stag, header.to, u64::from(len), requester)?;
                Ok(Some(Destination { to, fresh }))
            }
            TaggedKind::ReadResponse => {
                let to = self.send_queue.check_response(header, len)?;
                let fresh = Some(u64::from(self.send_queue.response_missing().saturating_sub(len)));
                Ok(to.map(|to| Destination { to, fresh }))
            }
        }
    }

    /// A tagged segment is complete and its CRC is right.
    #[inline]
    fn tagged_delivered(&mut self, kind: TaggedKind, len: u32, last: bool) {
        self.fpdu_accepted();
        if kind == TaggedKind::ReadResponse {
            self.send_queue.response_delivered(len, last);
        }
    }

    #[inline]
    fn whole_tagged(
        &mut self,
        header: Tagged,
        payload: Range<usize>,
        regions: &mut RegionTable<H>,
        receiver: &mut impl Receiver<H>,
    ) -> Result<ControlFlow<()>, Violation> {
        let len = word(payload.len());
        let place = self.place(header, len, regions)?;
        self.tagged_delivered(header.kind, len, header.last);
        match place {
            Some(Destination { to, .. }) if len > 0 => Ok(receiver.place(to, payload)),
            _ => Ok(ControlFlow::Continue(())),
        }
    }

    /// A large tagged FPDU has begun.
    #[inline(never)]
    fn begin_body(
        &mut self,
        header: Tagged,
        front: &[u8],
        payload_len: usize,
        pad: usize,
        regions: &mut RegionTable<H>,
    ) -> Result<Progress<H>, Violation> {
        let len = word(payload_len);
        if let Some(Destination { to, fresh }) = self.place(header, len, regions)? {
            let crc = if self.config.negotiated.crc { crc::update(crc::START, front) } else { crc::START };
            let (kind, last) = (header.kind, header.last);
            let direct_min = self.config.direct_min;
            let fresh = fresh.filter(|_| !last);
            let continuation =
                fresh.and_then(|fresh| Continuation::behind(payload_len, pad, fresh, direct_min));
            self.body = Some(Body { to, remaining: payload_len, pad, crc, kind, last, len, continuation });
        }
        Ok(Progress::consumed(front.len()))
    }

    pub(super) fn continue_body(
        &mut self,
        mut body: Body<H>,
        rest: Rest<'_>,
        receiver: &mut impl Receiver<H>,
    ) -> Result<Progress<H>, Violation> {
        let input = rest.bytes();
        if body.remaining == 0 {
            return self.finish_body(body, input);
        }
        if input.is_empty() {
            let (to, remaining, continuation) = (body.to, body.remaining, body.continuation);
            return Ok(Progress::Pause(Pause::Direct { to, remaining, continuation }));
        }
        let (to, count) = (body.to, body.remaining.min(input.len()));
        if self.config.negotiated.crc {
            body.crc = crc::update(body.crc, &input[..count]);
        }
        body.advance(count);
        self.body = Some(body);
        Ok(Progress::Consumed(count, receiver.place(to, rest.of_input(0..count))))
    }

    fn finish_body(&mut self, body: Body<H>, input: &[u8]) -> Result<Progress<H>, Violation> {
        let trailer_len = body.pad + FPDU_CRC_SIZE;
        let Some(trailer) = input.get(..trailer_len) else { return Ok(Progress::need(trailer_len)) };
        if self.config.negotiated.crc {
            let (pad, field) = trailer.split_at(body.pad);
            verify(&crc::finish(crc::update(body.crc, pad)), field)?;
        }
        self.body = None;
        self.tagged_delivered(body.kind, body.len, body.last);
        Ok(Progress::consumed(trailer_len))
    }

    /// An untagged segment of RDMAP's own.
    fn receive_control(
        &mut self,
        header: Untagged,
        payload: &[u8],
        fpdu_len: usize,
        regions: &mut RegionTable<H>,
    ) -> Result<Progress<H>, Violation> {
        match header.qn {
            QueueNumber::READ_REQUEST => {
                self.responses.accept(header, payload, regions, self.config.requester)?;
                self.fpdu_accepted();
                Ok(Progress::consumed(fpdu_len))
            }
            QueueNumber::TERMINATE => receive_terminate(header, payload).map(Progress::Terminated),
            qn => Err(Violation::QueueNumber { qn }),
        }
    }

    #[inline]
    fn receive_send(
        &mut self,
        header: Untagged,
        payload: Range<usize>,
        regions: &mut RegionTable<H>,
        receiver: &mut impl Receiver<H>,
    ) -> Result<ControlFlow<()>, Violation> {
        if self.ready_send_allowed && self.recv_queue.accept_ready(header, payload.len()) {
            self.fpdu_accepted();
            return Ok(ControlFlow::Continue(()));
        }
        self.recv_queue.accept(header, payload.len())?;
        self.fpdu_accepted();
        let invalidated = header.invalidated().filter(|_| header.last);
        if let Some(stag) = invalidated {
            regions.invalidate(stag, self.config.requester).ok_or(Violation::CannotInvalidate { stag })?;
        }
        let (mo, last, solicited) = (header.mo, header.last, header.opcode.is_solicited());
        Ok(receiver.send_segment(SendSegment { mo, payload, last, solicited, invalidated }))
    }

    #[inline]
    fn fpdu_accepted(&mut self) {
        self.counts.received += 1;
        self.awaiting_first = false;
        self.ready_send_allowed = false;
    }
}

impl Continuation {
    /// Behind a segment of `len` bytes that is not its message's last, if the segments are of one length and fill the
    /// `fresh` bytes of memory to their end. No step is shorter than `direct_min`: it would not be [`Pause::Direct`].
    fn behind(len: usize, pad: usize, fresh: u64, direct_min: usize) -> Option<Self> {
        let direct_min = direct_min.max(1);
        let total = usize::try_from(fresh).unwrap_or(usize::MAX);
        let last = total.checked_rem(len)?;
        let total = if last < direct_min { total - last } else { total };
        let gap = pad + FPDU_CRC_SIZE + FPDU_LENGTH_SIZE + TaggedHeader::SIZE;
        (len >= direct_min && total > 0).then_some(Self { gap, step: len, total })
    }
}

impl<H> Body<H> {
    pub(super) fn advance(&mut self, count: usize) {
        self.to.offset += count as u64;
        self.remaining -= count;
    }
}

impl<H> Progress<H> {
    #[inline]
    fn consumed(count: usize) -> Self {
        Self::Consumed(count, ControlFlow::Continue(()))
    }

    #[inline]
    fn need(want: usize) -> Self {
        Self::Pause(Pause::NeedMore(want))
    }
}

fn receive_terminate(header: Untagged, payload: &[u8]) -> Result<TerminateReceived, Violation> {
    if header.opcode != RdmapOpcode::TERMINATE {
        return Err(Violation::UnexpectedOpcode { opcode: header.opcode, place: "on the Terminate queue" });
    }
    in_sequence(header, 1)?;
    TerminateReceived::parse(payload)
        .ok_or(Violation::ControlLength { message: "Terminate", len: payload.len() })
}

/// A payload is never longer than an FPDU.
fn word(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}
