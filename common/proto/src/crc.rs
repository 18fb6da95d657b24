//! CRC32C as MPA (RFC 5044, section 4.4) and the digests of NVMe/TCP use it, in pieces.
//!
//! The state between pieces is the raw register: start from [`START`], feed bytes with [`update`], end with
//! [`finish`]. The four bytes on the wire are the finished value in little-endian order, which is what iSCSI does and
//! what Linux siw and Wireshark expect.

use crc_fast::{CrcAlgorithm, Digest};

/// The register before the first byte.
pub const START: u32 = u32::MAX;

/// The register after `bytes`, from the register before them.
#[must_use]
pub fn update(state: u32, bytes: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(state));
    digest.update(bytes);
    low_half(digest.get_state())
}

/// The bytes that go on the wire for a register after the last byte.
#[must_use]
pub fn finish(state: u32) -> [u8; 4] {
    (!state).to_le_bytes()
}

/// The wire bytes for one contiguous piece, by the library's path for short inputs.
#[must_use]
pub fn of(bytes: &[u8]) -> [u8; 4] {
    low_half(crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes)).to_le_bytes()
}

/// The library keeps 32-bit registers in a `u64`.
fn low_half(state: u64) -> u32 {
    u32::try_from(state & u64::from(u32::MAX)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_value_is_that_of_crc32c() {
        assert_eq!(of(b"123456789"), 0xe306_9283_u32.to_le_bytes());
    }

    #[test]
    fn thirty_two_zero_bytes_give_the_bytes_that_the_iscsi_specification_lists() {
        assert_eq!(of(&[0; 32]), [0xaa, 0x36, 0x91, 0x8a]);
    }

    #[test]
    fn pieces_give_the_same_value_as_the_whole() {
        let bytes: Vec<u8> = (0..5000_u32).map(|i| i.to_le_bytes()[0] ^ i.to_le_bytes()[1]).collect();
        for cut in [0, 1, 15, 16, 64, 255, 256, 4096, 5000] {
            let state = update(update(START, &bytes[..cut]), &bytes[cut..]);
            assert_eq!(finish(state), of(&bytes), "cut at {cut}");
        }
    }
}
