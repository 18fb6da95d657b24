//! Which blocks are allocated (Get LBA Status).

use ringfab_spec::FromBytes as _;
use ringfab_spec::lba_status::{LbaStatusDescriptor, LbaStatusHeader};

use super::disk::Disk;
use super::message::Operation;
use crate::error::{IoError, SubmitError};
use crate::wire;

/// Bytes that one command reads: every controller allows a page.
const ANSWER_BYTES: usize = 4096;

/// Blocks that follow each other, and are allocated or deallocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// How many; not zero.
    pub blocks: u64,
    /// Whether one of them may be allocated.
    pub allocated: bool,
}

impl Disk {
    /// Which of `blocks` blocks from `lba` on are allocated, as runs that follow each other from `lba` on. They may end
    /// before the last block: a controller says only so much at once. There is at least one run where `blocks` is not
    /// zero. Where the controller does not say, all is allocated.
    ///
    /// # Errors
    /// The command's; [`SubmitError::Range`] when there are fewer blocks.
    pub fn allocation(&self, lba: u64, blocks: u64) -> Result<Vec<Run>, IoError> {
        let namespace = self.namespace_in_use()?;
        let end = lba.checked_add(blocks).filter(|end| *end <= namespace.blocks);
        let end = end.ok_or(IoError::Refused(SubmitError::Range))?;
        if blocks == 0 {
            return Ok(Vec::new());
        }
        if !namespace.reports_allocation {
            return Ok(vec![Run { blocks, allocated: true }]);
        }
        let entry = wire::allocated(self.nsid(), lba, blocks, ANSWER_BYTES);
        let answer = self.call(Operation::AdminRead { entry, length: ANSWER_BYTES })?;
        Ok(runs(&answer.data, lba, end))
    }
}

/// The runs between two blocks that an answer tells of. What makes no sense in it counts as allocated.
fn runs(data: &[u8], lba: u64, end: u64) -> Vec<Run> {
    let mut runs = Vec::new();
    let mut at = lba;
    let mut push = |to: u64, allocated: bool, at: &mut u64| {
        let to = to.min(end);
        if to > *at {
            runs.push(Run { blocks: to - *at, allocated });
            *at = to;
        }
    };
    let Ok((header, rest)) = LbaStatusHeader::ref_from_prefix(data) else {
        push(end, true, &mut at);
        return runs;
    };
    let count = header.nlsd.get() as usize;
    let mut complete = header.is_complete() && count <= rest.len() / LbaStatusDescriptor::SIZE;
    let mut after = 0;
    for bytes in rest.chunks_exact(LbaStatusDescriptor::SIZE).take(count) {
        let Ok(descriptor) = LbaStatusDescriptor::ref_from_bytes(bytes) else { continue };
        let (start, blocks) = (descriptor.dslba.get(), u64::from(descriptor.nlb_z.get()) + 1);
        // They ascend. What does not is none: over RDMA, what the controller has not written is zero.
        if start < after {
            complete = false;
            break;
        }
        after = start.saturating_add(blocks);
        // Before it, nothing is allocated.
        push(start, false, &mut at);
        push(start.saturating_add(blocks), true, &mut at);
    }
    // There may be more behind the last descriptor, unless the controller says that this is all, and all came.
    if complete {
        push(end, false, &mut at);
    } else if at == lba {
        push(end, true, &mut at);
    }
    runs
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ringfab_spec::IntoBytes as _;

    use super::*;

    fn answer(incomplete: bool, allocated: &[(u64, u32)]) -> Vec<u8> {
        let mut data = LbaStatusHeader::new(allocated.len() as u32, incomplete).as_bytes().to_vec();
        for (start, blocks) in allocated {
            data.extend_from_slice(LbaStatusDescriptor::allocated(*start, *blocks).as_bytes());
        }
        data.resize(ANSWER_BYTES, 0);
        data
    }

    fn found(data: &[u8], lba: u64, end: u64) -> Vec<(u64, bool)> {
        runs(data, lba, end).iter().map(|run| (run.blocks, run.allocated)).collect()
    }

    #[test]
    fn what_is_not_listed_as_allocated_is_not() {
        let data = answer(false, &[(2, 3), (10, 1)]);
        assert_eq!(found(&data, 0, 20), [(2, false), (3, true), (5, false), (1, true), (9, false)]);
        assert_eq!(found(&data, 3, 10), [(2, true), (5, false)]);
        assert_eq!(found(&answer(false, &[]), 5, 9), [(4, false)]);
        assert_eq!(
            found(&answer(true, &[(2, 3)]), 0, 20),
            [(2, false), (3, true)],
            "there is more to ask for"
        );
        assert_eq!(found(&answer(true, &[]), 0, 20), [(20, true)], "it says nothing");
        assert_eq!(found(&[0; 3], 0, 20), [(20, true)]);
        let (cut, mut unwritten) = (answer(false, &[(2, 3), (10, 1)]), answer(false, &[(2, 3), (10, 1)]));
        let first = LbaStatusHeader::SIZE + LbaStatusDescriptor::SIZE;
        assert_eq!(
            found(&cut[..first], 0, 20),
            [(2, false), (3, true)],
            "the second descriptor did not come"
        );
        unwritten[first..].fill(0);
        assert_eq!(found(&unwritten, 0, 20), [(2, false), (3, true)], "nor here, where nobody says so");
        assert_eq!(found(&answer(false, &[(u64::MAX, u32::MAX), (3, 1)]), 0, 20), [(20, false)]);
    }

    proptest! {
        #[test]
        fn whatever_a_controller_says_the_runs_are_a_part_from_the_start(
            data in prop::collection::vec(any::<u8>(), 0..100), count in 0_u8..8, incomplete: bool,
        ) {
            let mut data = data;
            if data.len() >= 8 {
                data[..8].copy_from_slice(&[count, 0, 0, 0, u8::from(incomplete), 0, 0, 0]);
            }
            let runs = runs(&data, 100, 200);
            let sum: u64 = runs.iter().map(|run| run.blocks).sum();
            prop_assert!((1..=100).contains(&sum) && runs.iter().all(|run| run.blocks > 0));
        }
    }
}
