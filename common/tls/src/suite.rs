//! Cipher suites on the wire.

use ringfab_auth::CipherSuite;

/// Both of them, as a client prefers them.
pub(crate) const BEST_FIRST: [CipherSuite; 2] = [CipherSuite::Aes256GcmSha384, CipherSuite::Aes128GcmSha256];

/// The number of a suite.
pub(crate) const fn number(suite: CipherSuite) -> u16 {
    match suite {
        CipherSuite::Aes128GcmSha256 => 0x1301,
        CipherSuite::Aes256GcmSha384 => 0x1302,
    }
}

/// The suite with a number, if it is one that NVMe/TCP uses.
pub(crate) fn from_number(wire: u16) -> Option<CipherSuite> {
    BEST_FIRST.into_iter().find(|&suite| number(suite) == wire)
}
