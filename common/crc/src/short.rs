//! CRC32C of what is short: one CRC32 instruction after the other, each of which waits for the one before.

use std::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u32, _mm_crc32_u64};
use std::sync::LazyLock;

/// The most bytes for which [`short`] is the best way: of a header, or of a capsule.
pub(crate) const LENGTH_MAX: usize = 96;

/// Whether the processor has what [`short`] needs.
pub(crate) static POSSIBLE: LazyLock<bool> = LazyLock::new(|| is_x86_feature_detected!("sse4.2"));

/// The register after a few bytes, one after the other: anything else takes longer to begin. Call only where this is
/// [possible](POSSIBLE).
#[inline]
#[target_feature(enable = "sse4.2")]
pub(crate) fn short(state: u32, bytes: &[u8]) -> u32 {
    let mut state = u64::from(state);
    let (words, mut rest) = bytes.as_chunks();
    for word in words {
        state = _mm_crc32_u64(state, u64::from_le_bytes(*word));
    }
    let mut state = state as u32;
    if let Some((half, last)) = rest.split_first_chunk() {
        (state, rest) = (_mm_crc32_u32(state, u32::from_le_bytes(*half)), last);
    }
    rest.iter().fold(state, |state, byte| _mm_crc32_u8(state, *byte))
}
