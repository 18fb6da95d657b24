//! Which command identifiers of a queue are in use.

use bitvec::boxed::BitBox;
use bitvec::vec::BitVec;

/// The command identifiers in use: a bit for each that there can be would be most of what a queue costs that has a few
/// slots only.
#[derive(Debug)]
pub(super) enum CommandIds {
    Few(Vec<u16>),
    Bits(BitBox),
}

impl CommandIds {
    /// None yet, and no bits: for so many at once.
    pub(super) fn few(count: usize) -> Self {
        Self::Few(Vec::with_capacity(count))
    }

    pub(super) fn contains(&self, cid: u16) -> bool {
        match self {
            Self::Few(list) => list.contains(&cid),
            Self::Bits(bits) => bits[usize::from(cid)],
        }
    }

    pub(super) fn insert(&mut self, cid: u16) {
        match self {
            Self::Few(list) => list.push(cid),
            Self::Bits(bits) => bits.set(usize::from(cid), true),
        }
    }

    pub(super) fn remove(&mut self, cid: u16) {
        match self {
            Self::Few(list) => list.retain(|one| *one != cid),
            Self::Bits(bits) => bits.set(usize::from(cid), false),
        }
    }

    /// Gets a bit for each, for many slots.
    pub(super) fn expect_many(&mut self) {
        let Self::Few(list) = self else { return };
        let mut bits = BitVec::repeat(false, 1 << 16).into_boxed_bitslice();
        list.iter().for_each(|cid| bits.set(usize::from(*cid), true));
        *self = Self::Bits(bits);
    }
}
