//! One queue pair from negotiation to its end.

mod emit;
mod receive;

use core::ops::{ControlFlow, Range};

use ringfab_spec::iwarp::{FPDU_CRC_SIZE, TerminateCode};

use self::emit::Source;
use self::receive::{Body, Progress, Rest};
use super::error::{EngineError, Violation};
use super::inbound::{RecvQueue, ResponseQueue};
use super::messages::FramingParameters;
use super::mpa::{Negotiated, ReadyToReceive, Role};
use super::region::{Placement, RegionTable, Requester};
use super::send_queue::SendQueue;
use super::terminate::TerminateMessage;
use super::tx::{TxSink, ULPDU_LEN_MAX, ULPDU_LEN_MIN};
use super::work::{Completion, PostError, RecvFull, WorkRequest};

/// What a queue pair is created with.
#[derive(Clone, Copy, Debug)]
pub struct EngineConfig {
    /// What MPA agreed on.
    pub negotiated: Negotiated,
    /// The protection domain and number of the queue pair.
    pub requester: Requester,
    /// The most work requests on the send queue.
    pub send_queue_depth: usize,
    /// The most buffers on the receive queue.
    pub recv_queue_depth: usize,
    /// The largest ULPDU to emit, in bytes: [`ULPDU_LEN_MAX`], or less for a peer that wants FPDUs to fit its segments.
    pub ulpdu_len_max: u16,
    /// A tagged FPDU that still misses this many bytes of payload is offered as [`Pause::Direct`].
    pub direct_min: usize,
}

impl EngineConfig {
    /// The usual limits: queues of 128, FPDUs as large as possible, direct placement from 2 KiB.
    #[must_use]
    pub fn new(negotiated: Negotiated, requester: Requester) -> Self {
        Self {
            negotiated,
            requester,
            send_queue_depth: 128,
            recv_queue_depth: 128,
            ulpdu_len_max: ULPDU_LEN_MAX,
            direct_min: 2048,
        }
    }

    /// How FPDUs are made.
    fn framing(&self) -> FramingParameters {
        FramingParameters { ulpdu_len_max: self.ulpdu_len_max, crc_used: self.negotiated.crc }
    }
}

/// Acts on received bytes as they are understood. Whether the engine goes on to the next is the answer.
pub trait Receiver<H> {
    /// A piece of the input, as a range of it, is to be copied to its place.
    fn place(&mut self, to: Placement<H>, payload: Range<usize>) -> ControlFlow<()>;

    /// A piece of a Send belongs into the first posted receive buffer.
    fn send_segment(&mut self, segment: SendSegment) -> ControlFlow<()>;
}

/// A piece of a Send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendSegment {
    /// The offset in the buffer.
    pub mo: u32,
    /// The piece, as a range of the input; it may be empty.
    pub payload: Range<usize>,
    /// With the last segment of the message the buffer is used up.
    pub last: bool,
    /// Whether the peer asked for a solicited event; meaningful with the last segment.
    pub solicited: bool,
    /// The STag that this message invalidated, with the last segment.
    pub invalidated: Option<u32>,
}

/// Why [`Engine::receive`] does not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause<H> {
    /// Nothing more can be done until the input holds so many bytes, counted from the first one not consumed.
    NeedMore(usize),
    /// The next `remaining` bytes of the stream belong here: receive them straight into place and call
    /// [`Engine::direct_received`], or receive them as input as usual.
    Direct {
        /// Where they go.
        to: Placement<H>,
        /// How many bytes.
        remaining: usize,
        /// How the message may go on behind them.
        continuation: Option<Continuation>,
    },
    /// The receiver has stopped it.
    Stopped,
}

/// How a message may go on behind the place of [`Pause::Direct`]: `gap` bytes of input, `step` bytes that belong right
/// behind the place, a gap again, and so on, until `total` bytes of steps are there; the last step may be shorter.
/// Nothing that a peer has sent lies there yet, and it may send nothing of the kind: what was received there counts
/// when [`Pause::Direct`] names it, and is input otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Continuation {
    /// The end of one FPDU and the header of the next.
    pub gap: usize,
    /// Bytes of a payload.
    pub step: usize,
    /// Bytes of all of them.
    pub total: usize,
}

/// FPDUs of one queue pair since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FpduCounts {
    /// Emitted for transmission.
    pub emitted: u64,
    /// Received whole and without fault.
    pub received: u64,
}

/// The protocol state of one queue pair.
///
/// The owner promises: memory behind a posted work request stays valid until its [`Completion`]; bytes are put on the
/// wire in the order of emission; after an error it transmits what is left (the Terminate), closes the transport, and
/// calls [`Engine::transport_closed`]. In exchange nothing here allocates after creation, and no input of a peer
/// panics.
#[derive(Debug)]
pub struct Engine<H> {
    config: EngineConfig,
    send_queue: SendQueue<H>,
    responses: ResponseQueue<H>,
    recv_queue: RecvQueue,
    body: Option<Body<H>>,
    /// A responder may not emit before the first FPDU of the initiator (RFC 5044, section 7.1.3).
    awaiting_first: bool,
    ready_send_allowed: bool,
    turn: Source,
    /// What was emitted by posting since [`Engine::transmit`], in bytes.
    emitted_now: usize,
    /// Positions in the emitted stream.
    emitted: u64,
    transmitted: u64,
    counts: FpduCounts,
    error: Option<EngineError>,
    terminate: Option<TerminateMessage>,
    released: bool,
}

/// The incoming reads that are served at a time. The Linux kernel's siw rounds the number that it was granted up to a
/// power of two, and has so many outstanding.
fn served(ird: u16) -> usize {
    if ird == 0 { 0 } else { usize::from(ird).next_power_of_two() }
}

impl<H: Copy> Engine<H> {
    /// A queue pair whose stream stands behind the MPA frames. All memory is allocated here.
    #[must_use]
    pub fn new(config: EngineConfig) -> Self {
        let negotiated = config.negotiated;
        let responder = negotiated.role == Role::Responder;
        let config = EngineConfig { ulpdu_len_max: config.ulpdu_len_max.max(ULPDU_LEN_MIN), ..config };
        // The peer's ready-to-receive message may be a read even when no others are allowed.
        let ird_extra =
            usize::from(responder && negotiated.ready == Some(ReadyToReceive::Read) && negotiated.ird == 0);
        let mut engine = Self {
            config,
            send_queue: SendQueue::new(config.send_queue_depth, usize::from(negotiated.ord)),
            responses: ResponseQueue::new(served(negotiated.ird) + ird_extra),
            recv_queue: RecvQueue::new(config.recv_queue_depth),
            body: None,
            awaiting_first: responder,
            ready_send_allowed: responder && negotiated.ready == Some(ReadyToReceive::Send),
            turn: Source::Work,
            emitted_now: 0,
            emitted: 0,
            transmitted: 0,
            counts: FpduCounts::default(),
            error: None,
            terminate: None,
            released: false,
        };
        // The initiator's first message in peer-to-peer mode (RFC 6581, section 4.1).
        if let (Role::Initiator, Some(ready)) = (negotiated.role, negotiated.ready) {
            engine.send_queue.post_ready(ready);
        }
        engine
    }

    /// Posts a work request; the owner's `wr_id` comes back with its completion.
    ///
    /// # Errors
    /// The queue is full, reads are not allowed, a range wraps, or the connection has ended.
    #[inline(always)]
    pub fn post(&mut self, wr_id: u64, work: WorkRequest<H>) -> Result<(), PostError> {
        if self.error.is_some() || self.released {
            return Err(PostError::Ended);
        }
        self.send_queue.post(wr_id, work)
    }

    /// Sends a Write of no bytes if we connected and nothing has come from the peer, and there is room for it. It moves
    /// nothing and needs no STag (RFC 5040, section 5.1), but a responder that began to listen for FPDUs too late for
    /// our first one looks at its socket again: Linux's siw goes over to FPDUs only after its MPA reply is sent, and
    /// then does not ask what has come in between. Returns whether it was posted.
    pub fn post_empty_write(&mut self) -> bool {
        let asked = self.config.negotiated.role == Role::Initiator && self.counts.emitted > 0;
        let unanswered = asked && self.counts.received == 0 && self.error.is_none() && !self.released;
        let possible = unanswered && self.send_queue.room() > 0;
        if possible {
            self.send_queue.post_ready(ReadyToReceive::Write);
        }
        possible
    }

    /// How many work requests can be posted.
    #[must_use]
    pub fn send_queue_room(&self) -> usize {
        self.send_queue.room()
    }

    /// Posts a receive buffer of `len` bytes. Buffers are used in the order of posting.
    ///
    /// # Errors
    /// The queue is full.
    #[inline]
    pub fn post_recv(&mut self, len: u32) -> Result<(), RecvFull> {
        self.recv_queue.post(len)
    }

    /// Whether [`Self::transmit`] has something to emit.
    #[must_use]
    #[inline]
    pub fn wants_transmit(&self) -> bool {
        self.emitted_now > 0 || self.terminate.is_some() || self.next_source().is_some()
    }

    /// Emits FPDUs until the sink is full, or nothing is left. Returns the number of bytes emitted, those that posting
    /// has emitted since the last time among them; report them with [`Self::transmitted`] when the transport has taken
    /// them.
    pub fn transmit(&mut self, regions: &RegionTable<H>, sink: &mut impl TxSink<H>) -> usize {
        let mut total = std::mem::take(&mut self.emitted_now);
        self.send_queue.end_run();
        while sink.has_room() {
            let fpdu_len = self.emit_next(regions, sink);
            if fpdu_len == 0 {
                break;
            }
            self.emitted += fpdu_len as u64;
            self.counts.emitted += 1;
            total += fpdu_len;
        }
        total
    }

    /// The transport has taken `count` more bytes of the emitted stream and no longer reads their memory.
    #[inline]
    pub fn transmitted(&mut self, count: usize) {
        self.transmitted += count as u64;
        assert!(self.transmitted <= self.emitted, "more bytes were transmitted than emitted");
    }

    /// The next completion of the send queue, in the order of posting. Work requests that were emitted as they were
    /// posted may share one.
    #[inline]
    pub fn poll_completion(&mut self) -> Option<Completion<H>> {
        self.send_queue.pop_completion(self.transmitted, self.released)
    }

    /// Takes bytes from the front of the stream and has `receiver` act on them, until there are no more, or it stops.
    /// Returns how many it is done with, and why it does not go on; call again with the input behind them. With CRCs in
    /// use, everything but the pieces of an FPDU that is larger than the input is reported after its CRC was found
    /// right. The buffer behind `input` must be able to hold [`FPDU_LEN_MAX`](super::FPDU_LEN_MAX) bytes, or a large
    /// FPDU may never fit.
    ///
    /// # Errors
    /// The connection is over. When the peer broke a rule, a Terminate is ready to be transmitted.
    #[inline]
    pub fn receive(
        &mut self,
        input: &[u8],
        regions: &mut RegionTable<H>,
        receiver: &mut impl Receiver<H>,
    ) -> Result<(usize, Pause<H>), EngineError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let mut at = 0;
        loop {
            let rest = Rest { input, at };
            let progress = match self.body {
                Some(body) => self.continue_body(body, rest, receiver),
                None => self.next_fpdu(rest, regions, receiver),
            };
            match progress {
                Ok(Progress::Consumed(count, ControlFlow::Continue(()))) => at += count,
                Ok(Progress::Consumed(count, ControlFlow::Break(()))) => {
                    return Ok((at + count, Pause::Stopped));
                }
                Ok(Progress::Pause(pause)) => return Ok((at, pause)),
                Ok(Progress::Terminated(terminate)) => {
                    return Err(self.end(EngineError::Terminated(terminate)));
                }
                Err(violation) => return Err(self.fail(violation, &input[at..])),
            }
        }
    }

    /// The owner received `count` bytes straight into the place that [`Pause::Direct`] named. `update` maps the CRC
    /// register over these bytes; it is called only when CRCs are in use.
    pub fn direct_received(&mut self, count: usize, update: impl FnOnce(u32) -> u32) {
        let crc_used = self.config.negotiated.crc;
        let Some(body) = self.body.as_mut() else {
            assert_eq!(count, 0, "no direct placement is under way");
            return;
        };
        assert!(count <= body.remaining, "more bytes than a direct placement asks for");
        if crc_used && count > 0 {
            body.crc = update(body.crc);
        }
        body.advance(count);
    }

    /// The direct placement that is under way.
    #[must_use]
    pub fn direct(&self) -> Option<(Placement<H>, usize)> {
        self.body
            .filter(|body| body.remaining > 0 && self.error.is_none())
            .map(|body| (body.to, body.remaining))
    }

    /// The peer closed its side of the stream, with `unconsumed` bytes that made no whole FPDU.
    pub fn stream_ended(&mut self, unconsumed: usize) -> EngineError {
        let missing = match self.body {
            Some(body) => body.remaining + body.pad + FPDU_CRC_SIZE,
            None => usize::from(unconsumed > 0),
        };
        self.end(if missing > 0 { EngineError::Truncated { missing } } else { EngineError::Closed })
    }

    /// Ends the connection from this side with a Terminate of this code.
    pub fn terminate(&mut self, code: TerminateCode) {
        if self.error.is_none() {
            self.terminate = Some(TerminateMessage::new(code, &[]));
            self.end(EngineError::Local(code));
        }
    }

    /// How many FPDUs went either way.
    #[must_use]
    pub fn fpdu_counts(&self) -> FpduCounts {
        self.counts
    }

    /// Why the connection is over, if it is.
    #[must_use]
    pub fn error(&self) -> Option<EngineError> {
        self.error
    }

    /// The transport no longer touches any memory: from now on [`Self::poll_completion`] hands everything back.
    pub fn transport_closed(&mut self) {
        self.terminate = None;
        self.released = true;
        self.end(EngineError::Closed);
    }
}

impl<H: Copy> Engine<H> {
    /// The peer broke a rule: prepares the Terminate, with the headers of the offending FPDU when they are there.
    #[cold]
    fn fail(&mut self, violation: Violation, fpdu: &[u8]) -> EngineError {
        let fpdu = if self.body.is_some() { &[] } else { fpdu };
        self.terminate = Some(TerminateMessage::new(violation.terminate_code(), fpdu));
        self.end(EngineError::Violation(violation))
    }

    #[cold]
    fn end(&mut self, error: EngineError) -> EngineError {
        self.responses.clear();
        *self.error.get_or_insert(error)
    }
}
