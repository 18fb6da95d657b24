//! CRC32C in two ways at once, which use different parts of the processor. The CRC32 instruction takes half of a block,
//! in four streams, because each result takes three cycles. Multiplication of polynomials takes the other half: four
//! accumulators of 256 bits are folded onto the bytes that are 128 further on.

use std::arch::x86_64::{
    __m128i, __m256i, _mm_clmulepi64_si128, _mm_crc32_u64, _mm_cvtsi128_si64, _mm_extract_epi64,
    _mm_set_epi64x, _mm_xor_si128, _mm256_castsi256_si128, _mm256_clmulepi64_epi128,
    _mm256_extracti128_si256, _mm256_loadu_si256, _mm256_set_epi64x, _mm256_setzero_si256, _mm256_xor_si256,
};

use crate::polynomial::{Factors, factor, factors, multiply};
use crate::short::short;

/// Whether the processor has what [`update`] needs.
pub(crate) fn possible() -> bool {
    is_x86_feature_detected!("sse4.2")
        && is_x86_feature_detected!("pclmulqdq")
        && is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("vpclmulqdq")
}

/// Bytes of each stream, and of each accumulator, that a step takes.
const STEP: usize = 32;

/// Bytes that a step takes by products: a block has as many for the streams.
const FOLDED: usize = 4 * STEP;

/// The register after `bytes`. Call only where this is [`possible`].
#[target_feature(enable = "sse4.2,pclmulqdq,avx2,vpclmulqdq")]
pub(crate) fn update(mut state: u32, mut bytes: &[u8]) -> u32 {
    while let Some((front, rest)) = bytes.split_at_checked(16 * 2 * FOLDED) {
        (state, bytes) = (block::<16>(state, front), rest);
    }
    while let Some((front, rest)) = bytes.split_at_checked(4 * 2 * FOLDED) {
        (state, bytes) = (block::<4>(state, front), rest);
    }
    while let Some((front, rest)) = bytes.split_at_checked(2 * FOLDED) {
        (state, bytes) = (block::<1>(state, front), rest);
    }
    short(state, bytes)
}

/// The register after a block of `STEPS` steps.
#[inline]
#[target_feature(enable = "sse4.2,pclmulqdq,avx2,vpclmulqdq")]
fn block<const STEPS: usize>(state: u32, bytes: &[u8]) -> u32 {
    let (streamed, folded) = bytes.split_at(STEPS * FOLDED);
    let ((streamed, _), (folded, _)) = (streamed.as_chunks::<STEP>(), folded.as_chunks::<FOLDED>());
    // The compiler knows from this that no index below is out of bounds.
    assert!(streamed.len() == 4 * STEPS && folded.len() == STEPS, "a whole block");
    let mut sums = [_mm256_setzero_si256(); 4];
    let mut streams = [u64::from(state), 0, 0, 0];
    for step in 0..STEPS {
        for word in 0..STEP / 8 {
            for (number, stream) in streams.iter_mut().enumerate() {
                *stream = _mm_crc32_u64(*stream, self::word(&streamed[number * STEPS + step], word));
            }
        }
        let (parts, _) = folded[step].as_chunks();
        let ahead = const { factors(8 * FOLDED as u64) };
        for (sum, part) in sums.iter_mut().zip(parts) {
            *sum = if step == 0 { load(part) } else { fold(*sum, ahead, load(part)) };
        }
    }
    // From the bytes behind each stream: the streams behind it, and what was folded.
    let products = multiply(streams[0], const { factor(8 * (3 * STEP + FOLDED) as u64 * STEPS as u64) })
        ^ multiply(streams[1], const { factor(8 * (2 * STEP + FOLDED) as u64 * STEPS as u64) })
        ^ multiply(streams[2], const { factor(8 * (STEP + FOLDED) as u64 * STEPS as u64) })
        ^ multiply(streams[3], const { factor(8 * FOLDED as u64 * STEPS as u64) });
    (_mm_crc32_u64(0, products) ^ joined(sums)) as u32
}

/// The register after the four accumulators, which follow each other.
#[inline]
#[target_feature(enable = "sse4.2,pclmulqdq,avx2,vpclmulqdq")]
fn joined([first, second, third, fourth]: [__m256i; 4]) -> u64 {
    let by_one = const { factors(8 * STEP as u64) };
    let by_two = const { factors(8 * 2 * STEP as u64) };
    let (front, back) = (fold(first, by_one, second), fold(third, by_one, fourth));
    reduced(fold(front, by_two, back))
}

/// The register after the bytes of one accumulator.
#[inline]
#[target_feature(enable = "sse4.2,pclmulqdq,avx2,vpclmulqdq")]
pub(crate) fn reduced(sum: __m256i) -> u64 {
    let by_half = const { factors(8 * STEP as u64 / 2) };
    let factors = _mm_set_epi64x(by_half.high, by_half.low);
    let (front, back) = (_mm256_castsi256_si128(sum), _mm256_extracti128_si256::<1>(sum));
    let products: __m128i = _mm_xor_si128(
        _mm_clmulepi64_si128::<0x00>(front, factors),
        _mm_clmulepi64_si128::<0x11>(front, factors),
    );
    let sum = _mm_xor_si128(products, back);
    let state = _mm_crc32_u64(0, _mm_cvtsi128_si64(sum) as u64);
    _mm_crc32_u64(state, _mm_extract_epi64::<1>(sum) as u64)
}

/// What becomes of an accumulator when it is moved onto `bytes`.
#[inline]
#[target_feature(enable = "avx2,vpclmulqdq")]
pub(crate) fn fold(sum: __m256i, by: Factors, bytes: __m256i) -> __m256i {
    let Factors { low, high } = by;
    let factors = _mm256_set_epi64x(high, low, high, low);
    let low = _mm256_clmulepi64_epi128::<0x00>(sum, factors);
    let high = _mm256_clmulepi64_epi128::<0x11>(sum, factors);
    _mm256_xor_si256(_mm256_xor_si256(low, bytes), high)
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(bytes: &[u8; STEP]) -> __m256i {
    // SAFETY: the bytes are borrowed for this call, there are exactly as many as it reads, and it asks for no
    // alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// One word of a stream's step.
#[inline]
pub(crate) fn word(bytes: &[u8; STEP], number: usize) -> u64 {
    u64::from_le_bytes(bytes.as_chunks().0[number])
}
