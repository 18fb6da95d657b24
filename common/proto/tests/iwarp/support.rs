//! An owner for the engine that keeps its memory in vectors, and hand-made FPDUs.

use std::ops::{ControlFlow, Range};

use ringfab_proto::iwarp::mpa::{Negotiated, ReadyToReceive, Revision, Role};
use ringfab_proto::iwarp::{
    Access, Completion, Continuation, Engine, EngineConfig, EngineError, Inline, Local, Pause, Placement,
    PostError, ProtectionDomain, QueuePairId, Receiver, Region, RegionTable, Requester, SendRef, SendRequest,
    SendSegment, TerminateCode, TxSink, WorkRequest, crc,
};

pub(crate) const PD: ProtectionDomain = ProtectionDomain(7);
pub(crate) const QP: QueuePairId = QueuePairId(3);
pub(crate) const REQUESTER: Requester = Requester { pd: PD, qp: QP };
pub(crate) const RECV_LEN: u32 = 1 << 20;

pub(crate) fn negotiated(role: Role) -> Negotiated {
    Negotiated { role, revision: Revision::Two, crc: true, ird: 4, ord: 4, ready: None }
}

/// An engine with its memory; a handle is an index into `memory`.
pub(crate) struct Host {
    pub(crate) engine: Engine<usize>,
    pub(crate) regions: RegionTable<usize>,
    pub(crate) memory: Vec<Vec<u8>>,
    pub(crate) staging: Vec<u8>,
    pub(crate) messages: Vec<Vec<u8>>,
    pub(crate) solicited: Vec<bool>,
    pub(crate) invalidated: Vec<u32>,
    pub(crate) completions: Vec<Completion<usize>>,
    /// Whether to receive straight into place when the engine offers it.
    pub(crate) use_direct: bool,
    pub(crate) direct_bytes: usize,
    partial: Vec<u8>,
    /// What the engine emitted as it was posted.
    emitted_now: Vec<u8>,
    /// Whether what was emitted so last shares its completion with what came before it.
    pub(crate) joined: bool,
    random: u32,
}

impl Host {
    pub(crate) fn new(negotiated: Negotiated) -> Self {
        Self::with_config(EngineConfig::new(negotiated, REQUESTER))
    }

    pub(crate) fn with_config(config: EngineConfig) -> Self {
        Self {
            engine: Engine::new(config),
            regions: RegionTable::new(64),
            memory: Vec::new(),
            staging: Vec::new(),
            messages: Vec::new(),
            solicited: Vec::new(),
            invalidated: Vec::new(),
            completions: Vec::new(),
            use_direct: true,
            direct_bytes: 0,
            partial: Vec::new(),
            emitted_now: Vec::new(),
            joined: false,
            random: 0x1234_5678,
        }
    }

    pub(crate) fn allocate(&mut self, bytes: Vec<u8>) -> usize {
        self.memory.push(bytes);
        self.memory.len() - 1
    }

    pub(crate) fn expose(&mut self, handle: usize, base: u64, access: Access) -> u32 {
        let len = self.memory[handle].len() as u64;
        self.register(Region { pd: PD, qp: None, base, len, access, handle })
    }

    pub(crate) fn register(&mut self, region: Region<usize>) -> u32 {
        let random = &mut self.random;
        let draw = || {
            *random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *random
        };
        self.regions.register(region, draw).expect("the table has room")
    }

    pub(crate) fn post_recvs(&mut self, count: usize) {
        for _ in 0..count {
            self.engine.post_recv(RECV_LEN).expect("the queue has room");
        }
    }

    pub(crate) fn send(&mut self, wr_id: u64, bytes: &[u8]) {
        self.engine.post(wr_id, WorkRequest::Send(send_inline(bytes))).expect("the queue has room");
    }

    /// Posts, and has the message emitted at once if it may be. Returns whether it was.
    pub(crate) fn post_now(&mut self, wr_id: u64, work: WorkRequest<usize>) -> Result<bool, PostError> {
        let bytes = std::mem::take(&mut self.emitted_now);
        let mut sink = Wire { bytes, memory: &self.memory, budget: usize::MAX };
        let now = match &work {
            WorkRequest::Send(SendRequest { inline, payload, invalidate, solicited }) => {
                let inline = inline.as_slice();
                let len = inline.len() as u64 + payload.map_or(0, |local| u64::from(local.len));
                let (payload, invalidate, solicited) = (*payload, *invalidate, *solicited);
                let now = self.engine.sends_now(len);
                if now {
                    let send = SendRef { inline, payload, invalidate, solicited };
                    self.joined = self.engine.send_now(wr_id, &send, &mut sink);
                }
                now
            }
            WorkRequest::Write(write) => {
                let now = self.engine.writes_now(write.to, write.payload.len);
                if now {
                    self.joined = self.engine.write_now(wr_id, write, &mut sink);
                }
                now
            }
            WorkRequest::Read(_) => false,
        };
        self.emitted_now = sink.bytes;
        if !now {
            self.engine.post(wr_id, work)?;
        }
        Ok(now)
    }

    /// Everything that can be emitted within `budget`, and then transmitted at once.
    pub(crate) fn emit(&mut self, budget: usize) -> Vec<u8> {
        let bytes = self.transmit(budget);
        self.engine.transmitted(bytes.len());
        self.collect();
        bytes
    }

    /// The same, but it is still on its way.
    pub(crate) fn transmit(&mut self, budget: usize) -> Vec<u8> {
        let bytes = std::mem::take(&mut self.emitted_now);
        let mut sink = Wire { bytes, memory: &self.memory, budget };
        let emitted = self.engine.transmit(&self.regions, &mut sink);
        let bytes = sink.bytes;
        assert_eq!(bytes.len(), emitted, "the engine counts what it emits");
        bytes
    }

    pub(crate) fn emit_all(&mut self) -> Vec<u8> {
        self.emit(usize::MAX)
    }

    /// Acts on bytes from the peer until more are needed.
    pub(crate) fn feed(&mut self, mut bytes: &[u8]) -> Result<(), EngineError> {
        loop {
            if let (true, true, Some((to, remaining))) =
                (self.use_direct, self.staging.is_empty(), self.engine.direct())
            {
                let (now, later) = bytes.split_at(remaining.min(bytes.len()));
                self.engine.direct_received(now.len(), |state| crc::update(state, now));
                put(&mut self.memory, to, now);
                self.direct_bytes += now.len();
                bytes = later;
            }
            let more = !bytes.is_empty();
            self.staging.extend_from_slice(bytes);
            bytes = &[];
            if self.step()? && !more {
                self.collect();
                return Ok(());
            }
        }
    }

    /// One call of the engine, with input that it takes.
    pub(crate) fn take(&mut self, input: &[u8]) -> (usize, Pause<usize>) {
        self.receive(input).expect("good input")
    }

    fn receive(&mut self, staging: &[u8]) -> Result<(usize, Pause<usize>), EngineError> {
        let Self { engine, regions, memory, messages, solicited, invalidated, partial, .. } = self;
        let mut acting = Acting { staging, memory, messages, solicited, invalidated, partial };
        engine.receive(staging, regions, &mut acting)
    }

    /// One call of the engine with what is there; whether it waits for input.
    fn step(&mut self) -> Result<bool, EngineError> {
        let staging = std::mem::take(&mut self.staging);
        let (consumed, pause) = self.receive(&staging)?;
        let memory = &self.memory;
        match pause {
            Pause::NeedMore(want) => {
                assert!(want > staging.len() - consumed, "asks for bytes that are there");
            }
            Pause::Direct { to, remaining, continuation } => {
                assert!(remaining > 0, "a direct placement of nothing");
                if let Some(Continuation { gap, step, total }) = continuation {
                    let end = to.offset as usize + remaining + total;
                    assert!(end <= memory[to.handle].len(), "nothing goes on beyond the memory");
                    assert!(gap > 16 && step > 0 && total > 0, "{continuation:?}");
                }
            }
            Pause::Stopped => {}
        }
        self.staging = staging[consumed..].to_vec();
        Ok(pause != Pause::Stopped)
    }

    pub(crate) fn collect(&mut self) {
        while let Some(completion) = self.engine.poll_completion() {
            self.completions.push(completion);
        }
    }
}

pub(crate) fn send_inline(bytes: &[u8]) -> SendRequest<usize> {
    let inline = Inline::new(bytes);
    SendRequest { inline, payload: None, invalidate: None, solicited: false }
}

pub(crate) fn local(handle: usize, offset: u64, len: u32) -> Local<usize> {
    Local { handle, offset, len }
}

fn put(memory: &mut [Vec<u8>], to: Placement<usize>, bytes: &[u8]) {
    let start = usize::try_from(to.offset).expect("small offsets");
    memory[to.handle][start..start + bytes.len()].copy_from_slice(bytes);
}

/// Acts on what is received. It has the engine stop behind each piece that is placed, and go on behind each of a Send.
struct Acting<'a> {
    staging: &'a [u8],
    memory: &'a mut [Vec<u8>],
    messages: &'a mut Vec<Vec<u8>>,
    solicited: &'a mut Vec<bool>,
    invalidated: &'a mut Vec<u32>,
    partial: &'a mut Vec<u8>,
}

impl Receiver<usize> for Acting<'_> {
    fn place(&mut self, to: Placement<usize>, payload: Range<usize>) -> ControlFlow<()> {
        put(self.memory, to, &self.staging[payload]);
        ControlFlow::Break(())
    }

    fn send_segment(&mut self, segment: SendSegment) -> ControlFlow<()> {
        let SendSegment { mo, payload, last, solicited, invalidated } = segment;
        assert_eq!(mo as usize, self.partial.len(), "segments arrive in order");
        self.partial.extend_from_slice(&self.staging[payload]);
        self.invalidated.extend(invalidated);
        if last {
            self.messages.push(std::mem::take(self.partial));
            self.solicited.push(solicited);
        }
        ControlFlow::Continue(())
    }
}

struct Wire<'a> {
    bytes: Vec<u8>,
    memory: &'a [Vec<u8>],
    /// With so many bytes, or more, it is full.
    budget: usize,
}

impl Wire<'_> {
    fn piece(&self, handle: usize, offset: u64, len: usize) -> &[u8] {
        let start = usize::try_from(offset).expect("small offsets");
        &self.memory[handle][start..start + len]
    }
}

impl TxSink<usize> for Wire<'_> {
    fn has_room(&self) -> bool {
        self.bytes.len() < self.budget
    }

    fn room(&mut self, len: usize) -> &mut [u8] {
        let start = self.bytes.len();
        self.bytes.resize(start + len, 0xee);
        &mut self.bytes[start..]
    }

    fn payload(&mut self, handle: usize, offset: u64, len: usize) {
        let piece = self.piece(handle, offset, len).to_vec();
        self.bytes.extend_from_slice(&piece);
    }

    fn crc(&mut self, handle: usize, offset: u64, len: usize, state: u32) -> u32 {
        crc::update(state, self.piece(handle, offset, len))
    }
}

/// Moves bytes both ways in pieces of at most `chunk` until both sides are silent.
pub(crate) fn run(a: &mut Host, b: &mut Host, budget: usize, chunk: usize) -> Result<(), EngineError> {
    loop {
        let (from_a, from_b) = (a.emit(budget), b.emit(budget));
        if from_a.is_empty() && from_b.is_empty() {
            return Ok(());
        }
        from_a.chunks(chunk).try_for_each(|piece| b.feed(piece))?;
        from_b.chunks(chunk).try_for_each(|piece| a.feed(piece))?;
    }
}

/// Two hosts that can talk.
pub(crate) fn pair(ready: Option<ReadyToReceive>) -> (Host, Host) {
    let initiator = Host::new(Negotiated { ready, ..negotiated(Role::Initiator) });
    let responder = Host::new(Negotiated { ready, ..negotiated(Role::Responder) });
    (initiator, responder)
}

/// Puts length field, padding and CRC around a ULPDU.
pub(crate) fn fpdu(ulpdu: &[u8]) -> Vec<u8> {
    let mut bytes = u16::try_from(ulpdu.len()).expect("fits").to_be_bytes().to_vec();
    bytes.extend_from_slice(ulpdu);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes.extend_from_slice(&crc::of(&bytes));
    bytes
}

/// A tagged ULPDU with valid versions.
pub(crate) fn tagged(opcode: u8, last: bool, stag: u32, to: u64, payload: &[u8]) -> Vec<u8> {
    let mut ulpdu = vec![0x81 | u8::from(last) << 6, 0x40 | opcode];
    ulpdu.extend_from_slice(&stag.to_be_bytes());
    ulpdu.extend_from_slice(&to.to_be_bytes());
    ulpdu.extend_from_slice(payload);
    ulpdu
}

/// An untagged ULPDU with valid versions; `words` are invalidate STag, QN, MSN, MO.
pub(crate) fn untagged(opcode: u8, last: bool, words: [u32; 4], payload: &[u8]) -> Vec<u8> {
    let mut ulpdu = vec![0x01 | u8::from(last) << 6, 0x40 | opcode];
    words.iter().for_each(|word| ulpdu.extend_from_slice(&word.to_be_bytes()));
    ulpdu.extend_from_slice(payload);
    ulpdu
}

/// The payload of a Read Request.
pub(crate) fn read_request(sink: (u32, u64), len: u32, source: (u32, u64)) -> Vec<u8> {
    let mut payload = sink.0.to_be_bytes().to_vec();
    payload.extend_from_slice(&sink.1.to_be_bytes());
    payload.extend_from_slice(&len.to_be_bytes());
    payload.extend_from_slice(&source.0.to_be_bytes());
    payload.extend_from_slice(&source.1.to_be_bytes());
    payload
}

/// The code and the quoted bytes of an emitted Terminate.
pub(crate) fn parse_terminate(bytes: &[u8]) -> (TerminateCode, u8, Vec<u8>) {
    assert_eq!(bytes[2..4], [0x41, 0x47], "an untagged last segment with opcode 7");
    assert_eq!(bytes[8..20], [0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0], "queue 2, MSN 1, MO 0");
    let ulpdu_len = usize::from(u16::from_be_bytes([bytes[0], bytes[1]]));
    assert_eq!(bytes.len(), (2 + ulpdu_len).next_multiple_of(4) + 4, "one FPDU and nothing else");
    let code = TerminateCode { layer: (bytes[20] >> 4).into(), etype: bytes[20] & 15, code: bytes[21] };
    (code, bytes[22], bytes[24..2 + ulpdu_len].to_vec())
}
