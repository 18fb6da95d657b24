//! From bytes to FPDUs and their headers (RFC 5044, section 4; RFC 5041, section 4; RFC 5040, section 4). Stateless:
//! what an FPDU means on a connection is the engine's business.

use core::ops::Range;

use ringfab_spec::FromBytes;
use ringfab_spec::iwarp::{
    DdpControl, FPDU_CRC_SIZE, FPDU_LENGTH_SIZE, RdmapControl, RdmapOpcode, TaggedHeader, UntaggedHeader,
    fpdu_padding, fpdu_size,
};

use super::crc;
use super::error::Violation;

/// The longest FPDU in bytes: length field, the largest ULPDU, padding, CRC field. A receive buffer must hold one.
pub const FPDU_LEN_MAX: usize = fpdu_size(u16::MAX);

/// A tagged segment is either part of an RDMA Write or of a Read Response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaggedKind {
    Write,
    ReadResponse,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Tagged {
    pub(crate) kind: TaggedKind,
    pub(crate) last: bool,
    pub(crate) stag: u32,
    pub(crate) to: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Untagged {
    pub(crate) opcode: RdmapOpcode,
    pub(crate) last: bool,
    /// Reserved except in the two Sends with Invalidate.
    pub(crate) invalidate_stag: u32,
    pub(crate) qn: u32,
    pub(crate) msn: u32,
    pub(crate) mo: u32,
}

/// What the front of the stream holds.
#[derive(Clone, Debug)]
pub(crate) enum Framed {
    /// Not enough to act on: so many bytes, counted from the front, are needed.
    NeedMore(usize),
    /// A complete FPDU whose CRC is right. What its ULPDU says is read by who acts on it: a header of one of two kinds
    /// would be put together here only to be taken apart there.
    Whole { ulpdu_end: usize, fpdu_len: usize },
    /// The front of a large tagged FPDU.
    Front { header: Tagged, payload: Range<usize>, payload_len: usize, pad: usize },
}

/// Looks at the front of the stream. A tagged FPDU of which at least `direct_min` bytes of payload are still missing is
/// reported as soon as its header is there.
#[inline]
pub(crate) fn frame(input: &[u8], crc_used: bool, direct_min: usize) -> Result<Framed, Violation> {
    let Some(length_field) = input.first_chunk::<FPDU_LENGTH_SIZE>() else {
        return Ok(Framed::NeedMore(FPDU_LENGTH_SIZE + TaggedHeader::SIZE + FPDU_CRC_SIZE));
    };
    let ulpdu_len = u16::from_be_bytes(*length_field);
    let (ulpdu_len, pad) = (usize::from(ulpdu_len), fpdu_padding(ulpdu_len));
    let body_end = FPDU_LENGTH_SIZE + ulpdu_len + pad;
    let fpdu_len = body_end + FPDU_CRC_SIZE;
    if input.len() < fpdu_len {
        return partial(input, ulpdu_len, pad, direct_min);
    }
    if crc_used {
        verify(&crc::of(&input[..body_end]), &input[body_end..fpdu_len])?;
    }
    Ok(Framed::Whole { ulpdu_end: FPDU_LENGTH_SIZE + ulpdu_len, fpdu_len })
}

/// Compares a computed CRC with a CRC field.
pub(crate) fn verify(computed: &[u8; FPDU_CRC_SIZE], field: &[u8]) -> Result<(), Violation> {
    match field.first_chunk::<FPDU_CRC_SIZE>() {
        Some(carried) if carried == computed => Ok(()),
        carried => Err(Violation::Crc { carried: carried.copied().unwrap_or_default(), computed: *computed }),
    }
}

/// An incomplete FPDU: nothing is believed, except that a large tagged one may begin to be placed, since its rights are
/// checked by the engine and its CRC before it counts as delivered.
#[cold]
fn partial(input: &[u8], ulpdu_len: usize, pad: usize, direct_min: usize) -> Result<Framed, Violation> {
    let fpdu_len = FPDU_LENGTH_SIZE + ulpdu_len + pad + FPDU_CRC_SIZE;
    let front = FPDU_LENGTH_SIZE + TaggedHeader::SIZE;
    let tagged = input.get(FPDU_LENGTH_SIZE).is_some_and(|control| DdpControl::from_bits(*control).tagged());
    let missing = (FPDU_LENGTH_SIZE + ulpdu_len).saturating_sub(input.len());
    if !tagged || missing < direct_min.max(1) {
        return Ok(Framed::NeedMore(fpdu_len));
    }
    if input.len() < front {
        return Ok(Framed::NeedMore(front));
    }
    let ulpdu = &input[FPDU_LENGTH_SIZE..];
    // For the versions: that it is tagged was seen above.
    is_tagged(ulpdu)?;
    Ok(Framed::Front {
        header: parse_tagged(ulpdu)?,
        payload: front..input.len(),
        payload_len: ulpdu_len - TaggedHeader::SIZE,
        pad,
    })
}

/// Which of the two headers a ULPDU begins with, in versions that we know.
#[inline]
pub(crate) fn is_tagged(ulpdu: &[u8]) -> Result<bool, Violation> {
    let Some(&[ddp, rdmap]) = ulpdu.first_chunk::<2>() else {
        return Err(Violation::ShortUlpdu { len: ulpdu.len(), need: TaggedHeader::SIZE });
    };
    let (ddp, rdmap) = (DdpControl::from_bits(ddp), RdmapControl::from_bits(rdmap));
    if ddp.dv() != DdpControl::VERSION {
        return Err(Violation::DdpVersion { tagged: ddp.tagged(), version: ddp.dv() });
    }
    if rdmap.rv() != RdmapControl::VERSION {
        return Err(Violation::RdmapVersion { version: rdmap.rv() });
    }
    Ok(ddp.tagged())
}

/// The header of a ULPDU that [`is_tagged`].
#[inline]
pub(crate) fn parse_tagged(ulpdu: &[u8]) -> Result<Tagged, Violation> {
    let Ok((header, _)) = TaggedHeader::ref_from_prefix(ulpdu) else {
        return Err(Violation::ShortUlpdu { len: ulpdu.len(), need: TaggedHeader::SIZE });
    };
    let kind = match header.rdmap.opcode() {
        RdmapOpcode::RDMA_WRITE => TaggedKind::Write,
        RdmapOpcode::RDMA_READ_RESPONSE => TaggedKind::ReadResponse,
        opcode => return Err(Violation::UnexpectedOpcode { opcode, place: "in a tagged segment" }),
    };
    Ok(Tagged { kind, last: header.ddp.last(), stag: header.stag.get(), to: header.to.get() })
}

/// The header of one that is not.
#[inline]
pub(crate) fn parse_untagged(ulpdu: &[u8]) -> Result<Untagged, Violation> {
    let Ok((header, _)) = UntaggedHeader::ref_from_prefix(ulpdu) else {
        return Err(Violation::ShortUlpdu { len: ulpdu.len(), need: UntaggedHeader::SIZE });
    };
    Ok(Untagged {
        opcode: header.rdmap.opcode(),
        last: header.ddp.last(),
        invalidate_stag: header.invalidate_stag.get(),
        qn: header.qn.get(),
        msn: header.msn.get(),
        mo: header.mo.get(),
    })
}
