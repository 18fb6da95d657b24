//! Arithmetic modulo the polynomial, for putting parts of a CRC together.
//!
//! A CRC is linear. The register after a whole block is the sum of those of its parts, each multiplied by x once for
//! every bit behind that part, modulo the polynomial. See V. Gopal and others, "Fast CRC Computation for Generic
//! Polynomials Using PCLMULQDQ Instruction", 2009; the bits are mirrored here, as the CRC32 instruction has them.

use std::arch::x86_64::{_mm_clmulepi64_si128, _mm_cvtsi64_si128, _mm_cvtsi128_si64};

/// The polynomial without its highest term, mirrored.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// The product of a register and what [`factor`] gives; the CRC32 instruction makes a register of it.
#[inline]
#[target_feature(enable = "sse4.2,pclmulqdq")]
pub(crate) fn multiply(state: u64, factor: i64) -> u64 {
    let product = _mm_clmulepi64_si128::<0x00>(_mm_cvtsi64_si128(state as i64), _mm_cvtsi64_si128(factor));
    _mm_cvtsi128_si64(product) as u64
}

/// What multiplies by x for each of `bits`. A product of mirrored numbers lacks a factor x, and what is 32 bits long
/// stands in the half of a word that stands for x to the power of 32.
pub(crate) const fn factor(bits: u64) -> i64 {
    power(bits - 33) as i64
}

/// What multiplies the two words of an accumulator.
#[derive(Clone, Copy)]
pub(crate) struct Factors {
    /// For the first word, which is 64 bits further away from where both go.
    pub(crate) low: i64,
    pub(crate) high: i64,
}

/// For an accumulator that is moved by `bits`.
pub(crate) const fn factors(bits: u64) -> Factors {
    Factors { low: factor(bits + 64), high: factor(bits) }
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
