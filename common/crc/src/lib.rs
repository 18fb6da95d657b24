//! CRC32C as MPA (RFC 5044, section 4.4) and the digests of NVMe/TCP use it, in pieces.
//!
//! The state between pieces is the raw register: start from [`START`], feed bytes with [`update`], end with
//! [`finish`]. The four bytes on the wire are the finished value in little-endian order, which is what iSCSI does and
//! what Linux siw and Wireshark expect.
//!
//! On processors that multiply polynomials of 256 or 512 bits, our own code computes the CRC: `wide` or `widest`, which
//! use multiplications and CRC32 instructions side by side. Our code also computes CRCs of short data. On all other
//! processors a library does the rest.
//!
//! Not implemented here: any other polynomial.

#![allow(unsafe_code, reason = "calls of code for instructions that not every processor has")]

#[cfg(target_arch = "x86_64")]
mod polynomial;
#[cfg(target_arch = "x86_64")]
mod short;
#[cfg(target_arch = "x86_64")]
mod wide;
#[cfg(target_arch = "x86_64")]
mod widest;

use crc_fast::{CrcAlgorithm, Digest};

/// The register before the first byte.
pub const START: u32 = u32::MAX;

/// The register after `bytes`, from the register before them.
#[must_use]
pub fn update(state: u32, bytes: &[u8]) -> u32 {
    preferred(state, bytes).unwrap_or_else(|| {
        let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(state));
        digest.update(bytes);
        low_half(digest.get_state())
    })
}

/// The bytes that go on the wire for a register after the last byte.
#[must_use]
pub fn finish(state: u32) -> [u8; 4] {
    (!state).to_le_bytes()
}

/// The wire bytes for one contiguous piece, by a shorter way where the library does it.
#[must_use]
pub fn of(bytes: &[u8]) -> [u8; 4] {
    let library = || low_half(crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes)).to_le_bytes();
    preferred(START, bytes).map_or_else(library, finish)
}

/// The register by our own code, where that is better than the library's.
#[cfg(target_arch = "x86_64")]
fn preferred(state: u32, bytes: &[u8]) -> Option<u32> {
    if bytes.len() <= short::LENGTH_MAX && *short::POSSIBLE {
        // SAFETY: the processor has the instruction for which that function is compiled.
        return Some(unsafe { short::short(state, bytes) });
    }
    match *WIDEST {
        // SAFETY: the processor has all the instructions for which that function is compiled.
        Some(512) => Some(unsafe { widest::update(state, bytes) }),
        // SAFETY: as above.
        Some(_) => Some(unsafe { wide::update(state, bytes) }),
        None => None,
    }
}

/// By how many bits the processor multiplies at most, if they are 256 or 512.
#[cfg(target_arch = "x86_64")]
static WIDEST: std::sync::LazyLock<Option<u16>> =
    std::sync::LazyLock::new(|| if widest::possible() { Some(512) } else { wide::possible().then_some(256) });

#[cfg(not(target_arch = "x86_64"))]
fn preferred(_: u32, _: &[u8]) -> Option<u32> {
    None
}

/// The library keeps 32-bit registers in a `u64`.
fn low_half(state: u64) -> u32 {
    u32::try_from(state & u64::from(u32::MAX)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition, a bit at a time.
    fn by_definition(state: u32, bytes: &[u8]) -> u32 {
        bytes.iter().fold(state, |state, byte| {
            let shift = |state: u32, _| (state >> 1) ^ (if state & 1 == 1 { 0x82f6_3b78 } else { 0 });
            (0..8).fold(state ^ u32::from(*byte), shift)
        })
    }

    fn bytes(count: u32) -> Vec<u8> {
        (0..count).map(|i| (i.wrapping_mul(2_654_435_761) >> 23) as u8).collect()
    }

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
        let bytes = bytes(9000);
        for cut in [0, 1, 15, 16, 64, 255, 256, 1025, 4096, 5000, 9000] {
            let state = update(update(START, &bytes[..cut]), &bytes[cut..]);
            assert_eq!(finish(state), of(&bytes), "cut at {cut}");
        }
    }

    /// Of all lengths that may matter, and at several distances from what is aligned.
    fn pieces(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
        let lengths = (0..1400).chain(4000..4400).chain([8191, 8192, 9472, 12_345, 20_000 - 7]);
        lengths.map(|length| &bytes[length % 7..][..length])
    }

    #[test]
    fn every_length_gives_what_the_definition_does() {
        for piece in pieces(&bytes(20_000)) {
            assert_eq!(update(7, piece), by_definition(7, piece), "{} bytes", piece.len());
            assert_eq!(of(piece), finish(by_definition(START, piece)), "{} bytes", piece.len());
        }
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn our_own_code_gives_it_too_on_every_processor_that_can_run_it() {
        for piece in pieces(&bytes(20_000)) {
            let expected = by_definition(7, piece);
            if wide::possible() {
                // SAFETY: it was asked just now whether it is possible.
                assert_eq!(unsafe { wide::update(7, piece) }, expected, "{} bytes", piece.len());
            }
            if widest::possible() {
                // SAFETY: as above.
                assert_eq!(unsafe { widest::update(7, piece) }, expected, "{} bytes", piece.len());
            }
        }
    }
}
