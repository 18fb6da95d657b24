//! Bytes that nobody may see: zeroed when dropped, compared in constant time, never printed.

use std::fmt;

use rand_core::CryptoRng;
use subtle::ConstantTimeEq;
use zeroize::{Zeroize, Zeroizing};

/// Secret bytes.
#[derive(Clone)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// Takes bytes that are already a secret's own memory.
    pub(crate) fn new(bytes: Zeroizing<Vec<u8>>) -> Self {
        Self(bytes)
    }

    /// A copy of these bytes. What they are copied from, the caller zeroes.
    pub fn copy_of(bytes: &[u8]) -> Self {
        Self(Zeroizing::new(bytes.to_vec()))
    }

    pub(crate) fn zeroed(length: usize) -> Self {
        Self(Zeroizing::new(vec![0; length]))
    }

    /// These, one after the other.
    pub(crate) fn concat(secrets: &[Self]) -> Self {
        let mut whole = Self::zeroed(secrets.iter().map(|secret| secret.0.len()).sum());
        let mut rest = whole.bytes_mut();
        for secret in secrets {
            let (part, behind) = rest.split_at_mut(secret.0.len());
            part.copy_from_slice(&secret.0);
            rest = behind;
        }
        whole
    }

    /// So many random bytes.
    pub fn random(length: usize, random: &mut dyn CryptoRng) -> Self {
        let mut secret = Self::zeroed(length);
        random.fill_bytes(secret.bytes_mut());
        secret
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }

    /// The bytes, for whoever computes with them.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

/// In a time that depends on the lengths alone.
impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        is_equal(&self.0, &other.0)
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// Words of the stack that are overwritten: more than what computes with secrets uses.
const STACK_WORDS: usize = 4096;

/// Does something with secrets, and overwrites the stack that it has used. Libraries move keys and what they make of
/// them through their own frames, and zero only the last place.
#[inline(never)]
pub(crate) fn on_clean_stack<T>(work: impl FnOnce() -> T) -> T {
    let result = apart(work);
    overwrite_stack();
    result
}

/// In frames of its own, below those of the caller.
#[inline(never)]
fn apart<T>(work: impl FnOnce() -> T) -> T {
    work()
}

#[inline(never)]
fn overwrite_stack() {
    let mut words = [0_u64; STACK_WORDS];
    // Written, although nobody reads it.
    words.zeroize();
    std::hint::black_box(&mut words);
}

/// Whether both are the same, in a time that depends on their lengths alone.
pub(crate) fn is_equal(one: &[u8], other: &[u8]) -> bool {
    one.ct_eq(other).into()
}

/// A key as text, for the one place that prints or writes it.
#[derive(Clone)]
pub struct SecretText(Zeroizing<String>);

impl SecretText {
    pub(crate) fn new(text: Zeroizing<String>) -> Self {
        Self(text)
    }

    /// Room for a text of so many bytes, which stays where it is while no more are written.
    pub fn with_capacity(bytes: usize) -> Self {
        Self(Zeroizing::new(String::with_capacity(bytes)))
    }

    /// The text.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// The text, for whoever writes it.
    pub fn expose_mut(&mut self) -> &mut String {
        &mut self.0
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretText")
    }
}

/// The system's random numbers.
///
/// It panics if the system has none, which Linux does not report after it has started.
pub fn system_random() -> impl CryptoRng {
    rand_core::UnwrapErr(getrandom::SysRng)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_equal_to_its_copy_and_is_not_printed() {
        let secret = Secret::random(32, &mut system_random());
        assert_eq!(secret, secret.clone());
        assert_ne!(secret, Secret::random(32, &mut system_random()));
        assert_ne!(secret, Secret::copy_of(&secret.expose()[..31]));
        assert_eq!(format!("{secret:?}"), "Secret");
        assert_eq!(format!("{:?}", SecretText::new(Zeroizing::new("DHHC-1".into()))), "SecretText");
    }
}
