//! From messages to FPDUs.

use ringfab_spec::iwarp::{
    DdpControl, FPDU_CRC_SIZE, FPDU_LENGTH_SIZE, RdmapControl, TaggedHeader, UntaggedHeader, fpdu_padding,
};

use super::crc;
use super::work::Local;

/// The largest ULPDU that the 16-bit length field of an FPDU can announce, in bytes.
pub const ULPDU_LEN_MAX: u16 = u16::MAX;

/// The smallest ULPDU limit that makes sense: an untagged header, an inline Send and a Terminate with all its headers
/// fit.
pub(crate) const ULPDU_LEN_MIN: u16 = 128;

/// Segments of large messages are multiples of this, so that each starts on a page of the destination.
const SEGMENT_ALIGN: u32 = 4096;

/// Takes what the engine emits, in stream order.
///
/// Rely on: between two calls of [`TxSink::has_room`] at most one payload arrives, and fewer than 256 bytes around it,
/// in any number of calls. Promise: the pieces go on the wire in the order of the calls, and the memory behind a
/// payload stays valid until the bytes are reported to [`Engine::transmitted`](super::Engine::transmitted).
pub trait TxSink<H> {
    /// Whether another FPDU may be emitted.
    fn has_room(&self) -> bool {
        true
    }

    /// Room for headers, inline payload and trailers, `len` bytes, all of which are written before the next call, which
    /// is [`TxSink::filled`].
    fn room(&mut self, len: usize) -> &mut [u8];

    /// The last `len` bytes of room, all that was asked for last, have been written.
    fn filled(&mut self, len: usize) {
        let _ = len;
    }

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
    let words = [header.stag.get(), (header.to.get() >> 32) as u32, header.to.get() as u32];
    let front = Front { controls: (header.ddp, header.rdmap), words, mo: &[], inline: &[] };
    emit(sink, &front, payload, crc_used)
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
    let words = [header.invalidate_stag.get(), header.qn.get(), header.msn.get()];
    let mo = header.mo.get().to_be_bytes();
    let front = Front { controls: (header.ddp, header.rdmap), words, mo: &mo, inline };
    emit(sink, &front, payload, crc_used)
}

/// What precedes the payload of an FPDU: its length, a header, and bytes that are sent inline.
struct Front<'a> {
    controls: (DdpControl, RdmapControl),
    /// What follows the two control bytes, as far as both headers have it.
    words: [u32; 3],
    /// The last field of an untagged header.
    mo: &'a [u8],
    inline: &'a [u8],
}

/// The length field and what both headers have.
const FRONT_SIZE: usize = FPDU_LENGTH_SIZE + TaggedHeader::SIZE;
const _: () =
    assert!(FRONT_SIZE == 16 && FPDU_LENGTH_SIZE + UntaggedHeader::SIZE == FRONT_SIZE + size_of::<u32>());

impl Front<'_> {
    #[inline(always)]
    fn len(&self) -> usize {
        FRONT_SIZE + self.mo.len() + self.inline.len()
    }

    /// Puts it where there is room for exactly it. The length and the header but for its last word go there as two
    /// values. Put together in memory, field by field, they could not be copied from there with larger loads before all
    /// of the stores are done, which takes longer than everything else about a header.
    #[inline(always)]
    fn put(&self, room: &mut [u8], ulpdu_len: u16) {
        let ([ddp, rdmap], words) = ([self.controls.0.bits(), self.controls.1.bits()], self.words);
        let first = u32::from(ulpdu_len) << 16 | u32::from(ddp) << 8 | u32::from(rdmap);
        let pair = |high: u32, low: u32| (u64::from(high) << 32 | u64::from(low)).to_be_bytes();
        let (header, room) = room.split_at_mut(FRONT_SIZE);
        header[..8].copy_from_slice(&pair(first, words[0]));
        header[8..].copy_from_slice(&pair(words[1], words[2]));
        let (mo, inline) = room.split_at_mut(self.mo.len());
        mo.copy_from_slice(self.mo);
        inline.copy_from_slice(self.inline);
    }
}

/// Emits one FPDU and returns its length in bytes. Around its payload there is as little to do as possible: one room
/// for all that is copied in one piece.
#[inline(always)]
fn emit<H: Copy>(
    sink: &mut impl TxSink<H>,
    front: &Front<'_>,
    payload: Option<Local<H>>,
    crc_used: bool,
) -> usize {
    let payload = payload.filter(|local| local.len > 0);
    let len = front.len() - FPDU_LENGTH_SIZE + payload.map_or(0, |local| local.len as usize);
    let ulpdu_len = u16::try_from(len).expect("a ULPDU fits its length field");
    let pad = fpdu_padding(ulpdu_len);
    let after = |state, bytes: &[u8]| if crc_used { crc::update(state, bytes) } else { state };
    let end_len = pad + FPDU_CRC_SIZE;
    if let Some(Local { handle, offset, len }) = payload {
        let room = sink.room(front.len());
        front.put(room, ulpdu_len);
        let mut state = after(crc::START, room);
        sink.filled(front.len());
        if crc_used {
            state = sink.crc(handle, offset, len as usize, state);
        }
        sink.payload(handle, offset, len as usize);
        put_end(sink.room(end_len), pad, crc_used.then_some(state));
        sink.filled(end_len);
    } else {
        let room = sink.room(front.len() + end_len);
        let (start, end) = room.split_at_mut(front.len());
        front.put(start, ulpdu_len);
        let state = after(crc::START, start);
        put_end(end, pad, crc_used.then_some(state));
        sink.filled(front.len() + end_len);
    }
    FPDU_LENGTH_SIZE + usize::from(ulpdu_len) + end_len
}

/// Puts padding and CRC where there is room for exactly them. `state` is the register after what precedes them, if the
/// connection uses CRCs.
#[inline(always)]
fn put_end(room: &mut [u8], pad: usize, mut state: Option<u32>) {
    let (padding, last) = room.split_at_mut(pad);
    if pad > 0 {
        padding.fill(0);
        state = state.map(|state| crc::update(state, padding));
    }
    last.copy_from_slice(&state.map_or([0; FPDU_CRC_SIZE], crc::finish));
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
