//! From messages to FPDUs.

use ringfab_spec::IntoBytes;
use ringfab_spec::iwarp::{FPDU_CRC_SIZE, FPDU_LENGTH_SIZE, TaggedHeader, UntaggedHeader, fpdu_padding};

use super::crc;
use super::work::{INLINE_LEN_MAX, Local};

/// The largest ULPDU that the 16-bit length field of an FPDU can announce, in bytes.
pub const ULPDU_LEN_MAX: u16 = u16::MAX;

/// The smallest ULPDU limit that makes sense: an untagged header, an inline Send and a Terminate with all its headers fit.
pub(crate) const ULPDU_LEN_MIN: u16 = 128;

/// Segments of large messages are multiples of this, so that each starts on a page of the destination.
const SEGMENT_ALIGN: u32 = 4096;

/// Takes what the engine emits, in stream order.
///
/// Rely on: between two calls of [`TxSink::has_room`] at most three pieces arrive: bytes, a payload, bytes. Promise: the
/// pieces go on the wire in the order of the calls, and the memory behind a payload stays valid until the bytes are
/// reported to [`Engine::transmitted`](super::Engine::transmitted).
pub trait TxSink<H> {
    /// Whether another FPDU may be emitted.
    fn has_room(&self) -> bool {
        true
    }

    /// Headers, inline payload and trailers, to be copied.
    fn bytes(&mut self, bytes: &[u8]);

    /// Payload in the owner's memory: `len` bytes at `offset` of `handle`.
    fn payload(&mut self, handle: H, offset: u64, len: usize);

    /// The CRC register after these bytes of payload, from the register before them; see [`crc::update`]. Called only
    /// when the connection uses CRCs.
    fn crc(&mut self, handle: H, offset: u64, len: usize, state: u32) -> u32;
}

/// The length of all segments but the last, for a message of `len` bytes and at most `max` per segment: as few and as
/// even as possible, in multiples of 4 KiB when they are at least that large.
pub(crate) fn segment_len(len: u64, max: u32) -> u32 {
    if len <= u64::from(max) {
        return max;
    }
    let even = len.div_ceil(len.div_ceil(u64::from(max)));
    let even = u32::try_from(even).unwrap_or(max).min(max);
    let rounded_up = even.next_multiple_of(SEGMENT_ALIGN);
    if rounded_up <= max {
        return rounded_up;
    }
    // Multiples of four need no padding between segments.
    if max >= SEGMENT_ALIGN { max - max % SEGMENT_ALIGN } else { max - max % 4 }
}

/// One segment to put on the wire.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SegmentHeader {
    Tagged(TaggedHeader),
    Untagged(UntaggedHeader),
}

/// The room for everything that is copied in front of a payload.
const FRONT_LEN_MAX: usize = FPDU_LENGTH_SIZE + UntaggedHeader::SIZE + INLINE_LEN_MAX + 3 + FPDU_CRC_SIZE;

/// A growing array on the stack; its users stay within the capacity by construction.
struct Front {
    bytes: [u8; FRONT_LEN_MAX],
    len: usize,
}

impl Front {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    #[inline]
    fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Emits one FPDU and returns its length in bytes. `inline` is at most [`INLINE_LEN_MAX`] bytes; the ULPDU fits its field.
#[inline]
pub(crate) fn emit<H: Copy>(
    sink: &mut impl TxSink<H>,
    header: SegmentHeader,
    inline: &[u8],
    payload: Option<Local<H>>,
    crc_used: bool,
) -> usize {
    let payload = payload.filter(|local| local.len > 0);
    let payload_len = payload.map_or(0, |local| local.len as usize);
    let header = header.as_bytes();
    let ulpdu_len = header.len() + inline.len() + payload_len;
    let mut front = Front { bytes: [0; FRONT_LEN_MAX], len: 0 };
    let length_field = u16::try_from(ulpdu_len).unwrap_or(ULPDU_LEN_MAX);
    assert_eq!(usize::from(length_field), ulpdu_len, "a ULPDU fits its length field");
    front.put(&length_field.to_be_bytes());
    front.put(header);
    front.put(inline);
    let pad = fpdu_padding(length_field);
    match payload {
        None => emit_inline(sink, &mut front, pad, crc_used),
        Some(local) => emit_payload(sink, &front, local, pad, crc_used),
    }
    FPDU_LENGTH_SIZE + ulpdu_len + pad + FPDU_CRC_SIZE
}

fn emit_inline<H>(sink: &mut impl TxSink<H>, front: &mut Front, pad: usize, crc_used: bool) {
    front.put(&[0; 3][..pad]);
    let trailer = if crc_used { crc::of(front.as_slice()) } else { [0; FPDU_CRC_SIZE] };
    front.put(&trailer);
    sink.bytes(front.as_slice());
}

fn emit_payload<H: Copy>(
    sink: &mut impl TxSink<H>,
    front: &Front,
    local: Local<H>,
    pad: usize,
    crc_used: bool,
) {
    let len = local.len as usize;
    sink.bytes(front.as_slice());
    sink.payload(local.handle, local.offset, len);
    let mut trailer = [0; 3 + FPDU_CRC_SIZE];
    if crc_used {
        let state = crc::update(crc::START, front.as_slice());
        let state = sink.crc(local.handle, local.offset, len, state);
        let state = if pad == 0 { state } else { crc::update(state, &trailer[..pad]) };
        trailer[pad..pad + FPDU_CRC_SIZE].copy_from_slice(&crc::finish(state));
    }
    sink.bytes(&trailer[..pad + FPDU_CRC_SIZE]);
}

impl SegmentHeader {
    #[inline]
    fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Tagged(header) => header.as_bytes(),
            Self::Untagged(header) => header.as_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transfer_of_128_kib_is_three_segments_on_page_boundaries() {
        let max = u32::from(ULPDU_LEN_MAX) - 14;
        assert_eq!(segment_len(131_072, max), 45_056);
        assert_eq!(segment_len(65_536, max), 32_768);
        assert_eq!(segment_len(65_521, max), max, "what fits in one segment stays whole");
    }

    #[test]
    fn a_segment_never_exceeds_the_maximum_and_is_never_empty() {
        for max in [96, 110, 1444, 4095, 4096, 4097, 8947, 65_521] {
            for len in [1, u64::from(max), u64::from(max) + 1, 131_072, 1 << 20, u64::from(u32::MAX)] {
                let segment = segment_len(len, max);
                assert!(segment > 0 && segment <= max, "len {len} max {max} gave {segment}");
            }
        }
    }
}
