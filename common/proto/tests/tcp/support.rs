//! Two engines, memory behind their handles, and the bytes between them.

use std::collections::BTreeMap;

use ringfab_proto::tcp::{
    CommandData, ControllerConfig, Digests, Engine, EngineError, Event, HostConfig, Place, Source,
    SubmitError, TxSink, crc,
};
use ringfab_spec::SubmissionEntry;

/// An end with its memory.
pub(crate) struct End {
    pub(crate) engine: Engine<u32>,
    pub(crate) memory: BTreeMap<u32, Vec<u8>>,
    /// Memory of transfers by tag.
    pub(crate) transfers: BTreeMap<u16, Vec<u8>>,
    pub(crate) capsule: Vec<u8>,
    /// Received bytes that the engine has not consumed.
    pub(crate) unread: Vec<u8>,
    pub(crate) events: Vec<Event>,
    /// What the engine emitted as it was given.
    emitted: Vec<u8>,
    /// Whether there is no room for what is given.
    pub(crate) full: bool,
    /// Whether large data are told as received directly.
    pub(crate) direct: bool,
}

pub(crate) struct Wire<'a> {
    bytes: Vec<u8>,
    full: bool,
    memory: &'a BTreeMap<u32, Vec<u8>>,
}

impl TxSink<u32> for Wire<'_> {
    fn has_room(&self) -> bool {
        !self.full
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    fn payload(&mut self, handle: u32, offset: u32, length: u32) {
        let range = offset as usize..(offset + length) as usize;
        self.bytes.extend_from_slice(&self.memory[&handle][range]);
    }

    fn crc(&mut self, handle: &u32, offset: u32, length: u32, state: u32) -> u32 {
        crc::update(state, &self.memory[handle][offset as usize..(offset + length) as usize])
    }
}

pub(crate) fn digests(header: bool, data: bool) -> Digests {
    Digests::default().with_header(header).with_data(data)
}

pub(crate) fn controller_config() -> ControllerConfig {
    ControllerConfig {
        digests: digests(true, true),
        alignment_dwords: 1,
        capsule_bytes_max: 8192,
        h2c_bytes_max: 4096,
        transfers_max: 8,
        direct_bytes_min: 64,
    }
}

pub(crate) fn host_config() -> HostConfig {
    HostConfig {
        digests: digests(false, false),
        alignment_dwords: 1,
        r2ts_max: 2,
        commands_max: 8,
        direct_bytes_min: 64,
    }
}

impl End {
    pub(crate) fn new(engine: Engine<u32>) -> Self {
        Self {
            engine,
            memory: BTreeMap::new(),
            transfers: BTreeMap::new(),
            capsule: Vec::new(),
            unread: Vec::new(),
            events: Vec::new(),
            emitted: Vec::new(),
            full: false,
            direct: false,
        }
    }

    pub(crate) fn submit(&mut self, sqe: SubmissionEntry, data: CommandData<u32>) -> Result<(), SubmitError> {
        self.give(|engine, wire| engine.submit(sqe, data, wire))
    }

    /// Gives the engine something to send.
    pub(crate) fn give<R>(&mut self, act: impl FnOnce(&mut Engine<u32>, &mut Wire<'_>) -> R) -> R {
        let mut wire =
            Wire { bytes: std::mem::take(&mut self.emitted), full: self.full, memory: &self.memory };
        let result = act(&mut self.engine, &mut wire);
        self.emitted = wire.bytes;
        result
    }

    /// Everything that it wants to send.
    pub(crate) fn output(&mut self) -> Vec<u8> {
        let mut wire =
            Wire { bytes: std::mem::take(&mut self.emitted), full: self.full, memory: &self.memory };
        while self.engine.wants_transmit() {
            self.engine.transmit(&mut wire);
        }
        wire.bytes
    }

    /// Takes bytes; what they mean is in `events`.
    pub(crate) fn input(&mut self, bytes: &[u8]) -> Result<(), EngineError> {
        self.unread.extend_from_slice(bytes);
        loop {
            let step = self.engine.receive(&self.unread)?;
            let consumed: Vec<u8> = self.unread.drain(..step.consumed).collect();
            match step.event {
                Event::NeedMore => return Ok(()),
                Event::Place { to, payload } => self.put(to, &consumed[payload]),
                Event::Direct { to, remaining } => {
                    assert!(self.unread.is_empty(), "what is here is placed first");
                    if !self.direct {
                        return Ok(());
                    }
                    // As if a receive had brought as much as was awaited, in zeroes.
                    let zeroes = vec![0; remaining];
                    self.put(to, &zeroes);
                    self.engine.direct_received(remaining, |state| crc::update(state, &zeroes));
                }
                event => {
                    if let Event::Command { data_bytes, .. } = &event {
                        self.capsule = vec![0xee; *data_bytes as usize];
                    }
                    self.events.push(event);
                }
            }
        }
    }

    fn put(&mut self, to: Place, bytes: &[u8]) {
        let (memory, offset) = match to {
            Place::Capsule { offset } => (&mut self.capsule, offset),
            Place::Transfer { tag, offset } => (self.transfers.get_mut(&tag).expect("asked for"), offset),
            Place::Command { cid, offset } => {
                let Source { handle, offset: start, .. } = *self.engine.sink(cid).expect("outstanding");
                (self.memory.get_mut(&handle).expect("given"), start + offset)
            }
        };
        memory[offset as usize..offset as usize + bytes.len()].copy_from_slice(bytes);
    }

    pub(crate) fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }
}

/// Two ends after ICReq and ICResp.
pub(crate) fn pair(host: HostConfig, controller: ControllerConfig) -> (End, End) {
    let (mut host, mut controller) = (End::new(Engine::host(host)), End::new(Engine::controller(controller)));
    controller.input(&host.output()).expect("ICReq");
    host.input(&controller.output()).expect("ICResp");
    assert_eq!(
        (host.take_events(), controller.take_events()),
        (vec![Event::Initialized], vec![Event::Initialized])
    );
    (host, controller)
}

/// Takes the stream as PDUs: a type, flags and the length of the data, then header and data.
pub(crate) fn framed(mut stream: &[u8], digests: Digests) -> Vec<u8> {
    let (header_digest, data_digest) = (digests.header(), digests.data());
    let mut bytes = Vec::new();
    while let [pdu_type, flags, length, rest @ ..] = stream {
        let hlen = match pdu_type % 10 {
            0 | 1 => 128,
            4 => 72,
            _ => 24,
        };
        let length = usize::from(*length) * usize::from([4, 6, 7].contains(&(pdu_type % 10)));
        let (header, rest) = rest.split_at(rest.len().min(hlen - 8));
        let (data, rest) = rest.split_at(rest.len().min(length));
        let front = hlen + if header_digest { 4 } else { 0 };
        let with_data = data_digest && !data.is_empty();
        let plen = front + data.len() + if with_data { 4 } else { 0 };
        let flags = flags & 0xc | u8::from(header_digest) | u8::from(with_data) << 1;
        let mut pdu = vec![pdu_type % 10, flags, hlen as u8, if data.is_empty() { 0 } else { front as u8 }];
        pdu.extend((plen as u32).to_le_bytes());
        pdu.extend(header);
        pdu.resize(hlen, 0);
        if !data.is_empty() && hlen == 24 {
            // A data length that fits, so that what follows it is looked at.
            pdu[16..20].copy_from_slice(&(data.len() as u32).to_le_bytes());
        }
        if header_digest {
            let digest = crc::of(&pdu);
            pdu.extend(digest);
        }
        pdu.extend(data);
        if with_data {
            pdu.extend(crc::of(data));
        }
        bytes.extend(pdu);
        stream = rest;
    }
    bytes
}
