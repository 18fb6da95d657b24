//! Messages of the peer in progress: the Send that is being received, and the reads that wait for their responses.

use std::collections::VecDeque;

use ringfab_spec::FromBytes;
use ringfab_spec::iwarp::{QueueNumber, RdmapOpcode, ReadRequest};

use super::error::Violation;
use super::region::{Access, RegionTable, Requester};
use super::rx::Untagged;
use super::work::{Local, RecvFull};

/// A validated Read Request (RFC 5040, section 4.4).
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResponseWork<H> {
    pub(crate) sink_stag: u32,
    pub(crate) sink_to: u64,
    pub(crate) source_stag: u32,
    pub(crate) source_to: u64,
    /// `None` for a read of no bytes, whose source is not checked.
    pub(crate) source: Option<Local<H>>,
    /// Bytes that are already on their way.
    pub(crate) sent: u32,
}

impl<H: Copy> ResponseWork<H> {
    pub(crate) fn len(&self) -> u32 {
        self.source.map_or(0, |source| source.len)
    }
}

/// The read responses that this side owes, at most IRD of them.
#[derive(Debug)]
pub(crate) struct ResponseQueue<H> {
    queue: VecDeque<ResponseWork<H>>,
    ird: usize,
    msn_next: u32,
}

impl<H: Copy> ResponseQueue<H> {
    pub(crate) fn new(ird: usize) -> Self {
        Self { queue: VecDeque::with_capacity(ird), ird, msn_next: 1 }
    }

    pub(crate) fn front_mut(&mut self) -> Option<&mut ResponseWork<H>> {
        self.queue.front_mut()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(crate) fn pop(&mut self) {
        self.queue.pop_front();
    }

    pub(crate) fn clear(&mut self) {
        self.queue.clear();
    }

    /// Takes a Read Request from the wire.
    pub(crate) fn accept(
        &mut self,
        header: Untagged,
        payload: &[u8],
        regions: &RegionTable<H>,
        requester: Requester,
    ) -> Result<(), Violation> {
        if header.opcode != RdmapOpcode::RDMA_READ_REQUEST {
            return Err(Violation::UnexpectedOpcode {
                opcode: header.opcode,
                place: "on the Read Request queue",
            });
        }
        in_sequence(header, self.msn_next)?;
        if header.mo != 0 {
            return Err(Violation::MessageOffset { qn: header.qn, mo: header.mo, expected: 0 });
        }
        let request = match ReadRequest::ref_from_bytes(payload) {
            Ok(request) if header.last => request,
            _ => return Err(Violation::ControlLength { message: "Read Request", len: payload.len() }),
        };
        if self.queue.len() == self.ird {
            return Err(Violation::TooManyReads { msn: header.msn, ird: self.ird });
        }
        self.queue.push_back(read_request(request, regions, requester)?);
        self.msn_next = self.msn_next.wrapping_add(1);
        Ok(())
    }
}

fn read_request<H: Copy>(
    request: &ReadRequest,
    regions: &RegionTable<H>,
    requester: Requester,
) -> Result<ResponseWork<H>, Violation> {
    let len = request.size.get();
    let (source_stag, source_to) = (request.source_stag.get(), request.source_to.get());
    let source = if len == 0 {
        None
    } else {
        let place = regions.check(source_stag, source_to, u64::from(len), Access::RemoteRead, requester)?;
        Some(Local { handle: place.handle, offset: place.offset, len })
    };
    let (sink_stag, sink_to) = (request.sink_stag.get(), request.sink_to.get());
    Ok(ResponseWork { sink_stag, sink_to, source_stag, source_to, source, sent: 0 })
}

pub(crate) fn in_sequence(header: Untagged, expected: u32) -> Result<(), Violation> {
    if header.msn == expected {
        Ok(())
    } else {
        Err(Violation::MessageSequence { qn: header.qn, msn: header.msn, expected })
    }
}

/// The posted receive buffers, by length, and the state of the Send that fills the first of them.
#[derive(Debug)]
pub(crate) struct RecvQueue {
    lens: VecDeque<u32>,
    depth: usize,
    msn_next: u32,
    /// The expected message offset, and the opcode and STag of the message once its first segment arrived.
    mo_next: u32,
    first: Option<(RdmapOpcode, u32)>,
}

impl RecvQueue {
    pub(crate) fn new(depth: usize) -> Self {
        Self { lens: VecDeque::with_capacity(depth), depth, msn_next: 1, mo_next: 0, first: None }
    }

    pub(crate) fn post(&mut self, len: u32) -> Result<(), RecvFull> {
        if self.lens.len() == self.depth {
            return Err(RecvFull(self.depth));
        }
        self.lens.push_back(len);
        Ok(())
    }

    /// Takes a Send of no bytes that only says "ready to receive" (RFC 6581, section 4.1): it needs no buffer.
    pub(crate) fn accept_ready(&mut self, header: Untagged, len: usize) -> bool {
        let ready =
            header.opcode == RdmapOpcode::SEND && header.qn == QueueNumber::SEND && header.last && len == 0;
        let ready = ready && header.mo == 0 && header.msn == self.msn_next && self.msn_next == 1;
        if ready {
            self.msn_next = self.msn_next.wrapping_add(1);
        }
        ready
    }

    /// Takes one segment of a Send; on the last one the first buffer is used up.
    pub(crate) fn accept(&mut self, header: Untagged, len: usize) -> Result<(), Violation> {
        if !header.opcode.is_send() {
            return Err(Violation::UnexpectedOpcode { opcode: header.opcode, place: "on the Send queue" });
        }
        in_sequence(header, self.msn_next)?;
        let Some(&room) = self.lens.front() else {
            return Err(Violation::NoReceiveBuffer { msn: header.msn });
        };
        if header.mo != self.mo_next {
            return Err(Violation::MessageOffset { qn: header.qn, mo: header.mo, expected: self.mo_next });
        }
        self.same_message(header)?;
        let end = u64::from(header.mo) + len as u64;
        self.mo_next = match u32::try_from(end) {
            Ok(end) if end <= room => end,
            _ => return Err(Violation::MessageTooLong { end, room }),
        };
        if header.last {
            self.finish();
        }
        Ok(())
    }

    fn same_message(&mut self, header: Untagged) -> Result<(), Violation> {
        let stag = header.invalidated().unwrap_or(0);
        let first = *self.first.get_or_insert((header.opcode, stag));
        if first == (header.opcode, stag) {
            Ok(())
        } else {
            Err(Violation::MixedMessage { opcode: header.opcode, first: first.0 })
        }
    }

    fn finish(&mut self) {
        self.lens.pop_front();
        self.msn_next = self.msn_next.wrapping_add(1);
        self.mo_next = 0;
        self.first = None;
    }
}

impl Untagged {
    pub(crate) fn invalidated(&self) -> Option<u32> {
        self.opcode.is_invalidating().then_some(self.invalidate_stag)
    }
}
