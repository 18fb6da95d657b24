//! Faults on purpose.

use crate::BlockError;
use crate::disk::Operation;

/// How often a disk fails: of so many operations of a kind, one, chosen by a seeded generator. Zero is never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Seed of the generator.
    pub seed: u64,
    /// Reads.
    pub read_one_in: u32,
    /// Writes, zeroing and discarding.
    pub write_one_in: u32,
    /// Flushes.
    pub flush_one_in: u32,
}

#[derive(Debug)]
pub(crate) struct FaultInjector {
    faults: Faults,
    state: u64,
}

impl FaultInjector {
    pub(crate) fn new(faults: Faults) -> Self {
        Self { faults, state: faults.seed }
    }

    /// The error with which an operation fails, if its turn has come. It fails before it touches the disk.
    pub(crate) fn strike(&mut self, operation: &Operation) -> Option<BlockError> {
        let (one_in, error) = match operation {
            Operation::Read { .. } => (self.faults.read_one_in, BlockError::Read),
            Operation::Flush => (self.faults.flush_one_in, BlockError::Write),
            _ => (self.faults.write_one_in, BlockError::Write),
        };
        (one_in != 0 && self.next().is_multiple_of(u64::from(one_in))).then_some(error)
    }

    /// SplitMix64: enough to scatter faults, and repeatable.
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
