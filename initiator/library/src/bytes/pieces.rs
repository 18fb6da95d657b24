//! Pieces of a length that one command takes.

use std::ops::Range;

use super::cut::part_bytes;
use crate::namespace::{BlockRange, Namespace};
use crate::request::DiscardRanges;

/// The first piece of a range of bytes that is written: a part of one block, or as many whole blocks as have at most
/// `bytes_max` bytes. It is empty only where the range is, or where `bytes_max` is less than a block.
pub fn next_piece(range: &Range<u64>, block_bytes: u32, bytes_max: u32) -> Range<u64> {
    let whole =
        (range.end - range.start).min(bytes_max.into()) / u64::from(block_bytes) * u64::from(block_bytes);
    let bytes = match part_bytes(range, block_bytes) {
        0 => whole,
        part => part.into(),
    };
    range.start..range.start + bytes
}

/// Blocks, by number, in pieces of at most `blocks_max`. Zero counts as one.
pub fn block_pieces(blocks: Range<u64>, blocks_max: u32) -> impl Iterator<Item = BlockRange> + Clone {
    let (most, end) = (u64::from(blocks_max.max(1)), blocks.end);
    let starts =
        (0..(blocks.end - blocks.start).div_ceil(most)).map(move |index| blocks.start + index * most);
    starts.map(move |lba| BlockRange { lba, nlb: (end - lba).min(most) as u32 })
}

/// Ranges to discard, as commands that a namespace takes. The caller has looked whether it takes any.
pub(crate) fn discards(namespace: &Namespace, ranges: &[BlockRange]) -> Vec<Vec<BlockRange>> {
    let count = (namespace.discard_ranges_max as usize).clamp(1, DiscardRanges::COUNT_MAX);
    let mut commands: Vec<Vec<BlockRange>> = Vec::new();
    let mut room = 0;
    for range in ranges {
        for piece in block_pieces(range.blocks(), namespace.discard_blocks_max) {
            let blocks = u64::from(piece.nlb);
            match commands.last_mut().filter(|last| last.len() < count && room >= blocks) {
                Some(last) => last.push(piece),
                None => {
                    commands.push(vec![piece]);
                    room = namespace.discard_total_blocks_max;
                }
            }
            room = room.saturating_sub(blocks);
        }
    }
    commands
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_split_without_gap_or_overlap() {
        for (blocks, most) in [(0, 8), (1, 8), (8, 8), (9, 8), (1000, 7), (5, 0)] {
            let mut next = 100;
            for piece in block_pieces(100..100 + blocks, most) {
                assert_eq!(piece.lba, next);
                assert!(piece.nlb >= 1 && piece.nlb <= most.max(1));
                next = piece.blocks().end;
            }
            assert_eq!(next, 100 + blocks);
        }
    }

    #[test]
    fn a_write_is_cut_at_the_blocks_that_it_touches_in_part() {
        let cut = |offset: u64, length: u64| {
            let (mut pieces, mut rest) = (Vec::new(), offset..offset + length);
            while !rest.is_empty() {
                let is_part = part_bytes(&rest, 512) > 0;
                let piece = next_piece(&rest, 512, 1024);
                rest.start = piece.end;
                pieces.push((piece.end - piece.start, is_part));
            }
            pieces
        };
        assert_eq!(cut(0, 2048), [(1024, false), (1024, false)]);
        assert_eq!(cut(100, 3000), [(412, true), (1024, false), (1024, false), (512, false), (28, true)]);
        assert_eq!(cut(100, 5), [(5, true)]);
        assert_eq!(cut(512, 5), [(5, true)]);
        assert_eq!(cut(511, 2), [(1, true), (1, true)]);
    }
}
