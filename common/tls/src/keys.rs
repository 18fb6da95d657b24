//! The key schedule (RFC 8446, section 7), and the keys of records.

use std::fmt;

use ringfab_auth::{CipherSuite, Hash, Secret};

/// Bytes of [`TrafficKeys::salt`].
pub const SALT_BYTES: usize = 4;
/// Bytes of [`TrafficKeys::iv`].
pub const IV_BYTES: usize = 8;

/// HKDF-Expand-Label. What TLS 1.3 asks of it is never longer than a hash, so one HMAC computes it.
pub(crate) fn expand_label(
    hash: Hash,
    secret: &Secret,
    label: &str,
    context: &[u8],
    length: usize,
) -> Secret {
    const PREFIX: &[u8] = b"tls13 ";
    assert!(length <= hash.length(), "no more than a hash");
    let short = |length: usize| [u8::try_from(length).expect("our labels and hashes are short")];
    let parts: [&[u8]; 8] = [
        &[0],
        &short(length),
        &short(PREFIX.len() + label.len()),
        PREFIX,
        label.as_bytes(),
        &short(context.len()),
        context,
        &[1],
    ];
    Secret::copy_of(&hash.hmac(secret, &parts).expose()[..length])
}

/// The value of a Finished message, and of a binder.
pub(crate) fn finished(hash: Hash, base: &Secret, transcript: &[u8]) -> Secret {
    let key = expand_label(hash, base, "finished", &[], hash.length());
    hash.hmac(&key, &[hash.of(transcript).expose()])
}

/// A secret of the key schedule from which others are derived: Early, Handshake or Main Secret.
#[derive(Debug)]
pub(crate) struct Schedule {
    hash: Hash,
    secret: Secret,
}

impl Schedule {
    /// The Early Secret of a key.
    pub(crate) fn early(hash: Hash, psk: &Secret) -> Self {
        let salt = Secret::copy_of(&[]);
        Self { hash, secret: hash.hmac(&salt, &[psk.expose()]) }
    }

    /// From the Early Secret: the Handshake Secret, with what key agreement has led to.
    pub(crate) fn handshake(&self, shared: &Secret) -> Self {
        self.next(shared.expose())
    }

    /// From the Handshake Secret: the Main Secret.
    pub(crate) fn main(&self) -> Self {
        self.next(&vec![0; self.hash.length()])
    }

    fn next(&self, input: &[u8]) -> Self {
        let salt = self.derive("derived", &[]);
        Self { hash: self.hash, secret: self.hash.hmac(&salt, &[input]) }
    }

    /// Derive-Secret, with these messages.
    pub(crate) fn derive(&self, label: &str, transcript: &[u8]) -> Secret {
        let digest = self.hash.of(transcript);
        expand_label(self.hash, &self.secret, label, digest.expose(), self.hash.length())
    }

    /// From the Early Secret: the binder of an external key, for the messages up to the binders.
    pub(crate) fn binder(&self, transcript: &[u8]) -> Secret {
        finished(self.hash, &self.derive("ext binder", &[]), transcript)
    }
}

/// The keys of one direction, in the parts of the kernel's `tls12_crypto_info_aes_gcm_128` and `_256`.
#[derive(Clone)]
pub struct TrafficKeys {
    suite: CipherSuite,
    key: Secret,
    /// Salt and initialization vector.
    iv: Secret,
    sequence: u64,
    /// Of which the keys were made, and the next ones will be.
    secret: Secret,
}

impl TrafficKeys {
    /// The keys of a traffic secret.
    pub(crate) fn new(suite: CipherSuite, secret: Secret) -> Self {
        let hash = suite.hash();
        let key_bytes = match suite {
            CipherSuite::Aes128GcmSha256 => 16,
            CipherSuite::Aes256GcmSha384 => 32,
        };
        let key = expand_label(hash, &secret, "key", &[], key_bytes);
        let iv = expand_label(hash, &secret, "iv", &[], SALT_BYTES + IV_BYTES);
        Self { suite, key, iv, sequence: 0, secret }
    }

    /// The cipher suite.
    pub fn suite(&self) -> CipherSuite {
        self.suite
    }

    /// The key: 16 or 32 bytes.
    pub fn key(&self) -> &[u8] {
        self.key.expose()
    }

    /// The first 4 of the 12 bytes of the initialization vector.
    pub fn salt(&self) -> &[u8; SALT_BYTES] {
        self.iv.expose().first_chunk().expect("it has 12 bytes")
    }

    /// The last 8 of the 12 bytes of the initialization vector.
    pub fn iv(&self) -> &[u8; IV_BYTES] {
        self.iv.expose().last_chunk().expect("it has 12 bytes")
    }

    /// The number of the next record, most significant byte first.
    pub fn sequence(&self) -> [u8; 8] {
        self.sequence.to_be_bytes()
    }

    /// Records that these keys have protected.
    pub fn records(&self) -> u64 {
        self.sequence
    }

    /// The keys after a KeyUpdate (RFC 8446, section 7.2).
    #[must_use = "these keys stay as they are"]
    pub fn next(&self) -> Self {
        let hash = self.suite.hash();
        Self::new(self.suite, expand_label(hash, &self.secret, "traffic upd", &[], hash.length()))
    }

    /// The nonce of the next record.
    pub(crate) fn nonce(&self) -> [u8; SALT_BYTES + IV_BYTES] {
        let mut nonce: [u8; SALT_BYTES + IV_BYTES] = self.iv.expose().try_into().expect("it has 12 bytes");
        for (byte, number) in nonce[SALT_BYTES..].iter_mut().zip(self.sequence()) {
            *byte ^= number;
        }
        nonce
    }

    #[cfg(test)]
    pub(crate) fn set_records(&mut self, records: u64) {
        self.sequence = records;
    }

    /// Counts a record.
    pub(crate) fn count(&mut self) {
        self.sequence += 1;
    }
}

impl fmt::Debug for TrafficKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { suite, sequence, .. } = self;
        f.debug_struct("TrafficKeys")
            .field("suite", suite)
            .field("sequence", sequence)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
