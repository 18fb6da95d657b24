//! Where a range of bytes meets the blocks of a disk.

use std::ops::Range;

/// A range of bytes, cut where its first whole block begins and its last one ends. The parts follow each other, and
/// each may be empty. All offsets are in bytes.
///
/// ```
/// use ringfab_initiator::bytes::Cut;
///
/// let cut = Cut::new(&(100..1600), 512);
/// assert_eq!((cut.head, cut.body, cut.tail), (100..512, 512..1536, 1536..1600));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// What comes before the first whole block: a part of one block.
    pub head: Range<u64>,
    /// Whole blocks.
    pub body: Range<u64>,
    /// What comes behind the last whole block: a part of one block.
    pub tail: Range<u64>,
}

impl Cut {
    /// Cuts a range at blocks of so many bytes.
    pub fn new(range: &Range<u64>, block_bytes: u32) -> Self {
        let (block, end) = (u64::from(block_bytes), range.end);
        let first = range.start.next_multiple_of(block);
        let last = end - end % block;
        if first < last {
            return Self { head: range.start..first, body: first..last, tail: last..end };
        }
        // No block is whole. The range ends in the block in which it begins, or in the next one.
        let middle = first.min(end);
        Self { head: range.start..middle, body: middle..middle, tail: middle..end }
    }
}

/// The blocks of which a range of bytes has at least one byte, by number; none for an empty range.
pub fn touched_blocks(range: &Range<u64>, block_bytes: u32) -> Range<u64> {
    let (block, first) = (u64::from(block_bytes), range.start / u64::from(block_bytes));
    if range.is_empty() { first..first } else { first..range.end.div_ceil(block) }
}

/// How many bytes at the start of a range are only a part of a block; zero where it begins with a whole one.
pub fn part_bytes(range: &Range<u64>, block_bytes: u32) -> u32 {
    let (block, length) = (u64::from(block_bytes), range.end - range.start);
    let bytes = match range.start % block {
        0 if length < block => length,
        0 => 0,
        behind => (block - behind).min(length),
    };
    bytes as u32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_parts_of_a_cut_make_up_the_range_and_only_the_middle_has_whole_blocks(
            offset in 0_u64..10_000, length in 0_u64..10_000,
        ) {
            let range = offset..offset + length;
            let Cut { head, body, tail } = Cut::new(&range, 512);
            let ends = (head.start, head.end, body.end, tail.end);
            prop_assert_eq!(ends, (range.start, body.start, tail.start, range.end));
            prop_assert!(head.end >= head.start && body.end >= body.start && tail.end >= tail.start);
            prop_assert!(body.is_empty() || (body.start % 512 == 0 && body.end % 512 == 0));
            prop_assert!(head.end - head.start < 512 && tail.end - tail.start < 512);
            let first = if head.is_empty() && body.is_empty() { &tail } else { &head };
            prop_assert_eq!(u64::from(part_bytes(&range, 512)), first.end - first.start);
        }

        #[test]
        fn a_block_is_touched_when_one_of_its_bytes_is(
            offset in 0_u64..5000, length in 0_u64..5000, block in 0_u64..30,
        ) {
            let range = offset..offset + length;
            let has_one = (block * 512..(block + 1) * 512).any(|byte| range.contains(&byte));
            prop_assert_eq!(touched_blocks(&range, 512).contains(&block), has_one);
        }
    }
}
