//! Blocks that contain their own offset, so that a read detects a block that is lost, misplaced, torn or old.
//!
//! Every 512 bytes begin with: magic, the offset on the namespace, the generation of the extent, the seed, and a
//! checksum of all the rest; the rest is a stream that follows from them.

use anyhow::{Result, anyhow};
use ringfab_base::mix;

use super::access_pattern::Random;

/// Bytes that bear a header; no logical block is smaller.
pub(crate) const SECTOR_BYTES: usize = 512;
const MAGIC: u64 = u64::from_le_bytes(*b"ringfab!");
const HEADER_BYTES: usize = 40;

/// What an extent holds when nothing was written yet, or what it must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// Any generation of this seed.
    Any,
    /// This one.
    Generation(u32),
}

/// Fills `bytes`, which go to `offset`, with the content of a generation.
pub(crate) fn fill(bytes: &mut [u8], offset: u64, generation: u32, seed: u64) {
    for (index, sector) in bytes.chunks_exact_mut(SECTOR_BYTES).enumerate() {
        let offset = offset + (index * SECTOR_BYTES) as u64;
        let mut random = Random::new(mix(offset) ^ mix(u64::from(generation)).rotate_left(17) ^ seed);
        for word in sector[HEADER_BYTES..].chunks_exact_mut(8) {
            word.copy_from_slice(&random.next().to_le_bytes());
        }
        put(sector, 0, MAGIC);
        put(sector, 8, offset);
        put(sector, 16, u64::from(generation));
        put(sector, 24, seed);
        let sum = checksum(sector);
        put(sector, 32, sum);
    }
}

/// Checks `bytes`, which came from `offset`.
pub(crate) fn check(bytes: &[u8], offset: u64, expected: Expected, seed: u64) -> Result<()> {
    for (index, sector) in bytes.chunks_exact(SECTOR_BYTES).enumerate() {
        let offset = offset + (index * SECTOR_BYTES) as u64;
        check_sector(sector, offset, expected, seed).map_err(|what| anyhow!("at byte {offset}: {what}"))?;
    }
    Ok(())
}

fn check_sector(sector: &[u8], offset: u64, expected: Expected, seed: u64) -> Result<(), String> {
    if get(sector, 0) != MAGIC {
        let zero = if sector.iter().all(|byte| *byte == 0) { " but zeroes" } else { "" };
        return Err(format!("no block of ours{zero}"));
    }
    if get(sector, 32) != checksum(sector) {
        return Err("the checksum is wrong: a damaged or torn block".to_owned());
    }
    if get(sector, 24) != seed {
        return Err(format!("a block of another run (seed {})", get(sector, 24)));
    }
    if get(sector, 8) != offset {
        return Err(format!("the block of byte {}", get(sector, 8)));
    }
    match expected {
        Expected::Generation(generation) if get(sector, 16) != u64::from(generation) => {
            Err(format!("generation {} instead of {generation}", get(sector, 16)))
        }
        _ => Ok(()),
    }
}

/// Of everything but the checksum's own bytes.
fn checksum(sector: &[u8]) -> u64 {
    let words = sector.chunks_exact(8).enumerate().filter(|(index, _)| *index != 4);
    words.fold(MAGIC, |sum, (_, word)| mix(sum ^ u64::from_le_bytes(word.try_into().expect("eight bytes"))))
}

fn put(sector: &mut [u8], at: usize, value: u64) {
    sector[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

fn get(sector: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(sector[at..at + 8].try_into().expect("eight bytes"))
}

/// What was written where, and where I/O is under way.
#[derive(Debug)]
pub(crate) struct ExtentTable {
    generations: Vec<u32>,
    busy: bitvec::vec::BitVec<u64>,
    /// Whether everything must be of this seed before anything was written: an earlier run did.
    pub(crate) written_before: bool,
}

impl ExtentTable {
    pub(crate) fn new(extents: u64, written_before: bool) -> Self {
        let extents = extents as usize;
        Self {
            generations: vec![0; extents],
            busy: bitvec::bitvec![u64, bitvec::order::Lsb0; 0; extents],
            written_before,
        }
    }

    /// The extent, or the next one after it without I/O; it has I/O from now on. At least one must be free.
    pub(crate) fn acquire(&mut self, extent: u64) -> u64 {
        let extent = extent as usize;
        let free = self.busy[extent..].first_zero().map(|ahead| extent + ahead);
        let free = free.or_else(|| self.busy.first_zero()).expect("fewer I/Os than extents");
        self.busy.set(free, true);
        free as u64
    }

    /// The I/O of the extent has ended.
    pub(crate) fn release(&mut self, extent: u64) {
        self.busy.set(extent as usize, false);
    }

    /// The generation of the next write of the extent; zero stands for none.
    pub(crate) fn next_generation(&self, extent: u64) -> u32 {
        self.generations[extent as usize].wrapping_add(1).max(1)
    }

    /// A write of this generation has succeeded.
    pub(crate) fn written(&mut self, extent: u64, generation: u32) {
        self.generations[extent as usize] = generation;
    }

    /// What a read of the extent must find; `None` when nothing is known.
    pub(crate) fn expected(&self, extent: u64) -> Option<Expected> {
        match self.generations[extent as usize] {
            0 => self.written_before.then_some(Expected::Any),
            generation => Some(Expected::Generation(generation)),
        }
    }

    /// The first extent from `extent` on that was written.
    pub(crate) fn next_written(&self, extent: u64) -> Option<u64> {
        let rest = self.generations.get(extent as usize..)?;
        rest.iter().position(|generation| *generation != 0).map(|ahead| extent + ahead as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block() -> Vec<u8> {
        let mut bytes = vec![0; 4096];
        fill(&mut bytes, 8192, 3, 42);
        bytes
    }

    #[test]
    fn content_passes_at_its_offset_and_nowhere_else() {
        let bytes = block();
        assert!(check(&bytes, 8192, Expected::Generation(3), 42).is_ok());
        assert!(check(&bytes, 8192, Expected::Any, 42).is_ok());
        for (offset, expected, seed, what) in [
            (4096, Expected::Any, 42, "the block of byte 8192"),
            (8192, Expected::Generation(4), 42, "generation 3 instead of 4"),
            (8192, Expected::Any, 43, "another run (seed 42)"),
        ] {
            let error = check(&bytes, offset, expected, seed).expect_err(what).to_string();
            assert!(error.contains(what), "{error}");
        }
    }

    #[test]
    fn any_flipped_bit_is_noticed() {
        let bytes = block();
        for at in 0..SECTOR_BYTES {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (at % 8);
            assert!(check(&damaged, 8192, Expected::Any, 42).is_err(), "byte {at}");
        }
    }

    #[test]
    fn a_block_torn_between_generations_and_one_of_zeroes_are_noticed() {
        let mut torn = block();
        fill(&mut torn[512..1024], 8704, 2, 42);
        let error = check(&torn, 8192, Expected::Generation(3), 42).expect_err("torn").to_string();
        assert_eq!(error, "at byte 8704: generation 2 instead of 3");
        let error = check(&[0; 512], 0, Expected::Any, 42).expect_err("zeroes").to_string();
        assert_eq!(error, "at byte 0: no block of ours but zeroes");
    }

    #[test]
    fn no_two_ios_are_at_one_extent() {
        let mut table = ExtentTable::new(4, false);
        assert_eq!([3, 3, 3].map(|extent| table.acquire(extent)), [3, 0, 1]);
        table.release(3);
        assert_eq!(table.acquire(3), 3);
        assert_eq!(table.acquire(0), 2);
    }

    #[test]
    fn the_table_knows_what_was_written() {
        let mut table = ExtentTable::new(4, false);
        assert_eq!((table.expected(2), table.next_written(0)), (None, None));
        let generation = table.next_generation(2);
        table.written(2, generation);
        assert_eq!(table.expected(2), Some(Expected::Generation(1)));
        assert_eq!(
            (table.next_written(0), table.next_written(3), table.next_written(4)),
            (Some(2), None, None)
        );
        assert_eq!(ExtentTable::new(4, true).expected(0), Some(Expected::Any));
    }
}
