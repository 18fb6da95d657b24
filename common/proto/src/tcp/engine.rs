//! What PDUs mean on a connection, in the order in which they come.

use core::ops::Range;

use ringfab_spec::tcp::{
    CapsuleCmd, CapsuleResp, CommonHeader, DataHeader, PduType, ReadyToTransfer, TermReq,
};
use ringfab_spec::{CompletionEntry, FromBytes, IntoBytes, SubmissionEntry};

use super::commands::{CommandData, Commands, SubmitError};
use super::error::{EngineError, Termination, Violation};
use super::init::{ControllerConfig, HostConfig, Negotiated};
use super::rx::{Framed, Receiver, Side};
use super::transfers::Transfers;
use super::tx::{C2hData, H2cData, Pdu, Source, TransmitQueue, TxSink};

/// Where received data belong; `offset` counts from the start of the command's or transfer's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Behind the command that came last.
    Capsule {
        /// First byte.
        offset: u32,
    },
    /// In the memory for a transfer, by its tag.
    Transfer {
        /// As [`Engine::request`] gave it.
        tag: u16,
        /// First byte.
        offset: u32,
    },
    /// In the memory of a command of ours.
    Command {
        /// Its identifier.
        cid: u16,
        /// First byte.
        offset: u32,
    },
}

impl Place {
    /// The place so many bytes later.
    #[must_use]
    pub fn advanced(self, more: u32) -> Self {
        match self {
            Self::Capsule { offset } => Self::Capsule { offset: offset + more },
            Self::Transfer { tag, offset } => Self::Transfer { tag, offset: offset + more },
            Self::Command { cid, offset } => Self::Command { cid, offset: offset + more },
        }
    }
}

/// What the front of the stream means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// More bytes are needed.
    NeedMore,
    /// These bytes of the input belong to a place.
    Place {
        /// Where.
        to: Place,
        /// Which.
        payload: Range<usize>,
    },
    /// The next `remaining` bytes belong to a place; they can be received there, and told with
    /// [`Engine::direct_received`], or come in as input.
    Direct {
        /// Where.
        to: Place,
        /// How many.
        remaining: usize,
    },
    /// ICReq and ICResp were exchanged: commands can flow.
    Initialized,
    /// To a controller: a command. If it has in-capsule data they follow, and then [`Event::CommandEnd`].
    Command {
        /// The command.
        sqe: SubmissionEntry,
        /// Bytes of in-capsule data.
        data_bytes: u32,
    },
    /// To a controller: the in-capsule data of the last command are complete.
    CommandEnd {
        /// Whether the digest of its data was right.
        intact: bool,
    },
    /// To a controller: all data of a transfer are here. Its tag is free.
    TransferEnd {
        /// The tag.
        tag: u16,
        /// Whether the digests of its data were right.
        intact: bool,
    },
    /// To a host: a command has its answer.
    Response {
        /// The answer. After SUCCESS it was not sent and is made up, with FFFFh in SQHD.
        cqe: CompletionEntry,
        /// Whether the digests of the command's data were right.
        intact: bool,
        /// Bytes of data that the controller has sent for it.
        received: u32,
    },
}

/// What was consumed of the input, and what it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Bytes that are done with.
    pub consumed: usize,
    /// Their meaning.
    pub event: Event,
}

/// To whom the data of the PDU being received belong.
#[derive(Clone, Copy, Debug)]
struct Current {
    place: Place,
    /// Stands for the response.
    success: bool,
}

#[derive(Debug)]
enum Role<H> {
    Controller { config: ControllerConfig, transfers: Transfers },
    Host { config: HostConfig, commands: Commands<H> },
}

/// One end of a connection.
///
/// What it is given to send it emits at once where nothing waits before it: the sink that comes with it is the one of
/// the next [`Engine::transmit`].
#[derive(Debug)]
pub struct Engine<H> {
    receiver: Receiver,
    transmit_queue: TransmitQueue<H>,
    role: Role<H>,
    current: Option<Current>,
    ended: bool,
}

impl<H: Clone> Engine<H> {
    /// The controller's end; the host speaks first.
    pub fn controller(config: ControllerConfig) -> Self {
        let alignment = usize::from(config.alignment_dwords) * 4;
        let mut receiver = Receiver::new(Side::Controller, alignment, config.direct_bytes_min);
        receiver.capsule_bytes_max = config.capsule_bytes_max;
        receiver.h2c_bytes_max = config.h2c_bytes_max;
        let transfers = Transfers::new(config.transfers_max);
        Self {
            receiver,
            transmit_queue: TransmitQueue::new(2 * usize::from(config.transfers_max)),
            role: Role::Controller { config, transfers },
            current: None,
            ended: false,
        }
    }

    /// The host's end; its ICReq waits to be sent.
    pub fn host(config: HostConfig) -> Self {
        let alignment = usize::from(config.alignment_dwords) * 4;
        let receiver = Receiver::new(Side::Host, alignment, config.direct_bytes_min);
        let commands = Commands::new(config.commands_max, config.r2ts_max);
        let mut transmit_queue = TransmitQueue::new(2 * usize::from(config.commands_max));
        transmit_queue.push_first(config.request().as_bytes());
        Self { receiver, transmit_queue, role: Role::Host { config, commands }, current: None, ended: false }
    }

    /// The controller's end of a connection on which ICReq and ICResp were exchanged, by an engine of which nothing
    /// else is left.
    pub fn resume(config: ControllerConfig, negotiated: Negotiated) -> Self {
        let mut this = Self::controller(config);
        this.apply(negotiated);
        this
    }

    /// What was agreed on, once it was.
    pub fn negotiated(&self) -> Option<Negotiated> {
        self.receiver.initialized.then_some(Negotiated {
            digests: self.transmit_queue.digests,
            peer_alignment: self.transmit_queue.alignment,
            h2c_bytes_max: self.transmit_queue.h2c_bytes_max,
        })
    }

    /// The memory of a command of ours, into which data come.
    pub fn sink(&self, cid: u16) -> Option<&Source<H>> {
        match &self.role {
            Role::Host { commands, .. } => commands.sink(cid),
            Role::Controller { .. } => None,
        }
    }

    /// Looks at the front of the stream.
    ///
    /// # Errors
    /// What ends the connection.
    #[inline]
    pub fn receive(&mut self, input: &[u8]) -> Result<Step, EngineError> {
        if self.ended {
            return Err(EngineError::Ended);
        }
        let mut done = 0;
        loop {
            let (consumed, framed) =
                self.receiver.receive(&input[done..]).map_err(|violation| self.violated(violation))?;
            let start = done;
            done += consumed;
            let event = match framed {
                Framed::NeedMore => Some(Event::NeedMore),
                Framed::Header { header, data_bytes } => {
                    self.on_header(&input[start..][header], data_bytes)?
                }
                Framed::Data { offset, payload } => {
                    let to = self.place(offset);
                    Some(Event::Place { to, payload: payload.start + start..payload.end + start })
                }
                Framed::Awaited { offset, remaining } => {
                    Some(Event::Direct { to: self.place(offset), remaining: remaining as usize })
                }
                Framed::End { intact } => self.on_data_end(intact)?,
            };
            if let Some(event) = event {
                return Ok(Step { consumed: done, event });
            }
        }
    }

    /// Bytes of [`Event::Direct`] were received in their place; `checksum` continues a CRC register over them.
    pub fn direct_received(&mut self, length: usize, checksum: impl FnOnce(u32) -> u32) {
        self.receiver.direct_received(length as u32, checksum);
    }

    /// Asks for `length` bytes of a command's data from `offset` on, as one R2T. Returns the transfer's tag; `None`
    /// when as many are outstanding as may. A command has one R2T outstanding at a time, which every host allows.
    pub fn request(&mut self, cid: u16, offset: u32, length: u32) -> Option<u16> {
        let Role::Controller { transfers, .. } = &mut self.role else { return None };
        let ttag = transfers.begin(cid, offset, length)?;
        self.transmit_queue.push(Pdu::R2t { cid, ttag, offset, length });
        Some(ttag)
    }

    /// Sends data of a command, in the order of their offsets. Counted when it was sent.
    #[inline(always)]
    pub fn send_data(&mut self, data: C2hData<H>, sink: &mut impl TxSink<H>) {
        let C2hData { cid, offset, source, last, success } = data;
        assert!(last || !success, "success is said with the last data");
        self.transmit_queue.give(Pdu::C2hData { cid, offset, source, last, success }, sink);
    }

    /// Answers a command. Counted when it was sent.
    #[inline(always)]
    pub fn respond(&mut self, cqe: CompletionEntry, sink: &mut impl TxSink<H>) {
        self.transmit_queue.give(Pdu::Response { cqe }, sink);
    }

    /// Sends a command.
    ///
    /// # Errors
    /// It was not taken.
    #[inline(always)]
    pub fn submit(
        &mut self,
        sqe: SubmissionEntry,
        data: CommandData<H>,
        sink: &mut impl TxSink<H>,
    ) -> Result<(), SubmitError> {
        let Role::Host { commands, .. } = &mut self.role else { return Err(SubmitError::Ended) };
        if self.ended {
            return Err(SubmitError::Ended);
        }
        commands.begin(sqe.cid.get(), &data)?;
        let data = if let CommandData::Capsule(source) = data { Some(source) } else { None };
        self.transmit_queue.give(Pdu::Command { sqe, data }, sink);
        Ok(())
    }

    /// Whether there is something to send, be it emitted already.
    #[inline]
    pub fn wants_transmit(&self) -> bool {
        !self.transmit_queue.is_empty()
    }

    /// Emits PDUs until there are none or the sink is full, behind what was emitted as it was given.
    pub fn transmit(&mut self, sink: &mut impl TxSink<H>) {
        self.transmit_queue.transmit(sink);
        while let Some(cid) = self.transmit_queue.served.pop_front() {
            if let Role::Host { commands, .. } = &mut self.role {
                commands.served(cid);
            }
        }
    }

    /// Everything emitted up to the last [`Engine::transmit`] has been sent: how many [responses](Engine::respond) and
    /// [data](Engine::send_data) it was.
    pub fn transmitted(&mut self) -> u32 {
        self.transmit_queue.transmitted()
    }

    /// Ends the connection from here, without a word: lets go of all memory.
    pub fn close(&mut self) {
        self.ended = true;
        self.transmit_queue.clear();
        if let Role::Host { commands, .. } = &mut self.role {
            commands.clear();
        }
    }

    fn place(&self, offset: u32) -> Place {
        self.current.map_or(Place::Capsule { offset }, |current| current.place.advanced(offset))
    }

    #[inline]
    fn on_header(&mut self, header: &[u8], data_bytes: u32) -> Result<Option<Event>, EngineError> {
        let pdu_type = CommonHeader::read_from_prefix(header).map_or(PduType(0xff), |(ch, _)| ch.pdu_type);
        let outcome = match pdu_type {
            PduType::H2C_TERM_REQ | PduType::C2H_TERM_REQ => {
                self.close();
                return Err(EngineError::Terminated(Termination::of(header)));
            }
            PduType::IC_REQ | PduType::IC_RESP => self.on_init(header).map(Some),
            PduType::CAPSULE_CMD => {
                let sqe = read::<CapsuleCmd>(header).sqe;
                let current = Current { place: Place::Capsule { offset: 0 }, success: false };
                self.current = (data_bytes > 0).then_some(current);
                Ok(Some(Event::Command { sqe, data_bytes }))
            }
            PduType::CAPSULE_RESP => self.on_response(read::<CapsuleResp>(header).cqe).map(Some),
            PduType::R2T => self.on_r2t(&read(header)).map(|()| None),
            _ => self.on_data(&read(header), data_bytes).map(|()| None),
        };
        outcome.map_err(|violation| self.violated(violation))
    }

    fn on_init(&mut self, header: &[u8]) -> Result<Event, Violation> {
        let negotiated = match &self.role {
            Role::Controller { config, .. } => {
                let (negotiated, response) = config.agree(header)?;
                self.transmit_queue.push_first(response.as_bytes());
                negotiated
            }
            Role::Host { config, .. } => config.agree(header)?,
        };
        self.apply(negotiated);
        Ok(Event::Initialized)
    }

    fn apply(&mut self, negotiated: Negotiated) {
        let Negotiated { digests, peer_alignment, h2c_bytes_max } = negotiated;
        (self.receiver.initialized, self.receiver.digests) = (true, digests);
        (self.transmit_queue.digests, self.transmit_queue.alignment) = (digests, peer_alignment);
        self.transmit_queue.h2c_bytes_max = h2c_bytes_max;
    }

    fn on_r2t(&mut self, wanted: &ReadyToTransfer) -> Result<(), Violation> {
        let Role::Host { commands, .. } = &mut self.role else { return Ok(()) };
        let source = commands.request(wanted)?;
        let (cid, ttag) = (wanted.cccid.get(), wanted.ttag.get());
        self.transmit_queue.push(Pdu::H2cData(H2cData { cid, ttag, offset: wanted.r2to.get(), source }));
        Ok(())
    }

    #[inline]
    fn on_data(&mut self, header: &DataHeader, data_bytes: u32) -> Result<(), Violation> {
        let place = match &mut self.role {
            Role::Controller { transfers, .. } => {
                let (tag, offset) = transfers.accept(header, data_bytes)?;
                Place::Transfer { tag, offset }
            }
            Role::Host { commands, .. } => {
                let (cid, offset) = commands.accept(header, data_bytes)?;
                Place::Command { cid, offset }
            }
        };
        self.current = Some(Current { place, success: header.ch.flags.success() });
        Ok(())
    }

    #[inline]
    fn on_data_end(&mut self, intact: bool) -> Result<Option<Event>, EngineError> {
        let Some(Current { place, success }) = self.current.take() else { return Ok(None) };
        match (place, &mut self.role) {
            (Place::Capsule { .. }, _) => Ok(Some(Event::CommandEnd { intact })),
            (Place::Transfer { tag, .. }, Role::Controller { transfers, .. }) => {
                let ended = transfers.end_of_data(tag, intact);
                Ok(ended.map(|intact| Event::TransferEnd { tag, intact }))
            }
            (Place::Command { cid, .. }, Role::Host { commands, .. }) => {
                commands.end_of_data(cid, intact);
                if !success {
                    return Ok(None);
                }
                let answer = self.on_response(CompletionEntry::success(cid, u16::MAX));
                answer.map(Some).map_err(|violation| self.violated(violation))
            }
            _ => Ok(None),
        }
    }

    #[inline(always)]
    fn on_response(&mut self, cqe: CompletionEntry) -> Result<Event, Violation> {
        let Role::Host { commands, .. } = &mut self.role else {
            return Err(Violation::sequence("a response to a controller"));
        };
        let cid = cqe.cid.get();
        let answered = commands.answer(cid, cqe.status().is_success())?;
        if answered.unsent {
            self.transmit_queue.drop_data(cid);
        }
        Ok(Event::Response { cqe, intact: answered.intact, received: answered.received })
    }

    /// Ends the connection and has the peer told why.
    #[cold]
    fn violated(&mut self, violation: Violation) -> EngineError {
        self.close();
        let pdu_type = match self.role {
            Role::Controller { .. } => PduType::C2H_TERM_REQ,
            Role::Host { .. } => PduType::H2C_TERM_REQ,
        };
        let quote = self.receiver.quote();
        let request = TermReq::new(pdu_type, violation.fes, violation.fei, quote.len());
        let mut pdu = request.as_bytes().to_vec();
        pdu.extend_from_slice(quote);
        self.transmit_queue.push_first(&pdu);
        EngineError::Violation(violation)
    }
}

/// Reads a header that is as long as its type asks for.
fn read<T: FromBytes>(header: &[u8]) -> T {
    T::read_from_prefix(header).map_or_else(|_| T::new_zeroed(), |(value, _)| value)
}
