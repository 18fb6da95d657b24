//! CRC32C by two means at once, each of which keeps another part of the processor busy: half of a block by the CRC32
//! instruction, in four streams, since one has to wait three cycles for its own result; the other half by products of
//! polynomials, where four accumulators of 256 bits are folded onto the bytes that come 128 further on.
//!
//! A CRC is linear. The register after a whole block is the sum of those of its parts, each multiplied by x once for every
//! bit behind that part, modulo the polynomial. See V. Gopal and others, "Fast CRC Computation for Generic Polynomials
//! Using PCLMULQDQ Instruction", 2009; the bits are mirrored here, as the CRC32 instruction has them.

use std::arch::x86_64::{
    __m128i, __m256i, _mm_clmulepi64_si128, _mm_crc32_u8, _mm_crc32_u32, _mm_crc32_u64, _mm_cvtsi64_si128,
    _mm_cvtsi128_si64, _mm_extract_epi64, _mm_set_epi64x, _mm_xor_si128, _mm256_castsi256_si128,
    _mm256_clmulepi64_epi128, _mm256_extracti128_si256, _mm256_loadu_si256, _mm256_set_epi64x,
    _mm256_setzero_si256, _mm256_xor_si256,
};
use std::sync::LazyLock;

/// Whether the processor has what [`update`] needs.
pub(crate) fn possible() -> bool {
    is_x86_feature_detected!("sse4.2")
        && is_x86_feature_detected!("pclmulqdq")
        && is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("vpclmulqdq")
}

/// Whether [`update`] is the best way: the library's with AVX-512 is faster.
pub(crate) static PREFERRED: LazyLock<bool> = LazyLock::new(|| {
    possible() && !(is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vl"))
});

/// The polynomial without its highest term, mirrored.
const POLYNOMIAL: u32 = 0x82f6_3b78;

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

/// The most bytes for which [`short`] is the best way: of a header, or of a capsule.
pub(crate) const SHORT_MAX: usize = 96;

/// Whether the processor has what [`short`] needs.
pub(crate) static SHORT_POSSIBLE: LazyLock<bool> = LazyLock::new(|| is_x86_feature_detected!("sse4.2"));

/// The register after a few bytes, one after the other: anything else takes longer to begin. Call only where this is
/// [possible](SHORT_POSSIBLE).
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

/// The register after a block of `STEPS` steps.
#[inline]
#[target_feature(enable = "sse4.2,pclmulqdq,avx2,vpclmulqdq")]
fn block<const STEPS: usize>(state: u32, bytes: &[u8]) -> u32 {
    let (steps, _) = bytes.as_chunks::<STEP>();
    let (streamed, folded) = steps.split_at(4 * STEPS);
    let (first, others) = streamed.split_at(STEPS);
    let (second, others) = others.split_at(STEPS);
    let (third, fourth) = others.split_at(STEPS);
    let (folded, _) = folded.as_chunks::<4>();
    let mut folded = folded.iter();
    let mut sums = [_mm256_setzero_si256(); 4];
    if let Some(bytes) = folded.next() {
        sums = [load(&bytes[0]), load(&bytes[1]), load(&bytes[2]), load(&bytes[3])];
    }
    let [mut one, mut two, mut three, mut four] = [u64::from(state), 0, 0, 0];
    let steps = first.iter().zip(second).zip(third.iter().zip(fourth));
    for ((first, second), (third, fourth)) in steps {
        let words = words(first).zip(words(second)).zip(words(third).zip(words(fourth)));
        for ((first, second), (third, fourth)) in words {
            one = _mm_crc32_u64(one, first);
            two = _mm_crc32_u64(two, second);
            three = _mm_crc32_u64(three, third);
            four = _mm_crc32_u64(four, fourth);
        }
        if let Some(bytes) = folded.next() {
            let ahead = const { factors(8 * FOLDED as u64) };
            sums[0] = fold(sums[0], ahead, load(&bytes[0]));
            sums[1] = fold(sums[1], ahead, load(&bytes[1]));
            sums[2] = fold(sums[2], ahead, load(&bytes[2]));
            sums[3] = fold(sums[3], ahead, load(&bytes[3]));
        }
    }
    // From the bytes behind each stream: the streams behind it, and what was folded.
    let products = multiply(one, const { factor(8 * (3 * STEP + FOLDED) as u64 * STEPS as u64) })
        ^ multiply(two, const { factor(8 * (2 * STEP + FOLDED) as u64 * STEPS as u64) })
        ^ multiply(three, const { factor(8 * (STEP + FOLDED) as u64 * STEPS as u64) })
        ^ multiply(four, const { factor(8 * FOLDED as u64 * STEPS as u64) });
    (_mm_crc32_u64(0, products) ^ joined(sums)) as u32
}

/// The register after the four accumulators, which follow each other.
#[inline]
#[target_feature(enable = "sse4.2,pclmulqdq,avx2,vpclmulqdq")]
fn joined([first, second, third, fourth]: [__m256i; 4]) -> u64 {
    let by_one = const { factors(8 * STEP as u64) };
    let by_two = const { factors(8 * 2 * STEP as u64) };
    let (front, back) = (fold(first, by_one, second), fold(third, by_one, fourth));
    let sum = fold(front, by_two, back);
    let (low, high) = const { factors(8 * STEP as u64 / 2) };
    let factors = _mm_set_epi64x(high, low);
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
fn fold(sum: __m256i, (low, high): (i64, i64), bytes: __m256i) -> __m256i {
    let factors = _mm256_set_epi64x(high, low, high, low);
    let low = _mm256_clmulepi64_epi128::<0x00>(sum, factors);
    let high = _mm256_clmulepi64_epi128::<0x11>(sum, factors);
    _mm256_xor_si256(_mm256_xor_si256(low, bytes), high)
}

/// The product of a register and what [`factor`] gives; the CRC32 instruction makes a register of it.
#[inline]
#[target_feature(enable = "sse4.2,pclmulqdq")]
fn multiply(state: u64, factor: i64) -> u64 {
    let product = _mm_clmulepi64_si128::<0x00>(_mm_cvtsi64_si128(state as i64), _mm_cvtsi64_si128(factor));
    _mm_cvtsi128_si64(product) as u64
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(bytes: &[u8; STEP]) -> __m256i {
    // SAFETY: the bytes are borrowed for this call, there are exactly as many as it reads, and it asks for no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[inline]
fn words(bytes: &[u8; STEP]) -> impl Iterator<Item = u64> {
    let (words, _) = bytes.as_chunks();
    words.iter().map(|word| u64::from_le_bytes(*word))
}

/// What multiplies by x for each of `bits`. A product of mirrored numbers lacks a factor x, and what is 32 bits long stands
/// in the half of a word that stands for x to the power of 32.
const fn factor(bits: u64) -> i64 {
    power(bits - 33) as i64
}

/// For the two words of an accumulator, of which the first is 64 bits further away from where both go.
const fn factors(bits: u64) -> (i64, i64) {
    (factor(bits + 64), factor(bits))
}

/// x to the power of `exponent` modulo the polynomial, mirrored: the highest bit is the constant term.
const fn power(mut exponent: u64) -> u32 {
    let (mut result, mut square) = (1 << 31, 1 << 30);
    while exponent > 0 {
        if exponent & 1 == 1 {
            result = product(result, square);
        }
        square = product(square, square);
        exponent >>= 1;
    }
    result
}

const fn product(mut one: u32, mut other: u32) -> u32 {
    let mut result = 0;
    while other != 0 {
        if other >> 31 == 1 {
            result ^= one;
        }
        one = (one >> 1) ^ (if one & 1 == 1 { POLYNOMIAL } else { 0 });
        other <<= 1;
    }
    result
}
