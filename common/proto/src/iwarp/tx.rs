//! From messages to FPDUs.

use ringfab_spec::iwarp::{
    DdpControl, FPDU_CRC_SIZE, FPDU_LENGTH_SIZE, RdmapControl, TaggedHeader, UntaggedHeader, fpdu_padding,
};

use super::crc;
use super::work::Local;

/// The largest ULPDU that the 16-bit length field of an FPDU can announce, in bytes.
pub const ULPDU_LEN_MAX: u16 = u16::MAX;

/// The smallest ULPDU limit that makes sense: an untagged header, an inline Send and a Terminate with all its headers fit.
pub(crate) const ULPDU_LEN_MIN: u16 = 128;

/// Segments of large messages are multiples of this, so that each starts on a page of the destination.
const SEGMENT_ALIGN: u32 = 4096;

/// Takes what the engine emits, in stream order.
///
/// Rely on: between two calls of [`TxSink::has_room`] at most one payload arrives, and fewer than 256 bytes around it, in
/// any number of calls. Promise: the pieces go on the wire in the order of the calls, and the memory behind a payload stays
/// valid until the bytes are reported to [`Engine::transmitted`](super::Engine::transmitted).
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
#[inline]
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

/// Emits one FPDU with a tagged segment (RFC 5041, section 4.1) and returns its length in bytes.
#[inline(always)]
pub(crate) fn emit_tagged<H: Copy>(
    sink: &mut impl TxSink<H>,
    header: &TaggedHeader,
    payload: Option<Local<H>>,
    crc_used: bool,
) -> usize {
    let rest = Rest::new(TaggedHeader::SIZE, payload);
    let words = [header.stag.get(), (header.to.get() >> 32) as u32, header.to.get() as u32];
    let front = front(&rest, header.ddp, header.rdmap, words);
    sink.bytes(&front[0]);
    sink.bytes(&front[1]);
    let crc = crc_used.then(|| crc::update(crc::START, front.as_flattened()));
    rest.emit(sink, crc)
}

/// Emits one FPDU with an untagged segment (RFC 5041, section 4.2) and returns its length in bytes: `inline`, then
/// `payload`.
#[inline(always)]
pub(crate) fn emit_untagged<H: Copy>(
    sink: &mut impl TxSink<H>,
    header: &UntaggedHeader,
    inline: &[u8],
    payload: Option<Local<H>>,
    crc_used: bool,
) -> usize {
    let rest = Rest::new(UntaggedHeader::SIZE + inline.len(), payload);
    let words = [header.invalidate_stag.get(), header.qn.get(), header.msn.get()];
    let front = front(&rest, header.ddp, header.rdmap, words);
    let mo = header.mo.get().to_be_bytes();
    sink.bytes(&front[0]);
    sink.bytes(&front[1]);
    sink.bytes(&mo);
    sink.bytes(inline);
    let crc = crc_used.then(|| [front.as_flattened(), &mo, inline].into_iter().fold(crc::START, crc::update));
    rest.emit(sink, crc)
}

/// The length of an FPDU and the first 14 bytes of its header, as two values. Put together in memory, field by field, they could
/// not be copied from there with larger loads before all of the stores are done, which takes longer than everything else
/// about a header.
#[inline(always)]
fn front<H>(rest: &Rest<H>, ddp: DdpControl, rdmap: RdmapControl, words: [u32; 3]) -> [[u8; 8]; 2] {
    let [ddp, rdmap] = [ddp.bits(), rdmap.bits()].map(u32::from);
    let first = u32::from(rest.ulpdu_len) << 16 | ddp << 8 | rdmap;
    let pair = |high: u32, low: u32| (u64::from(high) << 32 | u64::from(low)).to_be_bytes();
    [pair(first, words[0]), pair(words[1], words[2])]
}

/// The parts that the two headers have in common are where [`front`] puts them.
const _: () = assert!(
    FPDU_LENGTH_SIZE + TaggedHeader::SIZE == 16
        && FPDU_LENGTH_SIZE + UntaggedHeader::SIZE == 16 + size_of::<u32>()
);

/// What follows the bytes that are copied to the front of an FPDU: payload, padding and CRC.
struct Rest<H> {
    ulpdu_len: u16,
    payload: Option<Local<H>>,
}

impl<H: Copy> Rest<H> {
    /// Behind `front_len` bytes of the ULPDU. The whole fits its length field.
    #[inline(always)]
    fn new(front_len: usize, payload: Option<Local<H>>) -> Self {
        let payload = payload.filter(|local| local.len > 0);
        let len = front_len + payload.map_or(0, |local| local.len as usize);
        let ulpdu_len = u16::try_from(len).expect("a ULPDU fits its length field");
        Self { ulpdu_len, payload }
    }

    /// Emits it and returns the length of the FPDU. `crc` is the register after the front, if the connection uses CRCs.
    #[inline(always)]
    fn emit(self, sink: &mut impl TxSink<H>, mut crc: Option<u32>) -> usize {
        if let Some(local) = self.payload {
            let len = local.len as usize;
            crc = crc.map(|state| sink.crc(local.handle, local.offset, len, state));
            sink.payload(local.handle, local.offset, len);
        }
        let pad = fpdu_padding(self.ulpdu_len);
        if pad > 0 {
            let padding = &[0; 3][..pad];
            sink.bytes(padding);
            crc = crc.map(|state| crc::update(state, padding));
        }
        sink.bytes(&crc.map_or([0; FPDU_CRC_SIZE], crc::finish));
        FPDU_LENGTH_SIZE + usize::from(self.ulpdu_len) + pad + FPDU_CRC_SIZE
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
