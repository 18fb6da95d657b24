//! From bytes to PDUs: lengths, flags, alignment and digests. What a PDU means is the engine's business.

use core::ops::Range;

use ringfab_spec::FromBytes;
use ringfab_spec::tcp::{
    CapsuleCmd, CapsuleResp, CommonHeader, DIGEST_SIZE, DataHeader, Digests, FatalError, IcReq, PduType,
    ReadyToTransfer, TERM_DATA_BYTES_MAX, TermReq, field,
};

use super::error::Violation;
use crate::crc;

/// Which end of a connection somebody is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Host,
    Controller,
}

/// What the front of the stream holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Framed {
    /// Not enough to act on.
    NeedMore,
    /// A header that is right by itself; so many bytes of data follow.
    Header { header: Range<usize>, data_bytes: u32 },
    /// The next bytes of the data, and how many came before.
    Data { offset: u32, payload: Range<usize> },
    /// The next bytes of the data are still to come.
    Awaited { offset: u32, remaining: u32 },
    /// The end of the data; whether their digest was right.
    End { intact: bool },
}

/// The sizes of a PDU.
#[derive(Clone, Copy, Debug)]
struct Shape {
    /// Bytes of the header that count.
    hlen: usize,
    /// Bytes in front of the data, or of the whole PDU where there are none.
    front: usize,
    data: u32,
    header_digest: bool,
    data_digest: bool,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// At the start of a PDU.
    Header,
    /// Within its data.
    Data { data: u32, done: u32, crc: u32, digest: bool },
}

/// The receiving half of a connection.
#[derive(Debug)]
pub(super) struct Receiver {
    side: Side,
    /// Whether ICReq and ICResp have been exchanged.
    pub(super) initialized: bool,
    /// Those that are used.
    pub(super) digests: Digests,
    /// What data in PDUs to us are aligned to, in bytes.
    pub(super) alignment: usize,
    /// The most data of a command capsule.
    pub(super) capsule_bytes_max: u32,
    /// The most data of an H2CData PDU.
    pub(super) h2c_bytes_max: u32,
    /// Data that miss at least this many bytes are awaited by themselves.
    direct_bytes_min: u32,
    state: State,
    /// The header of the last PDU, which a termination request quotes.
    quote: [u8; TERM_DATA_BYTES_MAX],
    quoted: usize,
}

impl Receiver {
    pub(super) fn new(side: Side, alignment: usize, direct_bytes_min: u32) -> Self {
        Self {
            side,
            initialized: false,
            digests: Digests::default(),
            alignment,
            capsule_bytes_max: 0,
            h2c_bytes_max: 0,
            direct_bytes_min,
            state: State::Header,
            quote: [0; TERM_DATA_BYTES_MAX],
            quoted: 0,
        }
    }

    /// What to quote of the PDU that was wrong.
    pub(super) fn quote(&self) -> &[u8] {
        &self.quote[..self.quoted]
    }

    /// Looks at the front of the stream. Returns how many of the bytes are done with.
    #[inline]
    pub(super) fn receive(&mut self, input: &[u8]) -> Result<(usize, Framed), Violation> {
        match self.state {
            State::Header => self.header(input),
            State::Data { data, done, crc, digest } if done < data => {
                let remaining = data - done;
                if input.is_empty() {
                    let awaited = Framed::Awaited { offset: done, remaining };
                    let framed = if remaining >= self.direct_bytes_min { awaited } else { Framed::NeedMore };
                    return Ok((0, framed));
                }
                let here = input.len().min(remaining as usize);
                let crc = if digest { crc::update(crc, &input[..here]) } else { crc };
                self.state = State::Data { data, done: done + here as u32, crc, digest };
                Ok((here, Framed::Data { offset: done, payload: 0..here }))
            }
            State::Data { digest: false, .. } => {
                self.state = State::Header;
                Ok((0, Framed::End { intact: true }))
            }
            State::Data { crc, .. } => {
                let Some(carried) = input.get(..DIGEST_SIZE) else { return Ok((0, Framed::NeedMore)) };
                self.state = State::Header;
                Ok((DIGEST_SIZE, Framed::End { intact: carried == crc::finish(crc) }))
            }
        }
    }

    /// Awaited data were received in their place.
    pub(super) fn direct_received(&mut self, length: u32, checksum: impl FnOnce(u32) -> u32) {
        if let State::Data { data, done, crc, digest } = &mut self.state {
            assert!(length <= *data - *done, "no more than was awaited");
            *done += length;
            if *digest {
                *crc = checksum(*crc);
            }
        }
    }

    #[inline(always)]
    fn header(&mut self, input: &[u8]) -> Result<(usize, Framed), Violation> {
        let Ok((common, _)) = CommonHeader::read_from_prefix(input) else {
            return Ok((0, Framed::NeedMore));
        };
        let shape = match self.shape(&common) {
            Ok(shape) => shape,
            Err(violation) => {
                self.remember(&input[..CommonHeader::SIZE]);
                return Err(violation);
            }
        };
        if input.len() < shape.front {
            return Ok((0, Framed::NeedMore));
        }
        self.remember(&input[..shape.hlen]);
        if shape.header_digest {
            check_header_digest(input, shape.hlen)?;
        }
        if shape.data > 0 {
            self.state =
                State::Data { data: shape.data, done: 0, crc: crc::START, digest: shape.data_digest };
        }
        Ok((shape.front, Framed::Header { header: 0..shape.hlen, data_bytes: shape.data }))
    }

    /// Keeps a header that a termination request may have to quote.
    #[inline]
    fn remember(&mut self, header: &[u8]) {
        self.quoted = header.len().min(self.quote.len());
        // Those of data and of commands as copies of a known length: every PDU comes by here.
        if let Ok(header) = <&[u8; DataHeader::SIZE]>::try_from(header) {
            self.quote[..DataHeader::SIZE].copy_from_slice(header);
        } else if let Ok(header) = <&[u8; CapsuleCmd::SIZE]>::try_from(header) {
            self.quote[..CapsuleCmd::SIZE].copy_from_slice(header);
        } else {
            self.quote[..self.quoted].copy_from_slice(&header[..self.quoted]);
        }
    }

    /// Checks everything in a common header.
    #[inline(always)]
    fn shape(&self, common: &CommonHeader) -> Result<Shape, Violation> {
        let (hlen, may_have_data) = self.kind(common.pdu_type)?;
        if is_termination(common.pdu_type) {
            return Ok(termination_shape(common));
        }
        if usize::from(common.hlen) != hlen {
            return Err(Violation::field(field::HLEN, "a header of another length than its type's"));
        }
        let header_digest = self.initialized && self.digests.header();
        if common.flags.hdgst() != header_digest {
            return Err(Violation::field(field::FLAGS, "a header digest against what was negotiated"));
        }
        let base = hlen + if header_digest { DIGEST_SIZE } else { 0 };
        let plen = common.plen.get();
        let shape = Shape { hlen, front: base, data: 0, header_digest, data_digest: false };
        if plen as usize == base {
            return Ok(shape);
        }
        if !may_have_data || (plen as usize) < base {
            return Err(Violation::field(field::PLEN, "a PDU of a length that its type cannot have"));
        }
        self.with_data(common, shape)
    }

    #[inline(always)]
    fn with_data(&self, common: &CommonHeader, shape: Shape) -> Result<Shape, Violation> {
        let data_digest = self.digests.data();
        if common.flags.ddgst() != data_digest {
            return Err(Violation::field(field::FLAGS, "a data digest against what was negotiated"));
        }
        let pdo = usize::from(common.pdo);
        if pdo < shape.front || !pdo.is_multiple_of(self.alignment) {
            return Err(Violation::field(field::PDO, "data at an offset that they cannot have"));
        }
        let around = pdo as u32 + if data_digest { DIGEST_SIZE as u32 } else { 0 };
        let data = common.plen.get().checked_sub(around).filter(|data| *data > 0);
        let data = data.ok_or(Violation::field(field::PLEN, "a PDU that ends before its data"))?;
        match common.pdu_type {
            PduType::CAPSULE_CMD if data > self.capsule_bytes_max => {
                Err(Violation::field(field::PLEN, "more in-capsule data than a capsule may have"))
            }
            PduType::H2C_DATA if data > self.h2c_bytes_max => {
                Err(Violation::limit("more data in a PDU than MAXH2CDATA"))
            }
            _ => Ok(Shape { front: pdo, data, data_digest, ..shape }),
        }
    }

    /// Length of the header of a type, and whether it may have data, if the type may come now.
    fn kind(&self, pdu_type: PduType) -> Result<(usize, bool), Violation> {
        let (from, hlen, may_have_data) = match pdu_type {
            PduType::IC_REQ => (Side::Host, IcReq::SIZE, false),
            PduType::IC_RESP => (Side::Controller, IcReq::SIZE, false),
            PduType::H2C_TERM_REQ => (Side::Host, TermReq::SIZE, false),
            PduType::C2H_TERM_REQ => (Side::Controller, TermReq::SIZE, false),
            PduType::CAPSULE_CMD => (Side::Host, CapsuleCmd::SIZE, true),
            PduType::CAPSULE_RESP => (Side::Controller, CapsuleResp::SIZE, false),
            PduType::H2C_DATA => (Side::Host, DataHeader::SIZE, true),
            PduType::C2H_DATA => (Side::Controller, DataHeader::SIZE, true),
            PduType::R2T => (Side::Controller, ReadyToTransfer::SIZE, false),
            other => return Err(Violation::field(field::PDU_TYPE, what_it_is(other))),
        };
        if from == self.side {
            return Err(Violation::sequence("a PDU that only we may send"));
        }
        let initializes = matches!(pdu_type, PduType::IC_REQ | PduType::IC_RESP);
        if initializes == self.initialized && !is_termination(pdu_type) {
            return Err(Violation::sequence("a PDU before or after its time"));
        }
        Ok((hlen, may_have_data))
    }
}

/// Of a first byte that is no type: what it begins, if that is known.
const fn what_it_is(pdu_type: PduType) -> &'static str {
    match pdu_type.0 {
        b'M' => "an MPA frame, of NVMe/RDMA over iWARP, on a connection for NVMe/TCP",
        0x16 => "a TLS handshake on a connection without TLS",
        _ => "a PDU of no known type",
    }
}

fn is_termination(pdu_type: PduType) -> bool {
    matches!(pdu_type, PduType::H2C_TERM_REQ | PduType::C2H_TERM_REQ)
}

/// A termination request quotes the wrong PDU behind its header, and never has digests. Of one with a length that it
/// cannot have no more is looked at: it ends the connection all the same (section 3.5.1).
fn termination_shape(common: &CommonHeader) -> Shape {
    let plen = common.plen.get() as usize;
    let fits = usize::from(common.hlen) == TermReq::SIZE
        && (TermReq::SIZE..=TermReq::SIZE + TERM_DATA_BYTES_MAX).contains(&plen);
    let (hlen, front) = if fits { (TermReq::SIZE, plen) } else { (CommonHeader::SIZE, CommonHeader::SIZE) };
    Shape { hlen, front, data: 0, header_digest: false, data_digest: false }
}

fn check_header_digest(input: &[u8], hlen: usize) -> Result<(), Violation> {
    let mut carried = [0; DIGEST_SIZE];
    carried.copy_from_slice(&input[hlen..hlen + DIGEST_SIZE]);
    if carried == crc::of(&input[..hlen]) {
        return Ok(());
    }
    let fei = u32::from_le_bytes(carried);
    Err(Violation {
        fes: FatalError::HEADER_DIGEST_ERROR,
        fei,
        what: "a header that its digest does not fit",
    })
}
