//! Blocks that a command may still change though nobody has its answer.

use ringfab_spec::sqe::DsmRange;
use ringfab_spec::{FromBytes, IoOpcode};

use crate::command::Command;

/// Blocks of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Extent {
    nsid: u32,
    first: u64,
    /// The block behind the last one.
    end: u64,
}

/// Blocks of some commands.
#[derive(Debug, Default)]
pub(super) struct Extents {
    list: Vec<Extent>,
    /// Whether the list ascends, and none of it overlaps with another one.
    sorted: bool,
}

impl Extents {
    /// Adds the blocks that a command changes.
    pub(super) fn add(&mut self, command: &Command) {
        self.list.extend(extents_of(command));
        self.sorted = false;
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// None is left.
    pub(super) fn clear(&mut self) {
        self.list = Vec::new();
    }

    /// Whether a command changes any of these blocks.
    pub(super) fn overlap(&mut self, command: &Command) -> bool {
        if self.list.is_empty() {
            return false;
        }
        self.sort();
        extents_of(command).into_iter().any(|one| {
            let after = self.list.partition_point(|known| (known.nsid, known.first) < (one.nsid, one.end));
            let before = after.checked_sub(1).map(|index| self.list[index]);
            before.is_some_and(|known| known.nsid == one.nsid && known.end > one.first)
        })
    }

    fn sort(&mut self) {
        if self.sorted {
            return;
        }
        self.list.sort_unstable();
        self.list.dedup_by(|next, kept| {
            let joined = next.nsid == kept.nsid && next.first <= kept.end;
            if joined {
                kept.end = kept.end.max(next.end);
            }
            joined
        });
        self.sorted = true;
    }
}

/// Whether a command changes blocks. What is executed once more without that harms nobody: a Flush promises nothing of
/// a command that was not answered before it.
pub(super) fn changes_blocks(command: &Command) -> bool {
    let changes_nothing = [IoOpcode::READ, IoOpcode::COMPARE, IoOpcode::VERIFY, IoOpcode::FLUSH];
    !changes_nothing.contains(&IoOpcode(command.entry.opcode))
}

/// The blocks that a command changes.
fn extents_of(command: &Command) -> Vec<Extent> {
    let nsid = command.entry.nsid.get();
    let extent = |first: u64, blocks: u64| Extent { nsid, first, end: first.saturating_add(blocks) };
    match IoOpcode(command.entry.opcode) {
        _ if !changes_blocks(command) => Vec::new(),
        IoOpcode::WRITE | IoOpcode::WRITE_ZEROES => {
            let first = u64::from(command.entry.cdw11.get()) << 32 | u64::from(command.entry.cdw10.get());
            vec![extent(first, u64::from(command.entry.cdw12.get() & 0xffff) + 1)]
        }
        IoOpcode::DATASET_MANAGEMENT => match &command.memory {
            Some(memory) => memory.with_bytes(0..memory.len(), |bytes| {
                let start = (command.offset as usize).min(bytes.len());
                let end = start.saturating_add(command.length as usize).min(bytes.len());
                let ranges = bytes[start..end].chunks_exact(size_of::<DsmRange>());
                let ranges = ranges.filter_map(|bytes| DsmRange::read_from_bytes(bytes).ok());
                ranges.map(|range| extent(range.slba.get(), range.nlb.get().into())).collect()
            }),
            None => vec![extent(0, u64::MAX)],
        },
        // Whatever it is: all of the namespace.
        _ => vec![extent(0, u64::MAX)],
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ringfab_memory::{ClassLayout, Pool};
    use ringfab_spec::IntoBytes;

    use super::*;
    use crate::command::{BoxedCommand, Direction, Owner};
    use crate::wire;

    fn command(entry: ringfab_spec::SubmissionEntry) -> BoxedCommand {
        Command::new(entry, Owner::Io(0))
    }

    #[test]
    fn only_what_changes_blocks_has_any() {
        let mut extents = Extents::default();
        extents.add(&command(wire::write(1, 10, 5, false)));
        let overlaps = |extents: &mut Extents, entry| extents.overlap(&command(entry));
        assert!(overlaps(&mut extents, wire::write(1, 14, 1, true)));
        assert!(overlaps(&mut extents, wire::write_zeroes(1, 0, 11, false, false)));
        assert!(
            !overlaps(&mut extents, wire::write(1, 15, 9, false))
                && !overlaps(&mut extents, wire::write(1, 0, 10, false))
        );
        assert!(!overlaps(&mut extents, wire::write(2, 10, 5, false)), "of another namespace");
        for harmless in
            [wire::read(1, 10, 5), wire::compare(1, 10, 5), wire::verify(1, 10, 5), wire::flush(1)]
        {
            assert!(!overlaps(&mut extents, harmless) && !changes_blocks(&command(harmless)));
        }
    }

    #[test]
    fn the_ranges_of_a_discard_are_those_in_its_data() {
        let pool = Pool::new(&[ClassLayout { buffer_bytes: 4096, count: 1 }]).expect("a pool");
        let memory = pool.take(4096).expect("a buffer").share();
        let ranges = [DsmRange::new(100, 4), DsmRange::new(50, 1)];
        memory.write_at(0, ranges.as_bytes());
        let discard = command(wire::discard(1, 2)).with_data(Direction::ToController, memory, 0, 32);
        let mut extents = Extents::default();
        extents.add(&discard);
        for (lba, expected) in [(49, false), (50, true), (51, false), (99, false), (103, true), (104, false)]
        {
            assert_eq!(extents.overlap(&command(wire::write(1, lba, 1, false))), expected, "{lba}");
        }
        extents.clear();
        assert!(extents.is_empty() && !extents.overlap(&discard));
    }

    proptest! {
        #[test]
        fn they_overlap_exactly_where_a_block_is_in_both(
            held in proptest::collection::vec((0_u64..60, 1_u32..12), 0..12),
            tried in proptest::collection::vec((0_u64..80, 1_u32..12), 1..20),
        ) {
            let mut extents = Extents::default();
            for (index, (lba, blocks)) in held.iter().enumerate() {
                extents.add(&command(wire::write(1, *lba, *blocks, false)));
                let (lba, blocks) = tried[index % tried.len()];
                let expected = held[..=index].iter().any(|(first, count)| {
                    lba < first + u64::from(*count) && *first < lba + u64::from(blocks)
                });
                prop_assert_eq!(extents.overlap(&command(wire::write(1, lba, blocks, false))), expected);
            }
            for (lba, blocks) in tried {
                let expected = held.iter().any(|(first, count)| {
                    lba < first + u64::from(*count) && *first < lba + u64::from(blocks)
                });
                prop_assert_eq!(extents.overlap(&command(wire::write(1, lba, blocks, false))), expected);
            }
        }
    }
}
