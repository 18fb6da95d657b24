//! What can be wrong with a recorded stream of the software RNIC.

use ringfab_tests::player::flipped;
use ringfab_tests::recording::{fpdus, mpa_bytes, sign};

/// Bytes of an FPDU that are all tried: length, DDP and RDMAP headers, a capsule.
const HEADER_BYTES: usize = 96;

/// Of the bytes behind them, one in so many is tried.
const PAYLOAD_STEP: usize = 61;

/// The streams that differ from a recorded one in a flipped byte or a length, in a fixed order.
pub(crate) fn damaged(stream: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    for at in 0..mpa_bytes(stream) {
        all.push((format!("byte {at} of the MPA frame"), flipped(stream, at, 0xff)));
    }
    for length in [0, 1, 511, 512, 513, u16::MAX] {
        let mut changed = stream.to_vec();
        changed[18..20].copy_from_slice(&length.to_be_bytes());
        all.push((format!("{length} bytes of private data"), changed));
    }
    for (at, length) in fpdus(stream) {
        let end = (at + 2 + length).next_multiple_of(4).min(stream.len());
        let tried = (at..end.min(at + HEADER_BYTES)).chain((at + HEADER_BYTES..end).step_by(PAYLOAD_STEP));
        for byte in tried {
            all.push((format!("byte {byte}"), flipped(stream, byte, 0xff)));
            for mask in [0xff, 0x01] {
                let mut changed = flipped(stream, byte, mask);
                sign(&mut changed, at, length);
                all.push((format!("byte {byte} by {mask:#x}, signed"), changed));
            }
        }
        for wrong in [0, 1, length as u16 - 1, length as u16 + 1, 0x7fff, 0xfffe, u16::MAX] {
            let mut changed = stream.to_vec();
            changed[at..at + 2].copy_from_slice(&wrong.to_be_bytes());
            sign(&mut changed, at, length);
            all.push((format!("length {wrong} at {at}"), changed));
        }
    }
    all
}
