//! Finite fields of RFC 7919.

use std::sync::OnceLock;
use std::time::Duration;

use crypto_bigint::modular::{BoxedMontyForm, BoxedMontyParams};
use crypto_bigint::{BoxedUint, Odd};
use rand_core::CryptoRng;
use zeroize::Zeroizing;

use super::{InvalidValue, primes};
use crate::secret::Secret;

/// A field. Its prime is safe, and 2 generates the subgroup of prime order.
pub(super) struct Ffdhe {
    bits: u32,
    /// Bits of a private exponent: twice the strength of the group (RFC 7919, appendix A), rounded up to whole words.
    /// A longer one would take up to eighteen times as long, and make nothing stronger.
    exponent_bits: u32,
    prime: &'static str,
    parameters: OnceLock<BoxedMontyParams>,
}

pub(super) static FFDHE2048: Ffdhe = Ffdhe::new(2048, 256, primes::FFDHE2048);
pub(super) static FFDHE3072: Ffdhe = Ffdhe::new(3072, 320, primes::FFDHE3072);
pub(super) static FFDHE4096: Ffdhe = Ffdhe::new(4096, 384, primes::FFDHE4096);
pub(super) static FFDHE6144: Ffdhe = Ffdhe::new(6144, 384, primes::FFDHE6144);
pub(super) static FFDHE8192: Ffdhe = Ffdhe::new(8192, 448, primes::FFDHE8192);

impl Ffdhe {
    const fn new(bits: u32, exponent_bits: u32, prime: &'static str) -> Self {
        Self { bits, exponent_bits, prime, parameters: OnceLock::new() }
    }

    /// About how long one exponentiation takes: it grows with the square of the prime's length.
    pub(super) fn cost(&self) -> Duration {
        let bits = u64::from(self.bits);
        Duration::from_nanos(bits * bits * u64::from(self.exponent_bits) / 2300)
    }

    pub(super) fn value_length(&self) -> usize {
        self.bits as usize / 8
    }

    /// A private exponent. Its first bit is set, so that it is never short.
    pub(super) fn exponent(&self, random: &mut dyn CryptoRng) -> Secret {
        let mut exponent = Secret::random(self.exponent_bits as usize / 8, random);
        exponent.bytes_mut()[0] |= 0x80;
        exponent
    }

    /// 2 to the power of an exponent.
    pub(super) fn value_of(&self, exponent: &Secret) -> Vec<u8> {
        let two = BoxedUint::from_be_slice(&[2], self.bits).expect("a small number");
        self.power(two, exponent).expose().to_vec()
    }

    /// What both ends have after the exchange, as long as the prime.
    pub(super) fn shared(&self, exponent: &Secret, peer: &[u8]) -> Result<Secret, InvalidValue> {
        Ok(self.power(self.value(peer)?, exponent))
    }

    /// A peer's value: more than 1 and less than the prime minus 1, so that the secret is not one of two known ones
    /// (RFC 7919, section 5.1).
    fn value(&self, bytes: &[u8]) -> Result<BoxedUint, InvalidValue> {
        if bytes.len() != self.value_length() {
            return Err(InvalidValue);
        }
        let value = BoxedUint::from_be_slice(bytes, self.bits).map_err(|_| InvalidValue)?;
        let one = BoxedUint::one_with_precision(self.bits);
        let last = self.parameters().modulus().as_ref().wrapping_sub(&one);
        // Values are public.
        if value > one && value < last { Ok(value) } else { Err(InvalidValue) }
    }

    /// In a time that does not depend on the exponent.
    fn power(&self, base: BoxedUint, exponent: &Secret) -> Secret {
        let exponent = BoxedUint::from_be_slice(exponent.expose(), self.exponent_bits);
        let exponent = Zeroizing::new(exponent.expect("as long as it was drawn"));
        let base = BoxedMontyForm::new(base, self.parameters());
        let power = Zeroizing::new(base.pow_bounded_exp(&exponent, self.exponent_bits));
        let power = Zeroizing::new(power.retrieve());
        let bytes = Zeroizing::new(power.to_be_bytes().into_vec());
        Secret::new(bytes)
    }

    fn parameters(&self) -> &BoxedMontyParams {
        self.parameters.get_or_init(|| {
            let prime = BoxedUint::from_be_hex(self.prime, self.bits).expect("hexadecimal digits");
            BoxedMontyParams::new_vartime(Odd::new(prime).expect("a prime that is not two"))
        })
    }
}
