//! What a sector holds: a stamp that names the write, and bytes that follow from it and from the sector's number.

use ringfab_base::{SplitMix64, mix};

/// The unit of the model: what a disk keeps or loses as a whole.
pub const SECTOR_BYTES: usize = 512;

/// Names a write. Zero stands for a sector of zeroes.
pub type Stamp = u64;

/// Fills a sector of the disk with what the write `stamp` leaves in it.
pub fn fill(bytes: &mut [u8], stamp: Stamp, sector: u64) {
    if stamp == 0 {
        return bytes.fill(0);
    }
    for (index, word) in bytes.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&word_of(stamp, sector, index as u64).to_le_bytes());
    }
}

/// The write whose content a sector holds, if it holds all of it and nothing else.
///
/// # Errors
/// What is wrong with it.
pub fn stamp_of(bytes: &[u8], sector: u64) -> Result<Stamp, String> {
    let stamp = u64::from_le_bytes(bytes[..8].try_into().expect("a sector is longer"));
    let mut expected = [0; SECTOR_BYTES];
    fill(&mut expected, stamp, sector);
    if bytes == expected {
        return Ok(stamp);
    }
    let at = bytes.iter().zip(&expected).position(|(found, wanted)| found != wanted);
    Err(format!("sector {sector} is of no single write: stamp {stamp}, wrong from byte {at:?}"))
}

/// The first word is the stamp itself, so that it can be read back.
fn word_of(stamp: Stamp, sector: u64, index: u64) -> u64 {
    if index == 0 { stamp } else { mix(stamp.rotate_left(17) ^ sector << 8 ^ index) }
}

/// A generator of its own for each part of a world, so that what one part draws does not change the
/// others.
#[derive(Clone, Debug)]
pub struct Random(SplitMix64);

impl Random {
    /// The generator of a seed and a part.
    pub fn new(seed: u64, part: u64) -> Self {
        Self(SplitMix64::new(mix(seed ^ mix(part))))
    }

    /// A number of 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next()
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next_u64() % bound
    }

    /// One of several.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// True once in so many times.
    pub fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sector_tells_its_write_and_a_torn_or_misplaced_one_does_not() {
        let mut sector = [0; SECTOR_BYTES];
        fill(&mut sector, 77, 5);
        assert_eq!(stamp_of(&sector, 5), Ok(77));
        assert!(stamp_of(&sector, 6).is_err());
        sector[511] ^= 1;
        assert!(stamp_of(&sector, 5).is_err());
        assert_eq!(stamp_of(&[0; SECTOR_BYTES], 5), Ok(0));
    }
}
