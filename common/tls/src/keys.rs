//! Keys of records.

use std::fmt;

use ringfab_auth::{CipherSuite, Secret};

use crate::error::TlsError;

/// Bytes of [`TrafficKeys::salt`].
pub const SALT_BYTES: usize = 4;
/// Bytes of [`TrafficKeys::iv`].
pub const IV_BYTES: usize = 8;

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

    /// The keys after a KeyUpdate (RFC 8446, section 7.2).
    ///
    /// # Errors
    /// None yet.
    pub fn next(&self) -> Result<Self, TlsError> {
        let _ = &self.secret;
        Err(TlsError::NotImplemented)
    }
}

impl fmt::Debug for TrafficKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrafficKeys")
            .field("suite", &self.suite)
            .field("sequence", &self.sequence)
            .finish_non_exhaustive()
    }
}
