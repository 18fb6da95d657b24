//! The method of [`wide`](crate::wide), with accumulators of 512 bits. Multiplication then takes twice as many bytes as
//! the CRC32 instruction in the same time, so the streams get a third of a block.

use std::arch::x86_64::{
    __m512i, _mm_crc32_u64, _mm512_castsi512_si256, _mm512_clmulepi64_epi128, _mm512_extracti64x4_epi64,
    _mm512_loadu_si512, _mm512_set4_epi64, _mm512_setzero_si512, _mm512_ternarylogic_epi64,
};

use crate::polynomial::{Factors, factor, factors, multiply};
use crate::wide::{self, word};

/// Whether the processor has what [`update`] needs.
pub(crate) fn possible() -> bool {
    wide::possible() && is_x86_feature_detected!("avx512f")
}

/// Bytes of each stream that a step takes.
const STEP: usize = 32;
/// Bytes of an accumulator.
const SUM: usize = 64;
/// Bytes that a step takes by products.
const FOLDED: usize = 4 * SUM;

/// Bytes of a block of so many steps: before the first, the accumulators are filled.
const fn block_bytes(steps: usize) -> usize {
    steps * (4 * STEP + FOLDED) + FOLDED
}

/// The register after `bytes`. Call only where this is [`possible`].
#[target_feature(enable = "sse4.2,pclmulqdq,avx2,vpclmulqdq,avx512f")]
pub(crate) fn update(mut state: u32, mut bytes: &[u8]) -> u32 {
    // 16 KiB, 4 KiB and 1 KiB.
    while let Some((front, rest)) = bytes.split_at_checked(block_bytes(42)) {
        (state, bytes) = (block::<42>(state, front), rest);
    }
    while let Some((front, rest)) = bytes.split_at_checked(block_bytes(10)) {
        (state, bytes) = (block::<10>(state, front), rest);
    }
    while let Some((front, rest)) = bytes.split_at_checked(block_bytes(2)) {
        (state, bytes) = (block::<2>(state, front), rest);
    }
    wide::update(state, bytes)
}

/// The register after a block of `STEPS` steps.
#[inline]
#[target_feature(enable = "sse4.2,pclmulqdq,avx2,vpclmulqdq,avx512f")]
fn block<const STEPS: usize>(state: u32, bytes: &[u8]) -> u32 {
    let (streamed, folded) = bytes.split_at(STEPS * 4 * STEP);
    let ((streamed, _), (folded, _)) = (streamed.as_chunks::<STEP>(), folded.as_chunks::<FOLDED>());
    // The compiler knows from this that no index below is out of bounds.
    assert!(streamed.len() == 4 * STEPS && folded.len() == STEPS + 1, "a whole block");
    let mut sums = [_mm512_setzero_si512(); 4];
    for (sum, part) in sums.iter_mut().zip(folded[0].as_chunks().0) {
        *sum = load(part);
    }
    let mut streams = [u64::from(state), 0, 0, 0];
    for step in 0..STEPS {
        for number in 0..STEP / 8 {
            for (stream, state) in streams.iter_mut().enumerate() {
                *state = _mm_crc32_u64(*state, word(&streamed[stream * STEPS + step], number));
            }
        }
        let ahead = const { factors(8 * FOLDED as u64) };
        for (sum, part) in sums.iter_mut().zip(folded[step + 1].as_chunks().0) {
            *sum = fold(*sum, ahead, load(part));
        }
    }
    // From the bytes behind each stream: the streams behind it, and what was folded.
    let products = multiply(streams[0], const { factor(8 * behind(3, STEPS)) })
        ^ multiply(streams[1], const { factor(8 * behind(2, STEPS)) })
        ^ multiply(streams[2], const { factor(8 * behind(1, STEPS)) })
        ^ multiply(streams[3], const { factor(8 * behind(0, STEPS)) });
    (_mm_crc32_u64(0, products) ^ joined(sums)) as u32
}

/// Bytes behind a stream that has so many others behind it.
const fn behind(streams: usize, steps: usize) -> u64 {
    (streams * STEP * steps + FOLDED * (steps + 1)) as u64
}

/// The register after the four accumulators, which follow each other.
#[inline]
#[target_feature(enable = "sse4.2,pclmulqdq,avx2,vpclmulqdq,avx512f")]
fn joined([first, second, third, fourth]: [__m512i; 4]) -> u64 {
    let by_one = const { factors(8 * SUM as u64) };
    let by_two = const { factors(8 * 2 * SUM as u64) };
    let (front, back) = (fold(first, by_one, second), fold(third, by_one, fourth));
    let sum = fold(front, by_two, back);
    let by_half = const { factors(8 * SUM as u64 / 2) };
    let (front, back) = (_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64::<1>(sum));
    wide::reduced(wide::fold(front, by_half, back))
}

/// What becomes of an accumulator when it is moved onto `bytes`.
#[inline]
#[target_feature(enable = "vpclmulqdq,avx512f")]
fn fold(sum: __m512i, by: Factors, bytes: __m512i) -> __m512i {
    let Factors { low, high } = by;
    let factors = _mm512_set4_epi64(high, low, high, low);
    let low = _mm512_clmulepi64_epi128::<0x00>(sum, factors);
    let high = _mm512_clmulepi64_epi128::<0x11>(sum, factors);
    // The sum of all three.
    _mm512_ternarylogic_epi64::<0x96>(low, bytes, high)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load(bytes: &[u8; SUM]) -> __m512i {
    // SAFETY: the bytes are borrowed for this call, there are exactly as many as it reads, and it asks for no
    // alignment.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}
