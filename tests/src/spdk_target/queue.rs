//! A connection of this target, with its queue.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use ringfab_auth::{Concatenation, ControllerTransaction, Group, Hash, Policy, Received, system_random};
use ringfab_spec::sqe::{AuthenticationCommand, ConnectData};
use ringfab_spec::tcp::{
    CapsuleCmd, CapsuleResp, CommonHeader, DataHeader, Digests, IcReq, IcResp, PduFlags, PduType,
    ReadyToTransfer,
};
use ringfab_spec::{CompletionEntry, FabricsType, FromBytes, IntoBytes, Sgl, Status, SubmissionEntry};

use super::{DISK_BYTES, Shared, Wire, locked};
use crate::NQN;
use crate::raw_tcp::pdu;

/// Bytes of a block.
const BLOCK: usize = 512;
/// The most data of a PDU in either direction.
const DATA_BYTES_MAX: usize = 128 << 10;
/// The most in-capsule data of an I/O command.
const IN_CAPSULE_BYTES: u32 = 4096;
/// Controller identifier.
const CONTROLLER: u16 = 1;
/// AUTHREQ.ATR in dword 0 of the completion of a Connect.
const ATR: u32 = 1 << 17;

/// Where a queue is.
enum State {
    Connecting,
    Authenticating(Box<ControllerTransaction>),
    Enabled,
}

/// A connection with its queue.
pub(super) struct Queue<'a> {
    shared: &'a Shared,
    wire: Box<dyn Wire + 'a>,
    /// PDUs that came while data were awaited.
    waiting: VecDeque<(Vec<u8>, Vec<u8>)>,
    cc: u64,
    qid: u16,
    state: State,
}

impl<'a> Queue<'a> {
    /// Of a connection that has said nothing yet.
    pub(super) fn new(shared: &'a Shared, wire: Box<dyn Wire + 'a>) -> Self {
        Self { shared, wire, waiting: VecDeque::new(), cc: 0, qid: 0, state: State::Connecting }
    }
}

impl Queue<'_> {
    /// Serves it until it ends.
    pub(super) fn serve(&mut self) -> io::Result<()> {
        let (request, _) = self.hear()?;
        let request = IcReq::read_from_bytes(&request).map_err(|_| io::ErrorKind::InvalidData)?;
        // It aligns data to what the host wants of the others.
        let alignment = request.hpda_z.min(31) + 1;
        let response = IcResp::new(alignment, Digests::default(), DATA_BYTES_MAX as u32);
        self.wire.write_all(response.as_bytes())?;
        loop {
            let (header, data) = self.hear()?;
            let capsule = CapsuleCmd::read_from_bytes(&header).map_err(|_| io::ErrorKind::InvalidData)?;
            self.command(capsule.sqe, data)?;
        }
    }

    fn command(&mut self, sqe: SubmissionEntry, data: Vec<u8>) -> io::Result<()> {
        let fabrics = sqe.is_fabrics().then(|| sqe.fabrics_type());
        match (fabrics, &self.state) {
            (Some(FabricsType::CONNECT), State::Connecting) => self.connect(sqe, &data),
            (_, State::Connecting) => self.refuse(sqe, Status::COMMAND_SEQUENCE_ERROR),
            (Some(FabricsType::AUTHENTICATION_SEND), _) => self.on_message(sqe, &data),
            (Some(FabricsType::AUTHENTICATION_RECEIVE), _) => self.send_message(sqe),
            (_, State::Authenticating(_)) => self.refuse(sqe, Status::AUTHENTICATION_REQUIRED),
            (Some(fctype), State::Enabled) => self.fabrics(sqe, fctype),
            (None, State::Enabled) if self.qid == 0 => self.admin(sqe),
            (None, State::Enabled) => self.io(sqe, data),
        }
    }

    fn connect(&mut self, sqe: SubmissionEntry, data: &[u8]) -> io::Result<()> {
        let Ok(data) = ConnectData::read_from_bytes(data) else {
            return self.refuse(sqe, Status::CONNECT_INVALID_PARAMETERS);
        };
        let name = data.hostnqn.bytes().split(|byte| *byte == 0).next().unwrap_or_default();
        if name != self.shared.keys.host.as_bytes() {
            return self.refuse(sqe, Status::CONNECT_INVALID_HOST.with_dnr());
        }
        self.qid = (sqe.cdw10.get() >> 16) as u16;
        let policy = Policy::new(
            &[Hash::Sha512, Hash::Sha384, Hash::Sha256],
            &[Group::Ffdhe3072, Group::Ffdhe2048, Group::Null],
        );
        let policy = Arc::new(policy.map_err(io::Error::other)?);
        let parties = Some(Arc::clone(&self.shared.parties));
        let transaction = ControllerTransaction::new(parties, policy, Concatenation::Refused);
        self.state = State::Authenticating(Box::new(transaction));
        self.respond(CompletionEntry::success(sqe.cid.get(), 0).with_dw0(ATR | u32::from(CONTROLLER)))
    }

    /// Authentication Send.
    fn on_message(&mut self, sqe: SubmissionEntry, data: &[u8]) -> io::Result<()> {
        let State::Authenticating(transaction) = &mut self.state else { return self.refuse_again(sqe) };
        if !is_command_of_messages(&sqe, data.len()) {
            return self.refuse(sqe, Status::INVALID_FIELD.with_dnr());
        }
        let mut random = system_random();
        if let Some(computation) = transaction.on_send(data, &self.shared.sequence, &mut random) {
            transaction.on_computed(computation.run());
        }
        // With Success2 the controller is authenticated, too.
        self.note_outcome();
        self.respond(CompletionEntry::success(sqe.cid.get(), 0))
    }

    /// Authentication Receive.
    fn send_message(&mut self, sqe: SubmissionEntry) -> io::Result<()> {
        let State::Authenticating(transaction) = &mut self.state else { return self.refuse_again(sqe) };
        let room = length_of(&sqe);
        if !is_command_of_messages(&sqe, room) {
            return self.refuse(sqe, Status::INVALID_FIELD.with_dnr());
        }
        let Received::Message(message) = transaction.on_receive(room) else {
            return Err(io::Error::other("no message"));
        };
        let is_refused = transaction.outcome().is_some_and(|outcome| outcome.is_err());
        locked(&self.shared.seen).message_bytes.push(message.len());
        self.note_outcome();
        self.data(sqe.cid.get(), &message)?;
        if is_refused { Err(io::Error::other("refused")) } else { Ok(()) }
    }

    fn note_outcome(&mut self) {
        let State::Authenticating(transaction) = &self.state else { return };
        if transaction.outcome().is_some_and(|outcome| outcome.is_ok()) {
            locked(&self.shared.seen).authenticated.push(self.qid);
            self.state = State::Enabled;
        }
    }

    fn refuse_again(&mut self, sqe: SubmissionEntry) -> io::Result<()> {
        locked(&self.shared.seen).refused_again += 1;
        self.refuse(sqe, Status::COMMAND_SEQUENCE_ERROR)
    }

    fn fabrics(&mut self, sqe: SubmissionEntry, fctype: FabricsType) -> io::Result<()> {
        let good = CompletionEntry::success(sqe.cid.get(), 0);
        match fctype {
            FabricsType::PROPERTY_SET => {
                self.cc = sqe.property_value();
                self.respond(good)
            }
            FabricsType::PROPERTY_GET => self.respond(good.with_result(match sqe.property_offset() {
                // 128 entries, contiguous queues, 15 s, the NVM Command Set.
                0 => 127 | 1 << 16 | 30 << 24 | 1 << 37,
                8 => 0x0001_0300,
                0x14 => self.cc,
                _ if self.cc >> 14 & 3 != 0 => 2 << 2,
                _ => self.cc & 1,
            })),
            _ => self.refuse(sqe, Status::INVALID_OPCODE.with_dnr()),
        }
    }

    fn admin(&mut self, sqe: SubmissionEntry) -> io::Result<()> {
        let cid = sqe.cid.get();
        match sqe.opcode {
            0x06 => match identify(sqe.cns()) {
                Some(page) => self.data(cid, &page),
                None => self.refuse(sqe, Status::INVALID_FIELD.with_dnr()),
            },
            0x02 => self.data(cid, &vec![0; length_of(&sqe)]),
            0x09 if sqe.fid() == 7 => {
                self.respond(CompletionEntry::success(cid, 0).with_dw0(sqe.cdw11.get()))
            }
            // The next event never comes.
            0x0c => Ok(()),
            0x08 | 0x09 | 0x0a | 0x18 => self.respond(CompletionEntry::success(cid, 0)),
            _ => self.refuse(sqe, Status::INVALID_OPCODE.with_dnr()),
        }
    }

    fn io(&mut self, sqe: SubmissionEntry, mut data: Vec<u8>) -> io::Result<()> {
        let (cid, start, length) = (sqe.cid.get(), sqe.slba() as usize * BLOCK, sqe.nlb() as usize * BLOCK);
        match sqe.opcode {
            0 => self.respond(CompletionEntry::success(cid, 0)),
            1 => {
                if data.is_empty() {
                    data = self.request(cid, length)?;
                }
                locked(&self.shared.disk)[start..start + length].copy_from_slice(&data);
                self.respond(CompletionEntry::success(cid, 0))
            }
            2 => {
                let bytes = locked(&self.shared.disk)[start..start + length].to_vec();
                self.data(cid, &bytes)
            }
            _ => self.refuse(sqe, Status::INVALID_OPCODE.with_dnr()),
        }
    }

    /// The data of a command, after one R2T for all of them.
    fn request(&mut self, cid: u16, length: usize) -> io::Result<Vec<u8>> {
        let ch = CommonHeader::new(PduType::R2T, PduFlags::default(), 0, 0, 0);
        let r2t = ReadyToTransfer::new(ch, cid, 7, 0, length as u32);
        self.say(r2t.as_bytes(), &[])?;
        locked(&self.shared.seen).r2ts += 1;
        let mut data = Vec::new();
        while data.len() < length {
            let (header, part) = self.hear_next()?;
            if header[0] == PduType::H2C_DATA.0 {
                data.extend(part);
            } else {
                self.waiting.push_back((header, part));
            }
        }
        Ok(data)
    }

    /// Data of a command that has succeeded; SUCCESS with the last stands for the response.
    fn data(&mut self, cid: u16, data: &[u8]) -> io::Result<()> {
        for (index, part) in data.chunks(DATA_BYTES_MAX).enumerate() {
            let offset = index * DATA_BYTES_MAX;
            let last = offset + part.len() == data.len();
            let flags = PduFlags::default().with_last(last).with_success(last);
            let ch = CommonHeader::new(PduType::C2H_DATA, flags, 0, 0, 0);
            let header = DataHeader::new(ch, cid, 0, offset as u32, part.len() as u32);
            self.say(header.as_bytes(), part)?;
        }
        Ok(())
    }

    fn refuse(&mut self, sqe: SubmissionEntry, status: Status) -> io::Result<()> {
        self.respond(CompletionEntry::new(sqe.cid.get(), 0, status))
    }

    fn respond(&mut self, cqe: CompletionEntry) -> io::Result<()> {
        let ch = CommonHeader::new(PduType::CAPSULE_RESP, PduFlags::default(), 0, 0, 0);
        self.say(CapsuleResp { ch, cqe }.as_bytes(), &[])
    }

    fn say(&mut self, header: &[u8], data: &[u8]) -> io::Result<()> {
        self.wire.write_all(&pdu(Digests::default(), header, data))
    }

    /// The next PDU: its header and its data.
    fn hear(&mut self) -> io::Result<(Vec<u8>, Vec<u8>)> {
        self.waiting.pop_front().map_or_else(|| self.hear_next(), Ok)
    }

    fn hear_next(&mut self) -> io::Result<(Vec<u8>, Vec<u8>)> {
        let mut all = vec![0; CommonHeader::SIZE];
        self.wire.read_exact(&mut all)?;
        let ch = CommonHeader::read_from_bytes(&all).map_err(|_| io::ErrorKind::InvalidData)?;
        all.resize((ch.plen.get() as usize).clamp(CommonHeader::SIZE, 1 << 21), 0);
        self.wire.read_exact(&mut all[CommonHeader::SIZE..])?;
        let data = if ch.pdo == 0 { Vec::new() } else { all[usize::from(ch.pdo)..].to_vec() };
        all.truncate(ch.hlen.into());
        Ok((all, data))
    }
}

/// Whether a command carries a message of authentication, as long as its SGL says.
fn is_command_of_messages(sqe: &SubmissionEntry, length: usize) -> bool {
    let command = AuthenticationCommand::of(sqe);
    (command.secp, command.spsp0, command.spsp1, command.length.get() as usize) == (0xe9, 1, 1, length)
}

/// Bytes of data that a command has room for.
fn length_of(sqe: &SubmissionEntry) -> usize {
    match sqe.sgl.parse() {
        Ok(Sgl::TransportDataBlock { length } | Sgl::DataBlockOffset { length, .. }) => length as usize,
        _ => 0,
    }
}

fn identify(cns: u8) -> Option<Vec<u8>> {
    let (mut data, blocks) = (vec![0; 4096], (DISK_BYTES / BLOCK) as u64);
    match cns {
        0 => {
            for place in [0, 8, 16] {
                data[place..place + 8].copy_from_slice(&blocks.to_le_bytes());
            }
            data[104..120].fill(7);
            data[130] = 9;
        }
        1 => {
            data[4..9].copy_from_slice(b"SPDK1");
            data[77] = 5;
            data[111] = 1;
            data[320] = 100;
            data[514..516].copy_from_slice(&128_u16.to_le_bytes());
            data[525] = 1;
            data[536..540].copy_from_slice(&(1_u32 | 1 << 20).to_le_bytes());
            data[768..768 + NQN.len()].copy_from_slice(NQN.as_bytes());
            data[1792..1796].copy_from_slice(&((64 + IN_CAPSULE_BYTES) / 16).to_le_bytes());
            data[1796..1800].copy_from_slice(&1_u32.to_le_bytes());
            data[1803] = 1;
        }
        2 => data[0] = 1,
        // An identification descriptor: an NGUID.
        3 => {
            data[..4].copy_from_slice(&[2, 16, 0, 0]);
            data[4..20].fill(7);
        }
        _ => return None,
    }
    Some(data)
}
